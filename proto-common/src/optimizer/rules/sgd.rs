//! Stochastic gradient descent.

use crate::optimizer::elements::{Block, Whole};
use crate::optimizer::real::Real;
use crate::optimizer::rule::{Factors, Form, UpdateRule, rule};

rule! {
    /// Stochastic gradient descent, optionally with momentum and Nesterov momentum.
    Sgd {
        /// Share of the last step that is kept.
        momentum: f32 = 0.0, Share;
        /// Nesterov momentum, in the form of Sutskever et al. 2013. Without momentum it has no effect.
        nesterov: bool = false, UpToOne;
    }
}

impl UpdateRule for Sgd {
    const CLASS: &'static str = "SGD";

    #[inline]
    fn arrays(&self, form: Form) -> &'static [&'static str] {
        match form {
            _ if self.momentum == 0.0 => &[],
            Form::Published => &["momentum"],
            // With the rate that they had.
            Form::Mxnet => &["steps"],
        }
    }

    #[inline(always)]
    fn at_once<T: Real, W: Whole<T>>(&self, factors: &Factors, chunk: W) -> Option<W> {
        if self.momentum != 0.0 || factors.decay != 0.0 {
            return Some(chunk);
        }
        let [rate, scale] = [factors.rate, factors.scale].map(T::of);
        chunk.stateless(move |w, s| w - rate * (s * scale));
        None
    }

    /// With d the gradient: w - lr * d; with momentum m = mu * m + d, and w - lr * m, or (nesterov) w - lr * (d + mu * m).
    /// In MXNet's form m = mu * m + lr * d, and w - m, or (nesterov) w - (mu * m + lr * d).
    #[inline(always)]
    fn update<T: Real>(&self, factors: &Factors, block: Block<'_, T>, gradient: impl Fn(T, T) -> T + Copy) {
        let [rate, mu] = [factors.rate, f64::from(self.momentum)].map(T::of);
        let nesterov = self.nesterov;
        match factors.form {
            _ if self.momentum == 0.0 => block.stateless(|w, s| w - rate * gradient(w, s)),
            Form::Mxnet => block.with_one(|w, s, m| {
                let step = rate * gradient(w, s);
                let m = mu * m + step;
                (if nesterov { w - (mu * m + step) } else { w - m }, m)
            }),
            Form::Published if nesterov => block.with_one(|w, s, m| {
                let d = gradient(w, s);
                let m = mu * m + d;
                (w - rate * (d + mu * m), m)
            }),
            Form::Published => block.with_one(|w, s, m| {
                let m = mu * m + gradient(w, s);
                (w - rate * m, m)
            }),
        }
    }

    #[cfg(test)]
    fn frozen() -> Option<(Self, &'static str, &'static str)> {
        Some((
            Self { momentum: 0.5, nesterov: true },
            "020000000000003f01",
            r#"{"sgd":{"momentum":0.5,"nesterov":true}}"#,
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optimizer::tests::agrees;

    #[test]
    fn it_is_the_formula() {
        for (momentum, nesterov) in [(0.0, false), (0.9, false), (0.9, true)] {
            let (rule, mu) = (Sgd { momentum, nesterov }, f64::from(momentum));
            agrees(rule, |x, [m, _], round| {
                let d = round.decayed(x);
                if round.form == Form::Mxnet {
                    *m = mu * *m - round.rate * d;
                    return x + if nesterov { mu * *m - round.rate * d } else { *m };
                }
                *m = mu * *m + d;
                x - round.rate * if nesterov { d + mu * *m } else { *m }
            });
        }
    }
}
