//! The wish to stop, as a token that any number of tasks can wait for. It must not end the process: whoever
//! holds the token drains and returns.

use std::io;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Milliseconds that a member which is told to stop gives the scheduler to announce the end of the job. A stop
/// of everything reaches the processes in any order; without this, whoever left first would count as failed. On a
/// busy machine the scheduler may need some hundred of them.
pub const TOGETHER_MS: u64 = 1_000;

/// Waits for the wish to stop; cheap to clone.
#[derive(Clone, Debug)]
pub struct Shutdown {
    reason: watch::Receiver<Option<String>>,
}

/// Utters the wish to stop.
#[derive(Clone, Debug)]
pub struct Trigger {
    reason: watch::Sender<Option<String>>,
}

/// A token and what fires it; for tests and for processes with reasons of their own.
#[must_use]
pub fn channel() -> (Trigger, Shutdown) {
    let (sender, receiver) = watch::channel(None);
    (Trigger { reason: sender }, Shutdown { reason: receiver })
}

impl Trigger {
    /// Asks everyone to stop. The first reason stands.
    pub fn fire(&self, reason: impl Into<String>) {
        self.reason.send_if_modified(|slot| {
            let first = slot.is_none();
            if first {
                *slot = Some(reason.into());
            }
            first
        });
    }
}

impl Shutdown {
    /// Why to stop, if someone asked already.
    #[must_use]
    pub fn requested(&self) -> Option<String> {
        self.reason.borrow().clone()
    }

    /// Waits until someone asks to stop and says why. Waits for ever when nobody is left who could ask.
    /// Cancel-safe.
    pub async fn wait(&mut self) -> String {
        loop {
            if let Some(reason) = self.requested() {
                return reason;
            }
            if self.reason.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }
}

/// A token that SIGTERM and SIGINT fire, from now on. Needs a tokio runtime.
pub fn on_signals() -> io::Result<Shutdown> {
    let (trigger, shutdown) = channel();
    fire_on_signals(trigger)?;
    Ok(shutdown)
}

/// Lets SIGTERM and SIGINT fire an existing token, from now on. Needs a tokio runtime.
pub fn fire_on_signals(trigger: Trigger) -> io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::spawn(async move {
        let name = tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        };
        trigger.fire(format!("{name} received"));
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_first_reason_stands() {
        let (trigger, mut shutdown) = channel();
        assert_eq!(shutdown.requested(), None);
        trigger.fire("first");
        trigger.fire("second");
        assert_eq!(shutdown.wait().await, "first");
        assert_eq!(shutdown.clone().wait().await, "first", "late waiters hear it too");
    }
}
