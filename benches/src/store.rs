//! The parameters of the baselines' servers: sums contributions, applies SGD, says who gets what answer.
//!
//! No I/O and no runtime, so it is tested alone. One lock around it makes it the server's one data thread:
//! never is more than one chunk reduced at a time, as with one data thread of Gradwire's.

use crate::kernel::{self, ELEMENT_BYTES};
use crate::workload::{LEARNING_RATE, MAX_TENSOR_BYTES, MAX_TENSORS, Op, WorkSpec};
use bytes::{Bytes, BytesMut};
use serde::{Deserialize, Serialize};

/// What a message asks for, or answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// First on every stream: the work to come, as JSON.
    Declare,
    /// A chunk's gradient; answered without payload when its round is applied.
    Push,
    /// Asks for a chunk's weights.
    Pull,
    /// A chunk's gradient; answered with the weights when its round is applied.
    PushPull,
}

impl Kind {
    /// As it stands in a message.
    pub(crate) fn code(self) -> u32 {
        match self {
            Kind::Declare => 1,
            Kind::Push => 2,
            Kind::Pull => 3,
            Kind::PushPull => 4,
        }
    }

    /// The kind that a message names, if it is one.
    pub(crate) fn from_code(code: u32) -> Option<Self> {
        [Kind::Declare, Kind::Push, Kind::Pull, Kind::PushPull].into_iter().find(|kind| kind.code() == code)
    }
}

impl From<Op> for Kind {
    fn from(op: Op) -> Self {
        match op {
            Op::Push => Kind::Push,
            Op::Pull => Kind::Pull,
            Op::PushPull => Kind::PushPull,
        }
    }
}

/// What a message is about: a chunk of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    /// What it asks for, or answers.
    pub(crate) kind: Kind,
    /// The tensor.
    pub(crate) key: u32,
    /// The chunk of the tensor.
    pub(crate) chunk: u32,
}

/// One message.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Frame {
    /// What it is about.
    pub(crate) head: Head,
    /// f32 in wire order, or nothing.
    pub(crate) payload: Bytes,
}

/// What a worker says first on each stream; all workers of one session say the same but for their rank.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Declare {
    /// A new number for each new work; the first worker to name it resets the parameters.
    pub(crate) session: u64,
    /// Who speaks.
    pub(crate) rank: u32,
    /// Contributions that make a round.
    pub(crate) workers: u32,
    /// Bytes of each tensor.
    pub(crate) tensors: Vec<u64>,
    /// Bytes of each chunk but a tensor's last.
    pub(crate) chunk_bytes: u32,
    /// Which chunks this server holds: those whose number, counted over all tensors, leaves this rest when divided by
    /// `servers`.
    pub(crate) server: u32,
    /// Servers the chunks are spread over.
    pub(crate) servers: u32,
    /// SGD's learning rate.
    pub(crate) learning_rate: f32,
}

/// The most workers of a session.
const MAX_WORKERS: u32 = 64;

/// The most chunks of a session over all tensors.
const MAX_CHUNKS: u64 = 1 << 22;

impl Declare {
    /// What a worker declares for a work, to server 0.
    pub(crate) fn new(session: u64, rank: u32, spec: &WorkSpec, chunk_bytes: u32) -> Self {
        Self {
            session,
            rank,
            workers: spec.workers,
            tensors: spec.tensors.clone(),
            chunk_bytes,
            server: 0,
            servers: spec.servers,
            learning_rate: LEARNING_RATE,
        }
    }

    /// Chunks of one tensor, on all servers.
    pub(crate) fn chunks_of(&self, key: u32) -> u32 {
        let bytes = self.tensors.get(key as usize).copied().unwrap_or(0);
        u32::try_from(bytes.div_ceil(u64::from(self.chunk_bytes))).unwrap_or(u32::MAX)
    }

    /// Bytes of one chunk.
    pub(crate) fn chunk_len(&self, key: u32, chunk: u32) -> usize {
        let start = u64::from(chunk) * u64::from(self.chunk_bytes);
        let bytes = self.tensors.get(key as usize).copied().unwrap_or(0);
        bytes.saturating_sub(start).min(u64::from(self.chunk_bytes)) as usize
    }

    /// Chunks of all tensors before this one, and at the end those of all.
    pub(crate) fn first_chunks(&self) -> Vec<u64> {
        let mut next = 0;
        let mut first = vec![next];
        for key in 0..self.tensors.len() as u32 {
            next += u64::from(self.chunks_of(key));
            first.push(next);
        }
        first
    }

    /// The most answers that can be on their way to one worker, with one operation outstanding per tensor.
    pub(crate) fn answers_in_flight(&self) -> usize {
        self.first_chunks().last().map_or(1, |chunks| *chunks as usize + 1)
    }

    /// Refuses what this server could not hold.
    pub(crate) fn check(&self) -> Result<(), Refusal> {
        let is_tensor = |bytes: &u64| {
            (1..=MAX_TENSOR_BYTES).contains(bytes) && bytes.is_multiple_of(ELEMENT_BYTES as u64)
        };
        let good = self.rank < self.workers
            && (1..=MAX_WORKERS).contains(&self.workers)
            && (1..=MAX_TENSORS as usize).contains(&self.tensors.len())
            && self.server < self.servers
            && self.tensors.iter().all(is_tensor)
            && self.chunk_bytes >= ELEMENT_BYTES as u32
            && self.chunk_bytes.is_multiple_of(ELEMENT_BYTES as u32)
            && self.first_chunks().last().is_some_and(|chunks| *chunks <= MAX_CHUNKS);
        if good { Ok(()) } else { Err(Refusal("a declaration out of bounds")) }
    }
}

/// Why a message was not obeyed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refusal(pub(crate) &'static str);

/// One chunk's parameters and the round in progress.
#[derive(Debug, Default)]
struct Chunk {
    /// The published weights; answers share them, so a new round is written elsewhere.
    weights: Bytes,
    /// The weights before: their memory serves the next round once no answer uses it any more.
    spare: Bytes,
    /// The sum so far; empty with one worker, which needs none.
    sum: Vec<f32>,
    /// Who contributed to this round, and whether they want the weights.
    contributed: Vec<(u32, Kind)>,
}

/// All parameters of a session.
#[derive(Debug)]
pub(crate) struct Store {
    declared: Declare,
    first_chunks: Vec<u64>,
    chunks: Vec<Chunk>,
}

impl Store {
    /// Zeroed parameters for a declaration that was checked.
    pub(crate) fn new(declared: Declare) -> Self {
        let first_chunks = declared.first_chunks();
        let all = (0..declared.tensors.len() as u32)
            .flat_map(|key| (0..declared.chunks_of(key)).map(move |chunk| (key, chunk)));
        let chunks = (0_u64..).zip(all).map(|(number, (key, chunk))| {
            if number % u64::from(declared.servers) != u64::from(declared.server) {
                return Chunk::default();
            }
            let len = declared.chunk_len(key, chunk);
            Chunk {
                weights: BytesMut::zeroed(len).freeze(),
                spare: BytesMut::zeroed(len).freeze(),
                sum: if declared.workers > 1 { vec![0.0; len / ELEMENT_BYTES] } else { Vec::new() },
                contributed: Vec::with_capacity(declared.workers as usize),
            }
        });
        let chunks = chunks.collect();
        Self { declared, first_chunks, chunks }
    }

    /// The session these parameters belong to.
    pub(crate) fn session(&self) -> u64 {
        self.declared.session
    }

    /// Obeys one message and appends the answers that are due, each with the rank it goes to.
    ///
    /// # Errors
    /// A message that breaks the protocol; nothing was changed by it.
    pub(crate) fn apply(
        &mut self,
        rank: u32,
        head: Head,
        payload: &[u8],
        answers: &mut Vec<(u32, Frame)>,
    ) -> Result<(), Refusal> {
        let Head { kind, key, chunk } = head;
        if chunk >= self.declared.chunks_of(key) {
            return Err(Refusal("a key or chunk that was not declared"));
        }
        let place = self.first_chunks[key as usize] + u64::from(chunk);
        let chunk = &mut self.chunks[place as usize];
        if chunk.weights.is_empty() {
            return Err(Refusal("a chunk of another server"));
        }
        match kind {
            Kind::Declare => return Err(Refusal("a second declaration on one stream")),
            Kind::Pull => {
                answers.push((rank, Frame { head, payload: chunk.weights.clone() }));
                return Ok(());
            }
            Kind::Push | Kind::PushPull => {}
        }
        if payload.len() != chunk.weights.len() {
            return Err(Refusal("a gradient of another length than its chunk"));
        }
        if chunk.contributed.iter().any(|(other, _)| *other == rank) {
            return Err(Refusal("two contributions of one worker to one round"));
        }
        chunk.contributed.push((rank, kind));
        chunk.contribute(payload, &self.declared);
        if chunk.contributed.len() == self.declared.workers as usize {
            for (rank, kind) in chunk.contributed.drain(..) {
                let payload = if kind == Kind::Push { Bytes::new() } else { chunk.weights.clone() };
                answers.push((rank, Frame { head: Head { kind, ..head }, payload }));
            }
        }
        Ok(())
    }
}

impl Chunk {
    /// Reduces one gradient of the right length; the last of a round publishes new weights.
    fn contribute(&mut self, gradient: &[u8], declared: &Declare) {
        let workers = declared.workers as usize;
        match self.contributed.len() {
            count if count == workers => self.publish(gradient, declared),
            1 => kernel::reduce_set(&mut self.sum, gradient),
            _ => kernel::reduce_add(&mut self.sum, gradient),
        }
    }

    fn publish(&mut self, gradient: &[u8], declared: &Declare) {
        let rate = declared.learning_rate / declared.workers as f32;
        // An answer still being sent keeps the old memory: then this round takes new memory.
        let mut new = std::mem::take(&mut self.spare)
            .try_into_mut()
            .unwrap_or_else(|_| BytesMut::zeroed(self.weights.len()));
        if declared.workers == 1 {
            kernel::sgd_only(&mut new, &self.weights, gradient, rate);
        } else {
            kernel::sgd_last(&mut new, &self.weights, &self.sum, gradient, rate);
        }
        self.spare = std::mem::replace(&mut self.weights, new.freeze());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn declare(workers: u32) -> Declare {
        Declare {
            session: 1,
            rank: 0,
            workers,
            tensors: vec![20, 20],
            chunk_bytes: 8,
            server: 0,
            servers: 1,
            learning_rate: 0.5,
        }
    }

    fn wire(values: &[f32]) -> Bytes {
        values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>().into()
    }

    fn frame(kind: Kind, key: u32, chunk: u32, values: &[f32]) -> Frame {
        Frame { head: Head { kind, key, chunk }, payload: wire(values) }
    }

    fn apply(
        store: &mut Store,
        rank: u32,
        frame: &Frame,
        answers: &mut Vec<(u32, Frame)>,
    ) -> Result<(), Refusal> {
        store.apply(rank, frame.head, &frame.payload, answers)
    }

    #[test]
    fn every_kind_has_its_own_code() {
        for code in 1..=4 {
            assert_eq!(Kind::from_code(code).map(Kind::code), Some(code));
        }
        assert_eq!((Kind::from_code(0), Kind::from_code(5)), (None, None));
    }

    #[test]
    fn chunks_are_counted_over_tensors_of_any_size_and_spread_over_servers() {
        let declared = Declare { tensors: vec![4, 20, 8], servers: 2, ..declare(1) };
        assert_eq!(declared.first_chunks(), [0, 1, 4, 5]);
        assert_eq!((declared.chunk_len(1, 2), declared.chunk_len(0, 0), declared.chunk_len(3, 0)), (4, 4, 0));
        for server in 0..2 {
            let mut store = Store::new(Declare { server, ..declared.clone() });
            let mut answers = Vec::new();
            let places = [(0, 0, 1), (1, 0, 2), (1, 1, 2), (1, 2, 1), (2, 0, 2)];
            for (number, (key, chunk, elements)) in places.into_iter().enumerate() {
                let values = vec![1.0; elements];
                let taken = apply(&mut store, 0, &frame(Kind::Push, key, chunk, &values), &mut answers);
                assert_eq!(taken.is_ok(), number as u32 % 2 == server, "chunk {number} at server {server}");
            }
        }
    }

    #[test]
    fn a_round_completes_with_the_last_worker_and_answers_all() {
        let mut store = Store::new(declare(3));
        let mut answers = Vec::new();
        apply(&mut store, 2, &frame(Kind::PushPull, 1, 0, &[3.0, 6.0]), &mut answers).expect("first");
        apply(&mut store, 0, &frame(Kind::Push, 1, 0, &[3.0, 0.0]), &mut answers).expect("second");
        assert!(answers.is_empty());
        apply(&mut store, 1, &frame(Kind::PushPull, 1, 0, &[6.0, 0.0]), &mut answers).expect("third");
        let weights = [-2.0, -1.0];
        assert_eq!(
            answers,
            [
                (2, frame(Kind::PushPull, 1, 0, &weights)),
                (0, frame(Kind::Push, 1, 0, &[])),
                (1, frame(Kind::PushPull, 1, 0, &weights)),
            ]
        );
        answers.clear();
        apply(&mut store, 0, &frame(Kind::Pull, 1, 0, &[]), &mut answers).expect("pull");
        assert_eq!(answers, [(0, frame(Kind::Pull, 1, 0, &weights))]);
    }

    #[test]
    fn published_weights_never_change_under_an_answer() {
        let mut store = Store::new(declare(1));
        let mut answers = Vec::new();
        for _ in 0..4 {
            apply(&mut store, 0, &frame(Kind::PushPull, 0, 2, &[1.0]), &mut answers).expect("a round");
        }
        let weights: Vec<Bytes> = answers.into_iter().map(|(_, frame)| frame.payload).collect();
        assert_eq!(weights, [wire(&[-0.5]), wire(&[-1.0]), wire(&[-1.5]), wire(&[-2.0])]);
    }

    #[test]
    fn what_breaks_the_protocol_is_refused() {
        let mut store = Store::new(Declare { servers: 2, ..declare(2) });
        let mut answers = Vec::new();
        let refused = [
            frame(Kind::Push, 2, 0, &[1.0, 1.0]),
            frame(Kind::Push, 0, 3, &[1.0, 1.0]),
            frame(Kind::Push, 0, 1, &[1.0, 1.0]),
            frame(Kind::Push, 0, 0, &[1.0]),
            frame(Kind::Declare, 0, 0, &[1.0, 1.0]),
        ];
        for bad in &refused {
            assert!(apply(&mut store, 0, bad, &mut answers).is_err(), "{bad:?}");
        }
        let good = frame(Kind::Push, 0, 0, &[1.0, 1.0]);
        assert!(apply(&mut store, 0, &good, &mut answers).is_ok());
        assert!(apply(&mut store, 0, &good, &mut answers).is_err(), "twice in one round");
        assert!(answers.is_empty());
    }

    #[test]
    fn declarations_out_of_bounds_are_refused() {
        assert!(declare(1).check().is_ok());
        assert!(declare(MAX_WORKERS).check().is_ok());
        for bad in [
            declare(0),
            declare(MAX_WORKERS + 1),
            Declare { tensors: Vec::new(), ..declare(1) },
            Declare { tensors: vec![6], ..declare(1) },
            Declare { tensors: vec![4; MAX_TENSORS as usize + 1], ..declare(1) },
            Declare { chunk_bytes: 0, ..declare(1) },
            Declare { server: 1, ..declare(1) },
            Declare { tensors: vec![MAX_TENSOR_BYTES; 64], ..declare(1) },
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
    }
}
