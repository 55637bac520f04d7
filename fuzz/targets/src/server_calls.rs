//! The server's engine under workers that call handlers, honest ones and worse: an input is a program of connections,
//! calls, arrived bodies, answers, handlers that come and go, ticks and flushes. Never a panic; each call is handed over
//! once, in its worker's order; what is let go of is known, and nothing is kept for ever.

use crate::{OWN_LIFE, PAYLOAD_BYTES, Program, header};
use gradwire_server::engine::{BatchContext, CallAnswer, CallTaken, Command, Commands, EngineConfig, LaneEngine};
use proto_common::batch::{BatchKind, Block, BlockData, Count, Landing, OpKind, Reading, SlotGrant, Status};
use proto_common::call::{CALLS_IN_FLIGHT_MAX, call_id};
use proto_common::config::WorkerLoss;
use proto_common::element::Dtype;
use proto_common::ids::{Epoch, Incarnation, Lane, Operation, Rank};
use std::collections::BTreeMap;

crate::programs!(Rig);

const JOB: proto_common::ids::JobId = crate::JOB;
const WORKERS: u32 = 2;
const APPS: u32 = 3;
/// Slots of each worker's inbox.
const RESULT_SLOTS: u32 = 2;
/// Bytes of bodies and replies that may be kept.
const BYTES_MAX: u64 = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Taken,
    Arrived,
    Delivered,
    Cancelled,
}

/// A call as the runtime has it.
#[derive(Clone, Copy, Debug)]
struct Call {
    peer: Rank,
    app: u32,
    stage: Stage,
}

#[derive(Default)]
struct Worker {
    life: Option<Incarnation>,
    credits: Vec<SlotGrant>,
    /// Slots of its inbox that it has read.
    read: Vec<SlotGrant>,
    /// By handler: the last call, and the first whose answer it does not know.
    sent: [u64; APPS as usize],
    known: [u64; APPS as usize],
}

struct Rig {
    engine: LaneEngine,
    workers: Vec<Worker>,
    calls: BTreeMap<u64, Call>,
    /// Ids grow: the last one handed to each handler, by worker.
    delivered: BTreeMap<(Rank, u32), u64>,
    /// Replies on their way to their room.
    landing: Vec<u64>,
    lives: u64,
    now_ms: u64,
}

impl Rig {
    fn new(program: &mut Program<'_>) -> Self {
        let config = EngineConfig {
            job: JOB,
            incarnation: OWN_LIFE,
            lane: Lane(0),
            workers: WORKERS,
            deterministic: true,
            inbox_slots: 2 + program.below(6),
            spill_blocks: 0,
            carried_bytes_max: 0,
            worker_loss: WorkerLoss::Stop,
        };
        let mut engine = LaneEngine::new(config);
        engine.limit_calls(BYTES_MAX);
        engine.assign(Epoch { term: 1, counter: 1 }, &[]);
        let workers = (0..WORKERS).map(|_| Worker::default()).collect();
        let (calls, delivered) = (BTreeMap::new(), BTreeMap::new());
        let mut rig = Self { engine, workers, calls, delivered, landing: Vec::new(), lives: 0, now_ms: 0 };
        (0..WORKERS).for_each(|rank| rig.connect(Rank(rank), true));
        rig
    }

    fn step(&mut self, program: &mut Program<'_>) {
        let rank = Rank(program.below(WORKERS));
        match program.byte() % 16 {
            0..=6 => self.send(rank, program),
            7 | 8 => self.arrive(program),
            9..=11 => self.answer(program),
            12 => self.engine.set_handler(program.below(APPS), program.byte() & 1 == 0),
            13 => {
                self.now_ms += program.number().min(1 << 20);
                let mut out = Commands::default();
                self.engine.tick(self.now_ms, &mut out);
                self.execute(&out);
            }
            14 => self.connect(rank, program.one_in(3)),
            _ => self.disconnect(rank),
        }
        self.flush();
    }

    fn connect(&mut self, rank: Rank, anew: bool) {
        self.disconnect(rank);
        let worker = &mut self.workers[rank.0 as usize];
        if anew {
            self.lives += 1;
            (worker.sent, worker.known) = ([0; APPS as usize], [1; APPS as usize]);
            self.delivered.retain(|(of, _), _| *of != rank);
        }
        let life = Incarnation(self.lives.max(1) * 8 + u64::from(rank.0));
        let life = if anew { life } else { worker.life.unwrap_or(life) };
        let inbox: Vec<_> = (0..RESULT_SLOTS).map(|slot| SlotGrant { slot, generation: 1 }).collect();
        let mut out = Commands::default();
        let credits = self.engine.peer_up(rank, life, &inbox, false, &mut out);
        let worker = &mut self.workers[rank.0 as usize];
        (worker.life, worker.credits) = (Some(life), credits);
        worker.read.clear();
        self.execute(&out);
    }

    fn disconnect(&mut self, rank: Rank) {
        let fence = self.engine.peer_down(rank);
        self.engine.fenced(fence, fabric::Fenced::answered());
        self.workers[rank.0 as usize].credits.clear();
        self.flush();
    }

    /// One batch of calls: the next ones, ones that were sent before, or ones that make no sense.
    fn send(&mut self, rank: Rank, program: &mut Program<'_>) {
        let worker = &mut self.workers[rank.0 as usize];
        let (Some(life), Some(slot)) = (worker.life, worker.credits.first().copied()) else { return };
        let mut blocks = Vec::new();
        for _ in 0..1 + program.below(3) {
            let app = program.below(APPS);
            let at = app as usize;
            let again = program.one_in(4) && worker.sent[at] > 0;
            if !again {
                worker.sent[at] += 1;
            }
            let operation = if again { worker.known[at].max(1) } else { worker.sent[at] };
            let mut made = call(app, operation, worker.known[at].max(1), program.number().saturating_mul(64));
            made.landing = program.one_in(2).then_some(Landing {
                region: 1,
                offset: 0,
                bytes: program.number().saturating_mul(64),
            });
            if program.one_in(8) {
                made = Block { op: OpKind::Call, token: made.token, ..program.block(PAYLOAD_BYTES) };
            }
            blocks.push(made);
        }
        let mut out = Commands::default();
        if self.engine.notified(rank, slot, &mut out) {
            self.workers[rank.0 as usize].credits.retain(|credit| *credit != slot);
            let grants = std::mem::take(&mut self.workers[rank.0 as usize].read);
            let header = header(BatchKind::Request, rank, life);
            let context =
                BatchContext { peer: rank, slot, header: &header, blocks: &blocks, grants: &grants };
            self.engine.batch(&context, self.now_ms, &mut out);
        }
        self.execute(&out);
    }

    fn some(&self, program: &mut Program<'_>, stages: &[Stage]) -> Option<u64> {
        let ids: Vec<u64> =
            self.calls.iter().filter(|(_, c)| stages.contains(&c.stage)).map(|(id, _)| *id).collect();
        (!ids.is_empty()).then(|| program.pick(&ids))
    }

    fn arrive(&mut self, program: &mut Program<'_>) {
        let Some(id) = self.some(program, &[Stage::Taken]) else { return };
        self.calls.entry(id).and_modify(|call| call.stage = Stage::Arrived);
        let mut out = Commands::default();
        self.engine.call_arrived(id, &mut out);
        self.execute(&out);
    }

    /// A handler answers: at most once each call, also one that was cancelled meanwhile.
    fn answer(&mut self, program: &mut Program<'_>) {
        let Some(id) = self.some(program, &[Stage::Delivered, Stage::Cancelled]) else { return };
        self.calls.entry(id).and_modify(|call| call.stage = Stage::Taken);
        self.calls.remove(&id);
        let body_bytes = program.number().saturating_mul(64);
        let status = if program.one_in(4) { Status::NoReply } else { Status::Done };
        let answer = CallAnswer { status, head_bytes: program.below(9), body_bytes };
        let mut out = Commands::default();
        self.engine.call_answered(id, answer, &mut out);
        self.execute(&out);
    }

    fn flush(&mut self) {
        let mut out = Commands::default();
        for call in std::mem::take(&mut self.landing) {
            // Some cannot be sent.
            self.engine.call_landed(call, call % 8 != 0, &mut out);
        }
        self.execute(&out);
        out.clear();
        self.engine.flush(usize::MAX, &mut out);
        self.execute(&out);
    }

    fn execute(&mut self, out: &Commands) {
        let mut expelled = Vec::new();
        for command in &out.list {
            match command {
                Command::CallTake(CallTaken { call, peer, app, bytes, .. }) => {
                    assert!(*bytes <= BYTES_MAX, "more than may be kept");
                    let new = Call { peer: *peer, app: *app, stage: Stage::Taken };
                    assert!(self.calls.insert(*call, new).is_none(), "an id names one call");
                }
                Command::CallDeliver { call } => {
                    let entry = self.calls.get_mut(call).expect("what is delivered was taken");
                    assert_eq!(entry.stage, Stage::Arrived, "delivered once, and whole");
                    entry.stage = Stage::Delivered;
                    let before = self.delivered.insert((entry.peer, entry.app), *call);
                    assert!(before.is_none_or(|before| before < *call), "out of order");
                }
                Command::CallCancel { call } => {
                    if let Some(entry) = self.calls.get_mut(call) {
                        assert_eq!(entry.stage, Stage::Delivered);
                        entry.stage = Stage::Cancelled;
                    }
                }
                Command::CallLand { peer, call, landing } => {
                    self.landing.push(*call);
                    assert!(self.workers[peer.0 as usize].life.is_some() && landing.bytes > 0);
                }
                Command::CallDrop { call } => {
                    // A handler may have it still; its answer counts for nothing.
                    self.calls.retain(|id, entry| {
                        id != call || matches!(entry.stage, Stage::Delivered | Stage::Cancelled)
                    });
                }
                Command::Results { peer, slot, results, grants, .. } => {
                    let worker = &mut self.workers[peer.0 as usize];
                    worker.credits.extend(&out.grants[grants.clone()]);
                    worker.read.push(SlotGrant { generation: slot.generation.wrapping_add(1), ..*slot });
                    for result in &out.results[results.clone()] {
                        answered(worker, &result.block);
                    }
                }
                Command::Notice { .. } => {}
                Command::Expel { peer, .. } => expelled.push(*peer),
                other => panic!("nothing here is a tensor's: {other:?}"),
            }
        }
        assert!(self.engine.calls() as u64 <= u64::from(WORKERS * APPS) * CALLS_IN_FLIGHT_MAX);
        expelled.into_iter().for_each(|rank| self.disconnect(rank));
    }

    /// Workers that come back as others leave nothing behind.
    fn finish(&mut self) {
        for rank in (0..WORKERS).map(Rank) {
            self.connect(rank, true);
        }
        self.flush();
        assert_eq!(self.engine.calls(), 0, "kept for nobody");
    }
}

/// Worker's side of an answer: those that are known move on, those sent back go out again.
fn answered(worker: &mut Worker, block: &Block) {
    let at = block.id.key.0 as usize;
    if at >= APPS as usize {
        return;
    }
    match block.status {
        Status::Retry | Status::CallRoom => {
            worker.sent[at] = worker.sent[at].min(block.operation.0.saturating_sub(1));
        }
        Status::ReplyRoom => {}
        _ if block.operation.0 == worker.known[at] => worker.known[at] += 1,
        _ => {}
    }
}

fn call(app: u32, operation: u64, known: u64, body_bytes: u64) -> Block {
    Block {
        id: call_id(app, Rank(0)),
        op: OpKind::Call,
        dtype: Dtype::F32,
        codec: 0,
        status: Status::None,
        operation: Operation(operation),
        first_open: Operation(known),
        exact: false,
        count: Count::Body(body_bytes),
        bytes: 32,
        data: BlockData::Inline { offset: 0 },
        landing: None,
        view: false,
        reading: Reading::default(),
        timeout_ms: 1_000,
        token: operation,
    }
}
