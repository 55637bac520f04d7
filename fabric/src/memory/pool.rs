//! A pool of buffers cut from one region, so that memory is registered once. A buffer is exclusive: it
//! hands out references, and goes into an operation by value, which owns it until it completes.

use super::elements::{Number, Numbers};
use super::region::{OutOfBounds, Pages, Region, Span};
use crate::error::FabricError;
use crate::lock::lock;
use rustix::param::page_size;
use std::collections::{BTreeMap, VecDeque};
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};
use thiserror::Error;

const ALIGN: u64 = 64;
/// From so many bytes on a stretch has its pages for itself, so that a peer can [borrow](super::Borrowed) it. If it fits only without
/// that, it begins anywhere.
const LONG_BYTES: u64 = 64 << 10;

/// How a stretch lies in its region.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lie {
    /// A long one has its pages for itself.
    Pages,
    /// It begins at a multiple of [`ALIGN`].
    Anywhere,
}

impl Lie {
    /// What a stretch of so many bytes begins at, and is padded to.
    fn align(self, bytes: u64) -> u64 {
        if self == Self::Pages && bytes >= LONG_BYTES { page_size() as u64 } else { ALIGN }
    }
}

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

#[derive(Debug, Default)]
struct Free {
    /// Free stretches by offset; neighbours are always merged.
    by_offset: BTreeMap<u64, u64>,
    used: u64,
    /// Callers that had to wait for memory.
    waits: u64,
    /// From here on no buffer was ever given out.
    untouched_from: u64,
    /// Buffers that have come back, so that a thread that waits sees progress.
    returned: u64,
    /// Threads that wait, in their order, by ticket.
    queue: VecDeque<u64>,
    next_ticket: u64,
    ahead: Vec<(u64, Bell)>,
}

/// What is called when memory has come back.
#[derive(Clone)]
struct Bell(Arc<dyn Fn() + Send + Sync>);

impl std::fmt::Debug for Bell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Bell")
    }
}

/// A stretch that is not free any more.
#[derive(Clone, Copy, Debug)]
struct Taken {
    offset: u64,
    padded: u64,
    untouched_from: u64,
}

impl Free {
    fn new(offset: u64, bytes: u64) -> Self {
        let by_offset = if bytes > 0 { BTreeMap::from([(offset, bytes)]) } else { BTreeMap::new() };
        Self { by_offset, ..Self::default() }
    }

    /// The first free stretch that is long enough.
    fn take(&mut self, bytes: u64) -> Option<Taken> {
        self.take_as(Lie::Pages, bytes).or_else(|| self.take_as(Lie::Anywhere, bytes))
    }

    fn take_as(&mut self, lie: Lie, bytes: u64) -> Option<Taken> {
        let align = lie.align(bytes);
        let padded = bytes.checked_next_multiple_of(align)?;
        let skipped = |offset: u64| offset.next_multiple_of(align) - offset;
        let fits = |(offset, length): &(&u64, &u64)| {
            length.checked_sub(skipped(**offset)).is_some_and(|rest| rest >= padded)
        };
        let (start, length) = self.by_offset.iter().find(fits).map(|(start, length)| (*start, *length))?;
        let offset = start + skipped(start);
        let after = length - skipped(start) - padded;
        self.by_offset.remove(&start);
        if offset > start {
            self.by_offset.insert(start, offset - start);
        }
        if after > 0 {
            self.by_offset.insert(offset + padded, after);
        }
        self.used += padded;
        let untouched_from = self.untouched_from.max(offset);
        self.untouched_from = self.untouched_from.max(offset + padded);
        Some(Taken { offset, padded, untouched_from })
    }

    /// One stretch for each of these sizes, or none at all.
    fn take_all(&mut self, sizes: &[u64]) -> Option<Vec<Taken>> {
        self.take_all_as(Lie::Pages, sizes).or_else(|| self.take_all_as(Lie::Anywhere, sizes))
    }

    fn take_all_as(&mut self, lie: Lie, sizes: &[u64]) -> Option<Vec<Taken>> {
        let untouched_from = self.untouched_from;
        let mut all = Vec::with_capacity(sizes.len());
        for bytes in sizes {
            let Some(taken) = self.take_as(lie, *bytes) else {
                all.into_iter().for_each(|Taken { offset, padded, .. }| self.put_back(offset, padded));
                self.untouched_from = untouched_from;
                return None;
            };
            all.push(taken);
        }
        Some(all)
    }

    fn put_back(&mut self, offset: u64, padded: u64) {
        let (mut start, mut length) = (offset, padded);
        if let Some((before, before_length)) =
            self.by_offset.range(..offset).next_back().map(|(o, l)| (*o, *l))
            && before + before_length == offset
        {
            self.by_offset.remove(&before);
            (start, length) = (before, before_length + length);
        }
        if let Some(after) = self.by_offset.remove(&(offset + padded)) {
            length += after;
        }
        self.by_offset.insert(start, length);
        self.used -= padded;
    }
}

#[derive(Debug)]
struct Shared {
    region: Region,
    free: Mutex<Free>,
    /// The region from `capacity` on: memory that is kept for long, so that the rest stays in one piece.
    kept: Mutex<Free>,
    capacity: u64,
    /// Told when the first thread of the queue may have its turn.
    changed: Condvar,
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
        Self::with_kept(pages, (bytes, 0), name)
    }

    /// As [`Pool::with_pages`], with `kept` more bytes for [`Pool::allocate_kept`].
    pub fn with_kept(pages: Pages, (bytes, kept): (u64, u64), name: &str) -> Result<Self, FabricError> {
        Self::of((bytes, kept), |size| Region::allocate_with(pages, size, name))
    }

    /// A pool that peers are let read only, of `bytes` rounded up to whole pages ([`Region::allocate_readable`]).
    pub fn readable(bytes: u64, name: &str) -> Result<Self, FabricError> {
        Self::of((bytes, 0), |size| Region::allocate_readable(size, name))
    }

    fn of(
        (bytes, kept): (u64, u64),
        allocate: impl FnOnce(usize) -> Result<Region, FabricError>,
    ) -> Result<Self, FabricError> {
        let too_large = || FabricError::Internal("pool larger than memory".into());
        let page = page_size() as u64;
        let capacity = bytes.max(1).checked_next_multiple_of(page).ok_or_else(too_large)?;
        let whole = capacity.checked_add(kept).and_then(|whole| whole.checked_next_multiple_of(page));
        let region = allocate(whole.and_then(|whole| usize::try_from(whole).ok()).ok_or_else(too_large)?)?;
        // Huge pages round it up once more.
        let kept = if kept > 0 { (region.len() as u64).saturating_sub(capacity) } else { 0 };
        let capacity = region.len() as u64 - kept;
        let (free, kept) = (Free::new(0, capacity), Free::new(capacity, kept));
        let (free, kept, changed) = (Mutex::new(free), Mutex::new(kept), Condvar::new());
        Ok(Self(Arc::new(Shared { region, free, kept, capacity, changed })))
    }

    /// The region behind all buffers.
    #[must_use]
    pub fn region(&self) -> &Region {
        &self.0.region
    }

    /// Bytes in use, alignment included, without those that are kept for long.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        lock(&self.0.free).used
    }

    /// How many callers have had to wait in [`Pool::allocate_all`].
    #[must_use]
    pub fn waits(&self) -> u64 {
        lock(&self.0.free).waits
    }

    fn exhausted(&self, wanted: u64, free: &Free) -> PoolError {
        PoolError::Exhausted { wanted, used: free.used, capacity: self.0.capacity }
    }

    fn buffer(&self, bytes: u64, Taken { offset, padded, untouched_from }: Taken) -> Exclusive {
        Exclusive { pool: self.clone(), offset, bytes, padded, untouched_from }
    }

    /// A 64-byte aligned buffer of `bytes`; from 64 KiB on it has its pages for itself. Its content is whatever was there before (zeros when new).
    pub fn allocate(&self, bytes: u64) -> Result<Exclusive, PoolError> {
        if bytes == 0 {
            return Err(PoolError::Empty);
        }
        let mut free = lock(&self.0.free);
        let taken = free.take(bytes).ok_or_else(|| self.exhausted(bytes, &free))?;
        drop(free);
        Ok(self.buffer(bytes, taken))
    }

    /// As [`Pool::allocate`]. Where no free stretch is long enough, it gets pages of its own, which no peer can map.
    pub fn allocate_anyway(&self, bytes: u64) -> Result<Exclusive, FabricError> {
        let own = || {
            let pool = Self::with_pages(Pages::Private, bytes, "gradwire-own")?;
            pool.allocate(bytes).map_err(|error| FabricError::Internal(error.to_string()))
        };
        self.allocate(bytes).or_else(|_| own())
    }

    /// As [`Pool::allocate`], for memory that the program keeps for long: from a part of the region of its own, as between such buffers
    /// a long one would find no room. `None` if this part is used up.
    #[must_use]
    pub fn allocate_kept(&self, bytes: u64) -> Option<Exclusive> {
        let taken = if bytes > 0 { lock(&self.0.kept).take(bytes)? } else { return None };
        Some(self.buffer(bytes, taken))
    }

    /// A buffer for each of these sizes: all of them at once, so that two threads never wait for what the other one has. Waits in
    /// the order of the callers until there is room, as long as buffers come back: an error if none has for `patience`, and at once
    /// if the pool is too small for them.
    pub fn allocate_all(&self, sizes: &[u64], patience: Duration) -> Result<Vec<Exclusive>, PoolError> {
        if sizes.contains(&0) {
            return Err(PoolError::Empty);
        }
        let padded = sizes.iter().map(|bytes| bytes.checked_next_multiple_of(ALIGN).unwrap_or(u64::MAX));
        let wanted = padded.fold(0, u64::saturating_add);
        let mut free = lock(&self.0.free);
        if wanted > self.0.capacity {
            return Err(self.exhausted(wanted, &free));
        }
        let ticket = free.next_ticket;
        free.next_ticket += 1;
        free.queue.push_back(ticket);
        let mut waits: Option<(u64, Instant)> = None;
        let found = loop {
            let is_next = free.ahead.is_empty() && free.queue.front() == Some(&ticket);
            if let Some(all) = is_next.then(|| free.take_all(sizes)).flatten() {
                break Some(all);
            }
            if waits.is_none() && !patience.is_zero() {
                free.waits += 1;
            }
            let since = waits.filter(|(returned, _)| *returned == free.returned).map(|(_, since)| since);
            let since = since.unwrap_or_else(Instant::now);
            waits = Some((free.returned, since));
            let left = patience.saturating_sub(since.elapsed());
            if left.is_zero() {
                break None;
            }
            free = self.0.changed.wait_timeout(free, left).unwrap_or_else(PoisonError::into_inner).0;
        };
        free.queue.retain(|other| *other != ticket);
        let others_wait = !free.queue.is_empty();
        let all = found.ok_or_else(|| self.exhausted(wanted, &free));
        drop(free);
        if others_wait {
            self.0.changed.notify_all();
        }
        Ok(all?.into_iter().zip(sizes).map(|(taken, bytes)| self.buffer(*bytes, taken)).collect())
    }

    /// Goes ahead of all threads that wait in [`Pool::allocate_all`], for somebody that cannot wait: until the result is dropped,
    /// they leave alone what comes back, and `bell` is called each time, on the thread that gave it back. It must not block.
    #[must_use]
    pub fn go_ahead(&self, bell: impl Fn() + Send + Sync + 'static) -> Ahead {
        let mut free = lock(&self.0.free);
        let ticket = free.next_ticket;
        free.next_ticket += 1;
        free.ahead.push((ticket, Bell(Arc::new(bell))));
        Ahead { pool: self.clone(), ticket }
    }

    fn release(&self, offset: u64, padded: u64) {
        if offset >= self.0.capacity {
            return lock(&self.0.kept).put_back(offset, padded);
        }
        let mut free = lock(&self.0.free);
        free.put_back(offset, padded);
        free.returned += 1;
        let bells: Vec<Bell> = free.ahead.iter().map(|(_, bell)| bell.clone()).collect();
        let somebody_waits = !free.queue.is_empty();
        drop(free);
        if somebody_waits {
            self.0.changed.notify_all();
        }
        bells.iter().for_each(|Bell(ring)| ring());
    }
}

/// See [`Pool::go_ahead`].
#[derive(Debug)]
pub struct Ahead {
    pool: Pool,
    ticket: u64,
}

impl Drop for Ahead {
    fn drop(&mut self) {
        lock(&self.pool.0.free).ahead.retain(|(ticket, _)| *ticket != self.ticket);
        self.pool.0.changed.notify_all();
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

    /// Bytes before it in its region.
    pub(super) fn offset(&self) -> u64 {
        self.offset
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
    fn long_ones_have_their_pages_for_themselves_where_that_fits() {
        let page = page_size() as u64;
        let pool = Pool::new(LONG_BYTES * 2 + page, "test").unwrap();
        let short = pool.allocate(100).unwrap();
        let long = pool.allocate(LONG_BYTES + 1).unwrap();
        let beside = pool.allocate(64).unwrap();
        assert_eq!((short.offset, long.offset, long.padded), (0, page, LONG_BYTES + page));
        assert_eq!(beside.offset, 128, "in the gap");
        drop((short, long, beside));
        assert_eq!(pool.used_bytes(), 0);
        // As long as the pool, with a short one in front: none of the long ones begins on a page.
        let sizes = [64, LONG_BYTES, LONG_BYTES, page - 64];
        let all = pool.allocate_all(&sizes, Duration::ZERO).unwrap();
        assert!(all.iter().zip(sizes).all(|(one, bytes)| one.padded == bytes));
        drop(all);
        let short = pool.allocate(64).unwrap();
        assert!(pool.allocate(LONG_BYTES * 2 + page - 64).is_ok(), "all that is left");
        drop(short);
    }

    #[test]
    fn what_is_kept_for_long_takes_no_room_from_the_rest() {
        let pool = Pool::with_kept(Pages::Normal, (8192, 4096), "test").unwrap();
        let mut kept = pool.allocate_kept(4000).unwrap();
        assert!(pool.allocate_kept(128).is_none() && pool.allocate_kept(0).is_none());
        let mut whole = pool.allocate(8192).unwrap();
        kept.fill(7);
        whole.fill(1);
        assert!(pool.allocate(1).is_err_and(|error| error.to_string().contains("8192 of 8192")));
        assert_eq!((pool.used_bytes(), kept[3999], whole[8191]), (8192, 7, 1));
        drop((kept, whole));
        assert_eq!(pool.used_bytes(), 0);
        assert!(pool.allocate_kept(4096).is_some() && pool.allocate(8192).is_ok());
        assert!(Pool::new(8192, "test").unwrap().allocate_kept(1).is_none());
    }

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

    const PATIENCE: Duration = Duration::from_secs(60);

    fn wait_for_waiters(pool: &Pool, count: usize) {
        while lock(&pool.0.free).queue.len() < count {
            std::thread::yield_now();
        }
    }

    #[test]
    fn threads_wait_in_their_order_until_all_that_they_want_is_free() {
        let pool = Pool::new(4096, "test").unwrap();
        let (a, b) = (pool.allocate(2048).unwrap(), pool.allocate(1024).unwrap());
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            // The second one would fit at once, and the first one's small part, too.
            for (at, sizes) in [[64, 3500], [64, 512]].into_iter().enumerate() {
                let (pool, tell) = (&pool, tell.clone());
                scope.spawn(move || tell.send((at, pool.allocate_all(&sizes, PATIENCE).unwrap())).unwrap());
                wait_for_waiters(pool, at + 1);
            }
            assert_eq!(pool.used_bytes(), 3072, "the one that waits has nothing");
            drop(b);
            drop(a);
            let (first, all) = told.recv().unwrap();
            assert_eq!((first, all.iter().map(|buffer| buffer.len()).collect()), (0, vec![64, 3500]));
            // Then it fits no more: it has to wait for the first one's.
            drop(all);
            assert_eq!(told.recv().unwrap().0, 1);
        });
        assert_eq!(pool.used_bytes(), 0);
    }

    #[test]
    fn what_can_never_be_is_an_error_at_once_and_a_pool_that_nothing_comes_back_to_after_a_while() {
        let pool = Pool::new(4096, "test").unwrap();
        let (wanted, capacity) = (4160, 4096);
        let never = pool.allocate_all(&[4096, 64], PATIENCE).unwrap_err();
        assert_eq!(never, PoolError::Exhausted { wanted, used: 0, capacity });
        assert!(matches!(pool.allocate_all(&[u64::MAX, 64], PATIENCE), Err(PoolError::Exhausted { .. })));
        assert_eq!(pool.allocate_all(&[64, 0], PATIENCE).unwrap_err(), PoolError::Empty);
        let all = pool.allocate(4096).unwrap();
        let late = pool.allocate_all(&[64], Duration::from_millis(5)).unwrap_err();
        assert_eq!(late, PoolError::Exhausted { wanted: 64, used: 4096, capacity });
        drop(all);
        // Nobody is left in the queue.
        assert_eq!(pool.allocate_all(&[2048, 2048], Duration::ZERO).unwrap().len(), 2);
    }

    #[test]
    fn whoever_cannot_wait_goes_ahead_and_is_called() {
        let pool = Pool::new(4096, "test").unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        let all = pool.allocate(4096).unwrap();
        let ring = tell.clone();
        let ahead = pool.go_ahead(move || ring.send("rung").unwrap());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                drop(pool.allocate_all(&[64], PATIENCE).unwrap());
                tell.send("waited").unwrap();
            });
            wait_for_waiters(&pool, 1);
            drop(all);
            assert_eq!(told.recv().unwrap(), "rung");
            drop(pool.allocate(4096).unwrap());
            assert_eq!(told.recv().unwrap(), "rung", "the other one has waited on");
            drop(ahead);
            assert_eq!(told.recv().unwrap(), "waited");
        });
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
