//! Owns the model checker's platform of the seat: its words, a mutex, a parked thread. It must not hold any algorithm of
//! the seat.

use super::LONG_PARK;
use super::models::World;
use super::platform::{Lock, Parker, Platform};
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

/// `TIMERS`: a short park ends by itself. Without timers it ends only if somebody unparks the thread.
pub(super) struct Modelled<const TIMERS: bool>;

impl<const TIMERS: bool> Platform for Modelled<TIMERS> {
    type Word = AtomicU64;
    type Lock<T> = Latch<T>;
    type Parker = Park<TIMERS>;
    type Waker = Arc<World>;

    fn yield_now() {
        thread::yield_now();
    }
}

/// A mutex whose `try_lock` fails while it is locked. That of loom's mutex waits if both threads try at the same time.
pub(super) struct Latch<T> {
    is_locked: AtomicBool,
    kernel: Mutex<()>,
    unlocked: Condvar,
    value: std::sync::Mutex<T>,
}

pub(super) struct LatchGuard<'a, T> {
    latch: &'a Latch<T>,
    value: Option<std::sync::MutexGuard<'a, T>>,
}

impl<T> Lock<T> for Latch<T> {
    type Guard<'a>
        = LatchGuard<'a, T>
    where
        T: 'a;

    fn new(value: T) -> Self {
        let (is_locked, value) = (AtomicBool::new(false), std::sync::Mutex::new(value));
        Self { is_locked, kernel: Mutex::new(()), unlocked: Condvar::new(), value }
    }

    fn lock(&self) -> LatchGuard<'_, T> {
        let mut kernel = self.kernel.lock().unwrap();
        loop {
            match self.try_lock() {
                Some(guard) => return guard,
                None => kernel = self.unlocked.wait(kernel).unwrap(),
            }
        }
    }

    fn try_lock(&self) -> Option<LatchGuard<'_, T>> {
        let is_free = !self.is_locked.swap(true, Ordering::AcqRel);
        is_free.then(|| LatchGuard { latch: self, value: Some(self.value.try_lock().unwrap()) })
    }
}

impl<T> Deref for LatchGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().unwrap()
    }
}

impl<T> DerefMut for LatchGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value.as_mut().unwrap()
    }
}

impl<T> Drop for LatchGuard<'_, T> {
    fn drop(&mut self) {
        self.value = None;
        // A swap like the others: all of them then stand in one order.
        self.latch.is_locked.swap(false, Ordering::AcqRel);
        drop(self.latch.kernel.lock().unwrap());
        self.latch.unlocked.notify_one();
    }
}

#[derive(Default)]
pub(super) struct Park<const TIMERS: bool> {
    is_called: AtomicBool,
    lock: Mutex<()>,
    called: Condvar,
}

impl<const TIMERS: bool> Parker for Park<TIMERS> {
    fn adopt(&self) {}

    fn park(&self, time: Duration) {
        if TIMERS && time < LONG_PARK {
            thread::yield_now();
        } else {
            let mut guard = self.lock.lock().unwrap();
            while !self.is_called.load(Ordering::Relaxed) {
                guard = self.called.wait(guard).unwrap();
            }
        }
        self.is_called.store(false, Ordering::Relaxed);
    }

    fn unpark(&self) {
        self.is_called.store(true, Ordering::Relaxed);
        drop(self.lock.lock().unwrap());
        self.called.notify_one();
    }
}
