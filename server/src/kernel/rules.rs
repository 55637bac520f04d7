//! The update rules, element by element.

use super::{Operand, Weights};
use fabric::simd::{Pass, widest};
use proto_common::optimizer::{Moments, Rule, Step};

/// The update rule of one round over part of a chunk.
///
/// `sum` holds the contributions' sum, `state` the arrays that the rule keeps, as many as
/// `Optimizer::state_arrays` says, the others empty. All have one length.
///
/// | rule | new weight, from the old one `w` |
/// | --- | --- |
/// | `sum` | w + g |
/// | `assign` | g |
/// | `sgd` | w - lr * d; with momentum m = mu * m + d, and w - lr * m, or (nesterov) w - lr * (d + mu * m) |
/// | `ada_grad` | h = h + d * d; w - lr * d / (sqrt(h) + eps) |
/// | `rms_prop` | h = rho * h + (1 - rho) * (d * d); w - lr * d / (sqrt(h) + eps) |
/// | `adam` | m = b1 * m + (1 - b1) * d; v = b2 * v + (1 - b2) * (d * d); w - lr / c1 * m / (sqrt(v) / sqrt(c2) + eps) |
/// | `adam_w` | as `adam` of w - lr * decay * w, with g in the place of d |
/// | `ftrl` | n' = n + d * d; z = z + d - (sqrt(n') - sqrt(n)) / lr * w; 0 where abs(z) <= l1, else (sign(z) * l1 - z) / ((beta + sqrt(n')) / lr + l2) |
///
/// g is the sum, times 1 / contributors where `average` is set; d = g + decay * w; lr is the round's rate;
/// c1 = 1 - b1^round, c2 = 1 - b2^round. The second arrays are `v` and `n`. `lamb` has no kernel yet and is refused when a
/// tensor is declared.
///
/// # Panics
/// They differ in length.
pub fn update(step: &Step, sum: impl Operand, weights: Weights<'_>, state: [&mut [f32]; 2]) {
    widest(Update { step, sum, weights, state });
}

struct Update<'a, S> {
    step: &'a Step,
    sum: S,
    weights: Weights<'a>,
    state: [&'a mut [f32]; 2],
}

impl<S: Operand> Pass for Update<'_, S> {
    #[inline(always)]
    fn run(self) {
        let Step { rate, decay, scale, .. } = *self.step;
        match self.step.rule {
            Rule::Sum => self.weights.apply(self.sum, (), |w, s, ()| (w + s * scale, ())),
            Rule::Assign => self.weights.apply(self.sum, (), |_, s, ()| (s * scale, ())),
            Rule::AdamW(moments) => self.adam(moments, move |w| w - rate * decay * w, |_, g| g),
            // Weight decay of zero must not change bits (0 * inf), so it is a case of its own.
            _ if decay == 0.0 => self.decayed(|_, g| g),
            _ => self.decayed(move |w, g| g + decay * w),
        }
    }
}

impl<S: Operand> Update<'_, S> {
    /// The rules whose gradient has the weight decay in it: `d` of weight and gradient.
    #[inline(always)]
    fn decayed(self, d: impl Fn(f32, f32) -> f32 + Copy) {
        let Step { rate, scale, .. } = *self.step;
        let Self { step, sum, weights, state: [first, second] } = self;
        match step.rule {
            Rule::Sgd { momentum: 0.0, .. } => {
                weights.apply(sum, (), |w, s, ()| (w - rate * d(w, s * scale), ()));
            }
            Rule::Sgd { momentum, nesterov: false } => weights.apply(sum, first, |w, s, m| {
                let m = momentum * m + d(w, s * scale);
                (w - rate * m, m)
            }),
            Rule::Sgd { momentum, nesterov: true } => weights.apply(sum, first, |w, s, m| {
                let d = d(w, s * scale);
                let m = momentum * m + d;
                (w - rate * (d + momentum * m), m)
            }),
            Rule::AdaGrad { epsilon } => weights.apply(sum, first, |w, s, h| {
                let d = d(w, s * scale);
                let h = h + d * d;
                (w - rate * d / (h.sqrt() + epsilon), h)
            }),
            Rule::RmsProp { decay, epsilon } => weights.apply(sum, first, |w, s, h| {
                let d = d(w, s * scale);
                let h = decay * h + (1.0 - decay) * (d * d);
                (w - rate * d / (h.sqrt() + epsilon), h)
            }),
            Rule::Adam(moments) => {
                Update { step, sum, weights, state: [first, second] }.adam(moments, |w| w, d);
            }
            Rule::Ftrl { beta, l1, l2 } => {
                Update { step, sum, weights, state: [first, second] }.ftrl([beta, l1, l2], d);
            }
            // Not here, or refused when a tensor is declared.
            Rule::Sum | Rule::Assign | Rule::AdamW(_) | Rule::Lamb(_) => {}
        }
    }

    #[inline(always)]
    fn adam(self, moments: Moments, shrunk: impl Fn(f32) -> f32, d: impl Fn(f32, f32) -> f32) {
        let Step { rate, scale, bias1, bias2, .. } = *self.step;
        let Moments { beta1, beta2, epsilon } = moments;
        let (rate, root) = (rate / bias1, bias2.sqrt());
        self.weights.apply(self.sum, self.state, |w, s, [m, v]| {
            let d = d(w, s * scale);
            let m = beta1 * m + (1.0 - beta1) * d;
            let v = beta2 * v + (1.0 - beta2) * (d * d);
            (shrunk(w) - rate * m / (v.sqrt() / root + epsilon), [m, v])
        });
    }

    #[inline(always)]
    fn ftrl(self, [beta, l1, l2]: [f32; 3], d: impl Fn(f32, f32) -> f32) {
        let Step { rate, scale, .. } = *self.step;
        self.weights.apply(self.sum, self.state, |w, s, [z, n]| {
            let d = d(w, s * scale);
            let squares = n + d * d;
            let z = z + d - (squares.sqrt() - n.sqrt()) / rate * w;
            let pulled = (l1.copysign(z) - z) / ((beta + squares.sqrt()) / rate + l2);
            (if z.abs() <= l1 { 0.0 } else { pulled }, [z, squares])
        });
    }
}
