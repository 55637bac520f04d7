//! Memory that a device has no room for, found in mid-run or when a channel is attached: whoever hears of the end hears
//! the reason and its fix with it, and nobody waits.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]

use fabric::sim::{SimFaults, SimNet, SimQueue};
use fabric::{
    Access, Caps, ChannelId, ChannelSetup, Completion, CompletionQueue, FabricError, Fence, Pool, PostError,
    Read, Region, RemoteKey, Span, Write,
};
use gradwire_server::runtime::{DataLane, LaneError as ServerError};
use gradwire_tests::rigs::sim::pair;
use gradwire_worker::engine::{PartSpec, Submit};
use gradwire_worker::error::{ClientError, OpError};
use gradwire_worker::runtime::{LaneDriver, OpState, Submission};
use proto_common::batch::{Count, OpKind, Reading};
use proto_common::call::call_id;
use proto_common::element::Dtype;
use proto_common::error::ExitCode;
use proto_common::ids::{ChunkId, Operation, Rank};
use proto_common::plan::Placement;
use proto_common::table::HOMES;
use std::sync::Arc;

const BYTES: u64 = 64 << 10;

/// A queue over a device that has no room for more memory, once it is full.
struct Scarce {
    inner: SimQueue,
    is_full: bool,
}

impl Scarce {
    fn register(&self) -> Result<(), PostError> {
        if self.is_full { Err(PostError::Unregistered) } else { Ok(()) }
    }
}

impl CompletionQueue for Scarce {
    fn attach(&mut self, setup: ChannelSetup) -> Result<ChannelId, FabricError> {
        self.inner.attach(setup)
    }

    fn expose(&mut self, channel: ChannelId, region: &Region) -> Result<RemoteKey, PostError> {
        self.register()?;
        self.inner.expose(channel, region)
    }

    fn unregistered(&mut self) -> Option<FabricError> {
        let fix = "raise memory.registered_bytes";
        self.is_full.then(|| FabricError::Unregistered { what: "no room".into(), fix })
    }

    fn lend(&mut self, channel: ChannelId, span: &Span, access: Access, lease: u64) -> Result<(), PostError> {
        self.inner.lend(channel, span, access, lease)
    }

    fn take_back(&mut self, channel: ChannelId, span: &Span, lease: u64) {
        self.inner.take_back(channel, span, lease);
    }

    fn post_write(&mut self, channel: ChannelId, write: &Write<'_>) -> Result<(), PostError> {
        if !write.gather.is_empty() {
            self.register()?;
        }
        self.inner.post_write(channel, write)
    }

    fn post_read(&mut self, channel: ChannelId, read: &Read<'_>) -> Result<(), PostError> {
        self.register()?;
        self.inner.post_read(channel, read)
    }

    fn flush(&mut self) {
        self.inner.flush();
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        self.inner.poll(completions);
    }

    fn close(&mut self, channel: ChannelId) -> Fence {
        self.inner.close(channel)
    }

    fn caps(&self) -> Caps {
        self.inner.caps()
    }
}

struct Pair {
    net: SimNet,
    server: DataLane<Scarce>,
    worker: LaneDriver<Scarce>,
    pool: Pool,
}

impl Pair {
    /// With three chunks, and no channel yet.
    fn apart() -> Self {
        let net = SimNet::new(5, SimFaults::default());
        let queue = |name| Scarce { inner: net.create_cq(net.node(name)), is_full: false };
        let server = pair::server(queue("server"), BYTES, &[BYTES; 3]);
        let pool = Pool::new(1 << 20, "worker").unwrap();
        let worker = pair::worker(queue("worker"), pool.region().clone());
        Self { net, server, worker, pool }
    }

    /// The channel's two ends, attached as far as it goes.
    fn join(&mut self) -> Result<(), String> {
        let (server, worker) = (self.server.queue_mut(), self.worker.queue_mut());
        let ends = self.net.connect(&server.inner, &worker.inner);
        pair::join(&mut self.server, &mut self.worker, ends, false)
    }

    fn joined() -> Self {
        let mut pair = Self::apart();
        pair.join().unwrap();
        while !pair.worker.probed(Rank(0)) {
            pair.step().unwrap();
        }
        pair
    }

    fn step(&mut self) -> Result<(), ServerError> {
        let now_us = self.net.now_us();
        self.server.step(now_us / 1_000)?;
        self.worker.step(now_us / 1_000);
        self.net.advance_to(now_us + 100);
        Ok(())
    }

    fn push_pull(&mut self, placement: Placement) -> Arc<OpState> {
        self.submit(1, OpKind::PushPull, ChunkId::new(1, 0), placement)
    }

    /// One of each kind, on chunks of their own; the call and the rows are of a handler and a table that nobody has.
    fn all_kinds(&mut self, placement: Placement) -> Vec<Arc<OpState>> {
        let (chunk, slot) = (|index| ChunkId::new(1, index), Placement::Slot);
        vec![
            self.submit(1, OpKind::Push, chunk(0), placement),
            self.submit(2, OpKind::PushPull, chunk(1), placement),
            self.submit(3, OpKind::Pull, chunk(2), slot),
            self.submit(4, OpKind::Call, call_id(3, Rank(0)), slot),
            self.submit(5, OpKind::Push, ChunkId::new(HOMES, 0), slot),
        ]
    }

    fn submit(&mut self, op: u64, kind: OpKind, id: ChunkId, placement: Placement) -> Arc<OpState> {
        let (source, target) = (self.pool.allocate(BYTES).unwrap(), self.pool.allocate(BYTES).unwrap());
        let state = OpState::new(1);
        let submit = Submit {
            view: false,
            exact: false,
            reading: Reading::default(),
            op,
            kind,
            dtype: Dtype::F32,
            placement,
            operation: Operation(1),
            count: Count::Round(1),
            priority: 0,
            timeout_ms: 60_000,
            busy_ms: 0,
            payload: kind != OpKind::Pull,
            by_chunk: false,
        };
        let submission = Submission {
            state: state.clone(),
            parts: [PartSpec { id, server: Rank(0), offset: 0, bytes: BYTES, coded: None }].into(),
            source: Some(source.span()).filter(|_| kind != OpKind::Pull),
            target: Some(target.span()).filter(|_| kind != OpKind::Push),
            submit,
        };
        self.worker.submit(submission, self.net.now_us() / 1_000);
        state
    }
}

/// Its workers hear the reason of the scheduler. Until then nothing is done: what was not answered is not answered wrongly, and
/// its buffers stay where they are.
#[test]
fn a_server_that_cannot_answer_or_read_ends_with_the_reason_and_so_does_all_that_waits_for_it() {
    for placement in [Placement::Slot, Placement::RendezvousRead] {
        let mut pair = Pair::joined();
        pair.server.queue_mut().is_full = true;
        let states = pair.all_kinds(placement);
        let error = (0..1_000).find_map(|_| pair.step().err()).expect("the server goes on");
        assert!(matches!(error, ServerError::Unregistered(_)), "{error}");
        assert!(error.to_string().contains("memory.registered_bytes"), "{error}");
        let Pair { net, server, mut worker, .. } = pair;
        drop(server);
        while !worker.has_broken() {
            net.advance_to(net.now_us() + 100);
            worker.step(net.now_us() / 1_000);
        }
        assert!(states.iter().all(|state| state.poll().is_none()));
        worker.fail(OpError::Closed(error.to_string()));
        for state in states {
            let ended = state.poll().expect("it has not ended").unwrap_err();
            assert!(ended.to_string().contains("memory.registered_bytes"), "{ended}");
        }
    }
}

#[test]
fn a_worker_that_cannot_send_is_told_the_reason_and_not_that_the_server_died() {
    let mut pair = Pair::joined();
    pair.worker.queue_mut().is_full = true;
    let state = pair.push_pull(Placement::Slot);
    let ended = (0..10_000).find_map(|_| {
        pair.step().unwrap();
        state.poll()
    });
    let error = ended.expect("the operation does not end").unwrap_err();
    assert!(matches!(&error, OpError::Unregistered(_)), "{error}");
    let text = error.to_string();
    assert!(text.contains("memory.registered_bytes") && text.contains("transport.verbs"), "{text}");
    assert_eq!(ClientError::from(error).exit_code(), ExitCode::Transport);
}

#[test]
fn a_link_that_cannot_be_set_up_says_the_reason_itself() {
    for is_worker in [false, true] {
        let mut pair = Pair::apart();
        pair.server.queue_mut().is_full = !is_worker;
        pair.worker.queue_mut().is_full = is_worker;
        let reason = pair.join().unwrap_err();
        assert!(reason.contains("no room; raise memory.registered_bytes"), "{reason}");
    }
}
