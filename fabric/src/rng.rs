//! Random numbers from a seed (SplitMix64), the same on every machine. It must not use any other source of randomness.

/// A small seeded generator. Not for secrets.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A generator whose whole future is decided by `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `bound`; 0 when `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        // The high half of a 128-bit product: no division, and no bias that a simulation could notice.
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// A number from `low` to `high`, both included; `low` when the range is empty.
    pub fn within(&mut self, low: u64, high: u64) -> u64 {
        low.saturating_add(self.below(high.saturating_sub(low).saturating_add(1)))
    }

    /// True in `per_10k` of 10,000 cases. A rate of 0 draws nothing.
    pub fn chance(&mut self, per_10k: u32) -> bool {
        per_10k > 0 && self.below(10_000) < u64::from(per_10k)
    }

    /// An independent generator, so that one part's draws do not shift another's.
    #[must_use]
    pub fn fork(&mut self) -> Self {
        Self(self.next_u64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frozen_and_within_bounds() {
        let mut rng = Rng::new(1);
        assert_eq!(rng.next_u64(), 0x910A_2DEC_8902_5CC1, "SplitMix64 of seed 1, the same on every machine");
        assert_eq!(rng.below(0), 0);
        assert_eq!(rng.below(1), 0);
        assert_eq!(rng.within(9, 9), 9);
        assert_eq!(rng.within(9, 3), 9);
        assert!((0..1000).all(|_| (3..=5).contains(&rng.within(3, 5))));
        assert!((0..1000).all(|_| !rng.chance(0) && rng.chance(10_000)));
        assert!((0..10).any(|_| rng.within(0, u64::MAX) > 1 << 32));
    }
}
