//! The baseline server's parameters: sums contributions, applies SGD, says who gets what answer.
//!
//! No I/O and no runtime, so it is tested alone. One lock around it makes it the server's one data thread:
//! never is more than one chunk reduced at a time, as with one data thread of Gradwire's.

use super::codec::{Frame, Kind};
use crate::kernel::{self, ELEMENT_BYTES};
use crate::workload::{MAX_INFLIGHT, MAX_TENSOR_BYTES};
use bytes::{Bytes, BytesMut};
use serde::{Deserialize, Serialize};

/// What a worker says first on each stream; all workers of one session say the same but for their rank.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Declare {
    /// A new number for each new work; the first worker to name it resets the parameters.
    pub(crate) session: u64,
    /// Who speaks.
    pub(crate) rank: u32,
    /// Contributions that make a round.
    pub(crate) workers: u32,
    /// Tensors.
    pub(crate) keys: u32,
    /// Bytes of each tensor.
    pub(crate) key_bytes: u64,
    /// Bytes of each chunk but a tensor's last.
    pub(crate) chunk_bytes: u32,
    /// Which chunks this server holds: those whose number leaves this rest when divided by `servers`.
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
    /// Chunks of one tensor, on all servers.
    pub(crate) fn chunks_per_key(&self) -> u64 {
        self.key_bytes.div_ceil(u64::from(self.chunk_bytes))
    }

    /// Bytes of one chunk.
    pub(crate) fn chunk_len(&self, chunk: u64) -> usize {
        let start = chunk * u64::from(self.chunk_bytes);
        self.key_bytes.saturating_sub(start).min(u64::from(self.chunk_bytes)) as usize
    }

    /// The most answers that can be on their way to one worker, with one operation outstanding per tensor.
    pub(crate) fn answers_in_flight(&self) -> usize {
        (u64::from(self.keys) * self.chunks_per_key()) as usize + 1
    }

    /// Refuses what this server could not hold.
    pub(crate) fn check(&self) -> Result<(), Refusal> {
        let good = self.rank < self.workers
            && (1..=MAX_WORKERS).contains(&self.workers)
            && (1..=MAX_INFLIGHT).contains(&self.keys)
            && self.server < self.servers
            && self.key_bytes > 0
            && self.key_bytes <= MAX_TENSOR_BYTES
            && self.key_bytes.is_multiple_of(ELEMENT_BYTES as u64)
            && self.chunk_bytes >= ELEMENT_BYTES as u32
            && self.chunk_bytes.is_multiple_of(ELEMENT_BYTES as u32)
            && u64::from(self.keys) * self.chunks_per_key() <= MAX_CHUNKS;
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
    chunks: Vec<Chunk>,
}

impl Store {
    /// Zeroed parameters for a declaration that was checked.
    pub(crate) fn new(declared: Declare) -> Self {
        let chunks = (0..u64::from(declared.keys) * declared.chunks_per_key()).map(|index| {
            let chunk = index % declared.chunks_per_key();
            if chunk % u64::from(declared.servers) != u64::from(declared.server) {
                return Chunk::default();
            }
            let len = declared.chunk_len(chunk);
            Chunk {
                weights: BytesMut::zeroed(len).freeze(),
                spare: BytesMut::zeroed(len).freeze(),
                sum: if declared.workers > 1 { vec![0.0; len / ELEMENT_BYTES] } else { Vec::new() },
                contributed: Vec::with_capacity(declared.workers as usize),
            }
        });
        Self { declared, chunks: chunks.collect() }
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
        frame: &Frame,
        answers: &mut Vec<(u32, Frame)>,
    ) -> Result<(), Refusal> {
        let place = u64::from(frame.key) * self.declared.chunks_per_key() + u64::from(frame.chunk);
        if frame.key >= self.declared.keys || u64::from(frame.chunk) >= self.declared.chunks_per_key() {
            return Err(Refusal("a key or chunk that was not declared"));
        }
        let chunk = &mut self.chunks[place as usize];
        if chunk.weights.is_empty() {
            return Err(Refusal("a chunk of another server"));
        }
        match frame.kind {
            Kind::Declare => return Err(Refusal("a second declaration on one stream")),
            Kind::Pull => {
                answers.push((rank, Frame { payload: chunk.weights.clone(), ..frame.clone() }));
                return Ok(());
            }
            Kind::Push | Kind::PushPull => {}
        }
        if frame.payload.len() != chunk.weights.len() {
            return Err(Refusal("a gradient of another length than its chunk"));
        }
        if chunk.contributed.iter().any(|(other, _)| *other == rank) {
            return Err(Refusal("two contributions of one worker to one round"));
        }
        chunk.contributed.push((rank, frame.kind));
        chunk.contribute(&frame.payload, &self.declared);
        if chunk.contributed.len() == self.declared.workers as usize {
            for (rank, kind) in chunk.contributed.drain(..) {
                let payload = if kind == Kind::Push { Bytes::new() } else { chunk.weights.clone() };
                answers.push((rank, Frame { kind, key: frame.key, chunk: frame.chunk, payload }));
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
            keys: 2,
            key_bytes: 20,
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
        Frame { kind, key, chunk, payload: wire(values) }
    }

    #[test]
    fn a_round_completes_with_the_last_worker_and_answers_all() {
        let mut store = Store::new(declare(3));
        let mut answers = Vec::new();
        store.apply(2, &frame(Kind::PushPull, 1, 0, &[3.0, 6.0]), &mut answers).expect("first");
        store.apply(0, &frame(Kind::Push, 1, 0, &[3.0, 0.0]), &mut answers).expect("second");
        assert!(answers.is_empty());
        store.apply(1, &frame(Kind::PushPull, 1, 0, &[6.0, 0.0]), &mut answers).expect("third");
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
        store.apply(0, &frame(Kind::Pull, 1, 0, &[]), &mut answers).expect("pull");
        assert_eq!(answers, [(0, frame(Kind::Pull, 1, 0, &weights))]);
    }

    #[test]
    fn published_weights_never_change_under_an_answer() {
        let mut store = Store::new(declare(1));
        let mut answers = Vec::new();
        for _ in 0..4 {
            store.apply(0, &frame(Kind::PushPull, 0, 2, &[1.0]), &mut answers).expect("a round");
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
            assert!(store.apply(0, bad, &mut answers).is_err(), "{bad:?}");
        }
        let good = frame(Kind::Push, 0, 0, &[1.0, 1.0]);
        assert!(store.apply(0, &good, &mut answers).is_ok());
        assert!(store.apply(0, &good, &mut answers).is_err(), "twice in one round");
        assert!(answers.is_empty());
    }

    #[test]
    fn declarations_out_of_bounds_are_refused() {
        assert!(declare(1).check().is_ok());
        assert!(declare(MAX_WORKERS).check().is_ok());
        for bad in [
            declare(0),
            declare(MAX_WORKERS + 1),
            Declare { keys: 0, ..declare(1) },
            Declare { key_bytes: 6, ..declare(1) },
            Declare { chunk_bytes: 0, ..declare(1) },
            Declare { server: 1, ..declare(1) },
            Declare { key_bytes: MAX_TENSOR_BYTES, ..declare(1) },
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
    }
}
