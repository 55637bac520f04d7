//! The engine of one lane: owns what decides, each with state of its own, and brings each input to it. It must not keep state of its
//! own, but for the parts and operations that all of them look at, and the counts.
//!
//! ```text
//!  submit ──▶ Op, Part ──▶ Chunk (order) ──▶ Link (queue) ──flush──▶ KeyBuffers (where to), Link (credits) ──▶ Send
//!                            ▲                                                                                  │
//!                            ├── put back: Retry, Reroute, Granted, Corrupt, or the channel ended ◀── answer ◀──┘
//!                            └── ended ──▶ Op ──▶ Done                                                  │
//!                                                                 ShownBy (views elsewhere) ◀───────────┘
//! ```
//!
//! Files below `lane/`: `flow` sends, `answers` takes answers, `patience` decides how long other workers are waited for, `routes` follows
//! the map, `calls` is for calls, `kept` for calls to a server that has failed, and `owed` says who is waited for.

mod answers;
mod calls;
mod flow;
mod kept;
mod owed;
mod patience;
mod routes;

pub use owed::OldestOp;

use super::chunk::{Chunk, Chunks};
use super::command::{Command, Commands};
use super::link::Link;
use super::op::Op;
use super::part::{At, Part, PartSpec, Place, Slab, Submit};
use super::stats::{LaneStats, Traffic};
use crate::error::OpError;
use proto_common::batch::{BatchHeader, Block, Notice, SlotGrant};
use proto_common::ids::{Incarnation, JobId, Lane, Rank};
use std::cmp::Reverse;

/// Parts of at most this many bytes may wait for more of them, so that they share the cost of a batch. When this many wait,
/// they are sent in any case: more would gain little.
pub const GATHER_BYTES_MAX: u64 = 16 << 10;
/// See [`GATHER_BYTES_MAX`].
pub const GATHER_PARTS_MAX: usize = 32;

/// The configuration of the engine.
#[derive(Clone, Copy, Debug)]
pub struct EngineConfig {
    /// The job.
    pub job: JobId,
    /// The incarnation of this worker's process.
    pub incarnation: Incarnation,
    /// The lane.
    pub lane: Lane,
    /// This worker.
    pub rank: Rank,
    /// How many servers there are.
    pub servers: u32,
    /// Payload spans one write may gather.
    pub gather_max: usize,
    /// Parts that may be sent and unanswered.
    pub in_flight_max: usize,
    /// Calls to handlers wait for the next process of a server that has failed. Otherwise they fail with the server.
    pub keeps_calls: bool,
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
    config: EngineConfig,
    links: Vec<Link>,
    ops: Slab<Op>,
    parts: Slab<Part>,
    chunks: Chunks,
    order: u64,
    now_ms: u64,
    stats: LaneStats,
    /// By server. Not in `links`: those begin anew with each channel.
    traffic: Vec<Traffic>,
}

impl LaneEngine {
    /// An engine without links.
    #[must_use]
    pub fn new(config: EngineConfig) -> Self {
        Self {
            links: (0..config.servers).map(|_| Link::default()).collect(),
            ops: Slab::new(),
            parts: Slab::new(),
            chunks: Chunks::default(),
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
        self.ops.iter().filter(|(_, op)| !op.is_over()).count()
    }

    /// Does nothing depend on the time? No operation is in progress, and no credit is to be given back.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.ops.is_empty() && self.links.iter().all(Link::is_idle)
    }

    /// May the next batch wait for more operations? Yes if only small parts are queued, and each of their servers still has
    /// something to answer: the answer starts the next turn.
    #[must_use]
    pub fn may_gather(&self) -> bool {
        let is_small = |part: &Part| part.spec.payload().1 <= GATHER_BYTES_MAX;
        let may_wait = |link: &Link, first| {
            link.may_wait(GATHER_PARTS_MAX) && self.parts.get(first).is_some_and(is_small)
        };
        self.links.iter().all(|link| link.peek().is_none_or(|first| may_wait(link, first)))
    }

    /// The incarnation of the server's process that the channel leads to; zero without a channel.
    #[must_use]
    pub fn server_incarnation(&self, server: Rank) -> Incarnation {
        self.links.get(server.0 as usize).map_or(Incarnation::default(), Link::incarnation)
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
        let now_ms = self.now_ms;
        if let Some(link) = self.link(server) {
            link.open((incarnation, slot_bytes), credits, inbox, now_ms);
        }
    }

    /// From now on payloads to this server travel in slots only, as long as its channel is open.
    pub fn use_slots_only(&mut self, server: Rank) {
        if let Some(link) = self.link(server) {
            link.buffers.use_slots_only();
        }
    }

    /// From now on no granted key buffer is written. The servers are asked for new ones.
    pub fn forget_grants(&mut self) {
        self.links.iter_mut().for_each(|link| link.buffers.retain(|_| false));
        self.chunks.iter_mut().for_each(Chunk::refuse_grant);
    }

    /// Everything in progress fails with this error; nothing is sent any more. The channels are closed.
    pub fn fail_all(&mut self, error: &OpError, out: &mut Commands) {
        self.links.fill_with(Link::default);
        self.chunks = Chunks::default();
        self.parts.take_all();
        for mut op in self.ops.take_all() {
            op.fail(error.clone(), &mut self.stats, out);
            if !op.is_over() {
                out.list.push(Command::Done { op: op.submit.op, version: 0 });
            }
        }
    }

    /// A new operation, and its chunks on this lane.
    pub fn submit(&mut self, submit: &Submit, parts: &[PartSpec], now_ms: u64, out: &mut Commands) {
        self.now_ms = now_ms;
        if parts.is_empty() {
            out.list.push(Command::Done { op: submit.op, version: u64::MAX });
            return;
        }
        let op = self.ops.insert(Op::new(*submit, parts.len() as u32, now_ms));
        for spec in parts {
            self.order += 1;
            let at = self.chunks.place(spec.id);
            let chunk = &mut self.chunks[at];
            let server = chunk.server(spec.server);
            let part = self.parts.insert(Part::new(op, at, PartSpec { server, ..*spec }, self.order));
            chunk.submit(part, submit.operation);
            chunk.shown_by.leave((spec.id, server, submit.reading), |server, farewell| {
                self.links.get_mut(server.0 as usize).is_some_and(|link| link.say(farewell))
            });
            self.enqueue(at);
        }
    }

    /// Puts a chunk's next part into its server's queue, if it may go.
    fn enqueue(&mut self, at: At) {
        let chunk = &mut self.chunks[at];
        let Some(index) = chunk.next() else { return };
        let Some(part) = self.parts.get(index) else { return };
        let Some(op) = self.ops.get(part.op).filter(|op| chunk.queue(&op.submit, part.spec.server)) else {
            return;
        };
        let place = Place { priority: op.submit.priority, order: Reverse(part.order), part: index };
        if let Some(link) = self.links.get_mut(part.spec.server.0 as usize) {
            link.push(place);
        }
    }

    fn link(&mut self, server: Rank) -> Option<&mut Link> {
        self.links.get_mut(server.0 as usize)
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
        let is_overdue = |op: &Op| op.is_overdue(now_ms);
        let overdue = self.ops.iter().filter(|(_, op)| is_overdue(op));
        let mut overdue: Vec<(u64, u32)> = overdue.map(|(index, op)| (op.submit.op, index)).collect();
        // In the order of submission: an operation may give those that wait behind it new time.
        overdue.sort_unstable();
        for (_, index) in overdue {
            let owing = self.owing(index);
            if owing.all_told && self.keeps_asking(index, out) {
                continue;
            }
            if let Some(op) = self.ops.get_mut(index).filter(|op| is_overdue(op)) {
                let error = op.overdue(owing, now_ms);
                op.fail(error, &mut self.stats, out);
                self.end_unreachable(index, out);
            }
        }
        for (server, link) in self.links.iter_mut().enumerate() {
            link.give_back(Rank(server as u32), now_ms, out);
        }
    }

    /// Is something due at a time rather than at an event?
    #[must_use]
    pub fn next_retry_ms(&self) -> Option<u64> {
        self.chunks.next_retry_ms()
    }
}
