//! A lane's completion queue: the queues of all drivers as one, polled together and slept on together. It
//! owns the routing by channel id and the choice of how to sleep; it must not know how a driver works.

use crate::device::{Caps, ChannelSetup, CompletionQueue, CqHandle, SetupKind};
use crate::error::{FabricError, PostError};
use crate::memory::Region;
use crate::rest::{Rest, Sleeper};
use crate::shm::{Bell, ShmQueue, View};
use crate::tcp::TcpQueue;
use crate::work::{ChannelId, Completion, Read, RemoteKey, RemoteSpan, Write};
use std::sync::Arc;
use std::time::Duration;

/// Set in the ids of TCP channels. Both queues count from 0 and stay below it.
const TCP_BIT: u32 = 1 << 31;

/// The completion queues of all drivers of one lane, polled and waited for as one.
#[derive(Debug)]
pub struct LaneQueue {
    // Dropped in this order: the TCP queue watches a descriptor of the other.
    tcp: TcpQueue,
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
    /// Opens the queues. `send_depth`: unfinished requests one channel may have.
    pub fn new(send_depth: usize) -> Result<Self, FabricError> {
        let shm = ShmQueue::new(send_depth)?;
        let mut tcp = TcpQueue::new(send_depth)?;
        tcp.watch(shm.wake_fd())?;
        Ok(Self { tcp, shm, send_depth })
    }

    /// What connecting a channel to this queue needs.
    #[must_use]
    pub fn handle(&self) -> CqHandle {
        CqHandle {
            shm: Some(self.shm.handle()),
            #[cfg(feature = "verbs")]
            verbs: None,
        }
    }

    /// Wakes [`LaneQueue::wait`] from another thread.
    #[must_use]
    pub fn waker(&self) -> Waker {
        Waker(self.shm.bell())
    }

    /// Sleeps until a completion may be there, a waker calls, or the time is over. Never misses either.
    /// Returns without sleeping when something is there already; may return for no reason.
    pub fn wait(&mut self, timeout: Duration) {
        if self.tcp.has_channels() {
            let tcp = &mut self.tcp;
            self.shm.wait(timeout, Some(&mut |left| tcp.wait(left)));
        } else {
            self.shm.wait(timeout, None);
        }
    }

    /// What a thread needs to sleep while another may hold the queue. See [`Rest`].
    pub fn sleeper(&self) -> Result<Sleeper, FabricError> {
        Sleeper::new(self.shm.bell(), self.tcp.fd())
    }

    /// The sleeping thread itself, before it gives the queue away: how to sleep, or `None` when there is
    /// something to do. Events that were taken from the kernel are known to the next poll.
    pub fn arm(&mut self) -> Option<Rest> {
        let rest = if self.tcp.has_channels() { Rest::Sockets } else { Rest::Word };
        self.lie_down(rest);
        let busy = rest == Rest::Sockets && {
            // Whoever polled the sockets may have used up the event of a link.
            self.shm.look_at_links();
            self.tcp.settle()
        };
        if busy || self.shm.is_restless() {
            self.disarm();
            return None;
        }
        Some(rest)
    }

    /// Another thread, before it gives back a queue that it took from one that rests like this. False: there
    /// is something to do, and nobody would be woken for it. No system call.
    pub fn rearm(&mut self, rest: Rest) -> bool {
        self.lie_down(rest);
        if self.shm.is_restless() || self.tcp.has_work() {
            self.disarm();
            return false;
        }
        true
    }

    /// As [`LaneQueue::rearm`] without looking: the caller sees to it that the sleeper wakes soon.
    pub fn lie_down(&mut self, rest: Rest) {
        self.shm.bell_ref().lie_down(rest.how());
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

    /// Maps a granted stretch of a peer's region to read it in place. Shared memory only: a channel of
    /// another driver answers [`PostError::RemoteAccess`].
    pub fn view(&mut self, channel: ChannelId, remote: RemoteSpan, bytes: u64) -> Result<View, PostError> {
        match route(channel) {
            Route::Shm(channel) => self.shm.view(channel, remote, bytes),
            Route::Tcp(_) => Err(PostError::RemoteAccess),
        }
    }
}

/// Whose channel an id names, with the id that its queue knows it by.
enum Route {
    Shm(ChannelId),
    Tcp(ChannelId),
}

#[inline]
fn route(channel: ChannelId) -> Route {
    if channel.0 & TCP_BIT == 0 { Route::Shm(channel) } else { Route::Tcp(ChannelId(channel.0 & !TCP_BIT)) }
}

fn of_tcp(channel: ChannelId) -> ChannelId {
    ChannelId(channel.0 | TCP_BIT)
}

impl CompletionQueue for LaneQueue {
    fn attach(&mut self, setup: ChannelSetup) -> Result<ChannelId, FabricError> {
        match setup.kind {
            SetupKind::Shm(_) => self.shm.attach(setup),
            SetupKind::Tcp(_) => self.tcp.attach(setup).map(of_tcp),
            #[cfg(feature = "verbs")]
            SetupKind::Verbs(_) => {
                Err(FabricError::Misuse("a verbs channel was given to a lane without a RDMA device".into()))
            }
        }
    }

    fn expose(&mut self, channel: ChannelId, region: &Region) -> Result<RemoteKey, PostError> {
        match route(channel) {
            Route::Shm(channel) => self.shm.expose(channel, region),
            Route::Tcp(channel) => self.tcp.expose(channel, region),
        }
    }

    #[inline]
    fn post_write(&mut self, channel: ChannelId, write: &Write<'_>) -> Result<(), PostError> {
        match route(channel) {
            Route::Shm(channel) => self.shm.post_write(channel, write),
            Route::Tcp(channel) => self.tcp.post_write(channel, write),
        }
    }

    fn post_read(&mut self, channel: ChannelId, read: &Read<'_>) -> Result<(), PostError> {
        match route(channel) {
            Route::Shm(channel) => self.shm.post_read(channel, read),
            Route::Tcp(channel) => self.tcp.post_read(channel, read),
        }
    }

    fn flush(&mut self) {
        self.shm.flush();
        self.tcp.flush();
    }

    #[inline]
    fn poll(&mut self, completions: &mut Vec<Completion>) {
        self.shm.poll(completions);
        let first = completions.len();
        self.tcp.poll(completions);
        for completion in &mut completions[first..] {
            completion.channel = of_tcp(completion.channel);
        }
    }

    fn moved(&self) -> bool {
        self.tcp.moved()
    }

    fn close(&mut self, channel: ChannelId) {
        match route(channel) {
            Route::Shm(channel) => self.shm.close(channel),
            Route::Tcp(channel) => self.tcp.close(channel),
        }
    }

    fn caps(&self) -> Caps {
        let (shm, tcp) = (self.shm.caps(), self.tcp.caps());
        Caps {
            gather_max: shm.gather_max.min(tcp.gather_max),
            send_depth: self.send_depth.min(shm.send_depth).min(tcp.send_depth),
        }
    }
}
