//! FTRL-proximal.

use crate::optimizer::bounds::Range;
use crate::optimizer::elements::Block;
use crate::optimizer::real::Real;
use crate::optimizer::rule::{Factors, Form, UpdateRule, rule};

rule! {
    /// FTRL-proximal (McMahan et al. 2013). It does not support a schedule.
    Ftrl {
        /// Added to the root of the sum of squares.
        beta: f32 = 1.0, NotNegative;
        /// L1 weight.
        l1: f32 = 0.0, NotNegative;
        /// L2 weight.
        l2: f32 = 0.0, NotNegative;
    }
}

impl UpdateRule for Ftrl {
    const CLASS: &'static str = "FTRL";
    // It divides by the rate.
    const RATE: Range = Range::Positive;
    const TAKES_SCHEDULE: bool = false;

    #[inline]
    fn arrays(&self, _: Form) -> &'static [&'static str] {
        &["z", "n"]
    }

    /// With d the gradient: n' = n + d * d; z = z + d - (sqrt(n') - sqrt(n)) / lr * w; 0 where abs(z) <= l1, else (sign(z) *
    /// l1 - z) / ((beta + sqrt(n')) / lr + l2).
    #[inline(always)]
    fn update<T: Real>(&self, factors: &Factors, block: Block<'_, T>, gradient: impl Fn(T, T) -> T + Copy) {
        let rate = T::of(factors.rate);
        let [beta, l1, l2] = [self.beta, self.l1, self.l2].map(|constant| T::of(f64::from(constant)));
        block.with_two(|w, s, [z, n]| {
            let d = gradient(w, s);
            let squares = n + d * d;
            let z = z + d - (squares.root() - n.root()) / rate * w;
            let pulled = (l1.signed_as(z) - z) / ((beta + squares.root()) / rate + l2);
            (if z.magnitude() <= l1 { T::default() } else { pulled }, [z, squares])
        });
    }

    #[cfg(test)]
    fn frozen() -> Option<(Self, &'static str, &'static str)> {
        Some((
            Self { beta: 1.0, l1: 0.5, l2: 0.25 },
            "080000000000803f0000003f0000803e",
            r#"{"ftrl":{"beta":1.0,"l1":0.5,"l2":0.25}}"#,
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optimizer::tests::agrees;

    #[test]
    fn it_is_the_formula_and_weights_are_zero_below_l1() {
        let (rule, mut zeros) = (Ftrl { beta: 1.0, l1: 0.1, l2: 0.01 }, 0);
        agrees(rule, |x, [z, n], round| {
            let (d, of) = (round.decayed(x), f64::from);
            let squares = *n + d * d;
            *z += d - (squares.sqrt() - n.sqrt()) / round.rate * x;
            *n = squares;
            let below = (of(rule.beta) + squares.sqrt()) / round.rate + of(rule.l2);
            zeros += u32::from(z.abs() <= of(rule.l1));
            if z.abs() <= of(rule.l1) { 0.0 } else { -(*z - z.signum() * of(rule.l1)) / below }
        });
        assert!(zeros > 0);
    }
}
