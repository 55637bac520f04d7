//! AdamW.

use super::moments::Moments;
use crate::optimizer::elements::Block;
use crate::optimizer::real::Real;
use crate::optimizer::rule::{Factors, Form, UpdateRule, rule};

rule! {
    /// Adam with decoupled weight decay (Loshchilov and Hutter 2019).
    AdamW(Moments)
}

impl UpdateRule for AdamW {
    const CLASS: &'static str = "AdamW";

    #[inline]
    fn arrays(&self, _: Form) -> &'static [&'static str] {
        Moments::ARRAYS
    }

    #[inline]
    fn bias(&self, rounds: u64) -> [f64; 2] {
        self.0.bias(rounds)
    }

    #[inline(always)]
    fn decays_gradient(&self, _: Form) -> bool {
        false
    }

    /// As Adam, of w - lr * decay * w. MXNet corrects that rate, too: it is multiplied by sqrt(c2) / c1.
    #[inline(always)]
    fn update<T: Real>(&self, factors: &Factors, block: Block<'_, T>, gradient: impl Fn(T, T) -> T + Copy) {
        let [bias1, bias2] = factors.bias;
        let rate = match factors.form {
            Form::Published => factors.rate,
            Form::Mxnet => factors.rate * bias2.sqrt() / bias1,
        };
        let [rate, decay] = [rate, factors.decay].map(T::of);
        self.0.adam(factors, block, move |w| w - rate * decay * w, gradient);
    }

    #[cfg(test)]
    fn frozen() -> Option<(Self, &'static str, &'static str)> {
        Some((
            Self(Moments { beta1: 0.8, beta2: 0.95, epsilon: 1e-6 }),
            "06000000cdcc4c3f3333733fbd378635",
            r#"{"adam_w":{"beta1":0.8,"beta2":0.95,"epsilon":0.000001}}"#,
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
        agrees(AdamW(moments), |x, state, round| {
            let c = |beta: f32| 1.0 - f64::from(beta).powi(round.number as i32);
            let is_mxnets = round.form == Form::Mxnet;
            let corrected = if is_mxnets { c(moments.beta2).sqrt() / c(moments.beta1) } else { 1.0 };
            let adam = moments.expected(state, round.g, round);
            x - round.rate * corrected * round.decay * x - round.rate * adam
        });
    }
}
