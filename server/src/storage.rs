//! The bytes of one lane: accumulators, two buffers of weights per chunk, what rules keep, and the spill area.
//! Indices are the engine's. Contributions are reduced in place, number by number, because the memory
//! can be written by a peer.

mod array;
mod cells;
mod coded;
mod copies;
mod error;
mod image;
mod integers;
mod numbers;
mod rule;
mod typed;

use crate::engine::{Addend, ChunkSpec, Onto, Source, Verdict};
use crate::kernel::{self, Change, Squares};
use crate::own::{Applied, Found, OwnRuleError, OwnStep, Rules, caught};
use crate::space::Space;
use cells::{Areas, Place};
use coded::Decoder;
use fabric::{Exclusive, OutOfBounds, Pool, Region, Span, View};
use numbers::zeros;
use proto_common::batch::{Block, BlockData, Status, payload_checksum};
use proto_common::codec::Codec;
use proto_common::element::Dtype;
use proto_common::ids::ChunkId;
use proto_common::optimizer::{Optimizer, Rule};
use rule::CurrentRule;
use std::ops::Range;
use typed::Typed;

pub use cells::Cells;
pub use error::{ImageError, StorageError};
pub use image::Image;
pub use typed::Round;

/// Bytes of a payload that are summed at once, out of the first level cache.
const SUM_BYTES: usize = 16 << 10;

#[derive(Debug)]
struct Stored {
    bytes: usize,
    /// The bytes of the round that is being collected: fewer than `bytes` only if the tensor is dynamic.
    now: usize,
    dtype: Dtype,
    codec: Codec,
    rule: CurrentRule,
    /// The rule itself, if the server's program has registered it.
    own: Found,
    /// If the rule needs norms (LAMB): this chunk's share of them, and the factor of the rate that follows from the whole tensor's.
    squares: Squares,
    trust: f64,
    numbers: Box<dyn Typed>,
    weights: [Exclusive; 2],
}

impl Stored {
    /// How contributions are encoded, and how many numbers each becomes: of these, chunks have one length.
    fn coding(&self) -> (Codec, usize) {
        (self.codec, self.bytes / size_of::<f32>())
    }
}

/// A chunk without an index.
#[derive(Debug)]
pub struct Made(Stored);

impl Made {
    /// Its buffers of weights.
    #[must_use]
    pub fn weights(&self) -> [Span; 2] {
        [self.0.weights[0].span(), self.0.weights[1].span()]
    }
}

/// The memory of a contribution, and of the one that it is added to, if they are read in their workers' memory.
pub type Views = [Option<View>; 2];

/// See the module.
#[derive(Debug)]
pub struct Storage {
    pool: Pool,
    /// By index; `None` for chunks that were given up.
    chunks: Vec<Option<Stored>>,
    areas: Areas,
    /// Sums that are sent to other servers, and images on their way there.
    sent: Pool,
    scratch: Box<[u8]>,
    decoder: Decoder,
    /// Of the server's program.
    rules: Rules,
}

impl Storage {
    /// Storage whose contributions come in the slots of `inbox`, or lie in the blocks of `spill`.
    pub fn new(inbox: Cells, spill: Cells) -> Result<Self, StorageError> {
        Self::within(Space::default(), inbox, spill)
    }

    /// As [`Storage::new`], within this address space.
    pub(crate) fn within(space: Space, inbox: Cells, spill: Cells) -> Result<Self, StorageError> {
        // Workers on this host may read them in place.
        let pool = Pool::readable(space.weights_bytes(), "gradwire-weights")?;
        let scratch = vec![0; SUM_BYTES].into_boxed_slice();
        let sent = Pool::new(space.copies_bytes(), "gradwire-copies")?;
        let areas = Areas { inbox, spill, records: Vec::new() };
        let (chunks, decoder, rules) = (Vec::new(), Decoder::default(), Rules::default());
        Ok(Self { pool, chunks, areas, sent, scratch, decoder, rules })
    }

    /// Update rules of the server's program.
    pub(crate) fn set_rules(&mut self, rules: Rules) {
        self.rules = rules;
    }

    /// Can a chunk have this rule here?
    fn check_rule(&self, optimizer: &Optimizer) -> Result<(), OwnRuleError> {
        match &optimizer.rule {
            Rule::Own(own) => self.rules.find(own).map(drop),
            _ => Ok(()),
        }
    }

    /// Adds a chunk of zeros under the next index.
    pub fn add(&mut self, spec: &ChunkSpec) -> Result<(), StorageError> {
        self.add_at(self.chunks.len() as u32, spec)
    }

    /// Adds a chunk of zeros under an index: the next one, or one that was given up. If the chunk cannot be made, its index stays
    /// empty, so that the indices of later chunks are right.
    pub fn add_at(&mut self, chunk: u32, spec: &ChunkSpec) -> Result<(), StorageError> {
        if chunk as usize == self.chunks.len() {
            self.chunks.push(None);
        }
        let made = self.make(spec)?;
        self.put_at(chunk, made)
    }

    /// Makes a chunk of zeros, which has no index yet.
    pub fn make(&mut self, spec: &ChunkSpec) -> Result<Made, StorageError> {
        let bytes = spec.bytes as usize;
        if !bytes.is_multiple_of(spec.dtype.bytes()) {
            return Err(StorageError::Elements);
        }
        self.check_rule(&spec.optimizer)?;
        let elements = bytes / spec.dtype.bytes();
        let numbers = zeros(spec.dtype, elements, spec.optimizer.state_arrays());
        let mut weights = [self.pool.allocate(spec.bytes)?, self.pool.allocate(spec.bytes)?];
        for buffer in &mut weights {
            buffer.fill(0);
        }
        let (rule, squares, trust) = (CurrentRule::new(spec.optimizer), Squares::default(), 1.0);
        let codec = spec.codec;
        self.decoder.reserve(&self.pool, codec, elements)?;
        let (dtype, now, own) = (spec.dtype, bytes, Found::default());
        Ok(Made(Stored { bytes, now, dtype, codec, rule, own, squares, trust, numbers, weights }))
    }

    /// Gives a chunk that was made its index: the next one, or one that was given up.
    pub fn put_at(&mut self, chunk: u32, made: Made) -> Result<(), StorageError> {
        if chunk as usize == self.chunks.len() {
            self.chunks.push(None);
        }
        match self.chunks.get_mut(chunk as usize) {
            Some(place @ None) => *place = Some(made.0),
            _ => return Err(StorageError::NoChunk(chunk)),
        }
        Ok(())
    }

    fn stored(&self, chunk: u32) -> Result<&Stored, StorageError> {
        self.chunks.get(chunk as usize).and_then(Option::as_ref).ok_or(StorageError::NoChunk(chunk))
    }

    fn stored_mut(&mut self, chunk: u32) -> Result<&mut Stored, StorageError> {
        stored_of(&mut self.chunks, chunk)
    }

    /// A chunk is given up: its memory is free.
    pub fn free(&mut self, chunk: u32) {
        if let Some(stored) = self.chunks.get_mut(chunk as usize) {
            *stored = None;
        }
    }

    /// Bytes of weights, accumulators and what rules keep.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.chunks.iter().flatten().map(|chunk| 2 * chunk.bytes as u64 + chunk.numbers.bytes()).sum()
    }

    /// The region that weights are sent from.
    #[must_use]
    pub fn weights_region(&self) -> &Region {
        self.pool.region()
    }

    /// The commands that follow are about the first `bytes` bytes of the chunk (dynamic tensors).
    pub fn size(&mut self, chunk: u32, bytes: u64) -> Result<(), StorageError> {
        let stored = self.stored_mut(chunk)?;
        let region_bytes = stored.bytes as u64;
        if bytes > region_bytes {
            return Err(OutOfBounds { offset: 0, bytes, region_bytes }.into());
        }
        stored.now = bytes as usize;
        Ok(())
    }

    /// The bytes of a chunk that commands are about: see [`Storage::size`].
    pub fn size_of(&self, chunk: u32) -> Result<u64, StorageError> {
        Ok(self.stored(chunk)?.now as u64)
    }

    /// A weight buffer, to be sent.
    pub fn weights(&self, chunk: u32, buffer: u8) -> Result<Span, StorageError> {
        Ok(self.stored(chunk)?.weights[usize::from(buffer & 1)].span())
    }

    /// The checksum of a payload in a slot, read in blocks by raw copies.
    pub fn checksum(&mut self, slot: u32, offset: u64, bytes: u64) -> Result<u32, StorageError> {
        let Self { areas: Areas { inbox, .. }, scratch, .. } = self;
        let (mut sum, mut at) = (0, inbox.start(slot) + offset);
        // A payload lies within its slot, whose bytes fit the address space.
        let mut left = bytes as usize;
        while left > 0 {
            let part_bytes = scratch.len().min(left);
            let part = &mut scratch[..part_bytes];
            inbox.memory().read(at, part)?;
            sum = payload_checksum(sum, part);
            at += part_bytes as u64;
            left -= part_bytes;
        }
        Ok(sum)
    }

    /// sum = what the contribution is added to + the contribution. Those in a worker's memory come with their views, here
    /// and below.
    pub fn reduce(&mut self, chunk: u32, addend: Addend, views: &Views) -> Result<(), StorageError> {
        let Self { chunks, areas, decoder, .. } = self;
        let stored = stored_of(chunks, chunk)?;
        let addend = plain(areas, decoder, stored, addend, views)?;
        Ok(stored.numbers.reduce(addend, stored.now)?)
    }

    /// Applies the update rule; a last contribution is added in the same pass. Says whether the values fit.
    pub fn finish(&mut self, chunk: u32, round: &Round, views: &Views) -> Result<Verdict, StorageError> {
        let Self { chunks, areas, decoder, rules, .. } = self;
        let stored = stored_of(chunks, chunk)?;
        let mut step = stored.rule.step(round, &mut *stored.numbers);
        if stored.rule.needs_norms() {
            step = step.along(stored.trust);
        }
        let last = match round.last {
            Some(last) => Some(plain(areas, decoder, stored, last, views)?),
            None => None,
        };
        let Stored { numbers, weights, now, own: found, .. } = stored;
        let Rule::Own(own) = &step.rule else {
            return numbers.finish(Change::Listed(&step), round, last, weights, *now);
        };
        let (values, factors) = (own.parameters.values(), step.factors);
        let applied = Applied {
            rule: found.of(rules, own)?,
            step: OwnStep {
                round: round.number,
                rate: factors.rate as f32,
                decay: factors.decay as f32,
                parameters: &values[..own.parameters.pairs().count()],
            },
            scale: factors.scale,
        };
        caught(own.name, || numbers.finish(Change::Own(applied), round, last, weights, *now))?
    }

    /// A round of a chunk is complete whose rule needs norms: computes the chunk's steps, and its share of the norms. `finish` follows.
    pub fn prepare(&mut self, chunk: u32, round: &Round, views: &Views) -> Result<(), StorageError> {
        let Self { chunks, areas, decoder, .. } = self;
        let stored = stored_of(chunks, chunk)?;
        let step = stored.rule.step(round, &mut *stored.numbers);
        if let Some(last) = round.last {
            let last = plain(areas, decoder, stored, last, views)?;
            stored.numbers.reduce(last, stored.now)?;
        }
        stored.squares = stored.numbers.prepare(&step, &stored.weights[usize::from(round.old & 1)])?;
        Ok(())
    }

    /// All chunks of a tensor are prepared: in this order, their shares make its norms.
    pub fn norms(&mut self, chunks: Range<u32>) {
        let chunks = chunks.start as usize..chunks.end as usize;
        let Some(tensor) = self.chunks.get_mut(chunks) else { return };
        let trust = kernel::trust(tensor.iter().flatten().map(|stored| stored.squares));
        tensor.iter_mut().flatten().for_each(|stored| stored.trust = trust);
    }

    /// Chunks of one tensor get another rule, each from a round on: all of them, or none on error.
    pub fn change_rule(&mut self, chunks: &[(u32, u64)], to: Optimizer) -> Result<(), StorageError> {
        self.check_rule(&to)?;
        for &(chunk, from_round) in chunks {
            self.stored(chunk)?.rule.has_room(from_round)?;
        }
        for &(chunk, from_round) in chunks {
            self.stored_mut(chunk)?.rule.change(from_round, to)?;
        }
        Ok(())
    }

    /// Sets the value of a chunk.
    pub fn init(
        &mut self,
        chunk: u32,
        from: Source,
        view: Option<&View>,
        into: u8,
    ) -> Result<(), StorageError> {
        let Self { chunks, areas, .. } = self;
        let stored = stored_of(chunks, chunk)?;
        let from = areas.find(from, view)?;
        from.read(&mut stored.weights[usize::from(into & 1)])?;
        stored.numbers.init(from, stored.bytes)?;
        Ok(())
    }

    /// Copies a contribution into a spill block.
    pub fn spill(
        &mut self,
        chunk: u32,
        from: Source,
        view: Option<&View>,
        to: u32,
    ) -> Result<(), StorageError> {
        let stored = self.stored(chunk)?;
        let (codec, elements) = stored.coding();
        let bytes = if codec.is_plain() { stored.now } else { codec.encoded_bytes(elements) };
        let Areas { spill, .. } = &self.areas;
        let from = self.areas.find(from, view)?;
        Ok(from.copy_to(spill.memory(), spill.start(to), bytes as u64)?)
    }

    /// Where a payload is read to.
    pub fn spill_span(&self, block: u32, bytes: u64) -> Result<Span, StorageError> {
        let spill = self.spill_cells();
        Ok(spill.memory().span(spill.start(block), bytes)?)
    }

    /// Copies a chunk's weights into a spill block.
    pub fn copy_weights(&self, chunk: u32, buffer: u8, to: u32) -> Result<Span, StorageError> {
        let weights = &self.stored(chunk)?.weights[usize::from(buffer & 1)];
        let spill = self.spill_cells();
        spill.memory().write(spill.start(to), weights)?;
        self.spill_span(to, weights.len() as u64)
    }

    /// The memory that workers write contributions into, where they have a grant.
    #[must_use]
    pub fn spill_cells(&self) -> &Cells {
        &self.areas.spill
    }

    /// Checks a batch's encoded contributions before the engine sees them. Malformed ones get the status `Malformed`. The engine
    /// refuses other codecs and lengths than declared.
    pub fn check_coded(
        &mut self,
        (slot, payload_offset): (u32, u64),
        index_of: impl Fn(ChunkId) -> Option<u32>,
        blocks: &mut [Block],
    ) -> Result<(), StorageError> {
        let Self { chunks, areas, decoder, .. } = self;
        for block in blocks.iter_mut().filter(|block| block.codec != 0) {
            let BlockData::Inline { offset } = block.data else { continue };
            let stored = index_of(block.id).and_then(|index| chunks.get(index as usize)?.as_ref());
            let Some((codec, elements)) = stored.map(Stored::coding) else { continue };
            if codec.wire_id() != block.codec || block.bytes != codec.encoded_bytes(elements) as u64 {
                continue;
            }
            let from = areas.find(Source::Slot { slot, offset: payload_offset + offset }, None)?;
            if let Err(error) = decoder.check((codec, elements), from)? {
                tracing::debug!(chunk = %block.id, %codec, %error, "an encoded contribution is malformed");
                block.status = Status::Malformed;
            }
        }
        Ok(())
    }
}

/// As [`Storage::stored_mut`], where more of the storage is at hand.
fn stored_of(chunks: &mut [Option<Stored>], chunk: u32) -> Result<&mut Stored, StorageError> {
    chunks.get_mut(chunk as usize).and_then(Option::as_mut).ok_or(StorageError::NoChunk(chunk))
}

/// A contribution as plain numbers, with the one that it is added to. Only contributions of workers are encoded.
fn plain<'a>(
    areas: &'a Areas,
    decoder: &'a mut Decoder,
    stored: &Stored,
    addend: Addend,
    [view, first_view]: &'a Views,
) -> Result<Addend<Place<'a>>, StorageError> {
    let onto = match addend.onto {
        Onto::Nothing => Onto::Nothing,
        Onto::First(first) => Onto::First(areas.find(first, first_view.as_ref())?),
        Onto::Sum => Onto::Sum,
    };
    let found = Addend { from: areas.find(addend.from, view.as_ref())?, onto };
    if matches!(addend.from, Source::Record { .. }) {
        Ok(found)
    } else {
        decoder.plain(stored.coding(), found)
    }
}

#[cfg(test)]
mod own_tests;
#[cfg(test)]
mod tests;
