//! The scheduler's metrics: counters of what passed, and gauges read from the engine when they are scraped.
//! Labels have a fixed set of values.

use super::view::View;
use crate::engine::Input;
use daemon::metrics::{add_security, add_settings, registry};
use daemon::security::Security;
use daemon::status::{ClusterStatus, JobPhase, RecoveryStatus};
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Gauge, GaugeVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};
use proto_common::config::Settings;
use proto_common::error::{Death, DeathCause};
use proto_common::ids::Role;
use proto_common::message::{FromScheduler, ToScheduler};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

type Result<T> = std::result::Result<T, prometheus::Error>;

/// Counters, and the registry that holds everything.
pub(super) struct Metrics {
    registry: Registry,
    heartbeats: IntCounter,
    connections_refused: IntCounterVec,
    registrations: IntCounterVec,
    declarations: IntCounterVec,
    barriers: IntCounterVec,
    deaths: IntCounterVec,
    unsent: Unsent,
}

/// What waits for each control connection, in bytes: those that are closed drop out.
#[derive(Clone)]
struct Unsent {
    queues: Arc<Mutex<Vec<Weak<AtomicUsize>>>>,
    most: IntGauge,
}

impl Unsent {
    fn new() -> Result<Self> {
        let name = "gradwire_scheduler_unsent_bytes";
        let most = IntGauge::new(name, "Largest number of bytes queued for one control connection.")?;
        Ok(Self { queues: Arc::default(), most })
    }

    fn queues(&self) -> MutexGuard<'_, Vec<Weak<AtomicUsize>>> {
        // Whatever panicked, the list is whole.
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Collector for Unsent {
    fn desc(&self) -> Vec<&Desc> {
        self.most.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let queues = self.queues();
        let bytes = queues.iter().filter_map(Weak::upgrade).map(|bytes| bytes.load(Ordering::Relaxed));
        self.most.set(i64::try_from(bytes.max().unwrap_or(0)).unwrap_or(i64::MAX));
        drop(queues);
        self.most.collect()
    }
}

impl Metrics {
    pub(super) fn new((settings, security): (&Settings, &Security), view: View) -> Result<Self> {
        let registry = registry(Role::Scheduler)?;
        add_security(&registry, &settings.security, security)?;
        add_settings(&registry, Role::Scheduler, settings)?;
        let counters = |name: &str, help: &str, label: &str, values: &[&str]| {
            let counters = IntCounterVec::new(Opts::new(name, help), &[label])?;
            // A series that begins with its first event hides that event from `rate` and `increase`.
            values.iter().for_each(|value| drop(counters.with_label_values(&[value])));
            registry.register(Box::new(counters.clone()))?;
            Result::Ok(counters)
        };
        let heartbeats = IntCounter::new("gradwire_scheduler_heartbeats_total", "Heartbeats received.")?;
        registry.register(Box::new(heartbeats.clone()))?;
        let unsent = Unsent::new()?;
        registry.register(Box::new(unsent.clone()))?;
        let metrics = Self {
            heartbeats,
            unsent,
            connections_refused: counters(
                "gradwire_scheduler_connections_refused_total",
                "Connections dropped before they registered.",
                "reason",
                &["closed", "handshake", "malformed", "slow", "version"],
            )?,
            registrations: counters(
                "gradwire_scheduler_registrations_total",
                "Answers to registrations.",
                "result",
                &["accepted", "refused"],
            )?,
            declarations: counters(
                "gradwire_scheduler_declarations_total",
                "Answers to declarations of tensors.",
                "result",
                &["accepted", "refused"],
            )?,
            barriers: counters(
                "gradwire_scheduler_barrier_waits_total",
                "Answers to members waiting at a barrier.",
                "result",
                &["failed", "released"],
            )?,
            deaths: counters(
                "gradwire_scheduler_deaths_total",
                "Failed members, by cause.",
                "cause",
                &["connection_lost", "failed", "silent"],
            )?,
            registry,
        };
        metrics.registry.register(Box::new(EngineGauges::new(view)?))?;
        Ok(metrics)
    }

    /// A connection is open: what waits for it is shown.
    pub(super) fn watch(&self, queued_bytes: &Arc<AtomicUsize>) {
        let mut queues = self.unsent.queues();
        queues.retain(|queue| queue.strong_count() > 0);
        queues.push(Arc::downgrade(queued_bytes));
    }

    pub(super) fn registry(&self) -> &Registry {
        &self.registry
    }

    /// A connection dropped before it registered.
    pub(super) fn refused(&self, reason: &str) {
        self.connections_refused.with_label_values(&[reason]).inc();
    }

    pub(super) fn count_input(&self, input: &Input) {
        if let Input::Message { message: ToScheduler::Heartbeat(_), .. } = input {
            self.heartbeats.inc();
        }
    }

    /// One death, whether the job goes on or not.
    pub(super) fn count_death(&self, death: &Death) {
        let mut cause = &death.cause;
        while let DeathCause::Beyond { cause: how, .. } = cause {
            cause = how;
        }
        let cause = match cause {
            DeathCause::ConnectionLost => "connection_lost",
            DeathCause::Silent { .. } => "silent",
            DeathCause::Failed { .. } | DeathCause::Beyond { .. } => "failed",
        };
        self.deaths.with_label_values(&[cause]).inc();
    }

    pub(super) fn count_message(&self, message: &FromScheduler, receivers: u64) {
        let (counter, label) = match message {
            FromScheduler::Welcome(_) => (&self.registrations, "accepted"),
            FromScheduler::Refused(_) => (&self.registrations, "refused"),
            FromScheduler::Declared { result: Ok(_), .. } => (&self.declarations, "accepted"),
            FromScheduler::Declared { result: Err(_), .. } => (&self.declarations, "refused"),
            FromScheduler::Released { result: Ok(()), .. } => (&self.barriers, "released"),
            FromScheduler::Released { result: Err(_), .. } => (&self.barriers, "failed"),
            _ => return,
        };
        counter.with_label_values(&[label]).inc_by(receivers);
    }
}

/// Gauges that are set from the engine's state at each scrape.
struct EngineGauges {
    view: View,
    members: IntGaugeVec,
    expected: IntGaugeVec,
    silent_seconds: GaugeVec,
    term: IntGauge,
    epoch: IntGauge,
    tensors: IntGauge,
    tensor_bytes: IntGauge,
    barriers: IntGauge,
    running: IntGauge,
    uptime_seconds: Gauge,
    checkpoints_completed: IntGauge,
    checkpoints_failed: IntGauge,
    checkpoints_skipped: IntGauge,
    checkpoint_parts_missing: IntGaugeVec,
    /// What deaths, joins and restarts have led to, by kind.
    changes: IntGaugeVec,
    copy_bytes: IntGaugeVec,
    promotion_seconds: Gauge,
}

impl EngineGauges {
    fn new(view: View) -> Result<Self> {
        let by_role = |name: &str, help: &str| IntGaugeVec::new(Opts::new(name, help), &["role"]);
        let silent = Opts::new(
            "gradwire_scheduler_member_silence_seconds",
            "Longest time since the last message of a member of the role.",
        );
        Ok(Self {
            members: by_role("gradwire_scheduler_members", "Registered members that have not left.")?,
            expected: by_role("gradwire_scheduler_members_expected", "Members that the job should have.")?,
            silent_seconds: GaugeVec::new(silent, &["role"])?,
            term: IntGauge::new(
                "gradwire_scheduler_term",
                "Term of the epoch, which each new scheduler process increments.",
            )?,
            epoch: IntGauge::new("gradwire_scheduler_epoch", "Counter of the epoch within its term.")?,
            tensors: IntGauge::new("gradwire_scheduler_tensors", "Tensors declared.")?,
            tensor_bytes: IntGauge::new("gradwire_scheduler_tensor_bytes", "Bytes of all tensors declared.")?,
            barriers: IntGauge::new("gradwire_scheduler_barriers_pending", "Barriers with waiting members.")?,
            running: IntGauge::new(
                "gradwire_scheduler_job_running",
                "1 while this scheduler is in charge of its job.",
            )?,
            uptime_seconds: Gauge::new(
                "gradwire_scheduler_uptime_seconds",
                "Seconds since this process started.",
            )?,
            checkpoints_completed: IntGauge::new(
                "gradwire_scheduler_checkpoints_completed",
                "Checkpoints completed since this scheduler started.",
            )?,
            checkpoints_failed: IntGauge::new(
                "gradwire_scheduler_checkpoints_failed",
                "Checkpoints abandoned since this scheduler started, or not started because remains of abandoned ones fill the disk.",
            )?,
            checkpoints_skipped: IntGauge::new(
                "gradwire_scheduler_checkpoints_skipped",
                "Checkpoints not started at their round, because another one was still being written.",
            )?,
            checkpoint_parts_missing: IntGaugeVec::new(
                Opts::new(
                    "gradwire_scheduler_checkpoint_parts_missing",
                    "Missing parts of the checkpoint being written.",
                ),
                &["server", "lane"],
            )?,
            changes: IntGaugeVec::new(
                Opts::new(
                    "gradwire_scheduler_changes",
                    "Recovery actions after failures, joins and restarts, since the start.",
                ),
                &["kind"],
            )?,
            copy_bytes: IntGaugeVec::new(
                Opts::new("gradwire_scheduler_copy_bytes", "Bytes of replicas on other servers."),
                &["state"],
            )?,
            promotion_seconds: Gauge::new(
                "gradwire_scheduler_promotion_seconds",
                "Time from the last message of the most recently failed server to the decision which server takes over.",
            )?,
            view,
        })
    }

    fn set(&self, status: &ClusterStatus, epoch: proto_common::ids::Epoch) {
        for (role, expected) in [(Role::Server, status.servers), (Role::Worker, status.workers)] {
            let label = role.to_string();
            let there = status.members.iter().filter(|member| member.role == role && !member.left);
            let silent_ms = there.clone().map(|member| member.silent_ms).max().unwrap_or(0);
            self.members.with_label_values(&[&label]).set(there.count() as i64);
            self.expected.with_label_values(&[&label]).set(i64::from(expected));
            self.silent_seconds.with_label_values(&[&label]).set(silent_ms as f64 / 1e3);
        }
        self.term.set(i64::from(epoch.term));
        self.epoch.set(i64::from(epoch.counter));
        self.tensors.set(status.tensors as i64);
        self.tensor_bytes.set(i64::try_from(status.tensor_bytes).unwrap_or(i64::MAX));
        self.barriers.set(status.barriers.len() as i64);
        self.running.set(i64::from(status.phase == JobPhase::Running));
        self.uptime_seconds.set(status.uptime_ms as f64 / 1e3);
        let checkpoints = &status.checkpoints;
        self.checkpoints_completed.set(checkpoints.completed as i64);
        self.checkpoints_failed.set(checkpoints.failed as i64);
        self.checkpoints_skipped.set(checkpoints.skipped as i64);
        self.checkpoint_parts_missing.reset();
        for (server, lane) in &checkpoints.missing {
            let labels = [server.to_string(), lane.to_string()];
            self.checkpoint_parts_missing.with_label_values(&labels).set(1);
        }
        self.set_recovery(&status.recovery);
    }

    fn set_recovery(&self, recovery: &RecoveryStatus) {
        let changes = [
            ("roster", recovery.rosters),
            ("lost", recovery.lost),
            ("joined", recovery.joined),
            ("rebuilt", recovery.rebuilt),
            ("promotion", recovery.promotions),
            ("copy", recovery.copies_made),
            ("move", recovery.moves_made),
        ];
        for (kind, count) in changes {
            self.changes.with_label_values(&[kind]).set(count as i64);
        }
        for (state, bytes) in [("kept_up", recovery.copied_bytes), ("seeding", recovery.seeding_bytes)] {
            self.copy_bytes.with_label_values(&[state]).set(i64::try_from(bytes).unwrap_or(i64::MAX));
        }
        self.promotion_seconds.set(recovery.promotion_ms as f64 / 1e3);
    }

    fn parts(&self) -> [&dyn Collector; 17] {
        [
            &self.members,
            &self.expected,
            &self.silent_seconds,
            &self.term,
            &self.epoch,
            &self.tensors,
            &self.tensor_bytes,
            &self.barriers,
            &self.running,
            &self.uptime_seconds,
            &self.checkpoints_completed,
            &self.checkpoints_failed,
            &self.checkpoints_skipped,
            &self.checkpoint_parts_missing,
            &self.changes,
            &self.copy_bytes,
            &self.promotion_seconds,
        ]
    }
}

impl Collector for EngineGauges {
    fn desc(&self) -> Vec<&Desc> {
        self.parts().into_iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let shown = self.view.get();
        self.set(&shown.status, shown.epoch);
        self.parts().into_iter().flat_map(Collector::collect).collect()
    }
}
