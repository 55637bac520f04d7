//! The rule `assign`.

use crate::optimizer::elements::{Block, Whole};
use crate::optimizer::real::Real;
use crate::optimizer::rule::{Factors, UpdateRule, rule};

rule! {
    /// value = sum of the contributions of the round (an all-reduce).
    Assign {}
}

impl UpdateRule for Assign {
    const CLASS: &'static str = "Assign";
    const STEPS: bool = false;
    const IS_EXACT: bool = true;

    #[inline(always)]
    fn at_once<T: Real, W: Whole<T>>(&self, factors: &Factors, chunk: W) -> Option<W> {
        let scale = T::of(factors.scale);
        chunk.stateless(move |_, s| s * scale);
        None
    }

    #[inline(always)]
    fn update<T: Real>(&self, _: &Factors, block: Block<'_, T>, gradient: impl Fn(T, T) -> T + Copy) {
        block.stateless(gradient);
    }

    #[cfg(test)]
    fn frozen() -> Option<(Self, &'static str, &'static str)> {
        Some((Self {}, "01000000", r#""assign""#))
    }
}
