//! Operations of all kinds that are live when a lane cannot go on: each ends with the reason, at once, and after the channels
//! that servers reach its buffers over are closed.

use super::lane::LaneDriver;
use super::rig;
use super::{OpState, ServerInbox, Submission};
use crate::engine::{PartSpec, Submit};
use crate::error::OpError;
use fabric::sim::{SimFaults, SimNet, SimQueue};
use fabric::{
    Caps, ChannelId, ChannelSetup, Completion, CompletionKind, CompletionQueue, FabricError, Fence, Pool,
    PostError, Read, Region, RemoteKey, RemoteSpan, Span, Write,
};
use proto_common::batch::{Notice, OpKind, SlotGrant};
use proto_common::call::call_id;
use proto_common::ids::{ChunkId, Incarnation, Rank};
use proto_common::plan::Placement;
use proto_common::table::HOMES;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;

const BYTES: u64 = 4096;
const SERVERS: u32 = 2;
/// Turns after which everything has ended. The deadline of operations is far behind it.
const TURNS: u64 = 100;

/// A call of the queue that fails.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fails {
    Nothing,
    Write,
    Lend,
}

/// A queue over a device that has no room for more memory, from some time on.
struct Scarce {
    inner: SimQueue,
    fails: Fails,
    open: Arc<AtomicU32>,
}

impl Scarce {
    fn register(&self, call: Fails) -> Result<(), PostError> {
        if self.fails == call { Err(PostError::Unregistered) } else { Ok(()) }
    }
}

impl CompletionQueue for Scarce {
    fn attach(&mut self, setup: ChannelSetup) -> Result<ChannelId, FabricError> {
        self.inner.attach(setup)
    }

    fn expose(&mut self, channel: ChannelId, region: &Region) -> Result<RemoteKey, PostError> {
        self.inner.expose(channel, region)
    }

    fn lend(
        &mut self,
        channel: ChannelId,
        span: &Span,
        access: fabric::Access,
        lease: u64,
    ) -> Result<(), PostError> {
        self.register(Fails::Lend)?;
        self.inner.lend(channel, span, access, lease)
    }

    fn unregistered(&mut self) -> Option<FabricError> {
        Some(FabricError::Unregistered { what: "no room".into(), fix: "raise memory.registered_bytes" })
    }

    fn post_write(&mut self, channel: ChannelId, write: &Write<'_>) -> Result<(), PostError> {
        self.register(Fails::Write)?;
        self.inner.post_write(channel, write)
    }

    fn post_read(&mut self, channel: ChannelId, read: &Read<'_>) -> Result<(), PostError> {
        self.inner.post_read(channel, read)
    }

    fn flush(&mut self) {
        self.inner.flush();
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        self.inner.poll(completions);
    }

    fn close(&mut self, channel: ChannelId) -> Fence {
        self.open.fetch_sub(1, Ordering::SeqCst);
        self.inner.close(channel)
    }

    fn caps(&self) -> Caps {
        self.inner.caps()
    }
}

struct Rigged {
    net: SimNet,
    driver: LaneDriver<Scarce>,
    open: Arc<AtomicU32>,
    pool: Pool,
    /// They answer nothing but the probe.
    servers: Vec<SimQueue>,
}

/// A lane with channels to two servers, and credits of both.
fn rigged() -> Rigged {
    let net = SimNet::new(3, SimFaults::default());
    let (open, pool) = (Arc::new(AtomicU32::new(0)), Pool::new(1 << 20, "failures").unwrap());
    let inner = net.create_cq(net.node("worker"));
    let queue = Scarce { inner, fails: Fails::Nothing, open: open.clone() };
    let driver = rig::driver_over(queue, (0, SERVERS), pool.region());
    let mut rigged = Rigged { net, driver, open, pool, servers: Vec::new() };
    for server in 0..SERVERS {
        let mut peer = rigged.net.create_cq(rigged.net.node(&format!("server {server}")));
        let (theirs, ours) = rigged.net.connect(&peer, &rigged.driver.queue_mut().inner);
        rigged.open.fetch_add(1, Ordering::SeqCst);
        let results = rigged.driver.attach(Rank(server), 1, ours).unwrap();
        let inbox = Region::allocate(4 << 16, "inbox").unwrap();
        let region = peer.expose(theirs, &inbox).unwrap().0;
        let grants = (0..4).map(|slot| SlotGrant { slot, generation: 1 }).collect();
        let inbox = ServerInbox { region, offset: 0, slot_bytes: 1 << 16, grants };
        rigged.driver.activate(Rank(server), Incarnation(9), inbox).unwrap();
        let remote = RemoteSpan { key: RemoteKey(results.region), offset: 0 };
        let immediate = Some(Notice::ProbeReply.to_wire());
        let probe = Write { id: 0, gather: &[], remote, immediate, signaled: false };
        peer.post_write(theirs, &probe).unwrap();
        peer.flush();
        rigged.servers.push(peer);
        rigged.turns_until(|rigged| rigged.driver.probed(Rank(server)));
    }
    rigged
}

impl Rigged {
    fn turns_until(&mut self, is_over: impl Fn(&Self) -> bool) {
        for _ in 0..TURNS {
            let now_us = self.net.now_us();
            self.driver.step(now_us / 1_000);
            if is_over(self) {
                return;
            }
            self.net.advance_to(now_us + 1_000);
        }
        panic!("it goes on after {TURNS} turns");
    }

    /// An operation with all its memory in the pool. The state's callback says how many channels are open at its end.
    fn submission(&self, op: u64, kind: OpKind, id: ChunkId, placement: Placement) -> Submission {
        let part = PartSpec { id, server: Rank(op as u32 % SERVERS), offset: 0, bytes: BYTES, coded: None };
        let buffer = || Some(self.pool.allocate(BYTES).unwrap().span());
        let (source, target) = match kind {
            OpKind::Push => (buffer(), None),
            OpKind::Pull => (None, buffer()),
            _ => (buffer(), buffer()),
        };
        let base = rig::submission(op, OpState::new(1));
        let submit = Submit { kind, placement, payload: source.is_some(), ..base.submit };
        Submission { submit, parts: [part].into(), source, target, ..base }
    }

    /// One of each kind, on chunks of their own.
    fn all_kinds(&self) -> Vec<Submission> {
        let (tensor, slot) = (|op| ChunkId::new(op, 0), Placement::Slot);
        vec![
            self.submission(1, OpKind::Push, tensor(1), slot),
            self.submission(2, OpKind::Push, tensor(2), Placement::RendezvousRead),
            self.submission(3, OpKind::Pull, tensor(3), slot),
            self.submission(4, OpKind::PushPull, tensor(4), slot),
            self.submission(5, OpKind::PushPull, tensor(5), Placement::RendezvousRead),
            self.submission(6, OpKind::Call, call_id(3, Rank(0)), slot),
            // Rows of a table.
            self.submission(7, OpKind::Push, ChunkId::new(HOMES, 0), slot),
        ]
    }

    /// Every one of them ends with an error like this, with no channel open any more, and gives its buffers back.
    fn each_ends(&mut self, submissions: Vec<Submission>, is_reason: impl Fn(&OpError) -> bool) {
        let (ended, ends) = channel();
        let states: Vec<_> = submissions.iter().map(|submission| submission.state.clone()).collect();
        for submission in submissions {
            let (ended, open, op) = (ended.clone(), self.open.clone(), submission.submit.op);
            let told = move |result| ended.send((op, result, open.load(Ordering::SeqCst))).unwrap();
            submission.state.on_end(Box::new(told));
            self.driver.submit(submission, self.net.now_us() / 1_000);
        }
        self.turns_until(|_| states.iter().all(|state| state.poll().is_some()));
        drop(ended);
        for (op, result, open) in ends.try_iter() {
            let error = result.unwrap_err();
            assert!(is_reason(&error), "operation {op}: {error}");
            assert_eq!(open, 0, "operation {op} gave its buffers back while servers could write into them");
        }
        assert!(states.iter().all(|state| state.take_buffers().is_some()));
    }
}

#[test]
fn what_cannot_be_registered_ends_every_operation_with_the_reason() {
    for fails in [Fails::Write, Fails::Lend] {
        let mut rigged = rigged();
        rigged.driver.queue_mut().fails = fails;
        let submissions = rigged.all_kinds();
        rigged.each_ends(submissions, |error| {
            matches!(error, OpError::Unregistered(why) if why.contains("raise memory.registered_bytes"))
        });
    }
}

/// Its server would close the channel, and that would be the reason that is heard.
#[test]
fn a_batch_that_names_memory_which_cannot_be_lent_is_not_sent() {
    let mut rigged = rigged();
    rigged.driver.queue_mut().fails = Fails::Lend;
    let submission = rigged.submission(1, OpKind::Push, ChunkId::new(1, 0), Placement::RendezvousRead);
    rigged.each_ends(vec![submission], |error| matches!(error, OpError::Unregistered(_)));
    let mut heard = Vec::new();
    rigged.servers.iter_mut().for_each(|server| server.poll(&mut heard));
    let notices = heard.iter().filter_map(|completion| match completion.kind {
        CompletionKind::Received { immediate } => Notice::from_wire(immediate),
        _ => None,
    });
    assert_eq!(notices.collect::<Vec<_>>(), [Notice::Probe; SERVERS as usize]);
}

/// One of them names bytes that its buffer does not have, as by a bug of the client: it is no reason to leave the others to
/// their deadlines, or itself.
#[test]
fn what_cannot_be_sent_ends_every_operation_with_the_reason() {
    for wrong in 0..7 {
        let mut rigged = rigged();
        let mut submissions = rigged.all_kinds();
        if submissions[wrong].source.is_none() {
            continue;
        }
        submissions[wrong].source = Some(rigged.pool.allocate(BYTES / 2).unwrap().span());
        if submissions[wrong].submit.placement == Placement::RendezvousRead {
            // It is read where it lies: not in the region that servers can read.
            let elsewhere = Region::allocate(4 << 20, "elsewhere").unwrap();
            submissions[wrong].source = Some(elsewhere.span(2 << 20, BYTES).unwrap());
        }
        rigged.each_ends(submissions, |error| matches!(error, OpError::Closed(why) if why.contains("bytes")));
        let late = rigged.submission(9, OpKind::Pull, ChunkId::new(9, 0), Placement::Slot);
        rigged.each_ends(vec![late], |error| matches!(error, OpError::Closed(why) if why.contains("bytes")));
    }
}
