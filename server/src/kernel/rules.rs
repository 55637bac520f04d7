//! The update rules, element by element.

use super::weights::each;
use super::{Element, Operand, Real, Weights, check, set};
use fabric::simd::{Pass, widest};
use proto_common::optimizer::{Form, Moments, Rule, Step};

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
/// `exchange` takes weight and array for each other. In MXNet's form:
///
/// | rule | new weight |
/// | --- | --- |
/// | `sgd` | m = mu * m + lr * d, and w - m, or (nesterov) w - (mu * m + lr * d) |
/// | `ada_grad` | h = h + g * g; w - lr * (g / sqrt(h + eps) + decay * w) |
/// | `rms_prop` | h as above; w - lr * d / sqrt(h + eps) |
/// | `adam`, `adam_w` | as above with eps / sqrt(c2) in the place of eps, and `adam_w`'s decay times sqrt(c2) / c1 |
///
/// g is the sum, times 1 / contributors where `average` is set, and times `rescale`; d = g + decay * w; lr is the round's rate;
/// c1 = 1 - b1^round, c2 = 1 - b2^round. The second arrays are `v` and `n`. `lamb` needs a whole tensor's norms, and goes two
/// ways: see `direction`, then `sgd` along it.
///
/// # Panics
/// They differ in length.
pub fn update<E: Element>(
    step: &Step,
    sum: impl Operand<E::Sum>,
    weights: Weights<'_, E>,
    state: [&mut [E::Sum]; 2],
) {
    let scale = E::Sum::of(step.scale);
    match step.rule {
        Rule::Sum => weights.apply(sum, move |w, s| w + s * scale),
        Rule::Assign => weights.apply(sum, move |_, s| s * scale),
        Rule::Sgd { momentum: 0.0, .. } if step.decay == 0.0 => {
            let rate = E::Sum::of(step.rate);
            weights.apply(sum, move |w, s| w - rate * (s * scale));
        }
        _ => in_blocks(step, sum, weights, state),
    }
}

/// Elements of a block: with its arrays it stays in the first-level cache.
const BLOCK: usize = 1024;

/// Runs a rule block by block: each block's sum is computed first, then the rule goes over it in place. So a rule is compiled once per type
/// of sums, and not for each of its 24 combinations with kinds of operands and of weights; memory is passed over once all the same.
fn in_blocks<E: Element>(
    step: &Step,
    operand: impl Operand<E::Sum>,
    mut weights: Weights<'_, E>,
    [first, second]: [&mut [E::Sum]; 2],
) {
    let count = weights.count();
    check(count, operand.count());
    match &weights {
        Weights::InPlace(_) => {}
        Weights::OutOfPlace { old, .. } => check(count, old.len()),
        Weights::Rounded { master, .. } => check(count, master.len()),
    }
    [&*first, &*second]
        .into_iter()
        .filter(|array| !array.is_empty())
        .for_each(|array| check(count, array.len()));
    if let (Some(sum), Weights::InPlace(weights)) = (operand.slice(), &mut weights) {
        return widest(Update { step, sum, weights, state: [first, second] });
    }
    let mut sums = [E::Sum::default(); BLOCK];
    for start in (0..count).step_by(BLOCK) {
        let block = start..count.min(start + BLOCK);
        let sum = &mut sums[..block.len()];
        set(sum, operand.part(block.clone()));
        let state = [&mut *first, &mut *second].map(|array| match array.is_empty() {
            true => array,
            false => &mut array[block.clone()],
        });
        match &mut weights {
            Weights::InPlace(weights) => {
                widest(Update { step, sum, weights: &mut weights[block], state });
            }
            Weights::OutOfPlace { old, new } => {
                let weights = &mut new[block.clone()];
                weights.copy_from_slice(&old[block]);
                widest(Update { step, sum, weights, state });
            }
            Weights::Rounded { master, new } => {
                let weights = &mut master[block.clone()];
                widest(Update { step, sum, weights: &mut *weights, state });
                widest(Round::<E> { exact: weights, rounded: &mut new[block] });
            }
        }
    }
}

struct Round<'a, E: Element> {
    exact: &'a [E::Sum],
    rounded: &'a mut [E],
}

impl<E: Element> Pass for Round<'_, E> {
    #[inline(always)]
    fn run(self) {
        for (rounded, exact) in self.rounded.iter_mut().zip(self.exact) {
            *rounded = E::round(*exact);
        }
    }
}

/// A rule over weights in place.
struct Update<'a, T> {
    step: &'a Step,
    sum: &'a [T],
    weights: &'a mut [T],
    state: [&'a mut [T]; 2],
}

impl<T: Real> Pass for Update<'_, T> {
    #[inline(always)]
    fn run(self) {
        let [rate, decay, _] = self.numbers();
        match self.step.rule {
            Rule::Exchange { array } => self.exchange(array),
            Rule::AdamW(moments) => {
                let rate = if self.is_mxnets() { T::of(self.step.corrected_rate()) } else { rate };
                self.adam(moments, move |w| w - rate * decay * w, |_, g| g);
            }
            // Its decay is no part of what is squared.
            Rule::AdaGrad { epsilon } if self.is_mxnets() => self.ada_grad_below(epsilon),
            // Weight decay of zero must not change bits (0 * inf), so it is a case of its own.
            _ if self.step.decay == 0.0 => self.decayed(|_, g| g),
            _ => self.decayed(move |w, g| g + decay * w),
        }
    }
}

impl<T: Real> Update<'_, T> {
    /// Rate, weight decay, and what the sum is multiplied by.
    #[inline(always)]
    fn numbers(&self) -> [T; 3] {
        [self.step.rate, self.step.decay, self.step.scale].map(T::of)
    }

    #[inline(always)]
    fn exchange(self, array: u8) {
        match self.state.into_iter().nth(usize::from(array)).filter(|kept| !kept.is_empty()) {
            Some(kept) => each(self.weights, self.sum, kept, |w, _, kept| (kept, w)),
            None => each(self.weights, self.sum, (), |w, _, ()| (w, ())),
        }
    }

    #[inline(always)]
    fn is_mxnets(&self) -> bool {
        self.step.form == Form::Mxnet
    }

    /// The rules whose gradient has the weight decay in it: `d` of weight and gradient.
    #[inline(always)]
    fn decayed(self, d: impl Fn(T, T) -> T + Copy) {
        let [rate, _, scale] = self.numbers();
        let of = |constant: f32| T::of(f64::from(constant));
        match self.step.rule {
            Rule::Sgd { momentum: 0.0, .. } => {
                each(self.weights, self.sum, (), |w, s, ()| (w - rate * d(w, s * scale), ()));
            }
            Rule::Sgd { momentum, nesterov } if self.is_mxnets() => self.steps(of(momentum), nesterov, d),
            Rule::Sgd { momentum, nesterov } => self.momentum(of(momentum), nesterov, d),
            Rule::AdaGrad { epsilon } => {
                let ([first, _], epsilon) = (self.state, of(epsilon));
                each(self.weights, self.sum, first, |w, s, h| {
                    let d = d(w, s * scale);
                    let h = h + d * d;
                    (w - rate * d / (h.root() + epsilon), h)
                });
            }
            Rule::RmsProp { decay, epsilon } => {
                let ([first, _], epsilon) = (self.state, of(epsilon));
                let (kept, fresh) = (of(decay), of(1.0) - of(decay));
                if self.step.form == Form::Mxnet {
                    each(self.weights, self.sum, first, |w, s, h| {
                        let d = d(w, s * scale);
                        let h = kept * h + fresh * (d * d);
                        (w - rate * d / (h + epsilon).root(), h)
                    });
                    return;
                }
                each(self.weights, self.sum, first, |w, s, h| {
                    let d = d(w, s * scale);
                    let h = kept * h + fresh * (d * d);
                    (w - rate * d / (h.root() + epsilon), h)
                });
            }
            Rule::Adam(moments) => self.adam(moments, |w| w, d),
            Rule::Ftrl { beta, l1, l2 } => self.ftrl([beta, l1, l2].map(of), d),
            // Not here: see `update` and `run`.
            Rule::Sum | Rule::Assign | Rule::AdamW(_) | Rule::Lamb(_) | Rule::Exchange { .. } => {}
        }
    }

    #[inline(always)]
    fn momentum(self, mu: T, nesterov: bool, d: impl Fn(T, T) -> T) {
        let [rate, _, scale] = self.numbers();
        let [first, _] = self.state;
        if nesterov {
            each(self.weights, self.sum, first, |w, s, m| {
                let d = d(w, s * scale);
                let m = mu * m + d;
                (w - rate * (d + mu * m), m)
            });
        } else {
            each(self.weights, self.sum, first, |w, s, m| {
                let m = mu * m + d(w, s * scale);
                (w - rate * m, m)
            });
        }
    }

    /// Momentum in MXNet's form: what is kept are steps.
    #[inline(always)]
    fn steps(self, mu: T, nesterov: bool, d: impl Fn(T, T) -> T) {
        let [rate, _, scale] = self.numbers();
        let [first, _] = self.state;
        each(self.weights, self.sum, first, |w, s, m| {
            let step = rate * d(w, s * scale);
            let m = mu * m + step;
            (if nesterov { w - (mu * m + step) } else { w - m }, m)
        });
    }

    #[inline(always)]
    fn ada_grad_below(self, epsilon: f32) {
        let [rate, decay, scale] = self.numbers();
        let ([first, _], epsilon) = (self.state, T::of(f64::from(epsilon)));
        each(self.weights, self.sum, first, |w, s, h| {
            let g = s * scale;
            let h = h + g * g;
            (w - rate * (g / (h + epsilon).root() + decay * w), h)
        });
    }

    #[inline(always)]
    fn adam(self, moments: Moments, shrunk: impl Fn(T) -> T, d: impl Fn(T, T) -> T) {
        let [rate, _, scale] = self.numbers();
        let Moments { beta1, beta2, epsilon } = moments;
        let of = |constant: f32| T::of(f64::from(constant));
        let (beta1, beta2, epsilon, one) = (of(beta1), of(beta2), of(epsilon), of(1.0));
        let (rate, root) = (rate / T::of(self.step.bias1), T::of(self.step.bias2).root());
        let epsilon = if self.is_mxnets() { epsilon / root } else { epsilon };
        each(self.weights, self.sum, self.state, |w, s, [m, v]| {
            let d = d(w, s * scale);
            let m = beta1 * m + (one - beta1) * d;
            let v = beta2 * v + (one - beta2) * (d * d);
            (shrunk(w) - rate * m / (v.root() / root + epsilon), [m, v])
        });
    }

    #[inline(always)]
    fn ftrl(self, [beta, l1, l2]: [T; 3], d: impl Fn(T, T) -> T) {
        let [rate, _, scale] = self.numbers();
        each(self.weights, self.sum, self.state, |w, s, [z, n]| {
            let d = d(w, s * scale);
            let squares = n + d * d;
            let z = z + d - (squares.root() - n.root()) / rate * w;
            let pulled = (l1.signed_as(z) - z) / ((beta + squares.root()) / rate + l2);
            (if z.magnitude() <= l1 { T::default() } else { pulled }, [z, squares])
        });
    }
}
