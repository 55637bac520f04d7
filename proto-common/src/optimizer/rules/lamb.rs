//! LAMB.

use super::moments::Moments;
use crate::optimizer::elements::{Block, Steps, Whole};
use crate::optimizer::real::Real;
use crate::optimizer::rule::{Factors, Form, UpdateRule, rule};

rule! {
    /// LAMB (You et al. 2020, algorithm 2, without bounds on the norms). It needs the norm of the whole tensor, so all of the
    /// tensor is on one lane of one server.
    Lamb(Moments)
}

impl UpdateRule for Lamb {
    const CLASS: &'static str = "LAMB";
    const NEEDS_NORMS: bool = true;

    #[inline]
    fn arrays(&self, _: Form) -> &'static [&'static str] {
        Moments::ARRAYS
    }

    #[inline]
    fn bias(&self, rounds: u64) -> [f64; 2] {
        self.0.bias(rounds)
    }

    /// m / c1 / (sqrt(v) / sqrt(c2) + eps) + decay * w: see [`Moments`].
    #[inline(always)]
    fn direction<T: Real>(&self, factors: &Factors, chunk: Steps<'_, T>) {
        let [scale, decay, bias1] = [factors.scale, factors.decay, factors.bias[0]].map(T::of);
        let published = Factors { form: Form::Published, ..*factors };
        chunk.with_two(self.0.means(
            &published,
            move |_, s| s * scale,
            move |w, m, below| m / bias1 / below + decay * w,
        ));
    }

    /// The sums are steps by now.
    #[inline(always)]
    fn at_once<T: Real, W: Whole<T>>(&self, factors: &Factors, chunk: W) -> Option<W> {
        let [rate, scale] = [factors.rate, factors.scale].map(T::of);
        chunk.stateless(move |w, s| w - rate * (s * scale));
        None
    }

    #[inline(always)]
    fn update<T: Real>(&self, factors: &Factors, block: Block<'_, T>, gradient: impl Fn(T, T) -> T + Copy) {
        let rate = T::of(factors.rate);
        block.stateless(|w, s| w - rate * gradient(w, s));
    }

    #[cfg(test)]
    fn frozen() -> Option<(Self, &'static str, &'static str)> {
        Some((
            Self(Moments { beta1: 0.8, beta2: 0.95, epsilon: 1e-6 }),
            "07000000cdcc4c3f3333733fbd378635",
            r#"{"lamb":{"beta1":0.8,"beta2":0.95,"epsilon":0.000001}}"#,
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optimizer::Optimizer;
    use crate::optimizer::elements::SquareSums;

    #[test]
    fn it_is_the_formula_and_squares_are_of_all_elements() {
        let moments = Moments { beta1: 0.8, beta2: 0.95, epsilon: 1e-6 };
        let step = Optimizer { weight_decay: 0.25, ..Optimizer::mean(Lamb(moments), 0.1) }.step(3, 2);
        let (b1, b2) = (f64::from(moments.beta1), f64::from(moments.beta2));
        for count in [1, 7, 8, 9, 1003] {
            let values = |by: usize| (0..count).map(move |at| ((at * by) % 61) as f32 / 61.0 - 0.4);
            let [sums, weights, means] = [7, 13, 17].map(|by| values(by).collect::<Vec<f32>>());
            let squares: Vec<f32> = values(5).map(|v| v * v).collect();
            let (mut steps, mut m, mut v) = (sums.clone(), means.clone(), squares.clone());
            let (state, mut found) = ([&mut m[..], &mut v[..]], SquareSums::default());
            step.direction(Steps { sum: &mut steps, weights: &weights, state, squares: &mut found });
            let mut expected = [0.0, 0.0];
            for i in 0..count {
                let of = |values: &[f32]| f64::from(values[i]);
                let (g, w) = (of(&sums) / 2.0, of(&weights));
                let mean = b1 * of(&means) + (1.0 - b1) * g;
                let square = b2 * of(&squares) + (1.0 - b2) * g * g;
                let below = (square / (1.0 - b2.powi(3))).sqrt() + 1e-6;
                let u = mean / (1.0 - b1.powi(3)) / below + 0.25 * w;
                assert!((of(&steps) - u).abs() < 1e-5 * (1.0 + u.abs()), "{i} of {count}");
                assert!((of(&m) - mean).abs() < 1e-6 && (of(&v) - square).abs() < 1e-6);
                expected = [expected[0] + w * w, expected[1] + u * u];
            }
            for (found, expected) in found.totals().iter().zip(expected) {
                assert!((found / expected - 1.0).abs() < 1e-5, "{count}: {found} {expected}");
            }
        }
    }
}
