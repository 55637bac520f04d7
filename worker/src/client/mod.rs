//! The client: what trainers hold. Connects, declares, moves tensors, meets others at barriers. Everything
//! belongs to an instance; several clients can live in one process.

mod buffer;
mod call;
mod checkpoint;
mod coded;
mod connect;
mod element;
mod from_env;
mod future;
mod handle;
mod homes;
mod placing;
mod registrations;
mod reported;
mod resume;
mod source;
mod status;
mod tables;
mod tensor;
mod together;
mod transfer;
mod weights;

pub use buffer::{Piece, SharedBuffer, TensorBuffer};
pub use call::{CallHandle, CallReply, CallRequest, ReplyBody};
pub use element::Element;
pub use future::OpFuture;
pub use handle::{Ended, Handle};
pub use registrations::RegistrationStats;
pub use source::{Source, Target};
pub use tables::{RowsHandle, Table};
pub use tensor::Tensor;
pub use weights::Weights;

use crate::error::{ClientError, OpError};
use crate::runtime::{
    Control, LaneHandle, LaneMessage, LaneReport, Links, Members, OpStates, Requests, Spares,
};
use daemon::flight::Flight;
use daemon::lanes::Reports;
use daemon::notify::Notify;
use daemon::post::Posts;
use fabric::{Devices, Pool, Span};
use proto_common::config::{Settings, WorkerLoss};
use proto_common::ids::{Incarnation, Key, Rank, Role};
use proto_common::message::{ClusterShape, Coming, DeclareError, NodeGroup, ToScheduler};
use proto_common::mode::Mode;
use proto_common::optimizer::Optimizer;
use proto_common::shard_map::{MapUpdate, ShardMap};
use proto_common::table::{HOMES, home_of};
use proto_common::tensor::{RuleChange, TensorSpec};
use proto_common::transport::{Choice, Driver};
use registrations::RegistrationCache;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long a lane may take to report its counts.
const REPORT_WITHIN: Duration = Duration::from_millis(500);

/// A worker of a Gradwire cluster. Thread-safe; clones share it. When the last clone is dropped, the worker leaves the
/// cluster.
#[derive(Clone)]
pub struct Client(Arc<Inner>);

pub(crate) struct Inner {
    settings: Settings,
    shape: ClusterShape,
    rank: Rank,
    coming: Coming,
    incarnation: Incarnation,
    pool: Pool,
    devices: Devices,
    lanes: Arc<[LaneHandle]>,
    /// What the trainer was told of them last.
    reports: Reports<LaneReport>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    control: Mutex<Option<Control>>,
    posts: Posts,
    /// Held by a declaration, from its request until its update is applied.
    declaring: Mutex<()>,
    members: Members,
    tensors: RwLock<BTreeMap<Key, Tensor>>,
    /// Is the first iteration over, and has been planned with?
    traced: AtomicBool,
    /// Bytes of key buffers that the plan has given to tensors, at each server.
    planned_bytes: AtomicU64,
    links: Arc<Links>,
    next_op: AtomicU64,
    states: Arc<OpStates>,
    dead: Arc<Mutex<Option<OpError>>>,
    registrations: Arc<RegistrationCache>,
    reported: Arc<reported::Reported>,
    calls: call::Lines,
    /// Where rows of tables are, once one was declared.
    homes: Mutex<Option<Arc<homes::Homes>>>,
    /// Frames of short calls.
    frames: Spares,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("rank", &self.0.rank).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What these locks guard is replaced whole; a panic elsewhere leaves nothing half done.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An error of a declaration, with the names of its tensors: they do not travel.
fn named(error: ClientError, specs: &[TensorSpec]) -> ClientError {
    match error {
        ClientError::Declare(error) => ClientError::Declare(error.with_names(specs)),
        other => other,
    }
}

impl Client {
    /// Joins the cluster that the settings name: registers with the scheduler, waits until all members have
    /// registered, and connects to every server. Each step has a deadline (`deadlines.*`), and its error names the
    /// missing members.
    pub fn connect(settings: Settings) -> Result<Self, ClientError> {
        let flight = Flight::embedded(Role::Worker, &settings);
        connect::connect(settings, Notify::default(), flight)
    }

    /// As [`Client::connect`], with notifications to the service manager that started this process: registered, alive
    /// while it has data threads, left. `flight` is the process's recorder.
    pub fn connect_told(settings: Settings, notify: Notify, flight: Flight) -> Result<Self, ClientError> {
        connect::connect(settings, notify, flight)
    }

    /// This worker's rank, from 0 to `workers() - 1`.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.0.rank.0
    }

    /// The number of workers in the job.
    #[must_use]
    pub fn workers(&self) -> u32 {
        self.0.shape.workers
    }

    /// The number of servers in the job.
    #[must_use]
    pub fn servers(&self) -> u32 {
        self.0.shape.servers
    }

    /// The mode of tensors that set none: the cluster's, from the scheduler.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.0.shape.mode
    }

    /// The incarnation of this process, as in the roster.
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        self.0.incarnation
    }

    /// The driver to each connected server, by rank, and the reason for it.
    #[must_use]
    pub fn links(&self) -> Vec<(Rank, Choice)> {
        self.0.links.all()
    }

    /// The drivers in use, for display: "shm", "tcp" or "shm+tcp".
    #[must_use]
    pub fn transport(&self) -> String {
        let links = self.links();
        let used = |driver: &Driver| links.iter().any(|(_, choice)| choice.driver == *driver);
        Driver::ALL.iter().filter(|d| used(d)).map(ToString::to_string).collect::<Vec<_>>().join("+")
    }

    /// Declares tensors. All workers must declare the same tensors, in any number of calls. A repeated declaration has
    /// no effect; another shape or rule for a known key is refused. A declared tensor is all zeros until it is
    /// initialised or pushed to. Returns the tensors in the given order. Waits for the servers at most
    /// `deadlines.operation_ms`; the error names those that have not allocated, and the same declaration then waits
    /// again.
    ///
    /// All chunks of a tensor with LAMB are in flight at once. The chunks on one lane of one server must fit into
    /// `memory.operations` together; otherwise the last tensor is refused, and this worker cannot use it.
    pub fn declare(&self, specs: &[TensorSpec]) -> Result<Vec<Tensor>, ClientError> {
        if let Some(spec) = specs.iter().find(|spec| home_of(spec.key).is_some()) {
            let what = format!(
                "the 2^32 keys from {HOMES} on are reserved for the rows of tables. Use another key."
            );
            return Err(DeclareError::from(spec.unsupported(what)).into());
        }
        self.declare_any(specs)
    }

    /// As [`Client::declare`], including homes of rows.
    fn declare_any(&self, specs: &[TensorSpec]) -> Result<Vec<Tensor>, ClientError> {
        let (chunk_bytes, most) = (self.0.shape.chunk_bytes, together::in_flight_max(&self.0.settings));
        for spec in specs {
            spec.clone().settled(&self.0.shape).validate_in(&self.0.shape).map_err(DeclareError::from)?;
            together::fits_alone(spec, chunk_bytes, most).map_err(DeclareError::from)?;
        }
        let within = Duration::from_millis(self.0.settings.deadlines.operation_ms);
        // One at a time, so that updates are applied in the order of their epochs.
        let _declaring = lock(&self.0.declaring);
        let counts = self.counts(within)?;
        let update = self.requests()?.declare(specs.to_vec(), within).map_err(|error| named(error, specs))?;
        let new = self.0.members.with_map(|map| self.add(&update, map, (most, &counts)));
        self.place(&new.ok_or_else(|| OpError::Closed("it was closed by this process".into()))??, false);
        specs.iter().map(|spec| self.tensor(spec.key.0)).collect()
    }

    /// If this worker joined between rounds: the round of each tensor from which it counts. No contribution may be
    /// sent before this is known.
    fn counts(&self, within: Duration) -> Result<BTreeMap<Key, u64>, ClientError> {
        if self.0.coming != Coming::Between {
            return Ok(BTreeMap::new());
        }
        self.0.members.counts(within).ok_or_else(|| {
            let waited_ms = within.as_millis() as u64;
            let reason = "the scheduler did not say from which rounds on this worker counts; see its log for a server that does not answer".into();
            self.dead().map_or(ClientError::Assemble { waited_ms, reason }, Into::into)
        })
    }

    /// The tensors that are new, cut as the map has them. It may change from then on: lanes know.
    fn add(
        &self,
        update: &MapUpdate,
        map: &ShardMap,
        (most, counts): (usize, &BTreeMap<Key, u64>),
    ) -> Result<Vec<Tensor>, ClientError> {
        let mut tensors = self.0.tensors.write().unwrap_or_else(PoisonError::into_inner);
        let used = tensors.values().map(Tensor::spec);
        let unused = update.tensors.iter().filter(|spec| !tensors.contains_key(&spec.key));
        together::fit(used, unused, map, most).map_err(DeclareError::from)?;
        let mut new = Vec::new();
        for spec in &update.tensors {
            tensors.entry(spec.key).or_insert_with(|| {
                let tensor = Tensor::new((self.0.incarnation, self.0.rank), spec, map, self.0.lanes.len());
                if let Some(from) = counts.get(&spec.key) {
                    tensor.numbers().go_on_after(from.saturating_sub(1), false);
                }
                new.push(tensor.clone());
                tensor
            });
        }
        Ok(new)
    }

    /// Changes a tensor's update rule, from this worker's next contribution on. All chunks and all workers have the
    /// new rule from that round on; the round is returned. One worker's call is enough. State that both rules use is
    /// kept (see [`RuleChange`]). This worker's other operations on the tensor wait meanwhile. After an error that is
    /// not the caller's it is unknown whether servers have the change: call again.
    ///
    /// Outside mode sync, and with backup workers, each chunk has the new rule from its next contribution or round on.
    /// Contributions that any worker sends after the call has returned are under the new rule, and the returned number
    /// has no meaning.
    pub fn change_rule(&self, tensor: &Tensor, optimizer: Optimizer) -> Result<u64, ClientError> {
        let key = tensor.key();
        if !tensor.is_of(self.0.incarnation) {
            return Err(tensor.foreign("tensor", "`declare` or `tensor`"));
        }
        let within = Duration::from_millis(self.0.settings.deadlines.operation_ms);
        let requests = self.requests()?;
        // Nobody finishes a round that this worker has not contributed to, and it does not before this is answered.
        let numbers = tensor.numbers();
        let change = RuleChange { key, from_round: numbers.rounds() + 1, optimizer };
        tensor.spec().validate_change(&change, self.0.shape.chunk_bytes).map_err(DeclareError::from)?;
        let specs = std::slice::from_ref(tensor.spec());
        requests.change_rule(change, within).map_err(|error| named(error, specs))?;
        Ok(change.from_round)
    }

    /// A declared tensor, by key.
    pub fn tensor(&self, key: u64) -> Result<Tensor, ClientError> {
        let tensors = self.0.tensors.read().unwrap_or_else(PoisonError::into_inner);
        tensors.get(&Key(key)).cloned().ok_or(ClientError::Undeclared(Key(key)))
    }

    /// Declared tensors, by a list of keys, which must be sorted and without duplicates.
    pub fn tensors(&self, keys: &[u64]) -> Result<Vec<Tensor>, ClientError> {
        if let Some(at) = keys.windows(2).position(|pair| pair[1] <= pair[0]) {
            return Err(ClientError::Unsorted { position: at + 1, key: Key(keys[at + 1]) });
        }
        keys.iter().map(|key| self.tensor(*key)).collect()
    }

    /// Registered memory with the size of a tensor. The sender does not copy gradients and weights in such buffers.
    /// Zeroed when new.
    pub fn allocate(&self, bytes: u64) -> Result<TensorBuffer, ClientError> {
        let buffer = self.0.pool.allocate(bytes)?;
        self.prepare(&buffer.span())?;
        Ok(TensorBuffer::new(buffer))
    }

    /// For a child process that was forked after this client connected: makes the memory of its buffers readable
    /// there, with the parent's contents. Writes are private to the child. Nothing else of a client may be used or
    /// dropped there.
    pub fn copy_memory_for_child(&self) -> Result<(), ClientError> {
        Ok(self.0.pool.region().copy_for_child()?)
    }

    /// Registers memory with the RDMA device, if any link is over it, so that what stands against that is told here.
    fn prepare(&self, span: &Span) -> Result<(), fabric::FabricError> {
        if self.0.links.are_over_device() { self.0.devices.prepare(span) } else { Ok(()) }
    }

    /// Waits until all members of the group have arrived at the barrier with this name, at most
    /// `deadlines.barrier_ms`. The error names the missing members. Ranks count, not messages.
    pub fn barrier_of(&self, name: &str, group: NodeGroup) -> Result<(), ClientError> {
        let within = Duration::from_millis(self.0.settings.deadlines.barrier_ms);
        self.requests()?.barrier(name, group, within)
    }

    /// Small messages to and from other members' programs, through the scheduler.
    #[must_use]
    pub fn posts(&self) -> &Posts {
        &self.0.posts
    }

    /// A barrier of all workers.
    pub fn barrier(&self) -> Result<(), ClientError> {
        self.barrier_of("workers", NodeGroup::WORKERS)
    }

    /// Leaves the cluster in good order: does not wait, says goodbye to the scheduler, ends the threads. Operations in
    /// flight fail with [`OpError::Closed`].
    pub fn close(&self) {
        self.0.leave(ToScheduler::Goodbye);
    }

    /// Leaves because the trainer failed. All other members are notified of the reason.
    pub fn fail(&self, reason: &str) {
        self.0.leave(ToScheduler::Failing { reason: reason.to_owned() });
    }

    /// What ended the job, if anything: a member's failure, or the scheduler's decision.
    #[must_use]
    pub fn dead(&self) -> Option<OpError> {
        lock(&self.0.dead).clone()
    }

    /// Counts of all lanes, as in metrics and heartbeats. A lane that does not respond for half a second counts with
    /// its last report.
    #[must_use]
    pub fn stats(&self) -> crate::engine::LaneStats {
        let ask = |lane: &LaneHandle, reply| lane.send_beside(LaneMessage::Report(reply));
        let told = self.0.reports.of(&self.0.lanes, ask).into_iter().filter_map(|lane| lane.told);
        told.fold(crate::engine::LaneStats::default(), |sum, report| sum.plus(&report.stats))
    }

    /// Statistics of the trainer's own buffers. The call also releases buffers that nothing else refers to.
    #[must_use]
    pub fn registrations(&self) -> RegistrationStats {
        self.0.registrations.sweep()
    }

    /// Forgets this buffer: its next push is copied again. When operations with it have ended,
    /// [`fabric::UserBuffer::into_vec`] returns its contents.
    pub fn forget(&self, buffer: &fabric::UserBuffer) {
        self.0.registrations.forget(buffer);
    }

    /// The time limit of operations on a tensor. If rounds wait for failed workers, this time is included.
    fn operation_ms(&self) -> u32 {
        let deadlines = &self.0.settings.deadlines;
        let returns_ms = if self.0.shape.worker_loss == WorkerLoss::Wait { deadlines.rejoin_ms } else { 0 };
        u32::try_from(deadlines.operation_ms.saturating_add(returns_ms)).unwrap_or(u32::MAX)
    }

    /// Whoever waits for an answer keeps nobody from asking, or from leaving: that ends the wait.
    fn requests(&self) -> Result<Requests, ClientError> {
        let requests = lock(&self.0.control).as_ref().map(Control::requests);
        requests.ok_or_else(|| OpError::Closed("it was closed by this process".into()).into())
    }
}

impl Inner {
    fn leave(&self, last: ToScheduler) {
        let Some(mut control) = lock(&self.control).take() else { return };
        self.members.close();
        for lane in self.lanes.iter() {
            lane.send(LaneMessage::Stop);
        }
        for thread in lock(&self.threads).drain(..) {
            if thread.join().is_err() {
                tracing::error!("a data thread panicked");
            }
        }
        control.finish(last, Duration::from_millis(self.settings.deadlines.drain_ms));
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.leave(ToScheduler::Goodbye);
    }
}
