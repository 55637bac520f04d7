//! The sender's side of a message's way: posted, started, in line behind what was posted before; and what
//! a poll takes out. What happens to it at the peer is in `arrive`.

use super::QueueId;
use super::message::{Capture, Fate, Handle, Kind};
use super::trace::What;
use super::world::{Event, World};
use crate::error::PostError;
use crate::memory::Span;
use crate::work::{ChannelId, Completion, CompletionKind, Read, Write};

/// Completions that one poll returns at most.
const POLL_MAX: usize = 64;

impl World {
    pub(super) fn post_write(
        &mut self,
        queue: QueueId,
        to: ChannelId,
        write: &Write<'_>,
        is_landing: bool,
    ) -> Result<(), PostError> {
        let channel = self.open_end(queue, to).ok_or(PostError::Closed)?;
        if write.gather.len() > self.faults.gather_max {
            return Err(PostError::TooManySpans);
        }
        self.room(channel, write.immediate.is_some())?;
        let bytes = write.gather.iter().map(Span::len).sum();
        let handle = self.messages.take(channel, Kind::Write);
        let capture = match self.rng.below(3) {
            0 => Capture::AtPost,
            1 => Capture::UnderWay,
            _ => Capture::AtArrival,
        };
        if let Some(message) = self.messages.get(handle) {
            message.id = write.id;
            message.immediate = write.immediate;
            message.signaled = write.signaled;
            message.is_landing = is_landing;
            message.bytes = bytes;
            message.remote = write.remote;
            message.spans.extend_from_slice(write.gather);
            message.capture = capture;
            if capture == Capture::AtPost {
                message.capture_now();
            }
        }
        self.end(channel).notices += usize::from(write.immediate.is_some());
        self.posted(queue, channel, handle, What::Write, bytes, write.id);
        Ok(())
    }

    /// Landings with this id, of bytes that are in `span`, too.
    pub(super) fn move_landings(&mut self, queue: QueueId, to: ChannelId, id: u64, span: &Span) -> usize {
        let Some(channel) = self.open_end(queue, to) else { return 0 };
        let Self { ends, messages, .. } = self;
        let mut moved = 0;
        for handle in &ends[channel as usize].unfinished {
            let Some(message) = messages.get(*handle) else { continue };
            if message.is_landing && message.id == id && !message.is_moved {
                message.is_moved = true;
                if !message.captured {
                    let bytes = message.bytes;
                    message.spans.clear();
                    message.spans.extend(span.slice(0, bytes));
                }
                moved += 1;
            }
        }
        moved
    }

    pub(super) fn post_read(
        &mut self,
        queue: QueueId,
        from: ChannelId,
        read: &Read<'_>,
    ) -> Result<(), PostError> {
        let channel = self.open_end(queue, from).ok_or(PostError::Closed)?;
        self.room(channel, false)?;
        read.local.writable()?;
        let handle = self.messages.take(channel, Kind::Read);
        if let Some(message) = self.messages.get(handle) {
            message.id = read.id;
            message.bytes = read.local.len();
            message.remote = read.remote;
            message.spans.push(read.local.clone());
        }
        self.posted(queue, channel, handle, What::Read, read.local.len(), read.id);
        Ok(())
    }

    fn room(&mut self, channel: u32, notice: bool) -> Result<(), PostError> {
        let end = &self.ends[channel as usize];
        let (unfinished, notices) = (end.unfinished.len(), end.notices);
        // Only behind other requests: an idle channel that refused would have nothing to wait for.
        let spurious = unfinished > 0 && self.rng.chance(self.faults.spurious_full_per_10k);
        let full = unfinished >= self.faults.send_depth || (notice && notices >= self.faults.notice_ring);
        if full || spurious {
            self.note(What::Full, channel, unfinished as u64, notices as u64);
            return Err(PostError::Full);
        }
        Ok(())
    }

    fn posted(&mut self, queue: QueueId, channel: u32, handle: Handle, what: What, bytes: u64, id: u64) {
        self.end(channel).unfinished.push_back(handle);
        self.queues[queue.0 as usize].unflushed.push(handle);
        let stats = self.stats(channel);
        stats.posted_messages += 1;
        stats.posted_bytes += if what == What::Write { bytes } else { 0 };
        self.note(what, channel, bytes, id);
    }

    pub(super) fn flush(&mut self, queue: QueueId) {
        let mut unflushed = std::mem::take(&mut self.queues[queue.0 as usize].unflushed);
        for handle in unflushed.drain(..) {
            self.start(handle);
        }
        self.queues[queue.0 as usize].unflushed = unflushed;
    }

    /// Plans a posted message's arrival and puts it in line.
    fn start(&mut self, handle: Handle) {
        let Some(message) = self.messages.get(handle) else { return };
        let (channel, capture, kind) = (message.channel, message.capture, message.kind);
        let sent_bytes = if kind == Kind::Write { message.bytes } else { 0 };
        let transmit_us = sent_bytes / self.faults.bytes_per_us.max(1);
        let now_us = self.now_us;
        let end = self.end(channel);
        end.busy_until_us = end.busy_until_us.max(now_us) + transmit_us;
        let flight_us = self.flight_us();
        let plan_us = self.end(channel).busy_until_us + flight_us;
        let is_late = flight_us > self.faults.latency_us + self.faults.jitter_us;
        self.stats(channel).delays += u64::from(is_late);
        self.started += 1;
        let (order, number) = (self.started, self.ends[channel as usize].writes);
        if let Some(message) = self.messages.get(handle) {
            (message.order, message.number) = (order, number);
            self.end(channel).writes += u64::from(kind == Kind::Write);
        }
        if sent_bytes > 0 && capture == Capture::UnderWay {
            let at_us = self.rng.within(now_us, plan_us);
            self.schedule(at_us, Event::Capture(handle));
        }
        self.line_up(handle, plan_us);
    }

    pub(super) fn flight_us(&mut self) -> u64 {
        let mut flight_us = self.faults.latency_us + self.rng.within(0, self.faults.jitter_us);
        if self.rng.chance(self.faults.spike_per_10k) {
            flight_us += self.rng.within(0, self.faults.spike_us);
        }
        flight_us
    }

    pub(super) fn line_up(&mut self, handle: Handle, plan_us: u64) {
        let Some(message) = self.messages.get(handle) else { return };
        message.plan_us = plan_us;
        let channel = message.channel;
        let line = &mut self.end(channel).line;
        line.push_back(handle);
        if self.is_unordered() {
            self.schedule(plan_us, Event::Attempt(handle));
        } else if self.ends[channel as usize].line.len() == 1 {
            self.move_head(channel);
        }
    }

    /// Sets the first message of a line moving; the others wait behind it, so that order is kept. Where none is kept, all move.
    pub(super) fn move_head(&mut self, channel: u32) {
        if self.is_unordered() {
            return;
        }
        let Some(&head) = self.ends[channel as usize].line.front() else { return };
        if let Some(message) = self.messages.get(head) {
            let plan_us = message.plan_us;
            self.schedule(plan_us, Event::Attempt(head));
        }
    }

    /// Takes an arrived (or dropped) message out of the line. A live one stays until it is acknowledged.
    pub(super) fn leave_line(&mut self, channel: u32, handle: Handle) {
        let is_unordered = self.is_unordered();
        let line = &mut self.end(channel).line;
        let place = line.iter().position(|other| *other == handle);
        debug_assert!(place == Some(0) || is_unordered, "only the head of a line moves");
        place.and_then(|place| line.remove(place));
        if self.messages.get(handle).is_some_and(|m| m.fate != Fate::Live || m.kind == Kind::Fin) {
            self.messages.free(handle);
        }
        self.move_head(channel);
    }

    pub(super) fn capture(&mut self, handle: Handle) {
        if let Some(message) = self.messages.get(handle) {
            message.capture_now();
        }
    }

    pub(super) fn poll(&mut self, queue: QueueId, into: &mut Vec<Completion>) {
        for _ in 0..POLL_MAX {
            let Some(completion) = self.queues[queue.0 as usize].ready.pop_front() else { break };
            if matches!(completion.kind, CompletionKind::Received { .. }) {
                let sender = self.end(completion.channel.0 ^ 1);
                sender.notices = sender.notices.saturating_sub(1);
            }
            into.push(completion);
        }
        if self.queues[queue.0 as usize].ready.is_empty() {
            self.ready.remove(&queue);
        }
    }
}
