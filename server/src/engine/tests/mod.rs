//! The engine's decisions, as lists of commands. The rig plays the workers: it knows their credits and the
//! slots of their inboxes, and nothing of the engine's inside.

mod beside;
mod calls;
mod carried;
mod coded;
mod comings;
mod copies;
mod credits;
mod deadlines;
mod dynamic;
mod elastic;
mod exact;
mod hostile;
mod in_place;
mod left;
mod member;
mod memberships;
mod merged;
mod model;
mod modes;
mod moves;
mod norms;
mod placed;
mod properties;
mod refusals;
mod replays;
mod reruns;
mod rounds;
mod saving;
mod values;

use super::*;
use proto_common::batch::{
    BatchHeader, BatchKind, Block, BlockData, Count, Landing, Notice, OpKind, Reading, SlotGrant, Status,
};
use proto_common::codec::Codec;
use proto_common::config::WorkerLoss;
use proto_common::element::Dtype;
use proto_common::ids::{ChunkId, Epoch, Incarnation, JobId, Key, Lane, Operation, Rank};
use proto_common::message::WaitCause;
use proto_common::mode::Mode;
use proto_common::optimizer::Optimizer;
use std::collections::VecDeque;

/// Bytes of every chunk.
const BYTES: u64 = 16;
/// Where payloads start.
const PAYLOAD: u64 = 256;
/// Remote key of the region where workers' gradients lie.
const REGION: u64 = 5;
const SERVER: Incarnation = Incarnation(100);

fn config(workers: u32) -> EngineConfig {
    EngineConfig {
        job: JobId(7),
        incarnation: SERVER,
        lane: Lane(0),
        workers,
        deterministic: true,
        inbox_slots: 16,
        spill_blocks: 8,
        carried_bytes_max: 0,
        worker_loss: WorkerLoss::Stop,
    }
}

fn life(rank: u32) -> Incarnation {
    Incarnation(u64::from(rank) + 1)
}

/// Chunk 0 of a key.
fn spec(key: u64) -> ChunkSpec {
    ChunkSpec { bytes: BYTES, ..ChunkSpec::sample(key) }
}

fn landing() -> Landing {
    Landing { region: 9, offset: 64, bytes: BYTES }
}

/// An operation on chunk 0 of key 1.
fn block(op: OpKind, operation: u64, round: u64) -> Block {
    Block {
        id: ChunkId::new(1, 0),
        op,
        dtype: Dtype::F32,
        codec: 0,
        status: Status::None,
        operation: Operation(operation),
        count: Count::of(op, round),
        first_open: Operation(1),
        exact: false,
        bytes: if op.contributes() { BYTES } else { 0 },
        data: BlockData::Inline { offset: 0 },
        landing: op.lands().then(landing),
        view: false,
        reading: Reading::default(),
        timeout_ms: 1_000,
        token: operation,
    }
}

fn push(operation: u64, round: u64) -> Block {
    block(OpKind::Push, operation, round)
}

fn pull(operation: u64, round: u64) -> Block {
    block(OpKind::Pull, operation, round)
}

fn push_pull(operation: u64, round: u64) -> Block {
    block(OpKind::PushPull, operation, round)
}

fn init(operation: u64, bytes: u64) -> Block {
    Block { bytes, ..block(OpKind::Init, operation, 0) }
}

/// What a worker is told of one operation.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Answer {
    rank: u32,
    operation: u64,
    status: Status,
    version: u64,
    missing: Vec<u32>,
}

fn answer(rank: u32, operation: u64, status: Status, version: u64) -> Answer {
    Answer { rank, operation, status, version, missing: Vec::new() }
}

fn done(rank: u32, operation: u64, version: u64) -> Answer {
    answer(rank, operation, Status::Done, version)
}

#[derive(Debug, Default)]
struct Worker {
    credits: VecDeque<SlotGrant>,
    /// Slots of its inbox with results in them, not returned.
    read: Vec<SlotGrant>,
    sequence: u64,
}

/// The engine, with workers that keep the protocol.
struct Rig {
    engine: LaneEngine,
    config: EngineConfig,
    workers: Vec<Worker>,
    now_ms: u64,
    /// The slot of the last batch.
    slot: u32,
    /// Workers that connect and the server read each other's memory where it lies.
    in_place: bool,
    /// Of each worker.
    lives: Vec<Incarnation>,
}

impl Rig {
    /// Workers that are all connected, four slots of inbox each; one chunk, of key 1.
    fn new(config: EngineConfig) -> Self {
        Self::with(config, false)
    }

    fn with(config: EngineConfig, in_place: bool) -> Self {
        let mut engine = LaneEngine::new(config);
        engine.assign(Epoch { term: 1, counter: 1 }, &[spec(1)]);
        let lives = (0..config.workers).map(life).collect();
        let mut rig = Self { engine, config, workers: Vec::new(), now_ms: 0, slot: 0, in_place, lives };
        for rank in 0..config.workers {
            rig.workers.push(Worker::default());
            rig.connect(rank);
        }
        rig
    }

    fn connect(&mut self, rank: u32) {
        assert_eq!(self.connect_with(rank, 4), []);
    }

    fn connect_with(&mut self, rank: u32, result_slots: u32) -> Vec<Command> {
        let mut out = Commands::default();
        let inbox: Vec<_> = (0..result_slots).map(|slot| SlotGrant { slot, generation: 1 }).collect();
        let credits = self
            .engine
            .peer_up(Rank(rank), self.lives[rank as usize], &inbox, self.in_place, &mut out)
            .into();
        self.workers[rank as usize] = Worker { credits, ..Worker::default() };
        out.list
    }

    fn header(&self, rank: u32) -> BatchHeader {
        BatchHeader {
            kind: BatchKind::Request,
            lane: self.config.lane,
            wanted: 0,
            sender: Rank(rank),
            job: self.config.job,
            epoch: Epoch { term: 1, counter: 1 },
            sender_incarnation: self.lives.get(rank as usize).copied().unwrap_or_default(),
            receiver_incarnation: SERVER,
            sequence: 1,
            payload_offset: PAYLOAD,
            payload_bytes: 0,
            payload_checksum: None,
        }
    }

    fn deliver(
        &mut self,
        rank: u32,
        slot: SlotGrant,
        header: &BatchHeader,
        blocks: &[Block],
        grants: &[SlotGrant],
    ) -> Vec<Command> {
        let mut out = Commands::default();
        let context = BatchContext { peer: Rank(rank), slot, header, blocks, grants };
        self.engine.batch(&context, self.now_ms, &mut out);
        self.slot = slot.slot;
        out.list
    }

    /// One batch from a worker, with a credit of its own. What is in the slot: [`Rig::at`].
    fn send(&mut self, rank: u32, blocks: &[Block]) -> Vec<Command> {
        self.send_wanting(rank, 0, blocks)
    }

    fn send_wanting(&mut self, rank: u32, wanted: u16, blocks: &[Block]) -> Vec<Command> {
        let worker = &mut self.workers[rank as usize];
        let slot = worker.credits.pop_front().expect("a worker without credits sends nothing");
        worker.sequence += 1;
        let header = BatchHeader { wanted, sequence: worker.sequence, ..self.header(rank) };
        self.deliver(rank, slot, &header, blocks, &[])
    }

    fn notice(&mut self, rank: u32, notice: Notice) -> Vec<Command> {
        let mut out = Commands::default();
        self.engine.notice(Rank(rank), notice, &mut out);
        out.list
    }

    /// The place of the last batch's payload.
    fn at(&self) -> Source {
        Source::Slot { slot: self.slot, offset: PAYLOAD }
    }

    fn fetched(&mut self, rank: u32, spill: u32) -> Vec<Command> {
        let mut out = Commands::default();
        self.engine.fetched(Rank(rank), 0, spill, &mut out);
        out.list
    }

    fn landed(&mut self, rank: u32, buffer: u8) -> Vec<Command> {
        let mut out = Commands::default();
        self.engine.landed(Rank(rank), 0, buffer, &mut out);
        out.list
    }

    /// What the workers are told, in order; credits reach them, their slots are returned.
    fn flush(&mut self) -> Vec<Answer> {
        let answers = self.flush_unread();
        self.return_slots();
        answers
    }

    /// As [`Rig::flush`], with the slots not returned yet.
    fn flush_unread(&mut self) -> Vec<Answer> {
        let told = self.flush_blocks().into_iter().map(|(rank, ResultBlock { block, missing, .. })| {
            let missing = missing.iter().map(|rank| rank.0).collect();
            Answer {
                rank,
                operation: block.operation.0,
                status: block.status,
                version: block.count.round(),
                missing,
            }
        });
        told.collect()
    }

    fn flush_blocks(&mut self) -> Vec<(u32, ResultBlock)> {
        let mut out = Commands::default();
        self.engine.flush(usize::MAX, &mut out);
        let mut told = Vec::new();
        for command in &out.list {
            let Command::Results { peer, slot, results, grants, .. } = command else {
                panic!("flush only sends: {command:?}");
            };
            let worker = &mut self.workers[peer.0 as usize];
            worker.credits.extend(&out.grants[grants.clone()]);
            worker.read.push(SlotGrant { generation: slot.generation.wrapping_add(1), ..*slot });
            told.extend(out.results[results.clone()].iter().map(|result| (peer.0, result.clone())));
        }
        told
    }

    fn return_slots(&mut self) {
        for rank in 0..self.workers.len() as u32 {
            for grant in std::mem::take(&mut self.workers[rank as usize].read) {
                assert_eq!(self.notice(rank, Notice::Returned(grant)), []);
            }
        }
    }

    fn tick(&mut self, pass_ms: u64) -> Vec<Answer> {
        self.now_ms += pass_ms;
        assert_eq!(self.time(), []);
        self.flush()
    }

    fn time(&mut self) -> Vec<Command> {
        let mut out = Commands::default();
        self.engine.tick(self.now_ms, &mut out);
        out.list
    }

    /// The worker's channel ends, and nothing of it is under way.
    fn down(&mut self, rank: Rank) {
        let fence = self.engine.peer_down(rank);
        self.engine.fenced(fence, fabric::Fenced::answered());
    }

    /// The scheduler says that these are there, and that others of them have left in good order.
    fn roster(&mut self, counter: u32, present: &[u32], left: &[u32]) -> Vec<Command> {
        let lives = &self.lives;
        let present: Vec<_> = present.iter().map(|rank| (Rank(*rank), lives[*rank as usize])).collect();
        let left: Vec<_> = left.iter().map(|rank| Rank(*rank)).collect();
        let mut out = Commands::default();
        self.engine.workers_changed(Epoch { term: 1, counter }, &present, &left, &mut out);
        out.list
    }

    /// A worker dies, and another life of it is there: it is to be connected.
    fn again(&mut self, rank: u32) {
        self.down(Rank(rank));
        self.lives[rank as usize].0 += 1_000;
    }

    fn ask_rounds(&mut self, rank: u32) -> Vec<(u64, u64)> {
        let rounds = self.engine.ask_rounds(Rank(rank), self.lives[rank as usize]);
        rounds.into_iter().map(|(key, round)| (key.0, round)).collect()
    }

    fn count_from(&mut self, rank: u32, rounds: &[(u64, u64)]) -> Vec<Command> {
        let rounds: Vec<_> = rounds.iter().map(|(key, round)| (Key(*key), *round)).collect();
        let mut out = Commands::default();
        self.engine.count_from(Rank(rank), self.lives[rank as usize], &rounds, &mut out);
        out.list
    }

    /// A worker that is idle gives its credits back.
    fn give_back(&mut self, rank: u32) {
        for grant in std::mem::take(&mut self.workers[rank as usize].credits) {
            assert_eq!(self.notice(rank, Notice::GivenBack(grant)), []);
        }
    }

    fn version(&self) -> u64 {
        self.engine.version(ChunkId::new(1, 0)).expect("assigned in new").0
    }

    fn held(&self, rank: u32) -> usize {
        self.workers[rank as usize].credits.len()
    }
}

/// A round's first contribution.
fn first(from: Source) -> Addend {
    Addend { from, onto: Onto::Nothing }
}

fn onto_sum(from: Source) -> Addend {
    Addend { from, onto: Onto::Sum }
}

fn reduce(from: Source, onto: Onto) -> Command {
    Command::Reduce { chunk: 0, addend: Addend { from, onto } }
}

fn spill(from: Source, to: u32) -> Command {
    Command::Spill { chunk: 0, from, to }
}

fn land(rank: u32, buffer: u8) -> Command {
    Command::Land { peer: Rank(rank), chunk: 0, buffer, landing: landing() }
}

fn expelled(commands: &[Command]) -> &str {
    match commands {
        [Command::Expel { reason, .. }] => reason,
        other => panic!("expected one Expel, got {other:?}"),
    }
}
