//! Views at servers that a chunk has left. A server keeps weights that a worker reads as a view until the worker reports that the view
//! has ended. Usually the next operation on the chunk carries this report; but after a move that operation goes to another server. So
//! the old server gets one report of its own: a [`Farewell`], which is a block `OpKind::Release` with operation 0. Owns, for one chunk,
//! which servers have given views of it. It must not know which views the trainer still holds: that is in `Reading`.
//!
//! ```text
//!        note: an answer gives a view         leave: the view has ended, and the chunk has moved
//!  None ──────────────────────────────▶ Shown ────────────────────────────────────────────────▶ Told
//!   ▲                                     ▲                                                      │ │
//!   │                                     └── say_again: the channel ended, or it came changed ──┘ │
//!   └──────── the server's answer; or forget: the server's process is gone ────────────────────────┘
//! ```
//!
//! Without the report, the server would keep that version until this worker's process exits.

use super::command::PartBlock;
use proto_common::batch::{Block, Kept, OpKind, Reading, Status};
use proto_common::element::Dtype;
use proto_common::ids::{ChunkId, Operation, Rank};

/// The token and the operation of blocks that are no part of an operation.
const NO_PART: u64 = u64::MAX;

/// Views of a chunk have ended, but for those that the trainer reads as of this operation: the same server may have shown some
/// again since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Farewell {
    id: ChunkId,
    reading: Reading,
}

impl Farewell {
    pub(super) fn block(self) -> PartBlock {
        let bare = Block::bare(self.id, OpKind::Release, Dtype::F32, Operation(0));
        let block = Block { reading: self.reading, token: NO_PART, ..bare };
        PartBlock { op: NO_PART, offset: 0, block }
    }

    /// Is this block an answer to one?
    pub(super) fn is_answered_by(block: &Block) -> bool {
        block.token == NO_PART
    }
}

/// A server that has shown weights of a chunk, while the chunk was there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shown {
    server: Rank,
    /// As of [`ShownBy::moves`].
    moves: u32,
    /// The last operation that was shown some, and their version.
    operation: Operation,
    version: u64,
    is_told: bool,
}

impl Shown {
    /// Is nothing of it read any more?
    fn is_over(&self, reading: Reading) -> bool {
        let is_kept = match reading.kept {
            Kept::None => false,
            Kept::Version(version) => version.0 <= self.version,
            Kept::All => true,
        };
        self.operation < reading.from && !is_kept
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct ShownBy {
    /// The chunk's own server, and those that had it before and are to be told.
    servers: Vec<Shown>,
    /// How often the chunk got another server.
    moves: u32,
    /// Which views the trainer still reads, from the newest operation.
    reading: Reading,
}

impl ShownBy {
    /// Which views the trainer still reads. Every block of the chunk carries it, also an older one that is sent again.
    pub(super) fn reading(&self) -> Reading {
        self.reading
    }

    /// The chunk has another server.
    pub(super) fn moved(&mut self) {
        self.moves = self.moves.wrapping_add(1);
    }

    /// A server has shown weights to a part of the chunk.
    pub(super) fn note(&mut self, server: Rank, operation: Operation, version: u64) {
        let moves = self.moves;
        let mut known = self.servers.iter_mut();
        match known.find(|shown| (shown.server, shown.moves, shown.is_told) == (server, moves, false)) {
            Some(shown) => {
                shown.operation = shown.operation.max(operation);
                shown.version = shown.version.max(version);
            }
            None => self.servers.push(Shown { server, moves, operation, version, is_told: false }),
        }
    }

    /// An operation on the chunk, which `server` has, says what is read: servers that had the chunk before hear of what they showed.
    /// `tell` returns false if a server cannot be told now.
    pub(super) fn leave(
        &mut self,
        (id, server, reading): (ChunkId, Rank, Reading),
        mut tell: impl FnMut(Rank, Farewell) -> bool,
    ) {
        self.reading = reading;
        for shown in &mut self.servers {
            let is_current = (shown.server, shown.moves) == (server, self.moves);
            if !is_current && !shown.is_told && shown.is_over(reading) {
                shown.is_told = tell(shown.server, Farewell { id, reading });
            }
        }
    }

    /// A server has answered what it was told. What came changed on the way is said again with the chunk's next operation.
    pub(super) fn answered(&mut self, server: Rank, status: Status) {
        match status {
            Status::Done => self.servers.retain(|shown| shown.server != server || !shown.is_told),
            _ => self.say_again(server),
        }
    }

    /// What the server was told may not have come.
    pub(super) fn say_again(&mut self, server: Rank) {
        for shown in self.servers.iter_mut().filter(|shown| shown.server == server) {
            shown.is_told = false;
        }
    }

    /// A server's process is gone, and what it showed is nobody's to free.
    pub(super) fn forget(&mut self, server: Rank) {
        self.servers.retain(|shown| shown.server != server);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Rank = Rank(0);
    const THERE: Rank = Rank(1);

    /// Who is told, by an operation that reads nothing before itself.
    fn told(views: &mut ShownBy, operation: u64, can_hear: bool) -> Vec<Rank> {
        let reading = Reading { from: Operation(operation), ..Reading::default() };
        let mut told = Vec::new();
        views.leave((ChunkId::new(1, 0), THERE, reading), |server, farewell| {
            assert!(Farewell::is_answered_by(&farewell.block().block));
            told.push(server);
            can_hear
        });
        told
    }

    /// Shown by a server that does not have the chunk any more.
    fn elsewhere() -> ShownBy {
        let mut views = ShownBy::default();
        views.note(HERE, Operation(1), 1);
        views.moved();
        views
    }

    #[test]
    fn a_server_that_had_the_chunk_is_told_once_when_nothing_is_read() {
        let mut views = elsewhere();
        views.note(THERE, Operation(1), 1);
        assert_eq!(told(&mut views, 1, true), [], "operation 1 may still be read");
        assert_eq!(told(&mut views, 2, false), [HERE]);
        assert_eq!(told(&mut views, 3, true), [HERE], "it could not be told");
        assert_eq!(told(&mut views, 4, true), []);
    }

    #[test]
    fn it_is_told_again_until_it_answers() {
        let mut views = elsewhere();
        assert_eq!(told(&mut views, 2, true), [HERE]);
        views.answered(HERE, Status::Corrupt);
        assert_eq!(told(&mut views, 3, true), [HERE]);
        views.say_again(HERE);
        assert_eq!(told(&mut views, 4, true), [HERE]);
        views.answered(HERE, Status::Done);
        views.say_again(HERE);
        assert_eq!(told(&mut views, 5, true), []);
        let mut views = elsewhere();
        views.forget(HERE);
        assert_eq!(told(&mut views, 2, true), []);
    }

    #[test]
    fn a_server_that_has_the_chunk_again_is_told_of_what_it_showed_before() {
        let mut views = ShownBy::default();
        views.note(THERE, Operation(1), 1);
        assert_eq!(told(&mut views, 2, true), [], "its own operations say it");
        views.moved();
        views.moved();
        assert_eq!(told(&mut views, 3, true), [THERE]);
    }
}
