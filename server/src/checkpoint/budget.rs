//! Memory that chunks copied for a checkpoint take until they are written: all lanes share it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Budget(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    most_bytes: u64,
    used_bytes: AtomicU64,
    /// Somebody was refused since room was made last.
    is_wanted: AtomicBool,
}

impl Budget {
    pub(crate) fn new(most_bytes: u64) -> Self {
        Self(Arc::new(Inner { most_bytes, used_bytes: AtomicU64::new(0), is_wanted: AtomicBool::new(false) }))
    }

    pub(super) fn used_bytes(&self) -> u64 {
        self.0.used_bytes.load(Ordering::Relaxed)
    }

    /// Takes so many bytes, if there is room; what is larger than all of it has room alone.
    pub(crate) fn take(&self, bytes: u64) -> bool {
        let has_room =
            |used: u64| (used == 0 || used.saturating_add(bytes) <= self.0.most_bytes).then(|| used + bytes);
        let take = || self.0.used_bytes.fetch_update(Ordering::AcqRel, Ordering::Acquire, has_room).is_ok();
        if take() {
            return true;
        }
        self.0.is_wanted.store(true, Ordering::SeqCst);
        // What was given back before that was seen is not told to anybody.
        take()
    }

    /// Gives back what was taken too much. Threads that wait for room are woken with the rest.
    pub(crate) fn give_rest(&self, bytes: u64) {
        self.0.used_bytes.fetch_sub(bytes, Ordering::AcqRel);
    }

    /// Gives them back. True where somebody waits for room.
    pub(crate) fn give(&self, bytes: u64) -> bool {
        self.0.used_bytes.fetch_sub(bytes, Ordering::AcqRel);
        self.0.is_wanted.swap(false, Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_is_told_also_where_somebody_took_too_much() {
        let budget = Budget::new(100);
        assert!(budget.take(100) && !budget.take(50));
        budget.give_rest(90);
        assert!(budget.give(10), "somebody was refused");
    }

    #[test]
    fn both_sides_of_the_bound_and_one_that_is_larger_than_all() {
        let budget = Budget::new(100);
        assert!(budget.take(60) && budget.take(40) && !budget.take(1));
        assert!(budget.give(60), "somebody was refused");
        assert!(budget.take(60) && !budget.give(60));
        assert!(!budget.give(40));
        assert!(budget.take(500), "alone");
        assert!(!budget.take(1));
        assert_eq!(budget.used_bytes(), 500);
    }
}
