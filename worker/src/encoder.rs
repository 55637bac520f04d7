//! What a worker does to the gradients of one tensor before they are sent: momentum, error feedback, the codec. Owns what
//! is kept from round to round; it must not know how encoded bytes travel.

use fabric::simd::{Pass, widest};
use proto_common::codec::{self, Codec, Compression};
use proto_common::ids::{ChunkId, ChunkIndex, Key, Rank};
use proto_common::tensor::TensorSpec;
use std::ops::Range;

/// See the module. An encoder has as much memory as the gradient, with momentum twice as much; it is
/// not sent, saved or restored: a worker that starts anew starts without.
#[derive(Debug)]
pub struct Encoder {
    key: Key,
    rank: Rank,
    compression: Compression,
    /// Elements of every chunk but the last.
    chunk_elements: usize,
    /// What was not sent yet; without error feedback it is thrown away.
    left: Vec<f32>,
    /// Empty without momentum.
    velocity: Vec<f32>,
}

impl Encoder {
    /// An encoder that has kept nothing yet; `None` where contributions are sent as they are. Chunks are those of the
    /// tensor's grid, so that results do not depend on how many servers there are.
    #[must_use]
    pub fn new(spec: &TensorSpec, chunk_bytes: u64, rank: Rank) -> Option<Self> {
        let (key, compression) = (spec.key, spec.compression);
        if compression.codec.is_plain() {
            return None;
        }
        let array = |count: u64| vec![0.0; usize::try_from(count).unwrap_or(usize::MAX)];
        let velocity = array(if compression.momentum > 0.0 { spec.elements } else { 0 });
        let chunk_elements = (chunk_bytes as usize / size_of::<f32>()).max(1);
        Some(Self { key, rank, compression, chunk_elements, left: array(spec.elements), velocity })
    }

    /// The codec.
    #[must_use]
    pub fn codec(&self) -> Codec {
        self.compression.codec
    }

    /// Bytes of the whole tensor, encoded.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let rest = self.left.len() % self.chunk_elements;
        let last = if rest > 0 { self.compression.codec.encoded_bytes(rest) } else { 0 };
        self.left.len() / self.chunk_elements * self.full_bytes() + last
    }

    /// Where a chunk lies in them.
    #[must_use]
    pub fn place(&self, chunk: ChunkIndex) -> Range<usize> {
        let start = chunk.0 as usize * self.full_bytes();
        start..self.bytes().min(start + self.full_bytes())
    }

    fn full_bytes(&self) -> usize {
        self.compression.codec.encoded_bytes(self.chunk_elements)
    }

    /// Encodes a round's gradient, which is as long as the tensor, into [`Encoder::bytes`].
    pub fn encode(&mut self, gradient: &[f32], round: u64, into: &mut [u8]) {
        debug_assert_eq!((gradient.len(), into.len()), (self.left.len(), self.bytes()));
        let (chunk_elements, full_bytes) = (self.chunk_elements, self.full_bytes());
        let mut velocity = self.velocity.chunks_mut(chunk_elements);
        let chunks = gradient.chunks(chunk_elements).zip(self.left.chunks_mut(chunk_elements));
        for (index, ((gradient, left), into)) in chunks.zip(into.chunks_mut(full_bytes)).enumerate() {
            let id = ChunkId { key: self.key, chunk: ChunkIndex(index as u32) };
            let (compression, seed) = (self.compression, codec::seed(id, round, self.rank));
            let velocity = velocity.next().unwrap_or_default();
            widest(Encode { compression, seed, gradient, velocity, left, into });
        }
    }
}

/// One chunk.
struct Encode<'a> {
    compression: Compression,
    seed: u64,
    gradient: &'a [f32],
    velocity: &'a mut [f32],
    left: &'a mut [f32],
    into: &'a mut [u8],
}

impl Pass for Encode<'_> {
    #[inline(always)]
    fn run(self) {
        let Self { compression: Compression { codec, feedback, momentum }, .. } = self;
        // All workers see such a chunk, and skip the step, as with a plain tensor. If it became part of what is kept, it would be sent for
        // ever.
        let magnitudes = self.gradient.iter().map(|value| value.to_bits() & 0x7fff_ffff);
        if magnitudes.fold(0, u32::max) >= f32::INFINITY.to_bits() {
            return codec.encode_not_finite(self.gradient, self.into);
        }
        // What adds up beyond the largest f32 stays it.
        let sum = |left: f32, value: f32| {
            let whole = if feedback { left + value } else { value };
            whole.clamp(f32::MIN, f32::MAX)
        };
        if self.velocity.is_empty() {
            for (left, gradient) in self.left.iter_mut().zip(self.gradient) {
                *left = sum(*left, *gradient);
            }
        } else {
            for ((left, gradient), velocity) in self.left.iter_mut().zip(self.gradient).zip(self.velocity) {
                *velocity = (momentum * *velocity + gradient).clamp(f32::MIN, f32::MAX);
                *left = sum(*left, gradient + momentum * *velocity);
            }
        }
        codec.encode(self.seed, self.left, self.into);
    }
}

#[cfg(test)]
#[path = "encoder_tests.rs"]
mod tests;
