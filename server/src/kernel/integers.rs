//! Integers: summed in i64, and written only where all of them fit. It must not decide what becomes of a round whose
//! values do not.

use fabric::simd::{Pass, widest};
use fabric::{Number, Numbers};
use std::fmt::Debug;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The integers that tensors are made of.
pub trait Integer: Number + Debug + Send + FromBytes + IntoBytes + Immutable + KnownLayout {
    /// Its value.
    fn wide(self) -> i64;
    /// The low bits of a value: another value where it does not fit.
    fn narrow(value: i64) -> Self;
}

macro_rules! integers {
    ($($(#[$_about:meta])* $_dtype:ident = $_wire:literal, $_numpy:literal, $_bytes:literal: $arithmetic:ident($element:ident);)*) => {
        $(integers! { @$arithmetic $element })*
    };
    (@Integer $integer:ident) => {
        impl Integer for $integer {
            #[inline(always)]
            fn wide(self) -> i64 {
                i64::from(self)
            }
            #[inline(always)]
            fn narrow(value: i64) -> Self {
                value as $integer
            }
        }
    };
    (@$_arithmetic:ident $_element:ident) => {};
}

proto_common::element_types!(integers);

/// sum = contribution, or sum += contribution. False where a sum leaves i64, in the order of the contributions; sums then
/// mean nothing.
///
/// # Panics
/// They differ in length.
#[must_use]
pub fn fold_integers<N: Integer>(sum: &mut [i64], contribution: Numbers<'_, N>, first: bool) -> bool {
    assert_eq!(contribution.len(), sum.len(), "elements of an operand");
    let mut left = 0;
    widest(Fold { sum, contribution, first, left: &mut left });
    left >= 0
}

struct Fold<'a, N> {
    sum: &'a mut [i64],
    contribution: Numbers<'a, N>,
    first: bool,
    /// Negative where a sum left i64.
    left: &'a mut i64,
}

#[expect(
    clippy::needless_range_loop,
    reason = "over iterators the contribution's bounds would be checked each time"
)]
impl<N: Integer> Pass for Fold<'_, N> {
    #[inline(always)]
    fn run(self) {
        let Self { sum, contribution, first, left } = self;
        let count = sum.len().min(contribution.len());
        if first {
            for i in 0..count {
                sum[i] = contribution.at(i).wide();
            }
            return;
        }
        let mut any = 0;
        for i in 0..count {
            sum[i] = plus(sum[i], contribution.at(i).wide(), &mut any);
        }
        *left |= any;
    }
}

/// a + b; `left` becomes negative where that leaves i64.
#[inline(always)]
fn plus(a: i64, b: i64, left: &mut i64) -> i64 {
    let sum = a.wrapping_add(b);
    *left |= (a ^ sum) & (b ^ sum);
    sum
}

/// new = sum, or new = old + sum where there is an old one. Nothing is written, and false is the answer, where a value
/// does not fit.
///
/// # Panics
/// They differ in length.
#[must_use]
pub fn write_integers<N: Integer>(sum: &mut [i64], old: Option<&[N]>, new: &mut [N]) -> bool {
    assert_eq!(new.len(), sum.len(), "elements of an operand");
    assert!(old.is_none_or(|old| old.len() == sum.len()), "elements of an operand");
    let mut misfit = false;
    widest(Check { sum, old, misfit: &mut misfit });
    if !misfit {
        widest(Write { sum, new });
    }
    !misfit
}

/// As [`write_integers`], of weights that are changed in place.
#[must_use]
pub fn add_integers<N: Integer>(sum: &mut [i64], weights: &mut [N]) -> bool {
    assert_eq!(weights.len(), sum.len(), "elements of an operand");
    let mut misfit = false;
    widest(Check { sum, old: Some(weights), misfit: &mut misfit });
    if !misfit {
        widest(Write { sum, new: weights });
    }
    !misfit
}

struct Check<'a, N> {
    sum: &'a mut [i64],
    old: Option<&'a [N]>,
    misfit: &'a mut bool,
}

impl<N: Integer> Pass for Check<'_, N> {
    #[inline(always)]
    fn run(self) {
        let Self { sum, old, misfit } = self;
        let (mut left, mut other) = (0, 0);
        match old {
            Some(old) => {
                for (sum, old) in sum.iter_mut().zip(old) {
                    *sum = plus(*sum, old.wide(), &mut left);
                    other |= N::narrow(*sum).wide() ^ *sum;
                }
            }
            None => sum.iter().for_each(|sum| other |= N::narrow(*sum).wide() ^ *sum),
        }
        *misfit |= left < 0 || other != 0;
    }
}

struct Write<'a, N> {
    sum: &'a [i64],
    new: &'a mut [N],
}

impl<N: Integer> Pass for Write<'_, N> {
    #[inline(always)]
    fn run(self) {
        for (new, sum) in self.new.iter_mut().zip(self.sum) {
            *new = N::narrow(*sum);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fabric::PeerWritable;
    use proptest::prelude::*;

    /// Contributions of one type in memory that peers write; with the numbers themselves, in i128.
    fn fold<N: Integer>(contributions: &[Vec<N>]) -> (bool, Vec<i64>, Vec<i128>) {
        let count = contributions[0].len();
        let (mut sum, mut exact, mut fits) = (vec![7; count], vec![0; count], true);
        for (at, contribution) in contributions.iter().enumerate() {
            let region = PeerWritable::allocate(1 + size_of_val(&contribution[..]), "integers").unwrap();
            region.write(1, contribution.as_bytes()).unwrap();
            fits &= fold_integers(&mut sum, region.numbers::<N>(1, count).unwrap(), at == 0);
            exact.iter_mut().zip(contribution).for_each(|(sum, c)| *sum += i128::from(c.wide()));
        }
        (fits, sum, exact)
    }

    fn check<N: Integer + PartialEq + std::fmt::Debug + TryFrom<i128>>(
        contributions: &[Vec<N>],
        old: &[N],
    ) -> Result<(), TestCaseError> {
        let (fits, mut sum, exact) = fold(contributions);
        prop_assert_eq!(fits, exact.iter().all(|sum| i64::try_from(*sum).is_ok()));
        if !fits {
            return Ok(());
        }
        let new: Vec<i128> = exact.iter().zip(old).map(|(sum, old)| sum + i128::from(old.wide())).collect();
        let new: Option<Vec<N>> = new.into_iter().map(|value| N::try_from(value).ok()).collect();
        let (mut in_place, mut again) = (old.to_vec(), sum.clone());
        prop_assert_eq!(add_integers(&mut again, &mut in_place), new.is_some());
        prop_assert_eq!(&in_place[..], new.as_deref().unwrap_or(old), "all are written, or none");
        let assigned: Option<Vec<N>> = exact.iter().map(|value| N::try_from(*value).ok()).collect();
        let mut out = old.to_vec();
        prop_assert_eq!(write_integers(&mut sum, None, &mut out), assigned.is_some());
        prop_assert_eq!(&out[..], assigned.as_deref().unwrap_or(old));
        Ok(())
    }

    proptest! {
        #[test]
        fn sums_are_exact_or_refused(
            a in prop::collection::vec(any::<[i8; 4]>(), 1..40),
            large in prop::collection::vec((0..3u32).prop_map(|at| [i64::MIN / 2, 1, i64::MAX / 2][at as usize]), 40),
        ) {
            let column = |at: usize| a.iter().map(|row| row[at]).collect::<Vec<i8>>();
            check::<i8>(&[column(0), column(1)], &column(2))?;
            let unsigned = |at: usize| column(at).into_iter().map(|x| x.unsigned_abs()).collect::<Vec<u8>>();
            check::<u8>(&[unsigned(0), unsigned(1)], &unsigned(2))?;
            let wide = |at: usize| column(at).into_iter().map(|x| i32::from(x) << 24).collect::<Vec<i32>>();
            check::<i32>(&[wide(0), wide(1), wide(2)], &wide(3))?;
            // Two cannot leave i64, so the order does not matter.
            check::<i64>(&[large.clone(), large.iter().rev().copied().collect()], &large)?;
        }
    }

    #[test]
    fn a_sum_that_leaves_i64_is_seen_even_if_it_comes_back() {
        let (fits, ..) = fold(&[vec![i64::MAX, 0], vec![1, 0], vec![-1, 0]]);
        assert!(!fits);
        let mut weights = [i64::MAX, 5];
        assert!(!add_integers(&mut [1, 1], &mut weights));
        assert_eq!(weights, [i64::MAX, 5]);
    }
}
