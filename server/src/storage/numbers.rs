//! A chunk's sum, and what its rule keeps, in the type that its elements are summed in. It must not know where
//! published weights lie, nor when a round is complete.

use super::array::{Array, Sum};
use super::integers::Integers;
use super::{Round, StorageError};
use crate::engine::{Addend, Onto, Verdict};
use crate::kernel::{
    self, Bf16 as bf16, Both, Change, Contribution, Element, F16 as f16, Real, Squares, Weights,
};
use fabric::{Exclusive, Number, Numbers, OutOfBounds, PeerWritable, View};
use proto_common::element::Dtype;
use proto_common::optimizer::Step;
use std::fmt;
use zerocopy::{FromBytes, IntoBytes};

/// Where a contribution lies. A peer can write most of it at any time.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place<'a> {
    /// So many bytes into memory of ours.
    Memory { memory: &'a PeerWritable, at: u64 },
    /// Decoded, in memory that nobody else has.
    Decoded(&'a Exclusive),
    /// In a worker's memory.
    View(&'a View),
}

impl<'a> Place<'a> {
    /// Copies the first bytes out.
    pub(super) fn read(self, into: &mut [u8]) -> Result<(), OutOfBounds> {
        match self {
            Self::Memory { memory, at } => memory.read(at, into),
            Self::Decoded(numbers) => {
                OutOfBounds::unless_within(0, into.len() as u64, numbers.len() as u64)?;
                into.copy_from_slice(&numbers[..into.len()]);
                Ok(())
            }
            Self::View(view) => view.read(0, into),
        }
    }

    /// Copies the first bytes into memory that peers write.
    pub(super) fn copy_to(self, to: &PeerWritable, offset: u64, bytes: u64) -> Result<(), OutOfBounds> {
        match self {
            Self::Memory { memory, at } => to.copy(offset, memory, at, bytes),
            Self::Decoded(numbers) => {
                OutOfBounds::unless_within(0, bytes, numbers.len() as u64)?;
                to.write(offset, &numbers[..bytes as usize])
            }
            Self::View(view) => view.slice(0, bytes)?.copy_to(to, offset),
        }
    }

    /// The first numbers, where they lie.
    pub(super) fn numbers<N: Number>(self, count: usize) -> Result<Numbers<'a, N>, OutOfBounds> {
        match self {
            Self::Memory { memory, at } => memory.numbers(at, count),
            Self::Decoded(numbers) => numbers.numbers(0, count),
            Self::View(view) => view.numbers(0, count),
        }
    }
}

/// A chunk's numbers, whatever the type of its elements is.
pub(super) trait Typed: fmt::Debug + Send {
    /// sum = what the contribution is added to + the contribution: of so many bytes.
    fn reduce(&mut self, addend: Addend<Place<'_>>, bytes: usize) -> Result<(), OutOfBounds>;

    /// Applies the update rule to so many bytes of weights; a last contribution is added in the same pass.
    fn finish(
        &mut self,
        change: Change<'_>,
        round: &Round,
        last: Option<Addend<Place<'_>>>,
        buffers: &mut [Exclusive; 2],
        bytes: usize,
    ) -> Result<Verdict, StorageError>;

    /// The sum.
    fn sum(&self) -> &dyn Sum;

    /// The sum.
    fn sum_mut(&mut self) -> &mut dyn Sum;

    /// A rule begins that keeps so many arrays of its own. Rules of integers keep nothing.
    fn begin(&mut self, _arrays: usize) {}

    /// The sum becomes a step of a rule that needs norms; returns this chunk's share of them. Integers have no such rule.
    fn prepare(&mut self, _step: &Step, _weights: &Exclusive) -> Result<Squares, StorageError> {
        Ok(Squares::default())
    }

    /// The value of the whole chunk is set: so many bytes.
    fn init(&mut self, _from: Place<'_>, _bytes: usize) -> Result<(), OutOfBounds> {
        Ok(())
    }

    /// What the chunk keeps beside its weights: the arrays of its rule, and exact weights.
    fn kept(&self) -> [&[u8]; 3] {
        Default::default()
    }

    /// As [`Typed::kept`].
    fn kept_mut(&mut self) -> [&mut [u8]; 3] {
        Default::default()
    }

    /// Bytes of the sum, and of what is kept.
    fn bytes(&self) -> u64 {
        let kept: usize = self.kept().into_iter().map(<[u8]>::len).sum();
        (self.sum().bytes().len() + kept) as u64
    }

    /// Whether a sum of this round left its integers, where they are integers.
    fn left(&mut self) -> Option<&mut bool> {
        None
    }
}

/// The names that the table of element types has.
mod of {
    pub(super) use super::{Integers as Integer, Master as Half, Sums as Float};
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

/// A sum and the arrays that a rule keeps; those are empty where it has none.
#[derive(Debug)]
pub(super) struct Sums<T> {
    sum: Array<T>,
    state: [Vec<T>; 2],
}

impl<T: Real + Element<Sum = T>> Sums<T> {
    fn zeros(elements: usize, arrays: usize) -> Self {
        let array = |count| vec![T::default(); count];
        Self {
            sum: Array::zeros(elements),
            state: [0, 1].map(|i| array(if i < arrays { elements } else { 0 })),
        }
    }

    fn renew(&mut self, arrays: usize) {
        let elements = self.sum.len();
        self.state = [0, 1].map(|i| vec![T::default(); if i < arrays { elements } else { 0 }]);
    }

    fn add<E: Element<Sum = T>>(
        &mut self,
        Addend { from, onto }: Addend<Place<'_>>,
        bytes: usize,
    ) -> Result<(), OutOfBounds> {
        let from = contribution::<E>(from, bytes)?;
        let sum = &mut self.sum[..bytes / size_of::<E>()];
        match onto {
            Onto::Nothing => kernel::set(sum, from),
            Onto::First(first) => kernel::set(sum, Both(contribution::<E>(first, bytes)?, from)),
            Onto::Sum => kernel::add(sum, from),
        }
        Ok(())
    }

    fn direct(&mut self, step: &Step, weights: &[T]) -> Squares {
        let Self { sum, state: [first, second] } = self;
        if !step.rule.kind().needs_norms {
            return Squares::default();
        }
        kernel::direction(step, sum, weights, [first, second])
    }

    fn update<E: Element<Sum = T>>(
        &mut self,
        change: Change<'_>,
        last: Option<Addend<Place<'_>>>,
        weights: Weights<'_, E>,
    ) -> Result<(), OutOfBounds> {
        let elements = weights.count();
        let bytes = elements * size_of::<E>();
        let Self { sum, state: [first, second] } = self;
        let (sum, state) = (&sum[..elements], [&mut first[..], &mut second[..]]);
        let Some(Addend { from, onto }) = last else {
            kernel::update(change, sum, weights, state);
            return Ok(());
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
        Ok(())
    }
}

impl<T: Real + Element<Sum = T>> Typed for Sums<T> {
    fn reduce(&mut self, addend: Addend<Place<'_>>, bytes: usize) -> Result<(), OutOfBounds> {
        self.add::<T>(addend, bytes)
    }

    fn finish(
        &mut self,
        change: Change<'_>,
        round: &Round,
        last: Option<Addend<Place<'_>>>,
        buffers: &mut [Exclusive; 2],
        bytes: usize,
    ) -> Result<Verdict, StorageError> {
        self.update(change, last, weights_of::<T>(buffers, round, bytes).ok_or(StorageError::Elements)?)?;
        Ok(Verdict::Fits)
    }

    fn sum(&self) -> &dyn Sum {
        &self.sum
    }

    fn sum_mut(&mut self) -> &mut dyn Sum {
        &mut self.sum
    }

    fn begin(&mut self, arrays: usize) {
        self.renew(arrays);
    }

    fn prepare(&mut self, step: &Step, weights: &Exclusive) -> Result<Squares, StorageError> {
        let weights = <[T]>::ref_from_bytes(weights).map_err(|_| StorageError::Elements)?;
        Ok(self.direct(step, weights))
    }

    fn kept(&self) -> [&[u8]; 3] {
        let [first, second] = &self.state;
        [first.as_bytes(), second.as_bytes(), &[]]
    }

    fn kept_mut(&mut self) -> [&mut [u8]; 3] {
        let [first, second] = &mut self.state;
        [first.as_mut_bytes(), second.as_mut_bytes(), &mut []]
    }
}

/// Sums of elements that are published rounded: the weights themselves are kept as exact as the sums.
#[derive(Debug)]
pub(super) struct Master<E: Element> {
    sums: Sums<E::Sum>,
    weights: Vec<E::Sum>,
}

impl<E: Element> Master<E> {
    fn zeros(elements: usize, arrays: usize) -> Self {
        Self { sums: Sums::zeros(elements, arrays), weights: vec![E::Sum::default(); elements] }
    }
}

impl<E: Element> Typed for Master<E> {
    fn reduce(&mut self, addend: Addend<Place<'_>>, bytes: usize) -> Result<(), OutOfBounds> {
        self.sums.add::<E>(addend, bytes)
    }

    fn finish(
        &mut self,
        change: Change<'_>,
        round: &Round,
        last: Option<Addend<Place<'_>>>,
        buffers: &mut [Exclusive; 2],
        bytes: usize,
    ) -> Result<Verdict, StorageError> {
        let new = <[E]>::mut_from_bytes(&mut buffers[usize::from(round.into & 1)][..bytes])
            .map_err(|_| StorageError::Elements)?;
        let weights = Weights::Rounded { master: &mut self.weights[..new.len()], new };
        self.sums.update(change, last, weights)?;
        Ok(Verdict::Fits)
    }

    fn sum(&self) -> &dyn Sum {
        &self.sums.sum
    }

    fn sum_mut(&mut self) -> &mut dyn Sum {
        &mut self.sums.sum
    }

    fn begin(&mut self, arrays: usize) {
        self.sums.renew(arrays);
    }

    fn prepare(&mut self, step: &Step, _: &Exclusive) -> Result<Squares, StorageError> {
        Ok(self.sums.direct(step, &self.weights))
    }

    fn init(&mut self, from: Place<'_>, bytes: usize) -> Result<(), OutOfBounds> {
        kernel::set(&mut self.weights, contribution::<E>(from, bytes)?);
        Ok(())
    }

    fn kept(&self) -> [&[u8]; 3] {
        let [first, second] = &self.sums.state;
        [first.as_bytes(), second.as_bytes(), self.weights.as_bytes()]
    }

    fn kept_mut(&mut self) -> [&mut [u8]; 3] {
        let [first, second] = &mut self.sums.state;
        [first.as_mut_bytes(), second.as_mut_bytes(), self.weights.as_mut_bytes()]
    }
}

fn contribution<E: Element>(from: Place<'_>, bytes: usize) -> Result<Contribution<'_, E>, OutOfBounds> {
    Ok(Contribution(from.numbers(bytes / size_of::<E>())?))
}

/// The weights of a chunk that a round changes: so many bytes of them.
fn weights_of<'a, T: Real + Element<Sum = T>>(
    buffers: &'a mut [Exclusive; 2],
    round: &Round,
    bytes: usize,
) -> Option<Weights<'a, T>> {
    let elements = |buffer: &'a mut Exclusive| <[T]>::mut_from_bytes(&mut buffer[..bytes]).ok();
    let [a, b] = buffers;
    let (into, other) = if round.into == 0 { (a, b) } else { (b, a) };
    if round.into == round.old {
        return Some(Weights::InPlace(elements(into)?));
    }
    Some(Weights::OutOfPlace { old: elements(other)?, new: elements(into)? })
}
