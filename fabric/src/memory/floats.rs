//! Numbers of this process's own, in pages as large as the system has: random access to many of them then needs few entries
//! of the processor's page tables. Nobody else reaches this memory.

use crate::error::FabricError;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Bytes of a huge page.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;

/// See the module.
#[derive(Debug)]
pub struct Floats {
    mapped: NonNull<u8>,
    mapped_bytes: usize,
    start: NonNull<f32>,
    count: usize,
}

// SAFETY: plain numbers in a mapping that this value owns alone; references come from borrowing it. Needed because raw
// pointers are not Send.
unsafe impl Send for Floats {}
// SAFETY: as above: through a shared reference they are only read.
unsafe impl Sync for Floats {}

impl Floats {
    /// So many zeros. Pages are taken at first touch: normal ones for the first `small_bytes`, which are whole huge pages, and
    /// huge ones behind, where the system has some.
    pub fn zeroed(count: usize, small_bytes: usize) -> Result<Self, FabricError> {
        let what = |step: &str| format!("allocating {count} numbers: {step}");
        let too_many = || FabricError::Internal("more elements than the address space holds".into());
        let bytes = count.max(1).checked_mul(size_of::<f32>()).ok_or_else(too_many)?;
        let whole = bytes.checked_next_multiple_of(HUGE_PAGE_BYTES).ok_or_else(too_many)?;
        let mapped_bytes = whole.checked_add(HUGE_PAGE_BYTES).ok_or_else(too_many)?;
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a fresh mapping at an address of the kernel's choice. Needed because no allocator hands out untouched
        // memory at the border of a huge page.
        let mapped = unsafe { mmap_anonymous(std::ptr::null_mut(), mapped_bytes, prot, flags) }
            .map_err(|e| FabricError::os(what("mmap"), e))?;
        let mapped = NonNull::new(mapped.cast::<u8>())
            .ok_or_else(|| FabricError::Internal("mmap returned null".into()))?;
        let skipped = mapped.as_ptr().align_offset(HUGE_PAGE_BYTES);
        // SAFETY: the mapping is a huge page longer than what follows, and no more than that is skipped.
        let start = unsafe { mapped.add(skipped) };
        let small = small_bytes.next_multiple_of(HUGE_PAGE_BYTES).min(whole);
        // SAFETY: within the mapping. Failure only loses speed.
        let _ = unsafe { madvise(start.add(small).as_ptr().cast(), whole - small, Advice::LinuxHugepage) };
        Ok(Self { mapped, mapped_bytes, start: start.cast(), count })
    }
}

impl Deref for Floats {
    type Target = [f32];

    #[inline]
    fn deref(&self) -> &[f32] {
        // SAFETY: so many numbers lie in the mapping, aligned as pages are; fresh pages are zeros, and any bits are a number.
        // Needed because the memory is the system's and no vector's.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.count) }
    }
}

impl DerefMut for Floats {
    #[inline]
    fn deref_mut(&mut self) -> &mut [f32] {
        // SAFETY: as in `deref`, and `&mut self` excludes other references.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.count) }
    }
}

impl Drop for Floats {
    fn drop(&mut self) {
        // SAFETY: mapped in `zeroed` with these values and not used after; needed to give memory back.
        let unmapped = unsafe { munmap(self.mapped.as_ptr().cast(), self.mapped_bytes) };
        debug_assert!(unmapped.is_ok(), "munmap of our own mapping");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_zeros_at_the_border_of_a_huge_page_and_keep_what_is_written() {
        for (count, small_bytes) in [(0, 0), (1, 1), ((3 << 20) / 4 + 1, HUGE_PAGE_BYTES), (4 << 20, 0)] {
            let mut floats = Floats::zeroed(count, small_bytes).unwrap();
            assert_eq!((floats.len(), floats.as_ptr() as usize % HUGE_PAGE_BYTES), (count, 0));
            assert!(floats.iter().all(|number| *number == 0.0));
            floats.fill(1.5);
            assert!(floats.iter().all(|number| *number == 1.5));
        }
        assert!(Floats::zeroed(usize::MAX, 0).is_err() && Floats::zeroed(usize::MAX / 4, 0).is_err());
    }
}
