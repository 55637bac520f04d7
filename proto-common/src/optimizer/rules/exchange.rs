//! How optimizer state is pulled.

use crate::optimizer::elements::Block;
use crate::optimizer::real::Real;
use crate::optimizer::rule::{Factors, Form, UpdateRule, rule};

rule! {
    /// Swaps weights with one array of the preceding rule's state, and ignores contributions. In this way optimizer state can
    /// be pulled. Applied twice, and with the old rule restored, it changes nothing.
    Exchange {
        /// The array, from 0. If it does not exist, weights are unchanged.
        array: u8 = 0, Any;
    }
}

impl UpdateRule for Exchange {
    const CLASS: &'static str = "Exchange";
    const IS_INTERNAL: bool = true;

    #[inline(always)]
    fn decays_gradient(&self, _: Form) -> bool {
        false
    }

    #[inline(always)]
    fn update<T: Real>(&self, _: &Factors, block: Block<'_, T>, _: impl Fn(T, T) -> T + Copy) {
        let Block { weights, sum, state } = block;
        let mut arrays = state.into_iter().filter(|array| !array.is_empty());
        if let Some(array) = arrays.nth(usize::from(self.array)) {
            let block = Block { weights, sum, state: [array, &mut []] };
            block.with_one(|w, _, kept| (kept, w));
        }
    }

    #[cfg(test)]
    fn frozen() -> Option<(Self, &'static str, &'static str)> {
        Some((Self { array: 1 }, "0900000001", r#"{"exchange":{"array":1}}"#))
    }
}
