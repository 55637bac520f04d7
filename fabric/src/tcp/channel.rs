//! One channel: its socket, what it exposes, what is on its way out and in. It judges the peer's frames:
//! whatever is not allowed ends the channel. It must not touch other channels or block.

use super::frame::Frame;
use super::pipe::Pipe;
use super::receive::{Next, OnLanded, Receiver};
use super::send::{OnSent, SendQueue};
use super::sys;
use crate::error::PostError;
use crate::grants::Grants;
use crate::memory::{Access, Span};
use crate::work::{ChannelId, Completion, CompletionKind, DisconnectReason, Read, Write};
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use socket2::Socket;
use std::collections::VecDeque;
use std::net::Shutdown;
use std::os::fd::AsFd;

/// Reads one side may have under way on a channel; part of the protocol, as the other side holds it to it.
pub(super) const READS_MAX: usize = 64;
/// Spans a write may gather.
pub(super) const GATHER_MAX: usize = 256;

/// What one poll may take from the sockets, so that the caller reduces it while it is in the cache.
#[derive(Debug, Default)]
pub(super) struct Budget {
    bytes: usize,
    notices: usize,
}

impl Budget {
    /// With a notice to hand out, this many bytes are enough for one poll.
    const NOTICED_BYTES: usize = 128 << 10;
    /// Enough without a notice.
    const BYTES_MAX: usize = 1 << 20;
    /// Enough notices of small frames.
    const NOTICES_MAX: usize = 256;

    pub(super) fn moved(&self) -> bool {
        self.bytes > 0
    }

    pub(super) fn is_spent(&self) -> bool {
        self.bytes >= Self::BYTES_MAX
            || self.notices >= Self::NOTICES_MAX
            || (self.notices > 0 && self.bytes >= Self::NOTICED_BYTES)
    }
}

#[derive(Debug)]
struct PendingRead {
    wire_id: u64,
    id: u64,
    local: Span,
}

/// A channel of a [`TcpQueue`](super::TcpQueue).
#[derive(Debug)]
pub(super) struct Channel {
    pub(super) id: ChannelId,
    pub(super) socket: Socket,
    /// What is between frames and the socket.
    pipe: Pipe,
    send_depth: usize,
    grants: Grants,
    /// The peer was in the middle of something where it was not granted it any more.
    is_revoked: bool,
    send: SendQueue,
    receiver: Receiver,
    reads: VecDeque<PendingRead>,
    next_read: u64,
    /// Requests of ours whose bytes the kernel does not have yet, or whose completion was not handed out.
    places_taken: usize,
    answers_queued: usize,
    /// The kernel may have bytes for us.
    readable: bool,
    /// The kernel may take bytes.
    writable: bool,
    /// The end is near: a short read no longer means that nothing follows.
    hang_up: bool,
    /// The peer takes nothing any more. What it sent before is still read.
    send_broken: bool,
    /// Bytes may be there, in the kernel or read ahead.
    input: bool,
    is_unix: bool,
    /// Whether the epoll set was told to report room; nothing before it was told anything.
    asked: Option<bool>,
}

impl Channel {
    pub(super) fn new(id: ChannelId, (socket, pipe): (Socket, Pipe), send_depth: usize) -> Self {
        Self {
            id,
            is_unix: sys::is_unix(&socket),
            asked: None,
            socket,
            pipe,
            send_depth,
            grants: Grants::default(),
            is_revoked: false,
            send: SendQueue::with_capacity(send_depth + READS_MAX),
            receiver: Receiver::new(),
            reads: VecDeque::with_capacity(READS_MAX),
            next_read: 0,
            places_taken: 0,
            answers_queued: 0,
            // Bytes that came before are reported as soon as the socket is in the epoll set.
            readable: false,
            writable: true,
            hang_up: false,
            send_broken: false,
            input: false,
        }
    }

    /// The kernel reported something.
    pub(super) fn on_event(&mut self, readable: bool, writable: bool, hang_up: bool) {
        self.hang_up |= hang_up;
        self.writable |= writable | hang_up;
        if readable || hang_up {
            self.try_input();
        }
    }

    /// Looks at the socket with the next poll, event or not.
    pub(super) fn try_input(&mut self) {
        self.readable = true;
        self.input = true;
    }

    /// Before a sleep.
    pub(super) fn rest(&mut self) {
        // A unix socket knows no low-water mark, and what is sealed comes in other lengths than payloads.
        if !self.input && !self.is_unix && self.pipe.is_plain() {
            self.receiver.raise_low_water(self.socket.as_fd());
        }
    }

    pub(super) fn has_input(&self) -> bool {
        self.input
    }

    pub(super) fn has_output(&self) -> bool {
        self.writable && self.wants_out()
    }

    pub(super) fn is_blocked(&self) -> bool {
        !self.writable && self.wants_out()
    }

    fn wants_out(&self) -> bool {
        !self.send_broken && (!self.send.is_empty() || self.pipe.has_unsent())
    }

    /// What the epoll set is to report from now on, where that differs from what it was told. TCP reports room
    /// only after it was full, so it is asked for once and for all. A unix socket reports it with every piece
    /// that the peer takes, which would wake us for nothing: it is asked while we wait for it.
    pub(super) fn new_interest(&mut self) -> Option<EventFlags> {
        let output = !self.is_unix || self.is_blocked();
        if self.asked == Some(output) {
            return None;
        }
        self.asked = Some(output);
        let input = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
        Some(if output { input | EventFlags::OUT } else { input })
    }

    pub(super) fn lend(&mut self, span: &Span, access: Access, lease: u64) {
        self.grants.add(span, access, lease);
    }

    /// Ends the channel if the peer is in the middle of a write there, or has a read there that is not answered: it had said that
    /// it was done. Otherwise the rest would land in, or be sent of, what is somebody else's by then.
    pub(super) fn take_back(&mut self, span: &Span, lease: u64) {
        self.grants.remove(span, lease);
        let reaches = |access, span: &Span| {
            self.grants.find(access, span.region().id(), span.offset(), span.len()).is_ok()
        };
        let lands = self.receiver.written().is_none_or(|span| reaches(Access::ReadWrite, span));
        let answers = self.answers_queued == 0 || self.send.answers().all(|span| reaches(Access::Read, span));
        if !(lands && answers) {
            self.receiver.abandon();
            self.send.clear();
            self.is_revoked = true;
            self.try_input();
        }
    }

    pub(super) fn post_write(&mut self, write: &Write<'_>) -> Result<(), PostError> {
        self.check_room()?;
        if write.gather.len() > GATHER_MAX {
            return Err(PostError::TooManySpans);
        }
        let length = write.gather.iter().try_fold(0u64, |sum, span| sum.checked_add(span.len()));
        let length = length.ok_or(PostError::RemoteAccess)?;
        let (key, offset) = (write.remote.key.0, write.remote.offset);
        let frame = Frame::Write { key, offset, length, immediate: write.immediate };
        let on_sent = if write.signaled { OnSent::WriteDone(write.id) } else { OnSent::Nothing };
        self.send.push(frame, write.gather, on_sent);
        self.places_taken += 1;
        Ok(())
    }

    pub(super) fn post_read(&mut self, read: &Read<'_>) -> Result<(), PostError> {
        self.check_room()?;
        read.local.writable()?;
        if self.reads.len() == READS_MAX {
            return Err(PostError::Full);
        }
        let wire_id = self.next_read;
        self.next_read = wire_id.wrapping_add(1);
        let (key, offset) = (read.remote.key.0, read.remote.offset);
        let frame = Frame::ReadRequest { key, offset, length: read.local.len(), id: wire_id };
        self.send.push(frame, &[], OnSent::Nothing);
        self.reads.push_back(PendingRead { wire_id, id: read.id, local: read.local.clone() });
        self.places_taken += 1;
        Ok(())
    }

    fn check_room(&self) -> Result<(), PostError> {
        if self.send_broken {
            Err(PostError::Closed)
        } else if self.places_taken >= self.send_depth {
            Err(PostError::Full)
        } else {
            Ok(())
        }
    }

    /// Gives the socket what it takes. Completions are counted until [`Channel::completion_taken`].
    pub(super) fn send(&mut self, completions: &mut Vec<Completion>) -> Result<(), DisconnectReason> {
        let (id, taken, answers) = (self.id, &mut self.places_taken, &mut self.answers_queued);
        let out = (&mut self.pipe, self.socket.as_fd());
        let sent = self.send.send(out, |on_sent| match on_sent {
            OnSent::Nothing => *taken -= 1,
            OnSent::Answered => *answers -= 1,
            OnSent::WriteDone(write) => {
                completions.push(Completion { channel: id, kind: CompletionKind::WriteDone { id: write } });
            }
        });
        match sent {
            Ok(takes_more) => {
                self.writable &= takes_more && !self.pipe.has_unsent();
                Ok(())
            }
            // What it sent before it went is still to be read; reading then finds the end.
            Err(e) if is_peer_gone(e) => {
                self.send.clear();
                self.answers_queued = 0;
                self.send_broken = true;
                self.on_event(true, false, true);
                Ok(())
            }
            Err(e) => Err(DisconnectReason::Failed(format!("sending: {e}"))),
        }
    }

    /// The places of `WriteDone` completions are free once these are handed out.
    pub(super) fn completion_taken(&mut self) {
        self.places_taken -= 1;
    }

    /// Takes what the peer sent, within the budget.
    pub(super) fn receive(
        &mut self,
        budget: &mut Budget,
        completions: &mut Vec<Completion>,
    ) -> Result<(), DisconnectReason> {
        if self.is_revoked {
            return Err(misbehaved(
                "it said that it was done with memory, and still wrote or read there".into(),
            ));
        }
        while !budget.is_spent() {
            match self.receiver.next().map_err(misbehaved)? {
                Next::Landed(on_landed) => self.finish(on_landed, budget, completions),
                Next::Frame(frame) => self.start(&frame, budget, completions)?,
                Next::Starved if self.readable => self.fill(budget)?,
                Next::Starved => {
                    self.input = false;
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn fill(&mut self, budget: &mut Budget) -> Result<(), DisconnectReason> {
        match self.receiver.fill(&mut self.pipe, self.socket.as_fd()) {
            Ok(filled) if filled.bytes == 0 => Err(DisconnectReason::PeerClosed),
            Ok(filled) => {
                budget.bytes += filled.bytes;
                self.readable = !filled.drained || self.hang_up;
                Ok(())
            }
            Err(Errno::AGAIN) => {
                self.readable = false;
                Ok(())
            }
            Err(Errno::INTR) => Ok(()),
            Err(Errno::BADMSG) => Err(misbehaved("a record with an invalid seal".into())),
            Err(e) if is_peer_gone(e) => Err(DisconnectReason::PeerClosed),
            Err(e) => Err(DisconnectReason::Failed(format!("receiving: {e}"))),
        }
    }

    /// Judges a frame before a byte of its payload is taken.
    fn start(
        &mut self,
        frame: &Frame,
        budget: &mut Budget,
        completions: &mut Vec<Completion>,
    ) -> Result<(), DisconnectReason> {
        let (span, on_landed) = match *frame {
            Frame::Write { key, offset, length, immediate } => {
                let on_landed = immediate.map_or(OnLanded::Nothing, OnLanded::Received);
                (self.granted(Access::ReadWrite, (key, offset, length))?, on_landed)
            }
            Frame::ReadRequest { key, offset, length, id } => return self.answer(key, offset, length, id),
            Frame::ReadResponse { length, id } => {
                // It stays in the list until all is there: the peer counts it until then, too.
                match self.reads.front() {
                    Some(read) if read.wire_id == id && read.local.len() == length => {
                        (Some(read.local.clone()), OnLanded::ReadDone(read.id))
                    }
                    _ => {
                        return Err(misbehaved(format!("{length} bytes for an unknown read ({id})")));
                    }
                }
            }
        };
        match span {
            Some(span) if !span.is_empty() => self.receiver.land(span, on_landed),
            _ => self.finish(on_landed, budget, completions),
        }
        Ok(())
    }

    fn answer(&mut self, key: u64, offset: u64, length: u64, id: u64) -> Result<(), DisconnectReason> {
        if self.answers_queued == READS_MAX {
            return Err(misbehaved(format!("more than {READS_MAX} reads at once")));
        }
        let span = self.granted(Access::Read, (key, offset, length))?;
        if !self.send_broken {
            self.send.push(Frame::ReadResponse { length, id }, span.as_slice(), OnSent::Answered);
            self.answers_queued += 1;
        }
        Ok(())
    }

    /// The granted stretch that a frame names; nothing for no bytes, whatever the key is.
    fn granted(
        &self,
        access: Access,
        (key, offset, length): (u64, u64, u64),
    ) -> Result<Option<Span>, DisconnectReason> {
        if length == 0 {
            return Ok(None);
        }
        self.grants.find(access, key, offset, length).map(Some).map_err(misbehaved)
    }

    fn finish(&mut self, on_landed: OnLanded, budget: &mut Budget, completions: &mut Vec<Completion>) {
        let kind = match on_landed {
            OnLanded::Nothing => return,
            OnLanded::Received(immediate) => CompletionKind::Received { immediate },
            OnLanded::ReadDone(id) => {
                self.reads.pop_front();
                CompletionKind::ReadDone { id }
            }
        };
        budget.notices += 1;
        completions.push(Completion { channel: self.id, kind });
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // The peer is to see the end even where a forked child still holds the descriptor. It may have gone
        // first, and then there is nothing to tell.
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

fn is_peer_gone(error: Errno) -> bool {
    matches!(error, Errno::CONNRESET | Errno::PIPE | Errno::TIMEDOUT | Errno::HOSTUNREACH | Errno::NETUNREACH)
}

fn misbehaved(what: String) -> DisconnectReason {
    DisconnectReason::PeerMisbehaved(what)
}
