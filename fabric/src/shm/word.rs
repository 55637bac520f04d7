//! Owns the primitives that the lock-free parts stand on, as traits, so that a model checker can put its own
//! in their place. It must not hold any algorithm.

use std::sync::atomic::{self, AtomicU32, AtomicU64, Ordering};

/// A 32-bit word that several threads or processes change.
pub(crate) trait Word32 {
    fn load(&self, order: Ordering) -> u32;
    fn store(&self, value: u32, order: Ordering);
    fn swap(&self, value: u32, order: Ordering) -> u32;
}

/// A 64-bit word that one side stores and the other loads.
pub(crate) trait Word64 {
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
}

/// One family of words, with the full fence that goes with them.
pub(crate) trait Primitives {
    type Word32: Word32;
    type Word64: Word64;
    /// A sequentially consistent fence: a store before it and a load after it are not reordered.
    fn fence();
}

/// The processor's own words, good in memory shared between processes.
#[derive(Debug)]
pub(crate) struct Native;

impl Primitives for Native {
    type Word32 = AtomicU32;
    type Word64 = AtomicU64;

    #[inline]
    fn fence() {
        atomic::fence(Ordering::SeqCst);
    }
}

macro_rules! words {
    ($word32:ty, $word64:ty) => {
        impl Word32 for $word32 {
            #[inline]
            fn load(&self, order: Ordering) -> u32 {
                <$word32>::load(self, order)
            }
            #[inline]
            fn store(&self, value: u32, order: Ordering) {
                <$word32>::store(self, value, order);
            }
            #[inline]
            fn swap(&self, value: u32, order: Ordering) -> u32 {
                <$word32>::swap(self, value, order)
            }
        }

        impl Word64 for $word64 {
            #[inline]
            fn load(&self, order: Ordering) -> u64 {
                <$word64>::load(self, order)
            }
            #[inline]
            fn store(&self, value: u64, order: Ordering) {
                <$word64>::store(self, value, order);
            }
        }
    };
}

words!(AtomicU32, AtomicU64);

#[cfg(test)]
words!(loom::sync::atomic::AtomicU32, loom::sync::atomic::AtomicU64);

/// The model checker's words.
#[cfg(test)]
#[derive(Debug)]
pub(crate) struct Modelled;

#[cfg(test)]
impl Primitives for Modelled {
    type Word32 = loom::sync::atomic::AtomicU32;
    type Word64 = loom::sync::atomic::AtomicU64;

    fn fence() {
        loom::sync::atomic::fence(Ordering::SeqCst);
    }
}

/// Checks every interleaving with at most two preemptions. The slow suite `loom` sets `LOOM_MAX_PREEMPTIONS`: as many then, or any
/// number where the model is small enough for `all`.
#[cfg(test)]
pub(crate) fn explore(all: bool, check: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = match builder.preemption_bound {
        None => Some(2),
        Some(_) if all => None,
        bound => bound,
    };
    builder.check(check);
}

/// As [`explore`], with one preemption fewer: for models of many steps.
#[cfg(test)]
pub(crate) fn explore_large(check: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.map_or(Some(1), |bound| bound.checked_sub(1));
    builder.check(check);
}
