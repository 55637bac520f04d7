//! A chunk's sum, and what its rule keeps, in the type that its elements are summed in. It must not know where
//! published weights lie, nor when a round is complete.

use super::array::{Array, Sum};
use super::cells::Place;
use super::error::StorageError;
use super::integers::Integers;
use super::typed::{Round, Typed};
use crate::engine::{Addend, Onto, Verdict};
use crate::kernel::{self, Bf16 as bf16, Both, Change, Contribution, Element, F16 as f16, Squares, Weights};
use fabric::{Exclusive, OutOfBounds};
use proto_common::element::Dtype;
use proto_common::optimizer::Step;
use zerocopy::{FromBytes, IntoBytes};

/// The names that the table of element types has.
mod of {
    pub(super) use super::{Integers as Integer, Reals as Float, Reals as Half};
}

macro_rules! typed {
    ($($(#[$_about:meta])* $dtype:ident = $_wire:literal, $_numpy:literal, $_bytes:literal: $arithmetic:ident($element:ident);)*) => {
        /// Zeros, and so many arrays of them that a rule keeps.
        pub(super) fn zeros(dtype: Dtype, elements: usize, arrays: usize) -> Box<dyn Typed> {
            match dtype {
                $(Dtype::$dtype => Box::new(of::$arithmetic::<$element>::zeros(elements, arrays)),)*
            }
        }
    };
}

proto_common::element_types!(typed);

/// A sum, and the arrays that a rule keeps; those are empty where it has none.
#[derive(Debug)]
pub(super) struct Reals<E: Element> {
    sum: Array<E::Sum>,
    state: [Vec<E::Sum>; 2],
    /// Where elements are published rounded: the weights themselves, as exact as the sums. Otherwise empty.
    exact: Vec<E::Sum>,
}

impl<E: Element> Reals<E> {
    const IS_ROUNDED: bool = size_of::<E>() < size_of::<E::Sum>();

    fn zeros(elements: usize, arrays: usize) -> Self {
        let exact = vec![E::Sum::default(); if Self::IS_ROUNDED { elements } else { 0 }];
        let mut zeros = Self { sum: Array::zeros(elements), state: [Vec::new(), Vec::new()], exact };
        zeros.begin(arrays);
        zeros
    }
}

impl<E: Element> Typed for Reals<E> {
    fn reduce(&mut self, Addend { from, onto }: Addend<Place<'_>>, bytes: usize) -> Result<(), OutOfBounds> {
        let from = contribution::<E>(from, bytes)?;
        let sum = &mut self.sum[..bytes / size_of::<E>()];
        match onto {
            Onto::Nothing => kernel::set(sum, from),
            Onto::First(first) => kernel::set(sum, Both(contribution::<E>(first, bytes)?, from)),
            Onto::Sum => kernel::add(sum, from),
        }
        Ok(())
    }

    fn finish(
        &mut self,
        change: Change<'_>,
        round: &Round,
        last: Option<Addend<Place<'_>>>,
        buffers: &mut [Exclusive; 2],
        bytes: usize,
    ) -> Result<Verdict, StorageError> {
        let elements = bytes / size_of::<E>();
        let Self { sum, state: [first, second], exact } = self;
        let weights = match Self::IS_ROUNDED {
            true => rounded(buffers, round, bytes, &mut exact[..elements]),
            false => as_summed(buffers, round, bytes),
        };
        let weights: Weights<'_, E> = weights.ok_or(StorageError::Elements)?;
        let (sum, state) = (&sum[..elements], [&mut first[..], &mut second[..]]);
        let Some(Addend { from, onto }) = last else {
            kernel::update(change, sum, weights, state);
            return Ok(Verdict::Fits);
        };
        let from = contribution::<E>(from, bytes)?;
        // One addition commutes to the last bit (but for two NaNs), so it does not matter which comes first.
        match onto {
            Onto::Nothing => kernel::update(change, from, weights, state),
            Onto::First(first) => {
                kernel::update(change, Both(from, contribution::<E>(first, bytes)?), weights, state);
            }
            Onto::Sum => kernel::update(change, Both(from, sum), weights, state),
        }
        Ok(Verdict::Fits)
    }

    fn sum(&self) -> &dyn Sum {
        &self.sum
    }

    fn sum_mut(&mut self) -> &mut dyn Sum {
        &mut self.sum
    }

    fn begin(&mut self, arrays: usize) {
        let elements = self.sum.len();
        self.state = [0, 1].map(|i| vec![E::Sum::default(); if i < arrays { elements } else { 0 }]);
    }

    fn prepare(&mut self, step: &Step, published: &Exclusive) -> Result<Squares, StorageError> {
        let Self { sum, state: [first, second], exact } = self;
        if !step.rule.kind().needs_norms {
            return Ok(Squares::default());
        }
        let weights = match Self::IS_ROUNDED {
            true => &exact[..],
            false => <[E::Sum]>::ref_from_bytes(published).map_err(|_| StorageError::Elements)?,
        };
        Ok(kernel::direction(step, sum, weights, [first, second]))
    }

    fn init(&mut self, from: Place<'_>, bytes: usize) -> Result<(), OutOfBounds> {
        if Self::IS_ROUNDED {
            kernel::set(&mut self.exact, contribution::<E>(from, bytes)?);
        }
        Ok(())
    }

    fn kept(&self) -> [&[u8]; 3] {
        let [first, second] = &self.state;
        [first.as_bytes(), second.as_bytes(), self.exact.as_bytes()]
    }

    fn kept_mut(&mut self) -> [&mut [u8]; 3] {
        let [first, second] = &mut self.state;
        [first.as_mut_bytes(), second.as_mut_bytes(), self.exact.as_mut_bytes()]
    }
}

fn contribution<E: Element>(from: Place<'_>, bytes: usize) -> Result<Contribution<'_, E>, OutOfBounds> {
    Ok(Contribution(from.numbers(bytes / size_of::<E>())?))
}

/// The weights of a chunk that a round changes, so many bytes of them, where elements are published as they are summed.
fn as_summed<'a, E: Element>(
    buffers: &'a mut [Exclusive; 2],
    round: &Round,
    bytes: usize,
) -> Option<Weights<'a, E>> {
    let elements = |buffer: &'a mut Exclusive| <[E::Sum]>::mut_from_bytes(&mut buffer[..bytes]).ok();
    let [a, b] = buffers;
    let (into, other) = if round.into == 0 { (a, b) } else { (b, a) };
    if round.into == round.old {
        return Some(Weights::InPlace(elements(into)?));
    }
    Some(Weights::OutOfPlace { old: elements(other)?, new: elements(into)? })
}

/// The same where they are published rounded.
fn rounded<'a, E: Element>(
    buffers: &'a mut [Exclusive; 2],
    round: &Round,
    bytes: usize,
    exact: &'a mut [E::Sum],
) -> Option<Weights<'a, E>> {
    let new = <[E]>::mut_from_bytes(&mut buffers[usize::from(round.into & 1)][..bytes]).ok()?;
    Some(Weights::Rounded { master: exact, new })
}
