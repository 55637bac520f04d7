//! Operations that were taken, and wait for a version of their chunk or for their deadline: those of one chunk, and which chunks have
//! some whose deadline may have passed. Owns who is still to be answered. It must not know what an answer says.
//!
//! ```text
//!  push ──▶ waiting ──answer: its version is there──────▶ answered
//!             │  ▲ └──next_late, remove: its deadline───▶ answered
//!             │  └── push: its replay replaces it
//!             └── take_all, forget: the chunk is served elsewhere, the channel has ended
//! ```
//!
//! Each chunk with waiting operations has one entry in [`Deadlines`] that counts, of the earliest deadline that it had when the entry
//! was made. So a tick does not look at chunks without waiting operations.

use super::command::{Arrival, Commands, NOW_MS};
use super::ranks::RankSet;
use proto_common::batch::{Block, Landing, OpKind};
use proto_common::ids::{Operation, Rank};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// An operation to be answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiter {
    pub(super) rank: Rank,
    pub(super) op: OpKind,
    pub(super) operation: Operation,
    /// The least version that answers it.
    pub(super) version: u64,
    pub(super) landing: Option<Landing>,
    /// Weights are to be read in place.
    pub(super) view: bool,
    /// No later version than `version` answers it either.
    pub(super) exact: bool,
    pub(super) token: u64,
    pub(super) deadline_ms: u64,
    pub(super) since_ms: u64,
}

impl Waiter {
    pub(super) fn new(rank: Rank, block: &Block, version: u64, now_ms: u64) -> Self {
        let deadline_ms = now_ms.saturating_add(u64::from(block.timeout_ms));
        let Block { op, operation, landing, view, exact, token, .. } = *block;
        Self { rank, op, operation, version, landing, view, exact, token, deadline_ms, since_ms: now_ms }
    }
}

/// Those of one chunk. See the module.
#[derive(Debug)]
pub(super) struct Waiters {
    all: Vec<Waiter>,
    /// When they are looked at for their deadlines.
    due_ms: u64,
    /// None of them waits for a lower version: contributions of many workers need not look at all of them each time.
    least_awaited: u64,
}

impl Default for Waiters {
    fn default() -> Self {
        Self { all: Vec::new(), due_ms: u64::MAX, least_awaited: u64::MAX }
    }
}

impl Waiters {
    /// An operation waits, and is not looked at before this version is there. Returns how many it replaces: a replayed operation
    /// replaces itself, with its newest landing. One that is fresh waits nowhere yet.
    pub(super) fn push(&mut self, waiter: Waiter, first_look: u64, is_fresh: bool) -> usize {
        let before = self.all.len();
        if !is_fresh {
            self.all.retain(|other| other.rank != waiter.rank || other.operation != waiter.operation);
        }
        let replaced = before - self.all.len();
        self.least_awaited = self.least_awaited.min(first_look);
        self.all.push(waiter);
        replaced
    }

    /// The chunk has reached this version. Operations that `awaits` names no other version for are answered by it, and wait no more.
    pub(super) fn answer(&mut self, reached: u64, mut awaits: impl FnMut(&Waiter) -> Option<u64>) {
        if reached < self.least_awaited {
            return;
        }
        let least = &mut self.least_awaited;
        *least = u64::MAX;
        self.all.retain(|waiter| {
            let awaited = awaits(waiter);
            *least = awaited.map_or(*least, |version| version.min(*least));
            awaited.is_some()
        });
    }

    /// The chunk is served elsewhere.
    pub(super) fn take_all(&mut self) -> std::vec::Drain<'_, Waiter> {
        self.least_awaited = u64::MAX;
        self.all.drain(..)
    }

    /// A worker's channel has ended.
    pub(super) fn forget(&mut self, rank: Rank) {
        self.all.retain(|waiter| waiter.rank != rank);
    }

    /// Is this the entry that counts? It is used then.
    pub(super) fn is_due(&mut self, due_ms: u64) -> bool {
        let is_due = self.due_ms == due_ms;
        if is_due {
            self.due_ms = u64::MAX;
        }
        is_due
    }

    /// The next one from `at` on whose deadline has passed, and `at` is where it is.
    pub(super) fn next_late(&self, at: &mut usize, now_ms: u64) -> Option<Waiter> {
        let late = self.all.get(*at..)?.iter().position(|waiter| waiter.deadline_ms <= now_ms)?;
        *at += late;
        self.all.get(*at).copied()
    }

    /// It is answered.
    pub(super) fn remove(&mut self, at: usize) {
        self.all.remove(at);
    }

    /// The first one of which this is true. It is answered.
    pub(super) fn take(&mut self, is_it: impl Fn(&Waiter) -> bool) -> Option<Waiter> {
        let at = self.all.iter().position(is_it)?;
        Some(self.all.remove(at))
    }

    pub(super) fn iter(&self) -> std::slice::Iter<'_, Waiter> {
        self.all.iter()
    }

    /// Reports when contributions came to the round that is about to end, if the executor of the commands wants to know. The
    /// contribution that completes the round does not wait for anything yet: it came now.
    pub(super) fn report_arrivals(
        &self,
        (chunk, round): (u32, u64),
        contributed: &RankSet,
        out: &mut Commands,
    ) {
        let before_ms = out.told_before_ms;
        if before_ms == 0 {
            return;
        }
        let those = self.all.iter().filter(|waiter| waiter.version == round && waiter.op.contributes());
        if before_ms != NOW_MS && !those.clone().any(|waiter| waiter.since_ms <= before_ms) {
            return;
        }
        let came = |rank, since_ms| Arrival { chunk, round, rank, since_ms };
        let before = out.arrivals.len();
        out.arrivals.extend(those.map(|waiter| came(waiter.rank, waiter.since_ms)));
        let told = &out.arrivals[before..];
        if told.len() + 1 == contributed.len() as usize {
            // The sum of all ranks less that of those who wait: the one who is left.
            let sum =
                |ranks: &mut dyn Iterator<Item = Rank>| ranks.map(|rank| u64::from(rank.0)).sum::<u64>();
            let all = sum(&mut contributed.ranks());
            let left = all.saturating_sub(sum(&mut told.iter().map(|came| came.rank)));
            out.arrivals.push(came(Rank(left as u32), NOW_MS));
        }
    }
}

/// Which chunks of a lane have operations whose deadline may have passed. See the module.
#[derive(Debug, Default)]
pub(super) struct Deadlines {
    /// Deadlines and chunks. An entry counts where its chunk says the same time.
    entries: BinaryHeap<Reverse<(u64, u32)>>,
}

impl Deadlines {
    /// An operation on a chunk has this deadline.
    pub(super) fn note(&mut self, chunk: u32, of: &mut Waiters, deadline_ms: u64) {
        if deadline_ms < of.due_ms {
            of.due_ms = deadline_ms;
            self.entries.push(Reverse((deadline_ms, chunk)));
        }
    }

    /// The operations of a chunk were looked at: the others are looked at when the next deadline has passed.
    pub(super) fn note_next(&mut self, chunk: u32, of: &mut Waiters, now_ms: u64) {
        if let Some(next_ms) = of.all.iter().map(|waiter| waiter.deadline_ms).min() {
            self.note(chunk, of, next_ms.max(now_ms + 1));
        }
    }

    /// A chunk whose operations had this deadline, which has passed.
    pub(super) fn pop(&mut self, now_ms: u64) -> Option<(u32, u64)> {
        let Reverse((due_ms, chunk)) = *self.entries.peek()?;
        if due_ms > now_ms {
            return None;
        }
        self.entries.pop();
        Some((chunk, due_ms))
    }

    /// Entries that count no more are dropped where they are many: a worker whose every operation has an earlier deadline than the one
    /// before adds one with each.
    pub(super) fn shrink<'a>(&mut self, chunks: usize, waiters: impl Fn(u32) -> &'a Waiters) {
        if self.entries.len() > 2 * chunks + 64 {
            self.entries.retain(|Reverse((due_ms, chunk))| waiters(*chunk).due_ms == *due_ms);
        }
    }

    /// Chunks that operations may wait for, each once.
    pub(super) fn chunks(&self) -> Vec<u32> {
        let mut chunks: Vec<u32> = self.entries.iter().map(|Reverse((_, chunk))| *chunk).collect();
        chunks.sort_unstable();
        chunks.dedup();
        chunks
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto_common::element::Dtype;
    use proto_common::ids::ChunkId;

    fn waiter(operation: u64, version: u64, deadline_ms: u64) -> Waiter {
        let bare = Block::bare(ChunkId::new(1, 0), OpKind::Push, Dtype::F32, Operation(operation));
        Waiter { deadline_ms, ..Waiter::new(Rank(operation as u32), &bare, version, 0) }
    }

    #[test]
    fn an_operation_is_answered_once_at_its_version_and_a_replay_replaces_it() {
        let mut waiters = Waiters::default();
        for operation in 1..4 {
            assert_eq!(waiters.push(waiter(operation, operation, 9), operation, true), 0);
        }
        assert_eq!(waiters.push(waiter(3, 3, 9), 3, false), 1);
        let mut answer = |reached: u64| {
            let (mut answered, mut looked) = (Vec::new(), 0);
            waiters.answer(reached, |waiter| {
                looked += 1;
                let awaits = (reached < waiter.version).then_some(waiter.version);
                answered.extend(awaits.is_none().then_some(waiter.operation.0));
                awaits
            });
            (answered, looked)
        };
        assert_eq!((answer(0), answer(1), answer(1)), ((vec![], 0), (vec![1], 3), (vec![], 0)));
        assert_eq!((answer(3), answer(9)), ((vec![2, 3], 2), (vec![], 0)));
    }

    #[test]
    fn those_that_are_late_are_found_in_order() {
        let mut waiters = Waiters::default();
        for (operation, deadline_ms) in [(1, 5), (2, 7), (3, 5)] {
            waiters.push(waiter(operation, 1, deadline_ms), 1, true);
        }
        let mut at = 0;
        assert!(waiters.next_late(&mut at, 4).is_none());
        assert!(waiters.next_late(&mut at, 5).is_some_and(|late| late.operation == Operation(1)) && at == 0);
        waiters.remove(at);
        assert!(waiters.next_late(&mut at, 5).is_some_and(|late| late.operation == Operation(3)) && at == 1);
        waiters.forget(Rank(2));
        assert_eq!(waiters.take_all().map(|left| left.operation.0).collect::<Vec<_>>(), [3]);
    }

    #[test]
    fn a_chunk_comes_once_at_its_earliest_deadline_and_entries_do_not_pile_up() {
        let (mut deadlines, mut of) = (Deadlines::default(), [(); 3].map(|()| Waiters::default()));
        for deadline_ms in (1..=10_000).rev() {
            deadlines.note(1, &mut of[1], deadline_ms);
            deadlines.shrink(of.len(), |chunk| &of[chunk as usize]);
        }
        deadlines.note(2, &mut of[2], 5);
        deadlines.note(2, &mut of[2], 7);
        assert_eq!((of.each_ref().map(|of| of.due_ms), deadlines.chunks()), ([u64::MAX, 1, 5], vec![1, 2]));
        assert!(deadlines.entries.len() <= 2 * of.len() + 66, "{}", deadlines.entries.len());
        assert_eq!(deadlines.pop(0), None);
        let due: Vec<_> = std::iter::from_fn(|| deadlines.pop(10_000))
            .filter(|(chunk, due_ms)| of[*chunk as usize].is_due(*due_ms))
            .collect();
        assert_eq!(due, [(1, 1), (2, 5)]);
        of[2].push(waiter(1, 1, 3), 1, true);
        deadlines.note_next(2, &mut of[2], 6);
        assert_eq!(of[2].due_ms, 7, "it is past already");
    }
}
