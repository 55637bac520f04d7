//! A role inside another process: on its own thread, stopped on request, and waited for at its end. The role itself
//! does the work.

use crate::shutdown::{Shutdown, Trigger};
use fabric::oneshot;
use std::sync::mpsc::RecvTimeoutError;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use thiserror::Error;

/// A role that could not be started.
#[derive(Debug, Error)]
pub enum StartError {
    /// It ended before it was ready.
    #[error("it ended before it was ready: {0:#}")]
    Ended(anyhow::Error),
    /// Its thread cannot be started.
    #[error("cannot start its thread: {0}")]
    Thread(#[from] std::io::Error),
    /// It was not ready in time, and was asked to stop.
    #[error("it did not become ready within {waited_ms} ms")]
    Late {
        /// How long it was waited for.
        waited_ms: u64,
    },
}

/// What a role says once: that it is ready.
#[derive(Debug)]
pub struct Ready<R>(oneshot::Sender<R>);

impl<R> Ready<R> {
    /// Says it.
    pub fn tell(self, ready: R) {
        // Nobody listens any more where it took too long.
        self.0.send(ready);
    }
}

/// A role that runs in this process, with the result `T`.
#[derive(Debug)]
pub struct Embedded<T> {
    name: &'static str,
    trigger: Trigger,
    ended: oneshot::Receiver<anyhow::Result<T>>,
    thread: Option<JoinHandle<()>>,
}

impl<T: Send + 'static> Embedded<T> {
    /// Starts `role`, and waits until it is ready, within this limit.
    pub fn start<R, F>(
        name: &'static str,
        within: Duration,
        role: impl FnOnce(Shutdown, Ready<R>) -> F + Send + 'static,
    ) -> Result<(Self, R), StartError>
    where
        R: Send + 'static,
        F: Future<Output = anyhow::Result<T>>,
    {
        let (trigger, shutdown) = crate::shutdown::channel();
        let ((tell, ended), (ready, is_ready)) = (oneshot::channel(), oneshot::channel());
        let thread = std::thread::Builder::new().name(format!("gradwire-{name}")).spawn(move || {
            let result = crate::process::run_to_end(role(shutdown, Ready(ready)));
            // Nobody listens any more where it was dropped.
            tell.send(result.map_err(Into::into).and_then(|result| result));
        })?;
        let began = Instant::now();
        let mut role = Self { name, trigger, ended, thread: Some(thread) };
        match is_ready.recv_timeout(within) {
            Ok(ready) => Ok((role, ready)),
            Err(RecvTimeoutError::Disconnected) => {
                let error = role.wait().err().unwrap_or_else(|| anyhow::anyhow!("it was asked to stop"));
                Err(StartError::Ended(error))
            }
            Err(RecvTimeoutError::Timeout) => {
                role.trigger.fire("it was given up");
                Err(StartError::Late { waited_ms: began.elapsed().as_millis() as u64 })
            }
        }
    }
}

impl<T> Embedded<T> {
    /// Whether it has ended.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Asks it to stop.
    pub fn stop(&self, reason: &str) {
        self.trigger.fire(reason);
    }

    /// Waits until it has ended, and returns its result, once.
    pub fn wait(&mut self) -> anyhow::Result<T> {
        let panicked = || {
            let name = self.name;
            anyhow::anyhow!("the {name}'s thread panicked; please report it with what the log says")
        };
        let Some(thread) = self.thread.take() else { return Err(panicked()) };
        let ended = self.ended.recv().unwrap_or_else(|_| Err(panicked()));
        if thread.join().is_err() {
            return Err(panicked());
        }
        ended
    }

    /// It was dropped: it is stopped and waited for.
    pub fn end(&mut self) {
        if self.thread.is_none() {
            return;
        }
        self.stop("it was dropped");
        if let Err(error) = self.wait() {
            tracing::warn!(%error, "the {} in this process failed", self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn it_is_ready_stops_when_asked_and_says_how() {
        let role = |mut shutdown: Shutdown, ready: Ready<u32>| async move {
            ready.tell(7);
            Ok(shutdown.wait().await)
        };
        let (mut role, ready) = Embedded::start("role", LONG, role).unwrap();
        assert_eq!((ready, role.is_over()), (7, false));
        role.stop("enough");
        assert_eq!(role.wait().unwrap(), "enough");
        assert!(role.is_over());
        role.end();
    }

    #[test]
    fn one_that_is_never_ready_is_told_as_what_it_is() {
        let ends = |_: Shutdown, _: Ready<()>| async { anyhow::Ok(()) };
        assert!(matches!(Embedded::start("role", LONG, ends), Err(StartError::Ended(_))));
        let fails = |_: Shutdown, _: Ready<()>| async { Err::<(), _>(anyhow::anyhow!("no port")) };
        let error = Embedded::start("role", LONG, fails).unwrap_err().to_string();
        assert!(error.contains("no port"), "{error}");
        let panics = |_: Shutdown, ready: Ready<()>| async move {
            let _ready = ready;
            assert!(std::thread::current().name().is_none(), "as asked");
            anyhow::Ok(())
        };
        let error = Embedded::start("role", LONG, panics).unwrap_err().to_string();
        assert!(error.contains("panicked"), "{error}");
        let waits = |mut shutdown: Shutdown, ready: Ready<()>| async move {
            shutdown.wait().await;
            drop(ready);
            anyhow::Ok(())
        };
        let late = Embedded::start("role", Duration::from_millis(20), waits).unwrap_err();
        assert!(matches!(late, StartError::Late { waited_ms: 20.. }), "{late}");
    }
}
