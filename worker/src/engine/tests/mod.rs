//! The engine's decisions, as lists of commands. The rig plays the servers.

mod batches;
mod calls;
mod carried;
mod credits;
mod ends;
mod hostile;
mod kept;
mod member;
mod order;
mod placement;
mod properties;
mod replays;
mod routes;
mod shown_by;

use super::*;
use crate::error::OpError;
use proto_common::batch::{
    BatchHeader, BatchKind, Block, BlockData, Count, Landing, Notice, OpKind, Reading, SlotGrant, Status,
};
use proto_common::element::Dtype;
use proto_common::ids::{ChunkId, Epoch, Incarnation, JobId, Key, Lane, Operation, Rank};
use proto_common::limits::slot_bytes_for;
use proto_common::plan::Placement;

/// Bytes of a part, where a test says nothing else.
const BYTES: u64 = 64;
const SLOT_BYTES: u64 = slot_bytes_for(4096);
const WORKER: Incarnation = Incarnation(50);
/// Slots of our inbox per server.
const INBOX: u32 = 4;

fn config() -> EngineConfig {
    EngineConfig {
        job: JobId(7),
        incarnation: WORKER,
        lane: Lane(0),
        rank: Rank(0),
        servers: 2,
        gather_max: 16,
        in_flight_max: 1_000,
        keeps_calls: false,
    }
}

pub(super) fn life(server: u32) -> Incarnation {
    Incarnation(100 + u64::from(server))
}

pub(super) fn grants(slots: std::ops::Range<u32>) -> Vec<SlotGrant> {
    slots.map(|slot| SlotGrant { slot, generation: 1 }).collect()
}

/// Chunk 0 of a key, on a server.
pub(super) fn part(key: u64, server: u32) -> PartSpec {
    PartSpec { id: ChunkId::new(key, 0), server: Rank(server), offset: 0, bytes: BYTES, coded: None }
}

/// One batch as the server gets it.
#[derive(Clone, Debug, PartialEq)]
struct Sent {
    server: u32,
    slot: SlotGrant,
    blocks: Vec<Block>,
    grants: Vec<SlotGrant>,
    wanted: u16,
}

impl Sent {
    /// Key and operation number of each block.
    fn operations(&self) -> Vec<(u64, u64)> {
        self.blocks.iter().map(|block| (block.id.key.0, block.operation.0)).collect()
    }
}

/// What else a flush or an event led to.
#[derive(Debug, Default, PartialEq)]
struct Happened {
    sent: Vec<Sent>,
    rest: Vec<Command>,
    /// What `Place` commands write.
    placed: Vec<PartBlock>,
}

struct Rig {
    engine: LaneEngine,
    now_ms: u64,
    next_op: u64,
    /// Generation the slots of our inbox are granted with, by server.
    inbox: Vec<Vec<SlotGrant>>,
}

impl Rig {
    /// Two servers, connected, with `credits` each.
    fn new(credits: u32) -> Self {
        let mut rig = Self::down(config());
        for server in 0..2 {
            rig.up(server, credits);
        }
        rig
    }

    fn down(config: EngineConfig) -> Self {
        let inbox = vec![Vec::new(); config.servers as usize];
        Self { engine: LaneEngine::new(config), now_ms: 1_000, next_op: 0, inbox }
    }

    fn up(&mut self, server: u32, credits: u32) {
        let inbox = grants(server * INBOX..(server + 1) * INBOX);
        self.engine.server_up(Rank(server), life(server), SLOT_BYTES, &grants(0..credits), &inbox);
        self.inbox[server as usize] = inbox;
    }

    /// A push of these parts; its number on the key, its id.
    fn submit_as(&mut self, submit: Submit, parts: &[PartSpec]) -> u64 {
        let mut out = Commands::default();
        self.next_op += 1;
        self.engine.submit(&Submit { op: self.next_op, ..submit }, parts, self.now_ms, &mut out);
        assert_eq!(out.list, [], "submitting sends nothing yet");
        self.next_op
    }

    fn push(&mut self, operation: u64, parts: &[PartSpec]) -> u64 {
        self.submit_as(submit(OpKind::Push, operation), parts)
    }

    fn sorted(out: &Commands) -> Happened {
        let (mut happened, mut written) = (Happened::default(), Vec::new());
        for command in &out.list {
            match command {
                Command::Send { server, slot, parts, grants, wanted, .. } => {
                    let parts = &out.parts[parts.clone()];
                    let placed = parts.iter().filter(|part| part.block.data == BlockData::Placed);
                    assert_eq!(placed.copied().collect::<Vec<_>>(), written, "written, then said");
                    written.clear();
                    happened.sent.push(Sent {
                        server: server.0,
                        slot: *slot,
                        blocks: parts.iter().map(|part| part.block).collect(),
                        grants: out.grants[grants.clone()].to_vec(),
                        wanted: *wanted,
                    });
                }
                other => {
                    if let Command::Place { part, .. } = other {
                        written.push(out.parts[*part]);
                        happened.placed.push(out.parts[*part]);
                    }
                    happened.rest.push(other.clone());
                }
            }
        }
        happened
    }

    fn flush(&mut self) -> Happened {
        self.flush_at_most(usize::MAX)
    }

    fn flush_at_most(&mut self, batches: usize) -> Happened {
        let mut out = Commands::default();
        self.engine.flush(batches, self.now_ms, &mut out);
        Self::sorted(&out)
    }

    /// Flushes, and expects batches only.
    fn sent(&mut self) -> Vec<Sent> {
        let happened = self.flush();
        assert_eq!(happened.rest, []);
        happened.sent
    }

    fn header(server: u32) -> BatchHeader {
        BatchHeader {
            kind: BatchKind::Result,
            lane: Lane(0),
            wanted: 0,
            sender: Rank(server),
            job: JobId(7),
            epoch: Epoch::default(),
            sender_incarnation: life(server),
            receiver_incarnation: WORKER,
            sequence: 1,
            payload_offset: 0,
            payload_bytes: 0,
            payload_checksum: None,
        }
    }

    /// Results from a server that keeps the protocol, in the next slot of our inbox.
    fn results(&mut self, server: u32, blocks: &[Block], credits: &[SlotGrant]) -> Vec<Command> {
        let slot = self.inbox[server as usize].remove(0);
        let again = SlotGrant { generation: slot.generation.wrapping_add(1), ..slot };
        self.inbox[server as usize].push(again);
        self.deliver(server, slot, &Self::header(server), blocks, credits, &[])
    }

    fn deliver(
        &mut self,
        server: u32,
        slot: SlotGrant,
        header: &BatchHeader,
        blocks: &[Block],
        grants: &[SlotGrant],
        payload: &[u8],
    ) -> Vec<Command> {
        let mut out = Commands::default();
        let context = ResultContext { server: Rank(server), slot, header, blocks, grants, payload };
        self.engine.results(&context, self.now_ms, &mut out);
        out.list
    }

    fn tick(&mut self, pass_ms: u64) -> Vec<Command> {
        let mut out = Commands::default();
        self.now_ms += pass_ms;
        self.engine.tick(self.now_ms, &mut out);
        out.list
    }
}

/// An operation to be filled in.
pub(super) fn submit(kind: OpKind, operation: u64) -> Submit {
    Submit {
        view: false,
        exact: false,
        reading: Reading::default(),
        op: 0,
        kind,
        dtype: Dtype::F32,
        payload: kind.contributes(),
        placement: Placement::Slot,
        operation: Operation(operation),
        count: Count::of(kind, operation),
        priority: 0,
        timeout_ms: 5_000,
        busy_ms: 0,
        by_chunk: false,
    }
}

/// Every placement, to be drawn from.
const PLACEMENTS: [Placement; 4] =
    [Placement::Slot, Placement::Static, Placement::RendezvousRead, Placement::RendezvousWrite];

/// The answer to a block.
fn reply(block: &Block, status: Status, version: u64) -> Block {
    let data = BlockData::Inline { offset: 0 };
    let count = Count::of(block.op, version);
    Block { status, count, bytes: 0, data, landing: None, timeout_ms: 0, ..*block }
}

fn done(block: &Block) -> Block {
    Block { count: block.count, ..reply(block, Status::Done, 0) }
}

fn closed(commands: &[Command]) -> &str {
    match commands {
        [Command::Close { reason, .. }] => reason,
        other => panic!("expected one Close, got {other:?}"),
    }
}
