//! What a chunk's numbers can do, whatever the type of its elements is. It must not know any of these types.

use super::array::Sum;
use super::cells::Place;
use super::error::StorageError;
use crate::engine::{Addend, Verdict};
use crate::kernel::{Change, Squares};
use fabric::{Exclusive, OutOfBounds};
use proto_common::optimizer::Step;
use std::fmt;

/// What completes a round: see `engine::Command::Finish`.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    /// Its number, from 1.
    pub number: u64,
    /// The last contribution, not reduced yet.
    pub last: Option<Addend>,
    /// The buffer in force.
    pub old: u8,
    /// The buffer to write.
    pub into: u8,
    /// How many contributed.
    pub contributors: u32,
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

    fn sum(&self) -> &dyn Sum;

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
