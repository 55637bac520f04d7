//! Encoded chunks that are invalid for their codec, and the checks that several codecs share. It must not know a codec.

use thiserror::Error;

/// An encoded chunk that is invalid for its codec. The sender is to blame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Malformed {
    /// The length is not that of the chunk.
    #[error("an encoded chunk has {have} bytes, expected {want}")]
    Length {
        /// Received bytes.
        have: usize,
        /// Bytes of an encoded chunk.
        want: usize,
    },
    /// A scale, step or value that is not a finite number, or a scale below 0.
    #[error("number {at} of an encoded chunk is not finite, or is a negative scale")]
    Number {
        /// Its position.
        at: usize,
    },
    /// A two-bit code without a meaning.
    #[error("word {at} of an encoded chunk has an unknown code")]
    Code {
        /// The word.
        at: usize,
    },
    /// Positions that do not increase, or are beyond the chunk.
    #[error("index {at} of an encoded chunk does not increase, or is beyond the chunk")]
    Place {
        /// Which of the positions.
        at: usize,
    },
    /// Nonzero bits after the last element.
    #[error("the unused bits of the last word of an encoded chunk are not 0")]
    Tail,
}

/// The words after a leading f32, and that number; only words if the number is truncated.
#[inline(always)]
pub(super) fn after_scale(encoded: &[u8]) -> (f32, &[[u8; 4]]) {
    match encoded.as_chunks::<4>().0.split_first() {
        Some((scale, words)) => (f32::from_le_bytes(*scale), words),
        None => (0.0, &[]),
    }
}

/// A scale or a step: finite and not negative.
pub(super) fn check_scale(scale: f32) -> Result<(), Malformed> {
    if scale.is_finite() && scale >= 0.0 { Ok(()) } else { Err(Malformed::Number { at: 0 }) }
}

/// Checks that all bits after the last of `elements` codes of `bits` bits are 0.
pub(super) fn check_tail(elements: usize, bits: usize, words: &[[u8; 4]]) -> Result<(), Malformed> {
    let used = elements * bits % 32;
    let tail = words.last().map_or(0, |word| u32::from_le_bytes(*word) >> used);
    if used > 0 && tail != 0 { Err(Malformed::Tail) } else { Ok(()) }
}
