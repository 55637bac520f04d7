//! A lane's completion queue: the queues of all drivers as one, polled together and slept on together. It
//! owns the routing by channel id and the choice of how to sleep; it must not know how a driver works.

use crate::device::{Caps, ChannelSetup, CompletionQueue, CqHandle, Fence, Order, SetupKind};
use crate::error::{FabricError, PostError};
use crate::memory::{Access, Region, Span, View};
use crate::rest::{Rest, Sleeper};
use crate::shm::{Bell, ShmQueue};
use crate::tcp::TcpQueue;
use crate::verbs::{Dmabuf, VerbsDevice, VerbsQueue};
use crate::work::{ChannelId, Completion, Read, RemoteKey, Write};
use std::sync::Arc;
use std::time::Duration;

/// Set in the ids of TCP channels. All queues count from 0 and stay below these bits.
const TCP_BIT: u32 = 1 << 31;
/// Set in the ids of verbs channels.
const VERBS_BIT: u32 = 1 << 30;

/// The completion queues of all drivers of one lane, polled and waited for as one.
#[derive(Debug)]
pub struct LaneQueue {
    // Dropped in this order: the TCP queue watches descriptors of the others.
    tcp: TcpQueue,
    verbs: Option<VerbsQueue>,
    shm: ShmQueue,
    send_depth: usize,
}

/// Wakes the thread that waits for a lane.
#[derive(Clone, Debug)]
pub struct Waker(Arc<Bell>);

impl Waker {
    /// Wakes it, or keeps its next wait from sleeping; cheap when it is awake.
    pub fn wake(&self) {
        self.0.wake();
    }
}

impl LaneQueue {
    /// Opens the queues of shared memory and TCP. `send_depth`: unfinished requests one channel may have.
    pub fn new(send_depth: usize) -> Result<Self, FabricError> {
        let shm = ShmQueue::new(send_depth)?;
        let mut tcp = TcpQueue::new(send_depth)?;
        tcp.watch(shm.wake_fd(), true)?;
        Ok(Self { tcp, verbs: None, shm, send_depth })
    }

    /// Adds a queue on a RDMA device.
    pub fn with_verbs(mut self, device: &VerbsDevice) -> Result<Self, FabricError> {
        let verbs = device.queue(self.send_depth)?;
        self.tcp.watch(verbs.fd(), false)?;
        self.verbs = Some(verbs);
        Ok(self)
    }

    /// What connecting a channel to this queue needs.
    #[must_use]
    pub fn handle(&self) -> CqHandle {
        CqHandle { shm: Some(self.shm.handle()), verbs: self.verbs.as_ref().map(VerbsQueue::verbs_handle) }
    }

    /// Wakes [`LaneQueue::wait`] from another thread.
    #[must_use]
    pub fn waker(&self) -> Waker {
        Waker(self.shm.bell())
    }

    /// Sleeps until a completion may be there, a waker calls, or the time is over. Never misses either.
    /// Returns without sleeping when something is there already; may return for no reason.
    pub fn wait(&mut self, timeout: Duration) {
        let Self { tcp, verbs, shm, .. } = self;
        if rest_of(tcp, verbs) == Rest::Word {
            return shm.wait(timeout, None);
        }
        shm.wait(
            timeout,
            Some(&mut |left| {
                if verbs.as_mut().is_none_or(arm) {
                    tcp.wait(left);
                }
                verbs.iter_mut().for_each(VerbsQueue::settle);
            }),
        );
    }

    /// What a thread needs to sleep while another may hold the queue. See [`Rest`].
    pub fn sleeper(&self) -> Result<Sleeper, FabricError> {
        Sleeper::new(self.shm.bell(), self.tcp.fd())
    }

    /// The sleeping thread itself, before it gives the queue away: how to sleep, or `None` when there is
    /// something to do. Events that were taken from the kernel are known to the next poll.
    pub fn arm(&mut self) -> Option<Rest> {
        let rest = rest_of(&self.tcp, &self.verbs);
        self.lie_down(rest);
        let busy = rest == Rest::Sockets && {
            // Whoever polled the sockets may have used up the event of a link.
            self.shm.look_at_links();
            // Both, as each takes what the kernel has to report.
            self.tcp.settle() | !self.verbs.as_mut().is_none_or(arm)
        };
        if busy || self.shm.is_restless() {
            self.disarm();
            return None;
        }
        Some(rest)
    }

    /// Another thread, before it gives back a queue that it took from one that rests like this. False: there
    /// is something to do, and nobody would be woken for it. No system call but what a device's driver makes of it.
    pub fn rearm(&mut self, rest: Rest) -> bool {
        self.lie_down(rest);
        let verbs = self.verbs.as_mut().filter(|verbs| verbs.has_channels());
        if self.shm.is_restless() || self.tcp.has_work() || !verbs.is_none_or(VerbsQueue::arm) {
            self.disarm();
            return false;
        }
        true
    }

    /// As [`LaneQueue::rearm`] without looking: the caller sees to it that the sleeper wakes soon.
    pub fn lie_down(&mut self, rest: Rest) {
        self.shm.bell_ref().lie_down(rest as u32);
    }

    /// Whoever takes the queue: peers and wakers need no system call from here on.
    pub fn disarm(&mut self) {
        self.shm.bell_ref().get_up();
    }

    /// After a sleep: nobody rings for its own death.
    pub fn slept(&mut self) {
        self.shm.look_at_links();
    }

    /// Has a waker called since this was last asked?
    #[inline]
    pub fn take_wake(&mut self) -> bool {
        self.shm.bell_ref().take_wake()
    }

    /// Lets the channel's peer address memory of another device. RDMA devices only: a channel of another driver answers
    /// [`PostError::NotShareable`].
    pub fn expose_dmabuf(&mut self, channel: ChannelId, dmabuf: &Dmabuf) -> Result<RemoteKey, PostError> {
        let Route::Verbs(channel) = route(channel) else { return Err(PostError::NotShareable) };
        self.verbs()?.expose_dmabuf(channel, dmabuf)
    }

    fn verbs(&mut self) -> Result<&mut VerbsQueue, PostError> {
        self.verbs.as_mut().ok_or(PostError::Closed)
    }
}

/// How to sleep: devices and sockets tell by descriptors.
fn rest_of(tcp: &TcpQueue, verbs: &Option<VerbsQueue>) -> Rest {
    let is_told = tcp.has_channels() || verbs.as_ref().is_some_and(VerbsQueue::has_channels);
    if is_told { Rest::Sockets } else { Rest::Word }
}

/// Takes what a device has told, and asks to be told again. False: there is something to do.
fn arm(verbs: &mut VerbsQueue) -> bool {
    verbs.settle();
    verbs.arm()
}

/// Whose channel an id names, with the id that its queue knows it by.
enum Route {
    Shm(ChannelId),
    Tcp(ChannelId),
    Verbs(ChannelId),
}

#[inline]
fn route(channel: ChannelId) -> Route {
    if channel.0 & TCP_BIT != 0 {
        Route::Tcp(ChannelId(channel.0 & !TCP_BIT))
    } else if channel.0 & VERBS_BIT != 0 {
        Route::Verbs(ChannelId(channel.0 & !VERBS_BIT))
    } else {
        Route::Shm(channel)
    }
}

fn of_tcp(channel: ChannelId) -> ChannelId {
    ChannelId(channel.0 | TCP_BIT)
}

fn of_verbs(channel: ChannelId) -> ChannelId {
    ChannelId(channel.0 | VERBS_BIT)
}

impl CompletionQueue for LaneQueue {
    fn attach(&mut self, setup: ChannelSetup) -> Result<ChannelId, FabricError> {
        match setup.kind {
            SetupKind::Shm(_) => self.shm.attach(setup),
            SetupKind::Tcp(..) => self.tcp.attach(setup).map(of_tcp),
            SetupKind::Verbs(_) => match &mut self.verbs {
                Some(verbs) => verbs.attach(setup).map(of_verbs),
                None => Err(FabricError::Misuse(
                    "a verbs channel was given to a lane without a RDMA device".into(),
                )),
            },
        }
    }

    fn expose(&mut self, channel: ChannelId, region: &Region) -> Result<RemoteKey, PostError> {
        match route(channel) {
            Route::Shm(channel) => self.shm.expose(channel, region),
            Route::Tcp(channel) => self.tcp.expose(channel, region),
            Route::Verbs(channel) => self.verbs()?.expose(channel, region),
        }
    }

    fn prepare(&mut self, span: &Span) -> Result<(), FabricError> {
        match self.verbs.as_mut().filter(|verbs| verbs.has_channels()) {
            Some(verbs) => verbs.prepare(span),
            None => Ok(()),
        }
    }

    fn unregistered(&mut self) -> Option<FabricError> {
        self.verbs.as_mut().and_then(VerbsQueue::unregistered)
    }

    #[inline]
    fn lend(&mut self, channel: ChannelId, span: &Span, access: Access, lease: u64) -> Result<(), PostError> {
        match route(channel) {
            Route::Shm(_) => Ok(()),
            Route::Tcp(channel) => self.tcp.lend(channel, span, access, lease),
            Route::Verbs(channel) => self.verbs()?.lend(channel, span, access, lease),
        }
    }

    fn open(&mut self, channel: ChannelId, span: &Span) -> Result<(), PostError> {
        let Route::Verbs(channel) = route(channel) else { return Ok(()) };
        self.verbs()?.open(channel, span)
    }

    #[inline]
    fn take_back(&mut self, channel: ChannelId, span: &Span, lease: u64) {
        if let Route::Tcp(channel) = route(channel) {
            self.tcp.take_back(channel, span, lease);
        }
    }

    #[inline]
    fn post_write(&mut self, channel: ChannelId, write: &Write<'_>) -> Result<(), PostError> {
        match route(channel) {
            Route::Shm(channel) => self.shm.post_write(channel, write),
            Route::Tcp(channel) => self.tcp.post_write(channel, write),
            Route::Verbs(channel) => self.verbs()?.post_write(channel, write),
        }
    }

    #[inline]
    fn post_landing(&mut self, channel: ChannelId, write: &Write<'_>) -> Result<(), PostError> {
        match route(channel) {
            Route::Shm(channel) => self.shm.post_landing(channel, write),
            Route::Tcp(channel) => self.tcp.post_landing(channel, write),
            Route::Verbs(channel) => self.verbs()?.post_landing(channel, write),
        }
    }

    fn move_landings(&mut self, channel: ChannelId, id: u64, span: &Span) -> usize {
        let Route::Shm(channel) = route(channel) else { return 0 };
        self.shm.move_landings(channel, id, span)
    }

    fn post_read(&mut self, channel: ChannelId, read: &Read<'_>) -> Result<(), PostError> {
        match route(channel) {
            Route::Shm(channel) => self.shm.post_read(channel, read),
            Route::Tcp(channel) => self.tcp.post_read(channel, read),
            Route::Verbs(channel) => self.verbs()?.post_read(channel, read),
        }
    }

    fn stream_writes(&mut self, streams: bool) {
        self.shm.stream_writes(streams);
    }

    fn reads_in_place(&self, channel: ChannelId) -> bool {
        matches!(route(channel), Route::Shm(channel) if self.shm.reads_in_place(channel))
    }

    fn map(&mut self, channel: ChannelId, key: RemoteKey) -> Result<View, PostError> {
        let Route::Shm(channel) = route(channel) else { return Err(PostError::RemoteAccess) };
        self.shm.map(channel, key)
    }

    fn begin_reads(&mut self, channel: ChannelId) -> Result<(), PostError> {
        let Route::Shm(channel) = route(channel) else { return Err(PostError::RemoteAccess) };
        self.shm.begin_reads(channel)
    }

    fn end_reads(&mut self, channel: ChannelId) {
        if let Route::Shm(channel) = route(channel) {
            self.shm.end_reads(channel);
        }
    }

    fn while_open(&mut self, channel: ChannelId, work: &mut dyn FnMut()) -> Result<(), PostError> {
        let Route::Shm(channel) = route(channel) else { return Err(PostError::RemoteAccess) };
        self.shm.while_open(channel, work)
    }

    fn flush(&mut self) {
        self.shm.flush();
        self.tcp.flush();
        self.verbs.iter_mut().for_each(VerbsQueue::flush);
    }

    #[inline]
    fn poll(&mut self, completions: &mut Vec<Completion>) {
        self.shm.poll(completions);
        let first = completions.len();
        self.tcp.poll(completions);
        for completion in &mut completions[first..] {
            completion.channel = of_tcp(completion.channel);
        }
        let first = completions.len();
        if let Some(verbs) = self.verbs.as_mut().filter(|verbs| verbs.has_channels()) {
            verbs.poll(completions);
        }
        for completion in &mut completions[first..] {
            completion.channel = of_verbs(completion.channel);
        }
    }

    fn moved(&self) -> bool {
        self.tcp.moved()
    }

    fn close(&mut self, channel: ChannelId) -> Fence {
        match route(channel) {
            Route::Shm(channel) => self.shm.close(channel),
            Route::Tcp(channel) => self.tcp.close(channel),
            Route::Verbs(channel) => self.verbs.as_mut().map_or(Fence::Done, |verbs| verbs.close(channel)),
        }
    }

    fn fence(&mut self, channel: ChannelId) -> Fence {
        match route(channel) {
            Route::Shm(channel) => self.shm.fence(channel),
            Route::Tcp(_) => Fence::Done,
            Route::Verbs(channel) => self.verbs.as_mut().map_or(Fence::Done, |verbs| verbs.fence(channel)),
        }
    }

    fn caps(&self) -> Caps {
        let all =
            [self.shm.caps(), self.tcp.caps()].into_iter().chain(self.verbs.iter().map(VerbsQueue::caps));
        let most = Caps { gather_max: usize::MAX, send_depth: self.send_depth, order: Order::Posted };
        all.fold(most, |least, caps| Caps {
            gather_max: least.gather_max.min(caps.gather_max),
            send_depth: least.send_depth.min(caps.send_depth),
            order: least.order.max(caps.order),
        })
    }
}
