//! A training that does not end before its test has done what must fall into it: the trainer is stopped at a line that it says,
//! and goes on when this is dropped. How fast the machine is then decides nothing.

use super::process::Process;
use rustix::process::{Signal, pidfd_send_signal};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// What members are told, so that nobody takes the trainer for dead, or waits for it in vain.
pub const PATIENT: [&str; 4] =
    ["--set", "deadlines.silence_ms=600000", "--set", "deadlines.operation_ms=600000"];

/// How soon a thread that waits for the line notices that nobody needs it any more.
const LOOK: Duration = Duration::from_millis(50);

/// See the module.
#[derive(Debug)]
pub struct Held {
    trainer: Arc<OwnedFd>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Held {
    /// Stops the trainer once it has said `words`.
    #[must_use]
    pub fn at(trainer: &Process, words: &'static str) -> Self {
        let (log, held) = (trainer.log().clone(), Arc::new(trainer.handle()));
        let is_over = Arc::<AtomicBool>::default();
        let (trainer, over) = (held.clone(), is_over.clone());
        let thread = std::thread::spawn(move || {
            while !over.load(Ordering::Relaxed) && !log.wait_end(Duration::ZERO) {
                if log.wait(words, LOOK).is_some() {
                    let _ = pidfd_send_signal(&held, Signal::STOP);
                    return;
                }
            }
        });
        Self { trainer, is_over, thread: Some(thread) }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        // A stop that comes after the word to go on would be for good.
        let _ = self.thread.take().map(JoinHandle::join);
        let _ = pidfd_send_signal(&self.trainer, Signal::CONT);
    }
}
