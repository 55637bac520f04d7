//! The polling thread of one completion queue: posts the copies that it is handed, polls, tells of ends, keeps their
//! deadlines, and sleeps when there is nothing to do. It owns its channels; it must not know of endpoints and names.

use super::copy::{CopyError, Direction, Job};
use crate::device::{ChannelSetup, CompletionQueue, CqHandle};
use crate::error::{FabricError, PostError};
use crate::lane::LaneQueue;
use crate::lock::lock;
use crate::mailbox::{Letters, Mailbox};
use crate::memory::{Access, Region};
use crate::oneshot;
use crate::work::{ChannelId, Completion, CompletionKind, Read, RemoteKey, Write};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::TryRecvError;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A sleep without anything due.
const SLEEP_MAX: Duration = Duration::from_secs(60);
/// Between two attempts to post what waits for a key that the peer has told and that has not come yet.
const KEY_WAIT: Duration = Duration::from_millis(1);

/// What a polling thread is told.
#[derive(Debug)]
pub(super) enum Order {
    /// Take over a channel, and let its peer reach these. Where nobody takes the answer it is to be closed.
    Attach(ChannelSetup, Vec<Region>, Mailbox<Order>, oneshot::Sender<Result<Unclaimed, FabricError>>),
    /// Let a channel's peer reach a region.
    Expose(ChannelId, Region, oneshot::Sender<Result<RemoteKey, PostError>>),
    Copy(ChannelId, Job),
    Close(ChannelId),
    Stop,
}

/// A channel that a polling thread has taken over. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct Attached {
    pub(super) id: ChannelId,
    /// Why it ended, once it has.
    pub(super) ended: Arc<OnceLock<String>>,
    /// Its copies that have not ended.
    pub(super) pending: Arc<AtomicUsize>,
}

/// An attached channel on its way to whoever asked for it, who may have given up: it is closed then.
#[derive(Debug)]
pub(super) struct Unclaimed(Option<Attached>, Mailbox<Order>);

impl Unclaimed {
    fn claim(mut self) -> Option<Attached> {
        self.0.take()
    }
}

impl Drop for Unclaimed {
    fn drop(&mut self) {
        if let Some(attached) = self.0.take() {
            self.1.send(Order::Close(attached.id));
        }
    }
}

/// A polling thread, as others know it.
#[derive(Debug)]
pub(super) struct Poller {
    pub(super) orders: Mailbox<Order>,
    pub(super) handle: CqHandle,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Poller {
    pub(super) fn start(index: usize, queue: LaneQueue, spin: Duration) -> Result<Self, FabricError> {
        let handle = queue.handle();
        let (orders, received) = Mailbox::new(queue.waker());
        let polling = Polling::new(queue, received, spin);
        let thread = std::thread::Builder::new()
            .name(format!("gradwire-cq-{index}"))
            .spawn(move || polling.run())
            .map_err(|e| FabricError::os("starting a polling thread", e))?;
        Ok(Self { orders, handle, thread: Mutex::new(Some(thread)) })
    }

    /// Hands a channel over, whose peer may reach these regions.
    pub(super) fn attach(
        &self,
        setup: ChannelSetup,
        regions: Vec<Region>,
        within: Duration,
    ) -> Result<Attached, FabricError> {
        let back = self.orders.clone();
        let attached = ask_poller(self, within, |reply| Order::Attach(setup, regions, back, reply))??;
        attached.claim().ok_or_else(|| FabricError::Internal("a channel was taken twice".into()))
    }

    /// Ends all channels with their copies, and waits for the thread.
    pub(super) fn stop(&self) {
        self.orders.send(Order::Stop);
        let thread = lock(&self.thread).take();
        // A callback may drop the machine's handle: its thread cannot wait for itself.
        if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        self.stop();
    }
}

#[derive(Debug)]
struct Flow {
    /// Not posted yet, in order.
    waiting: VecDeque<Job>,
    ended: Arc<OnceLock<String>>,
}

#[derive(Debug)]
struct Polling {
    queue: LaneQueue,
    orders: Letters<Order>,
    spin: Duration,
    flows: HashMap<ChannelId, Flow>,
    /// Channels with copies that wait to be posted.
    held_up: Vec<ChannelId>,
    /// By request id.
    posted: Vec<Option<(ChannelId, Job)>>,
    free: Vec<usize>,
    /// No copy is due before.
    next_deadline: Option<Instant>,
    inbox: Vec<Completion>,
}

impl Polling {
    fn new(queue: LaneQueue, orders: Letters<Order>, spin: Duration) -> Self {
        Self {
            queue,
            orders,
            spin,
            flows: HashMap::new(),
            held_up: Vec::new(),
            posted: Vec::new(),
            free: Vec::new(),
            next_deadline: None,
            inbox: Vec::new(),
        }
    }

    fn run(mut self) {
        let mut busy_at = Instant::now();
        loop {
            let mut busy = false;
            loop {
                match self.orders.try_recv() {
                    Ok(Order::Stop) | Err(TryRecvError::Disconnected) => return self.stop(),
                    Ok(order) => self.obey(order),
                    Err(TryRecvError::Empty) => break,
                }
                busy = true;
            }
            self.post_held_up();
            self.queue.flush();
            busy |= self.take_completions();
            let now = Instant::now();
            self.keep_deadlines(now);
            if busy || self.queue.moved() {
                busy_at = now;
            } else if now.duration_since(busy_at) < self.spin {
                std::hint::spin_loop();
            } else {
                self.queue.wait(self.sleep_at_most(now));
            }
        }
    }

    fn sleep_at_most(&self, now: Instant) -> Duration {
        let due = self.next_deadline.map_or(SLEEP_MAX, |due| due.saturating_duration_since(now));
        if self.held_up.is_empty() { due } else { due.min(KEY_WAIT) }
    }

    fn obey(&mut self, order: Order) {
        // Who asks may have given up waiting for the answer.
        match order {
            Order::Attach(setup, regions, back, reply) => {
                let attached = self.attach(setup, &regions);
                reply.send(attached.map(|attached| Unclaimed(Some(attached), back)));
            }
            Order::Expose(channel, region, reply) => {
                reply.send(self.expose(channel, &region));
            }
            Order::Copy(channel, job) => self.take(channel, job),
            Order::Close(channel) => self.end(channel, "this side closed it"),
            Order::Stop => {}
        }
    }

    fn attach(&mut self, setup: ChannelSetup, regions: &[Region]) -> Result<Attached, FabricError> {
        let id = self.queue.attach(setup)?;
        let ended = Arc::new(OnceLock::new());
        self.flows.insert(id, Flow { waiting: VecDeque::new(), ended: Arc::clone(&ended) });
        for region in regions {
            if let Err(error) = self.expose(id, region) {
                self.end(id, "cannot grant its peer access to a region");
                return Err(FabricError::Misuse(error.to_string()));
            }
        }
        Ok(Attached { id, ended, pending: Arc::default() })
    }

    fn expose(&mut self, channel: ChannelId, region: &Region) -> Result<RemoteKey, PostError> {
        let key = self.queue.expose(channel, region)?;
        self.queue.lend(channel, &region.all(), Access::ReadWrite, 0)?;
        Ok(key)
    }

    fn take(&mut self, channel: ChannelId, job: Job) {
        let Some(flow) = self.flows.get_mut(&channel) else {
            return job.on_done.call(Err(CopyError::Ended("it is closed".into())));
        };
        self.next_deadline = Some(self.next_deadline.map_or(job.deadline, |due| due.min(job.deadline)));
        if flow.waiting.is_empty() {
            self.held_up.push(channel);
        }
        flow.waiting.push_back(job);
    }

    /// Posts what waits, each channel's in order, as far as its driver takes it.
    fn post_held_up(&mut self) {
        for channel in std::mem::take(&mut self.held_up) {
            if self.post_all(channel) {
                self.held_up.push(channel);
            }
        }
    }

    /// Is something left?
    fn post_all(&mut self, channel: ChannelId) -> bool {
        loop {
            let Some(job) = self.flows.get_mut(&channel).and_then(|flow| flow.waiting.pop_front()) else {
                return false;
            };
            match self.post(channel, job) {
                None => {}
                Some((job, PostError::Full | PostError::RemoteAccess | PostError::Closed)) => {
                    // Bounds were checked: a key that is refused is on its way. Why a channel is closed is told next.
                    if let Some(flow) = self.flows.get_mut(&channel) {
                        flow.waiting.push_front(job);
                    }
                    return true;
                }
                Some((job, error)) => job.on_done.call(Err(error.into())),
            }
        }
    }

    /// The job comes back where it was not taken.
    fn post(&mut self, channel: ChannelId, job: Job) -> Option<(Job, PostError)> {
        let at = self.free.pop().unwrap_or(self.posted.len());
        let (id, remote) = (at as u64, job.remote);
        let posted = match job.direction {
            Direction::LocalToRemote => {
                let gather = std::slice::from_ref(&job.local);
                self.queue.post_write(channel, &Write { id, gather, remote, immediate: None, signaled: true })
            }
            Direction::RemoteToLocal => {
                self.queue.post_read(channel, &Read { id, local: &job.local, remote })
            }
        };
        if at == self.posted.len() {
            self.posted.push(None);
        }
        match posted {
            Ok(()) => {
                self.posted[at] = Some((channel, job));
                None
            }
            Err(error) => {
                self.free.push(at);
                Some((job, error))
            }
        }
    }

    fn take_completions(&mut self) -> bool {
        let mut inbox = std::mem::take(&mut self.inbox);
        self.queue.poll(&mut inbox);
        let came = !inbox.is_empty();
        for Completion { channel, kind } in inbox.drain(..) {
            match kind {
                CompletionKind::WriteDone { id } | CompletionKind::ReadDone { id } => {
                    self.done(channel, id as usize);
                }
                // Machines send each other no notices; a peer that does gains nothing.
                CompletionKind::Received { .. } => {}
                CompletionKind::Disconnected(reason) => self.end(channel, &reason.to_string()),
            }
        }
        self.inbox = inbox;
        came
    }

    fn done(&mut self, channel: ChannelId, at: usize) {
        let is_its = |entry: &&mut Option<(ChannelId, Job)>| entry.as_ref().is_some_and(|e| e.0 == channel);
        if let Some((_, job)) = self.posted.get_mut(at).filter(is_its).and_then(Option::take) {
            self.free.push(at);
            job.on_done.call(Ok(()));
        }
    }

    /// A channel with a late copy is closed: nobody else could promise that the copy's bytes do not move any more.
    fn keep_deadlines(&mut self, now: Instant) {
        if self.next_deadline.is_none_or(|due| now < due) {
            return;
        }
        let posted = self.posted.iter().flatten().map(|(channel, job)| (*channel, job.deadline));
        let waiting = self
            .flows
            .iter()
            .flat_map(|(channel, flow)| flow.waiting.iter().map(|job| (*channel, job.deadline)));
        let (mut late, mut next) = (Vec::new(), None::<Instant>);
        for (channel, due) in posted.chain(waiting) {
            if due <= now {
                late.push(channel);
            } else {
                next = Some(next.map_or(due, |next| next.min(due)));
            }
        }
        self.next_deadline = next;
        late.iter().for_each(|channel| self.end(*channel, "a copy on it was late"));
    }

    /// Ends a channel with all its copies, those that are late as such.
    fn end(&mut self, channel: ChannelId, why: &str) {
        self.queue.close(channel);
        let Some(flow) = self.flows.remove(&channel) else { return };
        // Set once: it is gone from the map now.
        let _ = flow.ended.set(why.to_owned());
        let mut jobs = Vec::new();
        for (at, entry) in self.posted.iter_mut().enumerate() {
            if let Some((_, job)) = entry.take_if(|entry| entry.0 == channel) {
                self.free.push(at);
                jobs.push(job);
            }
        }
        jobs.extend(flow.waiting);
        let now = Instant::now();
        for job in jobs {
            let is_late = job.deadline <= now;
            let error = if is_late { job.late() } else { CopyError::Ended(why.to_owned()) };
            job.on_done.call(Err(error));
        }
    }

    fn stop(mut self) {
        let channels: Vec<_> = self.flows.keys().copied().collect();
        for channel in channels {
            self.end(channel, "this machine is closed");
        }
    }
}

/// Asks a polling thread, which answers at once unless it has ended.
pub(super) fn ask_poller<R>(
    poller: &Poller,
    within: Duration,
    order: impl FnOnce(oneshot::Sender<R>) -> Order,
) -> Result<R, FabricError> {
    let ended =
        || FabricError::Misuse("the machine is closed, or a callback blocks its polling thread".into());
    poller.orders.ask(within, order).ok_or_else(ended)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;
    use crate::memory::UserBuffer;
    use crate::shm::ShmDevice;

    const SOON: Duration = Duration::from_secs(30);

    /// A channel that was connected for the first queue, and is attached to the second.
    fn connected(near: &LaneQueue, far: &mut LaneQueue) -> (ChannelSetup, ChannelId) {
        let (device, soon) = (ShmDevice::new(), Instant::now() + SOON);
        let (offer, pending) = device.offer(&[near.handle()]).unwrap();
        let handle = far.handle();
        let (ours, theirs) = std::thread::scope(|scope| {
            let connecting = scope.spawn(|| device.connect(&offer, 0, &handle, soon).unwrap());
            (pending.accept(soon).unwrap().pop().unwrap(), connecting.join().unwrap())
        });
        (ours, far.attach(theirs).unwrap())
    }

    fn assert_ends(far: &mut LaneQueue, channel: ChannelId) {
        let (mut told, started) = (Vec::new(), Instant::now());
        while !told
            .iter()
            .any(|c: &Completion| c.channel == channel && matches!(c.kind, CompletionKind::Disconnected(_)))
        {
            assert!(started.elapsed() < SOON, "its peer hears nothing");
            far.wait(Duration::from_millis(10));
            far.poll(&mut told);
        }
    }

    #[test]
    fn a_channel_that_cannot_be_given_its_regions_is_not_left_behind() {
        let (near, mut far) = (LaneQueue::new(4).unwrap(), LaneQueue::new(4).unwrap());
        let (ours, theirs) = connected(&near, &mut far);
        let (_orders, received) = Mailbox::new(near.waker());
        let mut polling = Polling::new(near, received, Duration::ZERO);
        // No other process can map it.
        let user = UserBuffer::from(Arc::new(vec![1.0f32; 1024])).region();
        let refused = polling.attach(ours, &[user]).unwrap_err().to_string();
        assert!(refused.contains("map"), "{refused}");
        assert!(polling.flows.is_empty());
        assert_ends(&mut far, theirs);
    }

    #[test]
    fn a_channel_that_nobody_waits_for_any_more_is_closed() {
        let (near, mut far) = (LaneQueue::new(4).unwrap(), LaneQueue::new(4).unwrap());
        let (ours, theirs) = connected(&near, &mut far);
        let poller = Poller::start(0, near, Duration::ZERO).unwrap();
        let given_up = poller.attach(ours, Vec::new(), Duration::ZERO);
        // Where the thread was quicker it is dropped here, and has to be closed by hand.
        if let Ok(attached) = given_up {
            poller.orders.send(Order::Close(attached.id));
        }
        assert_ends(&mut far, theirs);
    }
}
