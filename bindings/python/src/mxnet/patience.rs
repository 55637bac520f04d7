//! How long an operation that the engine begins at once, on the thread that pushes it, may wait there for its end. It saves
//! the wake-ups of a data thread, of a thread of the engine's, and of the script's. It must not know what operations do.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Longest wait. What a script could have done meanwhile is lost, so it is what a few rounds of a small array take.
const PATIENCE: Duration = Duration::from_millis(1);

thread_local! {
    static OF_THIS_THREAD: Cell<Option<Duration>> = const { Cell::new(None) };
}

/// How long what begins on this thread now may wait; `None`: not at all.
pub(super) fn of_this_thread() -> Option<Duration> {
    OF_THIS_THREAD.get()
}

/// Has what begins within `call` on this thread wait, if it `may`.
pub(super) fn with<R>(may: bool, call: impl FnOnce() -> R) -> R {
    OF_THIS_THREAD.set(may.then_some(PATIENCE));
    let result = call();
    OF_THIS_THREAD.set(None);
    result
}

/// Which key a store's operations that bring weights are on. A script that has many wants their operations on their way together; one that
/// moves the same key again and again wants each as soon as it can be had.
#[derive(Debug, Default)]
pub(super) struct Turns {
    keys: AtomicU64,
    last: AtomicU64,
}

impl Turns {
    /// The number of a new key, from 1.
    pub(super) fn number_key(&self) -> u64 {
        self.keys.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// An operation that brings weights: was the one before on the same key?
    pub(super) fn is_again(&self, key: u64) -> bool {
        self.last.swap(key, Ordering::Relaxed) == key
    }
}
