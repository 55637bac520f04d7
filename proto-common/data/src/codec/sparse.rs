//! `topk` and `randomk`: some of the elements, the others 0.

use super::malformed::Malformed;
use super::pick;

/// Buckets of one pass over magnitudes: 31 bits in three passes of 11, 10 and 10.
const BUCKETS: usize = 1 << 11;

/// How many elements are sent: at least one.
fn kept(elements: usize, share: f32) -> usize {
    ((elements as f64 * f64::from(share)).round() as usize).max(1).min(elements)
}

pub(super) fn top_bytes(elements: usize, share: f32) -> usize {
    8 * kept(elements, share)
}

pub(super) fn random_bytes(elements: usize, share: f32) -> usize {
    8 + 4 * kept(elements, share)
}

fn magnitude(value: f32) -> u32 {
    value.to_bits() & 0x7fff_ffff
}

/// The bucket in which the `rank`-th largest of those that `select` has lies, and its rank within the bucket.
fn bucket(values: &[f32], rank: usize, select: impl Fn(u32) -> Option<usize>) -> (usize, usize) {
    let mut counts = [0u32; BUCKETS];
    for value in values {
        if let Some(count) = select(magnitude(*value)).and_then(|at| counts.get_mut(at)) {
            *count += 1;
        }
    }
    let mut left = rank;
    for (at, count) in counts.iter().enumerate().rev() {
        if left <= *count as usize {
            return (at, left);
        }
        left -= *count as usize;
    }
    (0, left)
}

/// The magnitude of the `rank`-th largest, and how many of that magnitude are among the `rank` largest.
fn threshold(values: &[f32], rank: usize) -> (u32, usize) {
    let (high, left) = bucket(values, rank, |bits| Some((bits >> 20) as usize));
    let high = high as u32;
    let (middle, left) =
        bucket(values, left, |bits| (bits >> 20 == high).then_some((bits >> 10 & 0x3ff) as usize));
    let above = high << 10 | middle as u32;
    let (low, left) = bucket(values, left, |bits| (bits >> 10 == above).then_some((bits & 0x3ff) as usize));
    (above << 10 | low as u32, left)
}

/// Of equal magnitudes the first ones.
pub(super) fn encode_top(share: f32, values: &mut [f32], into: &mut [u8]) {
    let count = kept(values.len(), share);
    let (least, mut equals) = threshold(values, count);
    let words = into.as_chunks_mut::<4>().0;
    let (places, numbers) = words.split_at_mut(count.min(words.len()));
    let mut out = places.iter_mut().zip(numbers);
    for (at, value) in values.iter_mut().enumerate() {
        let bits = magnitude(*value);
        let equal = bits == least && equals > 0;
        if bits > least || equal {
            equals -= usize::from(equal);
            let Some((place, number)) = out.next() else { return };
            *place = (at as u32).to_le_bytes();
            *number = std::mem::take(value).to_le_bytes();
        }
    }
}

fn places_and_numbers(encoded: &[u8]) -> (&[[u8; 4]], &[[u8; 4]]) {
    let words = encoded.as_chunks::<4>().0;
    words.split_at(words.len() / 2)
}

pub(super) fn check_top(elements: usize, encoded: &[u8]) -> Result<(), Malformed> {
    let (places, _) = places_and_numbers(encoded);
    let mut least = 0;
    for (at, place) in places.iter().enumerate() {
        let place = u32::from_le_bytes(*place) as usize;
        if place < least || place >= elements {
            return Err(Malformed::Place { at });
        }
        least = place + 1;
    }
    Ok(())
}

/// NaN in the first places.
pub(super) fn encode_top_not_finite(into: &mut [u8]) {
    let words = into.as_chunks_mut::<4>().0;
    let (places, numbers) = words.split_at_mut(words.len() / 2);
    for (at, (place, number)) in (0u32..).zip(places.iter_mut().zip(numbers)) {
        (*place, *number) = (at.to_le_bytes(), f32::NAN.to_le_bytes());
    }
}

/// NaN in the places that the seed 0 picks.
pub(super) fn encode_random_not_finite(into: &mut [u8]) {
    let Some((_, numbers)) = into.split_first_chunk_mut::<8>() else { return };
    numbers.as_chunks_mut::<4>().0.fill(f32::NAN.to_le_bytes());
}

pub(super) fn decode_top(encoded: &[u8], into: &mut [f32]) {
    let (places, numbers) = places_and_numbers(encoded);
    into.fill(0.0);
    for (place, number) in places.iter().zip(numbers) {
        if let Some(out) = into.get_mut(u32::from_le_bytes(*place) as usize) {
            *out = f32::from_le_bytes(*number);
        }
    }
}

/// One place in each of `count` stretches that tile the elements: rising, and each element as likely as its stretch is
/// short.
fn random_places(seed: u64, count: usize, elements: usize) -> impl Iterator<Item = usize> {
    let start = move |at: usize| (at as u64 * elements as u64 / count.max(1) as u64) as usize;
    (0..count).map(move |at| {
        let (first, end) = (start(at), start(at + 1));
        let random = u64::from(pick::mix32(seed as u32, at as u32) ^ (seed >> 32) as u32);
        first + ((random * (end - first) as u64) >> 32) as usize
    })
}

pub(super) fn encode_random(share: f32, seed: u64, values: &mut [f32], into: &mut [u8]) {
    let (elements, count) = (values.len(), kept(values.len(), share));
    let Some((first, numbers)) = into.split_first_chunk_mut::<8>() else { return };
    *first = seed.to_le_bytes();
    for (place, out) in random_places(seed, count, elements).zip(numbers.as_chunks_mut::<4>().0) {
        if let Some(value) = values.get_mut(place) {
            *out = std::mem::take(value).to_le_bytes();
        }
    }
}

pub(super) fn decode_random(encoded: &[u8], into: &mut [f32]) {
    into.fill(0.0);
    let Some((seed, numbers)) = encoded.split_first_chunk::<8>() else { return };
    let numbers = numbers.as_chunks::<4>().0;
    let places = random_places(u64::from_le_bytes(*seed), numbers.len(), into.len());
    for (place, number) in places.zip(numbers) {
        if let Some(out) = into.get_mut(place) {
            *out = f32::from_le_bytes(*number);
        }
    }
}
