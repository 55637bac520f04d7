//! A lane's completion queue: the queues of all drivers as one, polled together and slept on together. It
//! owns the routing by channel id and the choice of how to sleep; it must not know how a driver works.

use crate::device::{
    Caps, ChannelSetup, CompletionQueue, CqHandle, Fence, Order, SetupKind, TRANSPORT_CHANNEL_IDS, Transport,
    TransportQueue,
};
use crate::error::{FabricError, PostError};
use crate::memory::{Access, Borrowed, Region, Span, View};
use crate::shm::{Bell, ON_SOCKETS, ON_WORD, ShmQueue};
use crate::tcp::TcpQueue;
use crate::verbs::{Dmabuf, VerbsQueue};
use crate::work::{ChannelId, Completion, Read, RemoteKey, RemoteSpan, Write};
use drivers::Driver;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::any::Any;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// Set in the ids of TCP channels. All queues count from 0 and stay below these bits.
const TCP_BIT: u32 = 1 << 31;
/// Set in the ids of channels of other transports. The three bits below are the transport's place in the lane.
const OTHER_BIT: u32 = 1 << 30;
/// Other transports of a lane, at most.
const OTHERS_MAX: usize = (OTHER_BIT / TRANSPORT_CHANNEL_IDS) as usize;

/// The completion queues of all drivers of one lane, polled and waited for as one.
#[derive(Debug)]
pub struct LaneQueue {
    // Dropped in this order: the TCP queue watches descriptors of the others.
    tcp: TcpQueue,
    others: Vec<Other>,
    shm: ShmQueue,
    send_depth: usize,
}

/// The queue of a transport that not every lane has.
#[derive(Debug)]
struct Other {
    driver: Driver,
    queue: Box<dyn TransportQueue>,
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

/// How a lane's thread sleeps, as [`LaneQueue::arm`] said. Until it wakes, whoever
/// takes the queue disarms it and rearms it like this: the sleep then lasts, and costs nobody a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Rest {
    /// On the doorbell's word: peers and wakers that find it disarmed leave the sleeper alone.
    Word = ON_WORD,
    /// On sockets: what arrives wakes the sleeper, whoever holds the queue.
    Sockets = ON_SOCKETS,
}

/// Sleeps for a queue that others may hold.
#[derive(Debug)]
pub struct Sleeper {
    bell: Arc<Bell>,
    sockets: OwnedFd,
}

impl Sleeper {
    fn new(bell: Arc<Bell>, sockets: BorrowedFd<'_>) -> Result<Self, FabricError> {
        let sockets = sockets
            .try_clone_to_owned()
            .map_err(|e| FabricError::os("duplicating a descriptor (raise the limit of open files)", e))?;
        Ok(Self { bell, sockets })
    }

    /// Sleeps until the armed queue has something, a waker calls, or the time is over; or for no reason, and
    /// at once where the queue has been disarmed on the word.
    pub fn sleep(&self, rest: Rest, timeout: Duration) {
        match rest {
            Rest::Word => self.bell.sleep_on_word(timeout),
            Rest::Sockets => {
                // Asked, not taken: the events are for whoever holds the queue then.
                let mut fds = [PollFd::new(&self.sockets, PollFlags::IN)];
                let timeout = Timespec::try_from(timeout).ok();
                // Fails only by a signal: a wake for no reason.
                let _ = poll(&mut fds, timeout.as_ref());
            }
        }
    }
}

impl LaneQueue {
    /// Opens the queues of shared memory and TCP. `send_depth`: unfinished requests one channel may have.
    pub fn new(send_depth: usize) -> Result<Self, FabricError> {
        let shm = ShmQueue::new(send_depth)?;
        let mut tcp = TcpQueue::new(send_depth)?;
        tcp.watch(shm.wake_fd(), true)?;
        Ok(Self { tcp, others: Vec::new(), shm, send_depth })
    }

    /// Adds a queue of another transport.
    pub fn with(mut self, transport: &dyn Transport) -> Result<Self, FabricError> {
        if self.others.len() == OTHERS_MAX {
            return Err(FabricError::Misuse(format!(
                "a lane has room for {OTHERS_MAX} transports beside shm and tcp"
            )));
        }
        let queue = transport.open_queue(self.send_depth)?;
        self.tcp.watch(queue.fd(), false)?;
        self.others.push(Other { driver: transport.driver(), queue });
        Ok(self)
    }

    /// What connecting a channel to this queue needs.
    #[must_use]
    pub fn handle(&self) -> CqHandle {
        let transports = self.others.iter().map(|other| other.queue.shared()).collect();
        CqHandle { shm: Some(self.shm.handle()), transports }
    }

    /// Wakes [`LaneQueue::wait`] from another thread.
    #[must_use]
    pub fn waker(&self) -> Waker {
        Waker(self.shm.bell())
    }

    /// Sleeps until a completion may be there, a waker calls, or the time is over. Never misses either.
    /// Returns without sleeping when something is there already; may return for no reason.
    pub fn wait(&mut self, timeout: Duration) {
        let Self { tcp, others, shm, .. } = self;
        if rest_of(tcp, others) == Rest::Word {
            return shm.wait(timeout, None);
        }
        shm.wait(
            timeout,
            Some(&mut |left| {
                if arm(others) {
                    tcp.wait(left);
                }
                others.iter_mut().for_each(|other| other.queue.settle());
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
        let rest = rest_of(&self.tcp, &self.others);
        self.lie_down(rest);
        let busy = rest == Rest::Sockets && {
            // Another thread that polled the sockets may have consumed the event of a link.
            self.shm.look_at_links();
            // Both, as each takes what the kernel has to report.
            self.tcp.settle() | !arm(&mut self.others)
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
        let mut used = self.others.iter_mut().filter(|other| other.queue.has_channels());
        if self.shm.is_restless() || self.tcp.has_work() || !used.all(|other| other.queue.arm()) {
            self.disarm();
            return false;
        }
        true
    }

    /// As [`LaneQueue::rearm`], without checking for work: the caller makes sure that the sleeper wakes soon.
    pub fn lie_down(&mut self, rest: Rest) {
        self.shm.bell_ref().lie_down(rest as u32);
    }

    /// Whoever takes the queue: peers and wakers need no system call from here on.
    pub fn disarm(&mut self) {
        self.shm.bell_ref().get_up();
    }

    /// After a sleep: looks for peers that have exited, because a process that exits wakes nobody.
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
        let Route::Other(at, channel) = route(channel) else { return Err(PostError::NotShareable) };
        let verbs = (self.other(at)? as &mut dyn Any).downcast_mut::<VerbsQueue>();
        verbs.ok_or(PostError::NotShareable)?.expose_dmabuf(channel, dmabuf)
    }

    fn other(&mut self, at: usize) -> Result<&mut dyn TransportQueue, PostError> {
        self.others.get_mut(at).map(|other| &mut *other.queue).ok_or(PostError::Closed)
    }
}

/// How to sleep: on descriptors if a socket or device has channels, otherwise on the doorbell's word.
fn rest_of(tcp: &TcpQueue, others: &[Other]) -> Rest {
    let is_told = tcp.has_channels() || others.iter().any(|other| other.queue.has_channels());
    if is_told { Rest::Sockets } else { Rest::Word }
}

/// Takes what devices have reported, of all of them, and asks to be notified again. False: there is something to do.
fn arm(others: &mut [Other]) -> bool {
    let mut is_armed = true;
    for other in others {
        other.queue.settle();
        is_armed &= other.queue.arm();
    }
    is_armed
}

/// Whose channel an id names, with the id that its queue knows it by.
enum Route {
    Shm(ChannelId),
    Tcp(ChannelId),
    Other(usize, ChannelId),
}

#[inline]
fn route(channel: ChannelId) -> Route {
    if channel.0 & TCP_BIT != 0 {
        Route::Tcp(ChannelId(channel.0 & !TCP_BIT))
    } else if channel.0 & OTHER_BIT != 0 {
        let id = channel.0 & !OTHER_BIT;
        Route::Other((id / TRANSPORT_CHANNEL_IDS) as usize, ChannelId(id % TRANSPORT_CHANNEL_IDS))
    } else {
        Route::Shm(channel)
    }
}

fn of_tcp(channel: ChannelId) -> ChannelId {
    ChannelId(channel.0 | TCP_BIT)
}

/// `at`: below [`OTHERS_MAX`].
fn of_other(at: usize, channel: ChannelId) -> ChannelId {
    ChannelId(OTHER_BIT | (at as u32 * TRANSPORT_CHANNEL_IDS) | channel.0)
}

/// Calls a channel's own queue, which knows the channel by the id that `$channel` is in the call. `$none`: there is no such queue.
macro_rules! routed {
    ($lane:ident, $channel:ident => $call:ident($($argument:expr),*), $none:expr) => {
        match route($channel) {
            Route::Shm($channel) => $lane.shm.$call($($argument),*),
            Route::Tcp($channel) => $lane.tcp.$call($($argument),*),
            Route::Other(at, $channel) => match $lane.others.get_mut(at) {
                Some(other) => other.queue.$call($($argument),*),
                None => $none,
            },
        }
    };
}

impl CompletionQueue for LaneQueue {
    fn attach(&mut self, setup: ChannelSetup) -> Result<ChannelId, FabricError> {
        match setup.kind {
            SetupKind::Shm(_) => self.shm.attach(setup),
            SetupKind::Tcp(..) => self.tcp.attach(setup).map(of_tcp),
            SetupKind::Transport { driver, .. } => {
                let found = self.others.iter_mut().enumerate().find(|(_, other)| other.driver == driver);
                let (at, other) = found.ok_or_else(|| {
                    FabricError::Misuse(format!("a {driver} channel was given to a lane without {driver}"))
                })?;
                other.queue.attach(setup).map(|channel| of_other(at, channel))
            }
        }
    }

    fn expose(&mut self, channel: ChannelId, region: &Region) -> Result<RemoteKey, PostError> {
        routed!(self, channel => expose(channel, region), Err(PostError::Closed))
    }

    fn prepare(&mut self, span: &Span) -> Result<(), FabricError> {
        let mut used = self.others.iter_mut().filter(|other| other.queue.has_channels());
        used.try_for_each(|other| other.queue.prepare(span))
    }

    fn unregistered(&mut self) -> Option<FabricError> {
        self.others.iter_mut().find_map(|other| other.queue.unregistered())
    }

    #[inline]
    fn lend(&mut self, channel: ChannelId, span: &Span, access: Access, lease: u64) -> Result<(), PostError> {
        routed!(self, channel => lend(channel, span, access, lease), Err(PostError::Closed))
    }

    fn open(&mut self, channel: ChannelId, span: &Span) -> Result<(), PostError> {
        routed!(self, channel => open(channel, span), Err(PostError::Closed))
    }

    #[inline]
    fn take_back(&mut self, channel: ChannelId, span: &Span, lease: u64) {
        routed!(self, channel => take_back(channel, span, lease), ());
    }

    #[inline]
    fn post_write(&mut self, channel: ChannelId, write: &Write<'_>) -> Result<(), PostError> {
        routed!(self, channel => post_write(channel, write), Err(PostError::Closed))
    }

    #[inline]
    fn post_landing(&mut self, channel: ChannelId, write: &Write<'_>) -> Result<(), PostError> {
        routed!(self, channel => post_landing(channel, write), Err(PostError::Closed))
    }

    fn move_landings(&mut self, channel: ChannelId, id: u64, span: &Span) -> usize {
        routed!(self, channel => move_landings(channel, id, span), 0)
    }

    fn post_read(&mut self, channel: ChannelId, read: &Read<'_>) -> Result<(), PostError> {
        routed!(self, channel => post_read(channel, read), Err(PostError::Closed))
    }

    fn stream_writes(&mut self, streams: bool) {
        self.shm.stream_writes(streams);
        self.others.iter_mut().for_each(|other| other.queue.stream_writes(streams));
    }

    fn reads_in_place(&self, channel: ChannelId) -> bool {
        match route(channel) {
            Route::Shm(channel) => self.shm.reads_in_place(channel),
            Route::Tcp(_) => false,
            Route::Other(at, channel) => {
                self.others.get(at).is_some_and(|other| other.queue.reads_in_place(channel))
            }
        }
    }

    fn map(&mut self, channel: ChannelId, key: RemoteKey) -> Result<View, PostError> {
        routed!(self, channel => map(channel, key), Err(PostError::Closed))
    }

    fn begin_reads(&mut self, channel: ChannelId) -> Result<(), PostError> {
        routed!(self, channel => begin_reads(channel), Err(PostError::Closed))
    }

    fn end_reads(&mut self, channel: ChannelId) {
        routed!(self, channel => end_reads(channel), ());
    }

    fn allow_borrows(&mut self) {
        self.shm.allow_borrows();
    }

    fn borrow(
        &mut self,
        channel: ChannelId,
        remote: RemoteSpan,
        bytes: u64,
    ) -> Result<Option<Borrowed>, PostError> {
        routed!(self, channel => borrow(channel, remote, bytes), Err(PostError::Closed))
    }

    fn while_open(&mut self, channel: ChannelId, work: &mut dyn FnMut()) -> Result<(), PostError> {
        routed!(self, channel => while_open(channel, work), Err(PostError::Closed))
    }

    fn flush(&mut self) {
        self.shm.flush();
        self.tcp.flush();
        self.others.iter_mut().for_each(|other| other.queue.flush());
    }

    #[inline]
    fn poll(&mut self, completions: &mut Vec<Completion>) {
        self.shm.poll(completions);
        let first = completions.len();
        self.tcp.poll(completions);
        for completion in &mut completions[first..] {
            completion.channel = of_tcp(completion.channel);
        }
        for (at, other) in self.others.iter_mut().enumerate() {
            let first = completions.len();
            if other.queue.has_channels() {
                other.queue.poll(completions);
            }
            for completion in &mut completions[first..] {
                completion.channel = of_other(at, completion.channel);
            }
        }
    }

    fn moved(&self) -> bool {
        self.tcp.moved() || self.others.iter().any(|other| other.queue.moved())
    }

    fn close(&mut self, channel: ChannelId) -> Fence {
        routed!(self, channel => close(channel), Fence::Done)
    }

    fn fence(&mut self, channel: ChannelId) -> Fence {
        routed!(self, channel => fence(channel), Fence::Done)
    }

    fn caps(&self) -> Caps {
        let all =
            [self.shm.caps(), self.tcp.caps()].into_iter().chain(self.others.iter().map(|o| o.queue.caps()));
        let most = Caps { gather_max: usize::MAX, send_depth: self.send_depth, order: Order::Posted };
        all.fold(most, |least, caps| Caps {
            gather_max: least.gather_max.min(caps.gather_max),
            send_depth: least.send_depth.min(caps.send_depth),
            order: least.order.max(caps.order),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_leads_to_the_queue_that_gave_it() {
        let last = ChannelId(OTHER_BIT - 1);
        assert!(matches!(route(last), Route::Shm(id) if id == last));
        assert!(matches!(route(of_tcp(last)), Route::Tcp(id) if id == last));
        for place in [0, 1, OTHERS_MAX - 1] {
            for id in [0, TRANSPORT_CHANNEL_IDS - 1] {
                let id = ChannelId(id);
                let route = route(of_other(place, id));
                assert!(
                    matches!(route, Route::Other(at, own) if (at, own) == (place, id)),
                    "{place}, {id:?}"
                );
            }
        }
    }
}
