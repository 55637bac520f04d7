//! The two ways of computing a round. [`Fused`] is the server's: chunk by chunk, the last contribution fused with the update
//! rule. Contributions lie in slots, each folded as it comes; or where their workers have them, and the first is taken with
//! the second. [`Separate`] makes separate passes over the whole tensor: one for each contribution, one for the update; for
//! halves also one that widens each contribution and one that rounds the weights. All use the server's own vector kernels.
//!
//! It must not measure.

use fabric::simd::{Pass, widest};
use fabric::{PeerWritable, SpanReader, View};
use gradwire_server::engine::{Addend, ChunkSpec, Onto, Source};
use gradwire_server::kernel::{self, Contribution, Element, Weights};
use gradwire_server::storage::{Cells, Round, Storage, Views};
use proto_common::codec::Codec;
use proto_common::element::Dtype;
use proto_common::ids::{ChunkId, Rank};
use proto_common::mode::Mode;
use proto_common::optimizer::Optimizer;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// Bytes of a chunk, as clusters have them. In tests, whose loops are not optimised, fewer: a short tensor has several chunks then.
pub(super) const CHUNK_BYTES: u64 =
    if cfg!(test) { 64 << 10 } else { proto_common::limits::CHUNK_BYTES_DEFAULT };

/// A run reduces at least so much, so that small tensors are not lost in the clock.
const RUN_BYTES: u64 = 256 << 20;

/// What a measurement is of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Subject {
    pub(super) dtype: Dtype,
    pub(super) rule: &'static str,
    pub(super) optimizer: Optimizer,
    pub(super) contributions: u32,
    pub(super) elements: u64,
}

impl Subject {
    /// Bytes of all contributions of one round.
    pub(super) fn round_bytes(&self) -> u64 {
        self.elements * self.dtype.bytes() as u64 * u64::from(self.contributions)
    }

    /// Rounds of one timed run.
    pub(super) fn rounds(&self) -> u64 {
        RUN_BYTES.div_ceil(self.round_bytes())
    }
}

/// One way of computing a round.
pub(super) trait Way {
    /// So many rounds.
    fn rounds(&mut self, rounds: u64) -> anyhow::Result<()>;
}

/// Where a server reads contributions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reads {
    Slots,
    Workers,
}

/// A server's storage with contributions to be reduced.
pub(super) struct Fused {
    reads: Reads,
    /// The slots; in workers' memory contributions lie in the same order.
    contributed: View,
    storage: Storage,
    chunks: Vec<ChunkSpec>,
    contributions: u32,
    round: u64,
}

impl Fused {
    pub(super) fn new(subject: &Subject, reads: Reads) -> anyhow::Result<Self> {
        let bytes = subject.elements * subject.dtype.bytes() as u64;
        let chunks: Vec<ChunkSpec> = (0..bytes.div_ceil(CHUNK_BYTES))
            .map(|index| ChunkSpec {
                id: ChunkId::new(1, index as u32),
                bytes: CHUNK_BYTES.min(bytes - index * CHUNK_BYTES),
                dynamic: false,
                dtype: subject.dtype,
                codec: Codec::Plain,
                optimizer: subject.optimizer,
                mode: Mode::Sync,
                backup_workers: 0,
            })
            .collect();
        let slots = chunks.len() as u32 * subject.contributions;
        let inbox = Cells::allocate(slots, CHUNK_BYTES, "bench-inbox")?;
        for (index, chunk) in chunks.iter().enumerate() {
            for contribution in 0..subject.contributions {
                let first = index as u64 * CHUNK_BYTES / subject.dtype.bytes() as u64;
                let elements = chunk.bytes / subject.dtype.bytes() as u64;
                let values = gradient(subject, contribution, first..first + elements);
                let slot = index as u32 * subject.contributions + contribution;
                inbox.memory().write(inbox.start(slot), &values)?;
            }
        }
        let contributed = View::from(Arc::clone(inbox.memory()));
        let mut storage = Storage::new(inbox, Cells::allocate(1, 4096, "bench-spill")?)?;
        chunks.iter().try_for_each(|chunk| storage.add(chunk))?;
        Ok(Self { reads, contributed, storage, chunks, contributions: subject.contributions, round: 0 })
    }

    /// The weights' bytes.
    pub(super) fn weights(&self) -> anyhow::Result<Vec<u8>> {
        let (mut all, mut reader) = (Vec::new(), SpanReader::new(CHUNK_BYTES as usize));
        for chunk in 0..self.chunks.len() as u32 {
            let span = self.storage.weights(chunk, 0)?;
            reader.read(&span, |piece| all.extend_from_slice(piece))?;
        }
        Ok(all)
    }

    /// A contribution and what it is added to, with their views in workers' memory.
    fn addend(&self, chunk: u32, at: u32) -> anyhow::Result<(Addend, Views)> {
        let (from, view) = self.source(chunk, at)?;
        let (onto, first_view) = match (at, self.reads) {
            (0, _) => (Onto::Nothing, None),
            (1, Reads::Workers) => {
                let (first, view) = self.source(chunk, 0)?;
                (Onto::First(first), view)
            }
            _ => (Onto::Sum, None),
        };
        Ok((Addend { from, onto }, [view, first_view]))
    }

    fn source(&self, chunk: u32, at: u32) -> anyhow::Result<(Source, Option<View>)> {
        let slot = chunk * self.contributions + at;
        if self.reads == Reads::Slots {
            return Ok((Source::Slot { slot, offset: 0 }, None));
        }
        let (offset, bytes) = (u64::from(slot) * CHUNK_BYTES, self.chunks[chunk as usize].bytes);
        let view = self.contributed.slice(offset, bytes)?;
        Ok((Source::Worker { peer: Rank(at), region: 0, offset, bytes }, Some(view)))
    }

    fn round(&mut self, chunk: u32) -> anyhow::Result<()> {
        let contributors = self.contributions;
        // In workers' memory the first one waits for the second.
        let folded = if self.reads == Reads::Workers && contributors > 1 { 1 } else { 0 };
        for at in folded..contributors - 1 {
            let (addend, views) = self.addend(chunk, at)?;
            self.storage.reduce(chunk, addend, &views)?;
        }
        let (last, views) = self.addend(chunk, contributors - 1)?;
        let round = Round { number: self.round, last: Some(last), old: 0, into: 0, contributors };
        self.storage.finish(chunk, &round, &views)?;
        Ok(())
    }
}

impl Way for Fused {
    fn rounds(&mut self, rounds: u64) -> anyhow::Result<()> {
        for _ in 0..rounds {
            self.round += 1;
            (0..self.chunks.len() as u32).try_for_each(|chunk| self.round(chunk))?;
        }
        Ok(())
    }
}

/// A tensor with everything that a round of it needs.
pub(super) struct Separate<E: Element> {
    gradients: Vec<PeerWritable>,
    optimizer: Optimizer,
    /// A contribution of halves, widened.
    wide: Vec<f32>,
    sum: Vec<f32>,
    weights: Vec<f32>,
    state: [Vec<f32>; 2],
    /// Weights of halves, rounded.
    rounded: Vec<E>,
    round: u64,
}

impl<E: Element<Sum = f32>> Separate<E> {
    pub(super) fn new(subject: &Subject) -> anyhow::Result<Self> {
        let count = subject.elements as usize;
        let bytes = count * size_of::<E>();
        let region = |contribution| {
            let region = PeerWritable::allocate(bytes, "bench-gradient")?;
            region.write(0, &gradient(subject, contribution, 0..subject.elements))?;
            anyhow::Ok(region)
        };
        let arrays = subject.optimizer.state_arrays();
        // The first round touches them, and is not timed.
        let array = |wanted: bool| vec![0.0f32; if wanted { count } else { 0 }];
        let halves = size_of::<E>() < size_of::<f32>();
        Ok(Self {
            gradients: (0..subject.contributions).map(region).collect::<anyhow::Result<_>>()?,
            optimizer: subject.optimizer,
            wide: array(halves),
            sum: array(true),
            weights: array(true),
            state: [array(arrays > 0), array(arrays > 1)],
            rounded: vec![E::round(0.0); if halves { count } else { 0 }],
            round: 0,
        })
    }

    /// The weights' bytes.
    pub(super) fn weights(&self) -> &[u8] {
        if self.rounded.is_empty() { self.weights.as_bytes() } else { self.rounded.as_bytes() }
    }
}

impl<E: Element<Sum = f32>> Way for Separate<E> {
    fn rounds(&mut self, rounds: u64) -> anyhow::Result<()> {
        let Self { gradients, optimizer, wide, sum, weights, state, rounded, round } = self;
        for _ in 0..rounds {
            *round += 1;
            for (at, gradient) in gradients.iter().enumerate() {
                let gradient = Contribution::<E>(gradient.numbers(0, sum.len())?);
                match (at, wide.is_empty()) {
                    (0, _) => kernel::set(sum, gradient),
                    (_, true) => kernel::add(sum, gradient),
                    (_, false) => {
                        kernel::set(wide, gradient);
                        kernel::add(sum, &wide[..]);
                    }
                }
            }
            let step = optimizer.step(*round, gradients.len() as u32);
            let [first, second] = state;
            kernel::update(&step, &sum[..], Weights::<f32>::InPlace(weights), [first, second]);
            widest(Publish { weights, rounded });
        }
        Ok(())
    }
}

struct Publish<'a, E> {
    weights: &'a [f32],
    rounded: &'a mut [E],
}

impl<E: Element<Sum = f32>> Pass for Publish<'_, E> {
    #[inline(always)]
    fn run(self) {
        for (rounded, weight) in self.rounded.iter_mut().zip(self.weights) {
            *rounded = E::round(*weight);
        }
    }
}

/// The bytes of a contribution to some elements: small numbers of each type, both signs.
fn gradient(subject: &Subject, contribution: u32, elements: std::ops::Range<u64>) -> Vec<u8> {
    let value = |at: u64| ((at * 7 + u64::from(contribution) * 3) % 64) as f32 / 64.0 - 0.375;
    // Six bits of fraction: the halves have them too, so that cutting an f32 off is exact.
    let bits = |at: u64| value(at).to_bits();
    match subject.dtype {
        Dtype::F16 => elements.flat_map(|at| f16_bits(bits(at)).to_le_bytes()).collect(),
        Dtype::Bf16 => elements.flat_map(|at| ((bits(at) >> 16) as u16).to_le_bytes()).collect(),
        _ => elements.flat_map(|at| bits(at).to_le_bytes()).collect(),
    }
}

/// The f16 of an f32 that is one exactly, and normal or zero.
fn f16_bits(bits: u32) -> u16 {
    let (sign, magnitude) = ((bits >> 16) & 0x8000, bits & 0x7fff_ffff);
    let half = if magnitude == 0 { 0 } else { (magnitude - (112 << 23)) >> 13 };
    (sign | half) as u16
}
