//! Copies over a simulated network: whatever breaks between two servers, and whenever the one with the copy takes over, the
//! weights are those of an undisturbed run, to the last bit.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]

use fabric::sim::{NodeId, SimFaults, SimNet, SimQueue};
use fabric::{Pool, Region};
use gradwire_server::engine::{ChunkSpec, EngineConfig, Role};
use gradwire_server::runtime::{DataLane, LaneConfig, WorkerInbox};
use gradwire_server::space::Space;
use gradwire_worker::engine::{EngineConfig as WorkerEngine, PartSpec, Submit};
use gradwire_worker::runtime::{LaneConfig as WorkerConfig, LaneDriver, OpState, ServerInbox, Submission};
use proto_common::batch::{Count, OpKind, Reading, SlotGrant};
use proto_common::codec::Codec;
use proto_common::config::WorkerLoss;
use proto_common::element::Dtype;
use proto_common::ids::{ChunkId, Epoch, Incarnation, JobId, Lane, Operation, Rank};
use proto_common::message::InboxGrant;
use proto_common::mode::Mode;
use proto_common::optimizer::{Adam, Lamb, Optimizer};
use proto_common::plan::Placement;

const CHUNK_BYTES: u64 = 4 << 10;
const JOB: JobId = JobId(7);
const LANE: Lane = Lane(0);

fn life(server: usize) -> Incarnation {
    Incarnation(100 + server as u64)
}

fn spec(key: u64, chunk: u32, dtype: Dtype, optimizer: Optimizer, mode: Mode) -> ChunkSpec {
    ChunkSpec {
        id: ChunkId::new(key, chunk),
        bytes: if chunk == 1 { 200 } else { CHUNK_BYTES },
        dynamic: false,
        dtype,
        codec: Codec::Plain,
        optimizer,
        mode,
        backup_workers: 0,
    }
}

/// One tensor of each kind, of two chunks.
fn kinds() -> Vec<(Dtype, Optimizer, Mode)> {
    let adam = Optimizer::mean(Adam::default(), 0.1);
    let lamb = Optimizer::mean(Lamb::default(), 0.1);
    vec![
        (Dtype::F32, adam, Mode::Sync),
        (Dtype::F32, lamb, Mode::Sync),
        (Dtype::Bf16, Optimizer::sgd(0.5, 0.9, 0.0), Mode::Sync),
        (Dtype::I8, Optimizer::sum(), Mode::Sync),
        (Dtype::F32, Optimizer::sum(), Mode::Async),
        (Dtype::F64, Optimizer::sum(), Mode::Bounded(1)),
    ]
}

/// Two servers, and a worker that is connected to one of them.
struct Rig {
    net: SimNet,
    lanes: Vec<DataLane<SimQueue>>,
    nodes: Vec<NodeId>,
    worker: Option<(LaneDriver<SimQueue>, usize)>,
    pool: Pool,
    chunks: Vec<ChunkSpec>,
    epoch: u32,
    primary: usize,
    dials: u64,
    worker_node: NodeId,
}

impl Rig {
    fn new(seed: u64, kind: (Dtype, Optimizer, Mode)) -> Self {
        let net = SimNet::new(seed, SimFaults::default());
        let (dtype, optimizer, mode) = kind;
        let chunks = vec![spec(1, 0, dtype, optimizer, mode), spec(1, 1, dtype, optimizer, mode)];
        let mut nodes = Vec::new();
        let mut lanes = Vec::new();
        for server in 0..2 {
            let node = net.node(&format!("server {server}"));
            let queue = net.create_cq(node);
            let engine = EngineConfig {
                job: JOB,
                incarnation: life(server),
                lane: LANE,
                workers: 1,
                deterministic: true,
                worker_loss: WorkerLoss::Stop,
                inbox_slots: 4,
                spill_blocks: 4,
                carried_bytes_max: 0,
            };
            let (rank, space) = (Rank(server as u32), Space::default());
            let config = LaneConfig { engine, rank, chunk_bytes: CHUNK_BYTES, space };
            lanes.push(DataLane::new(queue, config).unwrap());
            nodes.push(node);
        }
        let worker_node = net.node("worker");
        let pool = Pool::new(1 << 20, "copies-test").unwrap();
        let mut rig = Self {
            net,
            lanes,
            nodes,
            worker: None,
            pool,
            chunks,
            epoch: 0,
            primary: 0,
            dials: 0,
            worker_node,
        };
        rig.roles(0, Role::Primary { backup: None, seeding: None }, None);
        rig
    }

    fn roles(&mut self, primary: usize, role: Role, other: Option<Role>) {
        self.epoch += 1;
        let epoch = Epoch { term: 1, counter: self.epoch };
        let of = |role: Role| self.chunks.iter().map(|spec| (*spec, role)).collect::<Vec<_>>();
        self.lanes[primary].roles(epoch, &of(role)).unwrap();
        let other = other.map(of).unwrap_or_default();
        self.lanes[1 - primary].roles(epoch, &other).unwrap();
        self.primary = primary;
    }

    /// The other one is to have a copy.
    fn seed(&mut self, is_backup: bool) {
        let (primary, other) = (self.primary, Rank(1 - self.primary as u32));
        let role = if is_backup {
            Role::Primary { backup: Some(other), seeding: None }
        } else {
            Role::Primary { backup: None, seeding: Some(other) }
        };
        self.roles(primary, role, Some(Role::Copy { of: Rank(primary as u32) }));
    }

    fn connect_stream(&mut self) {
        let (from, to) = (self.primary, 1 - self.primary);
        let [first, second] = &mut self.lanes[..] else { unreachable!("there are two") };
        let (primary, copy) = if from == 0 { (first, second) } else { (second, first) };
        let (ours, theirs) = self.net.connect(primary.queue_mut(), copy.queue_mut());
        let inbox = self.lanes[to].adopt_copy(Rank(from as u32), life(from), theirs).unwrap();
        self.dials += 1;
        let peer = (Rank(to as u32), self.dials);
        self.lanes[from].adopt_stream(peer, life(to), ours, inbox).unwrap();
    }

    fn break_stream(&mut self) {
        self.net.break_between(self.nodes[0], self.nodes[1]);
        self.run(50);
    }

    fn turn(&mut self) {
        let now_us = self.net.now_us();
        for lane in &mut self.lanes {
            lane.step(now_us / 1_000).unwrap();
        }
        if let Some((worker, _)) = &mut self.worker {
            worker.step(now_us / 1_000);
        }
        self.net.advance_to(now_us + 20);
    }

    fn run(&mut self, turns: usize) {
        (0..turns).for_each(|_| self.turn());
    }

    /// The server's machine is gone; the other one takes over, alone.
    fn fail_over(&mut self) {
        let dead = self.primary;
        self.net.crash(self.nodes[dead]);
        self.lanes[1 - dead].end_server(Rank(dead as u32));
        self.epoch += 1;
        let epoch = Epoch { term: 1, counter: self.epoch };
        let role = Role::Primary { backup: None, seeding: None };
        let all: Vec<_> = self.chunks.iter().map(|spec| (*spec, role)).collect();
        self.lanes[1 - dead].roles(epoch, &all).unwrap();
        self.primary = 1 - dead;
        self.worker = None;
    }

    fn connect_worker(&mut self) {
        if self.worker.as_ref().is_some_and(|(_, server)| *server == self.primary) {
            return;
        }
        let queue = self.net.create_cq(self.worker_node);
        let (theirs, ours) = self.net.connect(self.lanes[self.primary].queue_mut(), &queue);
        let engine = WorkerEngine {
            job: JOB,
            incarnation: Incarnation(1),
            lane: LANE,
            rank: Rank(0),
            servers: 2,
            gather_max: 16,
            in_flight_max: 100,
            keeps_calls: false,
        };
        let config = WorkerConfig { engine, result_slots: 4 };
        let landing: Region = self.pool.region().clone();
        let mut worker = LaneDriver::new(queue, config, landing).unwrap();
        worker.set_epoch(Epoch { term: 1, counter: self.epoch });
        let to = Rank(self.primary as u32);
        let InboxGrant { region, offset, slot_bytes, grants } = worker.attach(to, 1, ours).unwrap();
        let inbox = WorkerInbox { region, offset, slot_bytes, grants: slots(&grants) };
        let lane = &mut self.lanes[self.primary];
        let grant = lane.adopt(Rank(0), Incarnation(1), theirs, inbox).unwrap();
        let InboxGrant { region, offset, slot_bytes, grants } = grant;
        let inbox = ServerInbox { region, offset, slot_bytes, grants: slots(&grants) };
        worker.activate(to, life(self.primary), inbox).unwrap();
        self.worker = Some((worker, self.primary));
    }

    /// Contributes to a round, as often as it takes; `disturb` is called before each turn until it is answered. Returns what
    /// landed.
    fn round(&mut self, round: u64, mut disturb: impl FnMut(&mut Self, usize)) -> Vec<u8> {
        let bytes: u64 = self.chunks.iter().map(|spec| spec.bytes).sum();
        let mut source = self.pool.allocate(bytes).unwrap();
        // Small whole numbers in any type, and no NaN in one with an exponent.
        let dtype = self.chunks[0].dtype;
        for (at, element) in source.chunks_exact_mut(dtype.bytes()).enumerate() {
            let value = ((at as u64 * 7 + round * 3) % 5) as u8;
            match dtype {
                Dtype::F32 => element.copy_from_slice(&(f32::from(value) - 2.0).to_le_bytes()),
                Dtype::F64 => element.copy_from_slice(&(f64::from(value) - 2.0).to_le_bytes()),
                Dtype::Bf16 => element.copy_from_slice(&(f32::from(value) - 2.0).to_le_bytes()[2..]),
                _ => element[0] = value,
            }
        }
        let target = self.pool.allocate(bytes).unwrap();
        let mut submitted: Option<std::sync::Arc<OpState>> = None;
        for turn in 0..20_000 {
            disturb(self, turn);
            if self.worker.is_none() {
                submitted = None;
            }
            self.connect_worker();
            let now_ms = self.net.now_us() / 1_000;
            if submitted.is_none() {
                let state = OpState::new(1);
                let mut offset = 0;
                let mut part = |spec: &ChunkSpec| {
                    offset += spec.bytes;
                    let (server, bytes) = (Rank(self.primary as u32), spec.bytes);
                    PartSpec { id: spec.id, server, offset: offset - bytes, bytes, coded: None }
                };
                let submit = Submit {
                    view: false,
                    exact: false,
                    reading: Reading::default(),
                    op: round,
                    kind: OpKind::PushPull,
                    dtype,
                    placement: Placement::Slot,
                    operation: Operation(round),
                    count: Count::Round(round),
                    priority: 0,
                    timeout_ms: 5_000,
                    busy_ms: 0,
                    payload: true,
                    by_chunk: false,
                };
                let submission = Submission {
                    state: state.clone(),
                    submit,
                    parts: self.chunks.iter().map(&mut part).collect(),
                    source: Some(source.span()),
                    target: Some(target.span()),
                };
                self.worker.as_mut().unwrap().0.submit(submission, now_ms);
                submitted = Some(state);
            }
            self.turn();
            if let Some(result) = submitted.as_ref().and_then(|state| state.poll()) {
                result.unwrap();
                return target.to_vec();
            }
        }
        let engine = self.lanes[self.primary].engine();
        panic!(
            "round {round} does not end: {:?}, {:?} {:?}",
            self.chunks[0],
            engine.oldest(0),
            engine.stats()
        );
    }

    fn copies(&self) -> (usize, usize, usize) {
        self.lanes[self.primary].engine().copies()
    }
}

fn slots(grants: &[u32]) -> Vec<SlotGrant> {
    grants.iter().map(|wire| SlotGrant::from_wire(*wire).unwrap()).collect()
}

fn undisturbed(kind: (Dtype, Optimizer, Mode), rounds: u64) -> Vec<Vec<u8>> {
    let mut rig = Rig::new(1, kind);
    (1..=rounds).map(|round| rig.round(round, |_, _| {})).collect()
}

#[test]
fn a_copy_from_the_start_takes_over_with_the_same_bits() {
    for kind in kinds() {
        let expected = undisturbed(kind, 6);
        let mut rig = Rig::new(2, kind);
        rig.seed(true);
        rig.connect_stream();
        for round in 1..=3 {
            assert!(rig.round(round, |_, _| {}) == expected[round as usize - 1], "{kind:?} round {round}");
        }
        assert_eq!(rig.copies(), (2, 2, 0));
        assert_eq!(rig.lanes[0].engine().stats().states, 0, "zeros are known");
        rig.fail_over();
        for round in 4..=6 {
            assert!(rig.round(round, |_, _| {}) == expected[round as usize - 1], "{kind:?} round {round}");
        }
    }
}

#[test]
fn a_copy_that_is_made_while_rounds_go_on_takes_over_with_the_same_bits() {
    for kind in kinds() {
        let expected = undisturbed(kind, 6);
        let mut rig = Rig::new(3, kind);
        for round in 1..=3 {
            rig.round(round, |rig, turn| {
                if (round, turn) == (2, 1) {
                    rig.seed(false);
                    rig.connect_stream();
                }
            });
        }
        rig.run(200);
        assert_eq!(rig.copies(), (2, 2, 0));
        assert!(rig.lanes[0].engine().stats().states >= 2);
        rig.fail_over();
        for round in 4..=6 {
            assert!(rig.round(round, |_, _| {}) == expected[round as usize - 1], "{kind:?} round {round}");
        }
    }
}

#[test]
fn nothing_is_answered_while_the_backup_is_out_of_reach() {
    for kind in kinds() {
        let mut rig = Rig::new(4, kind);
        rig.seed(true);
        let mut connected = 0;
        rig.round(1, |rig, turn| {
            if turn == 100 {
                let missing = rig.lanes[0].engine().oldest(0).expect("it waits for the copy");
                assert_eq!(missing.round, 1);
                rig.connect_stream();
                connected = turn;
            }
        });
        assert_eq!(connected, 100, "{kind:?}");
    }
}

/// What is drawn for one case: when the copy is begun, what breaks for how long, and when the server dies.
struct Plan {
    kind: usize,
    seeded_at: (u64, usize),
    is_backup: bool,
    breaks: Vec<(u64, usize, u64)>,
    over_at: (u64, usize),
}

impl Plan {
    fn draw(seed: u64) -> Self {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut below = |bound: u64| {
            // xorshift64*: any sequence will do, as long as it is the same for a seed.
            state ^= state >> 12;
            state ^= state << 25;
            state ^= state >> 27;
            (state.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % bound
        };
        let kind = below(kinds().len() as u64) as usize;
        let seeded_at = (1 + below(3), below(20) as usize);
        let is_backup = below(2) == 0;
        let breaks = (0..below(4)).map(|_| (1 + below(5), below(30) as usize, 1 + below(60))).collect();
        let over_at = (3 + below(3), below(40) as usize);
        Self { kind, seeded_at, is_backup, breaks, over_at }
    }
}

fn run(seed: u64) {
    let plan = Plan::draw(seed);
    let kind = kinds()[plan.kind];
    let expected = undisturbed(kind, 7);
    let mut rig = Rig::new(seed, kind);
    let (mut is_seeded, mut is_over, mut mends) = (false, false, Vec::new());
    for round in 1..=7u64 {
        let landed = rig.round(round, |rig, turn| {
            if !is_seeded && (round, turn) >= plan.seeded_at {
                is_seeded = true;
                rig.seed(plan.is_backup);
                rig.connect_stream();
            }
            if !is_seeded || is_over {
                return;
            }
            for (_, _, turns) in plan.breaks.iter().filter(|at| (at.0, at.1) == (round, turn)) {
                rig.break_stream();
                mends.push(rig.net.now_us() + 20 * turns);
            }
            if mends.iter().any(|at| *at <= rig.net.now_us()) {
                mends.clear();
                rig.connect_stream();
            }
            let (wanted, there, _) = rig.copies();
            if (round, turn) >= plan.over_at && mends.is_empty() && there == wanted {
                is_over = true;
                rig.fail_over();
            }
        });
        assert!(landed == expected[round as usize - 1], "seed {seed}, {kind:?}, round {round}");
    }
}

#[test]
fn whatever_breaks_and_whenever_the_bits_are_those_of_an_undisturbed_run() {
    // One seed: COPIES_SEED=17 cargo test -p gradwire-tests --test sim copies:: whatever
    match std::env::var("COPIES_SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => run(seed),
        None => (0..200).for_each(|seed| {
            println!("COPIES_SEED={seed}");
            run(seed);
        }),
    }
}

/// A chunk that the other server has no memory for: its bytes are no whole number of elements there, which storage refuses
/// as it does what does not fit.
fn refused_by_the_other(rig: &mut Rig) {
    let (primary, other) = (rig.primary, 1 - rig.primary);
    rig.epoch += 1;
    let epoch = Epoch { term: 1, counter: rig.epoch };
    let role = Role::Primary { backup: None, seeding: Some(Rank(other as u32)) };
    let all: Vec<_> = rig.chunks.iter().map(|spec| (*spec, role)).collect();
    rig.lanes[primary].roles(epoch, &all).unwrap();
    let copy = Role::Copy { of: Rank(primary as u32) };
    let mut all: Vec<_> = rig.chunks.iter().map(|spec| (*spec, copy)).collect();
    all[1].0.bytes = 201;
    for _ in 0..2 {
        let refused = rig.lanes[other].roles(epoch, &all);
        assert!(refused.is_err(), "a decision that is told again tries again");
    }
}

#[test]
fn a_copy_that_cannot_be_made_harms_neither_server_and_is_made_when_there_is_room() {
    for kind in kinds().into_iter().filter(|(dtype, ..)| dtype.bytes() > 1) {
        let expected = undisturbed(kind, 6);
        let mut rig = Rig::new(4, kind);
        rig.round(1, |_, _| {});
        refused_by_the_other(&mut rig);
        rig.connect_stream();
        // Nobody's round waits for a copy that is not there, and records for it are put off.
        for round in 2..=3 {
            assert!(rig.round(round, |_, _| {}) == expected[round as usize - 1], "{kind:?} round {round}");
        }
        rig.run(200);
        rig.seed(false);
        rig.run(200);
        assert_eq!(rig.copies(), (2, 2, 0), "{kind:?}");
        rig.fail_over();
        for round in 4..=6 {
            assert!(rig.round(round, |_, _| {}) == expected[round as usize - 1], "{kind:?} round {round}");
        }
    }
}
