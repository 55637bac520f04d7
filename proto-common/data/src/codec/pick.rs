//! Random numbers as functions of a seed and a place: the same in any order, on any machine.

/// The finaliser of splitmix64 (Steele et al. 2014), after its step.
#[inline(always)]
pub(super) fn mix64(seed: u64) -> u64 {
    let z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// 32 bits of a place: Wellons' lowbias32 of place and seed.
#[inline(always)]
pub(super) fn mix32(seed: u32, place: u32) -> u32 {
    let x = place.wrapping_mul(0x9e37_79b9) ^ seed;
    let x = (x ^ (x >> 16)).wrapping_mul(0x7feb_352d);
    let x = (x ^ (x >> 15)).wrapping_mul(0x846c_a68b);
    x ^ (x >> 16)
}

/// A number from 0 to below 1 of a place.
#[inline(always)]
pub(super) fn unit(seed: u32, place: u32) -> f32 {
    (mix32(seed, place) >> 8) as f32 * (1.0 / (1 << 24) as f32)
}
