//! One chunk's state: its version, the round being collected, who waits for what. Pure bookkeeping; the
//! bytes lie in the runtime's storage under the same index.

mod arrivals;
mod copies;
mod image;
mod mode;
#[cfg(test)]
mod sample;
mod weights;

use super::before::Before;
use super::held::{Held, HeldSet};
use super::inputs::EngineConfig;
use super::keep::Keep;
use super::lengths::Lengths;
use super::mode::Tally;
use super::numbers::Numbers;
use super::placed::KeyBuffers;
use super::ranks::RankSet;
use super::role::Role;
use super::spec::ChunkSpec;
use super::views::Views;
use proto_common::batch::{Landing, OpKind, Reading};
use proto_common::config::WorkerLoss;
use proto_common::ids::{Epoch, Incarnation, Operation, Rank};
use proto_common::limits::RANKS_LISTED_MAX;
use std::cmp::Ordering;
use std::ops::RangeInclusive;

/// Rounds ahead of the one being collected that a worker's contributions are kept for.
pub(super) const ROUNDS_AHEAD_MAX: u64 = 4;

/// An operation that was taken, and then lost with the channel that its payload was read over: when it comes again it
/// is new.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reopened {
    pub(super) rank: Rank,
    pub(super) operation: Operation,
    /// As of [`Held`].
    pub(super) round: u64,
}

/// How an operation's number stands to those that its worker sent before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Number {
    /// It is the next one.
    Fresh,
    /// It came before, and was taken.
    Repeated,
    /// One before it has not come.
    Early,
}

/// An operation to be answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiter {
    pub(super) rank: Rank,
    pub(super) op: OpKind,
    pub(super) operation: Operation,
    /// The least version that answers it.
    pub(super) version: u64,
    pub(super) landing: Option<Landing>,
    /// Weights are to be read where they lie.
    pub(super) view: bool,
    /// No later version than `version` answers it either.
    pub(super) exact: bool,
    pub(super) token: u64,
    pub(super) deadline_ms: u64,
    pub(super) since_ms: u64,
}

/// Whether a contribution can be reduced now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    Now,
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
    /// The tensor's other chunks, whose norms count.
    Norms,
    /// The round is complete, but no buffer can be written: both are being read, or a checkpoint must copy the chunk first.
    Buffer,
    /// Storage is to say whether the values fit; then this buffer is in force.
    Verdict { into: u8 },
}

/// Whose a copy's numbers are: what it had from another primary, or another life of this one, counts as nothing, because
/// outside mode sync its newest update may be one that nobody else has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lineage {
    /// Nobody's: it was never changed.
    Zeros,
    /// Received from this server and incarnation, under the assignment of this epoch. Data of an earlier assignment does not count,
    /// even if this server missed the decisions in between.
    Of(Rank, Incarnation, Epoch),
    /// This server's own.
    Own,
}

/// What a checkpoint wants of a chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Saving {
    #[default]
    Nothing,
    /// A copy, once this version is published.
    Awaits(u64),
    /// A copy of the version in force, before anything else is published.
    Due,
}

#[derive(Debug)]
pub(super) struct Chunk {
    pub(super) spec: ChunkSpec,
    /// What this server has it for; none of one that it has given up.
    pub(super) role: Option<Role>,
    /// Copies that others have, or are to have, of it: the backup, and where one is being made.
    pub(super) copies: [Option<Keep>; 2],
    /// Its initial value, or all that it had when this server began to serve it, is not at the backup: nobody is told.
    pub(super) init_pending: bool,
    /// Of a copy: whose it is.
    pub(super) lineage: Lineage,
    /// The decision since which its server means it to be a copy.
    pub(super) copy_since: Epoch,
    /// It is published without a backup since this epoch, by a decision that whoever is answered is to know.
    pub(super) alone_since: Epoch,
    /// Changes of its rule that this server made.
    pub(super) rules: u64,
    /// It is served here since this epoch.
    pub(super) since: Epoch,
    /// Of a copy: bytes of the next round's sum that are there.
    pub(super) filled: u64,
    /// Published version; the round being collected is the next one.
    pub(super) version: u64,
    /// Buffer of the published version (0 or 1).
    pub(super) buffer: u8,
    /// Who reads each buffer.
    pub(super) views: Views,
    /// The versions that each buffer is the weights of: several, where rounds ended without new ones.
    pub(super) versions: [RangeInclusive<u64>; 2],
    pub(super) before: Before,
    pub(super) initialised: bool,
    /// Contributions that make a version.
    pub(super) needed: u32,
    /// Where versions are not rounds of everybody.
    pub(super) tally: Option<Box<Tally>>,
    /// Ranks that the round being collected needs, those that have contributed among them.
    pub(super) expected: RankSet,
    /// As of which change of the roster, and for which round.
    pub(super) as_of: (u64, u64),
    /// From this round on nothing is begun before it is said who counts.
    pub(super) barred: Option<u64>,
    /// Ranks that have contributed to this round; all are reduced but for `first`.
    pub(super) contributed: RankSet,
    pub(super) stage: Stage,
    /// Of chunks of one tensor that finish together.
    pub(super) group: Option<u32>,
    /// Rounds that ended without new weights: bit 0 is the one in force, bit 1 the one before. Longer than workers can
    /// ask about: they are at most as many rounds behind as they have operations on a chunk under way.
    pub(super) bad: u64,
    pub(super) held: HeldSet,
    /// The round's first contribution, while it is only in its worker's memory: counted, and not reduced yet.
    pub(super) first: Option<Held>,
    pub(super) lengths: Lengths,
    /// Where workers may write contributions to it.
    pub(super) key_buffers: KeyBuffers,
    pub(super) waiters: Vec<Waiter>,
    /// When they are looked at for their deadlines: see `deadlines`.
    pub(super) due_ms: u64,
    /// None of them waits for a lower version: contributions of many workers need not look at all of them each time.
    pub(super) least_awaited: u64,
    /// Last operation taken, by worker.
    pub(super) operations: Numbers,
    /// Operations up to those that are to come again. Never more than workers have under way.
    pub(super) reopened: Vec<Reopened>,
    /// What a checkpoint wants of it.
    pub(super) saving: Saving,
    /// Of a copy: what its rule keeps has half of a round that is not ended here any more.
    pub(super) is_spoilt: bool,
    /// Its tensor's chunks are of different rounds, and no round ends them together any more.
    pub(super) is_torn: bool,
}

impl Chunk {
    pub(super) fn new(spec: ChunkSpec, config: &EngineConfig) -> Self {
        let workers = config.workers;
        Self {
            spec,
            role: Some(Role::Primary { backup: None, seeding: None }),
            copies: [None, None],
            init_pending: false,
            lineage: Lineage::Zeros,
            copy_since: Epoch::default(),
            alone_since: Epoch::default(),
            rules: 0,
            since: Epoch::default(),
            filled: 0,
            version: 0,
            buffer: 0,
            views: Views::default(),
            versions: [0..=0, 0..=0],
            before: Before::new(config.worker_loss == WorkerLoss::Wait),
            initialised: false,
            needed: Self::needed(&spec, workers, workers),
            tally: Tally::of(&spec, workers),
            expected: RankSet::all(workers),
            as_of: (0, 0),
            barred: None,
            contributed: RankSet::new(workers),
            stage: Stage::default(),
            group: None,
            bad: 0,
            held: HeldSet::default(),
            first: None,
            lengths: Lengths::new(&spec),
            key_buffers: KeyBuffers::default(),
            waiters: Vec::new(),
            due_ms: u64::MAX,
            least_awaited: u64::MAX,
            operations: Numbers::new(workers),
            reopened: Vec::new(),
            saving: Saving::Nothing,
            is_spoilt: false,
            is_torn: false,
        }
    }

    /// Is this operation its worker's next one? One that was lost goes before all behind it, taken or not. Those before
    /// `first_open` have been answered, here or by a server that had the chunk before.
    pub(super) fn number(&mut self, rank: Rank, operation: Operation, first_open: Operation) -> Number {
        self.operations.raise(rank, first_open.0.saturating_sub(1));
        self.reopened.retain(|open| open.rank != rank || open.operation >= first_open);
        let lost = self.reopened.iter().filter(|open| open.rank == rank).map(|open| open.operation).min();
        let next = lost.unwrap_or(Operation(self.operations.of(rank).saturating_add(1)));
        match operation.cmp(&next) {
            Ordering::Less => Number::Repeated,
            Ordering::Equal => Number::Fresh,
            Ordering::Greater => Number::Early,
        }
    }

    /// An operation is taken, or refused for good: it is not awaited any more.
    pub(super) fn mark_taken(&mut self, rank: Rank, operation: Operation) {
        self.operations.raise(rank, operation.0);
        self.reopened.retain(|open| open.rank != rank || open.operation != operation);
    }

    /// A worker's life is over, or another one begins: its numbers begin anew, and what it was to send again is not awaited.
    pub(super) fn forget_life(&mut self, rank: Rank) {
        self.operations.forget(rank);
        self.reopened.retain(|open| open.rank != rank);
        self.forget_operations(rank);
    }

    /// The buffer to publish into: one that nobody reads; none while both are being read, or a checkpoint's copy is to be made.
    pub(super) fn writable(&self) -> Option<u8> {
        if self.is_due() {
            return None;
        }
        self.to_publish_into().find(|buffer| !self.is_read(*buffer))
    }

    /// Does somebody read this buffer?
    pub(super) fn is_read(&self, buffer: u8) -> bool {
        self.views.is_read(buffer)
    }

    /// Does nobody read or write anything of it, now or later?
    pub(super) fn is_unused(&self) -> bool {
        self.key_buffers.is_empty() && !self.is_read(0) && !self.is_read(1) && self.held.is_empty()
    }

    /// The worker is given a view of the weights in force.
    pub(super) fn show(&mut self, rank: Rank, operation: Operation) {
        self.views.show(rank, operation, self.buffer);
    }

    /// What the worker reads of what it was shown: the rest may be overwritten.
    pub(super) fn hide(&mut self, rank: Rank, reading: Reading) {
        self.views.hide(rank, reading, &self.versions);
    }

    /// Whoever still reads an older version, in rank order.
    pub(super) fn reading(&self) -> Vec<Rank> {
        self.views.reading()
    }

    /// A buffer that its round could have, were it not for landings.
    pub(super) fn landing_only(&self) -> Option<u8> {
        let is_it = |buffer: &u8| self.views.is_landing_only(*buffer);
        self.to_publish_into().find(is_it).filter(|_| !self.is_due())
    }

    pub(super) fn round(&self) -> u64 {
        self.version + 1
    }

    /// The round being collected has ended, with new weights in a buffer or (none) without.
    pub(super) fn publish(&mut self, weights: Option<u8>) {
        self.keep_before(weights);
        self.end_length(weights.is_some());
        self.version += 1;
        self.buffer = weights.unwrap_or(self.buffer);
        let versions = &mut self.versions[usize::from(self.buffer)];
        let first = if weights.is_some() { self.version } else { *versions.start() };
        *versions = first..=self.version;
        self.bad = self.bad << 1 | u64::from(weights.is_none());
        self.stage = Stage::Contributions;
        self.contributed.clear();
        self.end_applying(weights.is_some());
    }

    /// The versions of the weights in force, and of those before, as an image has them.
    pub(super) fn set_versions(&mut self, live: (u64, u64), previous: Option<(u64, u64)>) {
        // Nobody asks for a version that is in neither buffer.
        let (first, last) = previous.unwrap_or(live);
        self.versions[usize::from(self.buffer)] = live.0..=live.1;
        self.versions[usize::from(1 - self.buffer)] = first..=last;
    }

    /// Has everybody contributed to the round being collected?
    pub(super) fn is_complete(&self) -> bool {
        self.stage != Stage::Contributions
    }

    /// Is it complete, without a buffer for its weights?
    pub(super) fn waits_for_buffer(&self) -> bool {
        self.stage == Stage::Buffer
    }

    /// Is storage to say whether the round's values fit? Nobody is told anything before.
    pub(super) fn is_judged(&self) -> bool {
        matches!(self.stage, Stage::Verdict { .. })
    }

    /// Did this round, which is over, leave the weights as they were?
    pub(super) fn is_bad(&self, round: u64) -> bool {
        let back = self.version.checked_sub(round).and_then(|back| u32::try_from(back).ok());
        round > 0 && back.and_then(|back| self.bad.checked_shr(back)).is_some_and(|bad| bad & 1 == 1)
    }

    /// May `rank` be reduced into the round being collected now?
    pub(super) fn turn(&self, rank: Rank, deterministic: bool) -> Turn {
        if self.contributed.contains(rank) || self.holds(rank, self.round()) {
            return Turn::Repeated;
        }
        if self.is_turn(rank, deterministic) { Turn::Now } else { Turn::Later }
    }

    pub(super) fn holds(&self, rank: Rank, round: u64) -> bool {
        self.held.contains(round, rank)
    }

    /// The round's first contribution is in this worker's memory only, which may be written again: it has not come.
    pub(super) fn forget_first(&mut self, rank: Rank) -> Option<Held> {
        let first = self.first.take_if(|first| first.rank == rank)?;
        // Nobody else has contributed, or it had been reduced with the second one.
        self.contributed.clear();
        self.end_length(false);
        Some(first)
    }

    /// Is the initial value there, or being read?
    pub(super) fn has_initial(&self) -> bool {
        self.initialised || self.held.has_initial()
    }

    /// Is the initial value being read, or to be read again? Nothing is folded, and nothing told, before it is there.
    pub(super) fn initialising(&self) -> bool {
        self.held.has_initial() || self.reopened.iter().any(|open| open.round == 0)
    }

    /// Ranks whose contributions could be reduced at once and have not come (the first few): a contribution that
    /// has to be tried again waits for these. None while it is readers that hold the round up, and none where contributions
    /// wait for no others.
    pub(super) fn awaited(&self, deterministic: bool) -> Vec<Rank> {
        if self.is_loose() {
            return Vec::new();
        }
        let round = self.round();
        let absent = |rank: &Rank| {
            let has_come = self.contributed.contains(*rank) || self.held.has_arrived(round, *rank);
            self.is_turn(*rank, deterministic) && !has_come
        };
        self.expected.ranks().filter(absent).take(RANKS_LISTED_MAX).collect()
    }

    /// Takes a held contribution whose turn has come.
    pub(super) fn take_held(&mut self, deterministic: bool) -> Option<Held> {
        if self.stage != Stage::Contributions || self.initialising() || self.is_barred() {
            return None;
        }
        if self.is_loose() {
            return self.take_loose();
        }
        let round = self.round();
        if !deterministic {
            return self.held.take_any(round);
        }
        let (next, other) = self.next_in_order();
        self.held.take(round, next?).or_else(|| self.held.take(round, other?))
    }

    /// Whose turn it is where contributions are folded in rank order; and who else may come, because one addition
    /// commutes: the first two in either order.
    fn next_in_order(&self) -> (Option<Rank>, Option<Rank>) {
        let mut absent = self.expected.without(&self.contributed);
        let next = absent.next();
        (next, if self.contributed.len() == 0 { absent.next() } else { None })
    }

    fn is_turn(&self, rank: Rank, deterministic: bool) -> bool {
        let is_next = || {
            let (next, other) = self.next_in_order();
            next == Some(rank) || other == Some(rank)
        };
        let is_open = self.stage == Stage::Contributions && !self.initialising() && !self.is_barred();
        is_open && (!deterministic || is_next())
    }
}
