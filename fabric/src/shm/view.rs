//! A view: a stretch of a peer's granted region, mapped here and read in place. It hands out copies only: a
//! peer may write the bytes at any time, so they are never a Rust reference.

use crate::memory::{Mapping, OutOfBounds};
use std::sync::Arc;

/// A stretch of a peer's region. It stays readable when the channel has ended and the peer is gone; what the
/// bytes then mean is for its holder to know.
#[derive(Clone, Debug)]
pub struct View {
    mapping: Arc<Mapping>,
    offset: u64,
    bytes: u64,
}

impl View {
    pub(super) fn new(mapping: Arc<Mapping>, offset: u64, bytes: u64) -> Result<Self, OutOfBounds> {
        mapping.check(offset, bytes)?;
        Ok(Self { mapping, offset, bytes })
    }

    /// Bytes of the view.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.bytes
    }

    /// Is it empty?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Copies bytes out, from `offset` within the view. A peer writing meanwhile can tear them: validate the
    /// copy, or know from the protocol that nobody writes.
    #[inline]
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), OutOfBounds> {
        let bytes = into.len() as u64;
        OutOfBounds::unless_within(offset, bytes, self.bytes)?;
        let from = self.mapping.at(self.offset + offset, bytes)?;
        // SAFETY: the source is mapped as long as `self.mapping` lives and in bounds (checked); the target is
        // an exclusive slice of private memory. Should the target be a pool buffer of this very process that
        // the view maps once more, the two are different addresses. Needed because a peer's memory must not
        // be a Rust reference.
        unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
        Ok(())
    }
}
