//! Seeded random numbers that are the same on every machine: xoshiro256** started by splitmix64.
//!
//! Owns the generator only. It must never read a clock or the system's entropy.

/// Stream numbers keep the uses of one seed apart.
pub const STREAM_INIT: u64 = 0;
/// Stream of epoch e's row order is `STREAM_EPOCH + e`.
pub const STREAM_EPOCH: u64 = 1 << 32;
/// Stream of rank r's arrival jitter is `STREAM_JITTER + r`.
pub const STREAM_JITTER: u64 = 2 << 32;

/// A xoshiro256** generator (Blackman and Vigna), integer arithmetic only.
#[derive(Debug, Clone)]
pub struct Rng {
    state: [u64; 4],
}

impl Rng {
    /// The generator of one stream of a seed; streams are independent for all practical purposes.
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut mixed = seed;
        let mut origin = splitmix64(&mut mixed) ^ stream;
        let state = std::array::from_fn(|_| splitmix64(&mut origin));
        Self { state }
    }

    /// The next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        let [a, b, c, d] = self.state;
        let result = b.wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let (c2, d2) = (c ^ a, d ^ b);
        self.state = [a ^ d2, b ^ c2, c2 ^ (b << 17), d2.rotate_left(45)];
        result
    }

    /// A number in `0..bound` by multiply and shift; the bias, under bound / 2^64, does not matter here.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// A uniform number in [-1, 1) with 24 random bits: exact in f32, so equal on all machines.
    pub fn symmetric(&mut self) -> f32 {
        let bits = (self.next_u64() >> 40) as u32;
        bits as f32 * (2.0 / (1u32 << 24) as f32) - 1.0
    }

    /// Fisher-Yates.
    pub fn shuffle(&mut self, items: &mut [u32]) {
        for last in (1..items.len()).rev() {
            let pick = self.below(last as u64 + 1) as usize;
            items.swap(last, pick);
        }
    }
}

fn splitmix64(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splitmix_matches_the_published_sequence() {
        let mut state = 1_234_567;
        let got: [u64; 3] = std::array::from_fn(|_| splitmix64(&mut state));
        assert_eq!(got, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn xoshiro_matches_the_published_sequence() {
        let mut rng = Rng { state: [1, 2, 3, 4] };
        let got: [u64; 4] = std::array::from_fn(|_| rng.next_u64());
        assert_eq!(got, [11_520, 0, 1_509_978_240, 1_215_971_899_390_074_240]);
    }

    #[test]
    fn numbers_stay_in_their_ranges() {
        let mut rng = Rng::new(7, STREAM_INIT);
        for _ in 0..10_000 {
            assert!(rng.below(10) < 10);
            let x = rng.symmetric();
            assert!((-1.0..1.0).contains(&x));
        }
        assert_eq!(rng.below(1), 0);
    }

    #[test]
    fn streams_differ_and_repeat() {
        let first = |seed, stream| Rng::new(seed, stream).next_u64();
        assert_eq!(first(1, 5), first(1, 5));
        assert_ne!(first(1, 5), first(1, 6));
        assert_ne!(first(1, 5), first(2, 5));
    }
}
