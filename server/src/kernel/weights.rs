//! The weights of a chunk, wherever they are read and written, and the loop over them of rules without state.

use super::{Element, Operand, check};
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
