//! One chunk: its spec, this server's role for it, and the state that each machine of the lane stores for it. Rounds, weights and waiting
//! operations own their state; questions that need several of them are answered here. The bytes lie in the runtime's storage under the
//! same index.

use super::command::Commands;
use super::image::ChunkState;
use super::inputs::EngineConfig;
use super::keep::{At, Keep};
use super::placed::KeyBuffers;
use super::role::Role;
use super::rounds::{Rounds, Stage};
use super::spec::ChunkSpec;
use super::waiters::Waiters;
use super::weights::Weights;
use proto_common::config::WorkerLoss;
use proto_common::ids::{Epoch, Incarnation, Rank};

/// Whose a copy's numbers are: what it had from another primary, or another incarnation of this one, counts as nothing, because
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
    /// Its initial value, or all that it had when this server began to serve it, is not at the backup: nobody is answered.
    pub(super) init_pending: bool,
    /// Of a copy: whose it is.
    pub(super) lineage: Lineage,
    /// The decision since which its server means it to be a copy.
    pub(super) copy_since: Epoch,
    /// It is published without a backup since this epoch, by a decision that a worker has to know before it is answered.
    pub(super) alone_since: Epoch,
    /// Changes of its rule that this server made.
    pub(super) rules: u64,
    /// It is served here since this epoch.
    pub(super) since: Epoch,
    /// Of a copy: bytes of the next round's sum that are there.
    pub(super) filled: u64,
    pub(super) rounds: Rounds,
    pub(super) weights: Weights,
    /// Where workers may write contributions to it.
    pub(super) key_buffers: KeyBuffers,
    pub(super) waiters: Waiters,
    /// Of chunks of one tensor that finish together.
    pub(super) group: Option<u32>,
    /// What a checkpoint wants of it.
    pub(super) saving: Saving,
    /// Of a copy: what its rule keeps has half of a round that is not ended here any more.
    pub(super) is_spoilt: bool,
    /// Its tensor's chunks are of different rounds, and no round ends them together any more.
    pub(super) is_torn: bool,
}

impl Chunk {
    pub(super) fn new(spec: ChunkSpec, config: &EngineConfig) -> Self {
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
            rounds: Rounds::new(&spec, config),
            weights: Weights::new(config.worker_loss == WorkerLoss::Wait),
            key_buffers: KeyBuffers::default(),
            waiters: Waiters::default(),
            group: None,
            saving: Saving::Nothing,
            is_spoilt: false,
            is_torn: false,
        }
    }

    /// Do workers contribute to it here? Then it is here that checkpoints have it from.
    pub(super) fn is_served(&self) -> bool {
        self.role.is_some_and(Role::serves)
    }

    /// Does nobody read or write anything of it, now or later?
    pub(super) fn is_unused(&self) -> bool {
        self.key_buffers.is_empty() && !self.weights.is_read() && self.rounds.holds_nothing()
    }

    /// Is nobody to be answered now, whatever version there is?
    pub(super) fn is_silent(&self) -> bool {
        self.init_pending || self.rounds.is_initialising() || self.rounds.is_judged()
    }

    /// The buffer to publish into: one that nobody reads; none while both are being read, or a checkpoint's copy is to be made.
    pub(super) fn writable(&self) -> Option<u8> {
        if self.is_due() { None } else { self.weights.writable() }
    }

    /// A buffer that its round could have, were it not for landings.
    pub(super) fn landing_only(&self) -> Option<u8> {
        self.weights.landing_only().filter(|_| !self.is_due())
    }

    /// The round is about to be finished: its values go to this buffer. What follows is about as many bytes as it has.
    pub(super) fn begin_finish(&mut self, index: u32, out: &mut Commands) {
        let bytes = self.rounds.round_bytes();
        self.rounds.size(index, bytes, out);
        self.waiters.report_arrivals((index, self.rounds.round()), self.rounds.contributed(), out);
    }

    /// The round being collected has ended, with new weights in a buffer or (none) without.
    pub(super) fn publish(&mut self, into: Option<u8>) {
        let Self { rounds, weights, .. } = self;
        match (into, rounds.stage()) {
            (Some(into), _) => weights.publish(into, rounds.round(), rounds.live_bytes()),
            (None, Stage::Verdict { into }) => weights.pass(rounds.round(), Some(into)),
            (None, _) => weights.pass(rounds.round(), None),
        }
        rounds.end(into.is_some());
    }
}

/// Copies at other servers.
impl Chunk {
    /// Does a round of this chunk wait for copies?
    pub(super) fn has_copies(&self) -> bool {
        self.copies.iter().flatten().any(Keep::blocks)
    }

    /// Since which decision that copy is one.
    pub(super) fn since_of(&self, id: u64) -> Epoch {
        let keep = self.copies.iter().flatten().find(|keep| keep.id == id);
        keep.map_or(Epoch::default(), |keep| keep.since)
    }

    pub(super) fn keep_of(&mut self, id: u64) -> Option<&mut Keep> {
        self.copies.iter_mut().flatten().find(|keep| keep.id == id)
    }

    /// Copies that a complete round waits for.
    pub(super) fn unconfirmed_copies(&self) -> impl Iterator<Item = &Keep> {
        let round = self.rounds.round();
        self.copies.iter().flatten().filter(move |keep| keep.blocks() && keep.confirmed < round)
    }

    pub(super) fn has_initial_everywhere(&self) -> bool {
        self.copies.iter().flatten().all(|keep| !keep.blocks() || (keep.has_initial && keep.at == At::In))
    }

    /// Servers whose confirmation a change of the rule waits for.
    pub(super) fn lacking_rules(&self) -> impl Iterator<Item = Rank> + '_ {
        let lacks = |keep: &&Keep| keep.blocks() && keep.rules.1 < self.rules;
        self.copies.iter().flatten().filter(lacks).map(|keep| keep.to)
    }

    /// Servers whose confirmation the complete round, or the initial value, waits for.
    pub(super) fn unconfirmed(&self) -> impl Iterator<Item = Rank> + '_ {
        let (round, is_sent) = (self.rounds.round(), self.rounds.stage() == Stage::Copies);
        let lacks = move |keep: &&Keep| {
            let lacks_all = self.init_pending && !(keep.has_initial && keep.at == At::In);
            keep.blocks() && ((is_sent && keep.confirmed < round) || lacks_all)
        };
        self.copies.iter().flatten().filter(lacks).map(|keep| keep.to)
    }

    /// Is a round under way that copies are not asked about any more, and that this server has not confirmed?
    pub(super) fn ends_without(&self, to: Rank) -> bool {
        let has = |keep: &Keep| keep.to == to && keep.confirmed >= self.rounds.round();
        self.rounds.is_ending() && !self.copies.iter().flatten().any(has)
    }

    /// The complete round that copies are to have: which one, and the bytes of its sum.
    pub(super) fn pending(&self) -> Option<(u64, u64)> {
        (self.rounds.stage() == Stage::Copies)
            .then(|| (self.rounds.round(), self.spec.sum_bytes(self.rounds.round_bytes())))
    }
}

/// Images of it.
impl Chunk {
    /// Is it to be copied before anything is published?
    pub(super) fn is_due(&self) -> bool {
        self.saving == Saving::Due
    }

    /// A copy is wanted of this version; of the one in force where that is later, or there are no rounds.
    pub(super) fn want_copy(&mut self, round: u64, now: bool) {
        let is_there = self.rounds.version() >= round || now || !self.rounds.has_rounds();
        self.saving = match (is_there, self.is_whole()) {
            (true, true) => Saving::Due,
            // In the middle of a round's end: then the version that it makes.
            (true, false) => Saving::Awaits(self.rounds.round()),
            (false, _) => Saving::Awaits(round),
        };
    }

    /// Are what its rule keeps, and its weights, those of the published version? Not between the two halves of a rule that
    /// needs norms.
    pub(super) fn is_whole(&self) -> bool {
        // While it is to be copied it is not prepared.
        let halfway = self.group.is_some()
            && matches!(self.rounds.stage(), Stage::Norms | Stage::Buffer)
            && !self.is_due();
        !halfway && !self.rounds.is_judged() && !self.rounds.is_initialising()
    }

    pub(super) fn state(&self, with_previous: bool) -> ChunkState {
        let mut state = ChunkState::default();
        self.rounds.save(&mut state);
        self.weights.save(&mut state, with_previous);
        state
    }

    pub(super) fn fits(&self, state: &ChunkState) -> Result<(), String> {
        state.check()?;
        self.rounds.check(state)?;
        let most = self.spec.bytes;
        let is_other = |bytes: u64| bytes > most || (!self.spec.dynamic && bytes != most);
        let got = match (state.previous_bytes > most, is_other(state.live_bytes)) {
            (true, _) => state.previous_bytes,
            (false, true) => state.live_bytes,
            (false, false) => return Ok(()),
        };
        Err(format!("the weights in the image have {got} bytes, but the chunk has at most {most} bytes"))
    }

    /// Continues from an image, whose weights are in this buffer now.
    pub(super) fn restore(&mut self, state: &ChunkState, into: u8) {
        self.rounds.restore(state);
        self.weights.restore(state, into);
        (self.is_spoilt, self.is_torn) = (false, false);
    }
}

#[cfg(test)]
mod sample {
    //! A chunk for the unit tests of what works on chunks.

    use super::*;
    use proto_common::codec::Codec;
    use proto_common::element::Dtype;
    use proto_common::ids::{ChunkId, JobId, Lane};
    use proto_common::mode::Mode;
    use proto_common::optimizer::Optimizer;

    impl EngineConfig {
        /// Of a lane with two workers, one slot and one spill block.
        pub(in crate::engine) fn sample() -> Self {
            Self {
                job: JobId(1),
                incarnation: Incarnation(1),
                lane: Lane(0),
                workers: 2,
                deterministic: false,
                inbox_slots: 1,
                spill_blocks: 1,
                carried_bytes_max: 0,
                worker_loss: WorkerLoss::Stop,
            }
        }
    }

    impl ChunkSpec {
        /// Chunk 0 of a key, of four numbers, in mode sync.
        pub(crate) fn sample(key: u64) -> Self {
            Self {
                id: ChunkId::new(key, 0),
                bytes: 16,
                dynamic: false,
                dtype: Dtype::F32,
                codec: Codec::Plain,
                optimizer: Optimizer::sum(),
                mode: Mode::Sync,
                backup_workers: 0,
            }
        }
    }

    impl Chunk {
        pub(in crate::engine) fn sample(key: u64) -> Self {
            Self::new(ChunkSpec::sample(key), &EngineConfig::sample())
        }
    }
}
