//! A chunk whose versions are not rounds of everybody: when a contribution is applied, what operations wait for, and how they end.
//! It must not know how contributions travel.

use super::{Chunk, ROUNDS_AHEAD_MAX, Stage, Turn, Waiter};
use crate::engine::held::Held;
use crate::engine::role::Role;
use crate::engine::spec::ChunkSpec;
use proto_common::batch::{Block, Status};
use proto_common::ids::{Operation, Rank};
use proto_common::limits::{OPERATIONS_PER_WORKER_MAX, RANKS_LISTED_MAX};
use proto_common::mode::Mode;

impl Chunk {
    /// How many contributions make a version, where so many are expected: whoever has gone is one that is not waited for.
    pub(in crate::engine) fn needed(spec: &ChunkSpec, workers: u32, expected: u32) -> u32 {
        let all = workers.saturating_sub(spec.backup_workers).min(expected);
        if spec.mode.has_rounds() { all.max(1) } else { 1 }
    }

    /// Others are expected than before.
    pub(in crate::engine) fn settle_expected(&mut self) {
        self.needed = Self::needed(&self.spec, self.expected.limit(), self.expected.len());
        let loose = self.is_loose();
        if let Some(tally) = self.tally.as_mut().filter(|_| loose) {
            tally.count(&self.expected);
        }
    }

    /// Do workers contribute to it here? Then it is here that checkpoints have it from.
    pub(in crate::engine) fn is_served(&self) -> bool {
        self.role.is_some_and(Role::serves)
    }

    /// Is nothing of the round being collected here?
    pub(in crate::engine) fn has_nothing(&self) -> bool {
        self.stage == Stage::Contributions && self.contributed.len() == 0 && !self.initialising()
    }

    /// Is nothing of the round being collected begun before it is said who counts in it?
    pub(in crate::engine) fn is_barred(&self) -> bool {
        self.barred.is_some_and(|from| self.round() >= from)
    }

    /// The first round, or outside mode sync the first count of its contributions, in which a worker could count that comes.
    pub(in crate::engine) fn first_for(&self, rank: Rank) -> u64 {
        match &self.tally {
            Some(tally) if self.is_loose() => {
                // What the rank's life before has under way is in force later; its number is nobody else's.
                let is_its = |held: &&Held| held.rank == rank;
                let taken = self.held.of_rank(rank).chain(self.applying().filter(is_its));
                let last = taken.map(|held| held.round).max().unwrap_or(0);
                tally.least().max(tally.made(rank)).max(last) + 1
            }
            _ => self.round() + 1,
        }
    }

    /// Outside mode sync: how many contributions of a rank are in force.
    pub(in crate::engine) fn made_by(&self, rank: Rank) -> Option<u64> {
        let tally = self.tally.as_ref().filter(|_| self.is_loose())?;
        Some(tally.made(rank))
    }

    /// Outside mode sync: a worker's contributions count from this one on.
    pub(in crate::engine) fn begin_count(&mut self, rank: Rank, from: u64) {
        let loose = self.is_loose();
        if let Some(tally) = self.tally.as_mut().filter(|_| loose) {
            tally.advance(rank, from.saturating_sub(1));
        }
    }

    /// Is each contribution an update of its own?
    pub(in crate::engine) fn is_loose(&self) -> bool {
        !self.spec.mode.has_rounds()
    }

    /// Does a round end without some of the workers?
    pub(in crate::engine) fn drops_late(&self) -> bool {
        self.tally.is_some() && !self.is_loose()
    }

    /// Whether a contribution can be applied now, where each is an update of its own: a worker's are applied in order.
    pub(in crate::engine) fn loose_turn(&self, rank: Rank, round: u64) -> Result<Turn, Status> {
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
    pub(in crate::engine) fn misses(&self, rank: Rank) -> bool {
        self.drops_late()
            && self.is_complete()
            && !self.contributed.contains(rank)
            && !self.holds(rank, self.round())
    }

    /// What a contribution is whose round is over.
    pub(in crate::engine) fn late_turn(&self) -> Turn {
        if self.drops_late() { Turn::Late } else { Turn::Repeated }
    }

    /// Where each contribution is an update of its own: this one is folded.
    pub(in crate::engine) fn begin_applying(&mut self, held: Held) {
        let loose = self.is_loose();
        if let Some(tally) = self.tally.as_mut().filter(|_| loose) {
            tally.begin_applying(held);
        }
    }

    /// Where each contribution is an update of its own: the one that is folded.
    pub(in crate::engine) fn applying(&self) -> Option<&Held> {
        self.tally.as_ref().and_then(|tally| tally.applying())
    }

    /// What was folded is let go.
    pub(in crate::engine) fn forget_applying(&mut self) {
        if let Some(tally) = &mut self.tally {
            tally.forget_applying();
        }
    }

    /// What was folded is in force, or it did not fit.
    pub(in crate::engine) fn end_applying(&mut self, fits: bool) {
        if let Some(tally) = &mut self.tally {
            tally.end_applying(fits);
        }
    }

    /// A contribution came too late for its round.
    pub(in crate::engine) fn mark_late(&mut self, rank: Rank, round: u64) {
        if let Some(tally) = &mut self.tally {
            tally.mark(rank, round, true);
        }
    }

    /// Is this count of a worker's contributions one that it cannot have come to?
    fn is_beyond(&self, rank: Rank, round: u64) -> bool {
        let under_way = OPERATIONS_PER_WORKER_MAX as u64;
        self.made_by(rank).is_some_and(|made| round > made.saturating_add(under_way))
    }

    /// A worker's incarnation has ended. Its contributions that are not applied yet get operation number 0, so that they precede all
    /// operations of the next incarnation.
    pub(in crate::engine) fn forget_operations(&mut self, rank: Rank) {
        if let Some(tally) = &mut self.tally {
            tally.forget_operation(rank);
        }
        self.held.forget_operations(rank);
    }

    /// A contribution was refused for good: nobody waits for it any more. Not where earlier ones are to come still: then its
    /// worker's next one counts.
    pub(in crate::engine) fn count_refused(&mut self, rank: Rank, block: &Block) {
        if block.op.contributes()
            && self.is_loose()
            && !self.has_under_way(rank, block.operation)
            && !self.is_beyond(rank, block.round)
            && let Some(tally) = &mut self.tally
        {
            tally.advance(rank, block.round);
        }
    }

    /// Are contributions of a worker, up to this operation, taken and not in force (or dropped) yet?
    fn has_under_way(&self, rank: Rank, operation: Operation) -> bool {
        let is_before = |held: &Held| held.rank == rank && held.operation <= operation;
        let applying = self.tally.as_ref().and_then(|tally| tally.applying());
        applying.is_some_and(is_before) || self.held.of_rank(rank).any(is_before)
    }

    /// How far the chunk is in what operations wait for: see [`Chunk::awaits`].
    pub(in crate::engine) fn reached(&self) -> u64 {
        match (self.spec.mode, &self.tally) {
            (Mode::Sync, _) => self.version,
            (Mode::Bounded(_), Some(tally)) => tally.least(),
            // Nobody waits for more than its own contributions.
            _ => 0,
        }
    }

    /// How far the chunk has to come before this operation can be answered; none where it can be.
    pub(in crate::engine) fn awaits(&self, waiter: &Waiter) -> Option<u64> {
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

    /// The version at which a new operation that waits must be looked at. With a tally the answer does not depend on the version
    /// alone, so it is always looked at.
    pub(in crate::engine) fn first_look(&self, version: u64) -> u64 {
        if self.tally.is_some() { 0 } else { version }
    }

    /// How an operation ended that is answered now.
    pub(in crate::engine) fn ending(&self, waiter: &Waiter) -> Status {
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

    /// What an operation still waits for where each contribution is an update of its own, as `LaneEngine::late` says.
    pub(in crate::engine) fn loose_late(&self, waiter: &Waiter) -> Option<(Status, Vec<Rank>)> {
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
        let behind = self.tally.iter().flat_map(|tally| tally.behind(least)).take(RANKS_LISTED_MAX).collect();
        Some((Status::DeadlineBehind, behind))
    }

    /// Takes a held contribution that can be applied, where each is an update of its own: those of workers that have made
    /// few go first, and each worker's in order, none before one that is to come again.
    pub(in crate::engine) fn take_loose(&mut self) -> Option<Held> {
        let reopened = &self.reopened;
        let is_next = |held: &Held| {
            !reopened.iter().any(|open| open.rank == held.rank && open.operation < held.operation)
        };
        self.held.take_in_turn(is_next)
    }
}
