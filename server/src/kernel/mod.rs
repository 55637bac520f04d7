//! Arithmetic on chunks: reduction and update rules, in f32, in f64 for tensors of that, and sums of integers. Every operation is a plain
//! multiply, add, divide or square root in the order written here, never fused, so that every machine computes the same
//! bits; loops are written so that the compiler vectorises them.

mod integers;
mod norms;
mod real;
mod rules;
mod weights;

use fabric::Numbers;
use fabric::simd::{Pass, widest};
use std::ops::Range;

pub use integers::{Integer, add_integers, fold_integers, write_integers};
pub use norms::{Squares, direction, trust};
pub use proto_common::optimizer::Real;
pub use real::{Bf16, Element, F16};
pub use rules::{Change, update};
pub use weights::Weights;

/// One operand of a rule, element by element, wherever it lies.
pub trait Operand<T>: Copy {
    /// Elements.
    fn count(self) -> usize;
    /// The element at `index`; panics where there is none.
    fn at(self, index: usize) -> T;
    /// Only these elements; panics where there is one too few.
    fn part(self, range: Range<usize>) -> Self;
    /// The elements, where they are computed already.
    fn slice(&self) -> Option<&[T]> {
        None
    }
}

impl<T: Real> Operand<T> for &[T] {
    #[inline(always)]
    fn count(self) -> usize {
        self.len()
    }
    #[inline(always)]
    fn at(self, index: usize) -> T {
        self[index]
    }
    fn part(self, range: Range<usize>) -> Self {
        &self[range]
    }
    fn slice(&self) -> Option<&[T]> {
        Some(self)
    }
}

/// A contribution in memory that its worker can write.
#[derive(Debug)]
pub struct Contribution<'a, E: Element>(pub Numbers<'a, E::Bits>);

impl<E: Element> Clone for Contribution<'_, E> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<E: Element> Copy for Contribution<'_, E> {}

impl<E: Element> Operand<E::Sum> for Contribution<'_, E> {
    #[inline(always)]
    fn count(self) -> usize {
        self.0.len()
    }
    #[inline(always)]
    fn at(self, index: usize) -> E::Sum {
        E::from_bits(self.0.at(index)).widen()
    }
    fn part(self, range: Range<usize>) -> Self {
        Self(self.0.part(range))
    }
}

/// The sum of two operands of one length.
#[derive(Clone, Copy, Debug)]
pub struct Both<A, B>(pub A, pub B);

impl<T: Real, A: Operand<T>, B: Operand<T>> Operand<T> for Both<A, B> {
    #[inline(always)]
    fn count(self) -> usize {
        self.0.count().min(self.1.count())
    }
    #[inline(always)]
    fn at(self, index: usize) -> T {
        self.0.at(index) + self.1.at(index)
    }
    fn part(self, range: Range<usize>) -> Self {
        Self(self.0.part(range.clone()), self.1.part(range))
    }
}

/// sum += contribution.
///
/// # Panics
/// They differ in length.
pub fn add<T: Real + Element<Sum = T>>(sum: &mut [T], contribution: impl Operand<T>) {
    widest(Fold { sum, contribution, fold: |sum, contribution| sum + contribution });
}

/// into = contribution.
///
/// # Panics
/// They differ in length.
pub fn set<T: Real + Element<Sum = T>>(into: &mut [T], contribution: impl Operand<T>) {
    widest(Fold { sum: into, contribution, fold: |_, contribution| contribution });
}

/// Once per pass, so that the loops need no check of their own.
#[inline(always)]
fn check(count: usize, found: usize) {
    assert_eq!(found, count, "elements of an operand");
}

struct Fold<'a, T, C, F> {
    sum: &'a mut [T],
    contribution: C,
    fold: F,
}

#[expect(
    clippy::needless_range_loop,
    reason = "over iterators the operand's bounds would be checked each time, and nothing vectorised"
)]
impl<T: Real + Element<Sum = T>, C: Operand<T>, F: Fn(T, T) -> T> Pass for Fold<'_, T, C, F> {
    #[inline(always)]
    fn run(self) {
        let Self { sum, contribution, fold } = self;
        let count = sum.len();
        check(count, contribution.count());
        for index in 0..count {
            sum[index] = fold(sum[index], contribution.at(index));
        }
    }
}

#[cfg(test)]
mod tests;
