//! Numbers of this process's own, in pages as large as the system has: random access to many of them then needs few entries
//! of the processor's page tables. Nobody else reaches this memory.

use super::region::Mapping;
use crate::error::FabricError;
use rustix::mm::{Advice, madvise};
use std::ops::{Deref, DerefMut};

/// Bytes of a huge page.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;

/// See the module.
#[derive(Debug)]
pub struct Floats {
    /// This value's alone: references come from borrowing it.
    mapping: Mapping,
    /// Bytes before the first number, up to a huge page's beginning.
    skipped: usize,
    count: usize,
}

impl Floats {
    /// So many zeros. Pages are taken at first touch: normal ones for the first `small_bytes`, which are whole huge pages, and
    /// huge ones behind, where the system has some.
    pub fn zeroed(count: usize, small_bytes: usize) -> Result<Self, FabricError> {
        let too_many = || FabricError::Internal("more elements than the address space holds".into());
        let bytes = count.max(1).checked_mul(size_of::<f32>()).ok_or_else(too_many)?;
        let whole = bytes.checked_next_multiple_of(HUGE_PAGE_BYTES).ok_or_else(too_many)?;
        // No allocator hands out untouched memory at the border of a huge page.
        let mapping = Mapping::private(whole.checked_add(HUGE_PAGE_BYTES).ok_or_else(too_many)?)?;
        let skipped = mapping.start().align_offset(HUGE_PAGE_BYTES);
        let small = small_bytes.next_multiple_of(HUGE_PAGE_BYTES).min(whole);
        // SAFETY: within the mapping, which is a huge page longer than what follows. Failure only loses speed.
        let _ = unsafe {
            madvise(mapping.start().add(skipped + small).cast(), whole - small, Advice::LinuxHugepage)
        };
        Ok(Self { mapping, skipped, count })
    }

    #[inline]
    fn start(&self) -> *mut f32 {
        // SAFETY: no more than a huge page is skipped, by which the mapping is longer than the numbers.
        unsafe { self.mapping.start().add(self.skipped).cast() }
    }
}

impl Deref for Floats {
    type Target = [f32];

    #[inline]
    fn deref(&self) -> &[f32] {
        // SAFETY: so many numbers lie in the mapping, aligned as pages are; fresh pages are zeros, and any bits are a number.
        // Needed because the memory is the system's and no vector's.
        unsafe { std::slice::from_raw_parts(self.start(), self.count) }
    }
}

impl DerefMut for Floats {
    #[inline]
    fn deref_mut(&mut self) -> &mut [f32] {
        // SAFETY: as in `deref`, and `&mut self` excludes other references.
        unsafe { std::slice::from_raw_parts_mut(self.start(), self.count) }
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
