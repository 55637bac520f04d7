//! The bytes of one lane: accumulators, two buffers of weights per chunk, momentum, and the spill area.
//! Indices are the engine's. Contributions are read by raw copies of one cache-hot block at a time, because
//! the memory they lie in can be written by a peer.

use crate::engine::{ChunkSpec, Source};
use crate::kernel::{self, Weights};
use fabric::{Buffer, FabricError, OutOfBounds, Pool, PoolError, Region, Span};
use proto_common::batch::payload_checksum;
use proto_common::optimizer::Optimizer;
use thiserror::Error;
use zerocopy::{FromBytes, IntoBytes};

/// Elements handled at once: 16 KiB, so that contribution, accumulator and weights stay in first and second
/// level cache.
const BLOCK_ELEMENTS: usize = 4096;
/// Address space of the weights' pool; memory is taken at first touch.
const WEIGHTS_POOL_BYTES: u64 = 1 << 40;

/// Storage that cannot serve.
#[derive(Debug, Error)]
pub enum StorageError {
    /// The system gives no memory.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// The weights' address space is used up.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// A contribution does not lie where the engine says: a bug.
    #[error(transparent)]
    Bounds(#[from] OutOfBounds),
    /// An index without a chunk: a bug.
    #[error("internal error: no chunk {0} in storage")]
    NoChunk(u32),
    /// A buffer that is not a whole number of elements: a bug.
    #[error("internal error: chunk bytes are not whole f32 elements")]
    Elements,
}

#[derive(Debug)]
struct Stored {
    bytes: usize,
    optimizer: Optimizer,
    sum: Vec<f32>,
    momentum: Vec<f32>,
    weights: [Buffer; 2],
}

/// What completes a round: see `engine::Command::Finish`.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    /// The last contribution, not reduced yet.
    pub last: Option<Source>,
    /// Is it the only one?
    pub only: bool,
    /// The buffer in force.
    pub old: u8,
    /// The buffer to write.
    pub into: u8,
    /// How many contributed.
    pub contributors: u32,
}

/// See the module.
#[derive(Debug)]
pub struct Storage {
    pool: Pool,
    chunks: Vec<Stored>,
    inbox: Region,
    slot_bytes: u64,
    spill: Vec<Vec<u8>>,
    scratch: Box<[f32]>,
}

impl Storage {
    /// Storage whose contributions come from `inbox`, slots of `slot_bytes`.
    pub fn new(inbox: Region, slot_bytes: u64) -> Result<Self, StorageError> {
        let pool = Pool::new(WEIGHTS_POOL_BYTES, "gradwire-weights")?;
        let scratch = vec![0.0; BLOCK_ELEMENTS].into_boxed_slice();
        Ok(Self { pool, chunks: Vec::new(), inbox, slot_bytes, spill: Vec::new(), scratch })
    }

    /// Adds a chunk of zeros under the next index.
    pub fn add(&mut self, spec: &ChunkSpec) -> Result<(), StorageError> {
        let bytes = spec.bytes as usize;
        if !bytes.is_multiple_of(4) {
            return Err(StorageError::Elements);
        }
        let mut weights = [self.pool.allocate(spec.bytes)?, self.pool.allocate(spec.bytes)?];
        for buffer in &mut weights {
            buffer.fill(0);
        }
        let momentum = if spec.optimizer.has_momentum() { vec![0.0; bytes / 4] } else { Vec::new() };
        self.chunks.push(Stored {
            bytes,
            optimizer: spec.optimizer,
            sum: vec![0.0; bytes / 4],
            momentum,
            weights,
        });
        Ok(())
    }

    /// Bytes of weights, accumulators and momentum.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.chunks.iter().map(|c| 3 * c.bytes as u64 + 4 * c.momentum.len() as u64).sum()
    }

    /// The region that weights are sent from.
    #[must_use]
    pub fn weights_region(&self) -> &Region {
        self.pool.region()
    }

    /// A weight buffer, to be sent.
    pub fn weights(&self, chunk: u32, buffer: u8) -> Result<Span, StorageError> {
        let stored = self.chunks.get(chunk as usize).ok_or(StorageError::NoChunk(chunk))?;
        Ok(stored.weights[usize::from(buffer & 1)].span())
    }

    /// The checksum of a payload in a slot, read like a contribution: in blocks, by raw copies.
    pub fn checksum(&mut self, slot: u32, offset: u64, bytes: u64) -> Result<u32, StorageError> {
        let Self { inbox, slot_bytes, spill, scratch, .. } = self;
        let payload = Bytes { inbox, slot_bytes: *slot_bytes, spill, from: Source::Slot { slot, offset } };
        let scratch = scratch.as_mut_bytes();
        let (mut sum, mut at) = (0, 0);
        // A payload lies within its slot, whose bytes fit the address space.
        let end = bytes as usize;
        while at < end {
            let part_bytes = scratch.len().min(end - at);
            let part = &mut scratch[..part_bytes];
            payload.read(at, part)?;
            sum = payload_checksum(sum, part);
            at += part_bytes;
        }
        Ok(sum)
    }

    /// sum = contribution, or sum += contribution.
    pub fn reduce(&mut self, chunk: u32, from: Source, first: bool) -> Result<(), StorageError> {
        let Self { chunks, inbox, slot_bytes, spill, scratch, .. } = self;
        let stored = chunks.get_mut(chunk as usize).ok_or(StorageError::NoChunk(chunk))?;
        let bytes = Bytes { inbox, slot_bytes: *slot_bytes, spill, from };
        if first {
            return bytes.read(0, stored.sum.as_mut_bytes());
        }
        for (i, sum) in stored.sum.chunks_mut(BLOCK_ELEMENTS).enumerate() {
            let part = &mut scratch[..sum.len()];
            bytes.read(i * BLOCK_ELEMENTS * 4, part.as_mut_bytes())?;
            kernel::add(sum, part);
        }
        Ok(())
    }

    /// Applies the update rule; a last contribution is added in the same pass.
    pub fn finish(&mut self, chunk: u32, round: &Round) -> Result<(), StorageError> {
        let Self { chunks, inbox, slot_bytes, spill, scratch, .. } = self;
        let stored = chunks.get_mut(chunk as usize).ok_or(StorageError::NoChunk(chunk))?;
        let mut weights = weights_of(&mut stored.weights, round)?;
        let has_momentum = !stored.momentum.is_empty();
        for (i, sum) in stored.sum.chunks_mut(BLOCK_ELEMENTS).enumerate() {
            let at = i * BLOCK_ELEMENTS..i * BLOCK_ELEMENTS + sum.len();
            let total = &mut scratch[..sum.len()];
            if let Some(from) = round.last {
                let bytes = Bytes { inbox, slot_bytes: *slot_bytes, spill, from };
                bytes.read(at.start * 4, total.as_mut_bytes())?;
                if !round.only {
                    // One addition commutes to the last bit, so it does not matter which operand comes first.
                    kernel::add(total, sum);
                }
            } else {
                total.copy_from_slice(sum);
            }
            let momentum = if has_momentum { &mut stored.momentum[at.clone()] } else { &mut [] };
            kernel::update(&stored.optimizer, round.contributors, total, weights.part(at), momentum);
        }
        Ok(())
    }

    /// Sets the value of a chunk.
    pub fn init(&mut self, chunk: u32, from: Source, into: u8) -> Result<(), StorageError> {
        let Self { chunks, inbox, slot_bytes, spill, .. } = self;
        let stored = chunks.get_mut(chunk as usize).ok_or(StorageError::NoChunk(chunk))?;
        let bytes = Bytes { inbox, slot_bytes: *slot_bytes, spill, from };
        bytes.read(0, &mut stored.weights[usize::from(into & 1)])
    }

    /// Copies a contribution into a spill block.
    pub fn spill(&mut self, chunk: u32, from: Source, to: u32) -> Result<(), StorageError> {
        let bytes = self.chunks.get(chunk as usize).ok_or(StorageError::NoChunk(chunk))?.bytes;
        if self.spill.len() <= to as usize {
            self.spill.resize_with(to as usize + 1, Vec::new);
        }
        let mut block = std::mem::take(&mut self.spill[to as usize]);
        block.resize(bytes, 0);
        let Self { inbox, slot_bytes, spill, .. } = self;
        let read = Bytes { inbox, slot_bytes: *slot_bytes, spill, from }.read(0, &mut block);
        self.spill[to as usize] = block;
        read
    }
}

/// The weights of a chunk that a round changes.
fn weights_of<'a>(buffers: &'a mut [Buffer; 2], round: &Round) -> Result<Weights<'a>, StorageError> {
    let elements =
        |buffer: &'a mut Buffer| <[f32]>::mut_from_bytes(buffer).map_err(|_| StorageError::Elements);
    let [a, b] = buffers;
    let (into, other) = if round.into == 0 { (a, b) } else { (b, a) };
    if round.into == round.old {
        return Ok(Weights::InPlace(elements(into)?));
    }
    Ok(Weights::OutOfPlace { old: elements(other)?, new: elements(into)? })
}

/// A contribution's bytes, wherever they are.
struct Bytes<'a> {
    inbox: &'a Region,
    slot_bytes: u64,
    spill: &'a [Vec<u8>],
    from: Source,
}

impl Bytes<'_> {
    fn read(&self, at: usize, into: &mut [u8]) -> Result<(), StorageError> {
        match self.from {
            Source::Slot { slot, offset } => {
                let start = u64::from(slot) * self.slot_bytes + offset + at as u64;
                Ok(self.inbox.read(start, into)?)
            }
            Source::Spill(block) => {
                let (offset, bytes) = (at as u64, into.len() as u64);
                let held = self.spill.get(block as usize).map_or(&[][..], Vec::as_slice);
                let region_bytes = held.len() as u64;
                let part =
                    held.get(at..at + into.len()).ok_or(OutOfBounds { offset, bytes, region_bytes })?;
                into.copy_from_slice(part);
                Ok(())
            }
        }
    }
}
