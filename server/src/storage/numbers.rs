//! A chunk's sum, and what its rule keeps, in the type that its elements are summed in. It must not know where
//! published weights lie, nor when a round is complete.

use super::array::Array;
use super::integers::Integers;
use super::{Round, StorageError};
use crate::engine::{Addend, Onto, Verdict};
use crate::kernel::{self, Bf16, Both, Contribution, Element, F16, Real, Squares, Weights};
use fabric::{Exclusive, Number, Numbers, OutOfBounds, PeerWritable, View};
use proto_common::element::Dtype;
use proto_common::optimizer::Step;
use zerocopy::FromBytes;

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

/// Numbers by the type of the tensor's elements.
#[derive(Debug)]
pub(super) enum Typed {
    F32(Sums<f32>),
    F64(Sums<f64>),
    F16(Master<F16>),
    Bf16(Master<Bf16>),
    I8(Integers<i8>),
    U8(Integers<u8>),
    I32(Integers<i32>),
    I64(Integers<i64>),
}

impl Typed {
    pub(super) fn zeros(dtype: Dtype, elements: usize, arrays: usize) -> Self {
        match dtype {
            Dtype::F32 => Self::F32(Sums::zeros(elements, arrays)),
            Dtype::F64 => Self::F64(Sums::zeros(elements, arrays)),
            Dtype::F16 => Self::F16(Master::zeros(elements, arrays)),
            Dtype::Bf16 => Self::Bf16(Master::zeros(elements, arrays)),
            Dtype::I8 => Self::I8(Integers::zeros(elements)),
            Dtype::U8 => Self::U8(Integers::zeros(elements)),
            Dtype::I32 => Self::I32(Integers::zeros(elements)),
            Dtype::I64 => Self::I64(Integers::zeros(elements)),
        }
    }

    /// sum = what the contribution is added to + the contribution: of so many bytes.
    pub(super) fn reduce(&mut self, addend: Addend<Place<'_>>, bytes: usize) -> Result<(), OutOfBounds> {
        match self {
            Self::F32(sums) => sums.reduce::<f32>(addend, bytes),
            Self::F64(sums) => sums.reduce::<f64>(addend, bytes),
            Self::F16(master) => master.sums.reduce::<F16>(addend, bytes),
            Self::Bf16(master) => master.sums.reduce::<Bf16>(addend, bytes),
            Self::I8(integers) => integers.reduce(addend, bytes),
            Self::U8(integers) => integers.reduce(addend, bytes),
            Self::I32(integers) => integers.reduce(addend, bytes),
            Self::I64(integers) => integers.reduce(addend, bytes),
        }
    }

    /// Applies the update rule to so many bytes of weights; a last contribution is added in the same pass.
    pub(super) fn finish(
        &mut self,
        step: &Step,
        round: &Round,
        last: Option<Addend<Place<'_>>>,
        buffers: &mut [Exclusive; 2],
        bytes: usize,
    ) -> Result<Verdict, StorageError> {
        match self {
            Self::F32(sums) => {
                let weights =
                    weights_of::<f32>(buffers, round, bytes).ok_or(StorageError::Elements(Dtype::F32))?;
                sums.finish(step, last, weights)?;
            }
            Self::F64(sums) => {
                let weights =
                    weights_of::<f64>(buffers, round, bytes).ok_or(StorageError::Elements(Dtype::F64))?;
                sums.finish(step, last, weights)?;
            }
            Self::F16(master) => master.finish(step, round, last, buffers, bytes, Dtype::F16)?,
            Self::Bf16(master) => master.finish(step, round, last, buffers, bytes, Dtype::Bf16)?,
            Self::I8(integers) => return integers.finish(step, round, last, buffers, (bytes, Dtype::I8)),
            Self::U8(integers) => return integers.finish(step, round, last, buffers, (bytes, Dtype::U8)),
            Self::I32(integers) => return integers.finish(step, round, last, buffers, (bytes, Dtype::I32)),
            Self::I64(integers) => return integers.finish(step, round, last, buffers, (bytes, Dtype::I64)),
        }
        Ok(Verdict::Fits)
    }

    /// A rule begins that keeps so many arrays of its own.
    pub(super) fn begin(&mut self, arrays: usize) {
        match self {
            Self::F32(sums) => sums.begin(arrays),
            Self::F64(sums) => sums.begin(arrays),
            Self::F16(master) => master.sums.begin(arrays),
            Self::Bf16(master) => master.sums.begin(arrays),
            // Rules of integers keep nothing.
            Self::I8(_) | Self::U8(_) | Self::I32(_) | Self::I64(_) => {}
        }
    }

    /// The sum becomes a step of a rule that needs norms; returns this chunk's share of them.
    pub(super) fn prepare(&mut self, step: &Step, weights: &Exclusive) -> Result<Squares, StorageError> {
        let wrong = StorageError::Elements;
        Ok(match self {
            Self::F32(sums) => {
                sums.prepare(step, <[f32]>::ref_from_bytes(weights).map_err(|_| wrong(Dtype::F32))?)
            }
            Self::F64(sums) => {
                sums.prepare(step, <[f64]>::ref_from_bytes(weights).map_err(|_| wrong(Dtype::F64))?)
            }
            Self::F16(master) => master.sums.prepare(step, &master.weights),
            Self::Bf16(master) => master.sums.prepare(step, &master.weights),
            // Integers have no such rule.
            Self::I8(_) | Self::U8(_) | Self::I32(_) | Self::I64(_) => Squares::default(),
        })
    }

    /// The value of the whole chunk is set: so many bytes.
    pub(super) fn init(&mut self, from: Place<'_>, bytes: usize) -> Result<(), OutOfBounds> {
        match self {
            Self::F32(_) | Self::F64(_) | Self::I8(_) | Self::U8(_) | Self::I32(_) | Self::I64(_) => Ok(()),
            Self::F16(master) => master.init(from, bytes),
            Self::Bf16(master) => master.init(from, bytes),
        }
    }
}

/// A sum and the arrays that a rule keeps; those are empty where it has none.
#[derive(Debug)]
pub(super) struct Sums<T> {
    pub(super) sum: Array<T>,
    pub(super) state: [Vec<T>; 2],
}

impl<T: Real + Element<Sum = T>> Sums<T> {
    fn zeros(elements: usize, arrays: usize) -> Self {
        let array = |count| vec![T::default(); count];
        Self {
            sum: Array::zeros(elements),
            state: [0, 1].map(|i| array(if i < arrays { elements } else { 0 })),
        }
    }

    fn begin(&mut self, arrays: usize) {
        let elements = self.sum.len();
        self.state = [0, 1].map(|i| vec![T::default(); if i < arrays { elements } else { 0 }]);
    }

    fn reduce<E: Element<Sum = T>>(
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

    fn prepare(&mut self, step: &Step, weights: &[T]) -> Squares {
        let Self { sum, state: [first, second] } = self;
        if !step.rule.kind().needs_norms {
            return Squares::default();
        }
        kernel::direction(step, sum, weights, [first, second])
    }

    fn finish<E: Element<Sum = T>>(
        &mut self,
        step: &Step,
        last: Option<Addend<Place<'_>>>,
        weights: Weights<'_, E>,
    ) -> Result<(), OutOfBounds> {
        let elements = weights.count();
        let bytes = elements * size_of::<E>();
        let Self { sum, state: [first, second] } = self;
        let (sum, state) = (&sum[..elements], [&mut first[..], &mut second[..]]);
        let Some(Addend { from, onto }) = last else {
            kernel::update(step, sum, weights, state);
            return Ok(());
        };
        let from = contribution::<E>(from, bytes)?;
        // One addition commutes to the last bit (but for two NaNs), so it does not matter which comes first.
        match onto {
            Onto::Nothing => kernel::update(step, from, weights, state),
            Onto::First(first) => {
                kernel::update(step, Both(from, contribution::<E>(first, bytes)?), weights, state);
            }
            Onto::Sum => kernel::update(step, Both(from, sum), weights, state),
        }
        Ok(())
    }
}

/// Sums of elements that are published rounded: the weights themselves are kept as exact as the sums.
#[derive(Debug)]
pub(super) struct Master<E: Element> {
    pub(super) sums: Sums<E::Sum>,
    pub(super) weights: Vec<E::Sum>,
}

impl<E: Element> Master<E> {
    fn zeros(elements: usize, arrays: usize) -> Self {
        Self { sums: Sums::zeros(elements, arrays), weights: vec![E::Sum::default(); elements] }
    }

    fn init(&mut self, from: Place<'_>, bytes: usize) -> Result<(), OutOfBounds> {
        kernel::set(&mut self.weights, contribution::<E>(from, bytes)?);
        Ok(())
    }

    fn finish(
        &mut self,
        step: &Step,
        round: &Round,
        last: Option<Addend<Place<'_>>>,
        buffers: &mut [Exclusive; 2],
        bytes: usize,
        dtype: Dtype,
    ) -> Result<(), StorageError> {
        let new = <[E]>::mut_from_bytes(&mut buffers[usize::from(round.into & 1)][..bytes])
            .map_err(|_| StorageError::Elements(dtype))?;
        let weights = Weights::Rounded { master: &mut self.weights[..new.len()], new };
        Ok(self.sums.finish(step, last, weights)?)
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
