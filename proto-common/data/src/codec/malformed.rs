//! Encoded chunks that are invalid for their codec, and what several codecs share to check and decode one. It must not know a codec.

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
    /// A scale or step that is infinite or below 0.
    #[error("the scale of an encoded chunk is infinite or negative")]
    Scale,
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

/// Decodes words of `ROW` elements each, the last one possibly of fewer: each element from its word and its place in it.
#[inline(always)]
pub(super) fn decode_words<const ROW: usize>(
    words: &[[u8; 4]],
    into: &mut [f32],
    element: impl Fn(u32, usize) -> f32,
) {
    let (rows, rest) = into.as_chunks_mut::<ROW>();
    let spread = |row: &mut [f32], word: &[u8; 4]| {
        let word = u32::from_le_bytes(*word);
        for (place, out) in row.iter_mut().enumerate() {
            *out = element(word, place);
        }
    };
    for (row, word) in rows.iter_mut().zip(words) {
        spread(row, word);
    }
    if let Some(word) = words.get(rows.len()) {
        spread(rest, word);
    }
}

/// Sets the leading f32.
pub(super) fn set_scale(scale: f32, into: &mut [u8]) {
    if let Some(first) = into.first_chunk_mut() {
        *first = scale.to_le_bytes();
    }
}

/// A scale or a step: not negative and finite, or NaN in a chunk that was not finite.
pub(super) fn check_scale(scale: f32) -> Result<(), Malformed> {
    if scale.is_nan() || scale.is_finite() && scale >= 0.0 { Ok(()) } else { Err(Malformed::Scale) }
}

/// Checks that all bits after the last of `elements` codes of `bits` bits are 0.
pub(super) fn check_tail(elements: usize, bits: usize, words: &[[u8; 4]]) -> Result<(), Malformed> {
    let used = elements * bits % 32;
    let tail = words.last().map_or(0, |word| u32::from_le_bytes(*word) >> used);
    if used > 0 && tail != 0 { Err(Malformed::Tail) } else { Ok(()) }
}
