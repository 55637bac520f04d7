//! The engine's state as `/status` shows it. It changes nothing.

use super::super::member::Member;
use super::super::stragglers::{Waited, rounds_per_second, stragglers, waited_for};
use super::super::{Engine, Outcome, Phase};
use daemon::status::{
    ClusterStatus, JobPhase, LinkStatus, LoadStatus, MemberStatus, MetricStatus, RecoveryStatus,
};
use proto_common::ids::{MemberId, Role};
use proto_common::message::ServerLoad;

impl Engine {
    /// The job's phase.
    #[must_use]
    pub fn job_phase(&self) -> JobPhase {
        match self.phase {
            Phase::Assembling => JobPhase::Assembling,
            Phase::Rebuilding => JobPhase::Rebuilding,
            Phase::Running => JobPhase::Running,
            Phase::Ending { .. } => JobPhase::Ending,
            Phase::Ended { .. } => JobPhase::Ended,
        }
    }

    /// The job as it stands at `now_ms`.
    #[must_use]
    pub fn status(&self, now_ms: u64) -> ClusterStatus {
        let (tensors, tensor_bytes) = self.declarations.totals();
        let outcome = match &self.phase {
            Phase::Assembling | Phase::Rebuilding | Phase::Running => None,
            Phase::Ending { outcome, .. } | Phase::Ended { outcome } => Some(outcome),
        };
        let death = match outcome {
            Some(Outcome::Died(death)) => Some(death),
            _ => None,
        };
        let waited = waited_for(&self.members);
        ClusterStatus {
            job: self.config.job.0,
            phase: self.job_phase(),
            epoch: self.epoch.to_string(),
            workers: self.config.shape.workers.saturating_sub(self.members.left().len() as u32),
            servers: self.members.changes().servers,
            silence_ms: self.config.shape.silence_ms,
            uptime_ms: now_ms.saturating_sub(self.started_ms),
            tensors,
            tensor_bytes,
            rounds_per_second: rounds_per_second(&self.members),
            stragglers: stragglers(&self.members, &waited, &self.config.shape),
            recovery: self.recovery(),
            uncopied_chunks: self.declarations.shards.uncopied(),
            members: self.members.iter().map(|(id, member)| show(id, member, &waited, now_ms)).collect(),
            missing: self.missing(),
            barriers: self.barriers.status(now_ms),
            checkpoints: self.checkpoints.status(
                self.last_checkpoint.clone(),
                &self.checkpoint_parts(),
                now_ms,
            ),
            ending: outcome.map(ToString::to_string),
            ended_by: death.map(|death| death.member),
            is_silent: death.is_some_and(|death| death.cause.is_silence()),
        }
    }

    fn recovery(&self) -> RecoveryStatus {
        let (changes, shards) = (self.members.changes(), &self.declarations.shards);
        let counts = shards.counts();
        let (copied_bytes, seeding_bytes) = shards.copied_bytes();
        RecoveryStatus {
            rosters: changes.rosters,
            lost: changes.lost,
            joined: changes.joined,
            rebuilt: changes.rebuilt,
            promotions: counts.promotions,
            promotion_ms: changes.promotion_ms,
            copies_made: counts.copies_made,
            moves_made: counts.moves_made,
            moved_bytes: counts.moved_bytes,
            copied_bytes,
            seeding_bytes,
            awaited: self.members.awaited().collect(),
            draining: self.members.servers().draining.into_iter().collect(),
            failed: changes.failed.clone(),
        }
    }
}

fn show(id: MemberId, member: &Member, waited: &Waited, now_ms: u64) -> MemberStatus {
    let report = &member.report;
    let link = |(link, rate): (&proto_common::message::LinkReport, &u64)| LinkStatus {
        server: link.server,
        driver: link.driver,
        why: link.why.clone(),
        sent_bytes: link.sent_bytes,
        received_bytes: link.received_bytes,
        bytes_per_second: *rate,
    };
    let is_worker = id.role == Role::Worker;
    let metric = |(name, value): &(String, f64)| MetricStatus { name: name.clone(), value: *value };
    MemberStatus {
        role: id.role,
        rank: id.rank,
        pid: member.pid,
        build: member.build.clone(),
        data_address: member.data_address.clone(),
        http_address: member.http_address.clone(),
        host: member.host.clone(),
        silent_ms: now_ms.saturating_sub(member.heard_ms),
        left: member.left,
        links_ready: member.links_ready,
        round: report.round,
        in_flight: report.in_flight,
        oldest: report.waits.first().cloned(),
        others: report.waits.iter().skip(1).cloned().collect(),
        links: report.links.iter().zip(&member.rates).map(link).collect(),
        rounds_per_second: member.pace.rounds_per_second(),
        resident_bytes: report.resident_bytes,
        waited_for_percent: waited.get(&id.rank).copied().filter(|_| is_worker).unwrap_or(0),
        load: report.load.map(load),
        metrics: report.metrics.iter().map(metric).collect(),
        port: report.port.clone(),
    }
}

fn load(load: ServerLoad) -> LoadStatus {
    let ServerLoad { stored_bytes, credits_free, credits, spill_blocks_used, spill_blocks, .. } = load;
    let ServerLoad { quarantined_bytes, quarantined_for, .. } = load;
    LoadStatus {
        stored_bytes,
        credits_free,
        credits,
        spill_blocks_used,
        spill_blocks,
        quarantined_bytes,
        quarantined_for,
    }
}
