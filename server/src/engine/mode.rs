//! What a chunk keeps that does not wait for rounds of everybody: whose contribution is being applied, how many each
//! worker has made, and which of them ended otherwise than by being applied. Chunks in mode sync without backup workers
//! have none of it. It must not know how contributions travel.

use super::chunk::{Chunk, ChunkSpec, Stage, Turn, Waiter};
use super::contribute::ROUNDS_AHEAD_MAX;
use super::held::Held;
use super::lane::LaneEngine;
use super::numbers::Numbers;
use super::ranks::RankSet;
use super::role::Role;
use proto_common::batch::{Block, Status};
use proto_common::ids::{Operation, Rank};
use proto_common::limits::{OPERATIONS_PER_WORKER_MAX, RANKS_LISTED_MAX};
use proto_common::mode::Mode;

/// See the module. A worker's contributions are told apart by its count of them, which is what their blocks name as round.
#[derive(Debug)]
pub(super) struct Tally {
    /// Outside mode sync: the contribution that is folded, and not in force yet.
    applying: Option<Held>,
    /// Outside mode sync.
    made: Made,
    /// How many workers have marks: all, or none where no contribution can end otherwise.
    marked: u32,
    /// By rank: the last one, and those of the 64 up to it that ended otherwise. More than a worker can ask about. Empty before
    /// the first one does.
    marks: Vec<(u64, u64)>,
}

impl Tally {
    /// What a chunk needs, if anything.
    pub(super) fn of(spec: &ChunkSpec, workers: u32) -> Option<Box<Self>> {
        let drops = spec.mode.has_rounds() && spec.backup_workers > 0;
        if spec.mode.has_rounds() && !drops {
            return None;
        }
        let marked = if drops || spec.is_asked() { workers } else { 0 };
        let counted = if spec.mode.has_rounds() { 0 } else { workers };
        let made = Made::new(counted);
        Some(Box::new(Self { applying: None, made, marked, marks: Vec::new() }))
    }

    /// Counts and marks, as an image has them.
    pub(super) fn saved(&self) -> (Vec<u64>, Vec<(u64, u64)>) {
        let mut marks = self.marks.clone();
        marks.resize(self.marked as usize, (0, 0));
        (self.made.by_rank.all().map(|(_, made)| made).collect(), marks)
    }

    /// Of how many workers counts and marks are.
    pub(super) fn lengths(&self) -> (usize, usize) {
        (self.made.by_rank.workers() as usize, self.marked as usize)
    }

    /// Goes on from counts and marks of an image, which are of as many workers.
    pub(super) fn restore(&mut self, made: &[u64], marks: &[(u64, u64)]) {
        self.applying = None;
        self.made.by_rank.clear();
        (0..).map(Rank).zip(made).for_each(|(rank, made)| self.made.by_rank.raise(rank, *made));
        self.made.find_least();
        self.marks.clear();
        if marks.iter().any(|(_, marks)| *marks != 0) {
            self.marks.extend_from_slice(marks);
        }
    }

    fn mark(&mut self, rank: Rank, round: u64, ended_otherwise: bool) {
        if self.marks.is_empty() && ended_otherwise {
            self.marks.resize(self.marked as usize, (0, 0));
        }
        let Some((last, marks)) = self.marks.get_mut(rank.0 as usize) else { return };
        // One that was sent back may come after those behind it.
        if round > *last {
            let shift = u32::try_from(round - *last).unwrap_or(u32::MAX);
            (*last, *marks) = (round, marks.checked_shl(shift).unwrap_or(0));
        }
        *marks |= u64::from(ended_otherwise).checked_shl((*last - round).min(64) as u32).unwrap_or(0);
    }

    fn is_marked(&self, rank: Rank, round: u64) -> bool {
        let Some((last, marks)) = self.marks.get(rank.0 as usize) else { return false };
        let back = last.checked_sub(round).and_then(|back| u32::try_from(back).ok());
        back.and_then(|back| marks.checked_shr(back)).is_some_and(|marks| marks & 1 == 1)
    }
}

/// How many contributions each worker has made that are in force, and the fewest of those that count: found anew only when
/// the last one that had so few has made another, or others count.
#[derive(Debug)]
struct Made {
    /// Of no workers where nobody asks.
    by_rank: Numbers,
    counting: RankSet,
    least: u64,
    least_ranks: u32,
}

impl Made {
    fn new(workers: u32) -> Self {
        let counting = RankSet::all(workers);
        Self { by_rank: Numbers::new(workers), counting, least: 0, least_ranks: workers }
    }

    fn of(&self, rank: Rank) -> u64 {
        self.by_rank.of(rank)
    }

    fn advance(&mut self, rank: Rank, to: u64) {
        let before = self.of(rank);
        if before >= to {
            return;
        }
        self.by_rank.raise(rank, to);
        if before > self.least || !self.counting.contains(rank) {
            return;
        }
        self.least_ranks -= 1;
        if self.least_ranks == 0 {
            self.find_least();
        }
    }

    /// With nobody who counts it stays: nobody waits then either.
    fn find_least(&mut self) {
        let counting = || self.counting.ranks().map(|rank| self.of(rank));
        let least = counting().min().unwrap_or(self.least);
        let ranks = counting().filter(|made| *made == least).count() as u32;
        (self.least, self.least_ranks) = (least, ranks);
    }

    fn count(&mut self, counting: &RankSet) {
        self.counting.copy(counting);
        self.find_least();
    }
}

impl Chunk {
    /// How many contributions make a version, where so many are expected: whoever has gone is one that is not waited for.
    pub(super) fn needed(spec: &ChunkSpec, workers: u32, expected: u32) -> u32 {
        let all = workers.saturating_sub(spec.backup_workers).min(expected);
        if spec.mode.has_rounds() { all.max(1) } else { 1 }
    }

    /// Others are expected than before.
    pub(super) fn settle_expected(&mut self) {
        self.needed = Self::needed(&self.spec, self.expected.limit(), self.expected.len());
        let loose = self.is_loose();
        if let Some(tally) = self.tally.as_mut().filter(|_| loose) {
            tally.made.count(&self.expected);
        }
    }

    /// Do workers contribute to it here? Then it is here that checkpoints have it from.
    pub(super) fn is_served(&self) -> bool {
        self.role.is_some_and(Role::serves)
    }

    /// Is nothing of the round being collected here?
    pub(super) fn has_nothing(&self) -> bool {
        self.stage == Stage::Contributions && self.contributed.len() == 0 && !self.initialising()
    }

    /// Is nothing of the round being collected begun before it is said who counts in it?
    pub(super) fn is_barred(&self) -> bool {
        self.barred.is_some_and(|from| self.round() >= from)
    }

    /// The first round, or outside mode sync the first count of its contributions, in which a worker could count that comes.
    pub(super) fn first_for(&self, rank: Rank) -> u64 {
        match &self.tally {
            Some(tally) if self.is_loose() => {
                // What the rank's life before has under way is in force later; its number is nobody else's.
                let is_its = |held: &&Held| held.rank == rank;
                let taken = self.held.of_rank(rank).chain(self.applying().filter(is_its));
                let last = taken.map(|held| held.round).max().unwrap_or(0);
                tally.made.least.max(tally.made.of(rank)).max(last) + 1
            }
            _ => self.round() + 1,
        }
    }

    /// Outside mode sync: how many contributions of a rank are in force.
    pub(super) fn made_by(&self, rank: Rank) -> Option<u64> {
        let tally = self.tally.as_ref().filter(|_| self.is_loose())?;
        Some(tally.made.of(rank))
    }

    /// Outside mode sync: a worker's contributions count from this one on.
    pub(super) fn begin_count(&mut self, rank: Rank, from: u64) {
        let loose = self.is_loose();
        if let Some(tally) = self.tally.as_mut().filter(|_| loose) {
            tally.made.advance(rank, from.saturating_sub(1));
        }
    }

    /// Is each contribution an update of its own?
    pub(super) fn is_loose(&self) -> bool {
        !self.spec.mode.has_rounds()
    }

    /// Does a round end without some of the workers?
    pub(super) fn drops_late(&self) -> bool {
        self.tally.is_some() && !self.is_loose()
    }

    /// Whether a contribution can be applied now, where each is an update of its own: a worker's are applied in order.
    pub(super) fn loose_turn(&self, rank: Rank, round: u64) -> Result<Turn, Status> {
        if round == 0 {
            return Err(Status::Refused);
        }
        let is_applied = self.applying().is_some_and(|held| held.rank == rank && round <= held.round);
        if is_applied || self.holds(rank, round) || self.made_by(rank).is_some_and(|made| round <= made) {
            return Ok(Turn::Repeated);
        }
        if self.is_beyond(rank, round) {
            return Err(Status::Refused);
        }
        let mut before = 0;
        let mut ahead = 0;
        for held in self.held.of_rank(rank) {
            before += u64::from(held.round < round);
            ahead += 1;
        }
        if ahead >= ROUNDS_AHEAD_MAX {
            return Err(Status::Retry);
        }
        let free = self.stage == Stage::Contributions && !self.initialising() && before == 0;
        Ok(if free { Turn::Now } else { Turn::Later })
    }

    /// Is the round being collected complete without this worker?
    pub(super) fn misses(&self, rank: Rank) -> bool {
        self.drops_late()
            && self.is_complete()
            && !self.contributed.contains(rank)
            && !self.holds(rank, self.round())
    }

    /// What a contribution is whose round is over.
    pub(super) fn late_turn(&self) -> Turn {
        if self.drops_late() { Turn::Late } else { Turn::Repeated }
    }

    /// Where each contribution is an update of its own: this one is folded.
    pub(super) fn begin_applying(&mut self, held: Held) {
        let loose = self.is_loose();
        if let Some(tally) = self.tally.as_mut().filter(|_| loose) {
            tally.applying = Some(held);
        }
    }

    /// Where each contribution is an update of its own: the one that is folded.
    pub(super) fn applying(&self) -> Option<&Held> {
        self.tally.as_ref().and_then(|tally| tally.applying.as_ref())
    }

    /// What was folded is let go.
    pub(super) fn forget_applying(&mut self) {
        if let Some(tally) = &mut self.tally {
            tally.applying = None;
        }
    }

    /// What was folded is in force, or it did not fit.
    pub(super) fn end_applying(&mut self, fits: bool) {
        let Some(tally) = &mut self.tally else { return };
        if let Some(Held { rank, round, .. }) = tally.applying.take() {
            tally.made.advance(rank, round);
            tally.mark(rank, round, !fits);
        }
    }

    /// A contribution came too late for its round.
    pub(super) fn mark_late(&mut self, rank: Rank, round: u64) {
        if let Some(tally) = &mut self.tally {
            tally.mark(rank, round, true);
        }
    }

    /// Is this count of a worker's contributions one that it cannot have come to?
    fn is_beyond(&self, rank: Rank, round: u64) -> bool {
        let under_way = OPERATIONS_PER_WORKER_MAX as u64;
        self.made_by(rank).is_some_and(|made| round > made.saturating_add(under_way))
    }

    /// A worker's life is over: what it contributed, and is not in force yet, is before all that another one does.
    pub(super) fn forget_operations(&mut self, rank: Rank) {
        if let Some(held) = self.tally.as_mut().and_then(|tally| tally.applying.as_mut())
            && held.rank == rank
        {
            held.operation = Operation(0);
        }
        self.held.forget_operations(rank);
    }

    /// A contribution was refused for good: nobody waits for it any more. Not where earlier ones are to come still: then its
    /// worker's next one counts.
    pub(super) fn count_refused(&mut self, rank: Rank, block: &Block) {
        if block.op.contributes()
            && self.is_loose()
            && !self.has_under_way(rank, block.operation)
            && !self.is_beyond(rank, block.round)
            && let Some(tally) = &mut self.tally
        {
            tally.made.advance(rank, block.round);
        }
    }

    /// Are contributions of a worker, up to this operation, taken and not in force (or dropped) yet?
    fn has_under_way(&self, rank: Rank, operation: Operation) -> bool {
        let is_before = |held: &Held| held.rank == rank && held.operation <= operation;
        let applying = self.tally.as_ref().and_then(|tally| tally.applying.as_ref());
        applying.is_some_and(is_before) || self.held.of_rank(rank).any(is_before)
    }

    /// How far the chunk is in what operations wait for: see [`Chunk::awaits`].
    pub(super) fn reached(&self) -> u64 {
        match (self.spec.mode, &self.tally) {
            (Mode::Sync, _) => self.version,
            (Mode::Bounded(_), Some(tally)) => tally.made.least,
            // Nobody waits for more than its own contributions.
            _ => 0,
        }
    }

    /// How far the chunk has to come before this operation can be answered; none where it can be.
    pub(super) fn awaits(&self, waiter: &Waiter) -> Option<u64> {
        if self.tally.is_some() && self.has_under_way(waiter.rank, waiter.operation) {
            return Some(0);
        }
        let least = match self.spec.mode {
            Mode::Sync => waiter.version,
            Mode::Bounded(bound) => waiter.version.saturating_sub(u64::from(bound)),
            Mode::Async => 0,
        };
        (self.reached() < least).then_some(least)
    }

    /// What a new operation that waits for a version makes worth looking at.
    pub(super) fn first_look(&self, version: u64) -> u64 {
        if self.tally.is_some() { 0 } else { version }
    }

    /// How an operation ended that is answered now.
    pub(super) fn ending(&self, waiter: &Waiter) -> Status {
        if !waiter.op.contributes() {
            return Status::Done;
        }
        let marked = self.tally.as_ref().is_some_and(|tally| tally.is_marked(waiter.rank, waiter.version));
        match (marked, self.is_loose()) {
            (true, true) => Status::BadValue,
            (true, false) => Status::Late,
            (false, false) if self.is_bad(waiter.version) => Status::BadValue,
            (false, _) => Status::Done,
        }
    }

    /// What an operation still waits for where each contribution is an update of its own, as [`LaneEngine::late`].
    pub(super) fn loose_late(&self, waiter: &Waiter) -> Option<(Status, Vec<Rank>)> {
        if !self.is_loose() {
            return None;
        }
        if self.initialising() {
            return Some((Status::DeadlineWaiting, vec![Rank(0)]));
        }
        if self.has_under_way(waiter.rank, waiter.operation) {
            // Its own contribution is being read still, where nobody reads what it would be written over.
            let mut reading = if self.stage == Stage::Buffer { self.reading() } else { Vec::new() };
            reading.truncate(RANKS_LISTED_MAX);
            let own = (Status::DeadlineWaiting, vec![waiter.rank]);
            return Some(if reading.is_empty() { own } else { (Status::DeadlineReading, reading) });
        }
        let least = self.awaits(waiter).unwrap_or(0);
        let made = self.tally.iter().flat_map(|tally| {
            let counting = tally.made.counting.ranks();
            counting.filter(|rank| tally.made.of(*rank) < least)
        });
        let behind = made.take(RANKS_LISTED_MAX).collect();
        Some((Status::DeadlineBehind, behind))
    }

    /// Takes a held contribution that can be applied, where each is an update of its own: those of workers that have made
    /// few go first, and each worker's in order, none before one that is to come again.
    pub(super) fn take_loose(&mut self) -> Option<Held> {
        let reopened = &self.reopened;
        let is_next = |held: &Held| {
            !reopened.iter().any(|open| open.rank == held.rank && open.operation < held.operation)
        };
        self.held.take_in_turn(is_next)
    }
}

impl LaneEngine {
    /// Contributions that were held for rounds which have ended without them are dropped.
    pub(super) fn drop_late(&mut self, index: u32) {
        let chunk = &mut self.chunks[index as usize];
        if !chunk.drops_late() {
            return;
        }
        let round = chunk.round();
        while let Some(Held { rank, round, from, .. }) = self.chunks[index as usize].held.take_before(round) {
            self.chunks[index as usize].mark_late(rank, round);
            self.stats.late += 1;
            self.release(index, rank, from);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fewest_made_is_known_whoever_makes_more() {
        let mut made = Made::new(3);
        for (rank, to, least) in
            [(0, 1, 0), (0, 5, 0), (1, 2, 0), (2, 3, 2), (1, 9, 3), (2, 3, 3), (2, 4, 4), (2, 9, 5)]
        {
            made.advance(Rank(rank), to);
            assert_eq!(made.least, least, "{rank} {to}");
        }
        made.advance(Rank(7), 1);
        assert!(made.by_rank.all().map(|(_, made)| made).eq([5, 9, 9]));
        let mut others = RankSet::all(3);
        others.remove(Rank(0));
        made.count(&others);
        assert_eq!((made.least, made.least_ranks), (9, 2));
        made.advance(Rank(0), 7);
        made.advance(Rank(1), 10);
        assert_eq!((made.of(Rank(0)), made.least, made.least_ranks), (7, 9, 1));
        made.count(&RankSet::new(3));
        assert_eq!(made.least, 9);
    }

    #[test]
    fn marks_last_as_long_as_workers_can_ask_and_no_longer() {
        let mut tally = Tally { applying: None, made: Made::new(0), marked: 2, marks: Vec::new() };
        tally.mark(Rank(1), 3, true);
        tally.mark(Rank(1), 5, false);
        tally.mark(Rank(1), 4, true);
        let marked =
            |tally: &Tally| (0..70).filter(|round| tally.is_marked(Rank(1), *round)).collect::<Vec<_>>();
        assert_eq!(marked(&tally), [3, 4]);
        tally.mark(Rank(1), 67, true);
        assert_eq!(marked(&tally), [4, 67]);
        tally.mark(Rank(1), u64::MAX, false);
        assert_eq!(marked(&tally), [0; 0]);
        tally.mark(Rank(1), 1, true);
        assert!(!tally.is_marked(Rank(1), 1) && !tally.is_marked(Rank(0), 0), "longer ago than is kept");
        tally.mark(Rank(9), 1, true);
    }
}
