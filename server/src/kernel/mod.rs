//! Arithmetic on chunks: reduction and update rules, f32 in and out. Every operation is a plain multiply or
//! add in the order written here, never fused, so that every machine computes the same bits; loops are
//! written so that the compiler vectorises them.

mod rules;
mod weights;

use fabric::F32s;
use fabric::simd::{Pass, widest};

pub use rules::update;
pub use weights::Weights;

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
        Weights::InPlace(self.sum)
            .apply(self.contribution, (), |sum, contribution, ()| (sum + contribution, ()));
    }
}

#[cfg(test)]
mod tests;
