//! The bytes of one lane: accumulators, two buffers of weights per chunk, what rules keep, and the spill area.
//! Indices are the engine's. Contributions are reduced where they lie, number by number, because the memory
//! can be written by a peer.

mod coded;
mod numbers;

use crate::engine::{ChunkSpec, Source};
use coded::Decoder;
use fabric::{Buffer, FabricError, OutOfBounds, Pool, PoolError, Region, Span};
use numbers::{Place, Typed};
use proto_common::batch::payload_checksum;
use proto_common::codec::Codec;
use proto_common::element::Dtype;
use proto_common::optimizer::Optimizer;
use thiserror::Error;

/// Bytes of a payload that are summed at once, out of the first level cache.
const SUM_BYTES: usize = 16 << 10;
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
    #[error("internal error: chunk bytes are not whole elements of {0}")]
    Elements(Dtype),
    /// A type without a kernel; declarations of it are refused: a bug.
    #[error("internal error: no kernel for {0}")]
    NoKernel(Dtype),
}

#[derive(Debug)]
struct Stored {
    bytes: usize,
    /// How many of them count for now; less only in dynamic chunks.
    now: usize,
    codec: Codec,
    optimizer: Optimizer,
    numbers: Typed,
    weights: [Buffer; 2],
}

impl Stored {
    /// How many numbers an encoded contribution becomes: of these, chunks have one length.
    fn elements(&self) -> usize {
        self.bytes / size_of::<f32>()
    }
}

/// What completes a round: see `engine::Command::Finish`.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    /// Its number, from 1.
    pub number: u64,
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
    inbox: Cells,
    spill: Cells,
    scratch: Box<[u8]>,
    decoder: Decoder,
}

/// Memory that peers write, cut into cells of one size: the inbox's slots, or the spill area's blocks.
#[derive(Clone, Debug)]
pub struct Cells {
    region: Region,
    cell_bytes: u64,
}

impl Cells {
    /// `count` cells; memory is taken from the system at first touch.
    pub fn allocate(count: u32, cell_bytes: u64, name: &str) -> Result<Self, FabricError> {
        let bytes = usize::try_from(u64::from(count).saturating_mul(cell_bytes)).unwrap_or(usize::MAX);
        Ok(Self { region: Region::allocate(bytes, name)?, cell_bytes })
    }

    /// The memory behind all of them.
    #[must_use]
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Where a cell starts.
    #[must_use]
    pub fn start(&self, cell: u32) -> u64 {
        u64::from(cell) * self.cell_bytes
    }

    /// Bytes of a cell.
    #[must_use]
    pub fn cell_bytes(&self) -> u64 {
        self.cell_bytes
    }
}

impl Storage {
    /// Storage whose contributions come in the slots of `inbox`, or lie in the blocks of `spill`.
    pub fn new(inbox: Cells, spill: Cells) -> Result<Self, StorageError> {
        let pool = Pool::new(WEIGHTS_POOL_BYTES, "gradwire-weights")?;
        let scratch = vec![0; SUM_BYTES].into_boxed_slice();
        Ok(Self { pool, chunks: Vec::new(), inbox, spill, scratch, decoder: Decoder::default() })
    }

    /// Adds a chunk of zeros under the next index.
    pub fn add(&mut self, spec: &ChunkSpec) -> Result<(), StorageError> {
        let bytes = spec.bytes as usize;
        if !bytes.is_multiple_of(spec.dtype.bytes()) {
            return Err(StorageError::Elements(spec.dtype));
        }
        let elements = bytes / spec.dtype.bytes();
        let numbers = Typed::zeros(spec.dtype, elements, spec.optimizer.state_arrays())?;
        let mut weights = [self.pool.allocate(spec.bytes)?, self.pool.allocate(spec.bytes)?];
        for buffer in &mut weights {
            buffer.fill(0);
        }
        let ChunkSpec { codec, optimizer, .. } = *spec;
        self.decoder.reserve(&self.pool, codec, elements)?;
        self.chunks.push(Stored { bytes, now: bytes, codec, optimizer, numbers, weights });
        Ok(())
    }

    /// Bytes of weights, accumulators and what rules keep.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.chunks.iter().map(|chunk| 2 * chunk.bytes as u64 + chunk.numbers.bytes()).sum()
    }

    /// The region that weights are sent from.
    #[must_use]
    pub fn weights_region(&self) -> &Region {
        self.pool.region()
    }

    /// The commands that follow are about the first so many bytes of a chunk.
    pub fn size(&mut self, chunk: u32, bytes: u64) -> Result<(), StorageError> {
        let stored = self.chunks.get_mut(chunk as usize).ok_or(StorageError::NoChunk(chunk))?;
        let region_bytes = stored.bytes as u64;
        if bytes > region_bytes {
            return Err(OutOfBounds { offset: 0, bytes, region_bytes }.into());
        }
        stored.now = bytes as usize;
        Ok(())
    }

    /// Bytes of a chunk that commands are about.
    pub fn size_of(&self, chunk: u32) -> Result<u64, StorageError> {
        let stored = self.chunks.get(chunk as usize).ok_or(StorageError::NoChunk(chunk))?;
        Ok(stored.now as u64)
    }

    /// A weight buffer, to be sent.
    pub fn weights(&self, chunk: u32, buffer: u8) -> Result<Span, StorageError> {
        let stored = self.chunks.get(chunk as usize).ok_or(StorageError::NoChunk(chunk))?;
        Ok(stored.weights[usize::from(buffer & 1)].span())
    }

    /// The checksum of a payload in a slot, read in blocks by raw copies.
    pub fn checksum(&mut self, slot: u32, offset: u64, bytes: u64) -> Result<u32, StorageError> {
        let Self { inbox, scratch, .. } = self;
        let (mut sum, mut at) = (0, inbox.start(slot) + offset);
        // A payload lies within its slot, whose bytes fit the address space.
        let mut left = bytes as usize;
        while left > 0 {
            let part_bytes = scratch.len().min(left);
            let part = &mut scratch[..part_bytes];
            inbox.region.read(at, part)?;
            sum = payload_checksum(sum, part);
            at += part_bytes as u64;
            left -= part_bytes;
        }
        Ok(sum)
    }

    /// sum = contribution, or sum += contribution.
    pub fn reduce(&mut self, chunk: u32, from: Source, first: bool) -> Result<(), StorageError> {
        let Self { chunks, inbox, spill, decoder, .. } = self;
        let stored = chunks.get_mut(chunk as usize).ok_or(StorageError::NoChunk(chunk))?;
        let from = decoder.plain(stored.codec, stored.elements(), find(inbox, spill, from))?;
        stored.numbers.reduce(from, stored.now, first)?;
        Ok(())
    }

    /// Applies the update rule; a last contribution is added in the same pass.
    pub fn finish(&mut self, chunk: u32, round: &Round) -> Result<(), StorageError> {
        let Self { chunks, inbox, spill, decoder, .. } = self;
        let stored = chunks.get_mut(chunk as usize).ok_or(StorageError::NoChunk(chunk))?;
        let step = stored.optimizer.step(round.number, round.contributors);
        let last = round.last.map(|from| find(inbox, spill, from));
        let last = last.map(|from| decoder.plain(stored.codec, stored.elements(), from)).transpose()?;
        stored.numbers.finish(&step, round, last, &mut stored.weights, stored.now)
    }

    /// Sets the value of a chunk.
    pub fn init(&mut self, chunk: u32, from: Source, into: u8) -> Result<(), StorageError> {
        let Self { chunks, inbox, spill, .. } = self;
        let stored = chunks.get_mut(chunk as usize).ok_or(StorageError::NoChunk(chunk))?;
        let from = find(inbox, spill, from);
        from.region.read(from.at, &mut stored.weights[usize::from(into & 1)])?;
        stored.numbers.init(from, stored.bytes)?;
        Ok(())
    }

    /// Copies a contribution into a spill block.
    pub fn spill(&mut self, chunk: u32, from: Source, to: u32) -> Result<(), StorageError> {
        let Self { chunks, inbox, spill, .. } = self;
        let stored = chunks.get(chunk as usize).ok_or(StorageError::NoChunk(chunk))?;
        let coded = !stored.codec.is_plain();
        let bytes = if coded { stored.codec.encoded_bytes(stored.elements()) } else { stored.now };
        let from = find(inbox, spill, from);
        spill.region.copy(spill.start(to), from.region, from.at, bytes as u64)?;
        Ok(())
    }

    /// Where a payload is read to.
    pub fn spill_span(&self, block: u32, bytes: u64) -> Result<Span, StorageError> {
        Ok(self.spill.region.span(self.spill.start(block), bytes)?)
    }

    /// The memory that workers write contributions into, where they have a grant.
    #[must_use]
    pub fn spill_cells(&self) -> &Cells {
        &self.spill
    }
}

/// Where a contribution lies.
fn find<'a>(inbox: &'a Cells, spill: &'a Cells, from: Source) -> Place<'a> {
    match from {
        Source::Slot { slot, offset } => Place { region: &inbox.region, at: inbox.start(slot) + offset },
        Source::Spill(block) => Place { region: &spill.region, at: spill.start(block) },
    }
}

#[cfg(test)]
mod tests;
