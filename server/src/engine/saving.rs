//! Which chunks a checkpoint waits for, and which are to be copied now. A chunk that is to be copied publishes nothing before
//! it is: so what is copied is exactly a version, however long it takes. Owns the checkpoint under way and when the next one begins;
//! what it wants of a chunk is kept with the chunk, in `Chunk::saving`. It must not know where copies go, or how rounds continue.
//!
//! ```text
//!                begin: no such version yet            published
//!  Nothing ───────────────────────────────▶ Awaits(v) ───────────▶ Due: publishes nothing
//!   ▲  │                                       │ pass: it takes      ▲         │
//!   │  │                                       │ no part in it       │         │
//!   │  │                                       └─────────────────────┤         │
//!   │  └──────────── begin: the version is there ────────────────────┘         │
//!   └───────────────────── copied, or the checkpoint is dropped ◀──────────────┘
//! ```
//!
//! If a chunk published while it is to be copied, the copy would be of half of one version and half of the next.

use super::chunk::{Chunk, Saving};
use super::rounds::{Rounds, Stage};
use proto_common::ids::ChunkId;
use std::collections::VecDeque;

/// Rounds by which training advances before a chunk without any contribution counts as one that takes no part in it.
const ROUNDS_WITHOUT: u64 = 2;

/// The checkpoint under way.
#[derive(Debug)]
struct Checkpoint {
    round: u64,
    /// Chunks that are to be copied, and those of them that hold a round up. Those that were copied leave when they are met.
    due: VecDeque<u32>,
    urgent: VecDeque<u32>,
    /// Chunks that are not copied yet.
    left: u32,
    /// Was it told that training has gone on past it?
    is_passed: bool,
}

impl Checkpoint {
    /// A chunk is to be copied.
    fn push(&mut self, index: u32, chunk: &Chunk) {
        let queue = if chunk.rounds.stage() == Stage::Buffer { &mut self.urgent } else { &mut self.due };
        queue.push_back(index);
    }
}

/// The first of a queue that is to be copied and can be; those that cannot be copied now are asked about after the others.
fn first_whole(queue: &mut VecDeque<u32>, chunks: &[Chunk]) -> Option<u32> {
    for _ in 0..queue.len() {
        let index = queue.pop_front()?;
        match chunks.get(index as usize).filter(|chunk| chunk.is_due()) {
            Some(chunk) if chunk.is_whole() => {
                queue.push_front(index);
                return Some(index);
            }
            Some(_) => queue.push_back(index),
            None => {}
        }
    }
    None
}

/// What a lane has to say of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SavingNews {
    /// This round's was begun here.
    Begun(u64),
    /// A chunk has gone two rounds further.
    Passed(u64),
}

/// See the module.
#[derive(Debug)]
pub struct Savings {
    workers: u64,
    every_rounds: u64,
    /// Checkpoints that were begun here.
    begun: u64,
    current: Option<Checkpoint>,
    /// No checkpoint of this round or an earlier one is begun by itself any more.
    last_round: u64,
    /// The last one was of this round, and was given up: only the scheduler begins it once more.
    dropped: Option<u64>,
    /// The job has tensors with rounds: checkpoints are of theirs.
    are_rounds_counted: bool,
    /// Chunks are all copied, and rows of tables are not.
    has_rows_left: bool,
    news: VecDeque<SavingNews>,
}

impl Savings {
    pub(super) fn new(workers: u32) -> Self {
        Self {
            workers: u64::from(workers),
            every_rounds: 0,
            begun: 0,
            current: None,
            last_round: 0,
            dropped: None,
            are_rounds_counted: false,
            has_rows_left: false,
            news: VecDeque::new(),
        }
    }

    /// Checkpoints begin by themselves at rounds that are a multiple of this; 0: they do not.
    pub fn begin_every(&mut self, rounds: u64) {
        self.every_rounds = rounds;
    }

    /// Somewhere in the job there are tensors with rounds: those without begin no checkpoint by themselves.
    pub fn count_rounds(&mut self) {
        self.are_rounds_counted = true;
    }

    /// Rows of tables are, or are not, still to be copied: none begins by itself before they are.
    pub fn note_rows_left(&mut self, has_rows_left: bool) {
        self.has_rows_left = has_rows_left;
    }

    /// The round that a chunk is at; outside mode sync about how often each worker has contributed.
    fn round_of(&self, chunk: &Chunk) -> u64 {
        let version = chunk.rounds.version();
        if chunk.rounds.has_rounds() { version } else { version / self.workers.max(1) }
    }

    /// Has a checkpoint of this round begun, or is it over? One of the moment (`now`) is over only while it is under way.
    pub(super) fn is_known(&self, round: u64, now: bool) -> bool {
        let is_current = self.current.as_ref().is_some_and(|current| current.round == round);
        is_current || (!now && self.is_over(round))
    }

    /// If a round that was given up counted as over, a worker that asks for its checkpoint would get an error, because this lane had begun
    /// it by itself while the scheduler had another one under way.
    fn is_over(&self, round: u64) -> bool {
        round <= self.last_round && self.dropped != Some(round)
    }

    /// A checkpoint of this round begins, or (`now`) of the moment. None is under way.
    pub(super) fn begin(&mut self, round: u64, now: bool, chunks: &mut [Chunk]) {
        self.last_round = self.last_round.max(round);
        self.dropped = None;
        self.begun += 1;
        let (due, urgent) = Default::default();
        let mut current = Checkpoint { round, due, urgent, left: 0, is_passed: false };
        for (index, chunk) in (0u32..).zip(chunks) {
            if !chunk.is_served() {
                continue;
            }
            chunk.want_copy(round, now);
            current.left += 1;
            if chunk.is_due() {
                current.push(index, chunk);
            }
        }
        self.current = Some(current);
    }

    /// The newest round of any chunk that is served and has rounds; of any, where none has.
    pub(super) fn newest_version(&self, chunks: &[Chunk]) -> u64 {
        let served = || chunks.iter().filter(|chunk| chunk.is_served());
        let rounds = || served().map(|chunk| &chunk.rounds).filter(|rounds| rounds.has_rounds());
        let with_rounds = rounds().map(Rounds::version).max();
        with_rounds.or_else(|| served().map(|chunk| self.round_of(chunk)).max()).unwrap_or(0)
    }

    /// Would a checkpoint of this round, not begun here, come too late? Then where training is.
    pub(super) fn is_past(&self, round: u64, chunks: &[Chunk]) -> Option<u64> {
        let is_known = self.is_over(round);
        let chunks = chunks.iter().filter(|chunk| chunk.is_served() && chunk.rounds.has_rounds());
        chunks.map(|chunk| chunk.rounds.version()).max().filter(|newest| !is_known && *newest > round)
    }

    /// What the checkpoint under way waits for here: how many chunks, and the one that is furthest behind, with its version.
    pub(super) fn waits(&self, chunks: &[Chunk]) -> Option<(u64, u32, ChunkId, u64)> {
        let (round, left) = self.current()?;
        let wanted = chunks.iter().filter(|chunk| chunk.saving != Saving::Nothing);
        let behind = wanted.min_by_key(|chunk| chunk.rounds.version())?;
        Some((round, left, behind.spec.id, behind.rounds.version()))
    }

    /// A chunk has published: is a checkpoint due with it?
    pub(super) fn published(&mut self, index: u32, chunks: &mut [Chunk]) {
        let chunk = &chunks[index as usize];
        let (version, round, every) = (chunk.rounds.version(), self.round_of(chunk), self.every_rounds);
        let has_rounds = chunk.rounds.has_rounds();
        let each = if has_rounds { every } else { every.saturating_mul(self.workers) };
        let is_multiple =
            each > 0 && version.is_multiple_of(each) && chunk.is_served() && !chunk.spec.has_rows();
        let begins = is_multiple && (has_rounds || !self.are_rounds_counted);
        let is_idle = self.current.is_none() && !self.has_rows_left;
        // One at a time: while the disk is slow, or a tensor is waited for, there are fewer.
        if begins && round > self.last_round && is_idle {
            self.begin(round, false, chunks);
            self.news.push_back(SavingNews::Begun(round));
        }
        let (chunk, Some(current)) = (&mut chunks[index as usize], &mut self.current) else { return };
        if matches!(chunk.saving, Saving::Awaits(round) if version >= round) {
            chunk.saving = Saving::Due;
            current.push(index, chunk);
        }
        if !current.is_passed && version >= current.round + ROUNDS_WITHOUT && has_rounds {
            current.is_passed = true;
            self.news.push_back(SavingNews::Passed(current.round));
        }
    }

    /// Training has gone on past a checkpoint: chunks without a contribution since take no part in it, and are copied as they
    /// are.
    pub(super) fn pass(&mut self, round: u64, chunks: &mut [Chunk]) {
        let Some(current) = self.current.as_mut().filter(|current| current.round == round) else { return };
        current.is_passed = true;
        for (index, chunk) in (0u32..).zip(chunks) {
            if matches!(chunk.saving, Saving::Awaits(_)) && chunk.rounds.takes_no_part() {
                chunk.saving = Saving::Due;
                current.push(index, chunk);
            }
        }
    }

    /// A chunk holds a round up: if that is because it is to be copied, it is copied before the others.
    pub(super) fn hasten(&mut self, index: u32, chunk: &Chunk) {
        let current = self.current.as_mut().filter(|_| chunk.is_due());
        current.into_iter().for_each(|current| current.urgent.push_back(index));
    }

    /// Nothing comes of a checkpoint. True where it was under way: then each chunk is to be released.
    pub(super) fn drop(&mut self, round: u64, chunks: &[Chunk]) -> bool {
        if self.current.take_if(|current| current.round == round).is_none() {
            // This lane's part may be complete. If the round counted as over here, it could not be begun once more for a worker that
            // asks for it.
            self.dropped = self.dropped.or((self.last_round == round).then_some(round));
            return false;
        }
        // It may have been of a round far ahead: those before that are still to have theirs.
        self.last_round = self.last_round.min(self.newest_version(chunks));
        self.dropped = Some(round);
        true
    }

    /// The round of the checkpoint under way, where chunks that it is to have are not this server's any more.
    pub(super) fn torn(&self, chunks: &[Chunk]) -> Option<u64> {
        let (round, left) = self.current()?;
        let wanted = chunks.iter().filter(|chunk| chunk.saving != Saving::Nothing && chunk.is_served());
        (wanted.count() != left as usize).then_some(round)
    }

    /// The round of the checkpoint under way, and how many chunks are not copied yet.
    pub(super) fn current(&self) -> Option<(u64, u32)> {
        self.current.as_ref().map(|current| (current.round, current.left))
    }

    /// Which one of those begun here is under way, or was last: a round may have several.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.begun
    }

    /// The chunk that is to be copied next. One that cannot be copied at this moment is asked about again.
    pub(super) fn next(&mut self, chunks: &[Chunk]) -> Option<u32> {
        let Checkpoint { due, urgent, .. } = self.current.as_mut()?;
        first_whole(urgent, chunks).or_else(|| first_whole(due, chunks))
    }

    /// A chunk is copied. Was it the last of the checkpoint, which is over then? None where no checkpoint is under way.
    pub(super) fn copied(&mut self) -> Option<bool> {
        let current = self.current.as_mut()?;
        current.left = current.left.saturating_sub(1);
        let is_last = current.left == 0;
        if is_last {
            self.current = None;
        }
        Some(is_last)
    }

    /// What is to be told of checkpoints, in order.
    pub fn next_news(&mut self) -> Option<SavingNews> {
        self.news.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn publish(savings: &mut Savings, index: u32, chunks: &mut [Chunk]) {
        chunks[index as usize].publish(Some(0));
        savings.published(index, chunks);
    }

    #[test]
    fn one_begins_by_itself_and_each_chunk_is_copied_at_its_round() {
        let (mut savings, mut chunks) = (Savings::new(2), [Chunk::sample(1), Chunk::sample(2)]);
        savings.begin_every(2);
        publish(&mut savings, 0, &mut chunks);
        assert_eq!((savings.current(), savings.next(&chunks)), (None, None));
        publish(&mut savings, 0, &mut chunks);
        assert_eq!((savings.next_news(), savings.next_news()), (Some(SavingNews::Begun(2)), None));
        assert_eq!((savings.current(), savings.next(&chunks)), (Some((2, 2)), Some(0)));
        assert!(savings.is_known(2, true) && savings.is_known(1, false) && !savings.is_known(1, true));
        assert_eq!(savings.waits(&chunks), Some((2, 2, ChunkId::new(2, 0), 0)), "the one furthest behind");
        chunks[0].saving = Saving::Nothing;
        assert_eq!((savings.copied(), savings.next(&chunks)), (Some(false), None));
        publish(&mut savings, 1, &mut chunks);
        assert_eq!(savings.next(&chunks), None, "its round is to come");
        publish(&mut savings, 1, &mut chunks);
        assert_eq!((savings.next(&chunks), savings.copied(), savings.copied()), (Some(1), Some(true), None));
    }

    #[test]
    fn a_chunk_without_contributions_is_copied_as_it_is_once_training_has_passed() {
        let (mut savings, mut chunks) = (Savings::new(2), [Chunk::sample(1), Chunk::sample(2)]);
        savings.begin(1, false, &mut chunks);
        (0..3).for_each(|_| publish(&mut savings, 0, &mut chunks));
        assert_eq!((savings.next_news(), savings.next_news()), (Some(SavingNews::Passed(1)), None));
        assert!(!chunks[1].is_due());
        savings.pass(2, &mut chunks);
        assert!(!chunks[1].is_due(), "another round's");
        savings.pass(1, &mut chunks);
        assert!(chunks[1].is_due());
        assert_eq!(savings.is_past(2, &chunks), Some(3));
        assert!(savings.drop(1, &chunks) && !savings.drop(1, &chunks));
    }

    #[test]
    fn one_that_began_by_itself_and_was_given_up_begins_once_more_by_order_only() {
        let (mut savings, mut chunks) = (Savings::new(2), [Chunk::sample(1), Chunk::sample(2)]);
        savings.begin_every(1);
        publish(&mut savings, 0, &mut chunks);
        assert!(savings.is_known(1, false) && savings.drop(1, &chunks));
        publish(&mut savings, 1, &mut chunks);
        assert_eq!((savings.current(), savings.next_news()), (None, Some(SavingNews::Begun(1))));
        assert_eq!((savings.is_known(1, false), savings.is_past(1, &chunks)), (false, None));
        savings.begin(1, false, &mut chunks);
        assert!(savings.is_known(1, false));
        // It is too late where training has gone on.
        assert!(savings.drop(1, &chunks));
        // So does one of which this lane had copied everything.
        savings.begin(1, false, &mut chunks);
        assert_eq!((savings.copied(), savings.copied()), (Some(false), Some(true)));
        assert!(savings.is_known(1, false) && !savings.drop(1, &chunks) && !savings.is_known(1, false));
        savings.begin_every(0);
        publish(&mut savings, 0, &mut chunks);
        assert_eq!(savings.is_past(1, &chunks), Some(2));
    }
}
