//! Views of weights at servers that do not have the chunk any more: a server keeps what it showed until it hears that it is not
//! read, and operations on the chunk go elsewhere by then. So each is told once, by a block of its own. It must not know what
//! trainers hold: `Reading` says it.

use super::chunk::{ChunkQueue, Farewell, NO_PART, ShownBy};
use super::command::PartBlock;
use super::lane::LaneEngine;
use super::link::Link;
use super::part::Part;
use proto_common::batch::{BatchRoom, Block, Status};
use proto_common::ids::{ChunkId, Rank};

/// Puts what a server is to be told into a batch, while there is room.
pub(super) fn take_farewells(link: &mut Link, room: &mut BatchRoom, most: usize, out: &mut Vec<PartBlock>) {
    for _ in 0..most {
        let Some(farewell) = link.farewells.front().copied() else { return };
        let part = farewell.block();
        if !room.take(part.inline_bytes()) {
            return;
        }
        link.farewells.pop_front();
        out.push(part);
    }
}

impl LaneEngine {
    /// A part is answered with where its weights lie.
    pub(super) fn note_shown(&mut self, server: Rank, part: &Part, version: u64) {
        let operation = self.ops.get(part.op).map(|op| op.submit.operation);
        if let (Some(operation), Some(chunk)) = (operation, self.chunks.get_mut(&part.spec.id)) {
            chunk.note_shown(server, operation, version);
        }
    }

    /// An operation on a chunk says what is read: servers that had the chunk before hear of what they showed.
    pub(super) fn take_leave(&mut self, id: ChunkId, server: Rank) {
        let Self { chunks, links, .. } = self;
        let Some(chunk) = chunks.get_mut(&id) else { return };
        let ChunkQueue { shown_by, reading, moves, .. } = chunk;
        for shown in shown_by {
            let is_current = (shown.server, shown.moves) == (server, *moves);
            if is_current || shown.is_told || !shown.is_over(*reading) {
                continue;
            }
            let link = links.get_mut(shown.server.0 as usize).filter(|link| link.up);
            if let Some(link) = link {
                link.farewells.push_back(Farewell { id, reading: *reading });
                shown.is_told = true;
            }
        }
    }

    /// An answer to what is no part of an operation. False where it is another one. What came changed on the way is said again
    /// with the chunk's next operation.
    pub(super) fn is_farewell(&mut self, server: Rank, block: &Block) -> bool {
        let is_one = block.token == NO_PART;
        if is_one && let Some(chunk) = self.chunks.get_mut(&block.id) {
            match block.status {
                Status::Done => chunk.shown_by.retain(|shown| shown.server != server || !shown.is_told),
                _ => {
                    chunk.shown_by.iter_mut().filter(|one| one.server == server).for_each(ShownBy::say_again);
                }
            }
        }
        is_one
    }

    /// A channel has ended: what the server was told may not have come.
    pub(super) fn tell_again(&mut self, server: Rank) {
        let all = self.chunks.values_mut().flat_map(|chunk| &mut chunk.shown_by);
        all.filter(|shown| shown.server == server).for_each(ShownBy::say_again);
    }

    /// A server's life is over, and what it showed is nobody's to free.
    pub(super) fn forget_shown(&mut self, server: Rank) {
        self.chunks.values_mut().for_each(|chunk| chunk.shown_by.retain(|shown| shown.server != server));
    }
}
