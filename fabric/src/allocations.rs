//! Counts allocations: for programs that hold themselves to none on a path. A program takes [`Counting`] as its global
//! allocator to be told; nothing else uses it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

static OF_ALL: AtomicU64 = AtomicU64::new(0);

/// The system's allocator, with counts of what it was asked for. Growing is asking, giving back is not.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counting;

fn count() {
    OF_ALL.fetch_add(1, Ordering::Relaxed);
}

// SAFETY: every call is handed on to the system's allocator as it came, and what that gives is handed back; counting
// neither allocates nor unwinds. Needed because an allocator is an unsafe trait.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promises are the system allocator's own. Needed to allocate.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count();
        // SAFETY: as above; `memory` came from the system's allocator, as all of ours does.
        unsafe { System.realloc(memory, layout, bytes) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}

/// Allocations of this process so far; 0 where it has not [`Counting`] as its allocator.
#[must_use]
pub fn of_process() -> u64 {
    OF_ALL.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hint::black_box;

    #[test]
    fn asking_and_growing_count_and_giving_back_does_not() {
        let before = of_process();
        let layout = Layout::from_size_align(64, 8).unwrap();
        let larger = Layout::from_size_align(128, 8).unwrap();
        // SAFETY: both layouts have a size, each block is given back once, with the layout it has by then.
        unsafe {
            let one = black_box(Counting.alloc(layout));
            let one = Counting.realloc(one, layout, 128);
            let two = black_box(Counting.alloc_zeroed(layout));
            assert_eq!(two.read(), 0);
            Counting.dealloc(one, larger);
            Counting.dealloc(two, layout);
        }
        // This program's own allocator is another.
        assert_eq!(of_process() - before, 3);
    }
}
