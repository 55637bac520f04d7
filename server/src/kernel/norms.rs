//! Rules that need norms of a whole tensor (LAMB): the first half of their round, a chunk's step before it is scaled, and its
//! share of the norms. The second half is a plain step along it; what scales that is the whole tensor's, and not known here.

use super::{Element, Real};
use fabric::simd::{Pass, widest};
use proto_common::optimizer::Step;
use proto_common::optimizer::elements::{SquareSums, Steps};

/// Sums of squares: of the weights, and of the steps.
pub type Squares = [f64; 2];

/// The `sum` of a round's contributions becomes the chunk's step, and what the rule keeps moves on. Returns the sums of
/// the squares of weights and steps, in f64.
///
/// # Panics
/// They differ in length.
pub fn direction<T: Real + Element<Sum = T>>(
    step: &Step,
    sum: &mut [T],
    weights: &[T],
    state: [&mut [T]; 2],
) -> Squares {
    for found in [weights.len(), state[0].len(), state[1].len()] {
        assert_eq!(found, sum.len(), "elements of an operand");
    }
    let mut squares = SquareSums::default();
    widest(Direction { step, chunk: Steps { sum, weights, state, squares: &mut squares } });
    squares.totals()
}

/// What the rate of all chunks of a tensor is multiplied by: the norm of its weights over that of its steps; 1 where either
/// is 0.
#[must_use]
pub fn trust(chunks: impl Iterator<Item = Squares>) -> f64 {
    let [weights, steps] = chunks.fold([0.0, 0.0], |[w, s], [more_w, more_s]| [w + more_w, s + more_s]);
    if weights > 0.0 && steps > 0.0 { weights.sqrt() / steps.sqrt() } else { 1.0 }
}

struct Direction<'a, T> {
    step: &'a Step,
    chunk: Steps<'a, T>,
}

impl<T: Real> Pass for Direction<'_, T> {
    #[inline(always)]
    fn run(self) {
        self.step.direction(self.chunk);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto_common::optimizer::{Lamb, Optimizer};

    #[test]
    fn every_unit_gives_the_same_bits() {
        let values = |by: usize| (0..1003).map(|at| ((at * by) % 61) as f32 / 61.0 - 0.4).collect::<Vec<_>>();
        let step = Optimizer { weight_decay: 0.25, ..Optimizer::mean(Lamb::default(), 0.1) }.step(3, 2);
        let (weights, mut wide, mut plain) =
            (values(13), [values(7), values(17), values(5)], SquareSums::default());
        wide[2].iter_mut().for_each(|square| *square *= *square);
        let mut other = wide.clone();
        let [sum, first, second] = &mut wide;
        let found = direction(&step, sum, &weights, [first, second]);
        let [sum, first, second] = &mut other;
        let chunk = Steps { sum, weights: &weights, state: [first, second], squares: &mut plain };
        Direction { step: &step, chunk }.run();
        assert_eq!((found.map(f64::to_bits), wide), (plain.totals().map(f64::to_bits), other));
    }

    #[test]
    fn without_a_norm_the_step_is_as_it_is() {
        assert_eq!(trust([[9.0, 1.0], [7.0, 3.0]].into_iter()), 2.0);
        assert_eq!(trust([[0.0, 4.0]].into_iter()), 1.0);
        assert_eq!(trust([[4.0, 0.0]].into_iter()), 1.0);
    }
}
