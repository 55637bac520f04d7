//! Buffers that encoded gradients of one tensor are sent from, used again and again: none is allocated in steady state.

use fabric::{Exclusive, lock};
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex};

/// As many as are kept; operations beyond them give theirs back to the pool. Servers take contributions of no more
/// rounds ahead.
const KEPT_MAX: usize = 4;

/// Buffers that no operation has. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Spares(Arc<Mutex<Vec<Exclusive>>>);

impl Spares {
    /// One that was used before, or a new one.
    pub(crate) fn take<E>(&self, allocate: impl FnOnce() -> Result<Exclusive, E>) -> Result<Spare, E> {
        let kept = lock(&self.0).pop();
        let buffer = kept.map_or_else(allocate, Ok)?;
        Ok(Spare { buffer: Some(buffer), home: self.clone() })
    }
}

/// One of them, an operation's until it has ended.
#[derive(Debug)]
pub(crate) struct Spare {
    /// There until it is dropped.
    buffer: Option<Exclusive>,
    home: Spares,
}

impl Spare {
    /// What is sent.
    pub(crate) fn span(&self) -> Option<fabric::Span> {
        self.buffer.as_ref().map(Exclusive::span)
    }
}

impl Deref for Spare {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.buffer.as_deref().unwrap_or_default()
    }
}

impl DerefMut for Spare {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.buffer.as_deref_mut().unwrap_or_default()
    }
}

impl Drop for Spare {
    fn drop(&mut self) {
        let mut kept = lock(&self.home.0);
        if let Some(buffer) = self.buffer.take().filter(|_| kept.len() < KEPT_MAX) {
            kept.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fabric::Pool;

    #[test]
    fn buffers_come_back_and_are_used_again() {
        let (pool, spares) = (Pool::new(1 << 20, "spares").unwrap(), Spares::default());
        let take = || spares.take(|| pool.allocate(64)).unwrap();
        let first = take();
        let place = first.span().unwrap().offset();
        drop(first);
        let mut again = take();
        again.fill(7);
        assert_eq!((again.span().unwrap().offset(), again.len(), pool.used_bytes()), (place, 64, 64));
    }

    #[test]
    fn no_more_are_kept_than_allowed() {
        let (pool, spares) = (Pool::new(1 << 20, "spares").unwrap(), Spares::default());
        let all: Vec<Spare> = (0..=KEPT_MAX).map(|_| spares.take(|| pool.allocate(64)).unwrap()).collect();
        drop(all);
        assert_eq!(pool.used_bytes(), 64 * KEPT_MAX as u64);
        drop(spares);
        assert_eq!(pool.used_bytes(), 0);
    }
}
