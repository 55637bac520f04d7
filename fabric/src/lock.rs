//! How locks are taken everywhere.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, also after a panic of another thread that had the lock: what is behind locks is changed in one step, or is looked at as it
/// was left.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
