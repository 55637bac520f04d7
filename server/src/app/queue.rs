//! The handlers of a server by number, and the calls that wait for each. Bounded by what lanes let in: they take no more
//! calls of a worker than its window, and take back those whose deadline passes.

use super::{App, Call};
use crate::runtime::HandlerNews;
use proto_common::table::TABLE_APPS;
use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use thiserror::Error;

/// A handler that cannot be registered.
#[derive(Debug, Error)]
pub enum RegisterError {
    /// The number is a table's.
    #[error("handler {0} has a number that tables have; use one below {TABLE_APPS}")]
    OfTables(u32),
    /// There is one already.
    #[error("handler {0} is registered already; unregister it first")]
    Taken(u32),
    /// Its thread cannot be started.
    #[error("cannot start the thread of handler {app}: {source}")]
    Thread {
        /// Which handler.
        app: u32,
        /// Why.
        source: std::io::Error,
    },
}

/// The handlers of one server. Clones share them.
#[derive(Clone, Default)]
pub struct Apps(Arc<Inner>);

#[derive(Default)]
struct Inner {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    queues: BTreeMap<u32, Arc<Queue>>,
    threads: BTreeMap<u32, JoinHandle<()>>,
    /// Who is told that a handler came or went; there once the lanes are.
    news: Vec<HandlerNews>,
    spin: Duration,
}

impl std::fmt::Debug for Apps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Apps").field("handlers", &self.lock().threads.keys()).finish()
    }
}

impl Apps {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Maps that are inserted into and removed from are whole, whatever happened to others.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lanes are there: they hear of handlers from now on. `spin`: how long a handler's thread spins before it sleeps.
    pub(crate) fn attach(&self, news: Vec<HandlerNews>, spin: Duration) {
        let mut state = self.lock();
        for app in state.threads.keys() {
            news.iter().for_each(|lane| lane.tell(*app, true));
        }
        (state.news, state.spin) = (news, spin);
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
        if state.threads.get(&app).is_some_and(|thread| !thread.is_finished()) {
            return Err(RegisterError::Taken(app));
        }
        let queue = state.queues.entry(app).or_default().clone();
        let life = queue.open();
        let (apps, spin) = (Arc::downgrade(&self.0), state.spin);
        let thread = std::thread::Builder::new().name(format!("gradwire-app-{app}")).spawn(move || {
            let mut handler = handler;
            while let Some(call) = queue.next(life, spin) {
                if catch_unwind(AssertUnwindSafe(|| handler.call(call))).is_err() {
                    tracing::error!(
                        app,
                        "a handler panicked and is gone; calls to it wait for another one, until their deadline"
                    );
                    break;
                }
            }
            if let Some(inner) = apps.upgrade() {
                Self(inner).ended(app, &queue, life);
            }
        });
        let thread = thread.map_err(|source| RegisterError::Thread { app, source })?;
        state.threads.insert(app, thread);
        state.news.iter().for_each(|lane| lane.tell(app, true));
        Ok(())
    }

    /// A handler's thread is about to end.
    fn ended(&self, app: u32, queue: &Queue, life: u64) {
        let state = self.lock();
        if queue.close(life) {
            state.news.iter().for_each(|lane| lane.tell(app, false));
        }
    }

    /// Ends a handler when it is done with the call that it has, and waits for that. Calls that come wait for another.
    /// From a handler's own thread it does not wait.
    pub fn unregister(&self, app: u32) -> bool {
        let mut state = self.lock();
        let Some(thread) = state.threads.remove(&app) else { return false };
        if let Some(queue) = state.queues.get(&app) {
            queue.close_any();
        }
        state.news.iter().for_each(|lane| lane.tell(app, false));
        drop(state);
        join(thread);
        true
    }

    /// Ends all handlers.
    pub(crate) fn end(&self) {
        let mut state = self.lock();
        let threads = std::mem::take(&mut state.threads);
        let queues = std::mem::take(&mut state.queues);
        state.news.clear();
        drop(state);
        queues.values().for_each(|queue| queue.close_any());
        threads.into_values().for_each(join);
        // The calls in them answer lanes that have ended: without the lock.
        drop(queues);
    }
}

fn join(thread: JoinHandle<()>) {
    if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
        tracing::error!("a handler's thread panicked");
    }
}

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
    calls: VecDeque<(u64, Call)>,
    /// Which handler has it; the next one counts on.
    life: u64,
    is_open: bool,
    sleeps: bool,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // Nothing that can panic runs while the lock is held.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self) -> u64 {
        let mut waiting = self.lock();
        waiting.life += 1;
        waiting.is_open = true;
        waiting.life
    }

    /// True when that handler had it still.
    fn close(&self, life: u64) -> bool {
        let mut waiting = self.lock();
        let was = waiting.is_open && waiting.life == life;
        waiting.is_open &= !was;
        was
    }

    fn close_any(&self) {
        let mut waiting = self.lock();
        waiting.is_open = false;
        drop(waiting);
        // Wakes whoever spins, too: it looks at the lock then.
        self.count.fetch_add(1, Ordering::Release);
        self.came.notify_all();
    }

    /// A call comes; `id` is its lane's number for it.
    pub(crate) fn push(&self, id: u64, call: Call) {
        let mut waiting = self.lock();
        waiting.calls.push_back((id, call));
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
        let at = waiting.calls.iter().position(|(id, call)| (call.from, *id) == from);
        let call = at.and_then(|at| waiting.calls.remove(at));
        drop(waiting);
        // Its end is told to its lane: without the lock.
        drop(call);
    }

    /// The next call for this handler; `None` when it is to end.
    fn next(&self, life: u64, spin: Duration) -> Option<Call> {
        let mut began: Option<Instant> = None;
        loop {
            let mut waiting = self.lock();
            if !waiting.is_open || waiting.life != life {
                return None;
            }
            if let Some((_, call)) = waiting.calls.pop_front() {
                return Some(call);
            }
            self.count.store(0, Ordering::Release);
            if began.is_some_and(|began| began.elapsed() >= spin) {
                waiting.sleeps = true;
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
