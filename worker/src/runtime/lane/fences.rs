//! Operations whose buffers a server may still reach over a channel that has ended. For their callers they end when the fence of
//! that channel is done. Over shared memory, servers read gradients and write replies in the worker's own buffers. Scenario: the
//! caller hears of a failure and writes the next gradient while a server still adds up the last one. The server would publish the
//! mixture to all workers.

use super::LaneDriver;
use crate::error::OpError;
use crate::runtime::live::{Ended, Fencing, Lent, Live};
use fabric::{ChannelId, CompletionQueue, Fence, Fenced, Span};
use proto_common::ids::Rank;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// If a server keeps an operation's buffers for longer than this, the caller gets an error that names the server. The buffers are
/// returned later.
const HELD_MS: u64 = 1_000;

fn held(servers: Vec<Rank>, waited_ms: u64, cause: Option<OpError>) -> OpError {
    OpError::Held { servers, waited_ms, cause: cause.map(Box::new) }
}

impl<Q: CompletionQueue> LaneDriver<Q> {
    /// The fence of a closed channel is pending. Operations whose buffers its server can reach end after it.
    pub(super) fn fence_off(&mut self, server: Rank, channel: ChannelId) {
        self.fences.pending.push(Fencing { channel, server, is_gone: false });
        let lent = self.live.values_mut().filter(|live| live.lent != Lent::No);
        lent.for_each(|live| live.fences.push(channel));
    }

    /// A server's process has failed or left. What it still reads is never published, so operations need not wait for it.
    pub(super) fn stop_reader(&mut self, server: Rank) {
        let Self { fences, live, .. } = self;
        for fencing in fences.pending.iter_mut().filter(|fencing| fencing.server == server) {
            fencing.is_gone = true;
        }
        let of_it = |channel: &ChannelId| fences.is_of(*channel, server);
        for live in live.values_mut().filter(|live| live.lent == Lent::Read) {
            live.fences.retain(|channel| !of_it(channel));
        }
        self.end_fenced();
    }

    /// Ends operations whose fences are done.
    pub(super) fn settle_fences(&mut self, now_ms: u64) {
        self.fences.now_ms = now_ms;
        self.tell_late();
        if self.fences.pending.is_empty() && self.fences.ended.is_empty() {
            return;
        }
        let Self { fences, queue, live, .. } = self;
        fences.pending.retain(|fencing| {
            let is_pending = match queue.fence(fencing.channel) {
                Fence::Done => false,
                Fence::Reads => !fencing.is_gone,
                Fence::Pending => true,
            };
            if !is_pending {
                live.values_mut().for_each(|live| live.fences.retain(|of| *of != fencing.channel));
            }
            is_pending
        });
        self.end_fenced();
    }

    fn end_fenced(&mut self) {
        let mut at = 0;
        while let Some(&Ended { op, version, since_ms, is_told }) = self.fences.ended.get(at) {
            let Some(live) = self.live.get(&op).filter(|live| !live.fences.is_empty()) else {
                self.fences.ended.remove(at);
                self.finish(op, version);
                continue;
            };
            let waited_ms = self.fences.now_ms.saturating_sub(since_ms);
            if !is_told && waited_ms >= HELD_MS {
                let pending = self.fences.pending.iter();
                let holding = pending.filter(|fencing| live.fences.contains(&fencing.channel));
                let servers = holding.map(|fencing| fencing.server).collect();
                let failure = live.failure.clone();
                live.state.fail_now(|first| held(servers, waited_ms, first.or(failure)));
                self.fences.ended[at].is_told = true;
            }
            at += 1;
        }
    }

    /// An operation failed. The caller may share its buffers, so it hears of the failure only when no server reaches them.
    pub(super) fn failed(&mut self, op: u64, error: OpError) {
        let Self { live, fences, .. } = self;
        let Some(live) = live.get_mut(&op) else { return };
        if !live.fences.is_empty() {
            live.failure.get_or_insert(error);
        } else if !live.state.fail(error) && fences.untold.iter().all(|(other, ..)| *other != op) {
            fences.untold.push((op, live.state.clone(), fences.now_ms));
        }
    }

    /// Tells callers of failures whose memory servers have kept for too long, on whichever lane.
    fn tell_late(&mut self) {
        let Self { fences, engine, .. } = self;
        let now_ms = fences.now_ms;
        fences.untold.retain(|(op, state, since_ms)| {
            let waited_ms = now_ms.saturating_sub(*since_ms);
            if waited_ms >= HELD_MS {
                state.fail_now(|first| held(engine.servers_of(*op), waited_ms, first));
            }
            !state.is_told()
        });
    }

    /// All parts of an operation have ended.
    pub(super) fn done(&mut self, op: u64, version: u64) {
        if self.live.get(&op).is_some_and(|live| !live.fences.is_empty()) {
            let since_ms = self.fences.now_ms;
            self.fences.ended.push(Ended { op, version, since_ms, is_told: false });
        } else {
            self.finish(op, version);
        }
    }

    /// Ends an operation's grants: each server has answered, or its channel has ended.
    fn take_back(&mut self, op: u64, live: &Live) -> Fenced {
        if !live.granted {
            return Fenced::answered();
        }
        let pieces = if live.lent == Lent::Write { live.state.lent() } else { Vec::new() };
        for span in pieces.iter().chain(&live.source).chain(&live.target) {
            self.end_grants(op, span);
        }
        Fenced::answered()
    }

    /// No server may reach the span for this operation any more.
    pub(super) fn end_grants(&mut self, op: u64, span: &Span) {
        for link in self.links.iter().flatten() {
            self.queue.take_back(link.channel, span, op);
        }
    }

    fn finish(&mut self, op: u64, version: u64) {
        let Some(live) = self.live.remove(&op) else { return };
        let fenced = self.take_back(op, &live);
        let Live { state, source, target, about, failure, .. } = live;
        // Spans go first: they keep the buffers' region, not the buffers, alive.
        drop((source, target));
        self.flight.done(&about, failure.is_some() || state.has_failed());
        state.lane_done(failure.map_or(Ok(version), Err), fenced);
    }

    /// The lane ends, perhaps after a panic in its middle: its channels are closed, and then all operations fail. The engine is not
    /// asked, because a panic may have left it, and the list of its commands, half done. [`LaneDriver::tell_ended`] is to follow.
    pub(in super::super) fn end(&mut self, error: &OpError, now_ms: u64) {
        self.failed.get_or_insert_with(|| error.clone());
        for server in 0..self.links.len() {
            // A panic may have left the queue half done.
            let _ = catch_unwind(AssertUnwindSafe(|| self.close(Rank(server as u32))));
        }
        for (op, live) in &mut self.live {
            if !self.fences.ended.iter().any(|ended| ended.op == *op) {
                live.failure.get_or_insert_with(|| error.clone());
                self.fences.ended.push(Ended { op: *op, version: 0, since_ms: now_ms, is_told: false });
            }
        }
    }

    /// Tells those whose buffers no server reaches any more. False when nobody is left to be told: operations that a server has
    /// held for too long keep their buffers for good, because nobody will look at their fences again.
    pub(in super::super) fn tell_ended(&mut self, now_ms: u64) -> bool {
        // A callback may panic. The operations after it in the list end all the same.
        let mut tries = self.live.len() + 1;
        while tries > 0 && catch_unwind(AssertUnwindSafe(|| self.settle_fences(now_ms))).is_err() {
            tries -= 1;
        }
        if tries > 0 && self.fences.ended.iter().any(|ended| !ended.is_told) {
            return true;
        }
        for (_, live) in self.live.drain() {
            if let Some(error) = live.failure.clone() {
                let _ = catch_unwind(AssertUnwindSafe(|| live.state.fail_now(|_| error)));
            }
            std::mem::forget(live);
        }
        false
    }
}

#[cfg(test)]
#[path = "fences_tests.rs"]
mod tests;
