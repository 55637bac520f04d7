//! One shared-memory channel: what its peer sends, and posting into the peer's memory. It owns the rings, the
//! mapped regions and the link of the channel; it must not know of other channels or of sleeping.

use super::bell::{Bell, ring_peer};
use super::link::{self, Message, Received};
use super::regions::{PeerRegions, REGIONS_MAX};
use super::ring::{Consumer, Producer, RingBroken};
use super::shared::{BellPage, MappedRing};
use crate::error::{FabricError, PostError};
use crate::memory::{Mapping, Region};
use crate::work::{
    ChannelId, Completion, CompletionKind, DisconnectReason, Read, RemoteKey, RemoteSpan, Write,
};
use rustix::io::Errno;
use rustix::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Spans one write may gather.
pub(super) const GATHER_MAX: usize = 1024;
/// Notices one channel delivers in one poll, so that busy ones do not starve the others.
const POLL_NOTICES_MAX: usize = 64;
/// Messages taken from a link in one go: all regions there may be, and bells.
const DRAIN_MAX: usize = 2 * REGIONS_MAX;
/// Copies of at least this much may pass by the cache; what is smaller is read soon, with what lies around it.
const STREAMED_BYTES_MIN: usize = 128 << 10;
/// How long closing waits for a copy of the peer's that is under way. A copy of gigabytes or a process that
/// does not run can take longer, which is logged.
const QUIET_WAIT: Duration = Duration::from_millis(20);

/// A connected channel on its way to its queue.
#[derive(Debug)]
pub(crate) struct ShmSetup {
    pub(super) bell: Arc<Bell>,
    pub(super) link: OwnedFd,
    pub(super) peer_bell: BellPage,
    pub(super) receive: Consumer<MappedRing>,
    pub(super) send: Producer<MappedRing>,
}

#[derive(Debug)]
pub(super) struct Channel {
    pub(super) id: ChannelId,
    link: OwnedFd,
    peer_bell: BellPage,
    receive: Consumer<MappedRing>,
    send: Producer<MappedRing>,
    regions: PeerRegions,
    /// Ids of our regions that the peer has, in the order they were handed over; sorted, since ids grow.
    exposed: Vec<u64>,
    /// Completions of ours that wait for the next poll.
    undelivered: usize,
    send_depth: usize,
    /// Why nothing is posted or handed over any more, and how many notices may still be delivered.
    ended: Option<(DisconnectReason, u32)>,
}

impl Channel {
    pub(super) fn new(id: ChannelId, setup: ShmSetup, send_depth: usize) -> Self {
        let ShmSetup { link, peer_bell, receive, send, .. } = setup;
        Self {
            id,
            link,
            peer_bell,
            receive,
            send,
            regions: PeerRegions::default(),
            exposed: Vec::new(),
            undelivered: 0,
            send_depth,
            ended: None,
        }
    }

    pub(super) fn link(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }

    /// Would `deliver` do anything, or a post that was refused for want of space now go through? The latter
    /// is said once: the caller may have lost interest.
    #[inline]
    pub(super) fn has_work(&mut self) -> bool {
        self.ended.is_some() || self.receive.has_next() || self.send.take_space()
    }

    /// The peer has gone: what it published before still counts, a ring's worth at most.
    fn end(&mut self, reason: DisconnectReason) {
        let deliverable = self.receive.capacity();
        self.ended.get_or_insert((reason, deliverable));
    }

    /// The peer lied: nothing more of it is believed.
    fn misbehaved(&mut self, what: impl Into<String>) {
        self.ended = Some((DisconnectReason::PeerMisbehaved(what.into()), 0));
    }

    /// Delivers notices. Says why, when the channel is over and everything was delivered.
    #[inline]
    pub(super) fn deliver(&mut self, completions: &mut Vec<Completion>) -> Option<DisconnectReason> {
        self.undelivered = 0;
        let mut left = match &self.ended {
            Some((_, deliverable)) => POLL_NOTICES_MAX.min(*deliverable as usize),
            None => POLL_NOTICES_MAX,
        };
        let mut drained = self.ended.is_some() && left == 0;
        while left > 0 {
            match self.receive.pop() {
                Ok(Some(immediate)) => {
                    completions
                        .push(Completion { channel: self.id, kind: CompletionKind::Received { immediate } });
                    left -= 1;
                    if let Some((_, deliverable)) = &mut self.ended {
                        *deliverable -= 1;
                    }
                }
                Ok(None) => {
                    drained = true;
                    break;
                }
                Err(broken) => {
                    self.misbehaved(broken.to_string());
                    drained = true;
                    break;
                }
            }
        }
        if self.receive.release() {
            ring_peer(&self.peer_bell, self.link.as_fd());
        }
        if drained { self.ended.take().map(|(reason, _)| reason) } else { None }
    }

    /// Takes what lies on the link.
    pub(super) fn drain_link(&mut self) {
        for _ in 0..DRAIN_MAX {
            if self.ended.is_some() {
                return;
            }
            match link::receive_message(self.link.as_fd()) {
                Received::Message(Message::Bell) => {}
                Received::Message(Message::Region { key, bytes, memfd }) => {
                    match self.regions.insert(key, bytes, memfd.as_fd()) {
                        Ok(()) => {}
                        Err(FabricError::Peer(what)) => self.misbehaved(what),
                        Err(other) => self.end(DisconnectReason::Failed(other.to_string())),
                    }
                }
                Received::Nothing => return,
                Received::Closed => self.end(DisconnectReason::PeerClosed),
                Received::Garbage(what) => self.misbehaved(what),
                Received::Failed(e) => self.end(DisconnectReason::Failed(e.to_string())),
            }
        }
    }

    pub(super) fn expose(&mut self, region: &Region) -> Result<RemoteKey, PostError> {
        let key = region.id();
        let at = match self.exposed.binary_search(&key) {
            Ok(_) => return Ok(RemoteKey(key)),
            Err(at) => at,
        };
        self.open()?;
        if self.exposed.len() == REGIONS_MAX {
            return Err(PostError::RemoteAccess);
        }
        let memfd = region.memfd().ok_or(PostError::NotShareable)?;
        match link::send_region(self.link.as_fd(), key, region.len() as u64, memfd) {
            Ok(()) => {}
            // The kernel also bounds the descriptors on their way.
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::TOOMANYREFS | Errno::NOMEM) => {
                return Err(PostError::Full);
            }
            Err(e) => return Err(self.send_failed(e)),
        }
        self.exposed.insert(at, key);
        Ok(RemoteKey(key))
    }

    fn send_failed(&mut self, error: Errno) -> PostError {
        match error {
            Errno::PIPE | Errno::CONNRESET => self.end(DisconnectReason::PeerClosed),
            other => self.end(DisconnectReason::Failed(other.to_string())),
        }
        PostError::Closed
    }

    fn open(&self) -> Result<(), PostError> {
        if self.ended.is_some() { Err(PostError::Closed) } else { Ok(()) }
    }

    fn ring_broken(&mut self, broken: RingBroken) -> PostError {
        self.misbehaved(broken.to_string());
        PostError::Closed
    }

    /// The peer's region, which may still be on its way: peers hand it over before they grant it.
    #[inline]
    fn region(&mut self, key: RemoteKey) -> Result<&Arc<Mapping>, PostError> {
        if self.regions.find(key.0).is_none() {
            self.drain_link();
            self.open()?;
        }
        self.regions.find(key.0).ok_or(PostError::RemoteAccess)
    }

    fn remote(&mut self, remote: RemoteSpan, bytes: u64) -> Result<*mut u8, PostError> {
        self.region(remote.key)?.at(remote.offset, bytes).map_err(|_| PostError::RemoteAccess)
    }

    /// As [`Channel::remote`], of what the peer lets us write.
    #[inline]
    fn writable(&mut self, remote: RemoteSpan, bytes: u64) -> Result<*mut u8, PostError> {
        let region = self.region(remote.key)?;
        if !region.is_writable() {
            return Err(PostError::RemoteAccess);
        }
        region.at(remote.offset, bytes).map_err(|_| PostError::RemoteAccess)
    }

    /// The peer's region, which outlives the channel.
    pub(super) fn mapping(&mut self, key: RemoteKey) -> Result<Arc<Mapping>, PostError> {
        self.open()?;
        self.region(key).cloned()
    }

    /// Is there space for one more completion of ours?
    fn completion_space(&self) -> Result<(), PostError> {
        if self.undelivered < self.send_depth { Ok(()) } else { Err(PostError::Full) }
    }

    #[inline]
    pub(super) fn post_write(
        &mut self,
        write: &Write<'_>,
        streams: bool,
        completions: &mut Vec<Completion>,
    ) -> Result<(), PostError> {
        self.open()?;
        if write.gather.len() > GATHER_MAX {
            return Err(PostError::TooManySpans);
        }
        if write.signaled {
            self.completion_space()?;
        }
        if write.immediate.is_some() && !self.send.has_space().map_err(|e| self.ring_broken(e))? {
            return Err(PostError::Full);
        }
        let total = write.gather.iter().try_fold(0u64, |sum, span| sum.checked_add(span.len()));
        let total = total.ok_or(PostError::RemoteAccess)?;
        if total > 0 {
            let to = self.writable(write.remote, total)?;
            if !self.send.enter() {
                return Err(PostError::Closed);
            }
            copy_out(write, to, streams);
        }
        if let Some(immediate) = write.immediate {
            self.send.publish(immediate);
        }
        if total > 0 {
            self.send.leave();
        }
        if write.immediate.is_some() {
            ring_peer(&self.peer_bell, self.link.as_fd());
        }
        if write.signaled {
            self.complete(CompletionKind::WriteDone { id: write.id }, completions);
        }
        Ok(())
    }

    pub(super) fn post_read(
        &mut self,
        read: &Read<'_>,
        completions: &mut Vec<Completion>,
    ) -> Result<(), PostError> {
        self.open()?;
        self.completion_space()?;
        read.local.writable()?;
        let bytes = read.local.len();
        if bytes > 0 {
            let from = self.remote(read.remote, bytes)?;
            // As for a write: whoever closes waits for us, and may use its memory otherwise afterwards.
            if !self.send.enter() {
                return Err(PostError::Closed);
            }
            // SAFETY: the source is mapped by `self.regions` and in bounds (checked); the target is a checked
            // span of a writable region of ours, other memory and so other addresses. Both may be written by
            // others meanwhile, which tears bytes and nothing else. Needed: this is the one-sided read.
            unsafe { std::ptr::copy_nonoverlapping(from, read.local.as_ptr(), bytes as usize) };
            self.send.leave();
        }
        self.complete(CompletionKind::ReadDone { id: read.id }, completions);
        Ok(())
    }

    /// Runs `work` as a copy of ours: whoever closes waits for it.
    pub(super) fn while_open(&mut self, work: &mut dyn FnMut()) -> Result<(), PostError> {
        self.open()?;
        if !self.send.enter() {
            return Err(PostError::Closed);
        }
        work();
        self.send.leave();
        Ok(())
    }

    fn complete(&mut self, kind: CompletionKind, completions: &mut Vec<Completion>) {
        self.undelivered += 1;
        completions.push(Completion { channel: self.id, kind });
    }

    /// Ends the channel for good: when this returns, an honest peer writes nothing into our memory any more, and reads
    /// nothing out of it (views apart).
    /// The caller has taken the link out of its epoll.
    pub(super) fn retire(mut self) {
        self.receive.close();
        let started = Instant::now();
        while !self.receive.is_quiet() && !self.peer_is_gone() {
            if started.elapsed() > QUIET_WAIT {
                tracing::warn!(
                    channel = self.id.0,
                    "closed a channel whose peer is still copying into our memory"
                );
                break;
            }
            std::thread::yield_now();
        }
        // Fails only when the peer is gone, which is what it is to achieve.
        let _ = rustix::net::shutdown(&self.link, Shutdown::Both);
        ring_peer(&self.peer_bell, self.link.as_fd());
    }

    /// Has its end of the link been closed? A process that died in mid-copy will not end it.
    fn peer_is_gone(&mut self) -> bool {
        self.ended = None;
        self.drain_link();
        self.ended.is_some()
    }
}

/// Gathers a write's spans into the peer's memory; where that `streams`, large ones past the cache. What comes with a notice
/// is read at once, and goes through it.
#[inline]
fn copy_out(write: &Write<'_>, to: *mut u8, streams: bool) {
    let (mut at, streams) = (0, streams && write.immediate.is_none());
    for span in write.gather {
        let bytes = span.len() as usize;
        // SAFETY: the span is a checked stretch of a live region; `to` has room for all spans together,
        // checked against the mapping by the caller, and is another mapping, so the addresses do not overlap.
        // A peer may write either meanwhile, which tears bytes and nothing else. Needed: this is the
        // one-sided write.
        unsafe {
            if streams && bytes >= STREAMED_BYTES_MIN {
                crate::copy::streaming_raw(to.add(at), span.as_ptr(), bytes);
            } else {
                std::ptr::copy_nonoverlapping(span.as_ptr(), to.add(at), bytes);
            }
        };
        at += bytes;
    }
}
