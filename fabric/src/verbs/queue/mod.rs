//! The completion queue over a device: what channels post, gathered to chains; what the device completes, told in the
//! fabric's words. Tells peers the keys of what is lent to them by small messages, which arrive before whatever is posted
//! on the channel after them.

#[cfg(feature = "sim")]
mod forge;
mod plan;
mod work;

#[cfg(feature = "sim")]
pub use forge::Forged;

use super::channel::Channel;
use super::dmabuf::Dmabuf;
use super::endpoint::say_ready;
use super::ids::Turns;
use super::reach::{MESSAGE_BYTES, Told};
use super::registrar::{Extent, Own, Registrar};
use super::setup::{Shared, VerbsHandle, VerbsSetup};
use super::sys::{Completions, Context, POLLED_MAX, Receives, Work, ibv_sge, place};
use super::watch::{Alarm, Watch};
use crate::device::{
    Caps, ChannelSetup, CompletionQueue, CqHandle, Fence, Order, TRANSPORT_CHANNEL_IDS, TransportQueue,
};
use crate::error::{FabricError, PostError};
use crate::memory::{Access, Region, Span};
use crate::work::{ChannelId, Completion, Read, RemoteKey, Write};
use plan::RECEIVES_MAX;
pub(super) use plan::{OWN_REQUESTS, Plan};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use std::any::Any;
use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// Bytes that a queue registers for itself.
pub(super) const OWN_BYTES: u64 = (RECEIVES_MAX * MESSAGE_BYTES) as u64;
/// Spans of one post, which may become several requests.
const POST_SPANS_MAX: usize = 256;
/// The sockets are looked at once in so many polls; sooner while a peer's first word is waited for.
const POLLS_PER_LOOK: u32 = 4096;
const POLLS_PER_LOOK_WAITING: u32 = 16;
const SOCKETS: usize = 32;
/// Extents whose keys a lane remembers.
const KNOWN_MAX: usize = 1 << 16;
/// The completion channel's mark in the epoll set; no channel has it.
const COMPLETIONS: u64 = u64::MAX;
/// That of the device's events, and of those that another lane has read.
const EVENTS: u64 = u64::MAX - 1;
const ALARM: u64 = u64::MAX - 2;

/// Channels over a RDMA device of one lane.
#[derive(Debug)]
pub struct VerbsQueue {
    // Queue pairs are destroyed before the memory that they reach is given back.
    channels: Vec<Channel>,
    /// By the device's number of their queue pair.
    by_queue_pair: HashMap<u32, ChannelId>,
    shared: Arc<Shared>,
    /// Extents by region and index, so that posting asks nobody.
    known: HashMap<(u64, u64), Extent>,
    inbound: Inbound,
    watch: Arc<Watch>,
    alarm: Arc<Alarm>,
    epoll: OwnedFd,
    next_id: u32,
    message_bytes_max: u64,
    places: Vec<ibv_sge>,
    worked: Vec<(Option<ChannelId>, Work)>,
    /// Taken from the device when a channel came or went, and not handled yet.
    left: Vec<(Option<ChannelId>, Work)>,
    /// Why memory could not be registered, until somebody asks.
    unregistered: Option<FabricError>,
    /// Something waits to be sent for which there was no room before.
    has_more: bool,
    /// Completions of what was gone.
    stale: u64,
    ready: Vec<Completion>,
    /// Channels that the device refused to end: their peers may write what they were granted for as long as this process lives.
    refused: Vec<ChannelId>,
    polls: u32,
    /// Completions tell by an event: none has come since it was asked for.
    is_armed: bool,
}

impl VerbsQueue {
    pub(super) fn new(
        context: &Arc<Context>,
        watch: &Arc<Watch>,
        registrar: &Arc<Registrar>,
        (send_depth, port): (usize, u8),
    ) -> Result<Self, FabricError> {
        watch.check()?;
        let plan = Plan::new(&context.limits()?, send_depth)?;
        let completions = Completions::new(context, plan.entries_at_first() as u32)?;
        let receives = Receives::new(registrar.domain(), plan.receives as u32)?;
        let inbound = Inbound::new(registrar, &receives, plan.receives)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|e| FabricError::os("making an epoll set (raise the limit of open files)", e))?;
        let watched = epoll::EventData::new_u64(COMPLETIONS);
        epoll::add(&epoll, &*completions, watched, epoll::EventFlags::IN)
            .map_err(|e| FabricError::os("watching a completion channel", e))?;
        let alarm = watch.alarm(completions.address(), receives.address())?;
        for (fd, mark) in [(alarm.fd(), ALARM), (watch.fd(), EVENTS)] {
            epoll::add(&epoll, fd, epoll::EventData::new_u64(mark), epoll::EventFlags::IN)
                .map_err(|e| FabricError::os("watching a device's events", e))?;
        }
        let shared = Arc::new(Shared { completions, receives, registrar: Arc::clone(registrar), plan });
        Ok(Self {
            channels: Vec::new(),
            by_queue_pair: HashMap::new(),
            shared,
            known: HashMap::new(),
            inbound,
            watch: Arc::clone(watch),
            alarm,
            epoll,
            next_id: 0,
            message_bytes_max: context.message_bytes_max(port)?,
            places: Vec::with_capacity(POST_SPANS_MAX),
            worked: Vec::with_capacity(POLLED_MAX),
            left: Vec::new(),
            ready: Vec::with_capacity(plan.depth),
            refused: Vec::new(),
            polls: 0,
            is_armed: false,
            unregistered: None,
            has_more: false,
            stale: 0,
        })
    }

    /// What connecting a channel to this queue needs.
    #[must_use]
    pub fn handle(&self) -> CqHandle {
        CqHandle { shm: None, transports: vec![self.shared()] }
    }

    /// Lets the channel's peer address a dmabuf, for as long as the channel lives; repeating it is cheap. Must come before a
    /// grant that names it, as with a region.
    pub fn expose_dmabuf(&mut self, channel: ChannelId, dmabuf: &Dmabuf) -> Result<RemoteKey, PostError> {
        let at = self.at(channel)?;
        if !dmabuf.is_of(&self.shared.registrar) {
            tracing::error!("a dmabuf was registered with another device than the channel's");
            return Err(PostError::Unregistered);
        }
        self.channels[at].expose_dmabuf(dmabuf);
        Ok(RemoteKey(dmabuf.name()))
    }

    /// Sleeps until there is something to poll, or the time is over.
    pub fn wait(&mut self, timeout: Duration) {
        if self.arm() {
            self.look_at_sockets(timeout);
        }
    }

    /// Room for the completions of one more channel.
    fn make_room(&self) -> Result<(), FabricError> {
        let (plan, completions) = (&self.shared.plan, &self.shared.completions);
        let (channels, has) = (self.channels.len() + 1, self.channels.len());
        let full = || {
            FabricError::Misuse(format!(
                "a lane has room for {has} verbs channels on this device; use more servers or lanes"
            ))
        };
        if channels > plan.channels_max {
            return Err(full());
        }
        if completions.entries() < plan.entries(channels) {
            completions.grow(plan.entries_grown(channels)).map_err(|error| {
                tracing::error!(%error, "a device cannot make a completion queue larger");
                full()
            })?;
        }
        Ok(())
    }

    /// Completions that there is room for.
    #[doc(hidden)]
    pub fn entries(&self) -> usize {
        self.shared.completions.entries()
    }

    /// The extent of a region that an offset lies in.
    fn extent(&mut self, region: &Region, offset: u64) -> Result<Extent, PostError> {
        let at = (region.id(), self.shared.registrar.index(offset));
        if let Some(extent) = self.known.get(&at) {
            return Ok(*extent);
        }
        self.registered(region, offset, false)
    }

    fn registered(&mut self, region: &Region, offset: u64, for_peers: bool) -> Result<Extent, PostError> {
        let at = (region.id(), self.shared.registrar.index(offset));
        let extent = match self.shared.registrar.extent(region, offset, for_peers, true) {
            Ok((extent, _)) => extent,
            Err(error) => {
                tracing::error!(%error, "memory cannot be registered");
                self.unregistered = Some(error);
                return Err(PostError::Unregistered);
            }
        };
        if self.known.len() == KNOWN_MAX {
            self.known.clear();
        }
        self.known.insert(at, extent);
        Ok(extent)
    }

    fn at(&self, id: ChannelId) -> Result<usize, PostError> {
        self.channels.binary_search_by_key(&id, |channel| channel.id).map_err(|_| PostError::Closed)
    }

    /// The places of spans, each within one extent.
    fn place_all(&mut self, spans: &[Span]) -> Result<(), PostError> {
        self.places.clear();
        for span in spans.iter().filter(|span| !span.is_empty()) {
            let mut from = 0;
            while from < span.len() {
                let offset = span.offset() + from;
                let extent = self.extent(span.region(), offset)?;
                let bytes = (span.len() - from).min(extent.offset + extent.bytes - offset);
                let part = span.slice(from, bytes).map_err(|_| PostError::RemoteAccess)?;
                self.places.push(place(&part, extent.local_key));
                from += bytes;
            }
        }
        Ok(())
    }

    /// Tells a channel's peer the extents of a stretch, those that it does not know yet.
    fn tell(&mut self, at: usize, region: &Region, offset: u64, bytes: u64) -> Result<(), PostError> {
        let mut from = offset;
        while from < offset + bytes {
            let name = (region.id(), self.shared.registrar.index(from));
            if self.channels[at].lent.contains(&name) {
                let extent = self.extent(region, from)?;
                from = extent.offset + extent.bytes;
                continue;
            }
            let Extent { offset, bytes, address, remote_key, .. } = match self.extent(region, from)? {
                extent if extent.is_remote => extent,
                _ => self.registered(region, from, true)?,
            };
            self.channels[at].tell(name, &Told { offset, bytes, address, key: remote_key });
            from = offset + bytes;
        }
        Ok(())
    }

    fn look_at_sockets(&mut self, timeout: Duration) {
        let mut buffer = [const { MaybeUninit::<epoll::Event>::uninit() }; SOCKETS];
        let timeout = Timespec::try_from(timeout).ok();
        let events: &[epoll::Event] = match epoll::wait(&self.epoll, &mut buffer[..], timeout.as_ref()) {
            Ok((events, _)) => events,
            Err(Errno::INTR) => return,
            Err(error) => {
                tracing::error!(%error, "epoll_wait failed");
                return;
            }
        };
        for event in events {
            let event = event.data.u64();
            if event == COMPLETIONS {
                self.shared.completions.take_events();
                self.is_armed = false;
            } else if event == EVENTS {
                self.watch.look();
            } else if event == ALARM {
                // Taken below.
            } else if let Some(at) = u32::try_from(event).ok().and_then(|id| self.at(ChannelId(id)).ok()) {
                self.listen(at);
            }
        }
        self.heed();
    }

    fn listen(&mut self, at: usize) {
        let channel = &mut self.channels[at];
        // What was posted before the peer was ready goes now: whoever is about to sleep does not look again.
        let heard = channel.listen().and_then(|()| if channel.is_quiet() { Ok(()) } else { channel.send() });
        let Err(reason) = heard else { return };
        let id = self.channels[at].id;
        // What it sent before it went comes first.
        self.take_all();
        if let Ok(at) = self.at(id) {
            self.fail(at, reason);
        }
    }

    fn send_all(&mut self) {
        let mut at = 0;
        while at < self.channels.len() {
            if self.channels[at].is_quiet() {
                at += 1;
            } else {
                match self.channels[at].send() {
                    Ok(()) => at += 1,
                    Err(reason) => self.fail(at, reason),
                }
            }
        }
    }
}

impl CompletionQueue for VerbsQueue {
    fn attach(&mut self, setup: ChannelSetup) -> Result<ChannelId, FabricError> {
        let VerbsSetup { queue_pair, socket, owner, flags } = setup.take()?;
        if !Arc::ptr_eq(&owner.0, &self.shared) {
            return Err(FabricError::Misuse("a channel was connected for another queue than this".into()));
        }
        self.make_room()?;
        self.watch.check()?;
        if self.next_id == TRANSPORT_CHANNEL_IDS {
            return Err(FabricError::Misuse(format!(
                "this lane has had {TRANSPORT_CHANNEL_IDS} verbs channels and has no number for one more; restart the process"
            )));
        }
        let id = ChannelId(self.next_id);
        self.next_id += 1;
        let watched = epoll::EventData::new_u64(u64::from(id.0));
        epoll::add(&self.epoll, &socket, watched, epoll::EventFlags::IN | epoll::EventFlags::RDHUP)
            .map_err(|e| FabricError::os("watching a channel's connection", e))?;
        // What was of one that had this number before it; from the peer's next word on it is this one's.
        self.heed();
        self.drain();
        say_ready(&socket)?;
        self.by_queue_pair.insert(queue_pair.number, id);
        let mut channel = Channel::new(id, queue_pair, socket, &self.shared.plan, flags);
        channel.port_began = self.watch.count();
        self.channels.push(channel);
        Ok(id)
    }

    fn expose(&mut self, channel: ChannelId, region: &Region) -> Result<RemoteKey, PostError> {
        let at = self.at(channel)?;
        // A large one is told as it is lent.
        let whole = self.shared.registrar.index((region.len() as u64).saturating_sub(1)) == 0;
        let is_first = self.shared.registrar.expose(region);
        let is_new = self.channels[at].exposed.insert(region.id(), region.clone()).is_none();
        if whole && let Err(error) = self.tell(at, region, 0, region.len() as u64) {
            if is_new {
                self.channels[at].exposed.remove(&region.id());
            }
            if is_first {
                self.shared.registrar.withdraw(region);
            }
            return Err(error);
        }
        Ok(RemoteKey(region.id()))
    }

    fn prepare(&mut self, span: &Span) -> Result<(), FabricError> {
        self.shared.registrar.prepare(span)
    }

    fn unregistered(&mut self) -> Option<FabricError> {
        self.unregistered.take()
    }

    fn lend(
        &mut self,
        channel: ChannelId,
        span: &Span,
        _access: Access,
        _lease: u64,
    ) -> Result<(), PostError> {
        self.open(channel, span)
    }

    fn open(&mut self, channel: ChannelId, span: &Span) -> Result<(), PostError> {
        let at = self.at(channel)?;
        if !self.channels[at].exposed.contains_key(&span.region().id()) {
            return Err(PostError::RemoteAccess);
        }
        self.tell(at, span.region(), span.offset(), span.len())
    }

    fn post_write(&mut self, channel: ChannelId, write: &Write<'_>) -> Result<(), PostError> {
        let at = self.at(channel)?;
        if write.gather.len() > POST_SPANS_MAX {
            return Err(PostError::TooManySpans);
        }
        self.place_all(write.gather)?;
        self.channels[at].write(write, &self.places, self.message_bytes_max)
    }

    fn post_read(&mut self, channel: ChannelId, read: &Read<'_>) -> Result<(), PostError> {
        let at = self.at(channel)?;
        read.local.writable()?;
        self.place_all(std::slice::from_ref(read.local))?;
        self.channels[at].read(read, &self.places, self.message_bytes_max)
    }

    fn flush(&mut self) {
        self.send_all();
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        self.send_all();
        self.take_work();
        let Self { channels, ready, .. } = self;
        channels.iter_mut().for_each(|channel| channel.take_flags(ready));
        self.polls += 1;
        let is_idle = self.ready.is_empty();
        let is_waited_for = self.channels.iter().any(|channel| !channel.is_peer_ready);
        let most =
            if is_waited_for { if is_idle { 1 } else { POLLS_PER_LOOK_WAITING } } else { POLLS_PER_LOOK };
        if self.polls >= most {
            self.polls = 0;
            self.look_at_sockets(Duration::ZERO);
        }
        completions.append(&mut self.ready);
    }

    fn close(&mut self, channel: ChannelId) -> Fence {
        self.ready.retain(|completion| completion.channel != channel);
        if let Ok(at) = self.at(channel) {
            self.remove(at);
        }
        self.fence(channel)
    }

    /// A device that has ended a queue pair does nothing more for it.
    fn fence(&mut self, channel: ChannelId) -> Fence {
        if self.refused.contains(&channel) { Fence::Pending } else { Fence::Done }
    }

    fn caps(&self) -> Caps {
        // Reliable connections keep it.
        Caps { gather_max: POST_SPANS_MAX, send_depth: self.shared.plan.depth, order: Order::Posted }
    }
}

impl TransportQueue for VerbsQueue {
    fn shared(&self) -> Arc<dyn Any + Send + Sync> {
        Arc::new(VerbsHandle(Arc::clone(&self.shared)))
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// One whose end has not been reported yet counts.
    fn has_channels(&self) -> bool {
        !self.channels.is_empty() || !self.ready.is_empty()
    }

    /// Asks for an event with the next completion.
    fn arm(&mut self) -> bool {
        if self.channels.iter().any(|channel| channel.flags.is_some()) {
            // A flag wakes nobody.
            std::thread::yield_now();
            return false;
        }
        if !self.is_armed {
            // The event of an earlier time, if one came; there is never more than one.
            self.shared.completions.take_events();
            if let Err(error) = self.shared.completions.arm() {
                tracing::error!(%error, "a completion queue cannot be waited for");
                return false;
            }
            self.is_armed = true;
        }
        // What came before it was armed tells nobody. A request of which nobody is told made room: whoever waits for
        // that is not to sleep either.
        !self.take_work() && self.ready.is_empty()
    }

    fn settle(&mut self) {
        self.look_at_sockets(Duration::ZERO);
    }
}

impl Drop for VerbsQueue {
    fn drop(&mut self) {
        // Queue pairs first: what they reach may be given back with the last lane that used it.
        self.channels.clear();
        self.shared.registrar.release_unused();
    }
}

/// Where what peers send comes in: the receives of a lane, each with its stretch of registered memory.
#[derive(Debug)]
struct Inbound {
    memory: Own,
    receives: Arc<Receives>,
    turns: Turns,
}

impl Inbound {
    /// All receives are posted.
    fn new(registrar: &Arc<Registrar>, receives: &Arc<Receives>, count: usize) -> Result<Self, FabricError> {
        let memory = registrar.own((count * MESSAGE_BYTES) as u64, "gradwire-verbs-messages", false)?;
        let this = Self { memory, receives: Arc::clone(receives), turns: Turns::new(count) };
        (0..count as u32).try_for_each(|index| this.post(index))?;
        Ok(this)
    }

    /// Posts a receive, which has been taken.
    pub(super) fn post(&self, index: u32) -> Result<(), FabricError> {
        let (offset, bytes) = (u64::from(index) * MESSAGE_BYTES as u64, MESSAGE_BYTES as u64);
        let memory = &self.memory.registration;
        let span = memory.region.span(offset, bytes).map_err(|e| FabricError::Internal(e.to_string()))?;
        self.receives.post(self.turns.id(index), &place(&span, memory.keys().0))
    }

    /// Takes a receive that has completed. False: it is none that is posted.
    pub(super) fn take(&mut self, index: u32, turn: u32) -> bool {
        self.turns.take(index, turn)
    }

    /// The message in a receive that was taken.
    pub(super) fn message(&self, index: u32) -> Option<[u8; MESSAGE_BYTES]> {
        let mut message = [0; MESSAGE_BYTES];
        let read =
            self.memory.registration.region.read(u64::from(index) * MESSAGE_BYTES as u64, &mut message);
        read.is_ok().then_some(message)
    }
}
