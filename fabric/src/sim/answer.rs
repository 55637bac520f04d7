//! After a message's arrival: its acknowledgement (a read's response) on the way back, its completion, and
//! perhaps its second arrival.

use super::arrive::exhausted;
use super::message::{Handle, Kind};
use super::trace::What;
use super::world::{Event, World};
use crate::work::CompletionKind;

impl World {
    /// Sends the acknowledgement, or a read's response.
    pub(super) fn acknowledge(&mut self, handle: Handle) {
        let Some(message) = self.messages.get(handle) else { return };
        message.losses = 0;
        let answered = if message.kind == Kind::Read { message.bytes } else { 0 };
        let back_us = answered / self.faults.bytes_per_us.max(1) + self.flight_us();
        self.schedule(self.now_us + back_us, Event::Ack(handle));
    }

    /// Acknowledgements are cumulative: one that comes stands for all lost ones before it. Where the transport keeps no order
    /// each stands for itself, and requests complete in their order all the same.
    pub(super) fn acknowledged(&mut self, handle: Handle) {
        let Some(message) = self.messages.get(handle) else { return };
        let channel = message.channel;
        if self.lost(channel) {
            if !self.try_again(handle, channel, Event::Ack(handle)) {
                self.break_end(channel, exhausted());
            }
            return;
        }
        if let Some(message) = self.messages.get(handle) {
            message.is_acknowledged = true;
        }
        let is_cumulative = !self.is_unordered();
        while let Some(&first) = self.ends[channel as usize].unfinished.front() {
            if !is_cumulative && !self.messages.get(first).is_some_and(|m| m.is_acknowledged) {
                break;
            }
            self.end(channel).unfinished.pop_front();
            self.finish(channel, first);
            if is_cumulative && first == handle {
                break;
            }
        }
    }

    fn finish(&mut self, channel: u32, handle: Handle) {
        let peer_open = self.is_open(channel ^ 1);
        let rng_cut = self.rng.next_u64();
        let Some(message) = self.messages.get(handle) else { return };
        let (id, signaled, kind) = (message.id, message.signaled, message.kind);
        if kind == Kind::Read {
            // The response was read over some time: its tail is what is there now.
            if peer_open && message.bytes > 0 {
                message.fetch(rng_cut % message.bytes);
            }
            message.place();
        }
        self.messages.free(handle);
        match kind {
            Kind::Read => self.complete(channel, CompletionKind::ReadDone { id }),
            _ if signaled => self.complete(channel, CompletionKind::WriteDone { id }),
            _ => return,
        }
        self.note(What::Done, channel, id, 0);
    }

    /// Draws whether a delivered notice comes again, and with its bytes or without.
    pub(super) fn plan_duplicate(&mut self, handle: Handle) {
        let whole = self.rng.chance(self.faults.duplicate_per_10k);
        if !whole && !self.rng.chance(self.faults.duplicate_notice_per_10k) {
            return;
        }
        let Some(message) = self.messages.get(handle) else { return };
        let (channel, immediate, remote, bytes) =
            (message.channel, message.immediate, message.remote, message.bytes);
        let number = message.number;
        let target = message.target.clone();
        let copy = self.messages.take(channel, Kind::Duplicate);
        if let Some(message) = self.messages.get(copy) {
            (message.immediate, message.number) = (immediate, number);
            message.remote = remote;
            if whole && target.is_some() {
                message.bytes = bytes;
                message.target = target;
                message.fetch(0);
                message.captured = true;
            }
        }
        let at_us = self.now_us + self.rng.within(0, self.faults.duplicate_within_us);
        self.schedule(at_us, Event::Duplicate(copy));
    }

    pub(super) fn duplicate(&mut self, handle: Handle) {
        let Some(message) = self.messages.get(handle) else { return };
        let (channel, bytes, immediate) = (message.channel, message.bytes, message.immediate.unwrap_or(0));
        let (peer, number) = (channel ^ 1, message.number);
        let room = self.ends[channel as usize].notices < self.faults.notice_ring;
        if room && self.is_open(channel) && self.is_open(peer) && !self.partitioned(channel) {
            self.land(handle, 0, bytes);
            // A gate knows its number already.
            self.end(channel).notices += usize::from(self.ends[peer as usize].gate.is_none());
            self.stats(peer).duplicates += 1;
            self.note(What::Again, peer, u64::from(immediate), bytes);
            let known = self.notify(peer, number, Some(immediate));
            debug_assert_eq!(known, Ok(()), "what was delivered is within the window");
        }
        self.messages.free(handle);
    }
}
