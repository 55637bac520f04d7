//! Payload checksums: a byte that changes on the way is caught before anything of it is reduced, and sending it
//! again repairs it; without checksums it goes through, so the first test can fail.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]

use fabric::sim::{SimFaults, SimNet, SimQueue};
use fabric::{
    Access, Caps, ChannelId, ChannelSetup, Completion, CompletionQueue, FabricError, Fence, PeerWritable,
    Pool, PostError, Read, Region, RemoteKey, Span, SpanReader, Write,
};
use gradwire_server::engine::LaneStats;
use gradwire_server::runtime::DataLane;
use gradwire_tests::rigs::sim::pair;
use gradwire_worker::engine::{PartSpec, Submit};
use gradwire_worker::error::OpError;
use gradwire_worker::runtime::{LaneDriver, OpState, Submission};
use proto_common::batch::{Count, OpKind, Reading, Status};
use proto_common::element::Dtype;
use proto_common::ids::{ChunkId, Operation, Rank, Version};
use proto_common::plan::Placement;

const CHUNK_BYTES: u64 = 64 << 10;
/// Two whole chunks and a short one: more than one scratch block each, and a last one that is not whole.
const BYTES: u64 = 2 * CHUNK_BYTES + 20;

/// A queue over a network that flips one bit of a write's payload, in this many writes that have one.
struct Flipping {
    inner: SimQueue,
    flips: u32,
    /// Where in the payload, as a part of its length.
    at: f64,
}

impl CompletionQueue for Flipping {
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
        if self.flips == 0 || write.gather.len() < 2 {
            return self.inner.post_write(channel, write);
        }
        let bytes: u64 = write.gather[1..].iter().map(Span::len).sum();
        let (mut payload, mut reader) = (Vec::new(), SpanReader::new(bytes as usize));
        for span in &write.gather[1..] {
            reader.read(span, |piece| payload.extend_from_slice(piece)).unwrap();
        }
        let last = payload.len() - 1;
        payload[(last as f64 * self.at) as usize] ^= 0x10;
        let changed = PeerWritable::allocate(payload.len(), "changed").unwrap();
        changed.write(0, &payload).unwrap();
        let gather = [write.gather[0].clone(), changed.span(0, bytes).unwrap()];
        self.inner.post_write(channel, &Write { gather: &gather, ..*write })?;
        self.flips -= 1;
        Ok(())
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
        self.inner.close(channel)
    }

    fn caps(&self) -> Caps {
        self.inner.caps()
    }
}

struct Pair {
    net: SimNet,
    server: DataLane<SimQueue>,
    worker: LaneDriver<Flipping>,
    pool: Pool,
    operations: u64,
}

fn chunks() -> Vec<(u64, u64)> {
    (0..BYTES.div_ceil(CHUNK_BYTES))
        .map(|chunk| (chunk * CHUNK_BYTES, CHUNK_BYTES.min(BYTES - chunk * CHUNK_BYTES)))
        .collect()
}

impl Pair {
    fn new(sums: bool, flips: u32, at: f64) -> Self {
        let net = SimNet::new(5, SimFaults::default());
        let sizes: Vec<u64> = chunks().into_iter().map(|(_, bytes)| bytes).collect();
        let mut server = pair::server(net.create_cq(net.node("server")), CHUNK_BYTES, &sizes);
        let pool = Pool::new(1 << 20, "worker").unwrap();
        let queue = Flipping { inner: net.create_cq(net.node("worker")), flips, at };
        let mut worker = pair::worker(queue, pool.region().clone());
        let ends = net.connect(server.queue_mut(), &worker.queue_mut().inner);
        pair::join(&mut server, &mut worker, ends, sums).unwrap();
        Self { net, server, worker, pool, operations: 0 }
    }

    /// Pushes bytes that differ in every word and pulls what became of them.
    fn push_pull(&mut self) -> (Result<Version, OpError>, Vec<u8>, Vec<u8>) {
        self.operations += 1;
        let words = (0..BYTES / 4).map(|word| (word as f32 + 0.5) * self.operations as f32);
        let given: Vec<u8> = words.flat_map(f32::to_le_bytes).collect();
        let mut source = self.pool.allocate(BYTES).unwrap();
        source.copy_from_slice(&given);
        let target = self.pool.allocate(BYTES).unwrap();
        let part = |(index, (offset, bytes)): (usize, (u64, u64))| PartSpec {
            id: ChunkId::new(1, index as u32),
            server: Rank(0),
            offset,
            bytes,
            coded: None,
        };
        let state = OpState::new(1);
        let submit = Submit {
            view: false,
            exact: false,
            reading: Reading::default(),
            op: self.operations,
            kind: OpKind::PushPull,
            dtype: Dtype::F32,
            // Which sums do not cover: payloads with a checksum travel in slots all the same.
            placement: Placement::Static,
            operation: Operation(self.operations),
            count: Count::Round(self.operations),
            priority: 0,
            timeout_ms: 1_000,
            busy_ms: 0,
            payload: true,
            by_chunk: false,
        };
        let submission = Submission {
            state: state.clone(),
            parts: chunks().into_iter().enumerate().map(part).collect(),
            source: Some(source.span()),
            target: Some(target.span()),
            submit,
        };
        self.worker.submit(submission, self.net.now_us() / 1_000);
        for _ in 0..100_000 {
            let now_us = self.net.now_us();
            self.server.step(now_us / 1_000).unwrap();
            self.worker.step(now_us / 1_000);
            if let Some(result) = state.poll() {
                return (result, given, target.to_vec());
            }
            self.net.advance_to(now_us + 100);
        }
        panic!("the operation did not end");
    }

    fn stats(&self) -> LaneStats {
        self.server.engine().stats()
    }
}

#[test]
fn a_flipped_bit_is_caught_and_repaired_by_sending_again() {
    for at in [0.0, 0.3, 1.0] {
        let mut pair = Pair::new(true, 2, at);
        for round in 1..=3 {
            let (result, given, landed) = pair.push_pull();
            assert_eq!(result.unwrap(), Version(round));
            assert!(landed == given, "round {round}, flipped at {at}");
        }
        assert_eq!((pair.stats().corrupt_batches, pair.stats().rounds), (2, 9));
        assert!(pair.worker.engine().stats().retries >= 2);
        assert_eq!(pair.worker.queue_mut().flips, 0);
    }
}

#[test]
fn without_checksums_it_goes_through() {
    let mut pair = Pair::new(false, 1, 0.3);
    let (result, given, landed) = pair.push_pull();
    assert_eq!(result.unwrap(), Version(1));
    assert!(landed != given, "the network of these tests changes nothing");
    assert_eq!(pair.stats().corrupt_batches, 0);
}

#[test]
fn what_changes_every_time_ends_with_an_error_that_says_so() {
    let mut pair = Pair::new(true, u32::MAX, 0.5);
    let (result, ..) = pair.push_pull();
    let error = result.unwrap_err();
    assert!(matches!(error, OpError::Refused { status: Status::Corrupt, .. }), "{error}");
    assert_eq!(pair.stats().contributions, 0, "nothing of it was reduced");
    // The path is mended: what follows is taken in its turn, whatever was given up before it.
    pair.worker.queue_mut().flips = 0;
    let round_of_its_own = pair.push_pull().0.unwrap_err();
    assert!(matches!(round_of_its_own, OpError::Deadline { .. }), "{round_of_its_own}");
}

#[test]
fn sound_payloads_pass_with_checksums() {
    let mut pair = Pair::new(true, 0, 0.0);
    for round in 1..=3 {
        let (result, given, landed) = pair.push_pull();
        assert_eq!(result.unwrap(), Version(round));
        assert!(landed == given);
    }
    assert_eq!((pair.stats().corrupt_batches, pair.worker.engine().stats().retries), (0, 0));
}
