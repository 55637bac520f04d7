//! Owns the rule that a thread that only submits runs no callbacks: it counts the operations that have one. It must
//! not know operations or callbacks.
//!
//! A thread that submits also drives the lane for a turn, which may end other operations. While any of them has a
//! callback, that turn must end none. Both sides change the same word, so one of them sees the other: either the
//! submitter sees the callback, or the thread that registers the callback sees the submitter and waits for the end of
//! its turn. If it did not wait, then the submitter could run that callback in the middle of its own submission, and
//! both would wait for ever if the callback takes a lock that the submitter holds.

use super::platform::{Platform, System, Word};

/// A submitter drives, and may not know of callbacks that were registered since.
const SUBMITTING: u64 = 1;
/// One operation with a callback.
const CALLBACK: u64 = 2;

/// See the module.
pub struct Callbacks<P: Platform = System> {
    word: P::Word,
}

impl<P: Platform> Default for Callbacks<P> {
    fn default() -> Self {
        Self { word: P::Word::default() }
    }
}

impl<P: Platform> Callbacks<P> {
    /// From here on an operation has a callback, until [`Callbacks::forget`].
    pub fn register(&self) {
        let mut word = self.word.add(CALLBACK);
        // It is soon over. A wait for the seat might not be: its holder may sleep, or run this very callback.
        while word & SUBMITTING != 0 {
            P::yield_now();
            word = self.word.load();
        }
    }

    /// A callback has run, or never will.
    pub fn forget(&self) {
        self.word.sub(CALLBACK);
    }

    /// The holder of the seat, as a submitter: until the result is dropped, by a panic as well.
    pub fn submitting(&self) -> Submitting<'_, P> {
        let word = self.word.set(SUBMITTING);
        Submitting { callbacks: self, may_end: word < CALLBACK }
    }
}

/// See [`Callbacks::submitting`].
pub struct Submitting<'a, P: Platform = System> {
    callbacks: &'a Callbacks<P>,
    may_end: bool,
}

impl<P: Platform> Submitting<'_, P> {
    /// No operation has a callback: the submitter may end operations.
    #[must_use]
    pub fn may_end(&self) -> bool {
        self.may_end
    }
}

impl<P: Platform> Drop for Submitting<'_, P> {
    fn drop(&mut self) {
        self.callbacks.word.clear(SUBMITTING);
    }
}
