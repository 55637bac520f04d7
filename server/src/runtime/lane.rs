//! What one data thread works on: queue, engine, memory, and the channels of peers. It must not decide anything, nor know who does
//! what with it: `turn` does a turn's work.

use super::calls::CallMemory;
use super::change::{Changed, Changing};
use super::error::LaneError;
use super::flight::LaneFlight;
use super::link::{Gone, Link};
use super::records::Replicas;
use crate::checkpoint::{LaneSaver, Restorer};
use crate::engine::{Commands, EngineConfig, FenceId, LaneEngine};
use crate::own::Rules;
use crate::space::Space;
use crate::storage::{Cells, Storage};
use crate::tables::{RowsToSave, Tables};
use daemon::flight::{Flight, Kind};
use fabric::{Access, Blocks, ChannelId, Completion, CompletionQueue, PostError, Span};
use proto_common::batch::{BatchReader, SlotGrant};
use proto_common::ids::{Epoch, Rank};
use proto_common::limits::{RESULT_SLOT_BYTES, RESULTS_PER_LANE, TABLE_BYTES_MAX, slot_bytes_for};
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;
use std::time::Instant;

/// A lane that stores this much (weights twice, their sum and what rules keep) lands more weights than caches hold until
/// they are read.
const STREAMED_BYTES_MIN: u64 = 96 << 20;
/// Bytes of calls that are kept unless it is said otherwise.
const CALL_BYTES_DEFAULT: u64 = 64 << 20;

/// The settings of a lane, which never change.
#[derive(Clone, Copy, Debug)]
pub struct LaneConfig {
    /// The engine's part.
    pub engine: EngineConfig,
    /// This server's rank.
    pub rank: Rank,
    /// Bytes of a chunk.
    pub chunk_bytes: u64,
    /// What its pools reserve.
    pub space: Space,
}

/// What a lane has for checkpoints.
#[derive(Debug, Default)]
pub(super) struct Saves {
    pub(super) saver: Option<LaneSaver>,
    pub(super) restorer: Option<Restorer>,
    /// Chunks that are still to begin from it.
    pub(super) unread: BTreeSet<u32>,
    /// The checkpoint that the saver was told of: its round, and which of the engine's it is.
    pub(super) begun: Option<(u64, u64)>,
    /// What it is still to have of tables.
    pub(super) rows: RowsToSave,
}

impl Saves {
    /// A chunk of zeros that nobody has changed.
    pub(super) fn is_new(&mut self, index: u32) {
        if self.restorer.is_some() {
            self.unread.insert(index);
        }
    }
}

/// See the module.
#[derive(Debug)]
pub struct DataLane<Q> {
    /// The first field, and so the first that is dropped: a lane that fails, also by a panic, closes its channels before it lets
    /// go of the memory that was granted over them.
    pub(super) queue: Q,
    pub(super) config: LaneConfig,
    pub(super) engine: LaneEngine,
    pub(super) storage: Storage,
    pub(super) calls: CallMemory,
    pub(super) replicas: Replicas,
    pub(super) tables: Tables,
    pub(super) inbox: Cells,
    pub(super) links: Vec<Option<Link>>,
    pub(super) ranks: FxHashMap<ChannelId, Rank>,
    pub(super) epoch: Epoch,
    pub(super) blocks: Blocks,
    pub(super) prefix: Box<[u8]>,
    pub(super) reader: BatchReader,
    pub(super) commands: Commands,
    /// Its memory is the next list's.
    pub(super) executed: Commands,
    /// Channels of workers that are to be closed when the commands that read their memory are executed.
    pub(super) gone: Vec<Gone>,
    /// Those that are closed, whose fences are not done yet.
    pub(super) fencing: Vec<(ChannelId, FenceId)>,
    pub(super) completions: Vec<Completion>,
    pub(super) next_tick_ms: u64,
    expelled: u64,
    pub(super) saves: Saves,
    pub(super) changed: Vec<Changed>,
    pub(super) changing: Option<Changing>,
    pub(super) flight: LaneFlight,
    /// Why the lane cannot continue, until that is returned.
    pub(super) failure: Option<LaneError>,
}

impl<Q: CompletionQueue> DataLane<Q> {
    /// A lane over `queue`, its inbox allocated and touched.
    pub fn new(queue: Q, config: LaneConfig) -> Result<Self, LaneError> {
        let slot_bytes = slot_bytes_for(config.chunk_bytes);
        let inbox = Cells::allocate(config.engine.inbox_slots, slot_bytes, "gradwire-inbox")?;
        let spill = Cells::allocate(config.engine.spill_blocks, config.chunk_bytes, "gradwire-spill")?;
        let (mut engine, mut queue) = (LaneEngine::new(config.engine), queue);
        queue.allow_borrows();
        engine.limit_calls(CALL_BYTES_DEFAULT);
        Ok(Self {
            queue,
            engine,
            storage: Storage::within(config.space, inbox.clone(), spill)?,
            calls: CallMemory::new(CALL_BYTES_DEFAULT, config.space)?,
            replicas: Replicas::default(),
            tables: Tables::default(),
            inbox,
            links: (0..config.engine.workers).map(|_| None).collect(),
            ranks: FxHashMap::default(),
            epoch: Epoch::default(),
            blocks: Blocks::new(RESULTS_PER_LANE, RESULT_SLOT_BYTES, "gradwire-results")?,
            prefix: vec![0; TABLE_BYTES_MAX].into_boxed_slice(),
            reader: BatchReader::default(),
            commands: Commands::default(),
            executed: Commands::default(),
            gone: Vec::new(),
            fencing: Vec::new(),
            completions: Vec::with_capacity(256),
            next_tick_ms: 0,
            expelled: 0,
            saves: Saves::default(),
            changed: Vec::new(),
            changing: None,
            flight: LaneFlight::default(),
            failure: None,
            config,
        })
    }

    /// The queue, to wait on it.
    pub fn queue_mut(&mut self) -> &mut Q {
        &mut self.queue
    }

    /// The engine, for reports.
    #[must_use]
    pub fn engine(&self) -> &LaneEngine {
        &self.engine
    }

    /// Update rules of the server's program.
    pub fn set_rules(&mut self, rules: Rules) {
        self.storage.set_rules(rules);
    }

    /// What this lane does is recorded from now on.
    pub(super) fn set_flight(&mut self, flight: &Flight) {
        self.flight = LaneFlight::new(flight, self.config.engine.lane);
    }

    /// The lane's thread has looked at the clock; `now_ms` is what it calls that.
    pub(super) fn saw(&mut self, now: Instant, now_ms: u64) {
        self.flight.saw(now, now_ms);
        self.commands.told_before_ms = self.flight.told_before_ms();
    }

    /// Breaks a rule from now on.
    #[cfg(feature = "sabotage")]
    pub fn sabotage(&mut self, rule: crate::engine::BrokenRule) {
        self.engine.sabotage(rule);
    }

    /// Bytes of parameters held.
    #[must_use]
    pub fn stored_bytes(&self) -> u64 {
        self.storage.bytes()
    }

    /// Bytes of slots and spill blocks in quarantine.
    #[must_use]
    pub fn quarantined_bytes(&self) -> u64 {
        let (slots, spills) = self.engine.quarantined();
        slots as u64 * self.inbox.cell_bytes() + spills as u64 * self.config.chunk_bytes
    }

    /// Peers closed for breaking the protocol.
    #[must_use]
    pub fn expelled(&self) -> u64 {
        self.expelled
    }

    /// Is there nothing to do before something comes?
    pub(super) fn is_idle(&self) -> bool {
        let has_fences = !self.fencing.is_empty() || !self.gone.is_empty();
        // What could not be posted is tried again when the thread wakes.
        let has_backlog = || self.links.iter().flatten().any(|link| !link.backlog.is_empty());
        !has_fences
            && !has_backlog()
            && self.replicas.channels.is_empty()
            && self.saves.begun.is_none()
            && self.engine.is_idle()
    }

    /// Has the worker a channel here?
    #[must_use]
    pub fn connected(&self, rank: Rank) -> bool {
        self.links.get(rank.0 as usize).is_some_and(Option::is_some)
    }

    /// Current weights of a chunk by index, for tests and checkpoints.
    pub fn weights(&self, chunk: u32, buffer: u8) -> Result<Span, LaneError> {
        Ok(self.storage.weights(chunk, buffer)?)
    }

    pub(super) fn note_stored(&mut self) {
        self.queue.stream_writes(self.storage.bytes() >= STREAMED_BYTES_MIN);
    }

    /// The worker may write each of these slots, once.
    pub(super) fn lend_slots(&mut self, rank: Rank, grants: &[SlotGrant]) -> Result<(), PostError> {
        let Some(Some(link)) = self.links.get(rank.0 as usize) else { return Ok(()) };
        grants.iter().try_for_each(|grant| {
            let slot = self.inbox.span(grant.slot).map_err(|_| PostError::RemoteAccess)?;
            self.queue.lend(link.channel, &slot, Access::ReadWrite, 0)
        })
    }

    /// It has written the slot, or does not need it: from now on it may not write there.
    pub(super) fn take_slot(&mut self, channel: ChannelId, slot: SlotGrant) -> Result<(), LaneError> {
        self.queue.take_back(channel, &self.inbox.span(slot.slot)?, 0);
        Ok(())
    }

    pub(super) fn expel(&mut self, rank: Rank, reason: &str) {
        self.expelled += 1;
        self.flight.peer(Kind::Expel, rank);
        tracing::warn!(
            worker = rank.0,
            reason,
            "closing the data channel of a worker that broke the protocol"
        );
        self.detach(rank);
    }

    /// Forgets what was to be said to a worker. Its channel is closed as soon as what was taken of it is read: the commands that
    /// are there may still name its memory, which it may write again from its close on.
    pub fn detach(&mut self, rank: Rank) {
        let Some(link) = self.links.get_mut(rank.0 as usize).and_then(Option::take) else { return };
        self.ranks.remove(&link.channel);
        // This also ends the reads that were under way. First, so that nothing that follows is for this worker.
        let fence = self.engine.peer_down(rank);
        if let Err(error) = self.calls.end_reads(rank) {
            self.failure.get_or_insert(error.into());
        }
        self.gone.push(Gone { rank, fence, link });
    }
}

impl<Q> Drop for DataLane<Q> {
    fn drop(&mut self) {
        // Before the channels close, which is when workers may write what handlers still read.
        if let Err(error) = self.calls.keep_all() {
            tracing::error!(%error, "a handler may have read what a worker has written since");
        }
    }
}
