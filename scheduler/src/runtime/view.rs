//! The job as HTTP endpoints, metrics and the service manager see it: a copy of the engine's status. The thread that decides makes the
//! copy, and readers of the copy take no time from that thread. This module must not decide what the status contains.

use crate::engine::{Engine, named};
use daemon::status::{ClusterStatus, JobPhase};
use proto_common::ids::Epoch;
use std::sync::Arc;
use tokio::sync::watch;
use tokio::time::Instant;

/// The thread that decides spends at most one part in this many of its time on copies.
const SHARE: u32 = 20;

/// The job at one moment.
#[derive(Debug)]
pub(super) struct Shown {
    pub(super) status: ClusterStatus,
    pub(super) epoch: Epoch,
}

/// The newest copy.
#[derive(Clone, Debug)]
pub(super) struct View(watch::Receiver<Arc<Shown>>);

impl View {
    pub(super) fn get(&self) -> Arc<Shown> {
        self.0.borrow().clone()
    }

    /// Is the job running? Otherwise what it waits for.
    pub(super) fn ready(&self) -> Result<(), String> {
        let status = &self.get().status;
        match status.phase {
            JobPhase::Running => Ok(()),
            JobPhase::Rebuilding => Err(format!(
                "recovering: waiting for a majority of the members of the job ({} missing: {}); if the missing members have exited, \
                 kill the scheduler with SIGKILL (SIGTERM ends the job), and start it with --resume --force",
                status.missing.len(),
                named(&status.missing)
            )),
            JobPhase::Assembling => {
                let (count, missing) = (status.missing.len(), named(&status.missing));
                Err(format!("waiting for {count} members to register: {missing}"))
            }
            JobPhase::Ending | JobPhase::Ended => Err(status.ending.clone().unwrap_or_default()),
        }
    }
}

/// Makes the copies. A change of the phase is copied at once, other changes as soon as [`SHARE`] allows.
#[derive(Debug)]
pub(super) struct Publisher {
    shown: watch::Sender<Arc<Shown>>,
    /// The earliest time of the next copy.
    next: Instant,
    is_stale: bool,
}

impl Publisher {
    pub(super) fn new(engine: &Engine) -> Self {
        let first = Shown { status: engine.status(0), epoch: engine.epoch() };
        let shown = watch::Sender::new(Arc::new(first));
        Self { shown, next: Instant::now(), is_stale: false }
    }

    pub(super) fn view(&self) -> View {
        View(self.shown.subscribe())
    }

    /// The engine has processed an input.
    pub(super) fn changed(&mut self, engine: &Engine, now_ms: u64) {
        let is_due = Instant::now() >= self.next || self.shown.borrow().status.phase != engine.job_phase();
        if is_due { self.publish(engine, now_ms) } else { self.is_stale = true }
    }

    /// When the next copy is due, if something has changed since the last one.
    pub(super) fn due(&self) -> Option<Instant> {
        self.is_stale.then_some(self.next)
    }

    pub(super) fn publish(&mut self, engine: &Engine, now_ms: u64) {
        let began = Instant::now();
        let shown = Shown { status: engine.status(now_ms), epoch: engine.epoch() };
        self.shown.send_replace(Arc::new(shown));
        let took = began.elapsed();
        (self.next, self.is_stale) = (began + took * SHARE, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{EngineConfig, Input};
    use proto_common::config::Settings;
    use proto_common::ids::Incarnation;

    #[test]
    fn a_change_of_phase_is_shown_at_once_and_everything_within_a_share_of_the_time() {
        let mut engine = Engine::new(EngineConfig::new(&Settings::default(), Incarnation(1)), 0);
        let mut publisher = Publisher::new(&engine);
        let view = publisher.view();
        assert!(view.ready().is_err_and(|why| why.contains("waiting for")), "{:?}", view.ready());
        publisher.changed(&engine, 7);
        assert_eq!((view.get().status.uptime_ms, publisher.due()), (7, None), "nothing was shown before");
        publisher.next = Instant::now() + std::time::Duration::from_secs(3600);
        publisher.changed(&engine, 8);
        assert_eq!((view.get().status.uptime_ms, publisher.due()), (7, Some(publisher.next)), "not yet");
        engine.handle(9, Input::Stop { reason: "SIGTERM".into() });
        publisher.changed(&engine, 9);
        assert_eq!(publisher.due(), None, "the phase has changed");
        assert!(view.ready().is_err_and(|why| why.contains("SIGTERM")), "{:?}", view.ready());
    }
}
