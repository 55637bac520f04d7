//! What Adam and its relatives share: their constants, and the mean and the mean square of the gradients.

use crate::optimizer::elements::Block;
use crate::optimizer::real::Real;
use crate::optimizer::rule::{Factors, Form, rule};
use crate::optimizer::schedule::power;

rule! {
    /// The constants of Adam and its relatives.
    Moments {
        /// Share of the mean that is kept.
        beta1: f32 = 0.9, Share;
        /// Share of the mean square that is kept.
        beta2: f32 = 0.999, Share;
        /// Added to the denominator.
        epsilon: f32 = 1e-8, Positive;
    }
}

impl Moments {
    pub(super) const ARRAYS: &'static [&'static str] = &["mean", "mean square"];

    #[inline]
    pub(super) fn bias(&self, rounds: u64) -> [f64; 2] {
        [self.beta1, self.beta2].map(|beta| 1.0 - power(f64::from(beta), rounds))
    }

    /// With d the gradient, c1 = 1 - beta1^round and c2 = 1 - beta2^round: m = beta1 * m + (1 - beta1) * d; v = beta2 * v +
    /// (1 - beta2) * (d * d). Then the rule is given the weight, and m / c1 / (sqrt(v) / sqrt(c2) + eps) in its two factors:
    /// m, and what that is divided by but for c1.
    #[inline(always)]
    pub(super) fn means<T: Real>(
        &self,
        factors: &Factors,
        d: impl Fn(T, T) -> T + Copy,
        step: impl Fn(T, T, T) -> T,
    ) -> impl Fn(T, T, [T; 2]) -> (T, [T; 2]) {
        let [beta1, beta2, epsilon] = [self.beta1, self.beta2, self.epsilon].map(|it| T::of(f64::from(it)));
        let (one, root) = (T::of(1.0), T::of(factors.bias[1]).root());
        // MXNet adds epsilon before the correction.
        let epsilon = if factors.form == Form::Mxnet { epsilon / root } else { epsilon };
        move |w, s, [m, v]| {
            let d = d(w, s);
            let m = beta1 * m + (one - beta1) * d;
            let v = beta2 * v + (one - beta2) * (d * d);
            (step(w, m, v.root() / root + epsilon), [m, v])
        }
    }

    /// Adam's step from what `shrunk` makes of a weight: shrunk(w) - lr / c1 * m / (sqrt(v) / sqrt(c2) + eps).
    #[inline(always)]
    pub(super) fn adam<T: Real>(
        &self,
        factors: &Factors,
        block: Block<'_, T>,
        shrunk: impl Fn(T) -> T,
        d: impl Fn(T, T) -> T + Copy,
    ) {
        let rate = T::of(factors.rate) / T::of(factors.bias[0]);
        block.with_two(self.means(factors, d, move |w, m, below| shrunk(w) - rate * m / below));
    }

    /// Adam's step in f64, for tests.
    #[cfg(test)]
    pub(super) fn expected(
        &self,
        [m, v]: &mut [f64; 2],
        d: f64,
        round: &crate::optimizer::tests::Expected,
    ) -> f64 {
        let (b1, b2) = (f64::from(self.beta1), f64::from(self.beta2));
        *m = b1 * *m + (1.0 - b1) * d;
        *v = b2 * *v + (1.0 - b2) * d * d;
        let [c1, c2] = [b1, b2].map(|beta| 1.0 - beta.powi(round.number as i32));
        let epsilon = f64::from(self.epsilon);
        match round.form {
            Form::Mxnet => c2.sqrt() / c1 * *m / (v.sqrt() + epsilon),
            Form::Published => (*m / c1) / ((*v / c2).sqrt() + epsilon),
        }
    }
}
