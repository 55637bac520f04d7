//! Operations: submitted as the client does it, checked against the oracle when they end. Sources are
//! spoilt as soon as they are free, targets are looked at again in the end: reads and writes after an
//! operation's end show.

use super::cluster::Cluster;
use super::oracle::bits_hash;
use super::shape::{CHUNK_BYTES, counts, needed};
use fabric::Exclusive;
use gradwire_worker::encoder::Encoder;
use gradwire_worker::engine::{Coded, PartSpec, Submit};
use gradwire_worker::error::OpError;
use gradwire_worker::runtime::{OpState, Submission};
use proto_common::batch::{Count, OpKind, Reading};
use proto_common::element::Dtype;
use proto_common::ids::{Operation, Rank, Version};
use proto_common::mode::Mode;
use proto_common::tensor::{ChunkSpan, TensorSpec};
use std::sync::Arc;

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Contribute.
    Push,
    /// Land the round contributed to last.
    Pull,
    /// Both.
    PushPull,
    /// Set the initial value, or wait for it.
    Init,
}

impl Kind {
    fn wire(self) -> OpKind {
        match self {
            Self::Push => OpKind::Push,
            Self::Pull => OpKind::Pull,
            Self::PushPull => OpKind::PushPull,
            Self::Init => OpKind::Init,
        }
    }
}

/// An operation of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OpId {
    /// The worker.
    pub worker: u32,
    /// Count of its operations.
    pub index: usize,
}

/// How an operation ended, and when.
#[derive(Clone, Debug)]
pub struct Ended {
    /// Version or error.
    pub result: Result<Version, OpError>,
    /// Milliseconds from its submission.
    pub after_ms: u64,
    /// The first version that may be in the target, where weights landed.
    pub round: u64,
    /// The weights that landed.
    pub weights: Option<Vec<f32>>,
}

/// An operation as the harness knows it.
pub(super) struct Live {
    pub(super) tensor: usize,
    pub(super) kind: Kind,
    pub(super) round: u64,
    pub(super) since_ms: u64,
    state: Arc<OpState>,
    source: Option<Exclusive>,
    target: Option<Exclusive>,
    /// Bits of the target at the operation's end.
    landed: Option<u64>,
    pub(super) ended: Option<Ended>,
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

fn fill(buffer: &mut Exclusive, values: &[f32]) {
    for (bytes, value) in buffer.chunks_exact_mut(4).zip(values) {
        bytes.copy_from_slice(&value.to_le_bytes());
    }
}

/// With what no round makes.
fn poisoned(mut buffer: Exclusive) -> Exclusive {
    buffer.fill(0xAA);
    buffer
}

impl Cluster {
    /// Starts an operation, with its gradient or initial value from the oracle.
    pub fn submit(&mut self, worker: u32, tensor: usize, kind: Kind) -> OpId {
        let spec = self.shape.tensors[tensor].clone();
        let source = match kind {
            Kind::Init => Some(self.oracle.initial(tensor)),
            Kind::Push | Kind::PushPull => {
                let round = self.workers[worker as usize].numbers[tensor].1 + 1;
                Some(self.oracle.gradient(tensor, worker, round))
            }
            Kind::Pull => None,
        };
        // As the oracle's values are, the encoder keeps nothing from round to round.
        let encoder = Encoder::new(&spec, CHUNK_BYTES, Rank(worker)).filter(|_| kind.wire().contributes());
        let parts = self.parts(&spec, source.as_deref(), encoder.as_ref());
        let (now_ms, priority) = (self.net.now_us() / 1_000, self.rng.below(4) as i32);
        let placements = &self.shape.placements;
        let placement = placements[self.rng.below(placements.len() as u64) as usize];
        let w = &mut self.workers[worker as usize];
        let allocate = || w.pool.allocate(spec.bytes()).expect("a pool for all operations of a run");
        let source = source.map(|values| {
            let mut buffer = allocate();
            match encoder {
                Some(mut encoder) => {
                    let bytes = encoder.bytes();
                    encoder.encode(&values, 1, &mut buffer[..bytes]);
                }
                None => fill(&mut buffer, &values),
            }
            buffer
        });
        let target = kind.wire().lands().then(|| poisoned(allocate()));
        let (operations, rounds) = &mut w.numbers[tensor];
        *operations += 1;
        *rounds += u64::from(kind.wire().contributes());
        let (operation, round) = (Operation(*operations), if kind == Kind::Init { 0 } else { *rounds });
        let state = OpState::new(1);
        self.next_op += 1;
        let submit = Submit {
            view: false,
            exact: false,
            reading: Reading::default(),
            op: self.next_op,
            kind: kind.wire(),
            dtype: Dtype::F32,
            placement,
            operation,
            count: Count::Round(round),
            priority,
            timeout_ms: self.shape.timeout_ms,
            busy_ms: 0,
            payload: source.is_some() && (kind != Kind::Init || worker == 0),
            by_chunk: false,
        };
        let span = |buffer: &Option<Exclusive>| buffer.as_ref().map(Exclusive::span);
        let (from, to) = (span(&source), span(&target));
        let submission = Submission { state: state.clone(), submit, parts, source: from, target: to };
        w.lane.submit(submission, now_ms);
        let index = w.ops.len();
        w.open.insert(index);
        w.ops.push(Live {
            tensor,
            kind,
            round,
            since_ms: now_ms,
            state,
            source,
            target,
            landed: None,
            ended: None,
        });
        OpId { worker, index }
    }

    /// An operation's chunks. As the client does: a contribution to a dynamic tensor has as many bytes as it has.
    fn parts(&self, spec: &TensorSpec, source: Option<&[f32]>, encoder: Option<&Encoder>) -> Arc<[PartSpec]> {
        let whole = 4 * source.map_or(spec.elements, |values| values.len() as u64);
        let part = |(span, server): (ChunkSpan, Rank)| {
            let bytes = span.bytes.min(whole.saturating_sub(span.offset));
            let coded = encoder.map(|encoder| {
                let place = encoder.place(span.id.chunk);
                let (offset, bytes) = (place.start as u64, place.len() as u64);
                Coded { codec: encoder.codec().wire_id(), offset, bytes }
            });
            PartSpec { id: span.id, server, offset: span.offset, bytes, coded }
        };
        self.map.placed_chunks(spec.key).map(part).collect()
    }

    /// How an operation ended, if it has.
    #[must_use]
    pub fn ended(&self, op: OpId) -> Option<&Ended> {
        self.workers[op.worker as usize].ops[op.index].ended.as_ref()
    }

    /// What a worker's last landing of a tensor brought.
    #[must_use]
    pub fn last_weights(&self, worker: u32, tensor: usize) -> Option<Vec<f32>> {
        let ops = self.workers[worker as usize].ops.iter().rev().filter(|live| live.tensor == tensor);
        ops.filter_map(|live| live.ended.as_ref()).find_map(|ended| ended.weights.clone())
    }

    /// Looks at a worker's operations: which have ended, are they right, is any overdue?
    pub(super) fn collect(&mut self, worker: usize) {
        let now_ms = self.net.now_us() / 1_000;
        for index in self.workers[worker].open.clone() {
            let live = &mut self.workers[worker].ops[index];
            let after_ms = now_ms.saturating_sub(live.since_ms);
            let Some(result) = live.state.poll() else {
                // The server answers at the deadline, the worker gives it a second, lanes tick at times.
                let most_ms = u64::from(self.shape.timeout_ms) + 1_200;
                assert!(
                    after_ms <= most_ms,
                    "worker {worker} op {index} {:?} hangs: {after_ms} ms",
                    live.kind
                );
                continue;
            };
            self.workers[worker].open.remove(&index);
            self.end(worker, index, result, after_ms);
        }
    }

    fn end(&mut self, worker: usize, index: usize, result: Result<Version, OpError>, after_ms: u64) {
        let live = &mut self.workers[worker].ops[index];
        let (tensor, round) = (live.tensor, live.round);
        let weights = match &result {
            Ok(_) => live.target.as_deref().map(floats),
            Err(error) => {
                assert!(self.may_fail, "worker {worker} op {index} {:?}: {error}", live.kind);
                None
            }
        };
        if result.is_ok()
            && let Some(source) = &mut live.source
        {
            source.fill(0xFF);
        }
        live.landed = weights.as_deref().map(bits_hash);
        live.ended = Some(Ended { result: result.clone(), after_ms, round, weights: weights.clone() });
        if let (Ok(_), Kind::Pull, true) = (&result, live.kind, self.shape.tensors[tensor].dynamic)
            && self.reconnects == 0
        {
            let length = self.oracle.length(tensor, round);
            assert_eq!(
                live.state.landed_bytes(),
                4 * length as u64,
                "worker {worker} op {index}: its length"
            );
        }
        if let Ok(version) = result {
            if self.shape.tensors[tensor].settled_backup() > 0 {
                // As the client does.
                let rounds = &mut self.workers[worker].numbers[tensor].1;
                *rounds = (*rounds).max(version.0);
            }
            assert!(version.0 >= round, "worker {worker} op {index}: version {version} for round {round}");
            if let Some(weights) = weights {
                self.check_weights(worker, tensor, round, &weights);
            }
        }
    }

    /// Every chunk has the bits of one version: the operation's own round. Only after a break an answer can
    /// come so late that a later version is in force.
    fn check_weights(&mut self, worker: usize, tensor: usize, round: u64, weights: &[f32]) {
        let spec = self.shape.tensors[tensor].clone();
        if !self.compares {
            return;
        }
        if counts(&spec) {
            return self.check_counts(worker, tensor, round, weights);
        }
        let disturbed = self.reconnects > 0;
        let chunks: Vec<_> = self.map.placed_chunks(spec.key).collect();
        for (span, server) in chunks {
            let (from, to) = ((span.offset / 4) as usize, ((span.offset + span.bytes) / 4) as usize);
            let engine = self.servers[server.0 as usize].lane.engine();
            let newest = engine.version(span.id).expect("assigned").0;
            let latest = if disturbed { newest } else { round };
            let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
            // Of a dynamic tensor only what a version has; the rest of the target is as it was.
            let found = (round..=latest).any(|version| {
                let known = self.oracle.weights(tensor, version);
                let (from, to) = (from.min(known.len()), to.min(known.len()));
                bits(&known[from..to]) == bits(&weights[from..to])
            });
            assert!(
                found,
                "worker {worker}, tensor {tensor} chunk {}: not the weights of version {round} to {latest} (server {server} has {newest})",
                span.id.chunk
            );
        }
    }

    /// Every chunk says which version it is: one with the worker's own contributions, and of each other's all but as many
    /// as the bound says.
    fn check_counts(&self, worker: usize, tensor: usize, round: u64, weights: &[f32]) {
        let spec = &self.shape.tensors[tensor];
        let of_others = match spec.settled_mode() {
            Mode::Bounded(bound) => round.saturating_sub(u64::from(bound)),
            Mode::Sync | Mode::Async => 0,
        };
        let least = round + of_others * u64::from(self.shape.workers - 1);
        for (span, server) in self.map.placed_chunks(spec.key) {
            let (from, to) = ((span.offset / 4) as usize, ((span.offset + span.bytes) / 4) as usize);
            let newest = self.servers[server.0 as usize].lane.engine().version(span.id).expect("assigned").0;
            let chunk = &weights[from..to];
            let count = chunk[0] as u64;
            assert!(chunk.iter().all(|weight| *weight == count as f32), "a chunk is of one version");
            assert!(
                (least..=newest).contains(&count),
                "worker {worker}, tensor {tensor} chunk {}: {count} is not {least} to {newest}",
                span.id.chunk
            );
        }
    }

    /// Nothing was written into a target after its operation's end.
    pub(super) fn check_targets(&self) {
        for (rank, worker) in self.workers.iter().enumerate() {
            for (index, live) in worker.ops.iter().enumerate() {
                if let (Some(landed), Some(target)) = (live.landed, live.target.as_deref()) {
                    assert_eq!(landed, bits_hash(&floats(target)), "a late write: worker {rank} op {index}");
                }
            }
        }
    }

    /// The version that what was submitted makes: of rounds the least that as many workers have contributed to as a round
    /// takes, else one of each contribution.
    pub(super) fn submitted(&self, tensor: usize) -> u64 {
        let spec = &self.shape.tensors[tensor];
        let mut made: Vec<u64> = self.workers.iter().map(|worker| worker.numbers[tensor].1).collect();
        if !spec.settled_mode().has_rounds() {
            return made.iter().sum();
        }
        made.sort_unstable_by(|a, b| b.cmp(a));
        made[needed(spec, self.shape.workers) as usize - 1]
    }

    /// Version of a tensor: the least of its chunks'.
    #[must_use]
    pub fn version(&self, tensor: usize) -> u64 {
        let chunks = self.map.placed_chunks(self.shape.tensors[tensor].key);
        let version =
            |server: Rank, id| self.servers[server.0 as usize].lane.engine().version(id).map_or(0, |v| v.0);
        chunks.map(|(span, server)| version(server, span.id)).min().unwrap_or(0)
    }
}
