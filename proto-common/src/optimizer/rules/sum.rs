//! The rule `sum`.

use crate::optimizer::elements::{Block, Whole};
use crate::optimizer::real::Real;
use crate::optimizer::rule::{Factors, UpdateRule, rule};

rule! {
    /// value += sum of the contributions of the round (ps-lite's default handle).
    Sum {}
}

impl UpdateRule for Sum {
    const CLASS: &'static str = "Sum";
    const STEPS: bool = false;
    const IS_EXACT: bool = true;

    #[inline(always)]
    fn at_once<T: Real, W: Whole<T>>(&self, factors: &Factors, chunk: W) -> Option<W> {
        let scale = T::of(factors.scale);
        chunk.stateless(move |w, s| w + s * scale);
        None
    }

    #[inline(always)]
    fn update<T: Real>(&self, _: &Factors, block: Block<'_, T>, gradient: impl Fn(T, T) -> T + Copy) {
        block.stateless(|w, s| w + gradient(w, s));
    }

    #[cfg(test)]
    fn frozen() -> Option<(Self, &'static str, &'static str)> {
        Some((Self {}, "00000000", r#""sum""#))
    }
}
