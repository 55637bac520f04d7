//! The seat of a lane: whoever holds it drives the lane's core. The lane thread takes it when nobody else does. A
//! caller that submits or waits takes it where it is free, which saves two hand-overs between threads per operation.
//! This file owns who may hold the core, who wakes whom, and what happens if a holder fails. It must not know what
//! driving is, and it never sleeps with the core: that is the holder's business.
//!
//! The core:
//!
//! ```text
//!            try_take: a caller, lock: the lane thread
//!           ┌───────────────────────────────────────────┐
//!           │                                           ▼
//!         armed ◀───────── give_back(Nothing) ───────── held ── dropped: a panic ──▶ broken ── end ──▶ ended
//!                                                       │ ▲
//!         summoned ◀─ give_back(Work or Message) ───────┘ │
//!           │                                             │
//!           └──────────────── lock: the lane thread ──────┘
//! ```
//!
//! Armed: all that came before was looked at, and whatever comes next rings the bell. Summoned: there is something
//! that only the lane thread does, or that nobody else would do; callers leave the core alone until it has it.
//!
//! The lane thread:
//!
//! ```text
//!              the core is armed                    ring, timeout
//!   running ─────────────────────▶ asleep on bell ────────────────────▶ running
//!           callers drive                           500 us .. 2 ms, unpark
//!           ─────────────────────▶ parked, SHORT ────────────────────▶
//!           a caller sleeps with the core (LED)     unpark
//!           ─────────────────────▶ parked, LONG  ────────────────────▶
//! ```
//!
//! A ring does not end a park. So these rules hold, each for the sake of one scenario:
//!
//! 1. The lane thread does not park while it is summoned. Whoever summons it rings the bell, and unparks it if it is
//!    parked. The flags are in one word, so that either the summons finds it parked, or it finds the summons.
//!    If they were not, then both could miss each other, and callers would leave the core alone for ever.
//! 2. A caller that gives the core back with work left over summons the lane thread, or rings for it where the work is gathered,
//!    unless that is parked SHORT: then it comes by itself, and a wake for each caller that passes by would cost more than the work. If the caller
//!    relied on a bell sleep, then nobody would ring, because the work is in the core already.
//! 3. A caller that has given the core back looks whether a summons came meanwhile. That summons may have rung while the
//!    core was disarmed, so that it woke nobody, and the caller may have taken the wake for its own.
//! 4. The last driving caller unparks a thread that is parked LONG. If it did not, then what comes afterwards would
//!    ring a bell that nobody sleeps on, until the end of the park.
//! 5. The lane thread does not park while callers are blocked and none drives. Whoever changes that, the last caller that
//!    drives or the first that blocks, unparks it. If not, each blocked caller would wait for the end of a park.
//! 6. A caller may post work without taking the core: it posts, and then finds that work is gathered. Whoever drives ends the
//!    gathering, and then takes what was posted. In the other order, what is posted in between would lie until the next caller comes.
//! 7. A holder that panics marks the core as broken and summons the lane thread, which ends the lane. If it did not,
//!    then the lane thread would sleep on a bell that the holder had disarmed.

mod away;
mod callbacks;
#[cfg(test)]
mod modelled;
#[cfg(test)]
mod models;
mod platform;

pub use away::Away;
pub use callbacks::{Callbacks, Submitting};
use platform::{Lock, Parker, Platform, System, Wake, Word};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// There is something for the lane thread: callers stay off until it holds the core.
const SUMMONED: u64 = 1;
/// A caller sleeps with the core, time and again, until it gives it back.
const LED: u64 = 1 << 1;
/// The lane thread is parked for a moment: it comes by itself.
const SHORT: u64 = 1 << 2;
/// The lane thread is parked until it is called.
const LONG: u64 = 1 << 3;
/// One caller that drives, or is about to.
const CALLER: u64 = 1 << 8;
/// One caller that is blocked until an operation of its ends. Above the bits of all callers: there are fewer threads.
const BLOCKED: u64 = 1 << 36;

/// Longest park: bounds how late deadlines are noticed if a rule here is broken.
const LONG_PARK: Duration = Duration::from_millis(100);

fn is_driven(word: u64) -> bool {
    word % BLOCKED >= CALLER
}

fn is_waited_for(word: u64) -> bool {
    word >= BLOCKED
}

/// What the holder drives.
pub trait Driven {
    /// A new holder has it: wakers need no system call from here on.
    fn take(&mut self);
    /// Drives until there is nothing to do, for some turns at most, and arms it.
    fn settle(&mut self) -> Left;
    /// Arms it without looking for work.
    fn lie_down(&mut self);
}

/// What a holder leaves behind in an armed core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// All that has come was looked at.
    Nothing,
    /// Work for the next turn that the lane thread has not been told of.
    Gathered,
    /// What any caller can do as well.
    Work,
    /// What only the lane thread does, and callers wait for.
    Message,
}

struct Slot<T> {
    /// `None` once the lane has ended.
    core: Option<T>,
    /// A holder failed: only the lane thread may have it, to end it.
    is_broken: bool,
}

/// See the module.
pub struct Seat<T, P: Platform = System> {
    slot: P::Lock<Slot<T>>,
    /// The flags and counts above.
    word: P::Word,
    parker: P::Parker,
    bell: P::Waker,
    // Both are hints for the lane thread, round and round: an old value costs time, and loses nothing.
    /// Callers that came to wait.
    visits: AtomicU32,
    /// Callers that took the core to drive.
    drives: AtomicU32,
}

impl<T, P: Platform> std::fmt::Debug for Seat<T, P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Seat").field("word", &self.word.load()).finish_non_exhaustive()
    }
}

impl<T: Driven, P: Platform> Seat<T, P> {
    /// A seat that nobody holds. The bell is that of the core.
    pub fn new(core: T, bell: P::Waker) -> Self {
        Self {
            slot: P::Lock::new(Slot { core: Some(core), is_broken: false }),
            word: P::Word::default(),
            parker: P::Parker::default(),
            bell,
            visits: AtomicU32::new(0),
            drives: AtomicU32::new(0),
        }
    }

    /// A caller takes the core: `None` if it has a holder or has ended, or is to be left to the lane thread.
    pub fn try_take(&self) -> Option<Held<'_, T, P>> {
        if self.word.load() & SUMMONED != 0 {
            return None;
        }
        self.hold(self.slot.try_lock()?)
    }

    /// The lane thread takes the core, and has answered all summons before. `None` if the core is broken or has ended.
    pub fn lock(&self) -> Option<Held<'_, T, P>> {
        let slot = self.slot.lock();
        self.word.clear(SUMMONED);
        self.hold(slot)
    }

    fn hold<'a>(&'a self, mut slot: SlotGuard<'a, T, P>) -> Option<Held<'a, T, P>> {
        if slot.is_broken {
            return None;
        }
        slot.core.as_mut()?.take();
        Some(Held { seat: self, slot: Some(slot), leads: false })
    }

    /// The lane thread takes the core away, in whatever state it is: the lane has ended.
    pub fn end(&self) -> Option<T> {
        self.slot.lock().core.take()
    }

    /// Makes the lane thread take the core soon, wherever it is.
    pub fn summon(&self) {
        let word = self.word.set(SUMMONED);
        self.bell.wake();
        if word & (SHORT | LONG) != 0 {
            self.parker.unpark();
        }
    }

    /// A caller comes to wait for an operation, whether or not it finds anything left to drive for. The lane thread
    /// then leaves it the core for a moment. If it did not, then a caller that waits for every operation would find
    /// each of them done by the lane thread, through a hand-over that its work does not need.
    pub fn visit(&self) {
        self.visits.fetch_add(1, Ordering::Relaxed);
    }

    /// Changes with each visit.
    pub fn visits(&self) -> u32 {
        self.visits.load(Ordering::Relaxed)
    }

    /// Do callers want the core, now or since so many visits?
    pub fn is_wanted(&self, visits: u32) -> bool {
        let word = self.word.load();
        is_driven(word) || self.visits() != visits && !is_waited_for(word)
    }

    /// Do callers drive at this moment, or are about to?
    pub fn is_driven(&self) -> bool {
        is_driven(self.word.load())
    }

    /// A caller is about to drive.
    pub fn announce(&self) -> Caller<'_, T, P> {
        let first = !is_driven(self.word.add(CALLER));
        Caller { seat: self, first, held: None }
    }

    /// A caller blocks until an operation of its has ended; [`Seat::unblock`] is to follow.
    pub fn block(&self) {
        let word = self.word.add(BLOCKED);
        if !is_driven(word) && word & (SHORT | LONG) != 0 {
            self.parker.unpark();
        }
    }

    /// After [`Seat::block`].
    pub fn unblock(&self) {
        self.word.sub(BLOCKED);
    }

    /// The lane thread parks out of the callers' way, for this time or as long as one of them sleeps with the core;
    /// not at all if it is called.
    fn park(&self, time: Duration) {
        self.parker.adopt();
        let parked = self.word.update(|word| {
            let is_called = word & SUMMONED != 0 || is_waited_for(word) && !is_driven(word);
            (!is_called).then_some(word | if word & LED != 0 { LONG } else { SHORT })
        });
        let Ok(word) = parked else { return };
        self.parker.park(if word & LED != 0 { LONG_PARK } else { time });
        self.word.clear(SHORT | LONG);
    }
}

type SlotGuard<'a, T, P> = <<P as Platform>::Lock<Slot<T>> as Lock<Slot<T>>>::Guard<'a>;

/// The core, for as long as its holder has it. Dropping it without [`Held::give_back`] breaks the core: that is a panic,
/// or the lane thread at the end of the lane.
pub struct Held<'a, T: Driven, P: Platform = System> {
    seat: &'a Seat<T, P>,
    /// `None` once it was given back.
    slot: Option<SlotGuard<'a, T, P>>,
    leads: bool,
}

impl<T: Driven, P: Platform> Held<'_, T, P> {
    /// Gives the core back, armed.
    pub fn give_back(mut self, left: Left) {
        // A lane thread that is parked SHORT comes by itself.
        if left == Left::Gathered && self.seat.word.load() & SHORT == 0 {
            // Under the lock: the next holder disarms the core, and a ring after that would wake nobody.
            self.seat.bell.wake();
        }
        self.release();
        let word = self.seat.word.load();
        let is_its = match left {
            Left::Nothing | Left::Gathered => false,
            Left::Work => word & SHORT == 0,
            Left::Message => true,
        };
        if is_its || word & SUMMONED != 0 {
            self.seat.summon();
        }
    }

    fn release(&mut self) {
        if self.leads {
            self.seat.word.clear(LED);
        }
        self.slot = None;
    }
}

impl<T: Driven, P: Platform> Drop for Held<'_, T, P> {
    fn drop(&mut self) {
        let Some(slot) = &mut self.slot else { return };
        slot.is_broken = true;
        slot.core.iter_mut().for_each(T::lie_down);
        self.release();
        self.seat.summon();
    }
}

impl<T: Driven, P: Platform> Deref for Held<'_, T, P> {
    type Target = T;

    fn deref(&self) -> &T {
        match self.slot.as_ref().and_then(|slot| slot.core.as_ref()) {
            Some(core) => core,
            // Invariant: it was there when it was taken, and only `end` removes it, under the same lock.
            None => unreachable!("the holder of a core has it"),
        }
    }
}

impl<T: Driven, P: Platform> DerefMut for Held<'_, T, P> {
    fn deref_mut(&mut self) -> &mut T {
        match self.slot.as_mut().and_then(|slot| slot.core.as_mut()) {
            Some(core) => core,
            // Invariant: as above.
            None => unreachable!("the holder of a core has it"),
        }
    }
}

/// A caller that drives, or would like to, until it is dropped.
pub struct Caller<'a, T: Driven, P: Platform = System> {
    seat: &'a Seat<T, P>,
    first: bool,
    held: Option<Held<'a, T, P>>,
}

impl<T: Driven, P: Platform> Caller<'_, T, P> {
    /// The core, which it takes if it does not hold it and can have it.
    pub fn core(&mut self) -> Option<&mut T> {
        if self.held.is_none() {
            self.held = self.seat.try_take();
            if self.held.is_some() {
                self.seat.drives.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.held.as_deref_mut()
    }

    /// The core, if it holds it, to sleep until something comes: in the place of the lane thread, which may park for as
    /// long as this caller holds the core.
    pub fn lead(&mut self) -> Option<&mut T> {
        let held = self.held.as_mut()?;
        if !held.leads {
            held.leads = true;
            self.seat.word.set(LED);
        }
        Some(held)
    }

    /// It holds the core, or no other caller drives: then it is worth waiting for the core.
    #[must_use]
    pub fn is_hopeful(&self) -> bool {
        self.first || self.held.is_some()
    }

    /// Gives the core back, if it has it.
    pub fn let_go(&mut self) {
        let Some(mut held) = self.held.take() else { return };
        let left = held.settle();
        held.give_back(left);
    }
}

impl<T: Driven, P: Platform> Drop for Caller<'_, T, P> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // A callback's panic: the core is in no state to be driven on.
            self.held = None;
        }
        self.let_go();
        let word = self.seat.word.sub(CALLER);
        let is_last = !is_driven(word - CALLER);
        if is_last && (word & LONG != 0 || word & SHORT != 0 && is_waited_for(word)) {
            self.seat.parker.unpark();
        }
    }
}
