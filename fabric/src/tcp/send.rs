//! Frames on their way out of one channel: queued as posted, gathered many to a system call straight from
//! registered memory, continued where the socket stopped. It knows nothing of what frames mean.

use super::frame::{Frame, HEADER_BYTES};
use super::pipe::Pipe;
use super::sys::IoRange;
use crate::memory::Span;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

/// Address ranges per system call.
const RANGES: usize = 128;
/// Bytes one call of [`SendQueue::send`] moves before others get their turn.
const SEND_BYTES_MAX: u64 = 4 << 20;

/// What is to happen once the kernel has all bytes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnSent {
    /// A request of ours: frees its place.
    Nothing,
    /// A request of ours that asked for a completion with this id.
    WriteDone(u64),
    /// An answer to the peer.
    Answered,
}

#[derive(Debug)]
struct Queued {
    header: [u8; HEADER_BYTES],
    spans: usize,
    on_sent: OnSent,
}

/// The frames and the memory they are sent from, which is kept alive here until the kernel has it.
#[derive(Debug)]
pub(super) struct SendQueue {
    frames: VecDeque<Queued>,
    spans: VecDeque<Span>,
    /// Of the first frame's header, bytes that the kernel has.
    header_sent: usize,
    /// Of the first span, bytes that the kernel has.
    span_sent: u64,
}

impl SendQueue {
    pub(super) fn with_capacity(frames: usize) -> Self {
        let spans = VecDeque::with_capacity(frames.saturating_mul(2));
        Self { frames: VecDeque::with_capacity(frames), spans, header_sent: 0, span_sent: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Queues a frame; its payload are the spans.
    pub(super) fn push(&mut self, frame: Frame, payload: &[Span], on_sent: OnSent) {
        let before = self.spans.len();
        self.spans.extend(payload.iter().filter(|span| !span.is_empty()).cloned());
        let spans = self.spans.len() - before;
        self.frames.push_back(Queued { header: frame.encode(), spans, on_sent });
    }

    /// What is still to be sent in answer to reads of the peer.
    pub(super) fn answers(&self) -> impl Iterator<Item = &Span> {
        let mut spans = self.spans.iter();
        self.frames.iter().flat_map(move |frame| {
            let of_it: Vec<&Span> = spans.by_ref().take(frame.spans).collect();
            of_it.into_iter().filter(|_| frame.on_sent == OnSent::Answered)
        })
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.frames.clear();
        self.spans.clear();
        (self.header_sent, self.span_sent) = (0, 0);
    }

    /// Gives the socket as much as it takes, or enough for one turn; calls `sent` for each frame that the kernel has whole. False:
    /// the socket takes no more for now.
    pub(super) fn send(
        &mut self,
        (pipe, socket): (&mut Pipe, BorrowedFd<'_>),
        mut sent: impl FnMut(OnSent),
    ) -> Result<bool, Errno> {
        if self.frames.is_empty() {
            return match pipe.flush(socket) {
                Ok(()) => Ok(true),
                Err(Errno::AGAIN) => Ok(false),
                Err(e) => Err(e),
            };
        }
        let mut total = 0;
        while !self.frames.is_empty() {
            if total >= SEND_BYTES_MAX {
                return Ok(true);
            }
            let mut ranges = [IoRange::EMPTY; RANGES];
            let (count, bytes) = self.gather(&mut ranges);
            let taken = match pipe.send(socket, &ranges[..count]) {
                Ok(taken) => taken as u64,
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::INTR) => continue,
                Err(e) => return Err(e),
            };
            self.advance(taken, &mut sent);
            total += taken;
            if taken < bytes {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The next ranges in order, and how many bytes they are.
    fn gather<'a>(&'a self, ranges: &mut [IoRange<'a>; RANGES]) -> (usize, u64) {
        let mut spans = self.spans.iter();
        let (mut header_skip, mut span_skip) = (self.header_sent, self.span_sent);
        let (mut count, mut bytes) = (0, 0);
        let mut put = |range: IoRange<'a>| {
            ranges[count] = range;
            count += 1;
            bytes += range.len() as u64;
            count < RANGES && bytes < SEND_BYTES_MAX
        };
        'frames: for frame in &self.frames {
            if header_skip < HEADER_BYTES && !put(IoRange::of_slice(&frame.header[header_skip..])) {
                break;
            }
            for span in spans.by_ref().take(frame.spans) {
                if !put(IoRange::of_span(span, span_skip, SEND_BYTES_MAX)) {
                    break 'frames;
                }
                span_skip = 0;
            }
            (header_skip, span_skip) = (0, 0);
        }
        (count, bytes)
    }

    /// Steps over bytes that the kernel has taken.
    fn advance(&mut self, mut taken: u64, sent: &mut impl FnMut(OnSent)) {
        while let Some(front) = self.frames.front_mut() {
            let header = taken.min((HEADER_BYTES - self.header_sent) as u64);
            self.header_sent += header as usize;
            taken -= header;
            while front.spans > 0
                && let Some(span) = self.spans.front()
            {
                let part = taken.min(span.len() - self.span_sent);
                self.span_sent += part;
                taken -= part;
                if self.span_sent < span.len() {
                    return;
                }
                self.spans.pop_front();
                front.spans -= 1;
                self.span_sent = 0;
            }
            if self.header_sent < HEADER_BYTES {
                return;
            }
            sent(front.on_sent);
            self.frames.pop_front();
            self.header_sent = 0;
        }
    }
}
