//! A declared tensor as the client holds it: its spec, its chunks by lane, its operation numbers.

use super::Element;
use super::going::Waiting;
use crate::encoder::Encoder;
use crate::engine::{Coded, PartSpec};
use crate::error::ClientError;
use crate::runtime::{OpBuffers, Shown, Spares, Viewing};
use fabric::lock;
use proto_common::batch::OpKind;
use proto_common::ids::{Incarnation, Key, Operation, Rank};
use proto_common::plan::Placement;
use proto_common::shard_map::ShardMap;
use proto_common::tensor::TensorSpec;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// A declared tensor. Clones share it.
#[derive(Clone, Debug)]
pub struct Tensor {
    declared: Arc<Declared>,
    /// Whether operations return the version of each chunk.
    by_chunk: bool,
}

#[derive(Debug)]
struct Declared {
    spec: TensorSpec,
    /// The client that declared it: operation numbers are a client's own.
    owner: Incarnation,
    lanes: Vec<Arc<[PartSpec]>>,
    coded: Option<CodedTensor>,
    /// Where sums of this host's contributions are made.
    sums: Spares,
    numbers: Mutex<Numbers>,
    viewing: Viewing,
    /// The newest version that an operation has returned. Only for tensors with backup workers, because their rounds can end
    /// without this worker.
    seen: Option<Arc<AtomicU64>>,
    /// A place in [`Placement::ALL`].
    placement: AtomicU8,
}

/// Counts of one worker's operations on one key, and what it keeps of its contributions.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    operations: u64,
    /// Contributions so far.
    pub(super) rounds: u64,
    /// The next pull must return the weights of that round, and no newer ones.
    pub(super) is_exact: bool,
    pub(super) encoder: Option<Encoder>,
    /// Operations that have a number and wait at the gate of this host, with those behind them.
    pub(super) waiting: Waiting,
}

impl Numbers {
    /// A restarted worker continues: its next contribution is to the round after this one. With `exactly` the next pull returns
    /// the weights of this round, even if the other workers have finished one more.
    pub(super) fn go_on_after(&mut self, round: u64, exactly: bool) {
        (self.rounds, self.is_exact) = (round, exactly);
    }

    /// Must this operation return one exact version? Only the first operation that returns weights may have to.
    pub(super) fn exactly(&mut self, kind: OpKind) -> bool {
        let is_exact = self.is_exact && kind == OpKind::Pull;
        self.is_exact &= !kind.lands();
        is_exact
    }

    /// Number and round of the next operation. The round of a pull is the one that this worker contributed to last. If rounds
    /// have ended without this worker (backup workers), it continues after the newest version that it has `seen`.
    pub(super) fn next(&mut self, kind: OpKind, seen: u64) -> (Operation, u64) {
        self.operations += 1;
        self.rounds = self.rounds.max(seen);
        self.rounds += u64::from(kind.contributes());
        let round = if kind == OpKind::Init { 0 } else { self.rounds };
        (Operation(self.operations), round)
    }
}

/// What a tensor with a codec has beside a plain one.
#[derive(Debug)]
pub(super) struct CodedTensor {
    /// Its chunks by lane, as contributions send them.
    pub(super) lanes: Vec<Arc<[PartSpec]>>,
    /// Bytes of a contribution, encoded.
    pub(super) bytes: u64,
    pub(super) spares: Spares,
}

impl CodedTensor {
    /// The chunks of a plain tensor, and where the encoder puts them.
    fn new(encoder: &Encoder, plain: &[Arc<[PartSpec]>]) -> Self {
        let codec = encoder.codec().wire_id();
        let part = |part: &PartSpec| {
            let place = encoder.place(part.id.chunk);
            let coded = Coded { codec, offset: place.start as u64, bytes: place.len() as u64 };
            PartSpec { coded: Some(coded), ..*part }
        };
        let lanes = plain.iter().map(|parts| parts.iter().map(part).collect()).collect();
        Self { lanes, bytes: encoder.bytes() as u64, spares: Spares::default() }
    }
}

impl Tensor {
    pub(super) fn new(
        (owner, rank): (Incarnation, Rank),
        spec: &TensorSpec,
        map: &ShardMap,
        lanes: usize,
    ) -> Self {
        let mut parts: Vec<Vec<PartSpec>> = vec![Vec::new(); lanes];
        for (span, server) in map.placed_chunks(spec.key) {
            let lane = usize::from(map.lane_of(span.id).0);
            let (offset, bytes) = (span.offset, span.bytes);
            parts[lane].push(PartSpec { id: span.id, server, offset, bytes, coded: None });
        }
        let lanes: Vec<_> = parts.into_iter().map(Into::into).collect();
        let encoder = Encoder::new(spec, map.chunk_bytes(), rank);
        let coded = encoder.as_ref().map(|encoder| CodedTensor::new(encoder, &lanes));
        let numbers = Mutex::new(Numbers { encoder, ..Numbers::default() });
        let (spec, placement) = (spec.clone(), AtomicU8::default());
        let goes_on = spec.settled_backup() > 0;
        let seen = goes_on.then(Arc::default);
        let viewing = Viewing::default();
        let sums = Spares::default();
        let declared = Declared { spec, owner, lanes, coded, sums, numbers, viewing, seen, placement };
        Self { declared: Arc::new(declared), by_chunk: false }
    }

    /// The declaration.
    #[must_use]
    pub fn spec(&self) -> &TensorSpec {
        &self.declared.spec
    }

    /// Its key.
    #[must_use]
    pub fn key(&self) -> Key {
        self.declared.spec.key
    }

    /// Its size in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.declared.spec.bytes()
    }

    /// Bytes of a contribution as it is sent; with a codec fewer than the tensor's.
    #[must_use]
    pub fn sent_bytes(&self) -> u64 {
        self.declared.coded.as_ref().map_or(self.bytes(), |coded| coded.bytes)
    }

    /// The same tensor, with operations that also return the version of each chunk: [`super::Ended::chunk_versions`].
    #[must_use]
    pub fn with_chunk_versions(&self) -> Self {
        Self { by_chunk: true, ..self.clone() }
    }

    /// Gives an operation room for the version of each chunk, if the caller asked for them, and the place for the newest version
    /// that it returns, if the tensor has backup workers.
    pub(super) fn begin_telling(&self, buffers: &mut OpBuffers) {
        let room = || Vec::with_capacity(self.lanes().iter().map(|parts| parts.len()).sum());
        (buffers.versions, buffers.seen) = (self.by_chunk.then(room), self.declared.seen.clone());
    }

    /// The newest version that an operation has returned, for tensors with backup workers; otherwise 0.
    pub(super) fn seen(&self) -> u64 {
        self.declared.seen.as_ref().map_or(0, |seen| seen.load(Ordering::Acquire))
    }

    /// What it needs for an operation that sends encoded bytes.
    pub(super) fn coded(&self, kind: OpKind) -> Option<&CodedTensor> {
        self.declared.coded.as_ref().filter(|_| kind.contributes())
    }

    /// Where sums of this host's contributions are made.
    pub(super) fn sums(&self) -> &Spares {
        &self.declared.sums
    }

    /// The placement of its contributions.
    #[must_use]
    pub fn placement(&self) -> Placement {
        let number = usize::from(self.declared.placement.load(Ordering::Relaxed));
        Placement::ALL.get(number).copied().unwrap_or_default()
    }

    pub(super) fn set_placement(&self, placement: Placement) {
        self.declared.placement.store(placement as u8, Ordering::Relaxed);
    }

    pub(super) fn is_of(&self, client: Incarnation) -> bool {
        self.declared.owner == client
    }

    pub(super) fn lanes(&self) -> &[Arc<[PartSpec]>] {
        &self.declared.lanes
    }

    /// May a worker read its weights in the servers' memory, as a view? A view blocks the round after the next one, because both
    /// buffers of the chunk are then in use. That delays nobody else only if each round waits for every worker anyway: in mode
    /// sync without backup workers.
    pub(super) fn may_be_shown(&self) -> bool {
        let spec = self.spec();
        !spec.dynamic && spec.settled_mode().has_rounds() && spec.settled_backup() == 0
    }

    /// Which of its weights are read as views.
    pub(super) fn viewing(&self) -> &Viewing {
        &self.declared.viewing
    }

    /// An operation is about to ask for a view of it.
    pub(super) fn begin_view(&self, operation: Operation) -> Shown {
        self.declared.viewing.begin(operation, self.lanes().iter().map(|parts| parts.len()).sum())
    }

    /// May an operation on it be in flight?
    pub(super) fn is_busy(&self) -> bool {
        self.declared.viewing.is_busy()
    }

    /// Checks that a buffer has the tensor's length. With `shorter` it may be shorter.
    pub(super) fn check_length(&self, have: u64, shorter: bool) -> Result<(), ClientError> {
        let (want, dtype) = (self.bytes(), self.spec().dtype);
        let fits = shorter && have <= want && have.is_multiple_of(dtype.bytes() as u64);
        if want != have && !fits {
            return Err(self.wrong_length(want, have));
        }
        Ok(())
    }

    /// As [`Tensor::check_length`], of so many elements of a type.
    pub(super) fn check_typed<T: Element>(&self, elements: usize, shorter: bool) -> Result<(), ClientError> {
        let want = self.spec().dtype;
        if want != T::DTYPE {
            let (key, name) = (self.key(), self.name());
            return Err(ClientError::WrongDtype { key, name, want, have: T::DTYPE });
        }
        self.check_length((elements * size_of::<T>()) as u64, shorter)
    }

    /// A buffer has another length than it is to have.
    pub(super) fn wrong_length(&self, want: u64, have: u64) -> ClientError {
        let (key, name, dtype) = (self.key(), self.name(), self.spec().dtype);
        ClientError::WrongLength { key, name, dtype, want, have }
    }

    /// The tensor, or a buffer for it, belongs to another client.
    pub(super) fn foreign(&self, what: &'static str, source_of: &'static str) -> ClientError {
        ClientError::Foreign { key: self.key(), name: self.name(), what, source_of }
    }

    /// Its name, for errors.
    pub(super) fn name(&self) -> String {
        self.spec().name.clone()
    }

    /// Held from numbering an operation until all lanes have it, so that they all see one order.
    pub(super) fn numbers(&self) -> MutexGuard<'_, Numbers> {
        lock(&self.declared.numbers)
    }
}
