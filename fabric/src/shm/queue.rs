//! The shared-memory channels of one lane: polled as one, their links watched together, slept on together.
//! It owns the doorbell's use and the noticing of dead peers; what a channel does is `channel`'s business.

use super::bell::{Bell, ShmHandle};
use super::channel::{Channel, Fencing, GATHER_MAX};
use super::doorbell::{ON_SOCKETS, ON_WORD};
use super::ring::Busy;
use super::shared::RING_CAPACITY_MAX;
use crate::device::{Caps, ChannelSetup, CompletionQueue, Fence, Order, SetupKind};
use crate::error::{FabricError, PostError};
use crate::memory::{Borrowed, Region, Span, View};
use crate::work::{ChannelId, Completion, CompletionKind, Read, RemoteKey, RemoteSpan, Write};
use rustix::event::Timespec;
use rustix::event::epoll;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A thread that keeps polling looks at the links this often.
const LINKS_EVERY: Duration = Duration::from_millis(20);
/// It looks at the clock once in so many polls.
const POLLS_PER_CLOCK: u32 = 32;
/// A thread asleep on the word wakes this often to look at the links: a peer that was killed rings nobody.
const LINKS_ASLEEP_EVERY: Duration = Duration::from_secs(1);
/// Longest sleep while a fence is pending: a peer that was stopped in mid-copy may end without ringing.
const FENCES_EVERY: Duration = Duration::from_millis(5);
/// Links looked at in one go.
const LINK_EVENTS: usize = 64;
/// Marks the wake event among the links; channel ids are below it.
const WAKE_EVENT: u64 = u64::MAX;
/// The top bits of ids are for whoever joins several queues.
const CHANNEL_IDS_MAX: u32 = 1 << 30;

/// The completion queue of a lane's shared-memory channels.
#[derive(Debug)]
pub(crate) struct ShmQueue {
    handle: ShmHandle,
    send_depth: usize,
    /// Sorted by id: ids only grow.
    channels: Vec<Channel>,
    /// Closed ones whose peer was in mid-copy when that was looked at last.
    fencing: Vec<Fencing>,
    next_id: u32,
    /// Completions of our own requests, for the next poll.
    done: Vec<Completion>,
    /// An epoll over all links and the wake event.
    links: OwnedFd,
    links_seen: Instant,
    polls: u32,
    /// Large writes are more than caches hold.
    streams: bool,
    /// Peers' memory is borrowed from.
    borrows: bool,
}

impl ShmQueue {
    pub(crate) fn new(send_depth: usize) -> Result<Self, FabricError> {
        let ring_capacity = u32::try_from(send_depth)
            .ok()
            .and_then(u32::checked_next_power_of_two)
            .filter(|capacity| send_depth > 0 && *capacity <= RING_CAPACITY_MAX)
            .ok_or_else(|| {
                FabricError::Misuse(format!(
                    "a send depth of {send_depth} is not within 1..={RING_CAPACITY_MAX}"
                ))
            })?;
        let bell = Arc::new(Bell::new()?);
        let links = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|e| FabricError::os("opening an epoll for shared-memory links", e))?;
        let event = epoll::EventData::new_u64(WAKE_EVENT);
        epoll::add(&links, bell.event(), event, epoll::EventFlags::IN)
            .map_err(|e| FabricError::os("watching a lane's wake event", e))?;
        Ok(Self {
            handle: ShmHandle { bell, ring_capacity },
            send_depth,
            channels: Vec::new(),
            fencing: Vec::new(),
            next_id: 0,
            done: Vec::new(),
            links,
            links_seen: Instant::now(),
            polls: 0,
            streams: false,
            borrows: false,
        })
    }

    pub(crate) fn handle(&self) -> ShmHandle {
        self.handle.clone()
    }

    pub(crate) fn bell(&self) -> Arc<Bell> {
        self.handle.bell.clone()
    }

    pub(crate) fn bell_ref(&self) -> &Bell {
        &self.handle.bell
    }

    /// Becomes readable when a sleeper `ON_SOCKETS` has to wake.
    pub(crate) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.links.as_fd()
    }

    fn index(&self, channel: ChannelId) -> Option<usize> {
        self.channels.binary_search_by_key(&channel, |c| c.id).ok()
    }

    fn find(&mut self, channel: ChannelId) -> Result<&mut Channel, PostError> {
        let at = self.index(channel).ok_or(PostError::Closed)?;
        Ok(&mut self.channels[at])
    }

    /// Would a poll deliver anything, or a refused post now go through?
    fn has_work(&mut self) -> bool {
        !self.done.is_empty() || self.channels.iter_mut().any(Channel::has_work)
    }

    /// Is there a reason not to sleep? Without a system call.
    pub(crate) fn is_restless(&mut self) -> bool {
        self.handle.bell.has_wake() || self.has_work()
    }

    /// Looks at the links that have something to say: deaths, regions, bells.
    pub(crate) fn look_at_links(&mut self) {
        self.links_seen = Instant::now();
        self.fencing.retain(|fencing| fencing.busy() != Busy::No);
        // Links of ended channels stay readable until a poll removes them, so there is always an end to this.
        for _ in 0..=self.channels.len() / LINK_EVENTS {
            let empty =
                epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
            let mut events = [empty; LINK_EVENTS];
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            // Cannot fail on our own epoll but by a signal; then the next look finds the same.
            let count = epoll::wait(&self.links, &mut events, Some(&now)).unwrap_or(0);
            for event in &events[..count] {
                // Copied out: the kernel packs the struct.
                let data = event.data;
                if data.u64() == WAKE_EVENT {
                    self.handle.bell.clear_event();
                } else if let Some(at) = self.index(ChannelId(data.u64() as u32)) {
                    self.channels[at].drain_link();
                }
            }
            if count < LINK_EVENTS {
                return;
            }
        }
    }

    fn retire(&mut self, at: usize) -> Fence {
        let channel = self.channels.remove(at);
        // Before the descriptor is closed: a forked child may hold a copy that would keep it registered.
        let _ = epoll::delete(&self.links, channel.link());
        let fencing = channel.close();
        let busy = fencing.busy();
        if busy != Busy::No {
            self.fencing.push(fencing);
        }
        fence_of(busy)
    }

    /// Sleeps until `poll` has something, the bell's `wake` was called, or the time is over. With
    /// `on_sockets`, the sleep itself is that function's, which must end when `wake_fd` becomes readable; it
    /// may sleep for less than it is told.
    pub(crate) fn wait(&mut self, timeout: Duration, mut on_sockets: Option<&mut dyn FnMut(Duration)>) {
        let started = Instant::now();
        let timeout = if self.fencing.is_empty() { timeout } else { timeout.min(FENCES_EVERY) };
        let bell = self.bell();
        loop {
            let left = timeout.saturating_sub(started.elapsed());
            bell.lie_down(if on_sockets.is_some() { ON_SOCKETS } else { ON_WORD });
            if on_sockets.is_some() {
                // Whoever polls the sockets may have used up the event of a link that was closed.
                self.look_at_links();
            }
            let woken = bell.take_wake() || self.has_work();
            if woken || left.is_zero() {
                bell.get_up();
                return;
            }
            if let Some(sleep) = on_sockets.as_mut() {
                sleep(left);
                bell.get_up();
                self.look_at_links();
                // Cleared here, the wake has done its work; other reasons to wake are the caller's.
                bell.take_wake();
                return;
            }
            let slice = if self.channels.is_empty() { left } else { left.min(LINKS_ASLEEP_EVERY) };
            bell.sleep_on_word(slice);
            let rung = bell.get_up();
            let woken = bell.take_wake() || self.has_work();
            if !woken {
                // Nobody rings for its own death.
                self.look_at_links();
            }
            if rung || woken {
                return;
            }
        }
    }
}

impl CompletionQueue for ShmQueue {
    fn attach(&mut self, setup: ChannelSetup) -> Result<ChannelId, FabricError> {
        let SetupKind::Shm(setup) = setup.kind else {
            return Err(FabricError::Misuse(
                "a channel of another driver was attached to shared memory".into(),
            ));
        };
        if !Arc::ptr_eq(&setup.bell, &self.handle.bell) {
            let why = "a channel was attached to another queue than the one it was connected for";
            return Err(FabricError::Misuse(why.into()));
        }
        if self.next_id == CHANNEL_IDS_MAX {
            return Err(FabricError::Misuse("a queue has used up its channel ids: open a new one".into()));
        }
        let id = ChannelId(self.next_id);
        let channel = Channel::new(id, *setup, (self.send_depth, self.borrows));
        epoll::add(
            &self.links,
            channel.link(),
            epoll::EventData::new_u64(id.0.into()),
            epoll::EventFlags::IN,
        )
        .map_err(|e| FabricError::os("watching a shared-memory link", e))?;
        self.next_id += 1;
        self.channels.push(channel);
        Ok(id)
    }

    fn expose(&mut self, channel: ChannelId, region: &Region) -> Result<RemoteKey, PostError> {
        self.find(channel)?.expose(region)
    }

    #[inline]
    fn post_write(&mut self, channel: ChannelId, write: &Write<'_>) -> Result<(), PostError> {
        let at = self.index(channel).ok_or(PostError::Closed)?;
        self.channels[at].post_write(write, self.streams, &mut self.done)
    }

    #[inline]
    fn post_landing(&mut self, channel: ChannelId, write: &Write<'_>) -> Result<(), PostError> {
        let at = self.index(channel).ok_or(PostError::Closed)?;
        self.channels[at].post_landing(write, self.streams, &mut self.done)
    }

    fn move_landings(&mut self, channel: ChannelId, id: u64, span: &Span) -> usize {
        self.index(channel).map_or(0, |at| self.channels[at].move_landings(id, span))
    }

    fn stream_writes(&mut self, streams: bool) {
        self.streams = streams;
    }

    fn post_read(&mut self, channel: ChannelId, read: &Read<'_>) -> Result<(), PostError> {
        let at = self.index(channel).ok_or(PostError::Closed)?;
        self.channels[at].post_read(read, &mut self.done)
    }

    fn reads_in_place(&self, channel: ChannelId) -> bool {
        self.index(channel).is_some()
    }

    fn map(&mut self, channel: ChannelId, key: RemoteKey) -> Result<View, PostError> {
        self.find(channel)?.mapping(key).map(View::all)
    }

    fn begin_reads(&mut self, channel: ChannelId) -> Result<(), PostError> {
        self.find(channel)?.begin_reads()
    }

    fn end_reads(&mut self, channel: ChannelId) {
        if let Some(at) = self.index(channel) {
            self.channels[at].end_reads();
        }
    }

    fn allow_borrows(&mut self) {
        self.borrows = true;
    }

    fn borrow(
        &mut self,
        channel: ChannelId,
        remote: RemoteSpan,
        bytes: u64,
    ) -> Result<Option<Borrowed>, PostError> {
        self.find(channel)?.borrow(remote, bytes)
    }

    fn while_open(&mut self, channel: ChannelId, work: &mut dyn FnMut()) -> Result<(), PostError> {
        self.find(channel)?.while_open(work)
    }

    /// Posts start at once.
    fn flush(&mut self) {}

    #[inline]
    fn poll(&mut self, completions: &mut Vec<Completion>) {
        self.polls = self.polls.wrapping_add(1);
        if self.polls.is_multiple_of(POLLS_PER_CLOCK) && self.links_seen.elapsed() >= LINKS_EVERY {
            self.look_at_links();
        }
        completions.append(&mut self.done);
        let mut at = 0;
        while at < self.channels.len() {
            let channel = self.channels[at].id;
            match self.channels[at].deliver(completions) {
                None => at += 1,
                Some(reason) => {
                    if self.channels[at].outlasts_its_end() {
                        let _ = epoll::delete(&self.links, self.channels[at].link());
                        at += 1;
                    } else {
                        // The owner asks for the fence when it reads this completion.
                        self.retire(at);
                    }
                    completions.push(Completion { channel, kind: CompletionKind::Disconnected(reason) });
                }
            }
        }
    }

    fn close(&mut self, channel: ChannelId) -> Fence {
        let Some(at) = self.index(channel) else { return self.fence(channel) };
        self.done.retain(|completion| completion.channel != channel);
        self.retire(at)
    }

    fn fence(&mut self, channel: ChannelId) -> Fence {
        if self.index(channel).is_some() {
            return Fence::Pending;
        }
        let Some(at) = self.fencing.iter().position(|fencing| fencing.id == channel) else {
            return Fence::Done;
        };
        let busy = self.fencing[at].busy();
        if busy == Busy::No {
            self.fencing.swap_remove(at);
        }
        fence_of(busy)
    }

    fn caps(&self) -> Caps {
        Caps { gather_max: GATHER_MAX, send_depth: self.send_depth, order: Order::Posted }
    }
}

/// The fence of a closed channel whose peer is busy like this.
fn fence_of(busy: Busy) -> Fence {
    match busy {
        Busy::No => Fence::Done,
        Busy::Reads => Fence::Reads,
        Busy::Copies => Fence::Pending,
    }
}

impl Drop for ShmQueue {
    fn drop(&mut self) {
        while !self.channels.is_empty() {
            // Nobody uses memory again by what this queue says.
            self.retire(self.channels.len() - 1);
        }
    }
}
