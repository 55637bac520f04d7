//! Servers of this host that the scheduler has declared failed and that still run, as a process does that was stopped by a signal
//! (`--end-failed`). Owns how the launcher learns of them and when each is to be ended; the supervisor ends them. Programs of
//! users never come here, because they embed the client.

use crate::status::get_status;
use daemon::status::ClusterStatus;
use proto_common::ids::Role;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// Interval between looks at the scheduler's status, in milliseconds.
const LOOK_MS: u64 = 1_000;

/// What is known of a running server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    /// The scheduler has not declared it failed.
    NotFailed,
    /// It is listed as failed since then.
    Failed(Instant),
    /// Nothing is to be done: it was ended, or its process id was listed before it was seen, and so means an earlier process.
    Settled,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Failed {
    /// How long a server has to exit by itself after it was declared failed: a server that is not stopped logs why it ends.
    grace: Duration,
    /// Tells this host from others.
    host: Option<String>,
    statuses: Option<mpsc::Receiver<ClusterStatus>>,
    /// By process id.
    seen: BTreeMap<u32, Seen>,
}

impl Failed {
    pub(super) fn new(grace: Duration) -> Self {
        Self { grace, host: daemon::host::host_identity().ok(), statuses: None, seen: BTreeMap::new() }
    }

    /// Begins to ask the scheduler at this HTTP address. In a task of its own: a scheduler that does not answer delays nothing.
    pub(super) fn watch(&mut self, http: String) {
        let (sender, statuses) = mpsc::channel(1);
        self.statuses = Some(statuses);
        tokio::spawn(async move {
            let mut looks = tokio::time::interval(Duration::from_millis(LOOK_MS));
            while !sender.is_closed() {
                looks.tick().await;
                // A scheduler that is restarted answers again later.
                let Ok((status, _)) = get_status(&http).await else { continue };
                let _ = sender.send(status).await;
            }
        });
    }

    /// The scheduler's next status; none ever without [`Self::watch`].
    pub(super) async fn next(&mut self) -> ClusterStatus {
        if let Some(statuses) = &mut self.statuses
            && let Some(status) = statuses.recv().await
        {
            return status;
        }
        std::future::pending().await
    }

    /// Which of these processes of this host are to be ended now. Process ids of other hosts mean other processes.
    pub(super) fn due(&mut self, status: &ClusterStatus, running: &[u32], now: Instant) -> Vec<u32> {
        let failed = status.recovery.failed.iter();
        let here =
            failed.filter(|failed| failed.host_identity.is_some() && failed.host_identity == self.host);
        let here = here.filter(|failed| failed.member.role == Role::Server);
        let declared: Vec<u32> = here.map(|failed| failed.pid).collect();
        self.seen.retain(|pid, _| running.contains(pid));
        for pid in running {
            let is_listed = declared.contains(pid);
            let first = if is_listed { Seen::Settled } else { Seen::NotFailed };
            let seen = self.seen.entry(*pid).or_insert(first);
            if is_listed && *seen == Seen::NotFailed {
                *seen = Seen::Failed(now);
            }
        }
        let grace = self.grace;
        let is_due = |seen: &Seen| matches!(seen, Seen::Failed(since) if now - *since >= grace);
        let mut due = Vec::new();
        for (pid, seen) in self.seen.iter_mut().filter(|(_, seen)| is_due(seen)) {
            *seen = Seen::Settled;
            due.push(*pid);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use daemon::status::FailedStatus;
    use proto_common::ids::{MemberId, Rank};
    use serde_json::json;

    fn status(failed: &[(u32, &str)]) -> ClusterStatus {
        let failed: Vec<_> = failed
            .iter()
            .map(|(pid, host)| FailedStatus {
                member: MemberId { role: Role::Server, rank: Rank(0) },
                pid: *pid,
                host_identity: Some((*host).to_owned()),
            })
            .collect();
        let rest = json!({
            "job": 1, "phase": "running", "epoch": "1.1", "workers": 1, "servers": 2, "silence_ms": 1, "uptime_ms": 1,
            "tensors": 0, "tensor_bytes": 0, "recovery": { "failed": failed }, "uncopied_chunks": 0, "members": [],
            "missing": [], "barriers": [], "ending": null,
        });
        serde_json::from_value(rest).unwrap()
    }

    #[test]
    fn a_server_is_due_if_it_was_declared_failed_and_does_not_exit() {
        let (grace, start) = (Duration::from_secs(5), Instant::now());
        let mut failed = Failed { host: Some("a".into()), ..Failed::new(grace) };
        let lost = status(&[(7, "a"), (8, "b"), (9, "a")]);
        let mut look = |status: &ClusterStatus, running: &[u32], after: Duration| {
            failed.due(status, running, start + after)
        };
        let just_before = grace - Duration::from_millis(1);
        assert_eq!(look(&status(&[]), &[7, 8], Duration::ZERO), [0; 0]);
        assert_eq!(look(&lost, &[7, 8], Duration::ZERO), [0; 0], "it may exit by itself");
        assert_eq!(look(&lost, &[7, 8, 9], just_before), [0; 0]);
        assert_eq!(
            look(&lost, &[7, 8, 9], grace),
            [7],
            "a process of host b had id 8, and an earlier one had id 9"
        );
        assert_eq!(look(&lost, &[7, 8, 9], 2 * grace), [0; 0], "it is ended once");
        assert_eq!(look(&lost, &[8, 9], 3 * grace), [0; 0], "7 has exited");
        assert_eq!(look(&lost, &[7, 8, 9], 4 * grace), [0; 0]);
        assert_eq!(look(&lost, &[7, 8, 9], 5 * grace), [0; 0], "this is a new process");
    }

    #[tokio::test]
    async fn without_a_watch_there_is_no_status() {
        let mut failed = Failed::new(Duration::ZERO);
        assert!(tokio::time::timeout(Duration::from_millis(10), failed.next()).await.is_err());
    }
}
