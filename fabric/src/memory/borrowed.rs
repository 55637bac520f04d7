//! A stretch of a peer's memory that a program of this process reads in place. The peer changes it again when it is notified that the
//! operation has ended. Before that, the program has dropped the stretch, or its pages have become this process's own. For this the
//! region is mapped a second time, copy on write. So a program may also write into a borrowed stretch, and the peer does not see that.
//!
//! ```text
//!            drop, no page was written
//!  borrowed ──────────────────────────────▶ returned
//!     │  └─── drop, pages were written ───▶ returned, and the mapping is spoiled
//!     └────── keep ─────▶ kept: the bytes stay as they are until the drop, and the mapping is spoiled
//! ```
//!
//! Nothing is borrowed from a spoiled mapping: its private pages would hide what the peer writes later. This file does not know when the
//! peer changes its memory.

use super::region::{Mapping, OutOfBounds};
use crate::address_space::is_address_space_limited;
use crate::error::FabricError;
use crate::lock::lock;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::pread;
use rustix::mm::{Advice, madvise};
use rustix::param::page_size;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};

/// Entries of the page map that are read at once.
const ENTRIES: usize = 512;
/// In an entry of the page map (Linux, `Documentation/admin-guide/mm/pagemap.rst`).
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
const OF_FILE: u64 = 1 << 61;

/// The page map of this process. It stays open.
static PAGE_MAP: LazyLock<rustix::io::Result<OwnedFd>> =
    LazyLock::new(|| open("/proc/self/pagemap", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()));

/// Does the system set memory aside for each private mapping (`vm.overcommit_memory = 2`)? A pool's would be all that it has.
static IS_MEMORY_PROMISED: LazyLock<bool> = LazyLock::new(|| {
    std::fs::read_to_string("/proc/sys/vm/overcommit_memory").is_ok_and(|mode| mode.trim() == "2")
});

/// The number of page faults of all threads of this process.
fn page_faults() -> i64 {
    // SAFETY: it consists of integers, for which zeros are valid. Needed for the system call, which fills it.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the structure is valid for a write. Needed because rustix has no such function.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut usage) };
    usage.ru_minflt.wrapping_add(usage.ru_majflt)
}

/// A peer's region, mapped copy on write.
#[derive(Debug)]
pub(crate) struct PeerPages {
    mapping: Mapping,
    is_spoiled: AtomicBool,
    /// The page faults of this process when no page of the mapping was private but for borrowed ones.
    clean_at: AtomicI64,
    /// Offsets and lengths of the borrowed stretches. They do not overlap: if a program wrote into one of them, the other would change.
    borrowed: Mutex<Vec<(u64, u64)>>,
}

impl PeerPages {
    /// `None` if the system cannot do it: before Linux 5.14, or without `/proc`.
    pub(crate) fn of_peer(fd: BorrowedFd<'_>, bytes: usize) -> Option<Arc<Self>> {
        if is_address_space_limited() || *IS_MEMORY_PROMISED {
            return None;
        }
        // One page is tried first. An emulator that ignored the advice would otherwise be noticed only when a handler reads torn values.
        let trial = Self::map(fd, bytes.min(page_size()))?;
        let tells = |is_own| trial.has_own_pages(0, 1) == Ok(is_own);
        let faults = page_faults();
        let works = tells(false) && trial.own_pages(0, 1).is_ok() && tells(true) && faults != page_faults();
        works.then(|| Self::map(fd, bytes)).flatten().map(Arc::new)
    }

    fn map(fd: BorrowedFd<'_>, bytes: usize) -> Option<Self> {
        let mapping = Mapping::private_of_peer(fd, bytes).ok()?;
        let (is_spoiled, clean_at) = (AtomicBool::new(false), AtomicI64::new(page_faults()));
        Some(Self { mapping, is_spoiled, clean_at, borrowed: Mutex::default() })
    }

    pub(crate) fn is_spoiled(&self) -> bool {
        self.is_spoiled.load(Ordering::SeqCst)
    }

    /// Borrows a stretch. `None` if it does not begin on a page, overlaps a borrowed stretch, or the mapping is spoiled.
    pub(crate) fn borrow(self: &Arc<Self>, offset: u64, bytes: u64) -> Result<Option<Borrowed>, OutOfBounds> {
        self.mapping.check(offset, bytes)?;
        let mut borrowed = lock(&self.borrowed);
        let overlaps = borrowed.iter().any(|(at, length)| offset < at + length && *at < offset + bytes);
        if self.is_spoiled() || overlaps || bytes == 0 || !offset.is_multiple_of(page_size() as u64) {
            return Ok(None);
        }
        let faults = page_faults();
        if !self.is_clean(offset, faults) {
            self.is_spoiled.store(true, Ordering::SeqCst);
            return Ok(None);
        }
        borrowed.push((offset, bytes));
        Ok(Some(Borrowed { pages: self.clone(), offset, bytes, faults }))
    }

    /// Are the pages from there on the peer's? A program that calls mlockall makes all pages of the mapping private, and those would
    /// show bytes from before that. It begins with the first page, so one page tells it.
    fn is_clean(&self, offset: u64, faults: i64) -> bool {
        if self.clean_at.swap(faults, Ordering::SeqCst) == faults {
            return true;
        }
        self.has_own_pages(offset, 1) == Ok(false)
    }

    /// The addresses of the pages of a stretch.
    fn pages(&self, offset: u64, bytes: u64) -> (usize, usize) {
        let start = self.mapping.start().addr() + offset as usize;
        let whole = (bytes as usize).next_multiple_of(page_size());
        (start, whole)
    }

    /// Makes the pages of the stretch private.
    fn own_pages(&self, offset: u64, bytes: u64) -> rustix::io::Result<()> {
        let (start, whole) = self.pages(offset, bytes);
        let start = self.mapping.start().with_addr(start);
        // SAFETY: these are whole pages of a live mapping of ours, and to populate them changes none of their bytes. Needed because
        // a program goes on to read them at the same addresses.
        unsafe { madvise(start.cast(), whole, Advice::LinuxPopulateWrite) }
    }

    /// Is a page of the stretch private, because it was written?
    fn has_own_pages(&self, offset: u64, bytes: u64) -> rustix::io::Result<bool> {
        let page_map = PAGE_MAP.as_ref().map_err(|error| *error)?;
        let (start, whole) = self.pages(offset, bytes);
        let mut entries = [0; ENTRIES * 8];
        let mut at = (start / page_size() * 8) as u64;
        let mut left = whole / page_size() * 8;
        while left > 0 {
            let wanted = left.min(entries.len());
            let read = pread(page_map, &mut entries[..wanted], at)?;
            if read == 0 || !read.is_multiple_of(8) {
                return Err(rustix::io::Errno::IO);
            }
            let (each, _) = entries[..read].as_chunks::<8>();
            // A swapped page is private, too: a page of the peer's has no entry then.
            let is_own = |entry: u64| entry & PRESENT != 0 && entry & OF_FILE == 0 || entry & SWAPPED != 0;
            if each.iter().any(|entry| is_own(u64::from_ne_bytes(*entry))) {
                return Ok(true);
            }
            at += read as u64;
            left -= read;
        }
        Ok(false)
    }
}

/// A borrowed stretch. A peer that breaks the protocol can change its bytes, so there is no Rust reference to them.
#[derive(Debug)]
pub struct Borrowed {
    pages: Arc<PeerPages>,
    offset: u64,
    bytes: u64,
    /// Page faults before it was borrowed.
    faults: i64,
}

impl Borrowed {
    /// Has no page of it been written? To read the page map takes a quarter of the time of a copy. But a page becomes private by a
    /// page fault, and a program that only reads has none.
    fn is_untouched(&self) -> bool {
        // If the page map cannot be read, it counts as written.
        self.faults == page_faults() || self.pages.has_own_pages(self.offset, self.bytes) == Ok(false)
    }

    /// Its address and its length in bytes. The address is valid until the drop.
    #[must_use]
    pub fn place(&self) -> (*const u8, u64) {
        let (start, _) = self.pages.pages(self.offset, self.bytes);
        (self.pages.mapping.start().with_addr(start).cast_const(), self.bytes)
    }

    /// Copies it out. `into` is as long as it is.
    pub fn read(&self, into: &mut [u8]) -> Result<(), OutOfBounds> {
        let from = self.pages.mapping.at(self.offset, into.len() as u64)?;
        // SAFETY: the source is mapped and in bounds (checked), and the target is an exclusive slice of other memory. Needed because
        // a peer's memory must not be a Rust reference.
        unsafe { std::ptr::copy_nonoverlapping(from.cast_const(), into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    /// Makes its pages private: the bytes do not change when the peer writes there. Fails if there is no memory for them.
    pub fn keep(&self) -> Result<(), FabricError> {
        self.pages.is_spoiled.store(true, Ordering::SeqCst);
        let owned = self.pages.own_pages(self.offset, self.bytes);
        owned.map_err(|e| FabricError::os("copying what was borrowed from a peer", e))
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        let Self { pages, offset, bytes, .. } = &*self;
        if !pages.is_spoiled() && !self.is_untouched() {
            pages.is_spoiled.store(true, Ordering::SeqCst);
        }
        // Last: before the check, the mapping may be spoiled although it does not say so, and nobody may borrow these bytes again.
        let mut borrowed = lock(&pages.borrowed);
        if let Some(at) = borrowed.iter().position(|one| *one == (*offset, *bytes)) {
            borrowed.swap_remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::PeerWritable;
    use super::*;

    const PAGE: u64 = 4096;

    /// A peer's memory, and what this process borrows from.
    fn peer(pages: u64) -> (PeerWritable, Option<Arc<PeerPages>>) {
        let bytes = (pages * PAGE) as usize;
        let peer = PeerWritable::allocate(bytes, "peer").unwrap();
        peer.write(0, &vec![1; bytes]).unwrap();
        let all = peer.all();
        let mapped = PeerPages::of_peer(all.region().memfd().unwrap(), bytes);
        assert!(mapped.is_some() || cfg!(not(target_arch = "x86_64")), "only emulators cannot do it");
        (peer, mapped)
    }

    fn bytes_of(borrowed: &Borrowed) -> Vec<u8> {
        let mut bytes = vec![0; borrowed.bytes as usize];
        borrowed.read(&mut bytes).unwrap();
        bytes
    }

    /// As a program that writes what it was given.
    fn write(borrowed: &Borrowed, at: usize, value: u8) {
        // SAFETY: within the stretch, which is mapped for writing here, and which nobody else of this process has.
        unsafe { borrowed.place().0.cast_mut().add(at).write(value) };
    }

    #[test]
    fn what_the_peer_wrote_before_is_seen_and_what_is_kept_stays() {
        let (peer, Some(pages)) = peer(4) else { return };
        let borrowed = pages.borrow(PAGE, 2 * PAGE - 5).unwrap().unwrap();
        assert_eq!(bytes_of(&borrowed), vec![1; 2 * PAGE as usize - 5]);
        borrowed.keep().unwrap();
        peer.write(PAGE, &vec![2; PAGE as usize]).unwrap();
        assert_eq!(bytes_of(&borrowed), vec![1; 2 * PAGE as usize - 5], "it is ours");
        assert!(
            pages.is_spoiled() && pages.borrow(0, PAGE).unwrap().is_none(),
            "the next one needs a new mapping"
        );
    }

    #[test]
    fn reads_spoil_nothing() {
        let (peer, Some(pages)) = peer(4) else { return };
        for value in 1..4 {
            peer.write(0, &vec![value; 2 * PAGE as usize]).unwrap();
            let borrowed = pages.borrow(0, 2 * PAGE).unwrap().expect("it was returned");
            assert_eq!(bytes_of(&borrowed), vec![value; 2 * PAGE as usize]);
        }
        assert!(!pages.is_spoiled());
    }

    #[test]
    fn what_is_written_here_the_peer_does_not_see_and_nobody_borrows_it() {
        let (peer, Some(pages)) = peer(ENTRIES as u64 + 2) else { return };
        let last = (ENTRIES as u64 + 1) * PAGE;
        let borrowed = pages.borrow(0, last + 1).unwrap().unwrap();
        write(&borrowed, last as usize, 9);
        assert_eq!(bytes_of(&borrowed)[last as usize - 1..], [1, 9]);
        drop(borrowed);
        assert!(pages.is_spoiled());
        let mut there = [0];
        peer.read(last, &mut there).unwrap();
        assert_eq!(there, [1]);
    }

    #[test]
    fn a_mapping_whose_pages_were_all_made_private_is_spoiled() {
        let (peer, Some(pages)) = peer(4) else { return };
        drop(pages.borrow(0, PAGE).unwrap().unwrap());
        // As mlockall does.
        pages.own_pages(0, 4 * PAGE).unwrap();
        peer.write(2 * PAGE, &[2; 64]).unwrap();
        assert!(pages.borrow(2 * PAGE, 64).unwrap().is_none() && pages.is_spoiled());
    }

    #[test]
    fn nothing_is_borrowed_twice_or_from_the_middle_of_a_page_or_out_of_bounds() {
        let (_peer, Some(pages)) = peer(4) else { return };
        let first = pages.borrow(PAGE, PAGE).unwrap().unwrap();
        assert!(pages.borrow(0, PAGE + 1).unwrap().is_none() && pages.borrow(PAGE, 1).unwrap().is_none());
        assert!(pages.borrow(0, PAGE).unwrap().is_some() && pages.borrow(2 * PAGE, PAGE).unwrap().is_some());
        drop(first);
        assert!(pages.borrow(0, 2 * PAGE).unwrap().is_some());
        assert!(pages.borrow(64, PAGE).unwrap().is_none() && pages.borrow(0, 0).unwrap().is_none());
        assert!(pages.borrow(PAGE, 3 * PAGE + 1).is_err() && pages.borrow(u64::MAX, 2).is_err());
    }
}
