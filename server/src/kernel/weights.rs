//! The loop that all rules share: weights in place or out of place, with the arrays that a rule keeps.

use super::Operand;

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

impl State for &mut [f32] {
    type Values = f32;
    #[inline(always)]
    fn check(&self, count: usize) {
        check(count, &**self);
    }
    #[inline(always)]
    fn at(&self, index: usize) -> f32 {
        self[index]
    }
    #[inline(always)]
    fn set(&mut self, index: usize, value: f32) {
        self[index] = value;
    }
}

impl State for [&mut [f32]; 2] {
    type Values = [f32; 2];
    #[inline(always)]
    fn check(&self, count: usize) {
        check(count, &*self[0]);
        check(count, &*self[1]);
    }
    #[inline(always)]
    fn at(&self, index: usize) -> [f32; 2] {
        [self[0][index], self[1][index]]
    }
    #[inline(always)]
    fn set(&mut self, index: usize, [first, second]: [f32; 2]) {
        self[0][index] = first;
        self[1][index] = second;
    }
}

#[expect(
    clippy::needless_range_loop,
    reason = "over iterators the operand's bounds would be checked each time"
)]
impl Weights<'_> {
    /// (new, state) = rule(old, sum, state), element by element.
    #[inline(always)]
    pub(super) fn apply<S: State>(
        self,
        sum: impl Operand,
        mut state: S,
        rule: impl Fn(f32, f32, S::Values) -> (f32, S::Values),
    ) {
        match self {
            Self::InPlace(weights) => {
                let count = weights.len();
                check(count, sum);
                state.check(count);
                for i in 0..count {
                    let (new, values) = rule(weights[i], sum.at(i), state.at(i));
                    weights[i] = new;
                    state.set(i, values);
                }
            }
            Self::OutOfPlace { old, new } => {
                let count = new.len();
                check(count, sum);
                check(count, old);
                state.check(count);
                for i in 0..count {
                    let (value, values) = rule(old[i], sum.at(i), state.at(i));
                    new[i] = value;
                    state.set(i, values);
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
