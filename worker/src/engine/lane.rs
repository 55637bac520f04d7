//! The engine of one lane: queues parts per server, and counts answers until an operation is done. `flow` packs batches.

use super::chunk::ChunkQueue;
use super::command::{Command, Commands};
use super::link::{Link, SlotUse};
use super::part::{Op, Part, PartSpec, Place, Slab, State, Submit, Told, late, listed};
use super::stats::{LaneStats, Traffic};
use crate::error::OpError;
use proto_common::batch::{BatchHeader, BatchKind, Block, Notice, OpKind, SlotGrant, Status};
use proto_common::call::CALLS_IN_FLIGHT_MAX;
use proto_common::ids::{ChunkId, Incarnation, JobId, Lane, Rank};
use proto_common::limits::{INBOX_SLOTS_MAX, OPEN_SPAN_MAX};
use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};

/// Operations of one chunk that may be under way at once. Servers keep contributions this many rounds ahead.
const SENT_PER_CHUNK_MAX: u32 = 4;
/// After this long without use, credits go back: an idle worker holds none, nor does one that waits for
/// others, who may need them.
const IDLE_MS: u64 = 200;
/// Wait before a part that a server could not take is sent again; doubled each time until one is taken, so
/// that what the server waits for gets through.
pub(super) const RETRY_MS: u64 = 2;
/// Doublings of it.
pub(super) const RETRY_DOUBLINGS_MAX: u32 = 4;
/// Parts of at most this many bytes wait for each other, and this many of them go out at any rate: what a batch
/// costs is shared then, and more would gain little.
const GATHER_BYTES_MAX: u64 = 16 << 10;
const GATHER_PARTS_MAX: usize = 32;
/// A server answers at the operation's deadline; it is given this long to do so.
pub(super) const GRACE_MS: u64 = 1_000;

/// What the engine is told once.
#[derive(Clone, Copy, Debug)]
pub struct EngineConfig {
    /// The job.
    pub job: JobId,
    /// This worker's life.
    pub incarnation: Incarnation,
    /// The lane.
    pub lane: Lane,
    /// How many servers there are.
    pub servers: u32,
    /// Payload spans one write may gather.
    pub gather_max: usize,
    /// Parts that may be sent and unanswered.
    pub in_flight_max: usize,
}

/// A result batch with where it lay and what its header says.
#[derive(Clone, Copy, Debug)]
pub struct ResultContext<'a> {
    /// The server whose channel it came over.
    pub server: Rank,
    /// The slot of our inbox.
    pub slot: SlotGrant,
    /// Its header.
    pub header: &'a BatchHeader,
    /// Its blocks.
    pub blocks: &'a [Block],
    /// Credits that came with it.
    pub grants: &'a [SlotGrant],
    /// Its payload, copied: ranks that are waited for.
    pub payload: &'a [u8],
}

/// See the module.
#[derive(Debug)]
pub struct LaneEngine {
    pub(super) config: EngineConfig,
    pub(super) links: Vec<Link>,
    pub(super) ops: Slab<Op>,
    pub(super) parts: Slab<Part>,
    pub(super) chunks: HashMap<ChunkId, ChunkQueue>,
    /// Chunks to be tried again, and when.
    pub(super) retries: BTreeSet<(u64, ChunkId)>,
    order: u64,
    pub(super) now_ms: u64,
    pub(super) stats: LaneStats,
    /// By server. Not in `links`: those begin anew with each channel.
    pub(super) traffic: Vec<Traffic>,
}

impl LaneEngine {
    /// An engine without links.
    #[must_use]
    pub fn new(config: EngineConfig) -> Self {
        Self {
            links: (0..config.servers).map(|_| Link::default()).collect(),
            ops: Slab::new(),
            parts: Slab::new(),
            chunks: HashMap::new(),
            retries: BTreeSet::new(),
            order: 0,
            now_ms: 0,
            stats: LaneStats::default(),
            traffic: vec![Traffic::default(); config.servers as usize],
            config,
        }
    }

    /// Counts so far.
    #[must_use]
    pub fn stats(&self) -> LaneStats {
        self.stats
    }

    /// Bytes to and from each server so far, by rank.
    #[must_use]
    pub fn traffic(&self) -> &[Traffic] {
        &self.traffic
    }

    /// Operations in progress.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.ops.len()
    }

    /// Is nothing lost by waiting for more operations before the next batch? Only small ones are queued, and
    /// their server has something to answer first.
    #[must_use]
    pub fn may_gather(&self) -> bool {
        let waits = |link: &Link| {
            let first = link.queue.peek().and_then(|place| self.parts.get(place.part));
            let small = first.is_some_and(|part| part.spec.payload().1 <= GATHER_BYTES_MAX);
            small && link.sent_parts > 0 && link.queue.len() < GATHER_PARTS_MAX
        };
        self.links.iter().all(|link| link.queue.is_empty() || waits(link))
    }

    /// A server's life as its link knows it; zero while the link is down.
    #[must_use]
    pub fn server_incarnation(&self, server: Rank) -> Incarnation {
        self.links.get(server.0 as usize).map_or(Incarnation::default(), |link| link.incarnation)
    }

    /// The channel to a server is up. `credits` are slots of its inbox (of `slot_bytes`) that we may write,
    /// `inbox` the slots of ours that it may write. Unanswered parts go out again, in order.
    pub fn server_up(
        &mut self,
        server: Rank,
        incarnation: Incarnation,
        slot_bytes: u64,
        credits: &[SlotGrant],
        inbox: &[SlotGrant],
    ) {
        let Some(link) = self.links.get_mut(server.0 as usize) else { return };
        link.up = true;
        link.incarnation = incarnation;
        link.slot_bytes = slot_bytes;
        link.credits = credits.to_vec();
        link.inbox = inbox.to_vec();
        link.last_use_ms = self.now_ms;
    }

    /// Everything in progress fails with this error; nothing is sent any more. The channels are closed.
    pub fn fail_all(&mut self, error: &OpError, out: &mut Commands) {
        for link in &mut self.links {
            *link = Link::default();
        }
        self.chunks.clear();
        self.retries.clear();
        let parts: Vec<u32> = self.parts.iter().map(|(index, _)| index).collect();
        for index in parts {
            self.parts.remove(index);
        }
        let ops: Vec<u32> = self.ops.iter().map(|(index, _)| index).collect();
        for index in ops {
            let Some(mut op) = self.ops.remove(index) else { continue };
            op.fail(error.clone(), &mut self.stats, out);
            out.list.push(Command::Done { op: op.submit.op, version: 0 });
        }
    }

    /// A new operation, and its chunks on this lane.
    pub fn submit(&mut self, submit: &Submit, parts: &[PartSpec], now_ms: u64, out: &mut Commands) {
        self.now_ms = now_ms;
        if parts.is_empty() {
            out.list.push(Command::Done { op: submit.op, version: u64::MAX });
            return;
        }
        let op = self.ops.insert(Op {
            submit: *submit,
            since_ms: now_ms,
            remaining: parts.len() as u32,
            version: u64::MAX,
            late: 0,
            landed: None,
            failed: false,
            told: None,
        });
        for spec in parts {
            self.order += 1;
            let chunk = self.chunks.entry(spec.id).or_default();
            let server = chunk.server(spec.server);
            let part = self.parts.insert(Part {
                op,
                spec: PartSpec { server, ..*spec },
                order: self.order,
                state: State::Queued,
                told_ms: None,
                corrupt: 0,
            });
            chunk.reading = submit.reading;
            chunk.waiting.push_back(part);
            chunk.open.push_back(submit.operation.0);
            if chunk.was_shown_elsewhere(server) {
                self.take_leave(spec.id, server);
            }
            self.enqueue(spec.id);
        }
    }

    /// Puts a chunk's next part into its server's queue, if it may go.
    pub(super) fn enqueue(&mut self, id: ChunkId) {
        let Some(chunk) = self.chunks.get_mut(&id) else { return };
        if chunk.queued || chunk.held || chunk.asked {
            return;
        }
        let Some(index) = chunk.waiting.front().copied() else { return };
        // What ends a view may be what all that was sent waits for.
        let part = self.parts.get(index);
        if part.is_some_and(|part| chunk.is_leaving(part.spec.server)) {
            return;
        }
        let op = part.and_then(|part| self.ops.get(part.op));
        let may_go = op.is_some_and(|op| match op.submit.kind {
            OpKind::Release => chunk.has_window(op.submit.operation.0, OPEN_SPAN_MAX),
            OpKind::Call => chunk.has_window(op.submit.operation.0, CALLS_IN_FLIGHT_MAX),
            _ => chunk.sent < SENT_PER_CHUNK_MAX && chunk.has_window(op.submit.operation.0, OPEN_SPAN_MAX),
        });
        if !may_go {
            return;
        }
        chunk.queued = true;
        self.place(index);
    }

    pub(super) fn place(&mut self, index: u32) {
        let Some(part) = self.parts.get(index) else { return };
        let priority = self.ops.get(part.op).map_or(0, |op| op.submit.priority);
        let place = Place { priority, order: Reverse(part.order), part: index };
        if let Some(link) = self.links.get_mut(part.spec.server.0 as usize) {
            link.queue.push(place);
        }
    }

    /// A result batch has come.
    pub fn results(&mut self, context: &ResultContext<'_>, now_ms: u64, out: &mut Commands) {
        self.now_ms = now_ms;
        let (server, header) = (context.server, context.header);
        let Some(link) = self.links.get_mut(server.0 as usize).filter(|link| link.up) else { return };
        let mine = header.kind == BatchKind::Result
            && header.job == self.config.job
            && header.lane == self.config.lane
            && header.sender == server
            && header.sender_incarnation == link.incarnation
            && header.receiver_incarnation == self.config.incarnation;
        if !mine {
            return out.close(server, "its result batch is for someone else");
        }
        match link.used(context.slot) {
            SlotUse::Granted => {}
            SlotUse::Stale => {
                self.stats.duplicates += 1;
                return;
            }
            SlotUse::Unknown => return out.close(server, "it used a slot that was never granted"),
        }
        link.last_use_ms = now_ms;
        link.asked = link.asked.saturating_sub(context.grants.len() as u16);
        if link.credits.len() + context.grants.len() > INBOX_SLOTS_MAX {
            return out.close(server, "it granted more slots than an inbox can have");
        }
        link.credits.extend_from_slice(context.grants);
        for block in context.blocks {
            self.answered(server, block, context.payload, out);
        }
    }

    fn answered(&mut self, server: Rank, block: &Block, payload: &[u8], out: &mut Commands) {
        if self.is_farewell(server, block) {
            return;
        }
        let index = self.parts.by_token(block.token);
        let part = index.and_then(|index| Some((index, *self.parts.get(index)?)));
        let asked = |part: &Part| part.spec.id == block.id && part.spec.server == server;
        let part = part.filter(|(_, part)| asked(part));
        let Some((index, part, State::Sent(data))) = part.map(|(index, part)| (index, part, part.state))
        else {
            self.stats.duplicates += 1;
            return;
        };
        self.settle_buffer(&part, data, block.status);
        if block.status == Status::Granted {
            match self.granted(&part, data, block.landing) {
                Ok(()) => {
                    self.requeue(index, part);
                    self.enqueue(part.spec.id);
                }
                Err(reason) => out.close(server, reason),
            }
            return;
        }
        if matches!(block.status, Status::Retry | Status::CallRoom) {
            self.stats.retries += 1;
            self.put_back(index, part);
            self.note_awaited(index, part.op, block, payload);
            return;
        }
        if block.status == Status::Reroute {
            self.rerouted(index, part);
            return;
        }
        if block.status == Status::Corrupt {
            self.changed_on_the_way(index, part, server, out);
            return;
        }
        if block.op == OpKind::Call || self.ops.get(part.op).is_some_and(|op| op.submit.kind == OpKind::Call)
        {
            self.call_answered(server, (index, part), block, out);
            return;
        }
        let failure = self.failure(server, &part, block, payload);
        if matches!(block.status, Status::Done | Status::Late) && !self.shown(server, &part, block, out) {
            return;
        }
        if block.status == Status::Late
            && let Some(op) = self.ops.get_mut(part.op)
        {
            op.late += 1;
        }
        let landing = block.landing.filter(|_| !block.view);
        if let (Some(landing), Some(op)) = (landing, self.ops.get_mut(part.op)) {
            let (bytes, newest) = op.landed.unwrap_or_default();
            let landed = landing.bytes.min(part.spec.bytes);
            op.landed = Some((bytes.saturating_add(landed), newest.max(block.round)));
        }
        self.end_part(index, part.spec, block.round, failure, out);
    }

    /// Passes on where weights lie that are to be read there. False where the server does not say it, or says it of what
    /// was to land: it is not believed any more.
    fn shown(&mut self, server: Rank, part: &Part, block: &Block, out: &mut Commands) -> bool {
        let Some(op) = self.ops.get(part.op) else { return true };
        match block.landing.filter(|landing| landing.bytes == part.spec.bytes) {
            _ if block.view != op.submit.view => {}
            Some(at) if op.submit.view => {
                self.note_shown(server, part, block.round);
                let Some(op) = self.ops.get(part.op) else { return true };
                out.list.push(Command::Shown { op: op.submit.op, server, offset: part.spec.offset, at });
                return true;
            }
            _ if !op.submit.view => return true,
            _ => {}
        }
        out.close(server, "its answer does not say where the weights lie that it was asked for");
        false
    }

    /// Keeps whom the server waits for before it can take a part: an operation that ends late names them.
    fn note_awaited(&mut self, index: u32, op: u32, block: &Block, payload: &[u8]) {
        let missing = listed(block, payload);
        let says_why = !missing.is_empty() || block.status == Status::CallRoom;
        let told_ms = says_why.then_some(self.now_ms);
        if let Some(part) = self.parts.get_mut(index) {
            part.told_ms = told_ms;
        }
        if let Some(op) = self.ops.get_mut(op).filter(|_| told_ms.is_some()) {
            op.told = Some(Box::new(Told::Waits { chunk: block.id, missing }));
        }
    }

    /// A part has ended, well or not.
    pub(super) fn end_part(
        &mut self,
        index: u32,
        spec: PartSpec,
        version: u64,
        failure: Option<OpError>,
        out: &mut Commands,
    ) {
        let Some(part) = self.parts.remove(index) else { return };
        if let Some(link) = self.links.get_mut(spec.server.0 as usize) {
            link.sent_parts = link.sent_parts.saturating_sub(1);
        }
        let operation = self.ops.get(part.op).map(|op| op.submit.operation.0);
        if let Some(chunk) = self.chunks.get_mut(&spec.id) {
            chunk.sent = chunk.sent.saturating_sub(1);
            chunk.tries = 0;
            chunk.close(operation);
        }
        self.enqueue(spec.id);
        let Some(op) = self.ops.get_mut(part.op) else { return };
        op.remaining -= 1;
        op.version = op.version.min(version);
        if op.submit.by_chunk {
            out.list.push(Command::Version { op: op.submit.op, offset: spec.offset, version });
        }
        if op.submit.kind.lands() && failure.is_none() {
            self.stats.arrived(op.submit.view, spec.bytes);
            if let Some(from) = self.traffic.get_mut(spec.server.0 as usize).filter(|_| !op.submit.view) {
                from.landed_bytes += spec.bytes;
            }
        }
        if let Some(error) = failure {
            op.fail(error, &mut self.stats, out);
        }
        if op.remaining == 0
            && let Some(op) = self.ops.remove(part.op)
        {
            self.stats.ended(op.submit.kind == OpKind::Call, op.failed, op.version);
            if op.submit.kind.contributes() {
                let took_ms = self.now_ms.saturating_sub(op.since_ms);
                self.stats.longest_ms = self.stats.longest_ms.max(took_ms);
            }
            if let Some((bytes, newest)) = op.landed {
                out.list.push(Command::Landed { op: op.submit.op, bytes, newest });
            }
            if op.late > 0 {
                out.list.push(Command::Late { op: op.submit.op, chunks: op.late });
            }
            out.list.push(Command::Done { op: op.submit.op, version: op.version });
        }
    }

    /// A notice without a batch has come.
    pub fn notice(&mut self, server: Rank, notice: Notice, out: &mut Commands) {
        match notice {
            Notice::Probe => out.list.push(Command::Notice { server, notice: Notice::ProbeReply }),
            Notice::ProbeReply | Notice::Batch(_) | Notice::Judged(..) | Notice::Ready => {}
            Notice::Returned(_) | Notice::GivenBack(_) | Notice::Want(_) => {
                out.close(server, "it sent a notice that only workers send");
            }
        }
    }

    /// Time passes: deadlines, repeats, idle credits.
    pub fn tick(&mut self, now_ms: u64, out: &mut Commands) {
        self.now_ms = now_ms;
        let overdue: Vec<u32> = self
            .ops
            .iter()
            .filter(|(_, op)| {
                !op.failed && now_ms >= op.since_ms + u64::from(op.submit.timeout_ms) + GRACE_MS
            })
            .map(|(index, _)| index)
            .collect();
        for index in overdue {
            let (servers, key) = self.owing(index);
            let told = self.all_told(index);
            let is_down = |server: &Rank| self.links.get(server.0 as usize).is_none_or(|link| !link.up);
            let down: Vec<Rank> = servers.iter().copied().filter(is_down).collect();
            let Some(op) = self.ops.get_mut(index) else { continue };
            let waited_ms = now_ms - op.since_ms;
            let told = op.told.take().filter(|_| told).map(|told| *told);
            let error = late(op, told, (key, servers, down), waited_ms);
            op.fail(error, &mut self.stats, out);
        }
        for (server, link) in self.links.iter_mut().enumerate() {
            if link.up && now_ms >= link.last_use_ms + IDLE_MS && !link.credits.is_empty() {
                // The server forgets with them what was asked for before.
                link.asked = 0;
                for grant in link.credits.drain(..) {
                    let notice = Notice::GivenBack(grant);
                    out.list.push(Command::Notice { server: Rank(server as u32), notice });
                }
            }
        }
    }

    /// Is something due at a time rather than at an event?
    #[must_use]
    pub fn next_retry_ms(&self) -> Option<u64> {
        self.retries.first().map(|(due, _)| *due)
    }
}
