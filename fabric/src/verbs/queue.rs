//! The completion queue over a device: what channels post, gathered to chains; what the device completes, told in the
//! fabric's words. Registers regions when they are first used, and tells peers the keys of those exposed to them by a
//! small message, which arrives before whatever is posted on the channel after it.

use super::channel::{Channel, GATHER_MAX};
use super::sys::{
    Completions, Context, Domain, POLLED_MAX, QueuePair, Receives, Registration, Work, WorkKind,
    failure_name, is_flush, place,
};
use super::told::{MESSAGE_BYTES, Told, decode_told, encode_told};
use super::{VerbsHandle, VerbsSetup};
use crate::device::{Caps, ChannelSetup, CompletionQueue, CqHandle, SetupKind};
use crate::error::{FabricError, PostError};
use crate::memory::{Region, Span};
use crate::work::{ChannelId, Completion, CompletionKind, DisconnectReason, Read, RemoteKey, Write};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// Receives posted for all channels of a lane: notices and messages that may be under way to it.
const RECEIVES: u32 = 1024;
/// Spans of one post, which may become several requests.
const POST_SPANS_MAX: usize = 256;
/// Requests of our own (keys told) beside those of the channel's user.
const OWN_REQUESTS: u32 = 64;
/// Marks the ids of receives.
const RECEIVE: u64 = 1 << 63;
/// Calls to the device per poll.
const POLLS_MAX: usize = 8;
/// The sockets are looked at once in so many idle polls.
const IDLE_POLLS_PER_LOOK: u32 = 4096;
const EVENTS: usize = 32;
/// Channels of a lane, which share its completion queue.
const CHANNELS_MAX: usize = 256;
/// Regions that one peer may expose to us; as many as over shared memory.
const TOLD_MAX: usize = 1024;
/// The completion channel's mark in the epoll set; no channel has it.
const COMPLETIONS: u64 = u64::MAX;

/// What a lane's queue pairs are made of.
#[derive(Debug)]
pub(super) struct Shared {
    completions: Arc<Completions>,
    receives: Arc<Receives>,
    domain: Arc<Domain>,
    depth: u32,
}

impl Shared {
    pub(super) fn queue_pair(&self) -> Result<QueuePair, FabricError> {
        let depth = self.depth + OWN_REQUESTS;
        QueuePair::new(&self.domain, &self.completions, &self.receives, depth, GATHER_MAX)
    }
}

/// Channels over a RDMA device of one lane.
#[derive(Debug)]
pub struct VerbsQueue {
    // Queue pairs are destroyed before the memory that they reach is given back.
    channels: Vec<Channel>,
    shared: Arc<Shared>,
    registrations: HashMap<u64, Registration>,
    /// Where peers' messages come in.
    messages: Registration,
    epoll: OwnedFd,
    send_depth: usize,
    next_id: u32,
    message_bytes_max: u64,
    places: Vec<ibverbs_sys::ibv_sge>,
    worked: Vec<Work>,
    ready: Vec<Completion>,
    idle_polls: u32,
}

impl VerbsQueue {
    pub(super) fn new(context: &Arc<Context>, send_depth: usize) -> Result<Self, FabricError> {
        let limits = context.limits()?;
        let limit = |value: i32| usize::try_from(value).unwrap_or(0);
        let depth_max = limit(limits.max_qp_wr).saturating_sub(OWN_REQUESTS as usize);
        if send_depth == 0 || send_depth > depth_max {
            return Err(FabricError::Misuse(format!(
                "send_depth must be 1 to {depth_max}, not {send_depth}"
            )));
        }
        let domain = Domain::new(Arc::clone(context))?;
        // A completion for each receive and for each request of as many channels as it has room for.
        let entries = limit(limits.max_cqe).min(CHANNELS_MAX * send_depth + RECEIVES as usize);
        let completions = Completions::new(context, entries as u32)?;
        let receives = Receives::new(&domain, RECEIVES)?;
        let messages = Region::allocate(RECEIVES as usize * MESSAGE_BYTES, "gradwire-verbs-messages")?;
        let messages = Registration::new(&domain, &messages)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|e| FabricError::os("making an epoll set (raise the limit of open files)", e))?;
        let watched = epoll::EventData::new_u64(COMPLETIONS);
        epoll::add(&epoll, completions.as_fd(), watched, epoll::EventFlags::IN)
            .map_err(|e| FabricError::os("watching a completion channel", e))?;
        let shared = Arc::new(Shared { completions, receives, domain, depth: send_depth as u32 });
        let queue = Self {
            channels: Vec::new(),
            shared,
            registrations: HashMap::new(),
            messages,
            epoll,
            send_depth,
            next_id: 0,
            message_bytes_max: context.message_bytes_max()?,
            places: Vec::with_capacity(POST_SPANS_MAX),
            worked: Vec::with_capacity(POLLED_MAX),
            ready: Vec::with_capacity(send_depth),
            idle_polls: 0,
        };
        for index in 0..RECEIVES {
            queue.post_receive(u64::from(index))?;
        }
        Ok(queue)
    }

    /// What connecting a channel to this queue needs.
    #[must_use]
    pub fn handle(&self) -> CqHandle {
        CqHandle { shm: None, verbs: Some(VerbsHandle(Arc::clone(&self.shared))) }
    }

    /// Bytes registered with the device.
    #[must_use]
    pub fn registered_bytes(&self) -> u64 {
        let all = self.registrations.values().chain([&self.messages]);
        all.map(|registration| registration.region.len() as u64).sum()
    }

    /// Sleeps until there is something to poll, or the time is over.
    pub fn wait(&mut self, timeout: Duration) {
        if let Err(error) = self.shared.completions.arm() {
            tracing::error!(%error, "a completion queue cannot be waited for");
            return;
        }
        // What came before it was armed tells nobody. A request of which nobody is told made room: whoever waits for
        // that is not to sleep either.
        if !self.take_work() && self.ready.is_empty() {
            self.look_at_sockets(timeout);
        }
    }

    fn post_receive(&self, index: u64) -> Result<(), FabricError> {
        let (offset, bytes) = (index * MESSAGE_BYTES as u64, MESSAGE_BYTES as u64);
        let span =
            self.messages.region.span(offset, bytes).map_err(|e| FabricError::Internal(e.to_string()))?;
        self.shared.receives.post(index | RECEIVE, &place(&span, self.messages.keys().0))
    }

    fn register(&mut self, region: &Region) -> Result<&Registration, FabricError> {
        match self.registrations.entry(region.id()) {
            Entry::Occupied(entry) => Ok(entry.into_mut()),
            Entry::Vacant(entry) => Ok(entry.insert(Registration::new(&self.shared.domain, region)?)),
        }
    }

    fn at(&self, id: ChannelId) -> Result<usize, PostError> {
        self.channels.binary_search_by_key(&id, |channel| channel.id).map_err(|_| PostError::Closed)
    }

    /// What the peer of a channel said of its memory.
    pub(super) fn told_on(&mut self, id: ChannelId) -> Result<&mut HashMap<u64, Told>, PostError> {
        let at = self.at(id)?;
        Ok(&mut self.channels[at].told)
    }

    /// The places of spans, each no longer than a request may be.
    fn place_all(&mut self, spans: &[Span]) -> Result<(), PostError> {
        self.places.clear();
        for span in spans.iter().filter(|span| !span.is_empty()) {
            let key = self.register(span.region()).map_err(refused)?.keys().0;
            let mut from = 0;
            while from < span.len() {
                let bytes = self.message_bytes_max.min(span.len() - from);
                let part = span.slice(from, bytes).map_err(|_| PostError::RemoteAccess)?;
                self.places.push(place(&part, key));
                from += bytes;
            }
        }
        Ok(())
    }

    /// Takes what the device has completed, in bounded pieces. Was there any?
    fn take_work(&mut self) -> bool {
        let mut any = false;
        for _ in 0..POLLS_MAX {
            let mut worked = std::mem::take(&mut self.worked);
            let polled = self.shared.completions.poll(|work| worked.push(work));
            for work in worked.drain(..) {
                self.handle_work(&work);
            }
            self.worked = worked;
            match polled {
                Ok(POLLED_MAX) => any = true,
                Ok(count) => return any || count > 0,
                Err(error) => {
                    tracing::error!(%error, "a completion queue cannot be polled");
                    return any;
                }
            }
        }
        any
    }

    fn handle_work(&mut self, work: &Work) {
        let at = self.channels.iter().position(|channel| channel.queue_pair.number == work.queue_pair);
        if work.id & RECEIVE != 0 {
            self.received(work, at);
        } else if let Some(at) = at {
            match work.failure {
                None => self.channels[at].over(work.id, &mut self.ready),
                Some(status) => self.fail(at, reason(status)),
            }
        }
    }

    fn received(&mut self, work: &Work, at: Option<usize>) {
        let index = work.id & !RECEIVE;
        if let Some(at) = at {
            let told = match work.kind {
                WorkKind::Notice { immediate } => {
                    let channel = self.channels[at].id;
                    self.ready.push(Completion { channel, kind: CompletionKind::Received { immediate } });
                    Ok(())
                }
                WorkKind::Message { bytes } => self.hear(at, index, bytes),
                WorkKind::Sent => Ok(()),
            };
            if let Err(what) = told {
                self.fail(at, DisconnectReason::PeerMisbehaved(what.into()));
            }
        }
        if let Err(error) = self.post_receive(index) {
            tracing::error!(%error, "a receive is lost");
        }
    }

    /// A peer tells the key of a region that it exposes.
    fn hear(&mut self, at: usize, index: u64, bytes: u32) -> Result<(), &'static str> {
        let mut message = [0; MESSAGE_BYTES];
        let read = self.messages.region.read(index * MESSAGE_BYTES as u64, &mut message);
        if read.is_err() || bytes as usize != MESSAGE_BYTES {
            return Err("a message of the wrong length");
        }
        let (name, told) = decode_told(&message).ok_or("a message that means nothing")?;
        let channel = &mut self.channels[at];
        if channel.told.len() == TOLD_MAX {
            return Err("it exposes too many regions");
        }
        channel.told.insert(name, told);
        Ok(())
    }

    /// Ends a channel: its queue pair reaches no memory once this returns.
    fn fail(&mut self, at: usize, reason: DisconnectReason) {
        let channel = self.channels.remove(at);
        self.ready.push(Completion { channel: channel.id, kind: CompletionKind::Disconnected(reason) });
    }

    fn look_at_sockets(&mut self, timeout: Duration) {
        let mut buffer = [const { MaybeUninit::<epoll::Event>::uninit() }; EVENTS];
        let timeout = Timespec::try_from(timeout).ok();
        let events: Vec<u64> = match epoll::wait(&self.epoll, &mut buffer[..], timeout.as_ref()) {
            Ok((events, _)) => events.iter().map(|event| event.data.u64()).collect(),
            Err(Errno::INTR) => return,
            Err(error) => {
                tracing::error!(%error, "epoll_wait failed");
                return;
            }
        };
        for event in events {
            if event == COMPLETIONS {
                self.shared.completions.take_events();
            } else if let Some(at) = u32::try_from(event).ok().and_then(|id| self.at(ChannelId(id)).ok()) {
                self.listen(at);
            }
        }
    }

    fn listen(&mut self, at: usize) {
        let Err(reason) = self.channels[at].listen() else { return };
        let id = self.channels[at].id;
        // What it sent before it went comes first.
        self.take_work();
        if let Ok(at) = self.at(id) {
            self.fail(at, reason);
        }
    }

    fn send_all(&mut self) {
        let mut at = 0;
        while at < self.channels.len() {
            if self.channels[at].chain.is_empty() {
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

/// Registration failed under a post: the region cannot be used with this device.
fn refused(error: FabricError) -> PostError {
    tracing::error!(%error, "memory cannot be registered");
    PostError::RemoteAccess
}

fn reason(status: u32) -> DisconnectReason {
    if is_flush(status) {
        return DisconnectReason::PeerClosed;
    }
    DisconnectReason::Failed(format!("the RDMA device reports: {} ({status})", failure_name(status)))
}

impl CompletionQueue for VerbsQueue {
    fn attach(&mut self, setup: ChannelSetup) -> Result<ChannelId, FabricError> {
        let SetupKind::Verbs(setup) = setup.kind else {
            return Err(FabricError::Misuse("a channel of another driver was given to a verbs queue".into()));
        };
        let VerbsSetup { queue_pair, socket, owner, is_peer_ready } = *setup;
        if !Arc::ptr_eq(&owner.0, &self.shared) {
            return Err(FabricError::Misuse("a channel was connected for another queue than this".into()));
        }
        if self.channels.len() == CHANNELS_MAX {
            return Err(FabricError::Misuse(format!("a queue has at most {CHANNELS_MAX} verbs channels")));
        }
        let id = ChannelId(self.next_id);
        self.next_id += 1;
        let watched = epoll::EventData::new_u64(u64::from(id.0));
        epoll::add(&self.epoll, &socket, watched, epoll::EventFlags::IN | epoll::EventFlags::RDHUP)
            .map_err(|e| FabricError::os("watching a channel's connection", e))?;
        self.channels.push(Channel::new(id, queue_pair, socket, is_peer_ready, self.send_depth));
        Ok(id)
    }

    fn expose(&mut self, channel: ChannelId, region: &Region) -> Result<RemoteKey, PostError> {
        let at = self.at(channel)?;
        let name = region.id();
        if self.channels[at].exposed.contains(&name) {
            return Ok(RemoteKey(name));
        }
        let (_, key, address) = self.register(region).map_err(refused)?.keys();
        let message = encode_told(name, &Told { key, address, bytes: region.len() as u64 });
        let most = self.send_depth + OWN_REQUESTS as usize;
        let channel = &mut self.channels[at];
        channel.tell(message, most)?;
        channel.exposed.push(name);
        Ok(RemoteKey(name))
    }

    fn post_write(&mut self, channel: ChannelId, write: &Write<'_>) -> Result<(), PostError> {
        let at = self.at(channel)?;
        if write.gather.len() > POST_SPANS_MAX {
            return Err(PostError::TooManySpans);
        }
        self.place_all(write.gather)?;
        let places = std::mem::take(&mut self.places);
        let posted = self.channels[at].write(write, &places, self.send_depth, self.message_bytes_max);
        self.places = places;
        posted
    }

    fn post_read(&mut self, channel: ChannelId, read: &Read<'_>) -> Result<(), PostError> {
        let at = self.at(channel)?;
        self.place_all(std::slice::from_ref(read.local))?;
        let places = std::mem::take(&mut self.places);
        let posted = self.channels[at].read(read, &places, self.send_depth);
        self.places = places;
        posted
    }

    fn flush(&mut self) {
        self.send_all();
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        self.send_all();
        self.take_work();
        if self.ready.is_empty() {
            self.idle_polls += 1;
            let is_waited_for = self.channels.iter().any(|channel| !channel.is_peer_ready);
            if is_waited_for || self.idle_polls >= IDLE_POLLS_PER_LOOK {
                self.idle_polls = 0;
                self.look_at_sockets(Duration::ZERO);
            }
        }
        completions.append(&mut self.ready);
    }

    fn close(&mut self, channel: ChannelId) {
        self.ready.retain(|completion| completion.channel != channel);
        if let Ok(at) = self.at(channel) {
            self.channels.remove(at);
        }
    }

    fn caps(&self) -> Caps {
        Caps { gather_max: POST_SPANS_MAX, send_depth: self.send_depth }
    }
}
