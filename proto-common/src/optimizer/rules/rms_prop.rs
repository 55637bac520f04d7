//! RMSProp.

use crate::optimizer::elements::Block;
use crate::optimizer::real::Real;
use crate::optimizer::rule::{Factors, Form, UpdateRule, rule};

rule! {
    /// RMSProp (Hinton's lecture 6e), not centred.
    RmsProp {
        /// Share of the mean square that is kept.
        decay: f32 = 0.99, Share;
        /// Added to the denominator.
        epsilon: f32 = 1e-8, Positive;
    }
}

impl UpdateRule for RmsProp {
    const CLASS: &'static str = "RMSProp";

    #[inline]
    fn arrays(&self, _: Form) -> &'static [&'static str] {
        &["mean square without correction"]
    }

    /// With d the gradient: h = rho * h + (1 - rho) * (d * d); w - lr * d / (sqrt(h) + eps). In MXNet's form, w - lr * d /
    /// sqrt(h + eps).
    #[inline(always)]
    fn update<T: Real>(&self, factors: &Factors, block: Block<'_, T>, gradient: impl Fn(T, T) -> T + Copy) {
        let [rate, kept, epsilon] = [factors.rate, f64::from(self.decay), f64::from(self.epsilon)].map(T::of);
        let fresh = T::of(1.0) - kept;
        match factors.form {
            Form::Published => block.with_one(|w, s, h| {
                let d = gradient(w, s);
                let h = kept * h + fresh * (d * d);
                (w - rate * d / (h.root() + epsilon), h)
            }),
            Form::Mxnet => block.with_one(|w, s, h| {
                let d = gradient(w, s);
                let h = kept * h + fresh * (d * d);
                (w - rate * d / (h + epsilon).root(), h)
            }),
        }
    }

    #[cfg(test)]
    fn frozen() -> Option<(Self, &'static str, &'static str)> {
        Some((
            Self { decay: 0.75, epsilon: 0.25 },
            "040000000000403f0000803e",
            r#"{"rms_prop":{"decay":0.75,"epsilon":0.25}}"#,
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optimizer::tests::agrees;

    #[test]
    fn it_is_the_formula() {
        let rule = RmsProp { decay: 0.9, epsilon: 1e-6 };
        agrees(rule, |x, [h, _], round| {
            let (d, rho, epsilon) = (round.decayed(x), f64::from(rule.decay), f64::from(rule.epsilon));
            *h = rho * *h + (1.0 - rho) * d * d;
            let below = if round.form == Form::Mxnet { (*h + epsilon).sqrt() } else { h.sqrt() + epsilon };
            x - round.rate * d / below
        });
    }
}
