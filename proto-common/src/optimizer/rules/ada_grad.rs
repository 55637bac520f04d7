//! AdaGrad.

use crate::optimizer::elements::Block;
use crate::optimizer::real::Real;
use crate::optimizer::rule::{Factors, Form, UpdateRule, rule};

rule! {
    /// AdaGrad (Duchi et al. 2011).
    AdaGrad {
        /// Added to the denominator.
        epsilon: f32 = 1e-10, Positive;
    }
}

impl UpdateRule for AdaGrad {
    const CLASS: &'static str = "AdaGrad";

    #[inline]
    fn arrays(&self, _: Form) -> &'static [&'static str] {
        &["sum of squares"]
    }

    #[inline(always)]
    fn decays_gradient(&self, form: Form) -> bool {
        form == Form::Published
    }

    /// With d the gradient: h = h + d * d; w - lr * d / (sqrt(h) + eps). In MXNet's form, w - lr * (d / sqrt(h + eps) +
    /// decay * w), and decay is no part of d.
    #[inline(always)]
    fn update<T: Real>(&self, factors: &Factors, block: Block<'_, T>, gradient: impl Fn(T, T) -> T + Copy) {
        let [rate, decay, epsilon] = [factors.rate, factors.decay, f64::from(self.epsilon)].map(T::of);
        match factors.form {
            Form::Published => block.with_one(|w, s, h| {
                let d = gradient(w, s);
                let h = h + d * d;
                (w - rate * d / (h.root() + epsilon), h)
            }),
            Form::Mxnet => block.with_one(|w, s, h| {
                let g = gradient(w, s);
                let h = h + g * g;
                (w - rate * (g / (h + epsilon).root() + decay * w), h)
            }),
        }
    }

    #[cfg(test)]
    fn frozen() -> Option<(Self, &'static str, &'static str)> {
        Some((Self { epsilon: 0.25 }, "030000000000803e", r#"{"ada_grad":{"epsilon":0.25}}"#))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optimizer::tests::agrees;

    #[test]
    fn it_is_the_formula() {
        let rule = AdaGrad { epsilon: 1e-6 };
        agrees(rule, |x, [h, _], round| {
            let epsilon = f64::from(rule.epsilon);
            if round.form == Form::Mxnet {
                *h += round.g * round.g;
                return x - round.rate * (round.g / (*h + epsilon).sqrt() + round.decay * x);
            }
            let d = round.decayed(x);
            *h += d * d;
            x - round.rate * d / (h.sqrt() + epsilon)
        });
    }
}
