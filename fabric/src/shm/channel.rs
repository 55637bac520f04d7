//! One shared-memory channel: what its peer sends, and posting into the peer's memory. It owns the rings, the
//! mapped regions and the link of the channel; it must not know of other channels or of sleeping.

use super::bell::{Bell, ring_peer};
use super::landings::{Copied, Landing, Taken, Told};
use super::link::{self, Message, NoMessage};
use super::regions::{PeerRegions, REGIONS_MAX};
use super::ring::{Busy, Consumer, Producer, RingBroken};
use super::shared::{BellPage, MappedRing};
use crate::error::{FabricError, PostError};
use crate::memory::{Borrowed, Mapping, Region, Span};
use crate::work::{
    ChannelId, Completion, CompletionKind, DisconnectReason, Read, RemoteKey, RemoteSpan, Write,
};
use rustix::io::Errno;
use rustix::net::Shutdown;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Spans one write may gather.
pub(super) const GATHER_MAX: usize = 1024;
/// Notices one channel delivers in one poll, so that busy ones do not starve the others.
const POLL_NOTICES_MAX: usize = 64;
/// Bytes of landings that one poll copies, so that a caller stays responsive; a larger one is copied whole.
const LANDED_BYTES_MAX: u64 = 4 << 20;
/// A landing of at least this much wakes a peer that sleeps: it copies while the next one is made. Others wait for the notice
/// that follows.
const RUNG_BYTES_MIN: u64 = 64 << 10;
/// Messages taken from a link in one go: all regions there may be, and bells.
const DRAIN_MAX: usize = 2 * REGIONS_MAX;
/// Copies of at least this much may pass by the cache; what is smaller is read soon, with what lies around it.
const STREAMED_BYTES_MIN: usize = 128 << 10;

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
    /// Our regions that the peer has, sorted by id.
    exposed: Vec<Region>,
    /// What the peer is to copy, with the ids of those that want a completion.
    told: Told,
    unfinished: VecDeque<Option<u64>>,
    /// What it tells us to copy.
    taken: Taken,
    /// Of those that were copied, how many the peer was not woken for.
    untold: u32,
    /// Completions of ours that wait for the next poll.
    undelivered: usize,
    send_depth: usize,
    /// Why nothing is posted or handed over any more, and how many notices may still be delivered.
    ended: Option<(DisconnectReason, u32)>,
    /// That was told. The channel is here until it is closed, because the peer's memory may still be read in place.
    is_over: bool,
}

impl Channel {
    /// `borrows`: the peer's memory is borrowed from.
    pub(super) fn new(id: ChannelId, setup: ShmSetup, (send_depth, borrows): (usize, bool)) -> Self {
        let ShmSetup { link, peer_bell, receive, send, .. } = setup;
        Self {
            id,
            link,
            peer_bell,
            receive,
            send,
            regions: PeerRegions::new(borrows),
            exposed: Vec::new(),
            told: Told::default(),
            unfinished: VecDeque::new(),
            taken: Taken::default(),
            untold: 0,
            undelivered: 0,
            send_depth,
            ended: None,
            is_over: false,
        }
    }

    pub(super) fn link(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }

    /// Would `deliver` do anything, or a post that was refused for want of space now go through? The latter
    /// is said once: the caller may have lost interest.
    #[inline]
    pub(super) fn has_work(&mut self) -> bool {
        if self.is_over {
            return false;
        }
        self.ended.is_some()
            || self.receive.has_next()
            || self.taken.has_next(self.receive.memory())
            || self.told.has_done(self.send.memory())
            || self.send.take_space()
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

    /// Copies what is to land, and delivers notices. Says why, when the channel is over and everything was delivered.
    #[inline]
    pub(super) fn deliver(&mut self, completions: &mut Vec<Completion>) -> Option<DisconnectReason> {
        if self.is_over {
            return None;
        }
        self.undelivered = 0;
        self.finish(completions);
        let mut left = POLL_NOTICES_MAX;
        let mut bytes_left = LANDED_BYTES_MAX;
        let has_drained = loop {
            if self.is_cut_off() {
                break true;
            }
            if left == 0 {
                break false;
            }
            // In this order: what was told before a notice is seen with it.
            let has_next = self.receive.has_next();
            if !self.land_all(&mut bytes_left) {
                break false;
            }
            if !has_next || self.is_cut_off() {
                break true;
            }
            match self.receive.pop() {
                Ok(Some(immediate)) => {
                    completions
                        .push(Completion { channel: self.id, kind: CompletionKind::Received { immediate } });
                    left -= 1;
                    if let Some((_, deliverable)) = &mut self.ended {
                        *deliverable = deliverable.saturating_sub(1);
                    }
                }
                Ok(None) => break true,
                Err(broken) => self.misbehaved(broken.to_string()),
            }
        };
        let is_told = self.tells_of_landings(LANDED_BYTES_MAX - bytes_left);
        if self.receive.release() || is_told {
            ring_peer(&self.peer_bell, self.link.as_fd());
        }
        if has_drained { self.ended.take().map(|(reason, _)| reason) } else { None }
    }

    /// Is the peer to be woken for what was copied? A few small ones it finds when it wakes for something else.
    #[inline]
    fn tells_of_landings(&mut self, copied_bytes: u64) -> bool {
        let is_told = copied_bytes >= RUNG_BYTES_MIN || self.untold > self.receive.capacity() / 4;
        if is_told {
            self.untold = 0;
        }
        is_told
    }

    /// Is nothing of the peer's to be delivered any more?
    fn is_cut_off(&self) -> bool {
        self.ended.as_ref().is_some_and(|(_, deliverable)| *deliverable == 0)
    }

    /// What the peer has copied is done.
    #[inline]
    fn finish(&mut self, completions: &mut Vec<Completion>) {
        match self.told.take_done(self.send.memory()) {
            Ok(count) => {
                for id in self.unfinished.drain(..count as usize).flatten() {
                    completions.push(Completion { channel: self.id, kind: CompletionKind::WriteDone { id } });
                }
            }
            Err(broken) => self.misbehaved(broken.to_string()),
        }
    }

    /// Copies what is to land, up to a number of bytes. False where there is more.
    #[inline]
    fn land_all(&mut self, bytes_left: &mut u64) -> bool {
        while let Some(landing) = self.taken.next(self.receive.memory()) {
            if *bytes_left == 0 {
                return false;
            }
            if let Err(what) = self.land(&landing) {
                self.misbehaved(what);
                return true;
            }
            match self.taken.judge(self.receive.memory(), self.send.memory(), &landing) {
                Copied::Whole => {
                    self.taken.done(self.receive.memory());
                    self.untold += 1;
                }
                // Once more, from where its bytes are now.
                Copied::Moved => {}
                Copied::Closed => {
                    // What was copied may not be what it told of, and neither is what its notices say of it.
                    self.ended = Some((DisconnectReason::PeerClosed, 0));
                    return true;
                }
            }
            *bytes_left = bytes_left.saturating_sub(landing.bytes.max(1));
        }
        true
    }

    fn land(&mut self, landing: &Landing) -> Result<(), String> {
        let &Landing { source, target, bytes, streams, .. } = landing;
        let refuse = |what: &str, (key, offset): (u64, u64)| {
            format!("it told of {bytes} bytes at {offset} of {what} {key}, which are not there")
        };
        let to = self.exposed.binary_search_by_key(&target.0, Region::id).ok();
        let to = to.map(|at| &self.exposed[at]).filter(|region| region.peers_write());
        let to = to.and_then(|region| region.writable_at(target.1, bytes).ok());
        let to = to.ok_or_else(|| refuse("our region", target))?;
        if self.regions.find(source.0).is_none() {
            self.drain_link();
        }
        let from = self.regions.find(source.0).and_then(|region| region.at(source.1, bytes).ok());
        let from = from.ok_or_else(|| refuse("its region", source))?;
        // SAFETY: both stretches are in bounds (checked) of mappings that live: ours in `exposed`, the peer's in `regions`.
        // They are different mappings, so the addresses do not overlap. Our memory was granted for this, so nobody has a
        // reference into it; the peer may write its own meanwhile, which tears bytes, and `judge` notices it. Needed:
        // this is the receiving half of a one-sided write.
        unsafe { copy_raw(from, to, bytes as usize, streams) };
        Ok(())
    }

    /// Takes what lies on the link.
    pub(super) fn drain_link(&mut self) {
        for _ in 0..DRAIN_MAX {
            if self.is_over || self.ended.is_some() {
                return;
            }
            match link::receive_message(self.link.as_fd()) {
                Ok(Message::Bell) => {}
                Ok(Message::Region { key, bytes, memfd }) => match self.regions.insert(key, bytes, memfd) {
                    Ok(()) => {}
                    Err(FabricError::Peer(what)) => self.misbehaved(what),
                    Err(error) => {
                        tracing::warn!(%error, "cannot map a peer's memory; closing the channel to it");
                        self.end(DisconnectReason::Failed(error.to_string()));
                    }
                },
                Err(NoMessage::Nothing) => return,
                Err(NoMessage::Closed) => self.end(DisconnectReason::PeerClosed),
                Err(NoMessage::Garbage(what)) => self.misbehaved(what),
                Err(NoMessage::Failed(e)) => self.end(DisconnectReason::Failed(e.to_string())),
            }
        }
    }

    pub(super) fn expose(&mut self, region: &Region) -> Result<RemoteKey, PostError> {
        let key = region.id();
        let at = match self.exposed.binary_search_by_key(&key, Region::id) {
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
        self.exposed.insert(at, region.clone());
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
        if self.is_over || self.ended.is_some() { Err(PostError::Closed) } else { Ok(()) }
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

    /// A stretch of the peer's memory, to be read, or to be written: not what it lets us read only.
    #[inline]
    fn remote(&mut self, remote: RemoteSpan, bytes: u64, is_write: bool) -> Result<*mut u8, PostError> {
        let region = self.region(remote.key)?;
        if is_write && !region.is_writable() {
            return Err(PostError::RemoteAccess);
        }
        region.at(remote.offset, bytes).map_err(|_| PostError::RemoteAccess)
    }

    /// The peer's region, which outlives the channel.
    pub(super) fn mapping(&mut self, key: RemoteKey) -> Result<Arc<Mapping>, PostError> {
        self.open()?;
        self.region(key).cloned()
    }

    /// A stretch of the peer's memory, to be read where it lies. None where that cannot be.
    pub(super) fn borrow(&mut self, from: RemoteSpan, bytes: u64) -> Result<Option<Borrowed>, PostError> {
        self.open()?;
        self.region(from.key)?;
        let Some(pages) = self.regions.pages(from.key.0) else { return Ok(None) };
        pages.borrow(from.offset, bytes).map_err(|_| PostError::RemoteAccess)
    }

    /// Is there space for one more completion of ours?
    fn completion_space(&self) -> Result<(), PostError> {
        if self.undelivered + self.unfinished.len() < self.send_depth { Ok(()) } else { Err(PostError::Full) }
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
            let to = self.remote(write.remote, total, true)?;
            self.enter()?;
            copy_out(write, to, streams);
        }
        if let Some(immediate) = write.immediate {
            self.send.publish(immediate);
        }
        if total > 0 {
            self.leave();
        }
        if write.immediate.is_some() {
            ring_peer(&self.peer_bell, self.link.as_fd());
        }
        if write.signaled {
            self.complete(CompletionKind::WriteDone { id: write.id }, completions);
        }
        Ok(())
    }

    /// Tells the peer to copy the bytes. What it cannot map is written.
    pub(super) fn post_landing(
        &mut self,
        write: &Write<'_>,
        streams: bool,
        completions: &mut Vec<Completion>,
    ) -> Result<(), PostError> {
        let source = match write.gather {
            [source] if !source.is_empty() && source.region().memfd().is_some() => source,
            _ => return self.post_write(write, streams, completions),
        };
        self.completion_space()?;
        let RemoteKey(key) = self.expose(source.region())?;
        self.open()?;
        if !self.told.has_space(self.send.memory()) {
            return Err(PostError::Full);
        }
        let bytes = source.len();
        let landing = Landing {
            source: (key, source.offset()),
            target: (write.remote.key.0, write.remote.offset),
            bytes,
            streams: streams && bytes >= STREAMED_BYTES_MIN as u64,
            is_moved: false,
        };
        self.told.tell(self.send.memory(), &landing);
        self.unfinished.push_back(write.signaled.then_some(write.id));
        if bytes >= RUNG_BYTES_MIN {
            ring_peer(&self.peer_bell, self.link.as_fd());
        }
        Ok(())
    }

    /// The bytes of landings with this id are in `span`, too. How many of them the peer copies from there.
    pub(super) fn move_landings(&mut self, id: u64, span: &Span) -> usize {
        let Ok(RemoteKey(key)) = self.expose(span.region()) else { return 0 };
        let (told, memory) = (&self.told, self.send.memory());
        let those = (0..).zip(&self.unfinished).filter(|(_, other)| **other == Some(id));
        those.filter(|(nth, _)| told.relocate(memory, *nth, (key, span.offset()))).count()
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
            let from = self.remote(read.remote, bytes, false)?;
            // As for a write: whoever closes waits for us, and may use its memory otherwise afterwards.
            self.enter()?;
            // SAFETY: the source is mapped by `self.regions` and in bounds (checked); the target is a checked
            // span of a writable region of ours, other memory and so other addresses. Both may be written by
            // others meanwhile, which tears bytes and nothing else. Needed: this is the one-sided read.
            unsafe { std::ptr::copy_nonoverlapping(from, read.local.as_ptr(), bytes as usize) };
            self.leave();
        }
        self.complete(CompletionKind::ReadDone { id: read.id }, completions);
        Ok(())
    }

    /// Runs `work` as a copy of ours: whoever closes waits for it.
    pub(super) fn while_open(&mut self, work: &mut dyn FnMut()) -> Result<(), PostError> {
        self.open()?;
        self.enter()?;
        work();
        self.leave();
        Ok(())
    }

    /// From now on the peer's memory may be read in place: its fence is pending until the end of that.
    pub(super) fn begin_reads(&mut self) -> Result<(), PostError> {
        self.open()?;
        self.enter()?;
        self.send.hold();
        Ok(())
    }

    /// The channel's end was told. True: it stays until it is closed.
    pub(super) fn outlasts_its_end(&mut self) -> bool {
        self.is_over = self.send.is_held();
        self.is_over
    }

    pub(super) fn end_reads(&mut self) {
        if self.send.release() {
            ring_peer(&self.peer_bell, self.link.as_fd());
        }
    }

    #[inline]
    fn enter(&mut self) -> Result<(), PostError> {
        if self.send.enter() { Ok(()) } else { Err(PostError::Closed) }
    }

    /// Ends a copy. A peer that has closed meanwhile waits for this.
    #[inline]
    fn leave(&mut self) {
        if self.send.leave() {
            ring_peer(&self.peer_bell, self.link.as_fd());
        }
    }

    fn complete(&mut self, kind: CompletionKind, completions: &mut Vec<Completion>) {
        self.undelivered += 1;
        completions.push(Completion { channel: self.id, kind });
    }

    /// Ends the channel for good: an honest peer begins no copy after this. What it is in the middle of, the fence that is returned
    /// waits for. The caller has taken the link out of its epoll.
    pub(super) fn close(mut self) -> Fencing {
        self.end_reads();
        self.receive.close();
        // Our half only: the peer's tells that it has gone. Fails only when that has happened.
        let _ = rustix::net::shutdown(&self.link, Shutdown::Write);
        ring_peer(&self.peer_bell, self.link.as_fd());
        Fencing { id: self.id, receive: self.receive, link: self.link }
    }
}

/// A closed channel whose peer may have been in the middle of a copy.
#[derive(Debug)]
pub(super) struct Fencing {
    pub(super) id: ChannelId,
    receive: Consumer<MappedRing>,
    link: OwnedFd,
}

impl Fencing {
    /// What the peer has not ended yet: nothing if its process has ended. The kernel closes a process's descriptors after its last thread has
    /// stopped, so that the link's end is proof; a forked child that has the link keeps it open.
    pub(super) fn busy(&self) -> Busy {
        let busy = self.receive.busy();
        if busy != Busy::No && self.peer_has_gone() { Busy::No } else { busy }
    }

    fn peer_has_gone(&self) -> bool {
        // The messages that the peer sent before are dropped. Their number is bounded: the peer sees that this side has closed.
        (0..DRAIN_MAX)
            .map(|_| link::receive_message(self.link.as_fd()))
            .take_while(|received| !matches!(received, Err(NoMessage::Nothing | NoMessage::Failed(_))))
            .any(|received| matches!(received, Err(NoMessage::Closed)))
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
        unsafe { copy_raw(span.as_ptr(), to.add(at), bytes, streams && bytes >= STREAMED_BYTES_MIN) };
        at += bytes;
    }
}

/// # Safety
/// As for [`std::ptr::copy_nonoverlapping`], but for others that write either stretch meanwhile.
#[inline]
unsafe fn copy_raw(from: *const u8, to: *mut u8, bytes: usize, streams: bool) {
    // SAFETY: the caller's. Needed because peers' memory is reached by address only.
    unsafe {
        if streams {
            crate::copy::streaming_raw(to, from, bytes);
        } else {
            std::ptr::copy_nonoverlapping(from, to, bytes);
        }
    }
}
