//! Looks at a cluster: who is there, and which round each worker has finished. It asks those who can answer; a process that
//! was struck is not asked, and what it said before counts until it is another life.

use super::cluster::{Cluster, Seat};
use crate::status::{Whose, get};
use daemon::status::{ClusterStatus, JobPhase, MemberStatus};
use proto_common::ids::Role;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::timeout;

/// Milliseconds that one answer may take: a busy process is asked again at the next look.
const ANSWER_MS: u64 = 500;

/// What was heard last.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// Where a life's endpoints are, by its process id.
    http: BTreeMap<u32, String>,
    /// The round that a life has finished.
    rounds: BTreeMap<u32, u64>,
    status: Option<ClusterStatus>,
}

/// What a worker's `/status` says of interest.
#[derive(Deserialize)]
struct WorkerStatus {
    round: u64,
}

impl Watch {
    /// Asks everybody once.
    pub(super) async fn look(&mut self, cluster: &Cluster<'_>) {
        let is_mute = |role| cluster.lives.iter().any(|(seat, life)| seat.role == role && life.is_mute);
        let has_scheduler = cluster.lives.keys().any(|seat| seat.role == Role::Scheduler);
        self.status = None;
        if has_scheduler && !is_mute(Role::Scheduler) {
            self.status = ask::<ClusterStatus>(&cluster.http).await;
        }
        for member in self.status.iter().flat_map(|status| &status.members) {
            if let Some(http) = &member.http_address {
                self.http.insert(member.pid, http.clone());
            }
        }
        let workers = cluster.lives.iter().filter(|(seat, life)| seat.role == Role::Worker && !life.is_mute);
        for (_, life) in workers {
            let Some(http) = self.http.get(&life.pid) else { continue };
            if let Some(WorkerStatus { round }) = ask(http).await {
                self.rounds.insert(life.pid, round);
            }
        }
        let lives = |pid: &u32| cluster.lives.values().any(|life| life.pid == *pid);
        self.http.retain(|pid, _| lives(pid));
        self.rounds.retain(|pid, _| lives(pid));
    }

    /// Writes what everybody who can answer says of itself beside the logs.
    pub(super) async fn keep(&self, cluster: &Cluster<'_>) {
        for (seat, life) in cluster.lives.iter().filter(|(_, life)| !life.is_mute) {
            let of_scheduler = (seat.role == Role::Scheduler).then_some(cluster.http.as_str());
            let Some(http) = of_scheduler.or(self.http_of(life.pid)) else { continue };
            for path in ["/status", "/metrics"] {
                let answer = timeout(Duration::from_millis(ANSWER_MS), get(Whose::Member, http, path)).await;
                if let Ok(Ok(text)) = answer {
                    cluster.keep(*seat, path.trim_start_matches('/'), &text);
                }
            }
        }
    }

    /// The round that all workers have finished; none while one of them has not said any.
    pub(super) fn round_of_all(&self, cluster: &Cluster<'_>) -> Option<u64> {
        let workers = cluster.seats().into_iter().filter(|seat| seat.role == Role::Worker);
        workers.map(|seat| self.rounds.get(&cluster.lives.get(&seat)?.pid).copied()).min().flatten()
    }

    /// The highest round that anybody has finished.
    pub(super) fn round_of_any(&self) -> u64 {
        self.rounds.values().copied().max().unwrap_or(0)
    }

    /// Where a life's endpoints are.
    pub(super) fn http_of(&self, pid: u32) -> Option<&str> {
        self.http.get(&pid).map(String::as_str)
    }

    /// Is everybody there, connected, and every shard with all of its copies?
    pub(super) fn is_whole(&self, cluster: &Cluster<'_>) -> bool {
        self.missing(cluster).is_empty()
    }

    /// What is missing, for people.
    pub(super) fn missing(&self, cluster: &Cluster<'_>) -> Vec<String> {
        let Some(status) = &self.status else { return vec!["the scheduler does not answer".into()] };
        let mut missing = Vec::new();
        if status.phase != JobPhase::Running {
            missing.push(format!("the job is {:?}", status.phase));
        }
        if status.uncopied_chunks > 0 {
            missing.push(format!("copies of {} chunks", status.uncopied_chunks));
        }
        let pid_of = |seat: &Seat| cluster.lives.get(seat).map(|life| life.pid);
        for seat in cluster.seats().into_iter().filter(|seat| seat.role != Role::Scheduler) {
            let is_up = |member: &MemberStatus| {
                Some(member.pid) == pid_of(&seat)
                    && !member.left
                    && (seat.role == Role::Server || member.links_ready)
            };
            if !status.members.iter().any(is_up) {
                missing.push(seat.to_string());
            }
        }
        missing
    }
}

async fn ask<T: for<'a> Deserialize<'a>>(address: &str) -> Option<T> {
    let answer = timeout(Duration::from_millis(ANSWER_MS), get(Whose::Member, address, "/status")).await;
    serde_json::from_slice(&answer.ok()?.ok()?).ok()
}
