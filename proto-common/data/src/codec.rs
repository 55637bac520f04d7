//! Codecs: how a worker compresses a gradient before it is sent, chunk by chunk, and how the server decodes it. Owns
//! the configuration, the encoded bytes and the loops over them. It must not store anything between rounds: what a
//! codec leaves out (the error feedback) belongs to its caller.
//!
//! A chunk of n f32 is encoded separately, into a number of bytes that depends only on n, so both sides know it. All
//! numbers are little-endian. Lengths are multiples of 4, and the rest of the last word is 0.
//!
//! | codec | wire id | bytes | what they are |
//! | --- | --- | --- | --- |
//! | `plain` | 0 | 4n | the f32 themselves |
//! | `f16`, `bf16` | 1, 2 | 2n | nearest halves; of finite numbers beyond the largest finite half, that one |
//! | `onebit` | 3 | 4 + n/8 | f32 scale, the mean magnitude; then a bit each, 1 where negative: ±scale |
//! | `twobit:T` | 4 | n/4 | 2 bits each: 1 is +T (at least T), 2 is -T (at most -T), 0 is 0, 3 is NaN |
//! | `topk:S` | 5 | 8k | the k = round(S n), at least 1, largest magnitudes: u32 places, rising, then their f32 |
//! | `randomk:S` | 6 | 8 + 4k | u64 seed, then the f32 of one place of each of k stretches, which the seed picks |
//! | `dither:B` | 7 | 4 + Bn/8 | f32 step; then B bits each, sign and magnitude in steps, rounded up or down at random |
//!
//! A chunk with an infinite element or NaN decodes to what is not finite either, so that all workers see it: halves keep each such
//! element, and of the other codecs all numbers that are sent are NaN.
//!
//! Within a word the first element has the lowest bits. Sources: `onebit` is Karimireddy et al. 2019 (EF-signSGD,
//! after Seide et al. 2014), `twobit` is MXNet's, `topk` Aji and Heafield 2017, `randomk` Stich et al. 2018, `dither`
//! QSGD (Alistarh et al. 2017) with linear steps of the largest magnitude. Error feedback is from Seide et al.
//!
//! Sums have one fixed order, and random numbers are functions of the seed, so every machine produces the same bytes.

mod config;
mod dither;
mod halves;
mod malformed;
mod pick;
mod signs;
mod sparse;
#[cfg(test)]
mod tests;

use crate::half::{BF16_MAX, F16_MAX, bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
use crate::ids::{ChunkId, Rank};

pub use config::{Codec, CodecError, Compression};
pub use malformed::Malformed;

/// The source of the random numbers for one chunk's encoding.
#[must_use]
pub fn seed(chunk: ChunkId, round: u64, rank: Rank) -> u64 {
    let parts = [chunk.key.0, u64::from(chunk.chunk.0), round, u64::from(rank.0)];
    parts.into_iter().fold(0, |seed, part| pick::mix64(seed ^ part))
}

impl Codec {
    /// Bytes of an encoded chunk with this number of elements.
    #[must_use]
    pub fn encoded_bytes(&self, elements: usize) -> usize {
        match self {
            Self::Plain => elements.saturating_mul(4),
            Self::F16 | Self::Bf16 => elements.div_ceil(2).saturating_mul(4),
            Self::OneBit => signs::one_bit_bytes(elements),
            Self::TwoBit { .. } => signs::two_bit_bytes(elements),
            Self::TopK { share } => sparse::top_bytes(elements, *share),
            Self::RandomK { share } => sparse::random_bytes(elements, *share),
            Self::Dither { bits } => dither::bytes(elements, *bits),
        }
    }

    /// Encodes finite numbers. The difference to the encoded values is left in `values`: encoded + left = given.
    /// `into` has [`Codec::encoded_bytes`] bytes. `seed` comes from [`seed`].
    #[inline(always)]
    pub fn encode(&self, seed: u64, values: &mut [f32], into: &mut [u8]) {
        debug_assert_eq!(into.len(), self.encoded_bytes(values.len()), "bytes of an encoded chunk");
        match self {
            Self::Plain => halves::encode_plain(values, into),
            Self::F16 => halves::encode(values, into, F16_MAX, f32_to_f16, f16_to_f32),
            Self::Bf16 => halves::encode(values, into, BF16_MAX, f32_to_bf16, bf16_to_f32),
            Self::OneBit => signs::encode_one(values, into),
            Self::TwoBit { threshold } => signs::encode_two(*threshold, values, into),
            Self::TopK { share } => sparse::encode_top(*share, values, into),
            Self::RandomK { share } => sparse::encode_random(*share, seed, values, into),
            Self::Dither { bits } => dither::encode(*bits, seed as u32, values, into),
        }
    }

    /// Encodes a chunk that has an infinite element or NaN. Nothing is left of it for the next round.
    pub fn encode_not_finite(&self, values: &[f32], into: &mut [u8]) {
        into.fill(0);
        match self {
            Self::Plain | Self::F16 | Self::Bf16 => self.encode(0, &mut values.to_vec(), into),
            Self::OneBit | Self::Dither { .. } => malformed::set_scale(f32::NAN, into),
            Self::TwoBit { .. } => signs::encode_two_not_finite(values.len(), into),
            Self::TopK { .. } => sparse::encode_top_not_finite(into),
            Self::RandomK { .. } => sparse::encode_random_not_finite(into),
        }
    }

    /// Checks that these are the bytes of an encoded chunk with this number of elements.
    #[inline(always)]
    pub fn check(&self, elements: usize, encoded: &[u8]) -> Result<(), Malformed> {
        let (have, want) = (encoded.len(), self.encoded_bytes(elements));
        if have != want {
            return Err(Malformed::Length { have, want });
        }
        match self {
            Self::Plain => Ok(()),
            Self::F16 | Self::Bf16 => halves::check(elements, encoded),
            Self::OneBit => signs::check_one(elements, encoded),
            Self::TwoBit { .. } => signs::check_two(elements, encoded),
            Self::TopK { .. } => sparse::check_top(elements, encoded),
            Self::RandomK { .. } => Ok(()),
            Self::Dither { bits } => dither::check(*bits, elements, encoded),
        }
    }

    /// Decodes a chunk into all of its elements. Bytes that [`Codec::check`] rejects decode to arbitrary numbers,
    /// without a panic: a peer on shared memory can change them after the check.
    #[inline(always)]
    pub fn decode(&self, encoded: &[u8], into: &mut [f32]) {
        match self {
            Self::Plain => halves::decode_plain(encoded, into),
            Self::F16 => halves::decode(encoded, into, f16_to_f32),
            Self::Bf16 => halves::decode(encoded, into, bf16_to_f32),
            Self::OneBit => signs::decode_one(encoded, into),
            Self::TwoBit { threshold } => signs::decode_two(*threshold, encoded, into),
            Self::TopK { .. } => sparse::decode_top(encoded, into),
            Self::RandomK { .. } => sparse::decode_random(encoded, into),
            Self::Dither { bits } => dither::decode(*bits, encoded, into),
        }
    }
}
