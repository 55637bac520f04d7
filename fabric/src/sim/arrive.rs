//! A message at its peer: perhaps lost first, checked, landed (perhaps in pieces), delivered. Ends no channel
//! itself (`fate` does).

use super::message::{Fate, Handle, Kind, Piece};
use super::trace::What;
use super::world::{Event, World};
use crate::memory::{Access, Region};
use crate::work::{CompletionKind, DisconnectReason};

/// Pieces that a torn write lands in, at most.
const PIECES_MAX: u64 = 4;

/// Why a channel breaks that lost too much.
pub(super) fn exhausted() -> DisconnectReason {
    DisconnectReason::Failed("retries exhausted".into())
}

impl World {
    pub(super) fn attempt(&mut self, handle: Handle) {
        let Some(message) = self.messages.get(handle) else { return };
        let (channel, kind, fate, bytes) = (message.channel, message.kind, message.fate, message.bytes);
        let peer = channel ^ 1;
        if !self.is_open(peer) {
            // Nobody is there any more; the sender learns it from its own disconnection.
            self.note(What::Dropped, channel, bytes, 0);
            return self.leave_line(channel, handle);
        }
        if self.lost(channel) {
            return self.attempt_lost(handle, channel, kind, fate);
        }
        if let Some(message) = self.messages.get(handle) {
            message.losses = 0;
        }
        if kind == Kind::Fin {
            let reason = self.messages.get(handle).and_then(|m| m.reason.take());
            self.leave_line(channel, handle);
            return self.disconnected(peer, reason.unwrap_or(DisconnectReason::PeerClosed));
        }
        if fate == Fate::Cut {
            self.land_part(handle);
            self.note(What::Dropped, channel, bytes, 0);
            return self.leave_line(channel, handle);
        }
        match self.resolve(handle) {
            Err(what) => self.refuse(handle, what),
            Ok(target) => {
                if let Some(message) = self.messages.get(handle) {
                    message.target = target;
                }
                self.arrive(handle, bytes, kind);
            }
        }
    }

    /// Is what moves between a channel's ends lost now?
    pub(super) fn lost(&mut self, channel: u32) -> bool {
        self.partitioned(channel) || self.rng.chance(self.faults.loss_per_10k)
    }

    fn attempt_lost(&mut self, handle: Handle, channel: u32, kind: Kind, fate: Fate) {
        if kind != Kind::Fin && fate != Fate::Live {
            // Nobody sends it again. Where order is kept, nothing behind it may arrive without it.
            if self.is_unordered() {
                return self.leave_line(channel, handle);
            }
            return self.drop_orphans(channel);
        }
        if kind == Kind::Write && !self.partitioned(channel) && self.rng.chance(5_000) {
            self.land_part(handle);
        }
        if self.try_again(handle, channel, Event::Attempt(handle)) {
            return;
        }
        if kind == Kind::Fin {
            self.leave_line(channel, handle);
            self.disconnected(channel ^ 1, exhausted());
        } else {
            self.break_end(channel, exhausted());
        }
    }

    fn drop_orphans(&mut self, channel: u32) {
        while let Some(&head) = self.ends[channel as usize].line.front() {
            if self.messages.get(head).is_none_or(|m| m.kind == Kind::Fin) {
                break;
            }
            self.note(What::Dropped, channel, 0, 0);
            self.end(channel).line.pop_front();
            self.messages.free(head);
        }
        self.move_head(channel);
    }

    /// Schedules a retransmission; false when the retries are used up.
    pub(super) fn try_again(&mut self, handle: Handle, channel: u32, event: Event) -> bool {
        let Some(message) = self.messages.get(handle) else { return true };
        message.losses += 1;
        let losses = message.losses;
        let partitioned = self.partitioned(channel);
        self.note(What::Lost, channel, u64::from(losses), u64::from(partitioned));
        self.stats(channel).losses += 1;
        if losses > self.faults.retry_max {
            return false;
        }
        let at_us = self.now_us + self.faults.backoff_us(losses);
        self.schedule(at_us, event);
        true
    }

    /// The region that a message names, as its peer sees it; none when there is nothing to move.
    pub(super) fn resolve(&mut self, handle: Handle) -> Result<Option<Region>, String> {
        let Some(message) = self.messages.get(handle) else { return Ok(None) };
        let (peer, remote, bytes) = (message.channel ^ 1, message.remote, message.bytes);
        let access = if message.kind == Kind::Write { Access::ReadWrite } else { Access::Read };
        if bytes == 0 {
            return Ok(None);
        }
        let span = self.ends[peer as usize].grants.find(access, remote.key.0, remote.offset, bytes)?;
        Ok(Some(span.region().clone()))
    }

    /// Lands some stretch of a write, without notice.
    fn land_part(&mut self, handle: Handle) {
        let Ok(Some(target)) = self.resolve(handle) else { return };
        let Some(message) = self.messages.get(handle) else { return };
        if message.kind != Kind::Write {
            return;
        }
        let (channel, offset, bytes) = (message.channel, message.remote.offset, message.bytes);
        let start = self.rng.below(bytes);
        let end = self.rng.within(start, bytes);
        if let Some(message) = self.messages.get(handle) {
            message.target = Some(target);
        }
        self.land(handle, start, end);
        self.note(What::Land, channel ^ 1, offset + start, end - start);
    }

    pub(super) fn land(&mut self, handle: Handle, start: u64, end: u64) {
        if let Some(message) = self.messages.get(handle) {
            message.land(start, end, &mut self.scratch);
        }
    }

    /// It is at the peer: all at once, or in pieces over some time.
    fn arrive(&mut self, handle: Handle, bytes: u64, kind: Kind) {
        if kind == Kind::Write && bytes > 1 && self.rng.chance(self.faults.torn_per_10k) {
            return self.tear(handle, bytes);
        }
        if let Some(message) = self.messages.get(handle).filter(|m| m.kind == Kind::Write) {
            message.pieces.push(Piece { start: 0, end: bytes, landed: false });
        }
        self.deliver(handle);
    }

    fn tear(&mut self, handle: Handle, bytes: u64) {
        let last_us = self.now_us + self.rng.within(1, self.faults.torn_us);
        let mut start = 0;
        for number in 0..PIECES_MAX {
            let rest = number + 1 == PIECES_MAX;
            let end = if rest { bytes } else { self.rng.within(start, bytes) };
            let at_us = self.rng.within(self.now_us, last_us);
            if let Some(message) = self.messages.get(handle) {
                message.pieces.push(Piece { start, end, landed: false });
            }
            self.schedule(at_us, Event::Piece(handle, number as u8));
            start = end;
        }
        self.schedule(last_us, Event::Deliver(handle));
    }

    pub(super) fn piece(&mut self, handle: Handle, number: u8) {
        let Some(message) = self.messages.get(handle) else { return };
        let (channel, offset) = (message.channel, message.remote.offset);
        let Some(&Piece { start, end, landed }) = message.pieces.get(usize::from(number)) else { return };
        if landed || start == end || !self.is_open(channel ^ 1) {
            return;
        }
        if let Some(message) = self.messages.get(handle) {
            message.pieces[usize::from(number)].landed = true;
        }
        self.land(handle, start, end);
        self.note(What::Land, channel ^ 1, offset + start, end - start);
    }

    /// Has something arrived already that was started later?
    fn note_order(&mut self, handle: Handle, peer: u32) {
        let order = self.messages.get(handle).map_or(0, |message| message.order);
        let node = &mut self.nodes[self.ends[peer as usize].node.0 as usize];
        node.stats.overtaken += u64::from(order < node.newest);
        node.newest = node.newest.max(order);
    }

    /// A write has arrived at this end: its notice is handed over, by the gate where there is one.
    pub(super) fn notify(&mut self, end: u32, number: u64, notice: Option<u32>) -> Result<(), String> {
        let Some(mut gate) = self.end(end).gate.take() else {
            if let Some(immediate) = notice {
                self.complete(end, CompletionKind::Received { immediate });
            }
            return Ok(());
        };
        let counted = gate.arrived(number, notice);
        while let Some(immediate) = gate.next_notice() {
            self.note(What::Passed, end, u64::from(immediate), 0);
            self.complete(end, CompletionKind::Received { immediate });
        }
        self.stats(end).held_notices += u64::from(notice.is_some() && gate.waits_for(number));
        self.end(end).gate = Some(gate);
        counted
    }

    pub(super) fn deliver(&mut self, handle: Handle) {
        let Some(message) = self.messages.get(handle) else { return };
        let (channel, kind, fate, bytes) = (message.channel, message.kind, message.fate, message.bytes);
        let (immediate, offset, pieces) = (message.immediate, message.remote.offset, message.pieces.len());
        let number = message.number;
        let peer = channel ^ 1;
        if fate == Fate::Cut || !self.is_open(peer) {
            self.note(What::Dropped, channel, bytes, 0);
            return self.leave_line(channel, handle);
        }
        for number in 0..pieces {
            self.piece(handle, number as u8);
        }
        if kind == Kind::Read {
            if let Some(message) = self.messages.get(handle) {
                message.fetch(0);
            }
            self.note(What::Served, peer, offset, bytes);
        } else {
            self.note_order(handle, peer);
            let stats = self.stats(peer);
            stats.received_messages += 1;
            stats.received_bytes += bytes;
        }
        if let Some(immediate) = immediate {
            self.note(What::Received, peer, u64::from(immediate), 0);
        }
        if kind == Kind::Write
            && let Err(what) = self.notify(peer, number, immediate)
        {
            return self.refuse(handle, what);
        }
        if fate == Fate::Live {
            self.acknowledge(handle);
            if immediate.is_some() {
                self.plan_duplicate(handle);
            }
        }
        self.leave_line(channel, handle);
    }
}
