//! Owns what the seat is built from, as traits, so that a model checker can put its own in their place. It must not
//! hold any algorithm.
//!
//! Every read-modify-write of a word is an acquire and a release: all changes of one word stand in one order, and a
//! thread that sees a change sees what was written before it.

use crate::lane::Waker;
use std::ops::DerefMut;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::thread::Thread;
use std::time::Duration;

/// 64 bits that several threads change. Each change returns the value before it.
pub trait Word: Default {
    /// The value, or an older one.
    fn load(&self) -> u64;
    /// Adds to it.
    fn add(&self, value: u64) -> u64;
    /// Subtracts from it.
    fn sub(&self, value: u64) -> u64;
    /// Sets bits.
    fn set(&self, bits: u64) -> u64;
    /// Clears bits.
    fn clear(&self, bits: u64) -> u64;
    /// Changes it as `next` says, or not at all: then there is an error.
    fn update(&self, next: impl FnMut(u64) -> Option<u64>) -> Result<u64, u64>;
}

/// A mutex. It is not poisoned by a panic: the seat itself notes that a holder failed.
pub trait Lock<T> {
    /// Access for as long as it is locked.
    type Guard<'a>: DerefMut<Target = T>
    where
        Self: 'a;
    /// An unlocked one.
    fn new(value: T) -> Self;
    /// Waits for it.
    fn lock(&self) -> Self::Guard<'_>;
    /// `None` while another thread has it.
    fn try_lock(&self) -> Option<Self::Guard<'_>>;
}

/// Where the lane thread parks.
pub trait Parker: Default {
    /// The calling thread is the one that parks here.
    fn adopt(&self);
    /// Blocks until it is unparked, or the time is over; or for no reason.
    fn park(&self, time: Duration);
    /// Ends the park, or the next one.
    fn unpark(&self);
}

/// The lane's doorbell: ends the sleep on an armed queue. A holder who is awake sees it, too.
pub trait Wake {
    /// Rings it.
    fn wake(&self);
}

/// One family of all that.
pub trait Platform {
    /// See [`Word`].
    type Word: Word;
    /// See [`Lock`].
    type Lock<T>: Lock<T>;
    /// See [`Parker`].
    type Parker: Parker;
    /// See [`Wake`].
    type Waker: Wake;
    /// Lets other threads run.
    fn yield_now();
}

/// The processor's words and the system's threads.
#[derive(Debug)]
pub struct System;

impl Platform for System {
    type Word = AtomicU64;
    type Lock<T> = Mutex<T>;
    type Parker = OnceLock<Thread>;
    type Waker = Waker;

    fn yield_now() {
        std::thread::yield_now();
    }
}

macro_rules! word {
    ($word:ty) => {
        impl Word for $word {
            #[inline]
            fn load(&self) -> u64 {
                <$word>::load(self, Ordering::Acquire)
            }
            #[inline]
            fn add(&self, value: u64) -> u64 {
                self.fetch_add(value, Ordering::AcqRel)
            }
            #[inline]
            fn sub(&self, value: u64) -> u64 {
                self.fetch_sub(value, Ordering::AcqRel)
            }
            #[inline]
            fn set(&self, bits: u64) -> u64 {
                self.fetch_or(bits, Ordering::AcqRel)
            }
            #[inline]
            fn clear(&self, bits: u64) -> u64 {
                self.fetch_and(!bits, Ordering::AcqRel)
            }
            #[inline]
            fn update(&self, next: impl FnMut(u64) -> Option<u64>) -> Result<u64, u64> {
                self.fetch_update(Ordering::AcqRel, Ordering::Acquire, next)
            }
        }
    };
}

word!(AtomicU64);

#[cfg(test)]
word!(loom::sync::atomic::AtomicU64);

impl<T> Lock<T> for Mutex<T> {
    type Guard<'a>
        = MutexGuard<'a, T>
    where
        T: 'a;

    fn new(value: T) -> Self {
        Mutex::new(value)
    }

    fn lock(&self) -> MutexGuard<'_, T> {
        Mutex::lock(self).unwrap_or_else(PoisonError::into_inner)
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match Mutex::try_lock(self) {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

impl Parker for OnceLock<Thread> {
    fn adopt(&self) {
        self.get_or_init(std::thread::current);
    }

    fn park(&self, time: Duration) {
        std::thread::park_timeout(time);
    }

    fn unpark(&self) {
        self.get().into_iter().for_each(Thread::unpark);
    }
}

impl Wake for Waker {
    fn wake(&self) {
        Waker::wake(self);
    }
}
