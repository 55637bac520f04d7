//! What took too long is counted, and said at most so often. Where its time went, whoever saw it says. Nothing here is reached
//! by what was quick.

use crate::seldom::Seldom;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Lines a second that a process says of slow operations.
const LINES_PER_SECOND: u32 = 5;

/// See the module; clones share it.
#[derive(Clone, Debug)]
pub struct Slow(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// `u64::MAX`: nothing is slow.
    limit_ms: u64,
    seen: AtomicU64,
    said: Seldom,
}

impl Default for Slow {
    fn default() -> Self {
        Self::new(0)
    }
}

impl Slow {
    /// What takes so many milliseconds is slow; 0: nothing is.
    #[must_use]
    pub fn new(limit_ms: u64) -> Self {
        let limit_ms = if limit_ms == 0 { u64::MAX } else { limit_ms };
        Self(Arc::new(Inner { limit_ms, seen: AtomicU64::new(0), said: Seldom::default() }))
    }

    /// Is it too long?
    #[inline]
    #[must_use]
    pub fn is_slow(&self, took_ms: u64) -> bool {
        took_ms >= self.0.limit_ms
    }

    /// What takes so long is too long; the greatest number: nothing is.
    #[inline]
    #[must_use]
    pub fn limit_ms(&self) -> u64 {
        self.0.limit_ms
    }

    /// Something was slow. May it be said? Then how many were not, since one was last.
    pub fn count(&self) -> Option<u64> {
        self.count_at(Instant::now())
    }

    /// Counts a slow operation that has no line of its own, because the line of another one covers it.
    pub fn count_silently(&self) {
        self.0.seen.fetch_add(1, Ordering::Relaxed);
    }

    fn count_at(&self, now: Instant) -> Option<u64> {
        self.count_silently();
        self.0.said.may_speak_at(now, LINES_PER_SECOND)
    }

    /// How many there were.
    #[must_use]
    pub fn seen(&self) -> u64 {
        self.0.seen.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn so_many_lines_a_second_and_the_rest_is_counted() {
        let (slow, begin) = (Slow::new(10), Instant::now());
        assert_eq!([9, 10].map(|ms| slow.is_slow(ms)), [false, true]);
        let at = |ms| slow.count_at(begin + Duration::from_millis(ms));
        assert_eq!((0..7).map(at).collect::<Vec<_>>(), [[Some(0); 5].as_slice(), &[None; 2]].concat());
        assert_eq!([999, 1_000, 1_001].map(at), [None, Some(3), Some(0)]);
        slow.count_silently();
        assert_eq!(slow.seen(), 11);
        assert!(!Slow::default().is_slow(u64::MAX - 1), "0 turns it off");
    }
}
