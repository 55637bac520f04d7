//! What all clones of a client share, and what a client says of itself. Must not import files that declare, move or ask something:
//! those import this one.

use super::buffer::{LentMemory, TensorBuffer};
use super::gate::Passing;
use super::home::Homes;
use super::registrations::{RegistrationCache, RegistrationStats};
use super::reported::Reported;
use super::tensor::Tensor;
use crate::error::{ClientError, OpError};
use crate::host::Host;
use crate::runtime::{
    Blocked, Control, LaneHandle, LaneMessage, LaneReport, Line, Links, Members, OpStates, Requests,
    drive_until, waiting, warn,
};
use daemon::lanes::Reports;
use daemon::post::Posts;
use fabric::{Devices, Pool, Region, Span, lock};
use proto_common::config::{Settings, WorkerLoss};
use proto_common::ids::{Incarnation, Key, Rank};
use proto_common::message::{ClusterShape, Coming, NodeGroup, ToScheduler, WaitError};
use proto_common::mode::Mode;
use proto_common::transport::{Choice, Driver};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, OnceLock, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a lane may take to report its counts.
pub(super) const REPORT_WITHIN: Duration = Duration::from_millis(500);

/// For each handler of each server, the calls to it.
type Lines = HashMap<(u32, Rank), Arc<Line>>;

/// A worker of a Gradwire cluster. Thread-safe; clones share it. When the last clone is dropped, the worker leaves the
/// cluster.
#[derive(Clone)]
pub struct Client(pub(super) Arc<Inner>);

pub(super) struct Inner {
    pub(super) settings: Settings,
    pub(super) shape: ClusterShape,
    pub(super) rank: Rank,
    pub(super) coming: Coming,
    pub(super) incarnation: Incarnation,
    pub(super) pool: Pool,
    pub(super) devices: Devices,
    pub(super) lanes: Arc<[LaneHandle]>,
    /// What the trainer was told of them last.
    pub(super) reports: Reports<LaneReport>,
    pub(super) threads: Mutex<Vec<JoinHandle<()>>>,
    pub(super) control: Mutex<Option<Control>>,
    pub(super) posts: Posts,
    /// Held by a declaration, from its request until its update is applied.
    pub(super) declaring: Mutex<()>,
    pub(super) members: Members,
    pub(super) tensors: RwLock<BTreeMap<Key, Tensor>>,
    /// Is the first iteration over, and has been planned with?
    pub(super) traced: AtomicBool,
    /// Bytes of key buffers that the plan has given to tensors, at each server.
    pub(super) planned_bytes: AtomicU64,
    pub(super) links: Arc<Links>,
    pub(super) next_op: AtomicU64,
    pub(super) states: Arc<OpStates>,
    /// Where operations meet those of the other workers of this host, if they do.
    pub(super) host: Arc<OnceLock<Host<Passing>>>,
    pub(super) dead: Arc<Mutex<Option<OpError>>>,
    pub(super) registrations: Arc<RegistrationCache>,
    pub(super) reported: Arc<Reported>,
    pub(super) calls: RwLock<Lines>,
    /// Where rows of tables are, once one was declared.
    pub(super) homes: Mutex<Option<Arc<Homes>>>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("rank", &self.0.rank).finish_non_exhaustive()
    }
}

impl Client {
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

    /// Registered memory with the size of a tensor. The sender does not copy gradients and weights in such buffers.
    /// Zeroed when new.
    pub fn allocate(&self, bytes: u64) -> Result<TensorBuffer, ClientError> {
        let buffer = self.0.pool.allocate(bytes)?;
        self.prepare(&buffer.span())?;
        Ok(TensorBuffer::new(buffer))
    }

    /// As [`Client::allocate`], for memory that the program keeps for long, which is no part of `memory.pool_bytes` and at most as much
    /// again. `None` beyond that.
    pub fn allocate_kept(&self, bytes: u64) -> Result<Option<TensorBuffer>, ClientError> {
        let Some(buffer) = self.0.pool.allocate_kept(bytes) else { return Ok(None) };
        self.prepare(&buffer.span())?;
        Ok(Some(TensorBuffer::new(buffer)))
    }

    /// Adopted memory that is registered memory of this client; otherwise it is returned.
    pub fn lent(&self, memory: Region) -> Result<LentMemory, Region> {
        match self.0.pool.region().stretch_of(&memory) {
            Some(span) => Ok(LentMemory::new(span, memory)),
            None => Err(memory),
        }
    }

    /// Waits for what only the program knows to be over, such as calls that have callbacks. Works for the client meanwhile, which saves
    /// hand-overs between threads. When there has been nothing to do for `memory.spin_us`, `sleep` is to wait for it.
    pub fn wait_for(&self, is_over: impl Fn() -> bool, sleep: impl FnOnce()) {
        let lanes = || self.0.lanes.iter();
        lanes().for_each(LaneHandle::visit);
        if is_over() {
            return;
        }
        // It never sleeps on a lane: what it waits for may come from another thread.
        drive_until(lanes(), Instant::now(), &is_over);
        if !is_over() {
            let blocked = Blocked::new(lanes());
            sleep();
            drop(blocked);
        }
    }

    /// For a child process that was forked after this client connected: makes the memory of its buffers readable
    /// there, with the parent's contents. Writes are private to the child. Nothing else of a client may be used or
    /// dropped there.
    pub fn copy_memory_for_child(&self) -> Result<(), ClientError> {
        Ok(self.0.pool.region().copy_for_child()?)
    }

    /// Registers memory with the RDMA device, if any link is over it, so that what stands against that is told here.
    pub(super) fn prepare(&self, span: &Span) -> Result<(), fabric::FabricError> {
        if self.0.links.are_over_device() { self.0.devices.prepare(span) } else { Ok(()) }
    }

    /// Waits until all members of the group have arrived at the barrier with this name, at most `deadlines.busy_ms`.
    /// Every `deadlines.operation_ms` a warning names the missing members, and so does the error. Ranks count, not messages.
    pub fn barrier_of(&self, name: &str, group: NodeGroup) -> Result<(), ClientError> {
        let (began, every) = (Instant::now(), Duration::from_millis(self.0.settings.deadlines.operation_ms));
        let most = every.max(Duration::from_millis(self.busy_ms()));
        loop {
            let result = self.barrier_within(name, group, every.min(most.saturating_sub(began.elapsed())));
            let Err(ClientError::Wait(WaitError::Deadline { missing, .. })) = &result else { return result };
            let waited_ms = began.elapsed().as_millis() as u64;
            if began.elapsed() >= most {
                let (name, missing) = (name.to_owned(), missing.clone());
                return Err(WaitError::Deadline { name, waited_ms, missing }.into());
            }
            let missing: Vec<String> = missing.iter().map(ToString::to_string).collect();
            warn(&waiting(&format!("barrier {name:?}"), waited_ms, &missing.join(", "), "to arrive", 0));
        }
    }

    /// As [`Client::barrier_of`], but the error comes after `within`.
    pub fn barrier_within(&self, name: &str, group: NodeGroup, within: Duration) -> Result<(), ClientError> {
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

    /// Leaves the cluster in good order: does not wait (but for sums that it is part of with other workers of its host), says goodbye to the scheduler, ends the threads. Operations in
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

    /// Reports a value of the training, such as its loss. The newest value of each name travels with heartbeats, and
    /// is shown by the scheduler's page, `gradwire status --json`, `gradwire top` and this worker's `/metrics`. At
    /// most 16 names of 48 bytes; names are permanent. It takes a lock, and allocates only for a new name.
    pub fn report_metric(&self, name: &str, value: f64) -> Result<(), ClientError> {
        self.0.reported.set(name, value)
    }

    /// The time that servers have for an operation on a tensor.
    pub(super) fn operation_ms(&self) -> u32 {
        u32::try_from(self.0.settings.deadlines.operation_ms).unwrap_or(u32::MAX)
    }

    /// How long operations and barriers wait for members that are busy. If rounds wait for failed workers, they may return first.
    pub(super) fn busy_ms(&self) -> u64 {
        let deadlines = &self.0.settings.deadlines;
        match self.0.shape.worker_loss {
            WorkerLoss::Wait => {
                deadlines.busy_ms.max(deadlines.operation_ms.saturating_add(deadlines.rejoin_ms))
            }
            WorkerLoss::Stop | WorkerLoss::Continue => deadlines.busy_ms,
        }
    }

    /// By then an operation on a tensor has ended.
    pub(super) fn operation_ends(&self) -> Duration {
        Duration::from_millis(self.busy_ms().saturating_add(self.0.settings.deadlines.operation_ms))
    }

    /// Whoever waits for an answer keeps nobody from asking, or from leaving: that ends the wait.
    pub(super) fn requests(&self) -> Result<Requests, ClientError> {
        let requests = lock(&self.0.control).as_ref().map(Control::requests);
        requests.ok_or_else(|| OpError::Closed("it was closed by this process".into()).into())
    }
}

impl Inner {
    fn leave(&self, last: ToScheduler) {
        let Some(mut control) = lock(&self.control).take() else { return };
        let fails = matches!(last, ToScheduler::Failing { .. });
        if let Some(host) = self.host.get().filter(|_| fails) {
            // It waits for nobody then.
            host.fail(&OpError::Closed("this process has failed".into()));
        }
        // Its sums may need the next server of a chunk still.
        let is_clean = self.host.get().is_none_or(Host::leave);
        self.members.close();
        for lane in self.lanes.iter() {
            lane.send(LaneMessage::Stop);
        }
        for thread in lock(&self.threads).drain(..) {
            if thread.join().is_err() {
                tracing::error!("a data thread panicked");
            }
        }
        let last = match last {
            // Servers would count contributions that are in a sum which never came, or not count one that is in a sum.
            ToScheduler::Goodbye if !is_clean => {
                let reason = "it left before the servers had answered a sum that it is part of: wait for operations before closing";
                ToScheduler::Failing { reason: reason.into() }
            }
            last => last,
        };
        if last == ToScheduler::Goodbye {
            self.posts.flush();
        }
        control.finish(last, Duration::from_millis(self.settings.deadlines.drain_ms));
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.leave(ToScheduler::Goodbye);
    }
}
