//! The parts of one chunk on a lane: which wait, which are under way, and which servers have shown weights of it. It must not
//! know a link.

use super::command::PartBlock;
use proto_common::batch::{Block, Kept, OpKind, Reading};
use proto_common::element::Dtype;
use proto_common::ids::{ChunkId, Operation, Rank};
use std::collections::VecDeque;

#[derive(Debug, Default)]
pub(super) struct ChunkQueue {
    /// Unsent parts in order; the front one is in its server's queue when `queued`.
    pub(super) waiting: VecDeque<u32>,
    pub(super) queued: bool,
    pub(super) sent: u32,
    /// The server that has the parts that were sent.
    pub(super) sent_to: Rank,
    /// The server, where that is not the one that operations were cut for any more.
    pub(super) route: Option<Rank>,
    /// The server could not take a part: nothing goes out until that can be tried again.
    pub(super) held: bool,
    /// A part is announced: what follows waits for the answer.
    pub(super) asked: bool,
    /// A grant for the announced part must not be used: the chunk has moved, or may have, since the announcement.
    pub(super) asked_before: bool,
    /// How often in a row.
    pub(super) tries: u32,
    /// Which views the trainer still reads, from the newest operation. Every block of the chunk carries it, also an older one that
    /// is sent again.
    pub(super) reading: Reading,
    /// Operations that have not ended, in order.
    pub(super) open: VecDeque<u64>,
    /// How often it got another server.
    pub(super) moves: u32,
    /// Servers whose weights of it may be read still, where they lie. Its own, and those that had it before and are to be told.
    pub(super) shown_by: Vec<ShownBy>,
}

impl ChunkQueue {
    /// Is this operation among so many from the oldest on that has not ended?
    pub(super) fn has_window(&self, operation: u64, most: u64) -> bool {
        self.open.front().is_none_or(|oldest| operation < oldest.saturating_add(most))
    }

    /// An operation has ended here.
    pub(super) fn close(&mut self, operation: Option<u64>) {
        let at = operation.and_then(|operation| self.open.binary_search(&operation).ok());
        if let Some(at) = at {
            self.open.remove(at);
        }
    }

    /// Where a part of it is to be sent, whose operation was cut when `first` had the chunk.
    pub(super) fn server(&self, first: Rank) -> Rank {
        self.route.unwrap_or(first)
    }

    /// Are parts under way to another server than this one?
    pub(super) fn is_leaving(&self, server: Rank) -> bool {
        self.sent > 0 && self.sent_to != server
    }

    /// True if the trainer may still read a view of this chunk that came from another server, or from this one during an earlier
    /// assignment.
    pub(super) fn was_shown_elsewhere(&self, server: Rank) -> bool {
        self.shown_by.iter().any(|shown| (shown.server, shown.moves) != (server, self.moves))
    }

    /// A server has shown weights to a part of it.
    pub(super) fn note_shown(&mut self, server: Rank, operation: Operation, version: u64) {
        let moves = self.moves;
        let mut known = self.shown_by.iter_mut();
        match known.find(|shown| (shown.server, shown.moves, shown.is_told) == (server, moves, false)) {
            Some(shown) => {
                shown.operation = shown.operation.max(operation);
                shown.version = shown.version.max(version);
            }
            None => self.shown_by.push(ShownBy { server, moves, operation, version, is_told: false }),
        }
    }
}

/// Of blocks that are no part of an operation.
pub(super) const NO_PART: u64 = u64::MAX;

/// A server that has shown weights of a chunk, while the chunk was there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ShownBy {
    pub(super) server: Rank,
    /// As of [`ChunkQueue::moves`].
    pub(super) moves: u32,
    /// The last operation that was shown some, and their version.
    operation: Operation,
    version: u64,
    pub(super) is_told: bool,
}

/// Views of a chunk have ended, but for those that the trainer reads as of this operation: the same server may have shown some
/// again since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Farewell {
    pub(super) id: ChunkId,
    pub(super) reading: Reading,
}

impl ShownBy {
    /// Is nothing of it read any more?
    pub(super) fn is_over(&self, reading: Reading) -> bool {
        let is_kept = match reading.kept {
            Kept::None => false,
            Kept::Version(version) => version.0 <= self.version,
            Kept::All => true,
        };
        self.operation < reading.from && !is_kept
    }

    pub(super) fn say_again(&mut self) {
        self.is_told = false;
    }
}

impl Farewell {
    pub(super) fn block(self) -> PartBlock {
        let bare = Block::bare(self.id, OpKind::Release, Dtype::F32, Operation(0));
        let block = Block { reading: self.reading, token: NO_PART, ..bare };
        PartBlock { op: NO_PART, offset: 0, block }
    }
}
