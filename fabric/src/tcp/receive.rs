//! The byte stream of one channel on its way in: finds headers, reads payload straight into place. It does
//! not judge frames: the channel says where a payload lands before a byte of it is taken.
//!
//! Each system call asks for the rest of the payload and a little of what follows it, so that a frame costs
//! no call of its own for the header, and a run of small frames comes with one call.

use super::frame::{Frame, HEADER_BYTES};
use super::pipe::Pipe;
use super::sys::{self, IoRange};
use crate::memory::Span;
use rustix::io::Errno;
use std::os::fd::BorrowedFd;

/// What is read beyond the current payload: a header and the first bytes of its payload, which cost one
/// more copy within the first-level cache. A multiple of 64 keeps what follows aligned as it was.
const AHEAD_BYTES: usize = HEADER_BYTES + 4096;

/// Payload bytes one system call may bring.
const READ_BYTES_MAX: u64 = 1 << 20;

/// The socket wakes nobody before this many bytes of a payload are there, or the rest of it: each segment would
/// be a wake of its own, which costs more than copying it.
const LOW_WATER_MAX: u64 = 1 << 20;

/// What the landing of a payload means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnLanded {
    /// A write without notice.
    Nothing,
    /// A write with immediate.
    Received(u32),
    /// The answer to our oldest read, by its poster's id.
    ReadDone(u64),
}

#[derive(Debug)]
struct Landing {
    span: Span,
    done: u64,
    on_landed: OnLanded,
}

/// The next thing in the stream.
#[derive(Debug)]
pub(super) enum Next {
    /// A header; its payload, if any, is to be given a place by [`Receiver::land`].
    Frame(Frame),
    /// The payload is in place.
    Landed(OnLanded),
    /// More bytes are needed.
    Starved,
}

/// What a system call brought.
#[derive(Debug)]
pub(super) struct Filled {
    /// Bytes; none at the end of the stream.
    pub(super) bytes: usize,
    /// Fewer than asked for: the socket is empty for now.
    pub(super) drained: bool,
}

/// The receiving state of a channel.
#[derive(Debug)]
pub(super) struct Receiver {
    ahead: Box<[u8; AHEAD_BYTES]>,
    start: usize,
    end: usize,
    landing: Option<Landing>,
    /// Bytes that the socket waits for before it wakes anybody. Never more than the payload lacks, or what
    /// comes last would wake nobody.
    low_water: u32,
}

impl Receiver {
    /// Where the peer is in the middle of a write.
    pub(super) fn written(&self) -> Option<&Span> {
        let landing =
            self.landing.as_ref().filter(|landing| !matches!(landing.on_landed, OnLanded::ReadDone(_)));
        landing.map(|landing| &landing.span)
    }

    /// The rest of a payload goes nowhere: the channel ends.
    pub(super) fn abandon(&mut self) {
        self.landing = None;
    }

    pub(super) fn new() -> Self {
        Self { ahead: Box::new([0; AHEAD_BYTES]), start: 0, end: 0, landing: None, low_water: 1 }
    }

    /// Before a sleep with the socket empty: let it wake us when the payload is whole.
    pub(super) fn raise_low_water(&mut self, socket: BorrowedFd<'_>) {
        let bytes = self.bytes_lacking();
        if bytes > self.low_water {
            self.set_low_water(socket, bytes);
        }
    }

    fn bytes_lacking(&self) -> u32 {
        let lacking = self.landing.as_ref().map_or(1, |landing| landing.span.len() - landing.done);
        lacking.clamp(1, LOW_WATER_MAX) as u32
    }

    fn set_low_water(&mut self, socket: BorrowedFd<'_>, bytes: u32) {
        // Where the system refuses, each segment wakes us, as it does without.
        if sys::set_low_water(socket, bytes).is_ok() {
            self.low_water = bytes;
        }
    }

    /// Works off what has been read ahead.
    pub(super) fn next(&mut self) -> Result<Next, String> {
        let ahead = &self.ahead[self.start..self.end];
        let Some(landing) = &mut self.landing else {
            let Some(header) = ahead.first_chunk::<HEADER_BYTES>() else {
                return Ok(Next::Starved);
            };
            let frame = Frame::decode(header)?;
            self.start += HEADER_BYTES;
            return Ok(Next::Frame(frame));
        };
        let left = landing.span.len() - landing.done;
        let part = left.min(ahead.len() as u64);
        if part > 0 {
            let to = landing.span.offset() + landing.done;
            // Within the region, because it is within a span of it.
            let copied = landing.span.region().write(to, &ahead[..part as usize]);
            debug_assert!(copied.is_ok(), "a span lies in its region");
            landing.done += part;
            self.start += part as usize;
        }
        if part < left {
            return Ok(Next::Starved);
        }
        let on_landed = landing.on_landed;
        self.landing = None;
        Ok(Next::Landed(on_landed))
    }

    /// Says where the payload of the frame just found goes.
    pub(super) fn land(&mut self, span: Span, on_landed: OnLanded) {
        self.landing = Some(Landing { span, done: 0, on_landed });
    }

    /// Reads from the socket. Only when starved: what was read ahead comes first.
    pub(super) fn fill(&mut self, pipe: &mut Pipe, socket: BorrowedFd<'_>) -> Result<Filled, Errno> {
        // A starved receiver has at most a part of a header.
        self.ahead.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        let Some(landing) = &mut self.landing else {
            let room = &mut self.ahead[self.end..];
            let wanted = room.len();
            let bytes = pipe.receive_private(socket, room)?;
            self.end += bytes;
            return Ok(Filled { bytes, drained: bytes < wanted });
        };
        let payload = IoRange::of_span(&landing.span, landing.done, READ_BYTES_MAX);
        let payload_bytes = payload.len();
        let whole = landing.span.len() - landing.done == payload_bytes as u64;
        let room = IoRange::of_slice_mut(&mut self.ahead[self.end..]);
        let wanted = payload_bytes + if whole { room.len() } else { 0 };
        let bytes = pipe.receive(socket, &mut [payload, room][..if whole { 2 } else { 1 }])?;
        landing.done += bytes.min(payload_bytes) as u64;
        self.end += bytes.saturating_sub(payload_bytes);
        let lacking = self.bytes_lacking();
        if self.low_water > lacking {
            self.set_low_water(socket, lacking);
        }
        Ok(Filled { bytes, drained: bytes < wanted })
    }
}
