//! The table itself: every variable that the peers read, by peer and name. What a row says is shown to users.

use super::convert::{self, Pairs};
use Peer::{BytePs, Dmlc, Fork, Mxnet, PsLite};
use Use::{Becomes, Is, Nothing, Read};

/// Whose variable it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// dmlc/ps-lite.
    PsLite,
    /// The ps-lite of BytePS.
    Fork,
    /// BytePS and its launcher.
    BytePs,
    /// MXNet's kvstore.
    Mxnet,
    /// dmlc-submit, and what dmlc-core reads.
    Dmlc,
}

impl Peer {
    /// As people call it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::PsLite => "ps-lite",
            Self::Fork => "BytePS's ps-lite",
            Self::BytePs => "BytePS",
            Self::Mxnet => "MXNet",
            Self::Dmlc => "dmlc-submit",
        }
    }
}

/// What a peer's variable does here.
#[derive(Clone, Copy, Debug)]
pub enum Use {
    /// Its text is the value of this setting.
    Is(&'static str),
    /// Its value becomes that of settings; said in words, and computed. An error says what would be right.
    Becomes(&'static str, fn(&str) -> Result<Pairs, &'static str>),
    /// It is honoured, though by no setting alone: where, and how.
    Read(&'static str),
    /// It changes nothing: why, and what to use instead.
    Nothing(&'static str),
}

/// One variable of a peer.
#[derive(Clone, Copy, Debug)]
pub struct Variable {
    /// Its name.
    pub name: &'static str,
    /// Whose it is.
    pub peer: Peer,
    /// What it does here.
    pub does: Use,
}

impl Variable {
    /// What it does here, for people.
    #[must_use]
    pub fn words(&self) -> String {
        match self.does {
            Use::Is(setting) => format!("`{setting}`"),
            Use::Becomes(words, _) | Use::Read(words) => words.to_owned(),
            Use::Nothing(why) => format!("no effect: {why}"),
        }
    }
}

/// Names of variables, and what they do here.
type Rows = &'static [(&'static str, Use)];

const UCX: &str = "Gradwire does not use UCX but RDMA devices directly (`transport.verbs`)";
const COPIES: &str = "peers of one host share memory, without threads that copy";
const QUEUES: &str = "credits determine the size of queues and buffers (`memory.inbox_slots`), which are registered before training";
const CORES: &str = "threads are not pinned to cores; use numactl, taskset or the cluster's scheduler";
const NCCL: &str = "each process is a worker and pushes its own gradients; NCCL does not reduce them first";
const TRACES: &str =
    "each process has a flight recorder (`log.recorder_events`); `gradwire trace` writes the timeline";
const HASHES: &str = "keys are not hashed; the shard map balances bytes over servers";
const MIXED: &str = "servers share the load evenly; start one server per host";
const STARTED: &str = "set by the launcher for programs; Gradwire does not use it";
const TREES: &str = "MXNet itself reduces over the devices of one process";
const SUBMIT: &str =
    "there is no tracker: request resources from Slurm or MPI, or limit processes with cgroups";

const PS_LITE: Rows = &[
    ("DMLC_INTERFACE", Read("`node.bind` and `node.advertise`, by the interface's IPv4 address")),
    ("DMLC_LOCAL", Nothing("peers of one host use shared memory by default (`transport.shm`)")),
    ("DMLC_NODE_HOST", Read("`node.bind` and `node.advertise`")),
    ("DMLC_NUM_SERVER", Is("cluster.servers")),
    ("DMLC_NUM_WORKER", Read("`cluster.workers`, multiplied by BYTEPS_LOCAL_SIZE if that is set")),
    ("DMLC_PS_ROOT_PORT", Is("scheduler.port")),
    ("DMLC_PS_ROOT_URI", Is("scheduler.host")),
    (
        "DMLC_PS_VAN_TYPE",
        Becomes(
            "`transport.verbs` = require for ibverbs; with zmq and p3 the transport is selected automatically",
            convert::van,
        ),
    ),
    ("DMLC_PS_WATER_MARK", Nothing("credits limit the data in flight (`memory.inbox_slots`)")),
    ("DMLC_RANK", Read("`node.rank`, of servers and workers")),
    ("DMLC_ROLE", Read("checked against the program's role; `gradwire launch` starts that role")),
    (
        "DMLC_USE_KUBERNETES",
        Becomes(
            "`scheduler.bind` = 0.0.0.0: the service's name is not an address of the pod",
            convert::all_addresses,
        ),
    ),
    ("PS_DROP_MSG", Nothing("faults are injected in simulations only, never in real daemons")),
    ("PS_HEARTBEAT_INTERVAL", Becomes("`deadlines.heartbeat_ms`, from seconds", convert::heartbeat)),
    ("PS_HEARTBEAT_TIMEOUT", Becomes("`deadlines.silence_ms`, from seconds", convert::silence)),
    ("PS_RESEND", Nothing("transports are reliable, and unanswered operations are replayed")),
    ("PS_RESEND_TIMEOUT", Nothing("operations have a timeout instead (`deadlines.operation_ms`)")),
    ("PS_VERBOSE", Becomes("`log.filter`: debug for 1, trace for 2", convert::verbose)),
];

const FORK: Rows = &[
    ("BYTEPS_ADDRESS_POOL_SIZE", Nothing(QUEUES)),
    ("BYTEPS_ENABLE_IPC", Nothing("peers of one host use shared memory by default (`transport.shm`)")),
    ("BYTEPS_IPC_COPY_NUM_THREADS", Nothing(COPIES)),
    ("BYTEPS_IPC_ENABLE_ASYNC_COPY", Nothing(COPIES)),
    ("BYTEPS_NODE_ID", Nothing("the rank is set by `node.rank`")),
    ("BYTEPS_ORDERED_HOSTS", Nothing("the scheduler knows every member's address")),
    ("BYTEPS_PRINT_RDMA_LOG", Nothing("use `log.filter` = info,fabric=debug")),
    ("BYTEPS_RDMA_MAX_CONCURR_WR", Nothing(QUEUES)),
    ("BYTEPS_RDMA_RX_DEPTH", Nothing(QUEUES)),
    ("BYTEPS_RDMA_START_DEPTH", Nothing(QUEUES)),
    ("BYTEPS_UCX_ERRH_ENABLE", Nothing(UCX)),
    ("BYTEPS_UCX_FORCE_REQ_ORDER", Nothing(UCX)),
    ("BYTEPS_UCX_QUEUE_SENDS", Nothing(UCX)),
    ("BYTEPS_UCX_RECONNECT_TMO", Nothing(UCX)),
    ("BYTEPS_UCX_SHORT_THRESH", Nothing(UCX)),
    ("BYTEPS_ZMQ_MAX_SOCKET", Nothing("there is one connection per lane and peer (`cluster.lanes`)")),
    ("BYTEPS_ZMQ_NTHREADS", Nothing("data threads do their own I/O; their number is `cluster.lanes`")),
    (
        "DMLC_ENABLE_RDMA",
        Becomes(
            "`transport.verbs` = require for 1 or ibverbs; with 0 the transport is selected automatically",
            convert::rdma,
        ),
    ),
    ("DMLC_ENABLE_UCX", Nothing(UCX)),
    ("DMLC_GROUP_SIZE", Nothing("a process is one member of the cluster; start more processes")),
    ("DMLC_LOCKLESS_QUEUE", Nothing("queues of the data path never take locks")),
    ("DMLC_NUM_CPU_DEV", Nothing("tensors are in main memory")),
    ("DMLC_NUM_GPU_DEV", Nothing("tensors are in main memory")),
    ("DMLC_NUM_PORTS", Nothing("a server has one port, and one connection per lane (`cluster.lanes`)")),
    ("DMLC_POLLING_IN_NANOSECOND", Nothing("use `memory.spin_us`")),
    ("DMLC_PORT", Is("node.port")),
];

const BYTEPS: Rows = &[
    ("BYTEPS_BUILT_IN_HASH_COEF", Nothing(HASHES)),
    ("BYTEPS_CPU_BLACKLIST", Nothing(CORES)),
    ("BYTEPS_DEBUG_SAMPLE_TENSOR", Nothing("values are not logged; pull the tensor and print them")),
    ("BYTEPS_ENABLE_ASYNC", Becomes("`cluster.mode` = async for 1", convert::asynchronous)),
    ("BYTEPS_ENABLE_GDB", Nothing("start gdb --args PROGRAM through `gradwire launch`")),
    ("BYTEPS_ENABLE_MIXED_MODE", Nothing(MIXED)),
    ("BYTEPS_FORCE_DISTRIBUTED", Nothing("a job of one worker also has servers")),
    ("BYTEPS_GLOBAL_RANK", Nothing("the rank is set by `node.rank`")),
    ("BYTEPS_KEY_HASH_FN", Nothing(HASHES)),
    ("BYTEPS_LOCAL_RANK", Read("with BYTEPS_LOCAL_SIZE: `node.rank` of a worker")),
    (
        "BYTEPS_LOCAL_SIZE",
        Read(
            "workers of each machine: `cluster.workers` is DMLC_NUM_WORKER times this, \
             `node.rank` is DMLC_WORKER_ID times this plus BYTEPS_LOCAL_RANK; give it to the scheduler, too",
        ),
    ),
    ("BYTEPS_LOG_HIDE_TIME", Nothing("use `log.json`, and remove the time with a tool")),
    ("BYTEPS_LOG_LEVEL", Becomes("`log.filter`", convert::log_level)),
    ("BYTEPS_MIN_COMPRESS_BYTES", Nothing("the codec of a tensor is set in its declaration")),
    ("BYTEPS_MIXED_MODE_BOUND", Nothing(MIXED)),
    ("BYTEPS_MULTITHREADED_CPU", Nothing(CORES)),
    ("BYTEPS_NCCL_GROUP_SIZE", Nothing(NCCL)),
    ("BYTEPS_NCCL_NUM_RINGS", Nothing(NCCL)),
    ("BYTEPS_NUMA_DEFAULT_QUOTA", Nothing(CORES)),
    ("BYTEPS_NUMA_ON", Nothing(CORES)),
    ("BYTEPS_NUMA_ROOT_QUOTA", Nothing(CORES)),
    (
        "BYTEPS_OMP_THREAD_PER_GPU",
        Nothing("servers reduce; `cluster.lanes` is the number of their data threads"),
    ),
    (
        "BYTEPS_PARTITION_BYTES",
        Becomes(
            "`cluster.chunk_bytes`, rounded up to whole pages; the scheduler's value applies",
            convert::partition,
        ),
    ),
    ("BYTEPS_PCIE_SWITCH_SIZE", Nothing(NCCL)),
    ("BYTEPS_REDUCE_ROOTS", Nothing(NCCL)),
    ("BYTEPS_SCHEDULING_CREDIT", Nothing("servers grant credits (`memory.inbox_slots`)")),
    ("BYTEPS_SERVER_DEBUG", Nothing("use `log.filter` = debug")),
    ("BYTEPS_SERVER_DEBUG_KEY", Nothing("use `log.filter` = debug")),
    ("BYTEPS_SERVER_ENABLE_SCHEDULE", Nothing("priorities are always honoured, at the worker")),
    ("BYTEPS_SERVER_ENGINE_BLOCKING", Nothing("a chunk's data thread reduces it and never blocks")),
    ("BYTEPS_SERVER_ENGINE_THREAD", Is("cluster.lanes")),
    (
        "BYTEPS_SOCKET_PATH",
        Nothing("processes of one host find each other through the scheduler and leave no files"),
    ),
    ("BYTEPS_TELEMETRY_ON", Nothing(TRACES)),
    ("BYTEPS_THREADPOOL_SIZE", Nothing("the thread that pushes a gradient encodes it")),
    ("BYTEPS_TRACE_DIR", Nothing(TRACES)),
    ("BYTEPS_TRACE_END_STEP", Nothing(TRACES)),
    ("BYTEPS_TRACE_ON", Nothing(TRACES)),
    ("BYTEPS_TRACE_START_STEP", Nothing(TRACES)),
    ("BYTEPS_USE_MPI", Nothing("`gradwire launch --cluster mpi` reads MPI's ranks")),
    ("BYTEPS_VISIBLE_CPU_CORES", Nothing(CORES)),
    ("DMLC_WORKER_ID", Read("`node.rank` of a worker; with BYTEPS_LOCAL_SIZE its machine's number")),
    ("PS_KEY_LOG", Nothing("`gradwire plan` shows the placement of tensors")),
];

const MXNET: Rows = &[
    (
        "MXNET_KVSTORE_BIGARRAY_BOUND",
        Nothing(
            "every tensor is split into chunks (`cluster.chunk_bytes`), and servers get about the same number of bytes",
        ),
    ),
    ("MXNET_KVSTORE_DIST_ROW_SPARSE_VERBOSE", Nothing("use `log.filter` = debug")),
    ("MXNET_KVSTORE_LOGTREE", Nothing(TREES)),
    ("MXNET_KVSTORE_REDUCTION_NTHREADS", Nothing(TREES)),
    ("MXNET_KVSTORE_SERIAL_PUSH", Nothing(TREES)),
    ("MXNET_KVSTORE_SLICE_THRESHOLD", Nothing("tensors are always split, at `cluster.chunk_bytes`")),
    ("MXNET_KVSTORE_TREE_ARRAY_BOUND", Nothing(TREES)),
    ("MXNET_KVSTORE_TREE_BACKTRACK", Nothing(TREES)),
    ("MXNET_KVSTORE_TREE_LINK_USAGE_PENALTY", Nothing(TREES)),
    ("MXNET_KVSTORE_USETREE", Nothing(TREES)),
    (
        "MXNET_UPDATE_ON_KVSTORE",
        Read("MXNet's own: gluon's Trainer asks the kvstore for updates, or makes them itself"),
    ),
];

const DMLC: Rows = &[
    ("DMLC_HDFS_OPTS", Nothing(SUBMIT)),
    ("DMLC_JOB_ARCHIVES", Nothing(SUBMIT)),
    ("DMLC_JOB_CLUSTER", Read(STARTED)),
    ("DMLC_LOG_DEBUG", Nothing("use `log.filter` = debug")),
    ("DMLC_LOG_STACK_TRACE_DEPTH", Nothing("use RUST_BACKTRACE=1")),
    ("DMLC_MAX_ATTEMPT", Nothing("use `gradwire launch --restart=N`, which restarts failed members")),
    ("DMLC_NUM_ATTEMPT", Read(STARTED)),
    ("DMLC_SERVER_CORES", Nothing(SUBMIT)),
    ("DMLC_SERVER_ID", Read("`node.rank` of a server")),
    ("DMLC_SERVER_MEMORY_MB", Nothing(SUBMIT)),
    ("DMLC_SUBMIT_CLUSTER", Read("`gradwire launch`: the default of --cluster")),
    ("DMLC_TASK_ID", Read(STARTED)),
    (
        "DMLC_TRACKER_PORT",
        Nothing("there is no rabit tracker; members find the scheduler through DMLC_PS_ROOT_PORT"),
    ),
    (
        "DMLC_TRACKER_URI",
        Nothing("there is no rabit tracker; members find the scheduler through DMLC_PS_ROOT_URI"),
    ),
    ("DMLC_WORKER_CORES", Nothing(SUBMIT)),
    ("DMLC_WORKER_MEMORY_MB", Nothing(SUBMIT)),
];

/// All of them.
pub fn variables() -> impl Iterator<Item = Variable> {
    let all: [(Peer, Rows); 5] =
        [(PsLite, PS_LITE), (Fork, FORK), (BytePs, BYTEPS), (Mxnet, MXNET), (Dmlc, DMLC)];
    all.into_iter()
        .flat_map(|(peer, rows)| rows.iter().map(move |&(name, does)| Variable { name, peer, does }))
}
