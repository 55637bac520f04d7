//! The rounds of one chunk: who is expected in the round that is being collected, who has contributed, which contributions wait for
//! their turn, what its end waits for, and how the last rounds ended. Owns the answer to "may this contribution be reduced now, and
//! is it the last one". It must not know how contributions travel, where weights lie, or who is answered: the lane brings it
//! contributions, and does what it returns.
//!
//! ```text
//!             ┌──▶ Contributions ──fold: the last one──┬── no copies ──────────────────────┐
//!             │      ▲         ▲                       └──▶ Copies ──confirmed──────────────┤
//!             │      │ abandon │ leave_norms                  │                            │
//!             │      └─────────┼──────────────────────────────┘      a rule with norms     │
//!             │                └────────────────────────────── Norms ◀─────────────────────┤
//!             │                                                  │ all are prepared        │
//!             │                                                  ▼       no buffer is free │
//!             │                                               Buffer ◀─────────────────────┤
//!             │                                                  │ a buffer is free        │
//!          end│                                                  ▼                         │
//!             ├──────────────────────────────────────────── (published) ◀──────────────────┘
//!             │                                                  │ the values may not fit
//!             └───────────────────── Verdict ◀───────────────────┘
//! ```
//!
//! If a contribution were reduced into a round that is complete, it would change a sum that replicas have confirmed.

mod collected;
mod expected;
mod held;
mod order;
mod tally;
mod versions;

use super::command::{Addend, Commands, Onto, Source};
use super::image::{COUNT_END, ChunkState};
use super::inputs::EngineConfig;
use super::lengths::Lengths;
use super::ranks::RankSet;
use super::roster::Roster;
use super::spec::ChunkSpec;
use collected::Collected;
pub(super) use held::Held;
use held::HeldSet;
pub(super) use order::Number;
use order::Order;
use proto_common::batch::Status;
use proto_common::ids::{Key, Operation, Rank};
use proto_common::mode::Mode;
use std::cmp::Ordering;
use tally::Tally;

/// Rounds ahead of the one being collected that a worker's contributions are kept for.
const ROUNDS_AHEAD_MAX: u64 = 4;

/// Whether a contribution can be reduced now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    Now,
    /// Others come first, or its round is not the one being collected.
    Later,
    /// This rank contributed to this round already.
    Repeated,
    /// The round has ended, or is complete, without this rank.
    Late,
}

/// What the round being collected waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Stage {
    #[default]
    Contributions,
    /// All have contributed, but servers that have copies have not confirmed it.
    Copies,
    /// The norms of the tensor's other chunks are missing.
    Norms,
    /// The round is complete, but no buffer can be written: both are being read, or a checkpoint must copy the chunk first.
    Buffer,
    /// Storage must report whether the values fit. If they do, this buffer is then in force.
    Verdict { into: u8 },
}

/// A contribution cannot be moved out of its worker's memory yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Blocked;

/// See the module.
#[derive(Debug)]
pub(super) struct Rounds {
    mode: Mode,
    backup_workers: u32,
    /// Published version; the round being collected is the next one.
    version: u64,
    initialised: bool,
    stage: Stage,
    /// Contributions that make a version.
    needed: u32,
    /// Ranks that the round being collected needs, those that have contributed among them.
    expected: RankSet,
    /// The change of the roster and the round for which this is known.
    as_of: (u64, u64),
    /// From this round on no round is begun before the scheduler has decided which workers count.
    barred: Option<u64>,
    /// Ranks that have contributed to this round; all are reduced but for `first`.
    contributed: Collected,
    /// The round's first contribution, while it is only in its worker's memory: counted, and not reduced yet.
    first: Option<Held>,
    held: HeldSet,
    lengths: Lengths,
    /// Rounds that ended without new weights: bit 0 is the one in force, bit 1 the one before. Longer than workers can
    /// ask about: they are at most as many rounds behind as they have operations on a chunk under way.
    bad: u64,
    /// Counts of contributions, if versions are not rounds of all workers.
    tally: Option<Box<Tally>>,
    /// Which operations were taken.
    pub(super) order: Order,
}

impl Rounds {
    pub(super) fn new(spec: &ChunkSpec, config: &EngineConfig) -> Self {
        let workers = config.workers;
        let mut rounds = Self {
            mode: spec.mode,
            backup_workers: spec.backup_workers,
            version: 0,
            initialised: false,
            stage: Stage::default(),
            needed: 0,
            expected: RankSet::all(workers),
            as_of: (0, 0),
            barred: None,
            contributed: Collected::new(workers),
            first: None,
            held: HeldSet::default(),
            lengths: Lengths::new(spec),
            bad: 0,
            tally: Tally::of(spec, workers),
            order: Order::new(workers),
        };
        rounds.count_needed();
        rounds
    }

    /// Published version.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// The round being collected.
    pub(super) fn round(&self) -> u64 {
        self.version + 1
    }

    /// What the round being collected waits for.
    pub(super) fn stage(&self) -> Stage {
        self.stage
    }

    /// Do versions need contributions of several workers? If not, each contribution is an update of its own.
    pub(super) fn has_rounds(&self) -> bool {
        self.mode.has_rounds()
    }

    /// Do all workers know which rounds are open? Only if no round ends without one of them.
    pub(super) fn are_common(&self) -> bool {
        self.tally.is_none()
    }

    /// Was its initial value set?
    pub(super) fn is_initialised(&self) -> bool {
        self.initialised
    }

    /// Have all expected workers contributed to the round being collected?
    pub(super) fn is_complete(&self) -> bool {
        self.stage != Stage::Contributions
    }

    /// Is a complete round under way that the replicas have confirmed, if there are any?
    pub(super) fn is_ending(&self) -> bool {
        matches!(self.stage, Stage::Norms | Stage::Buffer | Stage::Verdict { .. })
    }

    /// Must storage report first whether the round's values fit? No operation is answered before.
    pub(super) fn is_judged(&self) -> bool {
        matches!(self.stage, Stage::Verdict { .. })
    }

    /// Is the initial value being read, or must it be sent (again)? Before it is there, nothing is reduced and no operation is answered.
    pub(super) fn is_initialising(&self) -> bool {
        self.held.has_initial() || self.order.awaits_initial()
    }

    /// The version that a replica has, or will have when it has applied what it has confirmed.
    pub(super) fn promised(&self) -> u64 {
        self.version + u64::from(self.is_complete())
    }

    /// The version that is certain to be published even if no replica confirms anything more.
    pub(super) fn certain(&self) -> u64 {
        self.version + u64::from(matches!(self.stage, Stage::Buffer | Stage::Verdict { .. }))
    }

    /// Has no worker contributed since the last round?
    pub(super) fn takes_no_part(&self) -> bool {
        self.stage == Stage::Contributions
            && !self.contributed.has_any()
            && self.held.of_round(self.round()).next().is_none()
    }

    /// Ranks that have contributed to the round being collected.
    pub(super) fn contributed(&self) -> &RankSet {
        self.contributed.ranks()
    }

    /// Does no contribution wait for its turn?
    pub(super) fn holds_nothing(&self) -> bool {
        self.held.is_empty()
    }

    /// Bytes of the version in force.
    pub(super) fn live_bytes(&self) -> u64 {
        self.lengths.live()
    }

    /// Bytes of the round being collected.
    pub(super) fn round_bytes(&self) -> u64 {
        self.lengths.round()
    }

    /// The commands that follow concern this many bytes of the chunk. Only dynamic chunks need this.
    pub(super) fn size(&mut self, index: u32, bytes: u64, out: &mut Commands) {
        self.lengths.size(index, bytes, out);
    }
}

/// Contributions.
impl Rounds {
    /// Is the initial value there, or being read?
    pub(super) fn has_initial(&self) -> bool {
        self.initialised || self.held.has_initial()
    }

    /// Can an initial value be set? An error if a round has used the zeros already. A complete round has, because its sum goes to the
    /// buffers next, whatever it still waits for.
    pub(super) fn takes_initial(&self) -> Result<bool, Status> {
        if self.has_initial() {
            return Ok(false);
        }
        if self.version > 0 || self.is_complete() {
            return Err(Status::Refused);
        }
        Ok(true)
    }

    /// The initial value is set.
    pub(super) fn initialise(&mut self) {
        self.initialised = true;
    }

    /// Whether a contribution to this round can be reduced now; an error if it comes too early to be kept.
    pub(super) fn turn(
        &self,
        (rank, round): (Rank, u64),
        key: Key,
        roster: &Roster,
        deterministic: bool,
    ) -> Result<Turn, Status> {
        roster.check(rank)?;
        if !self.has_rounds() {
            return self.single_turn(rank, round);
        }
        if roster.is_early(rank, key, round) {
            return Ok(Turn::Late);
        }
        let over = if self.drops_late() { Turn::Late } else { Turn::Repeated };
        Ok(match round.cmp(&self.round()) {
            Ordering::Less => over,
            Ordering::Equal if self.is_missed_by(rank) => Turn::Late,
            Ordering::Equal if self.contributed.contains(rank) => Turn::Repeated,
            Ordering::Greater if round > self.round() + ROUNDS_AHEAD_MAX => return Err(Status::Retry),
            _ if self.held.contains(round, rank) => Turn::Repeated,
            Ordering::Equal if self.is_turn(rank, deterministic) => Turn::Now,
            Ordering::Equal | Ordering::Greater => Turn::Later,
        })
    }

    /// Has a contribution the same length as the others of its round that have arrived? If each one is an update of its own, there are no
    /// others.
    pub(super) fn check_length(&self, round: u64, bytes: u64) -> Result<(), Status> {
        if !self.has_rounds() {
            return Ok(());
        }
        let collected = self.lengths.collected().filter(|_| round == self.round());
        // All held contributions of a round have the same length, so one of them is enough.
        let held = self.held.of_round(round).next().map(|held| held.bytes);
        let agrees = collected.into_iter().chain(held).all(|other| other == bytes);
        if agrees { Ok(()) } else { Err(Status::WrongShape) }
    }

    /// Keeps a contribution until its turn.
    pub(super) fn hold(&mut self, held: Held) {
        self.held.insert(held);
    }

    /// The payload that was read into this block has arrived. Returns its round. An initial value is not held any more.
    pub(super) fn arrive(&mut self, rank: Rank, from: Source) -> Option<u64> {
        self.held.arrive(rank, from)
    }

    /// Counts a contribution. Returns what must be reduced now, and whether the round is complete. `None` for the first contribution if
    /// it can be read in its worker's memory: it stays there until the second one arrives, because the worker keeps it until the round
    /// ends.
    pub(super) fn fold(&mut self, held: Held) -> Option<(Addend, bool)> {
        self.lengths.collect(held.bytes);
        let onto = match self.first.take() {
            Some(first) => Onto::First(first.from),
            None if !self.contributed.has_payload() => Onto::Nothing,
            None => Onto::Sum,
        };
        self.contributed.insert(held.rank);
        self.begin_applying(held);
        let is_last = self.is_full();
        let may_stay = !is_last && !self.contributed.has_merged() && held.is_in_worker_memory();
        if may_stay && onto == Onto::Nothing {
            self.first = Some(held);
            return None;
        }
        Some((Addend { from: held.from, onto }, is_last))
    }

    /// Has a merged contribution's round come? It is not added to anything, so it needs no turn among the others of its round. An
    /// error if it must be sent again.
    pub(super) fn merged_turn(&self, turn: Turn, round: u64) -> Result<Turn, Status> {
        let is_open = !self.is_complete() && !self.is_initialising() && !self.is_barred();
        match turn {
            Turn::Now | Turn::Later if is_open && round == self.round() => Ok(Turn::Now),
            Turn::Now | Turn::Later => Err(Status::Retry),
            Turn::Repeated | Turn::Late => Ok(turn),
        }
    }

    /// Counts a worker whose contribution is part of another one. No first contribution may stay in its worker's memory meanwhile.
    /// Returns whether the round is complete.
    pub(super) fn count_merged(&mut self, rank: Rank, bytes: u64) -> bool {
        self.lengths.collect(bytes);
        self.contributed.insert_merged(rank);
        self.is_full()
    }

    fn is_full(&self) -> bool {
        self.contributed.count() >= self.needed
    }

    /// Has the round being collected contributions, and a payload in none of them?
    pub(super) fn has_no_payload(&self) -> bool {
        self.contributed.has_any() && !self.contributed.has_payload()
    }

    /// The first contribution must not stay in its worker's memory any longer, and is reduced alone.
    pub(super) fn take_first(&mut self, is_it: impl Fn(&Held) -> bool) -> Option<Held> {
        self.first.take_if(|first| is_it(first))
    }

    /// Takes the sum of a round of a chunk that this server has a replica of, with its contributors. Outside mode sync there is one
    /// contributor, and `count` is the number of its contribution.
    pub(super) fn take_sum(
        &mut self,
        contributors: &[u64],
        count: u64,
        (bytes, from): (u64, Source),
    ) -> Result<(), &'static str> {
        // Later contributions continue this count.
        if !self.has_rounds() && count >= COUNT_END {
            return Err("its update counts more contributions than possible");
        }
        if !self.contributed.set(contributors) {
            return Err("its update has no contributors, or unknown ones");
        }
        if !self.has_rounds() {
            let rank = self.contributed().first().unwrap_or_default();
            // If this server takes over, this operation precedes all operations that arrive here.
            let (round, operation) = (count, Operation(0));
            self.begin_applying(Held { rank, round, operation, bytes, from, arrived: true });
        }
        self.lengths.collect(bytes);
        Ok(())
    }

    /// Takes a held contribution whose turn has come.
    pub(super) fn take_held(&mut self, deterministic: bool) -> Option<Held> {
        if self.stage != Stage::Contributions || self.is_initialising() || self.is_barred() {
            return None;
        }
        if !self.has_rounds() {
            return self.take_single();
        }
        let round = self.round();
        if !deterministic {
            return self.held.take_any(round);
        }
        let (next, other) = self.next_in_order();
        self.held.take(round, next?).or_else(|| self.held.take(round, other?))
    }

    /// Takes a held contribution whose round has ended without it.
    pub(super) fn take_late(&mut self) -> Option<Held> {
        if !self.drops_late() {
            return None;
        }
        let late = self.held.take_before(self.round())?;
        self.mark_late(late.rank, late.round);
        Some(late)
    }

    /// Takes a held contribution of any round, because none is needed any more; but none that is still being read.
    pub(super) fn take_unwanted(&mut self) -> Option<Held> {
        self.held.take_before(u64::MAX)
    }

    /// An operation must end before its contribution's turn, and its worker may then use its memory for something else. Returns the
    /// contribution to copy, and the spill block for it, which `take` returns. An error if this is not possible yet, because the
    /// contribution is being read, or because no block is free.
    pub(super) fn move_out(
        &mut self,
        (rank, operation): (Rank, Operation),
        take: impl FnOnce() -> Option<u32>,
    ) -> Result<Option<(Held, u32)>, Blocked> {
        let Some(held) = self.held.in_worker_memory(rank, operation) else { return Ok(None) };
        let to = if held.arrived { take() } else { None };
        let (to, before) = (to.ok_or(Blocked)?, *held);
        held.from = Source::Spill(to);
        Ok(Some((before, to)))
    }

    /// A worker's channel has ended. The worker may now overwrite payloads that are only in its memory, so these contributions count as not
    /// arrived, and must be sent again; `dropped` is called for each. Later operations stay taken, because the worker does not send again
    /// what a deadline has ended.
    pub(super) fn channel_ended(&mut self, rank: Rank, mut dropped: impl FnMut(&Held)) {
        let Self { first, held, order, .. } = self;
        let first = first.take_if(|first| first.rank == rank);
        let mut reopen = |held: &Held| {
            dropped(held);
            order.reopen(held);
        };
        first.iter().for_each(&mut reopen);
        held.drop_unread(rank, reopen);
        if first.is_some() {
            // No other worker has contributed; otherwise it would have been reduced with the second contribution.
            self.contributed.clear();
            self.lengths.end_round(false);
        }
    }

    /// A worker's incarnation has ended, or another one begins. Its operation numbers begin anew, and operations that it had to send again
    /// are not awaited any more.
    /// Its contributions that are not applied yet get operation number 0, so that they precede all operations of the next incarnation.
    pub(super) fn worker_ended(&mut self, rank: Rank) {
        self.order.forget(rank);
        if let Some(tally) = &mut self.tally {
            tally.forget_operation(rank);
        }
        self.held.forget_operations(rank);
    }
}

/// The end of a round.
impl Rounds {
    /// The round is complete, and waits for this.
    pub(super) fn wait_for(&mut self, stage: Stage) {
        self.stage = stage;
    }

    /// The chunk leaves the round that the tensor's other chunks collect. False if it was not prepared for that round.
    pub(super) fn leave_norms(&mut self) -> bool {
        let leaves = self.stage == Stage::Norms;
        if leaves {
            self.stage = Stage::Contributions;
            self.contributed.clear();
        }
        leaves
    }

    /// The round being collected has ended, with new weights or without.
    pub(super) fn end(&mut self, has_weights: bool) {
        self.lengths.end_round(has_weights);
        self.version += 1;
        self.bad = self.bad << 1 | u64::from(!has_weights);
        self.stage = Stage::Contributions;
        self.contributed.clear();
        if let Some(tally) = &mut self.tally {
            tally.end_applying(has_weights);
        }
    }

    /// This server does not serve the chunk any more, or begins anew with it. Operations that are sent again count as new, and each worker
    /// reports which of its operations were answered. The contributions that a round has collected are discarded, unless the round is past
    /// the stage in which replicas confirm it; such a round ends.
    pub(super) fn abandon(&mut self) {
        self.order.clear();
        if !matches!(self.stage, Stage::Contributions | Stage::Copies) {
            return;
        }
        self.first = None;
        self.contributed.clear();
        self.stage = Stage::Contributions;
        self.lengths.end_round(false);
        if let Some(tally) = &mut self.tally {
            tally.forget_applying();
        }
    }

    /// This server has no role for the chunk any more. A round that replicas have confirmed does not end here, either.
    pub(super) fn give_up(&mut self) {
        self.stage = Stage::Contributions;
        self.abandon();
    }

    /// Adds the state of the rounds to an image.
    pub(super) fn save(&self, state: &mut ChunkState) {
        (state.version, state.initialised, state.bad) = (self.version, self.initialised, self.bad);
        state.live_bytes = self.live_bytes();
        (state.made, state.marks) = self.tally.as_ref().map(|tally| tally.saved()).unwrap_or_default();
    }

    /// Is the image of a job with the same number of workers?
    pub(super) fn check(&self, state: &ChunkState) -> Result<(), String> {
        let (made, marks) = self.tally.as_ref().map_or((0, 0), |tally| tally.lengths());
        for (got, want) in [(state.made.len(), made), (state.marks.len(), marks)] {
            if got != want {
                return Err(format!(
                    "the image counts contributions of {got} workers, but the chunk has {want} workers"
                ));
            }
        }
        Ok(())
    }

    /// Continues from an image. Collected contributions are discarded. The chunk must not have had any: it was a replica, or no worker has
    /// contributed yet.
    pub(super) fn restore(&mut self, state: &ChunkState) {
        (self.version, self.initialised, self.bad) = (state.version, state.initialised, state.bad);
        self.lengths.set_live(state.live_bytes);
        self.contributed.clear();
        self.stage = Stage::Contributions;
        if let Some(tally) = &mut self.tally {
            tally.restore(&state.made, &state.marks);
        }
    }
}

#[cfg(test)]
mod tests;
