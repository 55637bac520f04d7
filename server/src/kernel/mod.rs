//! Arithmetic on chunks: reduction and update rules, f32 in and out. Every operation is a plain multiply or
//! add in the order written here, never fused, so that every machine computes the same bits; loops are
//! written so that the compiler vectorises them.

use fabric::F32s;
use fabric::simd::{Pass, widest};
use proto_common::optimizer::{Optimizer, OptimizerKind};

/// One operand of a rule, element by element, wherever it lies.
pub trait Operand: Copy {
    /// Elements.
    fn count(self) -> usize;
    /// The element at `index`; panics where there is none.
    fn at(self, index: usize) -> f32;
}

impl Operand for &[f32] {
    #[inline(always)]
    fn count(self) -> usize {
        self.len()
    }
    #[inline(always)]
    fn at(self, index: usize) -> f32 {
        self[index]
    }
}

impl Operand for F32s<'_> {
    #[inline(always)]
    fn count(self) -> usize {
        F32s::len(&self)
    }
    #[inline(always)]
    fn at(self, index: usize) -> f32 {
        F32s::at(&self, index)
    }
}

/// The sum of two operands of one length.
#[derive(Clone, Copy, Debug)]
pub struct Both<A, B>(pub A, pub B);

impl<A: Operand, B: Operand> Operand for Both<A, B> {
    #[inline(always)]
    fn count(self) -> usize {
        self.0.count().min(self.1.count())
    }
    #[inline(always)]
    fn at(self, index: usize) -> f32 {
        self.0.at(index) + self.1.at(index)
    }
}

/// sum += contribution.
///
/// # Panics
/// They differ in length.
pub fn add(sum: &mut [f32], contribution: impl Operand) {
    widest(Add { sum, contribution });
}

struct Add<'a, C> {
    sum: &'a mut [f32],
    contribution: C,
}

impl<C: Operand> Pass for Add<'_, C> {
    #[inline(always)]
    fn run(self) {
        Weights::InPlace(self.sum).apply(self.contribution, |sum, contribution| sum + contribution);
    }
}

/// The weights that a rule changes: read at `old` and written at `new`, or the same memory.
#[derive(Debug)]
pub enum Weights<'a> {
    /// Nobody reads them meanwhile.
    InPlace(&'a mut [f32]),
    /// Of one length.
    OutOfPlace {
        /// In force.
        old: &'a [f32],
        /// To be.
        new: &'a mut [f32],
    },
}

#[expect(
    clippy::needless_range_loop,
    reason = "over iterators the operand's bounds would be checked each time"
)]
impl Weights<'_> {
    /// new = rule(old, sum), element by element.
    #[inline(always)]
    fn apply(self, sum: impl Operand, rule: impl Fn(f32, f32) -> f32) {
        match self {
            Self::InPlace(weights) => {
                let count = weights.len();
                check(count, sum);
                for i in 0..count {
                    weights[i] = rule(weights[i], sum.at(i));
                }
            }
            Self::OutOfPlace { old, new } => {
                let count = new.len();
                check(count, sum);
                check(count, old);
                for i in 0..count {
                    new[i] = rule(old[i], sum.at(i));
                }
            }
        }
    }

    /// As `apply`, with an array of the rule's own that it changes.
    #[inline(always)]
    fn apply_with(self, sum: impl Operand, state: &mut [f32], rule: impl Fn(f32, f32, &mut f32) -> f32) {
        match self {
            Self::InPlace(weights) => {
                let count = weights.len();
                check(count, sum);
                check(count, &*state);
                for i in 0..count {
                    weights[i] = rule(weights[i], sum.at(i), &mut state[i]);
                }
            }
            Self::OutOfPlace { old, new } => {
                let count = new.len();
                check(count, sum);
                check(count, old);
                check(count, &*state);
                for i in 0..count {
                    new[i] = rule(old[i], sum.at(i), &mut state[i]);
                }
            }
        }
    }
}

/// Once per pass, so that the loops need no check of their own.
#[inline(always)]
fn check(count: usize, operand: impl Operand) {
    assert_eq!(operand.count(), count, "elements of an operand");
}

/// The update rule of one round over part of a chunk.
///
/// `sum` holds the contributions' sum, `momentum` is the rule's own array (empty when it has none). All have
/// one length.
///
/// | rule | new |
/// | --- | --- |
/// | `sum` | old + g |
/// | `assign` | g |
/// | `sgd` | old - lr * d, where d = g + decay * old, and with momentum m = mu * m + d, d = m |
///
/// g is the sum, times 1 / contributors where `average` is set.
///
/// # Panics
/// They differ in length.
pub fn update(
    rule: &Optimizer,
    contributors: u32,
    sum: impl Operand,
    weights: Weights<'_>,
    momentum: &mut [f32],
) {
    let scale = if rule.average { 1.0 / contributors as f32 } else { 1.0 };
    widest(Update { rule, scale, sum, weights, momentum });
}

struct Update<'a, S> {
    rule: &'a Optimizer,
    scale: f32,
    sum: S,
    weights: Weights<'a>,
    momentum: &'a mut [f32],
}

impl<S: Operand> Pass for Update<'_, S> {
    #[inline(always)]
    fn run(self) {
        let Self { rule, scale, sum, weights, .. } = self;
        match rule.kind {
            OptimizerKind::Sum => weights.apply(sum, |o, s| o + s * scale),
            OptimizerKind::Sgd => Update { weights, ..self }.sgd(),
            // Rules without a kernel are refused when a tensor is declared.
            _ => weights.apply(sum, |_, s| s * scale),
        }
    }
}

impl<S: Operand> Update<'_, S> {
    #[inline(always)]
    fn sgd(self) {
        let Self { rule, scale, sum, weights, momentum } = self;
        let (lr, mu, decay) = (rule.learning_rate, rule.momentum, rule.weight_decay);
        // Weight decay of zero must not change bits (0 * inf), so it is a case of its own.
        match (mu != 0.0, decay != 0.0) {
            (false, false) => weights.apply(sum, |o, s| o - lr * (s * scale)),
            (false, true) => weights.apply(sum, |o, s| o - lr * (s * scale + decay * o)),
            (true, false) => weights.apply_with(sum, momentum, |o, s, m| {
                *m = mu * *m + s * scale;
                o - lr * *m
            }),
            (true, true) => weights.apply_with(sum, momentum, |o, s, m| {
                *m = mu * *m + (s * scale + decay * o);
                o - lr * *m
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// f64 reference of one element.
    fn reference(rule: &Optimizer, contributors: u32, sum: f32, old: f32, m: f32) -> (f64, f64) {
        let g = f64::from(sum) * if rule.average { 1.0 / f64::from(contributors) } else { 1.0 };
        match rule.kind {
            OptimizerKind::Sum => (f64::from(old) + g, f64::from(m)),
            OptimizerKind::Sgd => {
                let d = g + f64::from(rule.weight_decay) * f64::from(old);
                let m = if rule.momentum == 0.0 { d } else { f64::from(rule.momentum) * f64::from(m) + d };
                (f64::from(old) - f64::from(rule.learning_rate) * m, m)
            }
            _ => (g, f64::from(m)),
        }
    }

    proptest! {
        #[test]
        fn rules_agree_with_f64(values in prop::collection::vec((-10f32..10.0, -10f32..10.0, -1f32..1.0), 1..100),
                                workers in 1u32..9, rule in 0usize..6) {
            let rule = [Optimizer::sum(), Optimizer::assign(), Optimizer::sgd(0.1, 0.0, 0.0), Optimizer::sgd(0.1, 0.9, 0.0),
                        Optimizer::sgd(0.1, 0.0, 0.01), Optimizer::sgd(0.1, 0.9, 0.01)][rule];
            let sum: Vec<f32> = values.iter().map(|v| v.0).collect();
            let old: Vec<f32> = values.iter().map(|v| v.1).collect();
            let mut momentum: Vec<f32> = values.iter().map(|v| v.2).collect();
            let mut new = vec![0.0; sum.len()];
            let (mut placed, mut placed_momentum) = (old.clone(), momentum.clone());
            update(&rule, workers, &sum[..], Weights::OutOfPlace { old: &old, new: &mut new }, &mut momentum);
            update(&rule, workers, &sum[..], Weights::InPlace(&mut placed), &mut placed_momentum);
            prop_assert_eq!(&placed, &new, "the same bits in place");
            prop_assert_eq!(&placed_momentum, &momentum);
            for (i, (s, o, m)) in values.into_iter().enumerate() {
                let (want, want_m) = reference(&rule, workers, s, o, m);
                prop_assert!((f64::from(new[i]) - want).abs() < 1e-4, "{} {}", new[i], want);
                if rule.has_momentum() {
                    prop_assert!((f64::from(momentum[i]) - want_m).abs() < 1e-4);
                }
            }
        }
    }
}
