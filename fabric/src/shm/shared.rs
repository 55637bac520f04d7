//! Owns the layout of the pages two processes share for their own talk: the notice ring and the doorbell
//! page, and the careful mapping of what a peer hands over. Algorithms over them are elsewhere.

use super::landings::ENTRY_WORDS;
use super::ring::RingMemory;
use super::word::Native;
use crate::error::FabricError;
use crate::memory::{Mapping, Region};
use rustix::fs::fstatfs;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, AtomicU64};

/// Most notices a ring holds; a bound on what a peer can make us map.
pub(super) const RING_CAPACITY_MAX: u32 = 1 << 16;

/// Two cache lines, because processors fetch them in pairs: words of different writers stay apart.
pub(super) const LINE_PAIR_BYTES: u64 = 128;
const HEAD_AT: u64 = 0;
const CLOSED_AT: u64 = 4;
const TAKEN_AT: u64 = 8;
const BUSY_AT: u64 = LINE_PAIR_BYTES;
const STARVED_AT: u64 = 2 * LINE_PAIR_BYTES;
const SLOTS_AT: u64 = 3 * LINE_PAIR_BYTES;
const ENTRY_BYTES: u64 = ENTRY_WORDS as u64 * 8;
const BELL_BYTES: usize = 4096;

/// The kernel's memfds live on a tmpfs of its own. Other file systems can make an access fail with a bus
/// error although the file is sealed (huge pages that nobody reserved).
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// Maps memory a peer handed over, after making sure that it cannot be taken away under us.
pub(super) fn map_peer_memory(memfd: BorrowedFd<'_>, bytes: usize) -> Result<Mapping, FabricError> {
    let kind = fstatfs(memfd).map_err(|e| FabricError::os("inspecting a peer's shared memory", e))?.f_type;
    if kind as u64 != TMPFS_MAGIC {
        return Err(FabricError::Peer("what it handed over is not a memfd".into()));
    }
    Mapping::of_peer(memfd, bytes)
}

/// As [`map_peer_memory`], of memory that both write: words are shared there.
pub(super) fn map_shared_memory(memfd: BorrowedFd<'_>, bytes: usize) -> Result<Mapping, FabricError> {
    let mapping = map_peer_memory(memfd, bytes)?;
    if !mapping.is_writable() {
        return Err(FabricError::Peer("its words are sealed against being written".into()));
    }
    Ok(mapping)
}

/// A fresh sealed stretch: mapped here, and the region whose file is to be handed over.
pub(super) fn own_memory(bytes: usize, name: &str) -> Result<(Mapping, Region), FabricError> {
    let region = Region::allocate(bytes, name)?;
    let memfd = region.memfd().ok_or_else(|| FabricError::Internal("our own memory has no file".into()))?;
    Ok((Mapping::of_fd(memfd, bytes, true)?, region))
}

pub(super) fn word32(mapping: &Mapping, offset: u64) -> &AtomicU32 {
    match mapping.at(offset, 4) {
        // SAFETY: the four bytes are mapped as long as the mapping is borrowed, and aligned: mappings begin at
        // a page and all offsets here are multiples of 4. Both processes reach them by atomics only; a peer
        // that does not tears its own values. Needed because the words are shared with another process.
        Ok(word) => unsafe { AtomicU32::from_ptr(word.cast()) },
        // Invariant: the length was checked against all constant offsets when it was mapped.
        Err(_) => unreachable!("constant offsets below the length checked when it was mapped"),
    }
}

/// As [`word32`], at a multiple of 8.
#[inline]
fn word64(mapping: &Mapping, offset: u64) -> &AtomicU64 {
    match mapping.at(offset, 8) {
        // SAFETY: as in `word32`, with offsets that are multiples of 8.
        Ok(word) => unsafe { AtomicU64::from_ptr(word.cast()) },
        // Invariant: indices are masked by the capacity that the mapping was checked for.
        Err(_) => unreachable!("the ring's indices are below its capacity"),
    }
}

/// Behind the slots, on lines of their own.
const fn landings_at(capacity: u32) -> u64 {
    (SLOTS_AT + capacity as u64 * 8).next_multiple_of(ENTRY_BYTES)
}

/// A notice ring in shared memory, and the landings that go with it.
#[derive(Debug)]
pub(super) struct MappedRing {
    mapping: Mapping,
    capacity: u32,
}

impl MappedRing {
    fn bytes(capacity: u32) -> Result<usize, FabricError> {
        if !capacity.is_power_of_two() || capacity > RING_CAPACITY_MAX {
            return Err(FabricError::Peer(format!("its notice ring has {capacity} slots")));
        }
        let end = landings_at(capacity) + u64::from(capacity) * ENTRY_BYTES;
        Ok((end as usize).next_multiple_of(4096))
    }

    /// A new one for us to read; the region's file goes to the peer.
    pub(super) fn create(capacity: u32) -> Result<(Self, Region), FabricError> {
        let (mapping, region) = own_memory(Self::bytes(capacity)?, "gradwire-ring")?;
        Ok((Self { mapping, capacity }, region))
    }

    /// A peer's, for us to write.
    pub(super) fn of_peer(memfd: BorrowedFd<'_>, capacity: u32) -> Result<Self, FabricError> {
        Ok(Self { mapping: map_shared_memory(memfd, Self::bytes(capacity)?)?, capacity })
    }
}

impl RingMemory for MappedRing {
    type P = Native;

    #[inline]
    fn capacity(&self) -> u32 {
        self.capacity
    }

    #[inline]
    fn slot(&self, index: u32) -> &AtomicU64 {
        word64(&self.mapping, SLOTS_AT + u64::from(index) * 8)
    }

    #[inline]
    fn head(&self) -> &AtomicU32 {
        word32(&self.mapping, HEAD_AT)
    }

    #[inline]
    fn closed(&self) -> &AtomicU32 {
        word32(&self.mapping, CLOSED_AT)
    }

    #[inline]
    fn busy(&self) -> &AtomicU32 {
        word32(&self.mapping, BUSY_AT)
    }

    #[inline]
    fn starved(&self) -> &AtomicU32 {
        word32(&self.mapping, STARVED_AT)
    }

    #[inline]
    fn taken(&self) -> &AtomicU64 {
        word64(&self.mapping, TAKEN_AT)
    }

    #[inline]
    fn landing(&self, index: u32, word: u32) -> &AtomicU64 {
        let at = landings_at(self.capacity) + u64::from(index) * ENTRY_BYTES;
        word64(&self.mapping, at + u64::from(word) * 8)
    }
}

/// The page that holds a sleeper's word.
#[derive(Debug)]
pub(super) struct BellPage(Mapping);

impl BellPage {
    /// Ours; the region's file goes to every peer.
    pub(super) fn create() -> Result<(Self, Region), FabricError> {
        let (mapping, region) = own_memory(BELL_BYTES, "gradwire-bell")?;
        Ok((Self(mapping), region))
    }

    /// A peer's.
    pub(super) fn of_peer(memfd: BorrowedFd<'_>) -> Result<Self, FabricError> {
        Ok(Self(map_shared_memory(memfd.as_fd(), BELL_BYTES)?))
    }

    pub(super) fn word(&self) -> &AtomicU32 {
        word32(&self.0, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::ring::{Consumer, Producer};

    #[test]
    fn both_ends_of_a_mapped_ring_meet() {
        let (ours, region) = MappedRing::create(2).unwrap();
        let mut consumer = Consumer::new(ours);
        let mut producer = Producer::new(MappedRing::of_peer(region.memfd().unwrap(), 2).unwrap());
        for round in 0..5 {
            producer.publish(round);
            assert_eq!(consumer.pop(), Ok(Some(round)));
            consumer.release();
            assert_eq!(producer.has_space(), Ok(true));
        }
        consumer.close();
        assert!(!producer.enter());
    }

    #[test]
    fn capacities_are_bounded() {
        for (capacity, good) in [(0, false), (1, true), (3, false), (1 << 16, true), (1 << 17, false)] {
            assert_eq!(MappedRing::create(capacity).is_ok(), good, "{capacity}");
        }
        let (_ring, region) = MappedRing::create(1).unwrap();
        assert!(MappedRing::of_peer(region.memfd().unwrap(), 1024).is_err(), "too small for what it claims");
    }

    #[test]
    fn only_sealed_memfds_are_mapped() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 16).unwrap();
        assert!(MappedRing::of_peer(file.as_fd(), 16).is_err());
        let zero = std::fs::File::open("/dev/zero").unwrap();
        assert!(BellPage::of_peer(zero.as_fd()).is_err());
        let sealed = Region::allocate_readable(1 << 16, "sealed").unwrap();
        assert!(BellPage::of_peer(sealed.memfd().unwrap()).is_err(), "a word that nobody could write");
        assert!(MappedRing::of_peer(sealed.memfd().unwrap(), 16).is_err());
    }
}
