//! One data thread's work: polls its completion queue, lets the engine decide, executes the commands. It
//! has no clock and no thread of its own, so that the simulation runs the very same code.

use super::calls::{CallEvent, CallMemory};
use super::change::Changed;
use super::fences::Gone;
use super::flight::LaneFlight;
use super::link::{Fetch, Link, Post, Posted, WorkerInbox};
use super::posting::start;
use super::replicas::Replicas;
use super::roles::{AllMade, Changing};
use super::saving::Saves;
use crate::engine::{BatchContext, ChunkSpec, Commands, EngineConfig, FenceId, LaneEngine};
use crate::space::Space;
use crate::storage::{Cells, Storage, StorageError};
use crate::tables::Tables;
use daemon::flight::Kind;
use fabric::{
    Access, Blocks, ChannelId, Completion, CompletionKind, CompletionQueue, DisconnectReason, FabricError,
    OutOfBounds, PostError, RemoteKey, RemoteSpan, Span,
};
use proto_common::batch::{BatchError, BatchHeader, BatchReader, BlockData, Notice, SlotGrant, prefix_bytes};
use proto_common::ids::{Epoch, Incarnation, Key, Rank};
use proto_common::limits::{
    HEADER_BYTES, RESULT_SLOT_BYTES, RESULTS_PER_LANE, TABLE_BYTES_MAX, slot_bytes_for,
};
use proto_common::message::{InboxGrant, NotTaken};
use std::collections::HashMap;
use thiserror::Error;

/// Posts that may wait for a worker when a notice joins them: all others are bounded by what the engine keeps.
const BACKLOG_MAX: usize = 1024;
/// A lane that stores this much (weights twice, their sum and what rules keep) lands more weights than caches hold until
/// they are read.
const STREAMED_BYTES_MIN: u64 = 96 << 20;
/// Milliseconds between ticks of the engine.
const TICK_MS: u64 = 50;
/// Bytes of calls that are kept unless it is said otherwise.
const CALL_BYTES_DEFAULT: u64 = 64 << 20;

/// A lane cannot go on. A bug of ours or an exhausted machine: peers cannot cause it, but by using what the settings
/// promise them and the machine does not have.
#[derive(Debug, Error)]
pub enum LaneError {
    /// Storage failed.
    #[error("{0}")]
    Storage(#[from] StorageError),
    /// Memory or channel could not be set up.
    #[error("{0}")]
    Fabric(#[from] FabricError),
    /// What workers are sent, or send, cannot be registered.
    #[error("{0}")]
    Unregistered(String),
    /// The channel refused.
    #[error(transparent)]
    Post(#[from] PostError),
    /// A place that is not where it should be.
    #[error(transparent)]
    Bounds(#[from] OutOfBounds),
    /// A new rule for rounds that are over: parts of the tensor would have it earlier than others.
    #[error(
        "tensor {key} has completed round {round}, so its optimizer cannot change from that round on; pass a later round"
    )]
    RuleTooLate {
        /// Which tensor.
        key: Key,
        /// The first round that was to have it.
        round: u64,
    },
    /// The checkpoint that the job goes on from cannot be used.
    #[error(transparent)]
    Checkpoint(#[from] checkpoint::CheckpointError),
    /// Rows that this server has copies of cannot be what their server has.
    #[error("cannot update the replica of the rows of sparse tables: {0}")]
    Copy(String),
    /// Its thread panicked.
    #[error("the data thread of lane {lane} panicked; please report it with the log lines before")]
    Panicked {
        /// Which lane.
        lane: u16,
    },
    /// A worker cannot be attached.
    #[error("cannot attach worker {rank}: {reason}")]
    Attach {
        /// Which worker.
        rank: Rank,
        /// Why.
        reason: String,
    },
}

impl From<LaneError> for NotTaken {
    fn from(error: LaneError) -> Self {
        let is_checkpoint = matches!(error, LaneError::Checkpoint(_));
        Self { reason: error.to_string(), is_checkpoint }
    }
}

/// What a lane is told once.
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

/// Copies a batch's prefix out of its slot, and checks it.
pub(super) fn read_prefix(
    cells: &Cells,
    slot: u32,
    prefix: &mut [u8],
    reader: &mut BatchReader,
) -> Result<Result<BatchHeader, BatchError>, OutOfBounds> {
    let start = cells.start(slot);
    cells.memory().read(start, &mut prefix[..HEADER_BYTES])?;
    let bytes = match prefix_bytes(&prefix[..HEADER_BYTES]) {
        Ok(bytes) => bytes,
        Err(error) => return Ok(Err(error)),
    };
    // Bounded by the prefix's largest size, which every slot holds.
    cells.memory().read(start, &mut prefix[..bytes])?;
    Ok(reader.read(&prefix[..bytes], cells.cell_bytes()))
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
    pub(super) ranks: HashMap<ChannelId, Rank>,
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
    completions: Vec<Completion>,
    next_tick_ms: u64,
    expelled: u64,
    pub(super) saves: Saves,
    pub(super) changed: Vec<Changed>,
    pub(super) changing: Option<Changing>,
    pub(super) flight: LaneFlight,
    /// Why the lane cannot go on, until that is returned.
    pub(super) failure: Option<LaneError>,
}

impl<Q: CompletionQueue> DataLane<Q> {
    /// A lane over `queue`, its inbox allocated and touched.
    pub fn new(queue: Q, config: LaneConfig) -> Result<Self, LaneError> {
        let slot_bytes = slot_bytes_for(config.chunk_bytes);
        let inbox = Cells::allocate(config.engine.inbox_slots, slot_bytes, "gradwire-inbox")?;
        let spill = Cells::allocate(config.engine.spill_blocks, config.chunk_bytes, "gradwire-spill")?;
        let mut engine = LaneEngine::new(config.engine);
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
            ranks: HashMap::new(),
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

    /// Has the worker a channel here?
    #[must_use]
    pub fn connected(&self, rank: Rank) -> bool {
        self.links.get(rank.0 as usize).is_some_and(Option::is_some)
    }

    /// Current weights of a chunk by index, for tests and checkpoints.
    pub fn weights(&self, chunk: u32, buffer: u8) -> Result<Span, LaneError> {
        Ok(self.storage.weights(chunk, buffer)?)
    }

    /// New chunks to hold.
    pub fn assign(&mut self, epoch: Epoch, specs: &[ChunkSpec]) -> Result<(), LaneError> {
        // Decisions are applied in order. One that is prepared still knows nothing of these: it would give them up; and
        // what is said of this epoch would be believed of copies that it has not made yet.
        while self.change_roles() {}
        self.epoch = self.epoch.max(epoch);
        let added = self.engine.assign(epoch, specs);
        let placed = added.iter().filter_map(|spec| Some((self.engine.index_of(spec.id)?, *spec)));
        let placed: Vec<_> = placed.collect();
        let made = self.make(&placed, &mut AllMade::new());
        self.note_stored();
        let begun = self.begin_from_checkpoint(specs.iter());
        self.execute();
        made.and(begun)
    }

    pub(super) fn note_stored(&mut self) {
        self.queue.stream_writes(self.storage.bytes() >= STREAMED_BYTES_MIN);
    }

    /// Makes a channel of the queue the worker's. Returns what the worker needs of our inbox.
    pub fn adopt(
        &mut self,
        rank: Rank,
        incarnation: Incarnation,
        channel: ChannelId,
        inbox: WorkerInbox,
    ) -> Result<InboxGrant, LaneError> {
        let refuse = |queue: &mut Q, reason: String| {
            // Nothing was granted over it that anybody is granted again.
            queue.close(channel);
            Err(LaneError::Attach { rank, reason })
        };
        if inbox.slot_bytes < RESULT_SLOT_BYTES {
            return refuse(
                &mut self.queue,
                format!(
                    "its inbox slots have {} bytes, but {RESULT_SLOT_BYTES} are needed",
                    inbox.slot_bytes
                ),
            );
        }
        if !self.engine.admits(rank, incarnation) {
            return refuse(
                &mut self.queue,
                "its process has ended, as the scheduler reported meanwhile".into(),
            );
        }
        self.detach(rank);
        // Before there is another channel of that worker: none of it is for that one.
        self.execute();
        let place = rank.0 as usize;
        if place >= self.links.len() {
            return refuse(&mut self.queue, "its rank is out of range".into());
        }
        let in_place = self.queue.reads_in_place(channel);
        let inbox_key = self.queue.expose(channel, self.inbox.memory());
        let region = match inbox_key
            .and_then(|key| self.queue.open(channel, &self.inbox.memory().all()).map(|()| key))
        {
            Ok(key) => key.0,
            Err(error) => {
                let reason = self.queue.explain(error);
                return refuse(&mut self.queue, reason);
            }
        };
        let grants = self.engine.peer_up(rank, incarnation, &inbox.grants, in_place, &mut self.commands);
        self.links[place] = Some(Link::new(channel, inbox, in_place));
        if let Err(error) = self.lend_slots(rank, &grants) {
            let reason = self.queue.explain(error);
            self.detach(rank);
            return Err(LaneError::Attach { rank, reason });
        }
        self.ranks.insert(channel, rank);
        self.flight.peer(Kind::ChannelUp, rank);
        let grants = grants.into_iter().map(SlotGrant::to_wire).collect();
        Ok(InboxGrant { region, offset: 0, slot_bytes: self.inbox.cell_bytes(), grants })
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
    fn take_slot(&mut self, channel: ChannelId, slot: SlotGrant) -> Result<(), LaneError> {
        self.queue.take_back(channel, &self.inbox.span(slot.slot)?, 0);
        Ok(())
    }

    /// What a post held is free, because its channel is gone.
    pub(super) fn dropped(&mut self, rank: Rank, post: Post) {
        match post {
            Post::Land { chunk, buffer, .. } => self.completed(rank, Posted::Land { chunk, buffer }),
            Post::Results { block, .. } => self.completed(rank, Posted::Block(block)),
            Post::CallLand { call, .. } => self.completed(rank, Posted::Reply(call)),
            Post::CallRead { call, .. } => self.calls.unread(call),
            Post::Notice(_) | Post::Fetch { .. } => {}
        }
    }

    pub(super) fn completed(&mut self, rank: Rank, posted: Posted) {
        match posted {
            Posted::Land { chunk, buffer } => self.engine.landed(rank, chunk, buffer, &mut self.commands),
            Posted::Block(block) => self.blocks.give(block),
            Posted::Reply(call) => self.calls.landed(call),
        }
    }

    /// What handlers are to hear, in order.
    pub(super) fn next_call_event(&mut self) -> Option<CallEvent> {
        self.calls.next_event()
    }

    /// One turn: everything that has happened is decided and executed. True when something had happened.
    pub fn step(&mut self, now_ms: u64) -> Result<bool, LaneError> {
        let busy = self.take(now_ms)?;
        self.send()?;
        Ok(busy)
    }

    /// The part of a turn that takes what has happened.
    pub(super) fn take(&mut self, now_ms: u64) -> Result<bool, LaneError> {
        self.check()?;
        let mut completions = std::mem::take(&mut self.completions);
        self.queue.poll(&mut completions);
        self.settle_fences();
        let busy = !completions.is_empty() || self.queue.moved();
        for completion in completions.drain(..) {
            self.handle(completion, now_ms)?;
            self.execute();
            self.check()?;
        }
        self.completions = completions;
        if now_ms >= self.next_tick_ms {
            self.next_tick_ms = now_ms + TICK_MS;
            self.engine.tick(now_ms, &mut self.commands);
            self.execute();
        }
        if self.engine.is_stuck() {
            self.engine.relieve(now_ms, &mut self.commands);
            self.execute();
        }
        let changed = self.change_roles();
        let copied = self.save()?;
        self.check()?;
        Ok(busy || changed || copied)
    }

    /// The part of a turn that says what follows.
    pub(super) fn send(&mut self) -> Result<(), LaneError> {
        self.retry_backlogs()?;
        self.retry_servers()?;
        self.engine.flush(self.blocks.free(), &mut self.commands);
        // First: a block that is free again may be lent to the same worker by the results.
        self.take_key_buffers()?;
        self.execute();
        self.check()?;
        self.end_reads();
        self.queue.flush();
        Ok(())
    }

    fn handle(&mut self, completion: Completion, now_ms: u64) -> Result<(), LaneError> {
        if self.handle_server(&completion)? {
            return Ok(());
        }
        let Some(rank) = self.ranks.get(&completion.channel).copied() else { return Ok(()) };
        match completion.kind {
            CompletionKind::Received { immediate } => match Notice::from_wire(immediate) {
                Some(Notice::Batch(slot)) => self.batch((rank, completion.channel), slot, now_ms)?,
                Some(notice) => {
                    if let Notice::GivenBack(slot) = notice
                        && self.engine.is_granted(rank, slot)
                    {
                        self.take_slot(completion.channel, slot)?;
                    }
                    self.engine.notice(rank, notice, &mut self.commands);
                }
                None => self.expel(rank, "its notice has an unknown form"),
            },
            CompletionKind::WriteDone { id } => {
                let posted = Posted::from_id(id);
                if let Some(link) = self.links[rank.0 as usize].as_mut() {
                    link.completed(posted);
                }
                self.completed(rank, posted);
                if matches!(posted, Posted::Reply(_)) {
                    self.call_written(rank)?;
                }
            }
            CompletionKind::ReadDone { .. } => {
                let link = self.links[rank.0 as usize].as_mut();
                match link.and_then(|link| link.fetches.pop_front()) {
                    Some(Fetch::Chunk { chunk, block }) => {
                        self.engine.fetched(rank, chunk, block, &mut self.commands);
                    }
                    Some(Fetch::Call { call, bytes }) => self.call_read(rank, call, bytes)?,
                    None => {}
                }
            }
            CompletionKind::Disconnected(DisconnectReason::PeerMisbehaved(what)) => self.expel(rank, &what),
            CompletionKind::Disconnected(reason) => {
                tracing::info!(worker = rank.0, ?reason, "data channel of a worker ended");
                self.flight.peer(Kind::ChannelDown, rank);
                self.detach(rank);
            }
        }
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

    /// Copies the prefix out of the slot, checks it, and lets the engine decide.
    fn batch(
        &mut self,
        (rank, channel): (Rank, ChannelId),
        slot: SlotGrant,
        now_ms: u64,
    ) -> Result<(), LaneError> {
        if slot.slot >= self.config.engine.inbox_slots {
            self.expel(rank, "its notice names a slot that does not exist");
            return Ok(());
        }
        if !self.engine.notified(rank, slot, &mut self.commands) {
            return Ok(());
        }
        self.take_slot(channel, slot)?;
        match read_prefix(&self.inbox, slot.slot, &mut self.prefix, &mut self.reader)? {
            Ok(header) => {
                match self.reach(rank) {
                    Ok(()) => {}
                    // Whatever was in that memory: nothing of the batch is taken. The end of the channel is next.
                    Err(PostError::Closed) => return Ok(()),
                    Err(_) => {
                        self.expel(rank, "its batch refers to memory that it did not hand over");
                        return Ok(());
                    }
                }
                let place = (slot.slot, header.payload_offset);
                let index_of = |id| self.engine.index_of(id);
                self.storage.check_coded(place, index_of, &mut self.reader.blocks)?;
                self.record_batch(rank);
                let (blocks, grants) = (&self.reader.blocks, &self.reader.grants);
                let context = BatchContext { peer: rank, slot, header: &header, blocks, grants };
                // Before any of it is reduced. Off unless the worker asks for it.
                let sound = match header.payload_checksum {
                    Some(stated) => {
                        let (offset, bytes) = (header.payload_offset, header.payload_bytes);
                        self.storage.checksum(slot.slot, offset, bytes)? == stated
                    }
                    None => true,
                };
                if sound {
                    self.engine.batch(&context, now_ms, &mut self.commands);
                } else {
                    tracing::debug!(worker = rank.0, "the payload of a batch was corrupted in transit");
                    self.engine.corrupt_batch(&context, &mut self.commands);
                }
            }
            Err(error) => self.expel(rank, &error.to_string()),
        }
        Ok(())
    }

    /// Maps what the batch refers to, where that is read where it lies. On other channels it is read otherwise.
    fn reach(&mut self, rank: Rank) -> Result<(), PostError> {
        let Self { queue, links, reader, .. } = self;
        let link = links.get_mut(rank.0 as usize).and_then(Option::as_mut).ok_or(PostError::Closed)?;
        if !link.in_place {
            return Ok(());
        }
        reader.blocks.iter().try_for_each(|block| match block.data {
            BlockData::ByReference { region, offset } => {
                if !link.reads {
                    // Where its owner has closed, it may write that memory again.
                    queue.begin_reads(link.channel)?;
                    link.reads = true;
                }
                let remote = RemoteSpan { key: RemoteKey(region), offset };
                link.mapped.view(queue, link.channel, remote, block.bytes).map(drop)
            }
            BlockData::Inline { .. } | BlockData::Announced { .. } | BlockData::Placed => Ok(()),
        })
    }

    /// Posts, or queues behind what is queued already.
    pub(super) fn post(&mut self, peer: Rank, post: Post) -> Result<(), LaneError> {
        let Some(Some(link)) = self.links.get_mut(peer.0 as usize) else {
            self.dropped(peer, post);
            return Ok(());
        };
        if matches!(post, Post::Notice(_)) && link.backlog.len() >= BACKLOG_MAX {
            self.expel(peer, "it sends operations, but accepts no answers");
            return Ok(());
        }
        link.backlog.push_back(post);
        if link.backlog.len() == 1 { self.drain(peer) } else { Ok(()) }
    }

    fn retry_backlogs(&mut self) -> Result<(), LaneError> {
        for rank in 0..self.links.len() {
            if self.links[rank].as_ref().is_some_and(|link| !link.backlog.is_empty()) {
                self.drain(Rank(rank as u32))?;
            }
        }
        Ok(())
    }

    fn drain(&mut self, peer: Rank) -> Result<(), LaneError> {
        let Self { queue, links, storage, blocks, calls, .. } = self;
        let Some(Some(link)) = links.get_mut(peer.0 as usize) else { return Ok(()) };
        let mut failure = None;
        while let Some(post) = link.backlog.front().copied() {
            match start(queue, link, (storage, blocks, calls), post)? {
                Ok(()) => drop(link.backlog.pop_front()),
                // A closed channel reports itself with the next completions: no offence of the worker's.
                Err(PostError::Full | PostError::Closed) => break,
                Err(error) => {
                    failure = Some(error);
                    break;
                }
            }
        }
        match failure {
            // Ours, and not the worker's: without this server nobody goes on, so all are to hear why.
            Some(error @ PostError::Unregistered) => {
                return Err(LaneError::Unregistered(self.queue.explain(error)));
            }
            Some(error) => self.expel(peer, &format!("memory that it granted cannot be accessed: {error}")),
            None => {}
        }
        Ok(())
    }
}
