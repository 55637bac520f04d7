//! The calls that wait for one handler. Lanes bound them: they accept no more calls of a worker than its window, and remove those whose
//! deadline passes.

use super::{Call, Place};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The calls that wait for one handler.
#[derive(Default)]
pub(crate) struct Queue {
    waiting: Mutex<Waiting>,
    /// As many as wait, so that whoever spins takes no lock.
    count: AtomicUsize,
    came: Condvar,
}

#[derive(Default)]
struct Waiting {
    calls: VecDeque<(u64, Call, Option<Place>)>,
    /// Which handler has it; the next one counts on.
    life: u64,
    is_open: bool,
    /// The handler's thread is to look what else there is to do.
    is_poked: bool,
    sleeps: bool,
}

/// What a handler's thread does next.
#[expect(
    clippy::large_enum_variant,
    reason = "it is returned and taken apart at once; a box would be an allocation a call"
)]
pub(super) enum Turn {
    Call(Call),
    /// It was poked.
    Poked,
    /// It is to end.
    Over,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // Nothing that can panic runs while the lock is held.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn open(&self) -> u64 {
        let mut waiting = self.lock();
        waiting.life += 1;
        waiting.is_open = true;
        waiting.life
    }

    /// True when that handler had it still.
    pub(super) fn close(&self, life: u64) -> bool {
        let mut waiting = self.lock();
        let was = waiting.is_open && waiting.life == life;
        waiting.is_open &= !was;
        was
    }

    pub(super) fn close_any(&self) {
        let mut waiting = self.lock();
        waiting.is_open = false;
        drop(waiting);
        // Wakes whoever spins, too: it looks at the lock then.
        self.count.fetch_add(1, Ordering::Release);
        self.came.notify_all();
    }

    /// Is that handler still wanted?
    pub(super) fn is_open(&self, life: u64) -> bool {
        let waiting = self.lock();
        waiting.is_open && waiting.life == life
    }

    /// The handler's thread is to look what else there is to do.
    pub(super) fn poke(&self) {
        let mut waiting = self.lock();
        (waiting.is_poked, waiting.sleeps) = (true, false);
        drop(waiting);
        self.count.fetch_add(1, Ordering::Release);
        self.came.notify_all();
    }

    /// A call comes; `id` is its lane's number for it. Its place ahead of the handler is free when the handler takes it.
    pub(crate) fn push(&self, id: u64, call: Call, place: Option<Place>) {
        let mut waiting = self.lock();
        waiting.calls.push_back((id, call, place));
        self.count.fetch_add(1, Ordering::Release);
        let sleeps = std::mem::take(&mut waiting.sleeps);
        drop(waiting);
        if sleeps {
            self.came.notify_all();
        }
    }

    /// Takes back a call that nobody has begun.
    pub(crate) fn cancel(&self, from: (proto_common::ids::Rank, u64)) {
        let mut waiting = self.lock();
        let at = waiting.calls.iter().position(|(id, call, _)| (call.from, *id) == from);
        let call = at.and_then(|at| waiting.calls.remove(at));
        drop(waiting);
        // Its end is a message to its lane: without the lock.
        drop(call);
    }

    /// What this handler does next. `patience`: after so long it is poked in any case.
    pub(super) fn next(&self, life: u64, spin: Duration, patience: Option<Duration>) -> Turn {
        let mut began: Option<Instant> = None;
        loop {
            let mut waiting = self.lock();
            if !waiting.is_open || waiting.life != life {
                return Turn::Over;
            }
            if std::mem::take(&mut waiting.is_poked) {
                return Turn::Poked;
            }
            if let Some((_, call, place)) = waiting.calls.pop_front() {
                drop(waiting);
                drop(place);
                return Turn::Call(call);
            }
            self.count.store(0, Ordering::Release);
            if began.is_some_and(|began| began.elapsed() >= spin) {
                waiting.sleeps = true;
                if let Some(patience) = patience {
                    let waited = self.came.wait_timeout(waiting, patience);
                    if waited.unwrap_or_else(PoisonError::into_inner).1.timed_out() {
                        return Turn::Poked;
                    }
                    continue;
                }
                // It is woken by a call, or by its end: there is nothing else to wait for, so there is no deadline.
                drop(self.came.wait(waiting).unwrap_or_else(PoisonError::into_inner));
                continue;
            }
            drop(waiting);
            let since = *began.get_or_insert_with(Instant::now);
            while self.count.load(Ordering::Acquire) == 0 && since.elapsed() < spin {
                std::thread::yield_now();
            }
        }
    }
}
