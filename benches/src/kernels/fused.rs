//! A round as the server computes it: chunk by chunk out of slots, the last contribution fused with the update rule.

use super::{CHUNK_BYTES, Subject, Way};
use gradwire_server::engine::{Addend, ChunkSpec, Onto, Source};
use gradwire_server::storage::{Cells, Round, Storage};
use proto_common::codec::Codec;
use proto_common::ids::ChunkId;

/// A server's storage with contributions in its slots.
pub(super) struct Fused {
    storage: Storage,
    chunks: Vec<ChunkSpec>,
    contributions: u32,
    round: u64,
}

impl Fused {
    pub(super) fn new(subject: &Subject) -> anyhow::Result<Self> {
        let bytes = subject.elements * subject.dtype.bytes() as u64;
        let chunks: Vec<ChunkSpec> = (0..bytes.div_ceil(CHUNK_BYTES))
            .map(|index| ChunkSpec {
                id: ChunkId::new(1, index as u32),
                bytes: CHUNK_BYTES.min(bytes - index * CHUNK_BYTES),
                dynamic: false,
                dtype: subject.dtype,
                codec: Codec::Plain,
                optimizer: subject.optimizer,
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
                inbox.region().write(inbox.start(slot), &values)?;
            }
        }
        let mut storage = Storage::new(inbox, Cells::allocate(1, 4096, "bench-spill")?)?;
        chunks.iter().try_for_each(|chunk| storage.add(chunk))?;
        Ok(Self { storage, chunks, contributions: subject.contributions, round: 0 })
    }

    /// The weights' bytes.
    pub(super) fn weights(&self) -> anyhow::Result<Vec<u8>> {
        let mut all = Vec::new();
        for (index, chunk) in self.chunks.iter().enumerate() {
            let (span, start) = (self.storage.weights(index as u32, 0)?, all.len());
            all.resize(start + chunk.bytes as usize, 0);
            span.region().read(span.offset(), &mut all[start..])?;
        }
        Ok(all)
    }
}

impl Way for Fused {
    fn rounds(&mut self, rounds: u64) -> anyhow::Result<()> {
        for _ in 0..rounds {
            self.round += 1;
            for chunk in 0..self.chunks.len() as u32 {
                let slot = |at| Source::Slot { slot: chunk * self.contributions + at, offset: 0 };
                let addend = |at| Addend { from: slot(at), onto: onto(at, slot(0)) };
                for at in 1..self.contributions.saturating_sub(1) {
                    self.storage.reduce(chunk, addend(at), &[None, None])?;
                }
                let last = Some(addend(self.contributions - 1));
                let (number, contributors) = (self.round, self.contributions);
                let round = Round { number, last, old: 0, into: 0, contributors };
                self.storage.finish(chunk, &round, &[None, None])?;
            }
        }
        Ok(())
    }
}

/// What contribution `at` is added to, as where the first one can be read when the second comes.
fn onto(at: u32, first: Source) -> Onto {
    match at {
        0 => Onto::Nothing,
        1 => Onto::First(first),
        _ => Onto::Sum,
    }
}

/// The bytes of a contribution to some elements: small numbers of each type, both signs.
pub(super) fn gradient(subject: &Subject, contribution: u32, elements: std::ops::Range<u64>) -> Vec<u8> {
    use proto_common::element::Dtype;
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
