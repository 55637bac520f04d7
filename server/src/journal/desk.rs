//! Where handlers with a state and the server's connections meet: handlers ask for their journal here, and wait until the server knows
//! what other servers have kept; the server learns here which journals there are to write. It must not know how journals travel.

use super::log::Log;
use super::past::Past;
use proto_common::ids::Rank;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use tokio::sync::mpsc;

/// What a handler begins with.
#[derive(Debug)]
pub(crate) enum Begin {
    /// No journal is kept in this job.
    Without,
    /// A journal, of a handler that begins anew.
    Fresh(Arc<Log>),
    /// A journal of earlier processes, which is continued.
    After(Arc<Log>, Past),
    /// The job had this handler before, and no server has its journal.
    Lost,
    /// Its number is another handler's by now, or the server has ended.
    Over,
}

#[derive(Debug, Default)]
enum Phase {
    /// The server has no roster yet, or still asks other servers.
    #[default]
    Asking,
    /// Nothing is kept in this job.
    Without,
    Open {
        /// None: this process begins with the job, or no handler was there before.
        found: Option<BTreeMap<u32, Past>>,
        writers: mpsc::UnboundedSender<Arc<Log>>,
        own: Rank,
    },
}

#[derive(Debug, Default)]
struct State {
    phase: Phase,
    logs: BTreeMap<u32, Arc<Log>>,
    /// Handlers whose journal could not be continued. Another server still has it, and a later process may be able to.
    lost: BTreeSet<u32>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// See the module. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Desk(Arc<Shared>);

impl Desk {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that can panic runs while the lock is held.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// In this job no journals are kept.
    pub(crate) fn without(&self) {
        self.lock().phase = Phase::Without;
        self.wake();
    }

    /// Journals are kept. `found`: in a process that has taken the place of a failed one, what others have kept. Returns the journals
    /// that are to be written, as handlers begin.
    pub(crate) fn open(
        &self,
        own: Rank,
        found: Option<BTreeMap<u32, Past>>,
    ) -> mpsc::UnboundedReceiver<Arc<Log>> {
        // As many as the program has handlers.
        let (writers, logs) = mpsc::unbounded_channel();
        self.lock().phase = Phase::Open { found, writers, own };
        self.wake();
        logs
    }

    /// The journal of this handler cannot be continued in this process.
    pub(crate) fn lose(&self, app: u32) {
        self.lock().lost.insert(app);
    }

    /// Handlers that wait look again.
    pub(crate) fn wake(&self) {
        drop(self.lock());
        self.0.changed.notify_all();
    }

    /// The journal of a handler that begins. Waits until the server knows it, as long as the handler `is_wanted`: joining the job and
    /// asking other servers have deadlines of their own, and a server that ends unregisters its handlers.
    pub(crate) fn begin(
        &self,
        app: u32,
        is_wanted: impl Fn() -> bool,
        poke: impl Fn() + Send + Sync + 'static,
    ) -> Begin {
        let mut state = self.lock();
        loop {
            if !is_wanted() {
                return Begin::Over;
            }
            let State { phase, logs, lost } = &mut *state;
            if lost.contains(&app) {
                return Begin::Lost;
            }
            match phase {
                Phase::Asking => {}
                Phase::Without => return Begin::Without,
                Phase::Open { found, writers, own } => {
                    if let Some(log) = logs.get(&app) {
                        // Another handler had the number in this process: its state is not this one's.
                        log.begin_anew();
                        return Begin::Fresh(log.clone());
                    }
                    let past = match found {
                        Some(found) => match found.remove(&app) {
                            Some(past) => past,
                            None => return Begin::Lost,
                        },
                        None => Past::default(),
                    };
                    let is_new = past.records.is_empty();
                    let which = (past.generation.saturating_add(1), is_new);
                    let log = Arc::new(Log::new((*own, app), which, past.keeper, poke));
                    logs.insert(app, log.clone());
                    // The server has ended where nobody receives it: then lanes have, too.
                    let _ = writers.send(log.clone());
                    return if is_new { Begin::Fresh(log) } else { Begin::After(log, past) };
                }
            }
            state = self.0.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
