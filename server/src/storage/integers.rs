//! A chunk of integers: their sum, and whether it still means something. It must not know where published weights lie.

use super::array::{Array, Sum};
use super::cells::Place;
use super::error::StorageError;
use super::typed::{Round, Typed};
use crate::engine::{Addend, Onto, Verdict};
use crate::kernel::{Change, Integer, add_integers, fold_integers, write_integers};
use fabric::{Exclusive, OutOfBounds};
use proto_common::optimizer::{Rule, Step};
use std::marker::PhantomData;
use zerocopy::FromBytes;

/// See the module.
#[derive(Debug)]
pub(super) struct Integers<N> {
    sum: Array<i64>,
    /// A sum of this round left i64.
    left: bool,
    of: PhantomData<N>,
}

impl<N: Integer> Integers<N> {
    pub(super) fn zeros(elements: usize, _arrays: usize) -> Self {
        Self { sum: Array::zeros(elements), left: false, of: PhantomData }
    }

    fn fold(&mut self, from: Place<'_>, bytes: usize, first: bool) -> Result<(), OutOfBounds> {
        let elements = bytes / size_of::<N>();
        let contribution = from.numbers::<N>(elements)?;
        let fits = fold_integers(&mut self.sum[..elements], contribution, first);
        self.left = !fits || (self.left && !first);
        Ok(())
    }
}

impl<N: Integer> Typed for Integers<N> {
    fn reduce(&mut self, addend: Addend<Place<'_>>, bytes: usize) -> Result<(), OutOfBounds> {
        if let Onto::First(first) = addend.onto {
            self.fold(first, bytes, true)?;
        }
        self.fold(addend.from, bytes, matches!(addend.onto, Onto::Nothing))
    }

    /// Integers have two rules: what others do to the sum is refused when a tensor is declared.
    fn finish(
        &mut self,
        change: Change<'_>,
        round: &Round,
        last: Option<Addend<Place<'_>>>,
        buffers: &mut [Exclusive; 2],
        bytes: usize,
    ) -> Result<Verdict, StorageError> {
        if let Some(last) = last {
            self.reduce(last, bytes)?;
        }
        if std::mem::take(&mut self.left) {
            return Ok(Verdict::BadValue);
        }
        let sum = &mut self.sum[..bytes / size_of::<N>()];
        let [a, b] = buffers;
        let (into, other) = if round.into == 0 { (a, b) } else { (b, a) };
        let new = <[N]>::mut_from_bytes(&mut into[..bytes]).map_err(|_| StorageError::Elements)?;
        let fits = match change {
            Change::Listed(Step { rule: Rule::Sum, .. }) if round.into == round.old => add_integers(sum, new),
            Change::Listed(Step { rule: Rule::Sum, .. }) => {
                let old = <[N]>::ref_from_bytes(&other[..bytes]).map_err(|_| StorageError::Elements)?;
                write_integers(sum, Some(old), new)
            }
            _ => write_integers(sum, None, new),
        };
        Ok(if fits { Verdict::Fits } else { Verdict::BadValue })
    }

    fn sum(&self) -> &dyn Sum {
        &self.sum
    }

    fn sum_mut(&mut self) -> &mut dyn Sum {
        &mut self.sum
    }

    fn left(&mut self) -> Option<&mut bool> {
        Some(&mut self.left)
    }
}
