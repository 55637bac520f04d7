//! Adam.

use super::moments::Moments;
use crate::optimizer::elements::Block;
use crate::optimizer::real::Real;
use crate::optimizer::rule::{Factors, Form, UpdateRule, rule};

rule! {
    /// Adam (Kingma and Ba 2015), with bias correction.
    Adam(Moments)
}

impl UpdateRule for Adam {
    const CLASS: &'static str = "Adam";

    #[inline]
    fn arrays(&self, _: Form) -> &'static [&'static str] {
        Moments::ARRAYS
    }

    #[inline]
    fn bias(&self, rounds: u64) -> [f64; 2] {
        self.0.bias(rounds)
    }

    /// With d the gradient: see [`Moments`].
    #[inline(always)]
    fn update<T: Real>(&self, factors: &Factors, block: Block<'_, T>, gradient: impl Fn(T, T) -> T + Copy) {
        self.0.adam(factors, block, |w| w, gradient);
    }

    #[cfg(test)]
    fn frozen() -> Option<(Self, &'static str, &'static str)> {
        Some((
            Self(Moments { beta1: 0.8, beta2: 0.95, epsilon: 1e-6 }),
            "05000000cdcc4c3f3333733fbd378635",
            r#"{"adam":{"beta1":0.8,"beta2":0.95,"epsilon":0.000001}}"#,
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optimizer::tests::agrees;

    #[test]
    fn it_is_the_formula() {
        let moments = Moments { beta1: 0.8, beta2: 0.95, epsilon: 1e-6 };
        agrees(Adam(moments), |x, state, round| {
            x - round.rate * moments.expected(state, round.decayed(x), round)
        });
    }
}
