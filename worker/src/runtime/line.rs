//! The calls of this client to one handler of one server: the number of the next one, and which are in flight. The lane sends no more
//! than a window of them. A caller whose call is beyond the window waits here, before the call has any memory. Otherwise calls that
//! cannot be sent yet could fill the pool, while the first call of the line waits for room for its reply.

use fabric::lock;
use proto_common::call::CALLS_IN_FLIGHT_MAX;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// See the module.
#[derive(Debug)]
pub(crate) struct Line {
    /// The number of the next call. Locked by a caller until its call is handed over, so that calls are in order.
    turn: Mutex<u64>,
    open: Mutex<Open>,
    moved: Condvar,
}

/// Calls in flight, from the oldest one on.
#[derive(Debug)]
struct Open {
    /// The oldest one's number.
    first: u64,
    /// Whether each of them has ended.
    ended: VecDeque<bool>,
    waiters: u32,
}

/// A call's place in the window, until it is dropped: the call has ended then, and no server reaches its memory any more.
#[derive(Debug)]
pub(crate) struct Place {
    line: Arc<Line>,
    number: u64,
}

impl Default for Line {
    fn default() -> Self {
        let open = Open { first: 1, ended: VecDeque::new(), waiters: 0 };
        Self { turn: Mutex::new(1), open: Mutex::new(open), moved: Condvar::new() }
    }
}

impl Line {
    /// The number of the next call, the caller's until it drops it.
    pub(crate) fn turn(&self) -> MutexGuard<'_, u64> {
        lock(&self.turn)
    }

    /// Waits until the window has a place for the call with this number, whose turn the caller has. The window moves when its oldest
    /// call ends. False if it has not moved for so long.
    pub(crate) fn wait(&self, number: u64, patience: Duration) -> bool {
        let mut open = lock(&self.open);
        let mut waits: Option<(u64, Instant)> = None;
        while number >= open.first.saturating_add(CALLS_IN_FLIGHT_MAX) {
            let since = waits.filter(|(first, _)| *first == open.first).map(|(_, since)| since);
            let since = since.unwrap_or_else(Instant::now);
            waits = Some((open.first, since));
            let left = patience.saturating_sub(since.elapsed());
            if left.is_zero() {
                return false;
            }
            open.waiters += 1;
            open = self.moved.wait_timeout(open, left).unwrap_or_else(PoisonError::into_inner).0;
            open.waiters -= 1;
        }
        true
    }

    /// The next call takes its place. The caller has its turn.
    pub(crate) fn enter(self: &Arc<Self>) -> Place {
        let mut open = lock(&self.open);
        let number = open.first + open.ended.len() as u64;
        open.ended.push_back(false);
        Place { line: self.clone(), number }
    }

    fn end(&self, number: u64) {
        let mut open = lock(&self.open);
        let at = number.checked_sub(open.first).map(|at| at as usize);
        if let Some(ended) = at.and_then(|at| open.ended.get_mut(at)) {
            *ended = true;
        }
        let first = open.first;
        while open.ended.front() == Some(&true) {
            open.ended.pop_front();
            open.first += 1;
        }
        if open.first > first && open.waiters > 0 {
            self.moved.notify_all();
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.line.end(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn the_window_moves_when_its_oldest_call_ends() {
        let line = Arc::<Line>::default();
        let mut places: VecDeque<Place> = (0..CALLS_IN_FLIGHT_MAX).map(|_| line.enter()).collect();
        let next = CALLS_IN_FLIGHT_MAX + 1;
        assert!(line.wait(next - 1, Duration::ZERO) && !line.wait(next, Duration::ZERO));
        places.remove(1);
        assert!(!line.wait(next, Duration::from_millis(1)), "the oldest one is in flight");
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| line.wait(next, PATIENCE));
            while lock(&line.open).waiters == 0 {
                std::thread::yield_now();
            }
            places.pop_front();
            assert!(waiter.join().unwrap());
        });
        // Two have ended.
        assert!(line.wait(next + 1, Duration::ZERO) && !line.wait(next + 2, Duration::ZERO));
        assert_eq!(line.enter().number, next);
    }
}
