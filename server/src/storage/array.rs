//! Numbers that a sum is made in: in memory of the server's own, or in memory that can be sent to other servers from where it
//! lies. It must not know what they mean.

use fabric::{Exclusive, OutOfBounds, Pool, PoolError, Span};
use std::ops::{Deref, DerefMut};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// See the module.
#[derive(Debug)]
pub(super) enum Array<T> {
    Own(Vec<T>),
    Sent(Exclusive),
}

/// What can be an element.
pub(super) trait Plain: Copy + Default + FromBytes + IntoBytes + Immutable + KnownLayout {}

impl<T: Copy + Default + FromBytes + IntoBytes + Immutable + KnownLayout> Plain for T {}

impl<T: Plain> Array<T> {
    pub(super) fn zeros(count: usize) -> Self {
        Self::Own(vec![T::default(); count])
    }
}

/// A sum, whatever it is made of.
pub(super) trait Sum {
    /// Moves where it can be sent from; it stays there. False where it is there.
    fn lend(&mut self, pool: &Pool) -> Result<bool, PoolError>;

    /// Part of it, to be sent; none if it lies in memory of our own.
    fn part(&self, at: u64, bytes: u64) -> Result<Option<Span>, OutOfBounds>;

    fn bytes(&self) -> &[u8];

    /// As [`Sum::bytes`].
    fn bytes_mut(&mut self) -> &mut [u8];
}

impl<T: Plain> Sum for Array<T> {
    fn lend(&mut self, pool: &Pool) -> Result<bool, PoolError> {
        if let Self::Own(numbers) = self
            && !numbers.is_empty()
        {
            let bytes = numbers.as_bytes();
            let mut buffer = pool.allocate(bytes.len() as u64)?;
            buffer.copy_from_slice(bytes);
            *self = Self::Sent(buffer);
            return Ok(true);
        }
        Ok(false)
    }

    fn part(&self, at: u64, bytes: u64) -> Result<Option<Span>, OutOfBounds> {
        match self {
            Self::Own(_) => Ok(None),
            Self::Sent(buffer) => buffer.slice(at, bytes).map(Some),
        }
    }

    fn bytes(&self) -> &[u8] {
        self.as_bytes()
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self.as_mut_bytes()
    }
}

impl<T: Plain> Deref for Array<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Self::Own(numbers) => numbers,
            // A buffer is made for whole elements, and more aligned than any.
            Self::Sent(buffer) => <[T]>::ref_from_bytes(buffer).unwrap_or_default(),
        }
    }
}

impl<T: Plain> DerefMut for Array<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Self::Own(numbers) => numbers,
            Self::Sent(buffer) => <[T]>::mut_from_bytes(buffer).unwrap_or_default(),
        }
    }
}
