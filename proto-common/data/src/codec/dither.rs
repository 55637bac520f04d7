//! `dither`: a sign and a magnitude in steps, rounded so that the mean is right.

use super::malformed::{Malformed, after_scale, check_scale, check_tail, decode_words};
use super::pick;

pub(super) fn bytes(elements: usize, bits: u8) -> usize {
    4 + 4 * elements.div_ceil(per_word(bits))
}

fn per_word(bits: u8) -> usize {
    32 / usize::from(bits.clamp(1, 32))
}

#[inline(always)]
pub(super) fn encode(bits: u8, seed: u32, values: &mut [f32], into: &mut [u8]) {
    match bits {
        2 => encode_in::<2, 16>(seed, values, into),
        4 => encode_in::<4, 8>(seed, values, into),
        _ => encode_in::<8, 4>(seed, values, into),
    }
}

#[inline(always)]
pub(super) fn decode(bits: u8, encoded: &[u8], into: &mut [f32]) {
    match bits {
        2 => decode_in::<2, 16>(encoded, into),
        4 => decode_in::<4, 8>(encoded, into),
        _ => decode_in::<8, 4>(encoded, into),
    }
}

pub(super) fn check(bits: u8, elements: usize, encoded: &[u8]) -> Result<(), Malformed> {
    let (step, words) = after_scale(encoded);
    check_scale(step)?;
    check_tail(elements, usize::from(bits), words)
}

/// Magnitudes that `BITS` bits with a sign can say.
const fn most(bits: u32) -> u32 {
    (1 << (bits - 1)) - 1
}

/// How values become codes: a code is sign and steps.
#[derive(Clone, Copy)]
struct Steps {
    seed: u32,
    step: f32,
    per_step: f32,
}

impl Steps {
    #[inline(always)]
    fn of<const BITS: u32>(seed: u32, values: &[f32]) -> Self {
        let largest = values.iter().map(|value| value.to_bits() & 0x7fff_ffff).fold(0, u32::max);
        let step = f32::from_bits(largest) / most(BITS) as f32;
        // Of a step too small for its inverse nothing is sent: it stays with the caller.
        let step = if step.is_normal() { step } else { 0.0 };
        Self { seed, step, per_step: if step > 0.0 { 1.0 / step } else { 0.0 } }
    }

    #[inline(always)]
    fn codes<const BITS: u32>(self, first: usize, values: &mut [f32]) -> u32 {
        let mut word = 0;
        for (place, value) in values.iter_mut().enumerate() {
            let random = pick::unit(self.seed, (first + place) as u32);
            // Below 2^BITS: an i32 holds it, and the conversion cuts off what is behind the point.
            let steps = ((value.abs() * self.per_step + random) as i32 as u32).min(most(BITS));
            let code = (value.to_bits() >> 31) << (BITS - 1) | steps;
            word |= code << (BITS * place as u32);
            *value -= decoded::<BITS>(self.step, code);
        }
        word
    }
}

#[inline(always)]
fn decoded<const BITS: u32>(step: f32, code: u32) -> f32 {
    let magnitude = ((code & most(BITS)) as i32 as f32 * step).clamp(0.0, f32::MAX);
    f32::from_bits(magnitude.to_bits() | (code >> (BITS - 1)) << 31)
}

#[inline(always)]
fn encode_in<const BITS: u32, const ROW: usize>(seed: u32, values: &mut [f32], into: &mut [u8]) {
    let steps = Steps::of::<BITS>(seed, values);
    let Some((first, words)) = into.as_chunks_mut::<4>().0.split_first_mut() else { return };
    *first = steps.step.to_le_bytes();
    let (rows, rest) = values.as_chunks_mut::<ROW>();
    for (at, (row, out)) in rows.iter_mut().zip(words.iter_mut()).enumerate() {
        *out = steps.codes::<BITS>(at * ROW, row).to_le_bytes();
    }
    if let Some(out) = words.get_mut(rows.len()) {
        *out = steps.codes::<BITS>(rows.len() * ROW, rest).to_le_bytes();
    }
}

#[inline(always)]
fn decode_in<const BITS: u32, const ROW: usize>(encoded: &[u8], into: &mut [f32]) {
    let (step, words) = after_scale(encoded);
    decode_words::<ROW>(words, into, |word, place| {
        decoded::<BITS>(step, (word >> (BITS * place as u32)) & (2 * most(BITS) + 1))
    });
}
