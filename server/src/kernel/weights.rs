//! The loop that all rules share: weights in place or out of place, with the arrays that a rule keeps.

use super::{Element, Operand, Real};

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

#[expect(
    clippy::needless_range_loop,
    reason = "over iterators the operand's bounds would be checked each time"
)]
impl<E: Element> Weights<'_, E> {
    /// (new, state) = rule(old, sum, state), element by element.
    #[inline(always)]
    pub(super) fn apply<S: State>(
        self,
        sum: impl Operand<E::Sum>,
        mut state: S,
        rule: impl Fn(E::Sum, E::Sum, S::Values) -> (E::Sum, S::Values),
    ) {
        let count = self.count();
        check(count, sum.count());
        state.check(count);
        match self {
            Self::InPlace(weights) => {
                for i in 0..count {
                    let (new, values) = rule(weights[i], sum.at(i), state.at(i));
                    weights[i] = new;
                    state.set(i, values);
                }
            }
            Self::OutOfPlace { old, new } => {
                check(count, old.len());
                for i in 0..count {
                    let (value, values) = rule(old[i], sum.at(i), state.at(i));
                    new[i] = value;
                    state.set(i, values);
                }
            }
            Self::Rounded { master, new } => {
                check(count, master.len());
                for i in 0..count {
                    let (value, values) = rule(master[i], sum.at(i), state.at(i));
                    master[i] = value;
                    new[i] = E::round(value);
                    state.set(i, values);
                }
            }
        }
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

/// Once per pass, so that the loops need no check of their own.
#[inline(always)]
fn check(count: usize, found: usize) {
    assert_eq!(found, count, "elements of an operand");
}
