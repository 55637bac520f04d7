//! Arithmetic on chunks: reduction and update rules, f32 in and out. Every operation is a plain multiply or
//! add in the order written here, never fused, so that every machine computes the same bits; loops are
//! written so that the compiler vectorises them.

use proto_common::optimizer::{Optimizer, OptimizerKind};

/// sum += contribution.
pub fn add(sum: &mut [f32], contribution: &[f32]) {
    for (s, c) in sum.iter_mut().zip(contribution) {
        *s += *c;
    }
}

/// The update rule of one round over part of a chunk.
///
/// `sum` holds the contributions' sum, `old` the weights in force, `new` receives the weights of the round,
/// `momentum` is the rule's own array (empty when it has none). All have one length.
///
/// | rule | new |
/// | --- | --- |
/// | `sum` | old + g |
/// | `assign` | g |
/// | `sgd` | old - lr * d, where d = g + decay * old, and with momentum m = mu * m + d, d = m |
///
/// g is the sum, times 1 / contributors where `average` is set.
pub fn update(
    rule: &Optimizer,
    contributors: u32,
    sum: &[f32],
    old: &[f32],
    new: &mut [f32],
    momentum: &mut [f32],
) {
    let scale = if rule.average { 1.0 / contributors as f32 } else { 1.0 };
    match rule.kind {
        OptimizerKind::Sum => {
            for ((n, o), s) in new.iter_mut().zip(old).zip(sum) {
                *n = *o + *s * scale;
            }
        }
        OptimizerKind::Sgd => sgd(rule, scale, sum, old, new, momentum),
        // Rules without a kernel are refused when a tensor is declared.
        _ => {
            for (n, s) in new.iter_mut().zip(sum) {
                *n = *s * scale;
            }
        }
    }
}

fn sgd(rule: &Optimizer, scale: f32, sum: &[f32], old: &[f32], new: &mut [f32], momentum: &mut [f32]) {
    let (lr, mu, decay) = (rule.learning_rate, rule.momentum, rule.weight_decay);
    let items = new.iter_mut().zip(old).zip(sum);
    // Weight decay of zero must not change bits (0 * inf), so it is a case of its own.
    match (mu != 0.0, decay != 0.0) {
        (false, false) => {
            for ((n, o), s) in items {
                *n = *o - lr * (*s * scale);
            }
        }
        (false, true) => {
            for ((n, o), s) in items {
                *n = *o - lr * (*s * scale + decay * *o);
            }
        }
        (true, false) => {
            for (((n, o), s), m) in items.zip(momentum) {
                *m = mu * *m + *s * scale;
                *n = *o - lr * *m;
            }
        }
        (true, true) => {
            for (((n, o), s), m) in items.zip(momentum) {
                *m = mu * *m + (*s * scale + decay * *o);
                *n = *o - lr * *m;
            }
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
            update(&rule, workers, &sum, &old, &mut new, &mut momentum);
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
