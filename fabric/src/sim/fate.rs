//! How channels end and nodes die: close, break, misbehaviour, crash, partitions. A channel ends in two
//! steps: one side at once, the other when the news (a `Fin` behind what is still under way) gets there.

use super::message::{Fate, Handle, Kind, Message};
use super::trace::What;
use super::world::{Event, World};
use super::{Action, NodeId, QueueId};
use crate::device::Fence;
use crate::error::PostError;
use crate::work::{ChannelId, CompletionKind, DisconnectReason};
use std::collections::VecDeque;

impl World {
    /// Ends one side. Some of what it had under way may still arrive, in order, read from its memory now;
    /// then its peer hears of the end, `news_us` from now or later.
    fn sever(&mut self, channel: u32, reason: DisconnectReason, news_us: u64) {
        let end = self.end(channel);
        end.open = false;
        let mut line = std::mem::take(&mut end.line);
        let unfinished = std::mem::take(&mut end.unfinished);
        self.conceal(channel);
        let news_at_us = self.now_us + news_us;
        self.choose_orphans(&mut line, news_at_us);
        for (place, &handle) in line.iter().enumerate() {
            let may_be_cut = place + 1 == line.len() || self.is_unordered();
            let cut = may_be_cut && self.rng.chance(5_000);
            if let Some(message) = self.messages.get(handle) {
                message.capture_now();
                message.fate = if cut || message.kind == Kind::Read { Fate::Cut } else { Fate::Orphan };
            }
        }
        for handle in unfinished {
            if self.messages.get(handle).is_some_and(|m| m.fate == Fate::Live) {
                self.messages.free(handle);
            }
        }
        self.note(What::Closed, channel, line.len() as u64, 0);
        self.end(channel).line = line;
        let fin = self.messages.take(channel, Kind::Fin);
        if let Some(message) = self.messages.get(fin) {
            message.reason = Some(reason);
        }
        self.line_up(fin, news_at_us);
    }

    /// Leaves of an ended side's messages those that still arrive. A message that would arrive after the news is dropped:
    /// otherwise a delayed message would delay the news.
    fn choose_orphans(&mut self, line: &mut VecDeque<Handle>, news_at_us: u64) {
        let is_unordered = self.is_unordered();
        let Self { messages, rng, .. } = self;
        let mut is = |handle, what: fn(&Message, u64) -> bool| {
            messages.get(handle).is_some_and(|message| what(message, news_at_us))
        };
        let is_lost = |message: &Message, _| message.losses > 0;
        let is_late = |message: &Message, news_at_us| message.plan_us > news_at_us;
        if is_unordered {
            return line.retain(|&one| !is(one, is_lost) && !is(one, is_late) && rng.chance(5_000));
        }
        // A lost head is not sent again, and nothing behind it may arrive without it.
        let lost = line.front().is_some_and(|&head| is(head, is_lost));
        let keep = if lost { 0 } else { rng.below(line.len() as u64 + 1) as usize };
        let late = line.iter().take(keep).position(|&one| is(one, is_late));
        line.truncate(late.unwrap_or(keep));
    }

    fn detect_us(&mut self) -> u64 {
        self.rng.within(self.faults.detect_min_us, self.faults.detect_max_us)
    }

    /// The peer's memory is read in place from now on, unless the peer has closed: it may use that otherwise, although the news
    /// are still on their way.
    pub(super) fn begin_reads(&mut self, end: u32) -> Result<(), PostError> {
        if !self.is_open(end ^ 1) && !self.crashed(end ^ 1) {
            return Err(PostError::Closed);
        }
        self.end(end).reads = true;
        Ok(())
    }

    pub(super) fn end_reads(&mut self, queue: QueueId, channel: ChannelId) {
        if let Some(end) = self.ends.get_mut(channel.0 as usize).filter(|end| end.queue == queue) {
            end.reads = false;
        }
    }

    /// The fence of an end: pending while the other side reads, or copies.
    pub(super) fn fence(&self, channel: ChannelId) -> Fence {
        let Some(end) = self.ends.get(channel.0 as usize) else { return Fence::Done };
        let peer = channel.0 ^ 1;
        let is_pending = self.ends[peer as usize].reads || end.fenced_us > self.now_us;
        if is_pending && !self.crashed(peer) { Fence::Pending } else { Fence::Done }
    }

    /// An end is about to close: with some luck its peer is in the middle of a copy, which does not end with that.
    fn begin_late_copy(&mut self, end: u32) {
        let peer = end ^ 1;
        let Some(&head) = self.ends[peer as usize].line.front() else { return };
        let is_copy = self.messages.get(head).is_some_and(|m| m.kind == Kind::Write && !m.is_landing);
        if !is_copy || self.crashed(peer) || !self.rng.chance(self.faults.late_copy_per_10k) {
            return;
        }
        let Ok(Some(target)) = self.resolve(head) else { return };
        let Some(message) = self.messages.get(head) else { return };
        message.capture_now();
        let (remote, bytes, data) = (message.remote, message.bytes, message.data.clone());
        let late = self.messages.take(peer, Kind::Write);
        if let Some(message) = self.messages.get(late) {
            (message.remote, message.bytes, message.data) = (remote, bytes, data);
            (message.captured, message.target) = (true, Some(target));
        }
        let at_us = self.now_us + self.rng.within(1, self.faults.late_copy_us.max(1));
        self.end(end).fenced_us = at_us;
        self.schedule_first(at_us, Event::Late(late));
    }

    /// A copy ends whose channel has been closed.
    pub(super) fn late(&mut self, handle: Handle) {
        let Some(message) = self.messages.get(handle) else { return };
        let (channel, offset, bytes) = (message.channel, message.remote.offset, message.bytes);
        if !self.crashed(channel) {
            self.land(handle, 0, bytes);
            self.note(What::Late, channel ^ 1, offset, bytes);
        }
        self.messages.free(handle);
    }

    /// The owner of one end is done with it.
    pub(super) fn close(&mut self, queue: QueueId, channel: ChannelId) {
        self.end_reads(queue, channel);
        if let Some(end) = self.open_end(queue, channel) {
            self.begin_late_copy(end);
            let news_us = self.flight_us();
            self.sever(end, DisconnectReason::PeerClosed, news_us);
        }
        let mine = self.ends.get(channel.0 as usize).is_some_and(|end| end.queue == queue);
        if mine {
            let state = &mut self.queues[queue.0 as usize];
            state.ready.retain(|completion| completion.channel != channel);
            if state.ready.is_empty() {
                self.ready.remove(&queue);
            }
        }
    }

    /// A queue is dropped: all its channels close.
    pub(super) fn close_all(&mut self, queue: QueueId) {
        for channel in 0..self.ends.len() as u32 {
            if self.ends[channel as usize].queue == queue {
                self.close(queue, ChannelId(channel));
            }
        }
    }

    /// The side that notices a failure first ends now, the other when it notices.
    pub(super) fn break_end(&mut self, channel: u32, reason: DisconnectReason) {
        self.tell(channel, reason.clone());
        let news_us = self.detect_us();
        self.sever(channel, reason, news_us);
    }

    /// The peer of `handle`'s sender refuses it and ends the channel.
    pub(super) fn refuse(&mut self, handle: Handle, what: String) {
        let Some(message) = self.messages.get(handle) else { return };
        let (victim, offset, bytes) = (message.channel ^ 1, message.remote.offset, message.bytes);
        self.note(What::Refused, victim, offset, bytes);
        self.tell(victim, DisconnectReason::PeerMisbehaved(what));
        let news_us = self.flight_us();
        self.sever(victim, DisconnectReason::PeerClosed, news_us);
        // What stands behind the refused message finds nobody; set the line moving again for it.
        self.attempt(handle);
    }

    /// The news of the other side's end is there: this side ends too and owes no news.
    pub(super) fn disconnected(&mut self, channel: u32, reason: DisconnectReason) {
        if !self.is_open(channel) {
            return;
        }
        self.tell(channel, reason);
        self.conceal(channel);
        let end = self.end(channel);
        end.open = false;
        let (line, unfinished) = (std::mem::take(&mut end.line), std::mem::take(&mut end.unfinished));
        line.into_iter().chain(unfinished).for_each(|handle| self.messages.free(handle));
    }

    fn tell(&mut self, channel: u32, reason: DisconnectReason) {
        let kind = match reason {
            DisconnectReason::PeerClosed => 0,
            DisconnectReason::PeerMisbehaved(_) => 1,
            DisconnectReason::Failed(_) => 2,
        };
        self.note(What::Disconnected, channel, kind, 0);
        self.complete(channel, CompletionKind::Disconnected(reason));
    }

    /// One end of a node that is gone.
    pub(super) fn die(&mut self, channel: u32) {
        if self.is_open(channel) {
            let news_us = self.detect_us();
            self.sever(channel, DisconnectReason::PeerClosed, news_us);
        }
    }

    fn crash(&mut self, node: NodeId) {
        let Some(state) = self.nodes.get_mut(node.0 as usize) else { return };
        if std::mem::replace(&mut state.crashed, true) {
            return;
        }
        self.note(What::Crash, node.0, 0, 0);
        for channel in 0..self.ends.len() as u32 {
            if self.ends[channel as usize].node == node {
                self.die(channel);
            }
        }
        for number in 0..self.queues.len() as u32 {
            let queue = &mut self.queues[number as usize];
            if queue.node == node {
                queue.ready.clear();
                queue.unflushed.clear();
                self.ready.remove(&QueueId(number));
            }
        }
    }

    /// Carries out one action of a script.
    pub(super) fn act(&mut self, action: Action) {
        match action {
            Action::Crash(node) => self.crash(node),
            Action::Partition(a, b) => {
                self.note(What::Partition, a.0, u64::from(b.0), 0);
                self.partitions.insert((a.min(b), a.max(b)));
            }
            Action::Heal(a, b) => {
                self.note(What::Heal, a.0, u64::from(b.0), 0);
                self.partitions.remove(&(a.min(b), a.max(b)));
            }
            Action::Break(a, b) => {
                self.note(What::Break, a.0, u64::from(b.0), 0);
                for channel in 0..self.ends.len() {
                    let (near, far) = (self.ends[channel].node, self.ends[channel ^ 1].node);
                    if (near, far) == (a, b) && self.ends[channel].open {
                        self.break_end(channel as u32, DisconnectReason::Failed("the link broke".into()));
                    }
                }
            }
        }
    }

    /// Has this action now, ahead of whatever else happens at this time.
    pub(super) fn act_at(&mut self, at_us: u64, action: Action) {
        self.schedule_first(at_us, Event::Act(action));
    }
}
