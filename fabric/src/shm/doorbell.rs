//! The doorbell: how a thread that sleeps learns that a ring has something. Pure algorithm over one shared
//! word; it must not map memory or make system calls (see `bell`).
//!
//! The sleeper announces how it will sleep, fences, looks once more, and sleeps. The ringer publishes,
//! fences, and looks whether anybody sleeps. So either the sleeper sees what was published, or the ringer
//! sees the sleeper; and while it is awake a ring costs no system call.

use super::word::{Primitives, Word32};
use std::sync::atomic::Ordering;

/// Nobody sleeps.
pub(crate) const AWAKE: u32 = 0;
/// Asleep on the word itself, as a futex.
pub(crate) const ON_WORD: u32 = 1;
/// Asleep on sockets, ours among them.
pub(crate) const ON_SOCKETS: u32 = 2;

/// The sleeper: about to sleep in this manner. It must look at everything it waits for once more before it
/// sleeps, and a sleep on the word must end at once when the word is no longer `how`.
#[inline]
pub(crate) fn lie_down<P: Primitives>(word: &P::Word32, how: u32) {
    // A swap like the ringers': all of them then stand in one order, whatever the memory model.
    word.swap(how, Ordering::AcqRel);
    P::fence();
}

/// The sleeper: awake again, for whatever reason. True: somebody rang since it lay down.
#[inline]
pub(crate) fn get_up<P: Primitives>(word: &P::Word32) -> bool {
    word.swap(AWAKE, Ordering::AcqRel) == AWAKE
}

/// The ringer, after it published something: how the sleeper has to be woken, by this ringer and no other.
#[inline]
pub(crate) fn ring<P: Primitives>(word: &P::Word32) -> u32 {
    P::fence();
    if word.load(Ordering::Relaxed) == AWAKE {
        return AWAKE;
    }
    word.swap(AWAKE, Ordering::AcqRel)
}
