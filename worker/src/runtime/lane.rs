//! The work of one lane: polls the completion queue, gives the engine what has arrived, and executes its commands. Whoever holds the
//! lane's seat calls it: the data thread, or a caller (see `seat`). It has no clock and no thread of its own, so that the simulation
//! runs the same code.

mod answers;
mod fences;
mod sending;

use super::flight::LaneFlight;
use super::link::{Link, ServerInbox};
use super::live::{Fences, Lent, Live, Rooms};
use super::op::{OpState, Submission};
use crate::engine::{Command, Commands, EngineConfig, LaneEngine, PartBlock};
use crate::error::OpError;
use daemon::flight::{Flight, Kind};
use fabric::{
    Access, Blocks, ChannelId, Completion, CompletionKind, CompletionQueue, FabricError, Fence, Fenced,
    OutOfBounds, PeerWritable, Pool, PostError, Region, Span, SpanReader, Waker,
};
use proto_common::batch::{BatchReader, Notice, SlotGrant};
use proto_common::ids::{ChunkId, Epoch, Incarnation, Rank, Version};
use proto_common::limits::{PREFIXES_PER_LANE, RESULT_SLOT_BYTES, TABLE_BYTES_MAX};
use proto_common::message::InboxGrant;
use rustc_hash::FxHashMap;
use std::time::Instant;
use thiserror::Error;

/// Milliseconds between ticks of the engine.
const TICK_MS: u64 = 50;

/// A lane cannot continue: a bug of ours or an exhausted machine.
#[derive(Debug, Error)]
pub enum LaneError {
    /// Memory or channel could not be set up.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// A place that is not where it should be.
    #[error(transparent)]
    Bounds(#[from] OutOfBounds),
    /// The server cannot be let reach our memory.
    #[error("{0}")]
    Lend(String),
    /// The server's rank is out of range.
    #[error("server {0} is not in the roster")]
    NoServer(Rank),
}

/// The configuration of a lane.
#[derive(Clone, Copy, Debug)]
pub struct LaneConfig {
    /// The engine's part.
    pub engine: EngineConfig,
    /// Slots of our inbox per server.
    pub result_slots: u32,
}

/// See the module.
#[derive(Debug)]
pub struct LaneDriver<Q> {
    queue: Q,
    config: LaneConfig,
    engine: LaneEngine,
    epoch: Epoch,
    /// The region of the client's buffers: servers write weights into it, and read gradients out of it.
    landing: Region,
    /// Room for replies is allocated here: the pool that `landing` is the region of.
    pool: Option<Pool>,
    rooms: Rooms,
    links: Vec<Option<Link>>,
    servers: FxHashMap<ChannelId, Rank>,
    /// Channels that broke after their probe was answered: server, number of the connection, reason.
    broken: Vec<(Rank, u64, String)>,
    /// Channels that broke before that. Only the thread that connects them is notified.
    unready: Vec<(Rank, String)>,
    live: FxHashMap<u64, Live>,
    fences: Fences,
    blocks: Blocks,
    prefix: Box<[u8]>,
    payload: Box<[u8]>,
    span_reader: SpanReader,
    gather: Vec<Span>,
    reader: BatchReader,
    commands: Commands,
    completions: Vec<Completion>,
    next_tick_ms: u64,
    failed: Option<OpError>,
    /// Why memory that is to be sent cannot be registered; not reported yet.
    unregistered: Option<String>,
    flight: LaneFlight,
}

impl<Q: CompletionQueue> LaneDriver<Q> {
    /// A lane over `queue`; weights land in `landing`, the region of the client's buffers.
    pub fn new(queue: Q, config: LaneConfig, landing: Region) -> Result<Self, LaneError> {
        let gather_max = queue.caps().gather_max;
        let engine = EngineConfig { gather_max: config.engine.gather_max.min(gather_max), ..config.engine };
        Ok(Self {
            queue,
            engine: LaneEngine::new(engine),
            epoch: Epoch::default(),
            landing,
            pool: None,
            rooms: Rooms::default(),
            links: (0..config.engine.servers).map(|_| None).collect(),
            servers: FxHashMap::default(),
            broken: Vec::new(),
            unready: Vec::new(),
            live: FxHashMap::default(),
            fences: Fences::default(),
            blocks: Blocks::new(PREFIXES_PER_LANE, TABLE_BYTES_MAX as u64, "gradwire-prefixes")?,
            prefix: vec![0; TABLE_BYTES_MAX].into_boxed_slice(),
            payload: vec![0; RESULT_SLOT_BYTES as usize].into_boxed_slice(),
            span_reader: SpanReader::new(RESULT_SLOT_BYTES as usize),
            gather: Vec::new(),
            reader: BatchReader::default(),
            commands: Commands::default(),
            completions: Vec::with_capacity(256),
            next_tick_ms: 0,
            failed: None,
            unregistered: None,
            flight: LaneFlight::default(),
            config: LaneConfig { engine, ..config },
        })
    }

    /// Room for replies of calls is to be allocated here: the pool of the client's buffers. `waker` wakes who drives the lane.
    pub fn set_pool(&mut self, pool: Pool, waker: Option<Waker>) {
        (self.pool, self.rooms.waker) = (Some(pool), waker);
    }

    /// What this lane does is recorded from now on.
    pub(crate) fn set_flight(&mut self, flight: &Flight) {
        self.flight = LaneFlight::new(flight, self.config.engine.lane.0, self.links.len());
    }

    /// Whoever drives has looked at the clock.
    #[inline]
    pub(super) fn saw(&mut self, now: Instant) {
        self.flight.saw(now);
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

    /// Is there nothing to do before something comes?
    pub(super) fn is_idle(&self) -> bool {
        self.live.is_empty() && self.fences.pending.is_empty() && self.engine.is_idle()
    }

    /// Is there a channel to this server?
    #[must_use]
    pub fn connected(&self, server: Rank) -> bool {
        self.links.get(server.0 as usize).is_some_and(Option::is_some)
    }

    /// Has the first write to this server been answered?
    #[must_use]
    pub fn probed(&self, server: Rank) -> bool {
        self.links.get(server.0 as usize).and_then(Option::as_ref).is_some_and(|link| link.probed)
    }

    /// Why the first write to this server will never be answered, once that is so.
    #[must_use]
    pub fn unready(&self, server: Rank) -> Option<&str> {
        self.unready.iter().find(|(rank, _)| *rank == server).map(|(_, reason)| reason.as_str())
    }

    /// The membership's epoch, for batch headers.
    pub fn set_epoch(&mut self, epoch: Epoch) {
        // A new scheduler sends the map as it is now. If a chunk has moved away from a server and back meanwhile, this worker does
        // not learn of it, but the server has ended the chunk's grants.
        if epoch.term > self.epoch.term {
            self.engine.forget_grants();
        }
        self.epoch = self.epoch.max(epoch);
    }

    /// Takes over a connected channel. Returns what the server needs of our inbox.
    pub fn attach(&mut self, server: Rank, number: u64, channel: ChannelId) -> Result<InboxGrant, LaneError> {
        self.detach(server);
        self.unready.retain(|(rank, _)| *rank != server);
        // Each channel has an inbox of its own: a server that was stopped in the middle of a copy over an earlier channel continues
        // to write into the inbox of that channel.
        let results = PeerWritable::allocate(self.inbox_bytes(), "gradwire-results-inbox")?;
        let (region, landing_key) = match self.lend_buffers(channel, &results) {
            Ok(keys) => keys,
            Err(error) => {
                let error = LaneError::Lend(self.queue.explain(error));
                return self.refuse(channel, error);
            }
        };
        let Some(place) = self.links.get_mut(server.0 as usize) else {
            return self.refuse(channel, LaneError::NoServer(server));
        };
        *place = Some(Link::new(channel, number, landing_key, results));
        self.servers.insert(channel, server);
        let grants = self.inbox_grants().iter().map(|grant| grant.to_wire()).collect();
        Ok(InboxGrant { region, offset: 0, slot_bytes: RESULT_SLOT_BYTES, grants })
    }

    /// Closes a channel over which nothing was granted yet.
    fn refuse<T>(&mut self, channel: ChannelId, error: LaneError) -> Result<T, LaneError> {
        self.queue.close(channel);
        Err(error)
    }

    fn inbox_bytes(&self) -> usize {
        self.config.result_slots as usize * RESULT_SLOT_BYTES as usize
    }

    /// The keys of the channel's inbox and of the client's buffers.
    fn lend_buffers(&mut self, channel: ChannelId, results: &PeerWritable) -> Result<(u64, u64), PostError> {
        let inbox = self.queue.expose(channel, results)?;
        self.queue.lend(channel, &results.all(), Access::ReadWrite, 0)?;
        Ok((inbox.0, self.queue.expose(channel, &self.landing)?.0))
    }

    fn inbox_grants(&self) -> Vec<SlotGrant> {
        (0..self.config.result_slots).map(|slot| SlotGrant { slot, generation: 1 }).collect()
    }

    /// The server has told its inbox: operations may flow. Sends the first write, a probe.
    pub fn activate(
        &mut self,
        server: Rank,
        incarnation: Incarnation,
        inbox: ServerInbox,
    ) -> Result<(), LaneError> {
        let grants = self.inbox_grants();
        let place = self.links.get_mut(server.0 as usize).and_then(Option::as_mut);
        let link = place.ok_or(LaneError::NoServer(server))?;
        self.engine.server_up(server, incarnation, inbox.slot_bytes, &inbox.grants, &grants);
        link.inbox = Some(inbox);
        self.broken.retain(|(rank, ..)| *rank != server);
        self.notice(server, Notice::Probe);
        self.queue.flush();
        Ok(())
    }

    /// From now on requests to this server carry a checksum of their payload, as long as its channel is open. All
    /// payloads travel in slots then: no checksum covers what is read or written one-sided.
    pub fn sum_payloads(&mut self, server: Rank) {
        if let Some(Some(link)) = self.links.get_mut(server.0 as usize) {
            link.sums = true;
            self.engine.use_slots_only(server);
        }
    }

    /// Closes the channel to a server. Operations whose buffers that server may still reach wait for the channel's fence.
    fn close(&mut self, server: Rank) -> Option<Link> {
        let link = self.links.get_mut(server.0 as usize)?.take()?;
        let fence = self.queue.close(link.channel);
        self.servers.remove(&link.channel);
        if fence != Fence::Done {
            self.fence_off(server, link.channel);
        }
        Some(link)
    }

    /// Closes the channel to a server; what was sent and not answered waits for the next channel.
    pub fn detach(&mut self, server: Rank) {
        let Some(link) = self.close(server) else { return };
        let waiting = link.backlog.iter().filter_map(|waiting| waiting.block);
        for block in link.posted.iter().copied().chain(waiting) {
            self.blocks.give(block);
        }
        self.engine.server_down(server);
    }

    /// Everything in progress, and everything to come, fails with this error.
    pub fn fail(&mut self, error: OpError) {
        self.stop(error);
        self.execute();
    }

    /// As [`LaneDriver::fail`]; the failures are commands that are not executed yet. Channels are closed first: an operation that
    /// has failed gives its buffers back, and servers write into them as long as there is a channel.
    fn stop(&mut self, error: OpError) {
        self.failed.get_or_insert_with(|| error.clone());
        for server in 0..self.links.len() {
            self.detach(Rank(server as u32));
        }
        self.engine.fail_all(&error, &mut self.commands);
    }

    /// If a part of the lane's work fails, all operations do, and hear the reason. Otherwise the one that it was for would wait
    /// to its deadline, and nobody would learn why.
    fn check(&mut self, result: Result<(), LaneError>) {
        if let Err(error) = result {
            tracing::error!(%error, "a lane cannot continue");
            self.stop(OpError::Closed(error.to_string()));
        }
    }

    /// An operation's share of this lane.
    pub fn submit(&mut self, submission: Submission, now_ms: u64) {
        if let Some(error) = &self.failed {
            return submission.state.lane_done(Err(error.clone()), Fenced::answered());
        }
        let about = self.flight.begin(&submission);
        let Submission { state, submit, parts, source, target } = submission;
        let live = Live {
            state,
            source,
            target,
            about,
            lent: Lent::of(submit.kind, submit.placement),
            granted: false,
            fences: Vec::new(),
            failure: None,
        };
        self.live.insert(submit.op, live);
        self.engine.submit(&submit, &parts, now_ms, &mut self.commands);
        self.execute();
    }

    /// One turn. True when something had happened.
    pub fn step(&mut self, now_ms: u64) -> bool {
        let mut completions = std::mem::take(&mut self.completions);
        self.queue.poll(&mut completions);
        self.settle_fences(now_ms);
        let busy = !completions.is_empty() || self.queue.moved();
        if !completions.is_empty() {
            self.flight.look();
        }
        for completion in completions.drain(..) {
            let handled = self.handle(completion, now_ms);
            self.check(handled);
            self.execute();
        }
        self.completions = completions;
        if now_ms >= self.next_tick_ms {
            self.next_tick_ms = now_ms + TICK_MS;
            self.engine.tick(now_ms, &mut self.commands);
            self.execute();
            self.report_unregistered();
        }
        if !self.rooms.waiting.is_empty() {
            self.make_rooms();
            self.execute();
        }
        self.post(now_ms);
        busy
    }

    /// The part of a turn that only sends: no completion is taken, so no operation ends by it.
    pub fn post(&mut self, now_ms: u64) {
        self.retry_backlogs();
        self.engine.flush(self.blocks.free(), now_ms, &mut self.commands);
        self.execute();
        self.queue.flush();
    }

    fn report_unregistered(&mut self) {
        if let Some(reason) = self.unregistered.take().filter(|_| self.failed.is_none()) {
            self.fail(OpError::Unregistered(reason));
        }
    }

    /// A channel that has ended since the last call, and has not been replaced yet: its server, the number of the connection, and the
    /// reason. Unanswered parts wait for the next channel, or for a new shard map.
    pub fn take_broken(&mut self) -> Option<(Rank, u64, String)> {
        self.broken.pop()
    }

    /// Is there something for [`LaneDriver::take_broken`]?
    #[must_use]
    pub fn has_broken(&self) -> bool {
        !self.broken.is_empty()
    }

    /// A server's process has failed or left: closes its channel. Calls to it wait for its next process, or fail.
    pub fn end_server(&mut self, server: Rank) {
        self.detach(server);
        self.broken.retain(|(rank, ..)| *rank != server);
        self.unready.retain(|(rank, _)| *rank != server);
        self.stop_reader(server);
        self.engine.server_gone(server, &mut self.commands);
        self.execute();
    }

    /// Chunks have other servers from now on.
    pub fn remap(&mut self, epoch: Epoch, moves: &[(ChunkId, Rank)]) {
        self.set_epoch(epoch);
        self.engine.remap(moves);
    }

    fn handle(&mut self, completion: Completion, now_ms: u64) -> Result<(), LaneError> {
        let Some(server) = self.servers.get(&completion.channel).copied() else { return Ok(()) };
        match completion.kind {
            CompletionKind::Received { immediate } => match Notice::from_wire(immediate) {
                Some(Notice::Batch(slot)) => self.results(server, slot, now_ms)?,
                Some(Notice::ProbeReply) => {
                    if let Some(link) = self.links[server.0 as usize].as_mut() {
                        link.probed = true;
                    }
                }
                Some(notice) => self.engine.notice(server, notice, &mut self.commands),
                None => self.lose(server, "its notice has an unknown form"),
            },
            CompletionKind::WriteDone { id } => {
                if let Some(link) = self.links[server.0 as usize].as_mut() {
                    link.posted.pop_front();
                }
                self.blocks.give(id as u32);
            }
            CompletionKind::ReadDone { .. } => {}
            CompletionKind::Disconnected(reason) => self.lose(server, &reason.to_string()),
        }
        Ok(())
    }

    pub(super) fn lose(&mut self, server: Rank, reason: &str) {
        let was_ready = self.probed(server);
        let link = self.links.get(server.0 as usize).and_then(Option::as_ref);
        let (number, refused) = link.map_or((0, None), |link| (link.number, link.refused));
        let refusal = refused.map(|error| (error, self.queue.explain(error)));
        if let Some((PostError::Unregistered, why)) = &refusal
            && was_ready
        {
            // This process cannot register the memory. It could not over a new channel, either.
            self.unregistered.get_or_insert_with(|| why.clone());
        }
        // What was refused is the reason, also if the channel has ended since.
        let refusal = refusal.map(|(_, why)| format!("writing to it failed: {why}"));
        let reason = refusal.as_deref().unwrap_or(reason);
        if self.failed.is_none() {
            tracing::warn!(server = server.0, reason, "data channel to a server ended");
        }
        self.detach(server);
        self.flight.peer(Kind::ChannelDown, server, self.live.len());
        if was_ready {
            self.broken.push((server, number, reason.to_owned()));
        } else {
            self.unready.retain(|(rank, _)| *rank != server);
            self.unready.push((server, reason.to_owned()));
        }
    }

    /// Executes all commands, also those behind one that fails: each may be the end of an operation. Those that send find their
    /// channel closed.
    fn execute(&mut self) {
        while !self.commands.list.is_empty() {
            let mut commands = std::mem::take(&mut self.commands);
            for command in commands.list.drain(..) {
                let executed = self.execute_one(command, (&commands.parts, &commands.grants));
                self.check(executed);
            }
            commands.clear();
            std::mem::swap(&mut self.commands.parts, &mut commands.parts);
            std::mem::swap(&mut self.commands.grants, &mut commands.grants);
            if self.commands.list.is_empty() {
                std::mem::swap(&mut self.commands.list, &mut commands.list);
            }
        }
    }

    fn execute_one(
        &mut self,
        command: Command,
        (parts_of, grants_of): (&[PartBlock], &[SlotGrant]),
    ) -> Result<(), LaneError> {
        match command {
            Command::Send { server, slot, parts, grants, wanted, sequence } => {
                let (parts, grants) = (&parts_of[parts], &grants_of[grants]);
                self.flight.sent(server, parts);
                self.send(server, slot, parts, grants, wanted, sequence)?;
            }
            Command::Place { server, part, remote } => self.place(server, &parts_of[part], remote)?,
            Command::Notice { server, notice } => {
                if matches!(notice, Notice::Want(_)) {
                    self.flight.wants(server);
                }
                self.notice(server, notice);
            }
            Command::Waits { op, waited_ms, cause, on } => {
                if let Some(live) = self.live.get(&op) {
                    self.flight.waits(&live.about, waited_ms, cause, &on);
                }
            }
            Command::Failed { op, error } => self.failed(op, error),
            Command::Shown { op, server, offset, at } => self.shown(op, server, offset, at),
            Command::Landed { op, bytes, newest } => {
                self.tell(op, |state| state.landed(bytes, newest));
            }
            Command::Version { op, offset, version } => {
                self.tell(op, |state| state.chunk_version(offset, Version(version)));
            }
            Command::Carried { op, offset, from, bytes } => self.carried(op, offset, from, bytes)?,
            Command::Late { op, chunks } => self.tell(op, |state| state.late(chunks)),
            Command::Replied { op, offset, bytes, landed } => self.replied(op, offset, bytes, landed),
            Command::Room { op, bytes } => self.make_room(op, bytes),
            Command::Done { op, version } => self.done(op, version),
            Command::Close { server, reason } => self.lose(server, &reason),
        }
        Ok(())
    }

    pub(super) fn tell(&self, op: u64, tell: impl FnOnce(&OpState)) {
        if let Some(live) = self.live.get(&op) {
            tell(&live.state);
        }
    }
}
