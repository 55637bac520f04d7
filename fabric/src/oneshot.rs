//! A channel for one value between threads: the answer to a question. It is not for the payload.
//!
//! The standard library's channels would do, but each type that they carry adds 5,000 lines of input for LLVM (`docs/build-time.md`).

use crate::lock::lock;
use std::sync::mpsc::{RecvError, RecvTimeoutError, TryRecvError};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Both ends.
#[must_use]
pub fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let slot =
        Arc::new(Slot { state: Mutex::new(State { sent: None, is_over: false }), changed: Condvar::new() });
    (Sender(slot.clone()), Receiver(slot))
}

/// Sends the answer. If it is dropped before, the receiver gets an error.
#[derive(Debug)]
pub struct Sender<T>(Arc<Slot<T>>);

/// Waits for the answer.
#[derive(Debug)]
pub struct Receiver<T>(Arc<Slot<T>>);

#[derive(Debug)]
struct Slot<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

#[derive(Debug)]
struct State<T> {
    sent: Option<T>,
    /// Nothing more comes.
    is_over: bool,
}

impl<T> Slot<T> {
    fn end(&self, sent: Option<T>) {
        let mut state = lock(&self.state);
        if !state.is_over {
            (state.sent, state.is_over) = (sent, true);
            self.changed.notify_all();
        }
    }
}

impl<T> Sender<T> {
    /// Sends the answer without waiting. Only the first one counts. The receiver may have stopped waiting.
    pub fn send(&self, value: T) {
        self.0.end(Some(value));
    }
}

impl<T> Receiver<T> {
    /// Waits for the answer and returns it, once. Use [`Receiver::recv_timeout`] unless the sender is sure to end.
    pub fn recv(&self) -> Result<T, RecvError> {
        let state = self.0.changed.wait_while(lock(&self.0.state), |state| !state.is_over);
        state.unwrap_or_else(PoisonError::into_inner).sent.take().ok_or(RecvError)
    }

    /// Returns the answer, once, if it arrives within this time.
    pub fn recv_timeout(&self, limit: Duration) -> Result<T, RecvTimeoutError> {
        let until = Instant::now().checked_add(limit);
        let mut state = lock(&self.0.state);
        while !state.is_over {
            // Without an end where the clock cannot express it.
            let left = until.map_or(limit, |until| until.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Err(RecvTimeoutError::Timeout);
            }
            let waited = self.0.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.sent.take().ok_or(RecvTimeoutError::Disconnected)
    }

    /// Returns the answer, once, if it has arrived.
    pub fn try_recv(&self) -> Result<T, TryRecvError> {
        let mut state = lock(&self.0.state);
        let none = if state.is_over { TryRecvError::Disconnected } else { TryRecvError::Empty };
        state.sent.take().ok_or(none)
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.end(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn the_first_answer_is_taken_once() {
        let (reply, answer) = channel();
        assert_eq!(answer.try_recv(), Err(TryRecvError::Empty));
        assert_eq!(answer.recv_timeout(Duration::ZERO), Err(RecvTimeoutError::Timeout));
        reply.send(1);
        reply.send(2);
        assert_eq!(answer.recv_timeout(LONG), Ok(1));
        assert_eq!(answer.recv_timeout(LONG), Err(RecvTimeoutError::Disconnected));
        assert_eq!(answer.try_recv(), Err(TryRecvError::Disconnected));
        assert_eq!(answer.recv(), Err(RecvError));
    }

    #[test]
    fn an_answer_wakes_who_waits_and_outlives_who_gave_it() {
        for limit in [None, Some(Duration::MAX)] {
            let (reply, answer) = channel();
            let waiting = std::thread::spawn(move || match limit {
                Some(limit) => answer.recv_timeout(limit).ok(),
                None => answer.recv().ok(),
            });
            reply.send(3);
            drop(reply);
            assert_eq!(waiting.join().unwrap(), Some(3));
        }
        let (reply, answer) = channel();
        reply.send(4);
        drop(reply);
        assert_eq!(answer.try_recv(), Ok(4));
    }

    #[test]
    fn who_waits_hears_that_nobody_will_answer() {
        let (reply, answer) = channel::<u32>();
        let limit = Duration::from_millis(10);
        assert_eq!(answer.recv_timeout(limit), Err(RecvTimeoutError::Timeout), "somebody may yet");
        let waiting = std::thread::spawn(move || answer.recv_timeout(LONG));
        drop(reply);
        assert_eq!(waiting.join().unwrap(), Err(RecvTimeoutError::Disconnected));
    }
}
