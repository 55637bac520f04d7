//! A pool of buffers cut from one region, so that memory is registered once. A buffer is exclusive: it
//! hands out references, and goes into an operation by value, which owns it until it completes.

use super::elements::{Number, Numbers};
use super::region::{OutOfBounds, Pages, Region, Span};
use crate::error::FabricError;
use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};
use thiserror::Error;

const ALIGN: u64 = 64;

/// The pool cannot serve a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PoolError {
    /// No free stretch is long enough.
    #[error(
        "no {wanted} contiguous free bytes: {used} of {capacity} bytes of registered memory are in use; drop buffers, raise memory.pool_bytes, or raise `ulimit -v` if it is limited"
    )]
    Exhausted {
        /// Bytes asked for.
        wanted: u64,
        /// Bytes in use.
        used: u64,
        /// Bytes of the pool.
        capacity: u64,
    },
    /// A buffer of nothing.
    #[error("a buffer needs at least one byte")]
    Empty,
}

#[derive(Debug)]
struct Free {
    /// Free stretches by offset; neighbours are always merged.
    by_offset: BTreeMap<u64, u64>,
    used: u64,
    /// From here on no buffer was ever given out.
    untouched_from: u64,
}

#[derive(Debug)]
struct Shared {
    region: Region,
    free: Mutex<Free>,
}

/// Buffers from one region. Clones share it. Allocation takes a lock and is not for the data path.
#[derive(Clone, Debug)]
pub struct Pool(Arc<Shared>);

impl Pool {
    /// A pool of `bytes`, rounded up to whole pages; they are taken from the system at first touch.
    pub fn new(bytes: u64, name: &str) -> Result<Self, FabricError> {
        Self::with_pages(Pages::Normal, bytes, name)
    }

    /// A pool in pages of this kind ([`Region::allocate_with`]).
    pub fn with_pages(pages: Pages, bytes: u64, name: &str) -> Result<Self, FabricError> {
        Self::of(bytes, |size| Region::allocate_with(pages, size, name))
    }

    /// A pool that peers are let read only, of `bytes` rounded up to whole pages ([`Region::allocate_readable`]).
    pub fn readable(bytes: u64, name: &str) -> Result<Self, FabricError> {
        Self::of(bytes, |size| Region::allocate_readable(size, name))
    }

    fn of(
        bytes: u64,
        allocate: impl FnOnce(usize) -> Result<Region, FabricError>,
    ) -> Result<Self, FabricError> {
        let size = usize::try_from(bytes.max(1).next_multiple_of(4096))
            .map_err(|_| FabricError::Internal("pool larger than memory".into()))?;
        let region = allocate(size)?;
        let free = Free { by_offset: BTreeMap::from([(0, region.len() as u64)]), used: 0, untouched_from: 0 };
        Ok(Self(Arc::new(Shared { region, free: Mutex::new(free) })))
    }

    /// The region behind all buffers.
    #[must_use]
    pub fn region(&self) -> &Region {
        &self.0.region
    }

    /// Bytes in use, alignment included.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.lock().used
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Free> {
        // A panic while the lock was held cannot leave the map half changed in a way that matters.
        self.0.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A 64-byte aligned buffer of `bytes`. Its content is whatever was there before (zeros when new).
    pub fn allocate(&self, bytes: u64) -> Result<Exclusive, PoolError> {
        if bytes == 0 {
            return Err(PoolError::Empty);
        }
        let capacity = self.0.region.len() as u64;
        let mut free = self.lock();
        let exhausted = PoolError::Exhausted { wanted: bytes, used: free.used, capacity };
        let padded = bytes.checked_next_multiple_of(ALIGN).ok_or(exhausted)?;
        let (offset, length) = free
            .by_offset
            .iter()
            .find(|(_, length)| **length >= padded)
            .map(|(o, l)| (*o, *l))
            .ok_or(exhausted)?;
        free.by_offset.remove(&offset);
        if length > padded {
            free.by_offset.insert(offset + padded, length - padded);
        }
        free.used += padded;
        let untouched_from = free.untouched_from.max(offset);
        free.untouched_from = free.untouched_from.max(offset + padded);
        Ok(Exclusive { pool: self.clone(), offset, bytes, padded, untouched_from })
    }

    fn release(&self, offset: u64, padded: u64) {
        let mut free = self.lock();
        let (mut start, mut length) = (offset, padded);
        if let Some((before, before_length)) =
            free.by_offset.range(..offset).next_back().map(|(o, l)| (*o, *l))
            && before + before_length == offset
        {
            free.by_offset.remove(&before);
            (start, length) = (before, before_length + length);
        }
        if let Some(after) = free.by_offset.remove(&(offset + padded)) {
            length += after;
        }
        free.by_offset.insert(start, length);
        free.used -= padded;
    }
}

/// An exclusive, 64-byte aligned stretch of registered memory; returned to its pool on drop.
#[derive(Debug)]
pub struct Exclusive {
    pool: Pool,
    offset: u64,
    bytes: u64,
    padded: u64,
    untouched_from: u64,
}

/// Fewer untouched bytes are copied as others are.
const UNTOUCHED_MIN_BYTES: usize = 256 << 10;

impl Exclusive {
    /// Copies bytes to its start, as many as fit: the quickest way into memory that may be new.
    pub fn copy_in(&mut self, from: &[u8]) {
        let from = &from[..from.len().min(self.len())];
        let (known, fresh) = from.split_at(from.len().min((self.untouched_from - self.offset) as usize));
        let written = match fresh.len() < UNTOUCHED_MIN_BYTES {
            true => 0,
            false => self.region().write_untouched(self.untouched_from, fresh),
        };
        let at = known.len();
        self.untouched_from = self.offset + self.padded;
        self[..at].copy_from_slice(known);
        self[at + written..at + fresh.len()].copy_from_slice(&fresh[written..]);
    }

    /// As [`Exclusive::copy_in`], from memory of another owner.
    pub fn copy_in_region(&mut self, from: &Region) {
        if let Some(bytes) = from.adopted() {
            return self.copy_in(bytes);
        }
        let bytes = self.len().min(from.len());
        // It is within both.
        let _ = from.read(0, &mut self[..bytes]);
    }

    /// The `count` numbers from `offset` bytes on, for code that reads them of lent memory, too.
    pub fn numbers<N: Number>(&self, offset: u64, count: usize) -> Result<Numbers<'_, N>, OutOfBounds> {
        Numbers::within(self.region().mapping(), (self.offset, self.bytes), offset, count)
    }

    /// The stretch, for work requests. Whoever posts it must not write the buffer until it completes;
    /// doing so tears bytes on the wire and nothing worse.
    #[must_use]
    pub fn span(&self) -> Span {
        // Invariant: offset and length were cut from this region by the pool.
        self.pool
            .region()
            .span(self.offset, self.bytes)
            .unwrap_or_else(|_| unreachable!("cut from the region"))
    }

    /// Part of the stretch.
    pub fn slice(&self, offset: u64, bytes: u64) -> Result<Span, OutOfBounds> {
        self.span().slice(offset, bytes)
    }

    /// The region it lies in.
    #[must_use]
    pub fn region(&self) -> &Region {
        self.pool.region()
    }
}

impl Deref for Exclusive {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let span = self.span();
        // SAFETY: the pool gives each stretch to one buffer at a time, so nobody else in this process has a
        // reference to it. A peer writes it only while it is lent, and then it is no `Exclusive`. Needed so that trainers
        // compute in registered memory.
        unsafe { std::slice::from_raw_parts(span.as_ptr(), self.bytes as usize) }
    }
}

impl DerefMut for Exclusive {
    fn deref_mut(&mut self) -> &mut [u8] {
        let span = self.span();
        // SAFETY: as in `deref`, and `&mut self` excludes other references.
        unsafe { std::slice::from_raw_parts_mut(span.as_ptr(), self.bytes as usize) }
    }
}

impl Drop for Exclusive {
    fn drop(&mut self) {
        self.pool.release(self.offset, self.padded);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn buffers_are_aligned_writable_and_come_back() {
        let pool = Pool::new(8192, "test").unwrap();
        let mut a = pool.allocate(100).unwrap();
        a.fill(7);
        assert_eq!(a.as_ptr() as usize % 64, 0);
        let b = pool.allocate(8192 - 128).unwrap();
        assert_eq!(
            pool.allocate(1).unwrap_err(),
            PoolError::Exhausted { wanted: 1, used: 8192, capacity: 8192 }
        );
        assert_eq!(pool.allocate(0).unwrap_err(), PoolError::Empty);
        assert!(matches!(pool.allocate(u64::MAX), Err(PoolError::Exhausted { .. })));
        drop((a, b));
        assert_eq!(pool.used_bytes(), 0);
        assert_eq!(pool.allocate(8192).unwrap().len(), 8192);
    }

    #[test]
    fn what_is_copied_in_is_there_however_new_the_memory_is() {
        for pages in [Pages::Normal, Pages::Private] {
            let pool = Pool::with_pages(pages, 4 << 20, "test").unwrap();
            let bytes: Vec<u8> = (0..2 * UNTOUCHED_MIN_BYTES + 77).map(|at| (at * 7 % 251) as u8).collect();
            let start = pool.allocate(100).unwrap();
            let mut fresh = pool.allocate(bytes.len() as u64).unwrap();
            fresh.copy_in(&bytes);
            assert!(fresh[..] == bytes[..]);
            drop((start, fresh));
            // Part of it was given out before.
            let mut half_new = pool.allocate(2 * bytes.len() as u64).unwrap();
            half_new.copy_in_region(&Region::of_bytes([&bytes[..], &bytes[..]].concat()));
            assert!(half_new[..bytes.len()] == bytes[..] && half_new[bytes.len()..] == bytes[..]);
            half_new.copy_in(&bytes[7..]);
            assert!(
                half_new[..bytes.len() - 7] == bytes[7..]
                    && half_new[bytes.len() - 7] == bytes[bytes.len() - 7]
            );
        }
    }

    proptest! {
        #[test]
        fn live_buffers_never_overlap_and_all_space_returns(steps in prop::collection::vec((any::<bool>(), 1u64..600), 1..100)) {
            let pool = Pool::new(16 << 10, "test").unwrap();
            let mut live: Vec<Exclusive> = Vec::new();
            for (take, bytes) in steps {
                if take || live.is_empty() {
                    if let Ok(buffer) = pool.allocate(bytes) {
                        live.push(buffer);
                    }
                } else {
                    live.swap_remove(bytes as usize % live.len());
                }
                let mut spans: Vec<_> = live.iter().map(|b| (b.offset, b.offset + b.padded)).collect();
                spans.sort_unstable();
                prop_assert!(spans.windows(2).all(|pair| pair[0].1 <= pair[1].0));
            }
            live.clear();
            prop_assert_eq!(pool.allocate(16 << 10).map(|b| b.bytes), Ok(16 << 10));
        }
    }
}
