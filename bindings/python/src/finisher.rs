//! One thread of a client that ends operations which have callbacks: a data thread tells it that one has ended, and it
//! copies what is to be copied and calls Python. So no data thread ever waits for the interpreter.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// What has ended, and has somebody to be called back.
pub(crate) trait Finish: Send + Sync {
    /// Ends it, on the finisher's thread.
    fn finish(self: Arc<Self>);
}

/// The thread, once there is something for it to do.
#[derive(Debug, Default)]
pub(crate) struct Finisher(Mutex<State>);

#[derive(Debug, Default)]
enum State {
    #[default]
    Idle,
    Running(Sender<Arc<dyn Finish>>, JoinHandle<()>),
    Ended,
}

impl Finisher {
    /// Where ended operations are told; `None` where it has ended, or cannot be started.
    pub(crate) fn sender(&self) -> Option<Sender<Arc<dyn Finish>>> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*state, State::Idle) {
            let (sender, receiver) = channel::<Arc<dyn Finish>>();
            let run = move || receiver.iter().for_each(|ended| ended.finish());
            let thread = std::thread::Builder::new().name("gradwire-finish".into()).spawn(run).ok()?;
            *state = State::Running(sender, thread);
        }
        match &*state {
            State::Running(sender, _) => Some(sender.clone()),
            State::Idle | State::Ended => None,
        }
    }

    /// Ends it, once it has done what it was told; every operation has ended by now. The interpreter's lock must not be
    /// held. A callback that closes its client is on the thread itself, which then ends after it.
    pub(crate) fn end(&self) {
        let state =
            std::mem::replace(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner), State::Ended);
        let State::Running(sender, thread) = state else { return };
        drop(sender);
        if thread.thread().id() != std::thread::current().id() {
            // A panic there was told on standard error, and is nobody's to handle.
            let _ = thread.join();
        }
    }
}
