//! `plain`, `f16` and `bf16`: an element each.

use super::malformed::Malformed;

pub(super) fn encode_plain(values: &mut [f32], into: &mut [u8]) {
    for (value, out) in values.iter_mut().zip(into.as_chunks_mut::<4>().0) {
        *out = std::mem::take(value).to_le_bytes();
    }
}

pub(super) fn decode_plain(encoded: &[u8], into: &mut [f32]) {
    for (out, word) in into.iter_mut().zip(encoded.as_chunks::<4>().0) {
        *out = f32::from_le_bytes(*word);
    }
}

#[inline(always)]
pub(super) fn encode(
    values: &mut [f32],
    into: &mut [u8],
    max: f32,
    round: impl Fn(f32) -> u16,
    widen: impl Fn(u16) -> f32,
) {
    let count = values.len();
    let halves = into.as_chunks_mut::<2>().0;
    for (value, out) in values.iter_mut().zip(halves.iter_mut()) {
        // What is cut off is not left over: it would be sent for thousands of rounds, and as a gradient of another scale.
        let kept = if value.is_finite() { value.clamp(-max, max) } else { *value };
        let half = round(kept);
        *out = half.to_le_bytes();
        *value = kept - widen(half);
    }
    halves.iter_mut().skip(count).for_each(|out| *out = [0; 2]);
}

#[inline(always)]
pub(super) fn decode(encoded: &[u8], into: &mut [f32], widen: impl Fn(u16) -> f32) {
    for (out, half) in into.iter_mut().zip(encoded.as_chunks::<2>().0) {
        *out = widen(u16::from_le_bytes(*half));
    }
}

/// The odd half out is 0.
pub(super) fn check(elements: usize, encoded: &[u8]) -> Result<(), Malformed> {
    let halves = encoded.as_chunks::<2>().0;
    if halves.get(elements).is_some_and(|half| *half != [0; 2]) { Err(Malformed::Tail) } else { Ok(()) }
}
