//! A simulated cluster: its processes, its shard map, how it is built. What happens in it over time is in
//! `steps`.

use super::links::Link;
use super::ops::{Live, OpId};
use super::oracle::Oracle;
use super::shape::{CHUNK_BYTES, Shape};
use super::train::Trainer;
use fabric::Pool;
use fabric::sim::{Action, FaultScript, NodeId, QueueId, Rng, SimNet, SimQueue};
use gradwire_server::engine::{ChunkSpec, EngineConfig as ServerEngine, LaneStats as ServerStats};
use gradwire_server::runtime::{DataLane, LaneConfig as ServerConfig};
use gradwire_server::space::Space;
use gradwire_worker::engine::EngineConfig as WorkerEngine;
use gradwire_worker::runtime::{LaneConfig as WorkerConfig, LaneDriver};
use proto_common::config::WorkerLoss;
use proto_common::ids::{ChunkId, Epoch, Incarnation, JobId, Lane, Rank};
use proto_common::limits::CARRIED_BYTES_MAX;
use proto_common::plan::Placement;
use proto_common::shard_map::{MapUpdate, ShardMap, assign};
use std::collections::{BTreeSet, VecDeque};

const JOB: JobId = JobId(77);
const EPOCH: Epoch = Epoch { term: 1, counter: 1 };
/// Registered memory of a worker; pages are taken when they are touched.
const POOL_BYTES: u64 = 64 << 20;
/// Lines of the trace that a failure shows.
const TRACE_LINES: usize = 60;

pub(super) struct Server {
    pub(super) node: NodeId,
    pub(super) queue: QueueId,
    pub(super) life: Incarnation,
    pub(super) lane: DataLane<SimQueue>,
    /// Its chunks with the last version seen and the tensor they belong to.
    pub(super) chunks: Vec<(ChunkId, u64, usize)>,
}

pub(super) struct Worker {
    pub(super) node: NodeId,
    pub(super) queue: QueueId,
    pub(super) life: Incarnation,
    pub(super) lane: LaneDriver<SimQueue>,
    pub(super) pool: Pool,
    pub(super) ops: Vec<Live>,
    /// Not ended yet.
    pub(super) open: BTreeSet<usize>,
    /// Operations and rounds of each tensor so far.
    pub(super) numbers: Vec<(u64, u64)>,
    pub(super) trainer: Option<Trainer>,
    pub(super) crashed: bool,
}

/// See the module.
pub struct Cluster {
    pub(super) seed: u64,
    pub(super) shape: Shape,
    pub(super) net: SimNet,
    pub(super) rng: Rng,
    pub(super) oracle: Oracle,
    pub(super) map: ShardMap,
    pub(super) servers: Vec<Server>,
    pub(super) workers: Vec<Worker>,
    /// By server, then worker.
    pub(super) links: Vec<Link>,
    /// Faults to come, in order.
    pub(super) faults: VecDeque<(u64, Action)>,
    pub(super) partitions: BTreeSet<(NodeId, NodeId)>,
    /// Next time at which every lane is stepped whether or not something came.
    pub(super) tick_us: u64,
    /// A lane that was ready and left out is stepped by then.
    pub(super) again_us: Option<u64>,
    /// Queues with something to poll, at the last look.
    pub(super) ready: Vec<QueueId>,
    pub(super) next_op: u64,
    /// Channels connected again after a break.
    pub(super) reconnects: u64,
    /// Operations may fail: the test looks at them itself.
    pub(super) may_fail: bool,
    /// Landings are compared with the oracle.
    pub(super) compares: bool,
}

impl Cluster {
    /// Starts all processes and begins to connect them. Tensors are known to everybody.
    #[must_use]
    pub fn new(seed: u64, shape: Shape) -> Self {
        let net = SimNet::new(seed, shape.faults.clone());
        let mut map = ShardMap::new(CHUNK_BYTES, 1);
        let loads = vec![0; shape.servers as usize];
        let ranges = assign(&shape.tensors, &loads, CHUNK_BYTES);
        map.apply(&MapUpdate { epoch: EPOCH, tensors: shape.tensors.clone(), ranges }).unwrap();
        let servers: Vec<_> = (0..shape.servers).map(|rank| server(&net, &shape, &map, rank)).collect();
        let workers: Vec<_> = (0..shape.workers).map(|rank| worker(&net, &shape, rank)).collect();
        let links = (0..shape.servers * shape.workers).map(|_| Link::default()).collect();
        Self {
            seed,
            rng: Rng::new(seed ^ 0x0DD5_7E95),
            oracle: Oracle::new(seed, shape.workers, &shape.tensors),
            net,
            map,
            servers,
            workers,
            links,
            faults: VecDeque::new(),
            partitions: BTreeSet::new(),
            tick_us: 0,
            again_us: None,
            ready: Vec::new(),
            next_op: 0,
            reconnects: 0,
            may_fail: false,
            compares: true,
            shape,
        }
    }

    /// Its size and limits.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The network, for what the cluster has no word for.
    #[must_use]
    pub fn net(&self) -> &SimNet {
        &self.net
    }

    /// Virtual time.
    #[must_use]
    pub fn now_us(&self) -> u64 {
        self.net.now_us()
    }

    /// Channels that were connected again.
    #[must_use]
    pub fn reconnects(&self) -> u64 {
        self.reconnects
    }

    /// The oracle of this run.
    pub fn oracle(&mut self) -> &mut Oracle {
        &mut self.oracle
    }

    /// From here on operations may fail; the test judges their ends itself.
    pub fn allow_failures(&mut self) {
        self.may_fail = true;
    }

    /// Landings are not compared with the oracle, whose order of additions this cluster does not keep.
    pub fn do_not_compare(&mut self) {
        self.compares = false;
    }

    /// All nodes: servers first.
    #[must_use]
    pub fn nodes(&self) -> Vec<NodeId> {
        self.servers
            .iter()
            .map(|server| server.node)
            .chain(self.workers.iter().map(|worker| worker.node))
            .collect()
    }

    /// The node of a server.
    #[must_use]
    pub fn server_node(&self, rank: u32) -> NodeId {
        self.servers[rank as usize].node
    }

    /// The node of a worker.
    #[must_use]
    pub fn worker_node(&self, rank: u32) -> NodeId {
        self.workers[rank as usize].node
    }

    /// The server that holds a tensor's first chunk.
    #[must_use]
    pub fn holder(&self, tensor: usize) -> u32 {
        self.map.placed_chunks(self.shape.tensors[tensor].key).next().expect("tensors have chunks").1.0
    }

    /// Has this happen at a time.
    pub fn fault(&mut self, at_us: u64, action: Action) {
        // What was added first for a time happens first: a heal stays behind its partition.
        let at = self.faults.partition_point(|(other_us, _)| *other_us <= at_us);
        self.faults.insert(at, (at_us, action));
    }

    /// Has all of a script happen, from now.
    pub fn script(&mut self, script: &FaultScript) {
        let now_us = self.now_us();
        for (at_us, action) in &script.actions {
            self.fault(now_us + at_us, *action);
        }
    }

    /// Counts of a server.
    #[must_use]
    pub fn server_stats(&self, rank: u32) -> ServerStats {
        self.servers[rank as usize].lane.engine().stats()
    }

    /// Key buffers of a server.
    #[must_use]
    pub fn key_buffers(&self, rank: u32) -> u32 {
        self.servers[rank as usize].lane.engine().key_buffers()
    }

    /// Operations that start from now on have one of these placements.
    pub fn place_by(&mut self, placements: &[Placement]) {
        self.shape.placements = placements.to_vec();
    }

    /// Credits of a server that nobody holds, and all of them.
    #[must_use]
    pub fn credits(&self, rank: u32) -> (usize, usize) {
        self.servers[rank as usize].lane.engine().credits()
    }

    /// Operations of a worker that have not ended.
    #[must_use]
    pub fn open_operations(&self, worker: u32) -> Vec<OpId> {
        self.workers[worker as usize].open.iter().map(|index| OpId { worker, index: *index }).collect()
    }

    pub(super) fn link(&mut self, server: usize, worker: usize) -> &mut Link {
        &mut self.links[server * self.shape.workers as usize + worker]
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let trace = self.net.trace();
            let tail = &trace[trace.len().saturating_sub(TRACE_LINES)..];
            eprintln!(
                "seed {}: {:?}\nthe last of {} events:",
                self.seed,
                self.shape,
                self.net.trace_events()
            );
            tail.iter().for_each(|line| eprintln!("  {line}"));
        }
    }
}

fn server(net: &SimNet, shape: &Shape, map: &ShardMap, rank: u32) -> Server {
    let node = net.node(&format!("server-{rank}"));
    let queue = net.create_cq(node);
    let (queue_id, life) = (queue.id(), Incarnation(1_000 + u64::from(rank)));
    let engine = ServerEngine {
        job: JOB,
        incarnation: life,
        lane: Lane(0),
        workers: shape.workers,
        deterministic: shape.deterministic,
        inbox_slots: shape.inbox_slots,
        spill_blocks: shape.spill_blocks,
        // Every second server writes small weights, too.
        carried_bytes_max: if rank.is_multiple_of(2) { CARRIED_BYTES_MAX } else { 0 },
        worker_loss: WorkerLoss::Stop,
    };
    let config = ServerConfig { engine, rank: Rank(rank), chunk_bytes: CHUNK_BYTES, space: Space::default() };
    let mut lane = DataLane::new(queue, config).unwrap();
    let (mut specs, mut chunks) = (Vec::new(), Vec::new());
    for (index, tensor) in shape.tensors.iter().enumerate() {
        for (span, _) in map.placed_chunks(tensor.key).filter(|(_, holder)| *holder == Rank(rank)) {
            specs.push(ChunkSpec::of(tensor, &span));
            chunks.push((span.id, 0, index));
        }
    }
    lane.assign(EPOCH, &specs).unwrap();
    Server { node, queue: queue_id, life, lane, chunks }
}

fn worker(net: &SimNet, shape: &Shape, rank: u32) -> Worker {
    let node = net.node(&format!("worker-{rank}"));
    let queue = net.create_cq(node);
    let (queue_id, life) = (queue.id(), Incarnation(2_000 + u64::from(rank)));
    let engine = WorkerEngine {
        job: JOB,
        incarnation: life,
        lane: Lane(0),
        rank: Rank(rank),
        servers: shape.servers,
        gather_max: 16,
        in_flight_max: 1_000,
        keeps_calls: false,
    };
    let pool = Pool::new(POOL_BYTES, "sim-worker").unwrap();
    let config = WorkerConfig { engine, result_slots: shape.result_slots };
    let mut lane = LaneDriver::new(queue, config, pool.region().clone()).unwrap();
    lane.set_epoch(EPOCH);
    Worker {
        node,
        queue: queue_id,
        life,
        lane,
        pool,
        ops: Vec::new(),
        open: BTreeSet::new(),
        numbers: vec![(0, 0); shape.tensors.len()],
        trainer: None,
        crashed: false,
    }
}
