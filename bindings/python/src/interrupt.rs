//! Waiting so that Ctrl-C works: the wait is cut into stretches, between which Python looks at its signals.

use crate::error::{Failure, Kind};
use pyo3::prelude::*;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

/// Python's signal handlers run this much late at most.
pub(crate) const STRETCH: Duration = Duration::from_millis(100);

/// When a `timeout` in seconds is over; `None`: never.
pub(crate) fn deadline_of(timeout: Option<f64>) -> Result<Option<Instant>, Failure> {
    if timeout.is_some_and(f64::is_nan) {
        return Err(Failure::input("timeout", "`timeout` must be a number of seconds, or None"));
    }
    // What is longer than there are seconds is for ever.
    let left = timeout.and_then(|seconds| Duration::try_from_secs_f64(seconds.max(0.0)).ok());
    Ok(left.and_then(|left| Instant::now().checked_add(left)))
}

/// Waits until a deadline, with a `wait` that says whether it has ended what it waits for by a time.
pub(crate) fn wait_in_stretches(
    py: Python<'_>,
    deadline: Option<Instant>,
    wait: impl Fn(Instant) -> bool,
) -> PyResult<bool> {
    loop {
        let stretch = Instant::now() + STRETCH;
        if wait(deadline.map_or(stretch, |deadline| deadline.min(stretch))) {
            return Ok(true);
        }
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Ok(false);
        }
        py.check_signals()?;
    }
}

/// Runs something of the control plane, which has a deadline of its own, on a thread of its own. A signal's exception
/// ends the wait for it, and it ends by itself later.
pub(crate) fn interruptible<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> PyResult<T> {
    let (sender, mut receiver) = sync_channel(1);
    let run = move || {
        // Nobody listens any more where a signal came first.
        let _ = sender.send(work());
    };
    std::thread::Builder::new()
        .name("gradwire-control".into())
        .spawn(run)
        .map_err(|error| Failure::internal(format!("cannot start a thread: {error}")))?;
    loop {
        // A receiver is no Sync, so it goes along and comes back.
        let received;
        (receiver, received) = py.detach(move || {
            let received = receiver.recv_timeout(STRETCH);
            (receiver, received)
        });
        match received {
            Ok(result) => return Ok(result?),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Failure::new(
                    Kind::Internal,
                    "internal",
                    "a call into the library panicked: please report this".into(),
                )
                .into());
            }
        }
    }
}
