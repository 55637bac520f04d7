//! The handlers of a server by number, each with its thread. It must not know how calls come.

use super::queue::Queue;
use super::serve::{Seat, serve};
use super::{App, Handling};
use crate::journal::Desk;
use crate::runtime::HandlerNews;
use fabric::oneshot;
use proto_common::table::TABLE_APPS;
use std::collections::BTreeMap;
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use thiserror::Error;

/// A handler that cannot be registered.
#[derive(Debug, Error)]
pub enum RegisterError {
    /// The number is reserved for tables.
    #[error("handler number {0} is reserved for tables; use a number below {TABLE_APPS}")]
    OfTables(u32),
    /// This number has a handler already.
    #[error("handler {0} is already registered; unregister it first")]
    Taken(u32),
    /// Its thread cannot be started.
    #[error("cannot start the thread of handler {app}: {source}")]
    Thread {
        /// The number.
        app: u32,
        /// The reason.
        source: std::io::Error,
    },
}

/// A handler that did not return in time. Its thread is abandoned, and ends when the handler returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "handler {app} has not returned from a call within {waited_ms} ms, so its thread is abandoned; check what it waits for, or raise deadlines.drain_ms"
)]
pub struct StuckHandler {
    /// Its number.
    pub app: u32,
    /// How long it had to return.
    pub waited_ms: u64,
}

/// How long a handler may take to return at its end, where no server has said it yet.
const DRAIN_DEFAULT: Duration = Duration::from_secs(3);

/// The handlers of one server. Clones share them.
#[derive(Clone, Default)]
pub struct Apps(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    queues: BTreeMap<u32, Arc<Queue>>,
    threads: BTreeMap<u32, Running>,
    /// Handlers that take calls. One with a state does so only when it has its state.
    ready: BTreeMap<u32, Handling>,
    desk: Desk,
    /// Senders of the news that a handler came or went, one for each lane; empty until the lanes have started.
    news: Vec<HandlerNews>,
    spin: Duration,
    /// How long a handler may take to return at its end, once a server has said it.
    drain: Option<Duration>,
}

/// A handler's thread.
struct Running {
    thread: JoinHandle<()>,
    /// Nothing comes out of it: the other end goes with the thread.
    ended: oneshot::Receiver<()>,
}

impl Running {
    fn start(name: String, work: impl FnOnce() + Send + 'static) -> std::io::Result<Self> {
        let (alive, ended) = oneshot::channel();
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            let _alive: oneshot::Sender<()> = alive;
            work();
        })?;
        Ok(Self { thread, ended })
    }

    /// Waits for its end until then, but for the thread that calls. False where it has not come.
    fn join(self, until: Instant) -> bool {
        if self.thread.thread().id() == std::thread::current().id() {
            return true;
        }
        let left = until.saturating_duration_since(Instant::now());
        if self.ended.recv_timeout(left) == Err(RecvTimeoutError::Timeout) {
            return false;
        }
        if self.thread.join().is_err() {
            tracing::error!("a handler's thread panicked");
        }
        true
    }
}

impl std::fmt::Debug for Apps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Apps").field("handlers", &self.lock().threads.keys()).finish()
    }
}

impl Apps {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Maps that are inserted into and removed from are whole, whatever happened to others.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lanes have started: from now on they get the news of handlers. `spin`: how long a handler's thread spins before it sleeps;
    /// `drain`: how long a handler may take to return at its end.
    pub(crate) fn attach(&self, news: Vec<HandlerNews>, (spin, drain): (Duration, Duration)) {
        let mut state = self.lock();
        for (app, handling) in &state.ready {
            news.iter().for_each(|lane| lane.send(*app, *handling));
        }
        (state.news, state.spin, state.drain) = (news, spin, Some(drain));
    }

    /// A call's queue; made for a handler that is not there yet.
    pub(crate) fn queue(&self, app: u32) -> Arc<Queue> {
        self.lock().queues.entry(app).or_default().clone()
    }

    /// Starts a handler. Calls that waited for it come first.
    pub fn register(&self, app: u32, handler: impl App + 'static) -> Result<(), RegisterError> {
        if app >= TABLE_APPS {
            return Err(RegisterError::OfTables(app));
        }
        let mut state = self.lock();
        if state.threads.get(&app).is_some_and(|running| !running.thread.is_finished()) {
            return Err(RegisterError::Taken(app));
        }
        let queue = state.queues.entry(app).or_default().clone();
        let seat = Seat { app, life: queue.open(), queue };
        let (apps, spin, desk) = (Arc::downgrade(&self.0), state.spin, state.desk.clone());
        // One with a state takes calls only when it has its state: see `Apps::ready`.
        let is_ready = !handler.has_state();
        let handling = if handler.reads_in_place() { Handling::InPlace } else { Handling::Copied };
        let running = Running::start(format!("gradwire-app-{app}"), move || {
            let lanes = || apps.upgrade().map_or_else(Vec::new, |apps| Self(apps).lock().news.clone());
            let ready = || apps.upgrade().into_iter().for_each(|apps| Self(apps).ready(&seat));
            serve(handler, &seat, (spin, &desk), lanes, ready);
            if let Some(apps) = apps.upgrade() {
                Self(apps).ended(app, &seat.queue, seat.life);
            }
        });
        let running = running.map_err(|source| RegisterError::Thread { app, source })?;
        state.threads.insert(app, running);
        if is_ready {
            state.ready.insert(app, handling);
            state.news.iter().for_each(|lane| lane.send(app, handling));
        } else {
            state.ready.remove(&app);
        }
        Ok(())
    }

    /// Where handlers with a state find their journals.
    pub(crate) fn desk(&self) -> Desk {
        self.lock().desk.clone()
    }

    /// A handler with a state takes calls from now on.
    fn ready(&self, seat: &Seat) {
        let mut state = self.lock();
        // It may have been unregistered meanwhile, and lanes know that.
        if seat.queue.is_open(seat.life) {
            state.ready.insert(seat.app, Handling::Copied);
            state.news.iter().for_each(|lane| lane.send(seat.app, Handling::Copied));
        }
    }

    /// A handler's thread is about to end.
    fn ended(&self, app: u32, queue: &Queue, life: u64) {
        let mut state = self.lock();
        if queue.close(life) {
            state.ready.remove(&app);
            state.news.iter().for_each(|lane| lane.send(app, Handling::Nobody));
        }
    }

    /// Unregisters a handler, and waits until it has finished its current call, at most `deadlines.drain_ms`. Later
    /// calls wait for another handler. A call from the handler's own thread does not wait. False if there is no
    /// handler.
    pub fn unregister(&self, app: u32) -> Result<bool, StuckHandler> {
        let mut state = self.lock();
        let Some(running) = state.threads.remove(&app) else { return Ok(false) };
        if let Some(queue) = state.queues.get(&app) {
            queue.close_any();
        }
        state.ready.remove(&app);
        state.desk.wake();
        state.news.iter().for_each(|lane| lane.send(app, Handling::Nobody));
        let drain = state.drain.unwrap_or(DRAIN_DEFAULT);
        drop(state);
        ended(app, running, Instant::now() + drain, drain).map(|()| true)
    }

    /// Unregisters all handlers, within `deadlines.drain_ms` in total. The error names one that did not return.
    pub(crate) fn end(&self) -> Result<(), StuckHandler> {
        let mut state = self.lock();
        let threads = std::mem::take(&mut state.threads);
        let queues = std::mem::take(&mut state.queues);
        state.news.clear();
        let drain = state.drain.unwrap_or(DRAIN_DEFAULT);
        drop(state);
        queues.values().for_each(|queue| queue.close_any());
        self.desk().wake();
        let until = Instant::now() + drain;
        let all = threads.into_iter().map(|(app, running)| ended(app, running, until, drain));
        let all: Vec<_> = all.collect();
        // The calls in them answer lanes that have ended: without the lock.
        drop(queues);
        all.into_iter().collect()
    }
}

fn ended(app: u32, running: Running, until: Instant, drain: Duration) -> Result<(), StuckHandler> {
    if running.join(until) {
        return Ok(());
    }
    let stuck = StuckHandler { app, waited_ms: drain.as_millis() as u64 };
    tracing::error!("{stuck}");
    Err(stuck)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    /// A thread that does not return until it is let, as one whose handler is stuck.
    fn stuck() -> (std::sync::mpsc::Sender<()>, Running) {
        let (go_on, blocked) = channel::<()>();
        let running = Running::start("stuck".into(), move || {
            let _ = blocked.recv();
        })
        .unwrap();
        (go_on, running)
    }

    #[test]
    fn a_handler_that_does_not_return_is_left_behind_and_named() {
        let apps = Apps::default();
        let (go_on, running) = stuck();
        let (free, other) = stuck();
        drop(free);
        let mut state = apps.lock();
        state.drain = Some(Duration::from_millis(20));
        state.threads.extend([(7, running), (3, other)]);
        drop(state);
        assert_eq!(apps.end(), Err(StuckHandler { app: 7, waited_ms: 20 }));
        drop(go_on);
        let (go_on, running) = stuck();
        apps.lock().threads.insert(5, running);
        let error = apps.unregister(5).unwrap_err();
        assert!(error.to_string().contains("handler 5") && error.to_string().contains("drain_ms"), "{error}");
        assert_eq!(apps.unregister(5), Ok(false));
        drop(go_on);
        assert_eq!(apps.end(), Ok(()));
    }
}
