//! Weights and gradients to be read where a peer has them, whose memory cannot be mapped: a peer that never handed it over
//! is accused, one whose channel has just ended is not. Then the channel's own word on why is told.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]

use fabric::sim::{SimFaults, SimNet, SimQueue};
use fabric::{
    Access, Caps, ChannelId, ChannelSetup, Completion, CompletionKind, CompletionQueue, DisconnectReason,
    FabricError, Fence, Pool, PostError, Read, Region, RemoteKey, Span, View, Write,
};
use gradwire_tests::rigs::sim::pair;
use gradwire_worker::engine::{PartSpec, Submit};
use gradwire_worker::error::OpError;
use gradwire_worker::runtime::{OpState, Submission};
use proto_common::batch::{Count, Kept, OpKind, Reading};
use proto_common::element::Dtype;
use proto_common::ids::{ChunkId, Operation, Rank, Version};
use proto_common::plan::Placement;
use std::sync::Arc;

const BYTES: u64 = 4096;

/// A queue whose answer to mapping is another one. After `Closed` its channel's end is reported.
struct Unmapped {
    inner: SimQueue,
    answer: Option<PostError>,
    ended: Option<ChannelId>,
    /// The next message comes together with its channel's end, after which the queue knows that channel no more.
    ends_with_mail: bool,
    gone: Option<ChannelId>,
}

impl Unmapped {
    fn new(inner: SimQueue, answer: Option<PostError>) -> Self {
        Self { inner, answer, ended: None, ends_with_mail: false, gone: None }
    }
}

impl CompletionQueue for Unmapped {
    fn attach(&mut self, setup: ChannelSetup) -> Result<ChannelId, FabricError> {
        self.inner.attach(setup)
    }

    fn expose(&mut self, channel: ChannelId, region: &Region) -> Result<RemoteKey, PostError> {
        self.inner.expose(channel, region)
    }

    fn lend(&mut self, channel: ChannelId, span: &Span, access: Access, lease: u64) -> Result<(), PostError> {
        self.inner.lend(channel, span, access, lease)
    }

    fn take_back(&mut self, channel: ChannelId, span: &Span, lease: u64) {
        self.inner.take_back(channel, span, lease);
    }

    fn post_write(&mut self, channel: ChannelId, write: &Write<'_>) -> Result<(), PostError> {
        self.inner.post_write(channel, write)
    }

    fn post_read(&mut self, channel: ChannelId, read: &Read<'_>) -> Result<(), PostError> {
        self.inner.post_read(channel, read)
    }

    fn reads_in_place(&self, channel: ChannelId) -> bool {
        self.gone != Some(channel) && self.inner.reads_in_place(channel)
    }

    fn map(&mut self, channel: ChannelId, key: RemoteKey) -> Result<View, PostError> {
        if self.gone == Some(channel) {
            return Err(PostError::Closed);
        }
        self.ended = (self.answer == Some(PostError::Closed)).then_some(channel);
        self.answer.map_or_else(|| self.inner.map(channel, key), Err)
    }

    fn flush(&mut self) {
        self.inner.flush();
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        let kind = CompletionKind::Disconnected(DisconnectReason::Failed("its host rebooted".into()));
        completions.extend(self.ended.take().map(|channel| Completion { channel, kind }));
        self.inner.poll(completions);
        let is_mail = |completion: &&Completion| matches!(completion.kind, CompletionKind::Received { .. });
        if let Some(mail) = completions.iter().find(is_mail).filter(|_| self.ends_with_mail) {
            let (channel, kind) = (mail.channel, CompletionKind::Disconnected(DisconnectReason::PeerClosed));
            (self.ends_with_mail, self.gone) = (false, Some(channel));
            completions.push(Completion { channel, kind });
        }
    }

    fn begin_reads(&mut self, channel: ChannelId) -> Result<(), PostError> {
        self.inner.begin_reads(channel)
    }

    fn end_reads(&mut self, channel: ChannelId) {
        self.inner.end_reads(channel);
    }

    fn close(&mut self, channel: ChannelId) -> Fence {
        self.inner.close(channel)
    }

    fn caps(&self) -> Caps {
        self.inner.caps()
    }
}

/// How an operation ends, where mapping comes to this at its server and at its worker; and how many workers the server
/// expelled.
fn ended(at_server: Unmapping, at_worker: Option<PostError>) -> (Result<Version, OpError>, u64) {
    let net = SimNet::new(5, SimFaults { reads_in_place: true, ..SimFaults::default() });
    let pool = Pool::new(1 << 20, "worker").unwrap();
    let answer = if let Unmapping::Refused = at_server { Some(PostError::RemoteAccess) } else { None };
    let queue = Unmapped::new(net.create_cq(net.node("server")), answer);
    let mut server = pair::server(queue, BYTES, &[BYTES]);
    let queue = Unmapped::new(net.create_cq(net.node("worker")), at_worker);
    let mut worker = pair::worker(queue, pool.region().clone());
    let ends = net.connect(&server.queue_mut().inner, &worker.queue_mut().inner);
    pair::join(&mut server, &mut worker, ends, false).unwrap();
    let mut state: Option<Arc<OpState>> = None;
    for _ in 0..100_000 {
        let now_us = net.now_us();
        server.step(now_us / 1_000).unwrap();
        worker.step(now_us / 1_000);
        net.advance_to(now_us + 100);
        // The operation itself would wait for another channel.
        if let Some((rank, _, reason)) = worker.take_broken() {
            return (Err(OpError::Broken { server: rank, reason }), server.expelled());
        }
        match &state {
            Some(state) => {
                if let Some(ended) = state.poll() {
                    return (ended, server.expelled());
                }
            }
            None if worker.probed(Rank(0)) => {
                server.queue_mut().ends_with_mail = matches!(at_server, Unmapping::Gone);
                let submission = submission(&pool);
                state = Some(submission.state.clone());
                worker.submit(submission, now_us / 1_000);
            }
            None => {}
        }
    }
    panic!("it does not end");
}

/// What mapping a worker's gradient comes to.
enum Unmapping {
    None,
    Refused,
    /// Its channel ended in the moment in which the batch came.
    Gone,
}

fn submission(pool: &Pool) -> Submission {
    let id = ChunkId::new(1, 0);
    let submit = Submit {
        view: true,
        exact: false,
        reading: Reading { from: Operation(1), kept: Kept::None },
        op: 1,
        kind: OpKind::PushPull,
        dtype: Dtype::F32,
        placement: Placement::RendezvousRead,
        operation: Operation(1),
        count: Count::Round(1),
        priority: 0,
        timeout_ms: 60_000,
        busy_ms: 0,
        payload: true,
        by_chunk: false,
    };
    Submission {
        state: OpState::new(1),
        submit,
        parts: [PartSpec { id, server: Rank(0), offset: 0, bytes: BYTES, coded: None }].into(),
        source: Some(pool.allocate(BYTES).unwrap().span()),
        target: None,
    }
}

#[test]
fn who_showed_what_cannot_be_mapped_is_accused_only_where_it_is_to_blame() {
    let ended = |answer| ended(Unmapping::None, answer);
    assert_eq!(ended(None), (Ok(Version(1)), 0));
    let broken = |reason: &str| Err(OpError::Broken { server: Rank(0), reason: reason.into() });
    let reason = "it showed weights in memory that it did not hand over";
    assert_eq!(ended(Some(PostError::RemoteAccess)), (broken(reason), 0));
    assert_eq!(ended(Some(PostError::Closed)), (broken("its host rebooted"), 0));
}

#[test]
fn a_batch_that_refers_to_memory_and_comes_with_its_channel_s_end_is_dropped_and_accuses_nobody() {
    let (refused, expelled) = ended(Unmapping::Refused, None);
    assert!(matches!(refused, Err(OpError::Broken { .. })) && expelled == 1, "{refused:?}, {expelled}");
    let (gone, expelled) = ended(Unmapping::Gone, None);
    assert!(matches!(gone, Err(OpError::Broken { .. })) && expelled == 0, "{gone:?}, {expelled}");
}
