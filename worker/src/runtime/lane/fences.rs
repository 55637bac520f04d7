//! Operations whose buffers a server may still reach over a channel that has ended. For their callers they end when the fence of
//! that channel is done. Over shared memory, servers read gradients and write replies in the worker's own buffers. Scenario: the
//! caller hears of a failure and writes the next gradient while a server still adds up the last one. The server would publish the
//! mixture to all workers.

use super::{LaneDriver, Live};
use crate::error::OpError;
use fabric::{ChannelId, CompletionQueue, Fence, Fenced};
use proto_common::batch::OpKind;
use proto_common::ids::Rank;
use proto_common::plan::Placement;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// If a server keeps an operation's buffers for longer than this, the caller gets an error that names the server. The buffers are
/// returned later.
const HELD_MS: u64 = 1_000;

/// How servers reach an operation's buffers where they lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lent {
    /// Not at all: this process copies all that is sent, and all that lands.
    No,
    /// To read. What a server makes of it counts only as long as it is a member.
    Read,
    /// To write, too.
    Write,
}

impl Lent {
    pub(super) fn of(kind: OpKind, placement: Placement) -> Self {
        match (kind, placement) {
            (OpKind::Call, _) => Self::Write,
            (_, Placement::RendezvousRead) => Self::Read,
            _ => Self::No,
        }
    }
}

/// An operation that has ended, but for its caller.
#[derive(Clone, Copy, Debug)]
struct Ended {
    op: u64,
    version: u64,
    since_ms: u64,
    is_told: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Fences {
    pending: Vec<(ChannelId, Rank)>,
    ended: Vec<Ended>,
    now_ms: u64,
}

impl<Q: CompletionQueue> LaneDriver<Q> {
    /// The fence of a channel that was closed is pending: so is the end of whatever its server can reach.
    pub(super) fn fence_off(&mut self, server: Rank, channel: ChannelId) {
        self.fences.pending.push((channel, server));
        let lent = self.live.values_mut().filter(|live| live.lent != Lent::No);
        lent.for_each(|live| live.fences.push(channel));
    }

    /// A server's life is over: what it still reads counts for nothing.
    pub(super) fn stop_reader(&mut self, server: Rank) {
        let Self { fences, live, .. } = self;
        let of_it = |channel: &ChannelId| fences.pending.contains(&(*channel, server));
        for live in live.values_mut().filter(|live| live.lent == Lent::Read) {
            live.fences.retain(|channel| !of_it(channel));
        }
        self.end_fenced();
    }

    /// Ends operations whose fences are done.
    pub(super) fn settle_fences(&mut self, now_ms: u64) {
        self.fences.now_ms = now_ms;
        if self.fences.pending.is_empty() && self.fences.ended.is_empty() {
            return;
        }
        let Self { fences, queue, live, .. } = self;
        fences.pending.retain(|(channel, _)| {
            let is_pending = queue.fence(*channel) == Fence::Pending;
            if !is_pending {
                live.values_mut().for_each(|live| live.fences.retain(|of| of != channel));
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
                let servers = self.fences.pending.iter().filter(|(channel, _)| live.fences.contains(channel));
                let servers = servers.map(|(_, server)| *server).collect();
                live.state.fail(OpError::Held { servers, waited_ms });
                self.fences.ended[at].is_told = true;
            }
            at += 1;
        }
    }

    /// An operation failed. The caller may share its buffers, so it hears of the failure only when no server reaches them.
    pub(super) fn failed(&mut self, op: u64, error: OpError) {
        let Some(live) = self.live.get_mut(&op) else { return };
        if live.fences.is_empty() {
            live.state.fail(error);
        } else {
            live.failure.get_or_insert(error);
        }
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

    /// All servers have answered, or their channels have ended: nobody reaches the operation's memory any more.
    fn take_back(&mut self, op: u64, live: &Live) -> Fenced {
        if !live.granted {
            return Fenced::answered();
        }
        let pieces = live.state.lent();
        for span in pieces.iter().chain(&live.source).chain(&live.target) {
            for link in self.links.iter().flatten() {
                self.queue.take_back(link.channel, span, op);
            }
        }
        Fenced::answered()
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
            self.close(Rank(server as u32));
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
        // Callbacks may panic: whoever is behind them is told all the same.
        while catch_unwind(AssertUnwindSafe(|| self.settle_fences(now_ms))).is_err() {}
        if self.fences.ended.iter().any(|ended| !ended.is_told) {
            return true;
        }
        self.live.drain().for_each(|(_, live)| std::mem::forget(live));
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::rig;
    use crate::runtime::{OpState, ServerInbox};
    use fabric::{Device, LaneQueue, PeerWritable, ShmDevice};
    use proto_common::batch::SlotGrant;
    use proto_common::ids::Incarnation;
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    const SERVER: Rank = Rank(0);

    /// A lane that has a gradient under way to a server over shared memory, which has begun to read it where it lies.
    struct Rigged {
        driver: LaneDriver<LaneQueue>,
        server: LaneQueue,
        channel: ChannelId,
        state: Arc<OpState>,
    }

    fn rigged() -> Rigged {
        let mut driver = rig::driver(0);
        let mut server = LaneQueue::new(64).unwrap();
        let (device, deadline) = (ShmDevice::new(), Instant::now() + Duration::from_secs(30));
        let (offer, pending) = device.offer(&[server.handle()]).unwrap();
        let handle = driver.queue_mut().handle();
        let (theirs, ours) = std::thread::scope(|scope| {
            let connecting = scope.spawn(|| device.connect(&offer, 0, &handle, deadline).unwrap());
            (pending.accept(deadline).unwrap().pop().unwrap(), connecting.join().unwrap())
        });
        let channel = server.attach(theirs).unwrap();
        let near = driver.queue_mut().attach(ours).unwrap();
        driver.attach(SERVER, 1, near).unwrap();
        let inbox = PeerWritable::allocate(1 << 16, "inbox").unwrap();
        let region = server.expose(channel, &inbox).unwrap().0;
        let grants = vec![SlotGrant { slot: 0, generation: 1 }];
        driver
            .activate(SERVER, Incarnation(9), ServerInbox { region, offset: 0, slot_bytes: 1 << 16, grants })
            .unwrap();
        let state = OpState::new(1);
        let mut submission = rig::submission(1, state.clone());
        submission.placement = Placement::RendezvousRead;
        submission.source = Some(driver.landing.span(0, 4).unwrap());
        driver.submit(submission, 1);
        driver.step(1);
        server.begin_reads(channel).unwrap();
        Rigged { driver, server, channel, state }
    }

    fn error() -> OpError {
        OpError::Closed("test".into())
    }

    /// The caller would write the next gradient, which the server adds up for everybody.
    #[test]
    fn who_fails_is_told_when_the_server_has_stopped_reading() {
        let Rigged { mut driver, mut server, channel, state } = rigged();
        driver.fail(error());
        driver.step(2);
        assert_eq!(state.poll(), None, "its gradient is being read");
        server.end_reads(channel);
        driver.step(3);
        assert_eq!(state.poll(), Some(Err(error())));
        assert!(state.take_buffers().is_some());
    }

    #[test]
    fn a_server_that_does_not_stop_is_named_and_keeps_the_buffers() {
        let Rigged { mut driver, mut server, channel, state } = rigged();
        driver.fail(error());
        driver.step(2 + HELD_MS);
        let told = state.poll();
        assert!(
            matches!(&told, Some(Err(OpError::Held { servers, .. })) if servers[..] == [SERVER]),
            "{told:?}"
        );
        assert!(state.take_buffers().is_none());
        server.end_reads(channel);
        driver.step(3 + HELD_MS);
        assert!(state.take_buffers().is_some());
    }

    /// A callback panics while the lane tells of a failure: the other operation's gradient is read on all the same.
    #[test]
    fn a_lane_that_ends_after_a_panic_keeps_what_a_server_reads() {
        for stops in [true, false] {
            let Rigged { mut driver, mut server, channel, state } = rigged();
            let other = OpState::new(1);
            other.on_end(Box::new(|_| panic!("a trainer's callback")));
            driver.submit(rig::submission(2, other.clone()), 1);
            assert!(catch_unwind(AssertUnwindSafe(|| driver.fail(error()))).is_err());
            let panicked = OpError::Closed("a panic".into());
            driver.end(&panicked, 2);
            assert!(driver.tell_ended(2), "its server has not stopped");
            assert_eq!((other.poll(), state.poll()), (Some(Err(error())), None));
            if stops {
                server.end_reads(channel);
                assert!(!driver.tell_ended(3));
                assert!(matches!(state.poll(), Some(Err(OpError::Closed(_)))));
                assert!(state.take_buffers().is_some());
                continue;
            }
            assert!(!driver.tell_ended(2 + HELD_MS));
            assert!(matches!(state.poll(), Some(Err(OpError::Held { .. }))));
            drop(driver);
            assert!(state.take_buffers().is_none());
            assert_eq!(Arc::strong_count(&state), 2, "its buffers would go to somebody else");
        }
    }

    #[test]
    fn what_a_server_reads_that_is_no_member_any_more_counts_for_nothing() {
        let Rigged { mut driver, server, state, .. } = rigged();
        driver.end_server(SERVER);
        driver.fail(error());
        assert_eq!(state.poll(), Some(Err(error())), "nobody waits for it");
        drop(server);
    }
}
