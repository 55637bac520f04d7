//! `onebit` and `twobit`: signs in words of 32 bits.

use super::malformed::{Malformed, after_scale, check_scale, check_tail, decode_words};

/// Partial sums: one order of additions, whatever the width of the vector unit.
const LANES: usize = 16;

pub(super) fn one_bit_bytes(elements: usize) -> usize {
    4 + 4 * elements.div_ceil(32)
}

pub(super) fn two_bit_bytes(elements: usize) -> usize {
    4 * elements.div_ceil(16)
}

/// The mean magnitude; 0 of none. In f64, where no sum of f32 overflows.
#[inline(always)]
fn mean_magnitude(values: &[f32]) -> f32 {
    let mut lanes = [0.0f64; LANES];
    let (rows, rest) = values.as_chunks::<LANES>();
    for row in rows {
        for (lane, value) in lanes.iter_mut().zip(row) {
            *lane += f64::from(value.abs());
        }
    }
    for (lane, value) in lanes.iter_mut().zip(rest) {
        *lane += f64::from(value.abs());
    }
    (lanes.iter().sum::<f64>() / values.len().max(1) as f64) as f32
}

#[inline(always)]
pub(super) fn encode_one(values: &mut [f32], into: &mut [u8]) {
    let scale = mean_magnitude(values);
    let Some((first, words)) = into.as_chunks_mut::<4>().0.split_first_mut() else { return };
    *first = scale.to_le_bytes();
    let (rows, rest) = values.as_chunks_mut::<32>();
    let mut words = words.iter_mut();
    for (row, out) in rows.iter_mut().zip(words.by_ref()) {
        *out = signs_of(row, scale).to_le_bytes();
    }
    if let Some(out) = words.next() {
        *out = signs_of(rest, scale).to_le_bytes();
    }
}

/// The sign bits of up to 32 values, which keep what is left of them.
#[inline(always)]
fn signs_of(values: &mut [f32], scale: f32) -> u32 {
    let mut word = 0;
    for (place, value) in values.iter_mut().enumerate() {
        let sign = value.to_bits() >> 31;
        word |= sign << place;
        *value -= signed(scale, sign);
    }
    word
}

#[inline(always)]
fn signed(scale: f32, sign: u32) -> f32 {
    f32::from_bits(scale.to_bits() ^ (sign << 31))
}

#[inline(always)]
pub(super) fn decode_one(encoded: &[u8], into: &mut [f32]) {
    let (scale, words) = after_scale(encoded);
    decode_words::<32>(words, into, |word, place| signed(scale, (word >> place) & 1));
}

pub(super) fn check_one(elements: usize, encoded: &[u8]) -> Result<(), Malformed> {
    let (scale, words) = after_scale(encoded);
    check_scale(scale)?;
    check_tail(elements, 1, words)
}

#[inline(always)]
pub(super) fn encode_two(threshold: f32, values: &mut [f32], into: &mut [u8]) {
    let (rows, rest) = values.as_chunks_mut::<16>();
    let mut words = into.as_chunks_mut::<4>().0.iter_mut();
    for (row, out) in rows.iter_mut().zip(words.by_ref()) {
        *out = codes_of(row, threshold).to_le_bytes();
    }
    if let Some(out) = words.next() {
        *out = codes_of(rest, threshold).to_le_bytes();
    }
}

/// The codes of up to 16 values, which keep what is left of them.
#[inline(always)]
fn codes_of(values: &mut [f32], threshold: f32) -> u32 {
    let mut word = 0;
    for (place, value) in values.iter_mut().enumerate() {
        let code = u32::from(*value >= threshold) | u32::from(*value <= -threshold) << 1;
        word |= code << (2 * place);
        *value -= stepped(threshold, code);
    }
    word
}

#[inline(always)]
fn stepped(threshold: f32, code: u32) -> f32 {
    let step = threshold * ((code & 1) as i32 - (code >> 1) as i32) as f32;
    if code == 3 { f32::NAN } else { step }
}

pub(super) fn encode_two_not_finite(elements: usize, into: &mut [u8]) {
    for (at, out) in into.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let codes = elements.saturating_sub(16 * at).min(16);
        let word = ((1u64 << (2 * codes)) - 1) as u32;
        *out = word.to_le_bytes();
    }
}

#[inline(always)]
pub(super) fn decode_two(threshold: f32, encoded: &[u8], into: &mut [f32]) {
    let words = encoded.as_chunks::<4>().0;
    decode_words::<16>(words, into, |word, place| stepped(threshold, (word >> (2 * place)) & 3));
}

#[inline(always)]
pub(super) fn check_two(elements: usize, encoded: &[u8]) -> Result<(), Malformed> {
    let words = encoded.as_chunks::<4>().0;
    check_tail(elements, 2, words)
}
