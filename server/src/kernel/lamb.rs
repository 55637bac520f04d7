//! LAMB's first half: a chunk's step before it is scaled, and its share of the tensor's norms. The second half is a plain
//! step along it; what scales that is the whole tensor's, and not known here.

use super::{Element, Real};
use fabric::simd::{Pass, widest};
use proto_common::optimizer::{Moments, Step};

/// Squares are summed in so many sums by turns: one order with every vector unit.
const SUMS: usize = 8;

/// Sums of squares: of the weights, and of the steps.
pub type Squares = [f64; 2];

/// The `sum` of a round's contributions becomes the chunk's step, and what the rule keeps moves on. Returns the sums of
/// the squares of weights and steps, in f64.
///
/// With g the mean or sum, m = b1 * m + (1 - b1) * g; v = b2 * v + (1 - b2) * (g * g); the step of a weight w is
/// m / c1 / (sqrt(v) / sqrt(c2) + eps) + decay * w (You et al. 2020, algorithm 2), with c1 and c2 as of `adam`.
///
/// # Panics
/// They differ in length.
pub fn direction<T: Real + Element<Sum = T>>(
    step: &Step,
    moments: Moments,
    sum: &mut [T],
    weights: &[T],
    [first, second]: [&mut [T]; 2],
) -> Squares {
    for found in [weights.len(), first.len(), second.len()] {
        assert_eq!(found, sum.len(), "elements of an operand");
    }
    let mut squares = [[0.0; SUMS]; 2];
    widest(Direction { step, moments, sum, weights, first, second, squares: &mut squares });
    squares.map(total)
}

/// What the rate of all chunks of a tensor is multiplied by: the norm of its weights over that of its steps; 1 where either
/// is 0.
#[must_use]
pub fn trust(chunks: impl Iterator<Item = Squares>) -> f64 {
    let [weights, steps] = chunks.fold([0.0, 0.0], |[w, s], [more_w, more_s]| [w + more_w, s + more_s]);
    if weights > 0.0 && steps > 0.0 { weights.sqrt() / steps.sqrt() } else { 1.0 }
}

fn total(sums: [f64; SUMS]) -> f64 {
    let [a, b, c, d, e, f, g, h] = sums;
    ((a + b) + (c + d)) + ((e + f) + (g + h))
}

struct Direction<'a, T> {
    step: &'a Step,
    moments: Moments,
    sum: &'a mut [T],
    weights: &'a [T],
    first: &'a mut [T],
    second: &'a mut [T],
    squares: &'a mut [[f64; SUMS]; 2],
}

impl<T: Real> Pass for Direction<'_, T> {
    #[inline(always)]
    fn run(self) {
        let Self { step, moments, sum, weights, first, second, squares: [of_weights, of_steps] } = self;
        let Moments { beta1, beta2, epsilon } = moments;
        let [beta1, beta2, epsilon] = [beta1, beta2, epsilon].map(|constant| T::of(f64::from(constant)));
        let [one, scale, decay] = [1.0, step.scale, step.decay].map(T::of);
        let (bias1, root) = (T::of(step.bias1), T::of(step.bias2).root());
        let count = sum.len().min(weights.len()).min(first.len()).min(second.len());
        let mut at = 0;
        while at < count {
            let end = (at + SUMS).min(count);
            for i in at..end {
                let (g, w) = (sum[i] * scale, weights[i]);
                let m = beta1 * first[i] + (one - beta1) * g;
                let v = beta2 * second[i] + (one - beta2) * (g * g);
                let u = m / bias1 / (v.root() / root + epsilon) + decay * w;
                (first[i], second[i], sum[i]) = (m, v, u);
            }
            for i in at..end {
                let (w, u) = (weights[i].exact(), sum[i].exact());
                of_weights[i - at] += w * w;
                of_steps[i - at] += u * u;
            }
            at = end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto_common::optimizer::{Optimizer, Rule};

    const MOMENTS: Moments = Moments { beta1: 0.8, beta2: 0.95, epsilon: 1e-6 };

    struct Chunk {
        sum: Vec<f32>,
        weights: Vec<f32>,
        state: [Vec<f32>; 2],
    }

    fn chunk(count: usize) -> Chunk {
        let of = |at: usize, by: usize| ((at * by) % 61) as f32 / 61.0 - 0.4;
        let values = |by| (0..count).map(|at| of(at, by)).collect::<Vec<f32>>();
        Chunk {
            sum: values(7),
            weights: values(13),
            state: [values(17), values(5).iter().map(|v| v * v).collect()],
        }
    }

    fn step() -> Step {
        Optimizer { weight_decay: 0.25, ..Optimizer::mean(Rule::Lamb(MOMENTS), 0.1) }.step(3, 2)
    }

    #[test]
    fn it_is_the_formula_and_squares_are_of_all_elements() {
        for count in [1, 7, 8, 9, 1003] {
            let before = chunk(count);
            let mut after = chunk(count);
            let [first, second] = &mut after.state;
            let squares = direction(&step(), MOMENTS, &mut after.sum, &after.weights, [first, second]);
            let mut expected = [0.0, 0.0];
            let of = |x: f32| f64::from(x);
            let (b1, b2) = (of(MOMENTS.beta1), of(MOMENTS.beta2));
            for i in 0..count {
                let (g, w) = (of(before.sum[i]) / 2.0, of(before.weights[i]));
                let m = b1 * of(before.state[0][i]) + (1.0 - b1) * g;
                let v = b2 * of(before.state[1][i]) + (1.0 - b2) * g * g;
                let u = m / (1.0 - b1.powi(3)) / ((v / (1.0 - b2.powi(3))).sqrt() + 1e-6) + 0.25 * w;
                assert!((of(after.sum[i]) - u).abs() < 1e-5 * (1.0 + u.abs()), "{i} of {count}");
                assert!((of(after.state[0][i]) - m).abs() < 1e-6 && (of(after.state[1][i]) - v).abs() < 1e-6);
                expected = [expected[0] + w * w, expected[1] + u * u];
            }
            for (found, expected) in squares.iter().zip(expected) {
                assert!((found / expected - 1.0).abs() < 1e-5, "{count}: {found} {expected}");
            }
        }
    }

    #[test]
    fn every_unit_gives_the_same_bits() {
        let (mut wide, mut plain) = (chunk(1003), chunk(1003));
        let step = step();
        let [first, second] = &mut wide.state;
        let found = direction(&step, MOMENTS, &mut wide.sum, &wide.weights, [first, second]);
        let mut squares = [[0.0; SUMS]; 2];
        let Chunk { sum, weights, state: [first, second] } = &mut plain;
        Direction { step: &step, moments: MOMENTS, sum, weights, first, second, squares: &mut squares }.run();
        assert_eq!(found.map(f64::to_bits), squares.map(total).map(f64::to_bits));
        assert_eq!((&wide.sum, &wide.state), (&plain.sum, &plain.state));
    }

    #[test]
    fn without_a_norm_the_step_is_as_it_is() {
        assert_eq!(trust([[9.0, 1.0], [7.0, 3.0]].into_iter()), 2.0);
        assert_eq!(trust([[0.0, 4.0]].into_iter()), 1.0);
        assert_eq!(trust([[4.0, 0.0]].into_iter()), 1.0);
    }
}
