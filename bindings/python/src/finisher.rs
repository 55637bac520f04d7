//! One thread of a client that ends operations which have callbacks: a data thread tells it that one has ended, and it
//! copies what is to be copied and calls Python. So no data thread ever waits for the interpreter.

use crate::error::lock;
use std::io;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// What has ended, and has somebody to be called back.
pub(crate) trait Finish: Send + Sync {
    /// Ends it, on the finisher's thread.
    fn finish(self: Arc<Self>);
}

/// The thread, once there is something for it to do.
#[derive(Debug, Default)]
pub(crate) struct Finisher(Mutex<Thread<Sender<Arc<dyn Finish>>>>);

impl Finisher {
    /// Where ended operations are told; `None` where it has ended, or cannot be started.
    pub(crate) fn sender(&self) -> Option<Sender<Arc<dyn Finish>>> {
        let start = || {
            let (sender, receiver) = channel::<Arc<dyn Finish>>();
            let run = move || receiver.iter().for_each(|ended| ended.finish());
            Ok((sender, std::thread::Builder::new().name("gradwire-finish".into()).spawn(run)?))
        };
        Thread::sender(&self.0, start).ok().flatten()
    }

    /// Ends it, once it has done what it was told; every operation has ended by now. The interpreter's lock must not be
    /// held.
    pub(crate) fn end(&self) {
        Thread::end(&self.0);
    }
}

/// A thread that begins when it is first needed, and its sender.
#[derive(Debug, Default)]
pub(crate) enum Thread<S> {
    #[default]
    Idle,
    Running(S, JoinHandle<()>),
    Ended,
}

impl<S: Clone> Thread<S> {
    /// To the thread, which the first one starts; None once it has ended.
    pub(crate) fn sender(
        thread: &Mutex<Self>,
        start: impl FnOnce() -> io::Result<(S, JoinHandle<()>)>,
    ) -> io::Result<Option<S>> {
        let mut thread = lock(thread);
        if matches!(*thread, Self::Idle) {
            let (sender, running) = start()?;
            *thread = Self::Running(sender, running);
        }
        Ok(match &*thread {
            Self::Running(sender, _) => Some(sender.clone()),
            Self::Idle | Self::Ended => None,
        })
    }

    /// Ends the thread once it has done all that it was told, and waits for it. A callback that closes its client is on the thread
    /// itself, which then ends after it.
    pub(crate) fn end(thread: &Mutex<Self>) {
        let before = std::mem::replace(&mut *lock(thread), Self::Ended);
        let Self::Running(sender, running) = before else { return };
        drop(sender);
        if running.thread().id() != std::thread::current().id() {
            // A panic there was told on standard error, and is nobody's to handle.
            let _ = running.join();
        }
    }
}
