//! The loops that rules share: weights in place or out of place, and in place with the arrays that a rule keeps.

use super::{Element, Operand, Real, check};
use fabric::simd::{Pass, widest};

/// The weights that a rule changes.
#[derive(Debug)]
pub enum Weights<'a, E: Element> {
    /// Nobody reads them meanwhile.
    InPlace(&'a mut [E::Sum]),
    /// Read in one place and written in another, of one length.
    OutOfPlace {
        /// In force.
        old: &'a [E::Sum],
        /// To be.
        new: &'a mut [E::Sum],
    },
    /// Kept in the type of sums, and published rounded.
    Rounded {
        /// In force, then to be.
        master: &'a mut [E::Sum],
        /// To be, rounded.
        new: &'a mut [E],
    },
}

/// The arrays that a rule keeps from round to round: none, one or two.
pub(super) trait State {
    /// What they hold at one index.
    type Values;
    /// Panics where one is not of this length.
    fn check(&self, count: usize);
    fn at(&self, index: usize) -> Self::Values;
    fn set(&mut self, index: usize, values: Self::Values);
}

impl State for () {
    type Values = ();
    #[inline(always)]
    fn check(&self, _: usize) {}
    #[inline(always)]
    fn at(&self, _: usize) {}
    #[inline(always)]
    fn set(&mut self, _: usize, (): ()) {}
}

impl<T: Real> State for &mut [T] {
    type Values = T;
    #[inline(always)]
    fn check(&self, count: usize) {
        check(count, self.len());
    }
    #[inline(always)]
    fn at(&self, index: usize) -> T {
        self[index]
    }
    #[inline(always)]
    fn set(&mut self, index: usize, value: T) {
        self[index] = value;
    }
}

impl<T: Real> State for [&mut [T]; 2] {
    type Values = [T; 2];
    #[inline(always)]
    fn check(&self, count: usize) {
        check(count, self[0].len());
        check(count, self[1].len());
    }
    #[inline(always)]
    fn at(&self, index: usize) -> [T; 2] {
        [self[0][index], self[1][index]]
    }
    #[inline(always)]
    fn set(&mut self, index: usize, [first, second]: [T; 2]) {
        self[0][index] = first;
        self[1][index] = second;
    }
}

impl<E: Element> Weights<'_, E> {
    /// new = rule(old, sum), element by element.
    pub(super) fn apply(self, sum: impl Operand<E::Sum>, rule: impl Fn(E::Sum, E::Sum) -> E::Sum) {
        widest(Apply { weights: self, sum, rule });
    }

    /// How many.
    #[inline(always)]
    #[must_use]
    pub fn count(&self) -> usize {
        match self {
            Self::InPlace(weights) => weights.len(),
            Self::OutOfPlace { new, .. } => new.len(),
            Self::Rounded { new, .. } => new.len(),
        }
    }
}

struct Apply<'a, E: Element, S, R> {
    weights: Weights<'a, E>,
    sum: S,
    rule: R,
}

#[expect(
    clippy::needless_range_loop,
    reason = "over iterators the operand's bounds would be checked each time"
)]
impl<E: Element, S: Operand<E::Sum>, R: Fn(E::Sum, E::Sum) -> E::Sum> Pass for Apply<'_, E, S, R> {
    #[inline(always)]
    fn run(self) {
        let Self { weights, sum, rule } = self;
        let count = weights.count();
        check(count, sum.count());
        match weights {
            Weights::InPlace(weights) => {
                for i in 0..count {
                    weights[i] = rule(weights[i], sum.at(i));
                }
            }
            Weights::OutOfPlace { old, new } => {
                check(count, old.len());
                for i in 0..count {
                    new[i] = rule(old[i], sum.at(i));
                }
            }
            Weights::Rounded { master, new } => {
                check(count, master.len());
                for i in 0..count {
                    let value = rule(master[i], sum.at(i));
                    master[i] = value;
                    new[i] = E::round(value);
                }
            }
        }
    }
}

/// (weight, state) = rule(weight, sum, state), element by element.
#[inline(always)]
pub(super) fn each<T: Real, S: State>(
    weights: &mut [T],
    sum: &[T],
    mut state: S,
    rule: impl Fn(T, T, S::Values) -> (T, S::Values),
) {
    let count = weights.len();
    check(count, sum.len());
    state.check(count);
    for i in 0..count {
        let (weight, values) = rule(weights[i], sum[i], state.at(i));
        weights[i] = weight;
        state.set(i, values);
    }
}
