//! The completion queue over sockets: one epoll set, the channels by id, whose turn it is. It must not
//! judge frames (`channel` does) and never blocks but in [`TcpQueue::wait`].

use super::channel::{Budget, Channel, GATHER_MAX};
use crate::device::{Caps, ChannelSetup, CompletionQueue, Fence, Order, SetupKind};
use crate::error::{FabricError, PostError};
use crate::memory::{Access, Region, Span};
use crate::work::{ChannelId, Completion, CompletionKind, DisconnectReason, Read, RemoteKey, Write};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Events taken per system call; more stay for the next.
const EVENTS: usize = 64;
/// With no more channels than these, a poll reads each socket instead of asking first which have something:
/// as cheap when there is nothing, and one system call less when there is.
const DIRECT_CHANNELS_MAX: usize = 4;
/// Most unfinished requests a channel may be made for.
const SEND_DEPTH_MAX: usize = 1 << 16;
/// The last id; lanes use the bits above it.
const ID_MAX: u32 = (1 << 30) - 1;
/// The watched descriptor's mark; no channel has it.
const WATCHED: u64 = u64::MAX;

/// Channels over TCP of one lane.
#[derive(Debug)]
pub struct TcpQueue {
    epoll: OwnedFd,
    /// Sorted by id, as ids grow.
    channels: Vec<Channel>,
    next_id: u32,
    /// Whose turn it is, as an index of `channels`.
    turn: usize,
    send_depth: usize,
    /// The last poll brought bytes.
    moved: bool,
    /// What happened outside of `poll`.
    ready: Vec<Completion>,
}

impl TcpQueue {
    /// `send_depth`: unfinished requests one channel may have.
    pub fn new(send_depth: usize) -> Result<Self, FabricError> {
        if send_depth == 0 || send_depth > SEND_DEPTH_MAX {
            return Err(FabricError::Misuse(format!(
                "send_depth must be 1 to {SEND_DEPTH_MAX}, not {send_depth}"
            )));
        }
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|e| FabricError::os("making an epoll set (raise the limit of open files)", e))?;
        let (channels, ready) = (Vec::new(), Vec::with_capacity(send_depth));
        Ok(Self { epoll, channels, next_id: 0, turn: 0, send_depth, moved: false, ready })
    }

    /// Has it any open channel?
    #[must_use]
    pub fn has_channels(&self) -> bool {
        !self.channels.is_empty()
    }

    /// Makes a descriptor end every wait as long as it is readable, or, `by_edge`, when it becomes so: each write to an eventfd
    /// counts then, and it need not be read.
    pub fn watch(&mut self, fd: BorrowedFd<'_>, by_edge: bool) -> Result<(), FabricError> {
        let edge = if by_edge { epoll::EventFlags::ET } else { epoll::EventFlags::empty() };
        epoll::add(&self.epoll, fd, epoll::EventData::new_u64(WATCHED), epoll::EventFlags::IN | edge)
            .map_err(|e| FabricError::os("watching a descriptor", e))
    }

    /// Sleeps until there is something to poll, the watched descriptor fires, or the time is over. Does not
    /// sleep while there is work already known.
    pub fn wait(&mut self, timeout: Duration) {
        let deadline = Instant::now().checked_add(timeout);
        self.channels.iter_mut().for_each(Channel::rest);
        while !self.has_work() {
            let left = deadline.map_or(timeout, |d| d.saturating_duration_since(Instant::now()));
            if self.take_events(left) || left.is_zero() {
                return;
            }
        }
    }

    /// For whoever sleeps without this queue in hand: readable when [`TcpQueue::settle`] would say yes.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Takes what the kernel has to report. True: there is something to do, or the watched descriptor fired.
    pub(crate) fn settle(&mut self) -> bool {
        self.channels.iter_mut().for_each(Channel::rest);
        self.take_events(Duration::ZERO) || self.has_work()
    }

    /// Is there something to poll that is known already? Without a system call.
    pub(crate) fn has_work(&self) -> bool {
        !self.ready.is_empty() || self.channels.iter().any(|c| c.has_input() || c.has_output())
    }

    /// Asks the kernel which sockets have something to do, and whether the watched descriptor fired.
    fn take_events(&mut self, timeout: Duration) -> bool {
        let mut buffer = [const { MaybeUninit::<epoll::Event>::uninit() }; EVENTS];
        // A time too long for the system's type is as good as for ever.
        let timeout = Timespec::try_from(timeout).ok();
        let events: &[epoll::Event] = match epoll::wait(&self.epoll, &mut buffer[..], timeout.as_ref()) {
            Ok((events, _)) => events,
            Err(Errno::INTR) => &[],
            Err(e) => {
                // Our own descriptor and memory: it cannot fail. If it does, polling every socket still works.
                tracing::error!(error = %e, "epoll_wait failed");
                self.channels.iter_mut().for_each(|c| c.on_event(true, true, false));
                return true;
            }
        };
        let mut watched = false;
        for event in events {
            let (data, flags) = (event.data.u64(), event.flags);
            if data == WATCHED {
                watched = true;
            } else if let Some(at) =
                u32::try_from(data).ok().and_then(|id| position(&self.channels, ChannelId(id)))
            {
                let hang_up = epoll::EventFlags::RDHUP | epoll::EventFlags::HUP | epoll::EventFlags::ERR;
                let (readable, writable) =
                    (flags.contains(epoll::EventFlags::IN), flags.contains(epoll::EventFlags::OUT));
                self.channels[at].on_event(readable, writable, flags.intersects(hang_up));
            }
        }
        watched
    }

    /// Finds out which channels have something to do.
    fn look(&mut self) {
        let direct = self.channels.len() <= DIRECT_CHANNELS_MAX;
        if direct {
            self.channels.iter_mut().for_each(Channel::try_input);
        }
        // Room in a full socket is reported by events only.
        if !direct || self.channels.iter().any(Channel::is_blocked) {
            self.take_events(Duration::ZERO);
        }
    }

    fn receive(&mut self, completions: &mut Vec<Completion>) {
        let mut budget = Budget::default();
        let mut left = self.channels.len();
        while left > 0 && !budget.is_spent() {
            if self.turn >= self.channels.len() {
                self.turn = 0;
            }
            left -= 1;
            let channel = &mut self.channels[self.turn];
            if !channel.has_input() {
                self.turn += 1;
                continue;
            }
            match channel.receive(&mut budget, completions) {
                Ok(()) => self.turn += 1,
                Err(reason) => completions.push(self.fail(self.turn, reason)),
            }
        }
        self.moved = budget.moved();
    }

    /// Sends on every channel that can; appends to `ready`.
    fn send(&mut self) {
        let mut at = 0;
        while at < self.channels.len() {
            let channel = &mut self.channels[at];
            let sent = if channel.has_output() { channel.send(&mut self.ready) } else { Ok(()) };
            match sent.and_then(|()| ask(&self.epoll, channel)) {
                Ok(()) => at += 1,
                Err(reason) => {
                    let ended = self.fail(at, reason);
                    self.ready.push(ended);
                }
            }
        }
    }

    /// Drops a channel: its socket is closed, its memory released, its posts refused from here on.
    fn remove(&mut self, at: usize) -> ChannelId {
        if at < self.turn {
            self.turn -= 1;
        }
        self.channels.remove(at).id
    }

    fn fail(&mut self, at: usize, reason: DisconnectReason) -> Completion {
        Completion { channel: self.remove(at), kind: CompletionKind::Disconnected(reason) }
    }

    fn hand_out(&mut self, completions: &mut Vec<Completion>) {
        for completion in self.ready.drain(..) {
            if matches!(completion.kind, CompletionKind::WriteDone { .. })
                && let Some(at) = position(&self.channels, completion.channel)
            {
                self.channels[at].completion_taken();
            }
            completions.push(completion);
        }
    }

    fn channel(&mut self, id: ChannelId) -> Result<&mut Channel, PostError> {
        let at = position(&self.channels, id).ok_or(PostError::Closed)?;
        Ok(&mut self.channels[at])
    }
}

fn event_data(id: ChannelId) -> epoll::EventData {
    epoll::EventData::new_u64(u64::from(id.0))
}

/// Tells the epoll set what the channel now waits for. What is there already is reported at once.
fn ask(epoll: &OwnedFd, channel: &mut Channel) -> Result<(), DisconnectReason> {
    match channel.new_interest() {
        None => Ok(()),
        Some(flags) => epoll::modify(epoll, &channel.socket, event_data(channel.id), flags)
            .map_err(|e| DisconnectReason::Failed(format!("asking for events: {e}"))),
    }
}

fn position(channels: &[Channel], id: ChannelId) -> Option<usize> {
    channels.binary_search_by_key(&id, |c| c.id).ok()
}

impl CompletionQueue for TcpQueue {
    fn attach(&mut self, setup: ChannelSetup) -> Result<ChannelId, FabricError> {
        let SetupKind::Tcp(socket, pipe) = setup.kind else {
            return Err(FabricError::Misuse("a channel of another driver was given to a tcp queue".into()));
        };
        let id = ChannelId(self.next_id);
        if id.0 > ID_MAX {
            return Err(FabricError::Misuse(
                "this queue has used up its channel ids; restart the process".into(),
            ));
        }
        self.next_id += 1;
        let mut channel = Channel::new(id, (socket, pipe), self.send_depth);
        if let Some(flags) = channel.new_interest() {
            epoll::add(&self.epoll, &channel.socket, event_data(id), flags)
                .map_err(|e| FabricError::os("adding a channel to the epoll set", e))?;
        }
        self.channels.push(channel);
        Ok(id)
    }

    fn expose(&mut self, channel: ChannelId, region: &Region) -> Result<RemoteKey, PostError> {
        // Nothing is reached by the key alone.
        self.channel(channel)?;
        Ok(RemoteKey(region.id()))
    }

    fn lend(&mut self, channel: ChannelId, span: &Span, access: Access, lease: u64) -> Result<(), PostError> {
        self.channel(channel)?.lend(span, access, lease);
        Ok(())
    }

    fn take_back(&mut self, channel: ChannelId, span: &Span, lease: u64) {
        if let Ok(channel) = self.channel(channel) {
            channel.take_back(span, lease);
        }
    }

    fn post_write(&mut self, channel: ChannelId, write: &Write<'_>) -> Result<(), PostError> {
        self.channel(channel)?.post_write(write)
    }

    fn post_read(&mut self, channel: ChannelId, read: &Read<'_>) -> Result<(), PostError> {
        self.channel(channel)?.post_read(read)
    }

    fn flush(&mut self) {
        self.send();
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        if self.channels.is_empty() && self.ready.is_empty() {
            // As on a host whose channels are all over shared memory: nothing to look for in a turn.
            self.moved = false;
            return;
        }
        self.look();
        self.hand_out(completions);
        self.receive(completions);
        self.send();
        self.hand_out(completions);
    }

    fn moved(&self) -> bool {
        self.moved
    }

    /// All copies are this process's own system calls, so none is under way.
    fn close(&mut self, channel: ChannelId) -> Fence {
        self.ready.retain(|completion| completion.channel != channel);
        if let Some(at) = position(&self.channels, channel) {
            self.remove(at);
        }
        Fence::Done
    }

    fn caps(&self) -> Caps {
        Caps { gather_max: GATHER_MAX, send_depth: self.send_depth, order: Order::Posted }
    }
}
