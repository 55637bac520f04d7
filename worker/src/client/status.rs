//! What a worker tells about itself: `/metrics`, `/status`, and the report in its heartbeats.

use super::registrations::{RegistrationCache, RegistrationStats};
use super::reported::Reported;
use crate::engine::{LaneStats, OldestOp, Traffic};
use crate::runtime::{LaneHandle, LaneMessage, LaneReport, Links};
use daemon::flight::Flight;
use daemon::lanes::{self, Reports};
use daemon::metrics::{Scraped, Series};
use daemon::port::PortWatch;
use fabric::Pool;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{GaugeVec, IntGaugeVec, Opts};
use proto_common::ids::Rank;
use proto_common::limits::RANKS_LISTED_MAX;
use proto_common::message::{LinkReport, MemberReport, Wait, WaitCause};
use proto_common::transport::Choice;
use serde_json::json;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// How long lanes may take to tell about themselves; of one that is slower, what it told before counts.
const REPORT_WITHIN: Duration = Duration::from_millis(20);
/// An operation that waits for so long is worth a word.
const OLD_MS: u64 = 1_000;

/// What heartbeats, scrapes and events reach once it exists.
pub(super) struct Late {
    /// Looking at it is also what lets go of buffers that nobody has any more.
    registrations: Arc<RegistrationCache>,
    pub(super) lanes: OnceLock<Vec<LaneHandle>>,
    pub(super) pool: OnceLock<Pool>,
    /// What those told last.
    reports: Reports<LaneReport>,
    /// What the trainer reports.
    pub(super) reported: Arc<Reported>,
    links: Arc<Links>,
    port: PortWatch,
    /// For tensors' names.
    flight: Flight,
}

/// All lanes together.
#[derive(Clone, Debug, Default)]
struct Collected {
    stats: LaneStats,
    /// By server.
    traffic: Vec<Traffic>,
    in_flight: u64,
    oldest: Option<OldestOp>,
    /// Lanes that do not answer.
    late: Vec<Wait>,
    registrations: RegistrationStats,
    failovers: u64,
    reconnects: u64,
    /// Bytes of the pool in use, and how many calls have waited for some.
    pool: (u64, u64),
}

impl Collected {
    fn add_traffic(&mut self, lane: &[Traffic]) {
        self.traffic.resize(self.traffic.len().max(lane.len()), Traffic::default());
        for (all, more) in self.traffic.iter_mut().zip(lane) {
            *all = all.plus(more);
        }
    }

    /// What waits, the longest first.
    fn waits(&self, flight: &Flight) -> Vec<Wait> {
        let oldest = self.oldest.iter().map(|oldest| wait(oldest, flight));
        let mut waits: Vec<Wait> = oldest.chain(self.late.iter().cloned()).collect();
        waits.sort_by_key(|wait| Reverse(wait.waited_ms));
        waits.truncate(RANKS_LISTED_MAX);
        waits
    }

    fn link(&self, (server, choice): &(Rank, Choice)) -> LinkReport {
        let moved = self.traffic.get(server.0 as usize).copied().unwrap_or_default();
        LinkReport {
            server: *server,
            driver: choice.driver,
            why: choice.why.clone(),
            sent_bytes: moved.sent_bytes,
            received_bytes: moved.landed_bytes,
        }
    }
}

impl Late {
    pub(super) fn new(
        registrations: Arc<RegistrationCache>,
        links: Arc<Links>,
        port: PortWatch,
        flight: Flight,
    ) -> Self {
        let (lanes, pool, reports) = (OnceLock::new(), OnceLock::new(), Reports::new(REPORT_WITHIN));
        Self { registrations, lanes, pool, reports, reported: Arc::default(), links, port, flight }
    }

    fn collect(&self) -> Collected {
        let mut all = Collected {
            registrations: self.registrations.sweep(),
            failovers: self.links.failovers(),
            reconnects: self.links.reconnects(),
            pool: self.pool.get().map_or((0, 0), |pool| (pool.used_bytes(), pool.waits())),
            ..Collected::default()
        };
        let ask = |lane: &LaneHandle, reply| lane.send_beside(LaneMessage::Report(reply));
        let known = self.reports.of(self.lanes.get().map_or(&[][..], Vec::as_slice), ask);
        all.late = lanes::late(&known).collect();
        for report in known.into_iter().filter_map(|lane| lane.told) {
            all.stats = all.stats.plus(&report.stats);
            all.add_traffic(&report.traffic);
            all.in_flight += report.in_flight as u64;
            let waited = all.oldest.as_ref().map_or(0, |oldest| oldest.waited_ms);
            all.oldest = report.oldest.filter(|oldest| oldest.waited_ms >= waited).or(all.oldest);
        }
        all
    }

    /// What a heartbeat tells.
    pub(super) fn report(&self) -> MemberReport {
        let all = self.collect();
        MemberReport {
            round: all.stats.round,
            in_flight: all.in_flight,
            waits: all.waits(&self.flight),
            links: self.links.all().iter().map(|link| all.link(link)).collect(),
            resident_bytes: daemon::process::resident_bytes(),
            load: None,
            metrics: self.reported.all(),
            port: self.port.lately(),
        }
    }

    /// The body of `/status`.
    pub(super) fn status(&self) -> serde_json::Value {
        let all = self.collect();
        let links: Vec<_> = self.links.all().iter().map(|link| all.link(link)).collect();
        json!({
            "links": links,
            "in_flight": all.in_flight,
            "oldest": all.oldest.as_ref().map(|oldest| json!({ "what": describe(oldest, &self.flight), "waited_ms": oldest.waited_ms })),
            "round": all.stats.round,
            "metrics": self.reported.all().into_iter().collect::<BTreeMap<_, _>>(),
            "operations_done": all.stats.done,
            "operations_failed": all.stats.failed,
            "batches": all.stats.batches,
            "sent_bytes": all.stats.sent_bytes,
            "plain_bytes": all.stats.plain_bytes,
            "landed_bytes": all.stats.landed_bytes,
            "shown_bytes": all.stats.shown_bytes,
            "retries": all.stats.retries,
            "reroutes": all.stats.reroutes,
            "replays": all.stats.replays,
            "failovers": self.links.failovers(),
            "reconnects": self.links.reconnects(),
            "longest_stall_ms": all.stats.longest_ms,
            "credit_waits": all.stats.credit_waits,
            "duplicates": all.stats.duplicates,
            "registered_buffers": all.registrations.registered,
            "registered_bytes": all.registrations.registered_bytes,
        })
    }

    /// In one line, for the service manager.
    pub(super) fn line(&self) -> String {
        if !self.links.are_ready() {
            return "waiting for the other members, and connecting to the servers".into();
        }
        let all = self.collect();
        let (round, in_flight, servers) = (all.stats.round, all.in_flight, self.links.all().len());
        let oldest = all.oldest.filter(|oldest| oldest.waited_ms >= OLD_MS);
        let words = |oldest: OldestOp| {
            format!("; waits for {} s: {}", oldest.waited_ms / 1000, describe(&oldest, &self.flight))
        };
        let oldest = oldest.map(words);
        let oldest = oldest.unwrap_or_default();
        format!("round {round}, {servers} servers connected, {in_flight} operations in flight{oldest}")
    }

    pub(super) fn ready(&self) -> Result<(), String> {
        match self.links.are_ready() {
            true => Ok(()),
            false => Err("connecting to the servers".into()),
        }
    }
}

fn wait(oldest: &OldestOp, flight: &Flight) -> Wait {
    let (cause, on) = oldest.cause.clone();
    Wait { what: describe(oldest, flight), of: None, waited_ms: oldest.waited_ms, cause, on }
}

fn describe(oldest: &OldestOp, flight: &Flight) -> String {
    let servers: Vec<String> = oldest.servers.iter().map(ToString::to_string).collect();
    let (cause, on) = &oldest.cause;
    let on = on.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let why = match cause {
        WaitCause::Links => format!("; no connection to {on}"),
        WaitCause::Credits => format!("; no free slot at {on}"),
        _ => String::new(),
    };
    format!("{} of {}, waiting for server {}{why}", oldest.what, flight.label(oldest.key), servers.join(", "))
}

/// Which driver each link uses; as many series as there are servers.
const LINK: &str = "gradwire_worker_link_info";
/// What the trainer reports; at most 16 series, because a name stays.
const METRIC: &str = "gradwire_worker_metric";

const COUNTERS: [Series<Collected>; 21] = [
    ("gradwire_worker_batches_total", "Batches sent to servers.", |c| c.stats.batches),
    ("gradwire_worker_parts_total", "Chunks sent, repeats included.", |c| c.stats.parts),
    ("gradwire_worker_sent_bytes_total", "Payload bytes sent.", |c| c.stats.sent_bytes),
    ("gradwire_worker_plain_bytes_total", "What they were before they were encoded.", |c| {
        c.stats.plain_bytes
    }),
    ("gradwire_worker_placed_total", "Chunks written straight into servers' key buffers.", |c| {
        c.stats.placed
    }),
    ("gradwire_worker_referenced_total", "Chunks that servers were to read.", |c| c.stats.referenced),
    ("gradwire_worker_landed_bytes_total", "Payload bytes that landed.", |c| c.stats.landed_bytes),
    ("gradwire_worker_shown_bytes_total", "Bytes of weights shown where servers have them.", |c| {
        c.stats.shown_bytes
    }),
    ("gradwire_worker_operations_total", "Operations done.", |c| c.stats.done),
    ("gradwire_worker_failures_total", "Operations failed.", |c| c.stats.failed),
    ("gradwire_worker_retries_total", "Chunks sent again because a server could not take them.", |c| {
        c.stats.retries
    }),
    ("gradwire_worker_reroutes_total", "Chunks sent again because the server did not have them.", |c| {
        c.stats.reroutes
    }),
    (
        "gradwire_worker_replays_total",
        "Chunks sent again because their channel had ended before they were answered.",
        |c| c.stats.replays,
    ),
    ("gradwire_worker_failovers_total", "Deaths of servers whose chunks others took over.", |c| c.failovers),
    ("gradwire_worker_reconnects_total", "Connections to living servers that were made again.", |c| {
        c.reconnects
    }),
    ("gradwire_worker_credit_waits_total", "Times a batch waited for a credit.", |c| c.stats.credit_waits),
    ("gradwire_worker_duplicates_total", "Repeated results ignored.", |c| c.stats.duplicates),
    ("gradwire_worker_pool_waits_total", "Calls that waited for memory of the pool.", |c| c.pool.1),
    (
        "gradwire_worker_registration_hits_total",
        "Operations that sent a trainer's own buffer from where it lies.",
        |c| c.registrations.hits,
    ),
    (
        "gradwire_worker_registration_copies_total",
        "Operations that copied a trainer's own buffer first.",
        |c| c.registrations.copies,
    ),
    (
        "gradwire_worker_registration_evictions_total",
        "Own buffers that gave way to others in the registration cache.",
        |c| c.registrations.evictions,
    ),
];

const GAUGES: [Series<Collected>; 3] = [
    (
        "gradwire_worker_registration_cache_bytes",
        "Bytes of trainers' own buffers that stay registered.",
        |c| c.registrations.registered_bytes,
    ),
    ("gradwire_worker_pool_used_bytes", "Bytes of the pool of registered buffers in use.", |c| c.pool.0),
    ("gradwire_worker_in_flight_operations", "Operations in flight.", |c| c.in_flight),
];

const WAITS: [Series<Collected>; 2] = [
    (
        "gradwire_worker_longest_stall_seconds",
        "The longest that a contribution took from its submission to its answer.",
        |c| c.stats.longest_ms,
    ),
    ("gradwire_worker_oldest_wait_seconds", "How long the oldest operation in flight waits.", |c| {
        c.oldest.as_ref().map_or(0, |oldest| oldest.waited_ms)
    }),
];

/// Metrics of all lanes, and series whose labels are known only when they are scraped.
pub(super) struct WorkerMetrics {
    late: Arc<Late>,
    lanes: Scraped<Collected>,
    links: IntGaugeVec,
    reported: GaugeVec,
}

impl WorkerMetrics {
    pub(super) fn new(late: Arc<Late>) -> Result<Self, prometheus::Error> {
        let looked = late.clone();
        Ok(Self {
            late,
            lanes: Scraped::new(move || looked.collect(), &COUNTERS, &GAUGES, &WAITS)?,
            links: IntGaugeVec::new(
                Opts::new(LINK, "1 for the driver in use to each server."),
                &["server", "driver"],
            )?,
            reported: GaugeVec::new(
                Opts::new(METRIC, "What the trainer reports, by its name for it."),
                &["name"],
            )?,
        })
    }
}

impl Collector for WorkerMetrics {
    fn desc(&self) -> Vec<&Desc> {
        let own = self.links.desc().into_iter().chain(self.reported.desc());
        self.lanes.desc().into_iter().chain(own).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let mut families = self.lanes.collect();
        // Servers come and go.
        self.links.reset();
        for (server, choice) in self.late.links.all() {
            self.links.with_label_values(&[server.to_string(), choice.driver.to_string()]).set(1);
        }
        families.extend(self.links.collect());
        for (name, value) in self.late.reported.all() {
            self.reported.with_label_values(&[name]).set(value);
        }
        families.extend(self.reported.collect());
        families
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::OpError;
    use crate::runtime::rig::{driver, submission};
    use crate::runtime::{OpState, spawn_lane};
    use fabric::UserBuffer;
    use proto_common::config::{MemorySettings, Settings};
    use proto_common::ids::Role;
    use proto_common::transport::Driver;
    use std::sync::mpsc::channel;
    use std::time::Instant;

    const PATIENCE: Duration = Duration::from_secs(30);

    fn late(links: Links) -> (Arc<Late>, Arc<RegistrationCache>) {
        // Either of two buffers has room, and not both.
        let settings = MemorySettings { registration_cache_bytes: 16, ..MemorySettings::default() };
        let cache = Arc::new(RegistrationCache::new(&settings, None));
        let (devices, _) = daemon::devices::open(&Settings::default()).unwrap();
        let flight = Flight::embedded(Role::Worker, &Settings::default());
        (Arc::new(Late::new(cache.clone(), Arc::new(links), PortWatch::new(&devices), flight)), cache)
    }

    fn lane() -> LaneHandle {
        spawn_lane(driver(0), 0, Duration::ZERO, Box::new(|_, _, _| {})).unwrap().0
    }

    #[test]
    fn a_stuck_lane_counts_with_what_it_told_last_and_is_named_among_the_waits() {
        let (late, _) = late(Links::default());
        let lane = lane();
        late.lanes.set(vec![lane.clone()]).unwrap();
        let (state, (go_on, stuck)) = (OpState::new(1), channel::<()>());
        state.on_end(Box::new(move |_| assert!(stuck.recv().is_err(), "until the test lets go")));
        lane.submit(submission(1, state));
        lane.kick().unwrap();
        let until = |done: &dyn Fn(&MemberReport) -> bool| {
            let deadline = Instant::now() + PATIENCE;
            loop {
                let report = late.report();
                if done(&report) {
                    return report;
                }
                assert!(Instant::now() < deadline, "{report:?}");
            }
        };
        until(&|report: &MemberReport| report.in_flight == 1);
        lane.send(LaneMessage::Fail(OpError::Closed("on purpose".into())));
        let names_it = |wait: &Wait| wait.what == "lane 0 did not answer" && wait.cause == WaitCause::Lane;
        let report = until(&|report: &MemberReport| report.waits.iter().any(names_it));
        assert_eq!(report.in_flight, 1, "no zeros");
        drop(go_on);
        let report = until(&|report: &MemberReport| report.in_flight == 0);
        assert_eq!(report.waits, []);
    }

    #[test]
    fn each_link_has_its_own_bytes() {
        let links = Links::default();
        let choice = || Choice { driver: Driver::Tcp, why: String::new() };
        for server in [0, 2] {
            links.set(Rank(server), choice());
        }
        let mut all = Collected::default();
        let traffic = |sent_bytes, landed_bytes| Traffic { sent_bytes, landed_bytes };
        all.add_traffic(&[traffic(1, 2), traffic(0, 0), traffic(30, 40)]);
        all.add_traffic(&[traffic(100, 0), traffic(0, 0), traffic(0, 0)]);
        let moved = |link: &LinkReport| (link.server.0, link.sent_bytes, link.received_bytes);
        let links: Vec<LinkReport> = links.all().iter().map(|link| all.link(link)).collect();
        assert_eq!(links.iter().map(moved).collect::<Vec<_>>(), [(0, 101, 2), (2, 30, 40)]);
    }

    #[test]
    fn a_scrape_tells_of_own_buffers() {
        let (late, cache) = late(Links::default());
        let metrics = WorkerMetrics::new(late.clone()).unwrap();
        let (first, second): (UserBuffer, UserBuffer) = (vec![1.0; 4].into(), vec![1.0; 2].into());
        for buffer in [&first, &first, &second, &second, &second] {
            cache.look_up(buffer);
        }
        let families = metrics.collect();
        let value = |name: &str| {
            let metric = &families.iter().find(|family| family.name() == name).unwrap().get_metric()[0];
            metric.get_counter().get_value() + metric.get_gauge().get_value()
        };
        let names = ["hits_total", "copies_total", "evictions_total"];
        let counts = names.map(|name| value(&format!("gradwire_worker_registration_{name}")));
        assert_eq!((counts, value("gradwire_worker_registration_cache_bytes")), ([3.0, 2.0, 1.0], 8.0));
        assert_eq!(late.status()["registered_bytes"], 8);
        late.reported.set("loss", 0.5).unwrap();
        let families = metrics.collect();
        let told = families.iter().find(|family| family.name() == METRIC).unwrap();
        assert_eq!(told.get_metric()[0].get_gauge().get_value(), 0.5);
        assert_eq!(
            (&late.report().metrics[..], &late.status()["metrics"]["loss"]),
            (&[("loss".into(), 0.5)][..], &json!(0.5))
        );
        drop(second);
        assert_eq!(late.status()["registered_buffers"], 0, "looking is what lets go");
    }
}
