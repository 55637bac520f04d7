//! Versions, as operations wait for them: of rounds of everybody; with backup workers of rounds that end without some; and outside mode
//! sync of contributions each of which is an update of its own. It must not know how contributions travel.

use super::{Held, ROUNDS_AHEAD_MAX, Rounds, Stage, Turn};
use crate::engine::roster::Roster;
use crate::engine::waiters::Waiter;
use proto_common::batch::{Block, OpKind, Status};
use proto_common::ids::{Key, Operation, Rank};
use proto_common::limits::{OPERATIONS_PER_WORKER_MAX, RANKS_LISTED_MAX};
use proto_common::mode::Mode;

impl Rounds {
    /// The first round, or outside mode sync the first count of its contributions, in which a worker could count that comes.
    pub(in crate::engine) fn first_for(&self, rank: Rank) -> u64 {
        match &self.tally {
            Some(tally) if !self.has_rounds() => {
                // What the rank's incarnation before has under way is in force later; its number is nobody else's.
                let is_its = |held: &&Held| held.rank == rank;
                let taken = self.held.of_rank(rank).chain(tally.applying().filter(is_its));
                let last = taken.map(|held| held.round).max().unwrap_or(0);
                tally.least().max(tally.made(rank)).max(last) + 1
            }
            _ => self.round() + 1,
        }
    }

    /// Outside mode sync: how many contributions of a rank are in force.
    pub(super) fn made_by(&self, rank: Rank) -> Option<u64> {
        let tally = self.tally.as_ref().filter(|_| !self.has_rounds())?;
        Some(tally.made(rank))
    }

    /// Outside mode sync: a worker's contributions count from this one on.
    pub(in crate::engine) fn begin_count(&mut self, rank: Rank, from: u64) {
        let has_rounds = self.has_rounds();
        if let Some(tally) = self.tally.as_mut().filter(|_| !has_rounds) {
            tally.advance(rank, from.saturating_sub(1));
        }
    }

    /// Does a round end without some of the workers?
    pub(super) fn drops_late(&self) -> bool {
        self.tally.is_some() && self.has_rounds()
    }

    /// Is the round being collected complete without this worker?
    pub(super) fn is_missed_by(&self, rank: Rank) -> bool {
        self.drops_late()
            && self.is_complete()
            && !self.contributed.contains(rank)
            && !self.held.contains(self.round(), rank)
    }

    /// Whether a contribution can be applied now, where each is an update of its own: a worker's are applied in order.
    pub(super) fn single_turn(&self, rank: Rank, round: u64) -> Result<Turn, Status> {
        if round == 0 {
            return Err(Status::Refused);
        }
        let applying = self.tally.as_ref().and_then(|tally| tally.applying());
        let is_applied = applying.is_some_and(|held| held.rank == rank && round <= held.round);
        let is_held = self.held.contains(round, rank);
        if is_applied || is_held || self.made_by(rank).is_some_and(|made| round <= made) {
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
        let free = self.stage == Stage::Contributions && !self.is_initialising() && before == 0;
        Ok(if free { Turn::Now } else { Turn::Later })
    }

    /// Where each contribution is an update of its own: this one is reduced.
    pub(super) fn begin_applying(&mut self, held: Held) {
        let has_rounds = self.has_rounds();
        if let Some(tally) = self.tally.as_mut().filter(|_| !has_rounds) {
            tally.begin_applying(held);
        }
    }

    /// Where each contribution is an update of its own: which one of its worker's is being applied. 0 if none is.
    pub(in crate::engine) fn applying(&self) -> u64 {
        self.tally.as_ref().and_then(|tally| tally.applying()).map_or(0, |held| held.round)
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

    /// A contribution was refused for good: nobody waits for it any more. Not where earlier ones are to come still: then its
    /// worker's next one counts.
    pub(in crate::engine) fn count_refused(&mut self, rank: Rank, block: &Block) {
        if block.op.contributes()
            && !self.has_rounds()
            && !self.has_under_way(rank, block.operation)
            && !self.is_beyond(rank, block.count.round())
            && let Some(tally) = &mut self.tally
        {
            tally.advance(rank, block.count.round());
        }
    }

    /// Are contributions of a worker, up to this operation, taken and not in force (or dropped) yet?
    fn has_under_way(&self, rank: Rank, operation: Operation) -> bool {
        let is_before = |held: &Held| held.rank == rank && held.operation <= operation;
        let applying = self.tally.as_ref().and_then(|tally| tally.applying());
        applying.is_some_and(is_before) || self.held.of_rank(rank).any(is_before)
    }

    /// How far the chunk is in what operations wait for: see [`Rounds::awaits`].
    pub(in crate::engine) fn reached(&self) -> u64 {
        match (self.mode, &self.tally) {
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
        let least = match self.mode {
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
    pub(in crate::engine) fn ending(&self, waiter: &Waiter, key: Key, roster: &Roster) -> Status {
        let Waiter { rank, version, .. } = *waiter;
        if !waiter.op.contributes() {
            return Status::Done;
        }
        if self.has_rounds() && roster.is_early(rank, key, version) {
            return Status::Late;
        }
        let is_marked = self.tally.as_ref().is_some_and(|tally| tally.is_marked(rank, version));
        match (is_marked, self.has_rounds()) {
            (true, true) => Status::Late,
            (true, false) => Status::BadValue,
            (false, true) if self.is_bad(version) => Status::BadValue,
            (false, _) => Status::Done,
        }
    }

    /// Did this round, which is over, leave the weights as they were?
    fn is_bad(&self, round: u64) -> bool {
        let back = self.version.checked_sub(round).and_then(|back| u32::try_from(back).ok());
        round > 0 && back.and_then(|back| self.bad.checked_shr(back)).is_some_and(|bad| bad & 1 == 1)
    }

    /// The version that an operation is answered with.
    pub(in crate::engine) fn version_for(&self, waiter: &Waiter, status: Status) -> u64 {
        if waiter.op == OpKind::Release {
            // A worker that joins again continues after it.
            return self.made_by(waiter.rank).unwrap_or(self.version);
        }
        if waiter.exact && status == Status::Done { waiter.version } else { self.version }
    }

    /// What an operation still waits for where each contribution is an update of its own: the status that says so, and the ranks.
    /// `reading` are workers that read old weights.
    pub(in crate::engine) fn waits_singly(
        &self,
        waiter: &Waiter,
        reading: impl FnOnce() -> Vec<Rank>,
    ) -> Option<(Status, Vec<Rank>)> {
        if self.has_rounds() {
            return None;
        }
        if self.has_under_way(waiter.rank, waiter.operation) {
            // Its own contribution is being read still, where nobody reads what it would be written over.
            let reading = if self.stage == Stage::Buffer { reading() } else { Vec::new() };
            let own = (Status::DeadlineWaiting, vec![waiter.rank]);
            return Some(if reading.is_empty() { own } else { (Status::DeadlineReading, reading) });
        }
        let least = self.awaits(waiter).unwrap_or(0);
        let behind = self.tally.iter().flat_map(|tally| tally.behind(least)).take(RANKS_LISTED_MAX).collect();
        Some((Status::DeadlineBehind, behind))
    }

    /// Takes a held contribution that can be applied, where each is an update of its own: those of workers that have made
    /// few go first, and each worker's in order, none before one that must be sent again.
    pub(super) fn take_single(&mut self) -> Option<Held> {
        let order = &self.order;
        self.held.take_in_turn(|held| !order.awaits_before(held))
    }
}
