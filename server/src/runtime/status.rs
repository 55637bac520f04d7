//! What a server tells: `/status`, `/metrics`, and the report in its heartbeats.

use super::message::{LaneMessage, LaneReport};
use super::serving::{SharedMember, lock};
use super::standing::{Standing, StreamState, StreamStatus};
use crate::engine::member::Holdings;
use crate::engine::{LaneStats, Waiting};
use crate::tables::TableStats;
use daemon::flight::Flight;
use daemon::lanes::{self, Reports};
use daemon::metrics::{Scraped, Series};
use daemon::port::PortWatch;
use fabric::Mailbox;
use proto_common::ids::Rank;
use proto_common::limits::RANKS_LISTED_MAX;
use proto_common::message::{MemberReport, PortReport, ServerLoad, Wait};
use serde::Serialize;
use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

/// How long lanes may take to tell about themselves; of one that is slower, what it told before counts.
const REPORT_WITHIN: Duration = Duration::from_millis(50);

/// All lanes together.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct ServerStatus {
    pub(super) rank: u32,
    #[serde(flatten)]
    pub(super) stats: LaneStats,
    /// Operations taken and not answered.
    pub(super) under_way: u64,
    pub(super) calls_kept: u64,
    pub(super) call_bytes: u64,
    pub(super) calls_lent: u64,
    pub(super) calls_lent_kept: u64,
    pub(super) tables: TableStats,
    pub(super) expelled: u64,
    pub(super) credits_free: usize,
    pub(super) credits_total: usize,
    pub(super) spill_blocks_used: usize,
    pub(super) spill_blocks_total: usize,
    pub(super) key_buffers: u64,
    pub(super) quarantined_bytes: u64,
    /// Workers that may be in the middle of a copy into that.
    pub(super) quarantined_for: Vec<Rank>,
    pub(super) stored_bytes: u64,
    pub(super) checkpoint_chunks_left: u64,
    pub(super) checkpoint_bytes: u64,
    /// Each worker's oldest operation here, and lanes that do not answer, the longest wait first.
    pub(super) waits: Vec<Wait>,
    /// What it has of the model, and what for.
    pub(super) shards: Holdings,
    /// To servers that have copies of what is served here, or are to have some.
    pub(super) streams: Vec<StreamStatus>,
    pub(super) streams_connected: u64,
    pub(super) streams_broken: u64,
    /// For how long there has been no scheduler.
    pub(super) scheduler_away_ms: Option<u64>,
}

impl ServerStatus {
    fn streams_down(&self) -> u64 {
        self.streams.iter().filter(|stream| stream.state != StreamState::Up).count() as u64
    }

    /// In one line, for the service manager.
    pub(super) fn line(&self) -> String {
        let (served, copies) = (self.shards.served.chunks, self.shards.copies.chunks);
        let away = self.scheduler_away_ms.map(|ms| format!("; no scheduler for {} s", ms / 1000));
        let rank = self.rank;
        let away = away.unwrap_or_default();
        format!(
            "server {rank}: {served} chunks served, replicas of {copies}, round {}{away}",
            self.stats.newest
        )
    }
}

/// Whom to ask.
#[derive(Clone)]
pub(super) struct Sources {
    pub(super) rank: Rank,
    pub(super) lanes: Vec<Mailbox<LaneMessage>>,
    /// What those told last.
    pub(super) reports: Arc<Reports<LaneReport>>,
    pub(super) member: SharedMember,
    pub(super) standing: Standing,
    pub(super) port: PortWatch,
    /// For tensors' names.
    pub(super) flight: Flight,
}

impl Sources {
    pub(super) fn new(
        rank: Rank,
        lanes: Vec<Mailbox<LaneMessage>>,
        (member, standing): (SharedMember, Standing),
        port: PortWatch,
        flight: Flight,
    ) -> Self {
        Self { rank, lanes, reports: Arc::new(Reports::new(REPORT_WITHIN)), member, standing, port, flight }
    }
}

/// Asks all lanes, and the control side.
pub(super) fn collect(sources: &Sources) -> ServerStatus {
    let (streams, streams_connected, streams_broken) = sources.standing.streams();
    let mut status = ServerStatus {
        rank: sources.rank.0,
        shards: lock(&sources.member).holdings(),
        streams,
        streams_connected,
        streams_broken,
        scheduler_away_ms: sources.standing.away_ms(),
        ..ServerStatus::default()
    };
    let ask = |lane: &Mailbox<LaneMessage>, reply| {
        lane.send(LaneMessage::Report(reply));
    };
    let known = sources.reports.of(&sources.lanes, ask);
    status.waits.extend(lanes::late(&known));
    for report in known.into_iter().filter_map(|lane| lane.told) {
        status.stats = status.stats.plus(&report.stats);
        status.under_way += report.under_way;
        status.calls_kept += report.calls.0;
        status.call_bytes += report.calls.1;
        status.calls_lent += report.lent.requests;
        status.calls_lent_kept += report.lent.kept;
        status.tables = status.tables.plus(&report.tables);
        status.expelled += report.expelled;
        status.credits_free += report.credits.0;
        status.credits_total += report.credits.1;
        status.spill_blocks_used += report.spills.0;
        status.spill_blocks_total += report.spills.1;
        status.key_buffers += u64::from(report.key_buffers);
        status.quarantined_bytes += report.quarantined.0;
        status.quarantined_for.extend(report.quarantined.1);
        status.stored_bytes += report.stored_bytes;
        status.checkpoint_chunks_left += report.saving.0;
        status.checkpoint_bytes = status.checkpoint_bytes.max(report.saving.1);
        status.waits.extend(report.waits.into_iter().map(|waiting| wait(waiting, &sources.flight)));
    }
    status.quarantined_for.sort_unstable();
    status.quarantined_for.dedup();
    status.quarantined_for.truncate(RANKS_LISTED_MAX);
    status.waits.sort_by_key(|wait| Reverse(wait.waited_ms));
    status.waits.truncate(RANKS_LISTED_MAX);
    status
}

fn wait(waiting: Waiting, flight: &Flight) -> Wait {
    let what = waiting.words(&flight.label(waiting.chunk.key));
    let Waiting { rank, waited_ms, cause, on, .. } = waiting;
    Wait { what, of: Some(rank), waited_ms, cause, on }
}

/// The heartbeat's report.
pub(super) fn report(status: &ServerStatus, port: Option<PortReport>) -> MemberReport {
    MemberReport {
        round: status.stats.newest,
        in_flight: status.under_way,
        waits: status.waits.clone(),
        links: Vec::new(),
        resident_bytes: daemon::process::resident_bytes(),
        load: Some(ServerLoad {
            stored_bytes: status.stored_bytes,
            credits_free: status.credits_free as u64,
            credits: status.credits_total as u64,
            spill_blocks_used: status.spill_blocks_used as u64,
            spill_blocks: status.spill_blocks_total as u64,
            quarantined_bytes: status.quarantined_bytes,
            quarantined_for: status.quarantined_for.first().copied(),
        }),
        metrics: Vec::new(),
        port,
    }
}

const COUNTERS: [Series<ServerStatus>; 30] = [
    ("gradwire_server_streams_connected_total", "Streams connected to servers with copies.", |s| {
        s.streams_connected
    }),
    ("gradwire_server_streams_broken_total", "Streams that ended or could not be connected.", |s| {
        s.streams_broken
    }),
    ("gradwire_server_rows_pulled_total", "Rows of sparse tables pulled.", |s| s.tables.pulled),
    ("gradwire_server_rows_pushed_total", "Rows of sparse tables pushed to.", |s| s.tables.pushed),
    ("gradwire_server_rows_left_out_total", "Pushes to rows that were not admitted.", |s| s.tables.left_out),
    ("gradwire_server_rows_evicted_total", "Rows given up for others.", |s| s.tables.evicted),
    ("gradwire_server_calls_total", "Calls taken for handlers.", |s| s.stats.calls),
    (
        "gradwire_server_calls_in_place_total",
        "Calls whose handlers could read them in workers' memory.",
        |s| s.calls_lent,
    ),
    (
        "gradwire_server_calls_copied_total",
        "Calls in workers' memory that were copied when they ended.",
        |s| s.calls_lent_kept,
    ),
    ("gradwire_server_batches_total", "Batches taken from workers.", |s| s.stats.batches),
    ("gradwire_server_contributions_total", "Contributions reduced, one a chunk.", |s| s.stats.contributions),
    ("gradwire_server_contribution_bytes_total", "Payload bytes of contributions.", |s| {
        s.stats.contribution_bytes
    }),
    ("gradwire_server_rounds_total", "Rounds published, one a chunk.", |s| s.stats.rounds),
    ("gradwire_server_answers_total", "Operations answered.", |s| s.stats.answers),
    ("gradwire_server_duplicates_total", "Duplicates recognised and not applied.", |s| s.stats.duplicates),
    ("gradwire_server_late_total", "Contributions dropped because their round was over, one a chunk.", |s| {
        s.stats.late
    }),
    ("gradwire_server_spills_total", "Contributions copied because they came before their turn.", |s| {
        s.stats.spills
    }),
    ("gradwire_server_merged_total", "Contributions that came as a part of another worker's.", |s| {
        s.stats.merged
    }),
    ("gradwire_server_fetches_total", "Contributions read out of workers' memory.", |s| s.stats.fetches),
    ("gradwire_server_in_place_total", "Contributions reduced where workers have them.", |s| {
        s.stats.in_place
    }),
    ("gradwire_server_views_total", "Chunks of weights shown to workers where they lie.", |s| s.stats.views),
    ("gradwire_server_relieved_total", "Rounds that did not wait for workers to copy older weights.", |s| {
        s.stats.relieved
    }),
    ("gradwire_server_placed_total", "Contributions that workers wrote into key buffers.", |s| {
        s.stats.placed
    }),
    ("gradwire_server_retries_total", "Operations sent back to be tried again.", |s| s.stats.retries),
    ("gradwire_server_refusals_total", "Operations refused.", |s| s.stats.refusals),
    ("gradwire_server_malformed_total", "Contributions refused because no codec makes them.", |s| {
        s.stats.malformed
    }),
    ("gradwire_server_deadlines_total", "Operations whose deadline passed.", |s| s.stats.deadlines),
    ("gradwire_server_bad_rounds_total", "Rounds whose values do not fit their type, one a chunk.", |s| {
        s.stats.bad_rounds
    }),
    ("gradwire_server_corrupt_batches_total", "Batches whose payload is not what its checksum says.", |s| {
        s.stats.corrupt_batches
    }),
    ("gradwire_server_expelled_total", "Workers closed for breaking the protocol.", |s| s.expelled),
];

const WAITS: [Series<ServerStatus>; 2] = [
    ("gradwire_server_scheduler_away_seconds", "How long there has been no scheduler.", |s| {
        s.scheduler_away_ms.unwrap_or(0)
    }),
    ("gradwire_server_oldest_wait_seconds", "How long the oldest unanswered operation waits.", |s| {
        // Lanes are no operations.
        s.waits.iter().find(|wait| wait.of.is_some()).map_or(0, |oldest| oldest.waited_ms)
    }),
];

const GAUGES: [Series<ServerStatus>; 18] = [
    ("gradwire_server_checkpoint_chunks_left", "Chunks that the checkpoint under way waits for.", |s| {
        s.checkpoint_chunks_left
    }),
    (
        "gradwire_server_checkpoint_bytes",
        "Bytes of chunks that are copied for a checkpoint and not written yet.",
        |s| s.checkpoint_bytes,
    ),
    ("gradwire_server_chunks_served", "Chunks that it serves.", |s| s.shards.served.chunks),
    ("gradwire_server_chunks_alone", "Chunks that it serves and that have no replica.", |s| {
        s.shards.served.chunks - s.shards.backed.chunks
    }),
    ("gradwire_server_chunks_copying", "Chunks that it serves and whose replica is being made.", |s| {
        s.shards.copying.chunks
    }),
    ("gradwire_server_copies", "Chunks of other servers of which it has the replica.", |s| {
        s.shards.copies.chunks
    }),
    ("gradwire_server_copies_arriving", "Chunks of other servers whose replica is being made here.", |s| {
        s.shards.arriving.chunks
    }),
    (
        "gradwire_server_streams_down",
        "Streams to other servers that are needed and not connected.",
        ServerStatus::streams_down,
    ),
    ("gradwire_server_rows", "Rows of sparse tables that are kept.", |s| s.tables.rows),
    ("gradwire_server_calls_kept", "Calls in progress, or answered and not acknowledged.", |s| s.calls_kept),
    ("gradwire_server_call_bytes", "Bytes of calls that are kept.", |s| s.call_bytes),
    ("gradwire_server_credits_free", "Inbox slots granted to nobody.", |s| s.credits_free as u64),
    ("gradwire_server_credits", "Inbox slots.", |s| s.credits_total as u64),
    ("gradwire_server_spill_blocks_used", "Spill blocks in use.", |s| s.spill_blocks_used as u64),
    ("gradwire_server_spill_blocks", "Spill blocks.", |s| s.spill_blocks_total as u64),
    ("gradwire_server_key_buffers", "Spill blocks that workers may write contributions into.", |s| {
        s.key_buffers
    }),
    ("gradwire_server_quarantined_bytes", "Bytes that peers of ended channels may still be writing.", |s| {
        s.quarantined_bytes
    }),
    ("gradwire_server_stored_bytes", "Bytes of weights, accumulators and optimizer state.", |s| {
        s.stored_bytes
    }),
];

/// All of these; lanes are asked when they are scraped.
pub(super) fn metrics(sources: Sources) -> Result<Scraped<ServerStatus>, prometheus::Error> {
    Scraped::new(move || collect(&sources), &COUNTERS, &GAUGES, &WAITS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::member::{Member, MemberConfig};
    use fabric::{LaneQueue, Letters};
    use proto_common::config::Settings;
    use proto_common::ids::{Incarnation, Role};
    use proto_common::message::WaitCause;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Instant;

    const PATIENCE: Duration = Duration::from_secs(30);

    fn sources() -> (Sources, Letters<LaneMessage>) {
        let (mailbox, letters) = Mailbox::new(LaneQueue::new(4).unwrap().waker());
        let shape = Settings::default().shape();
        let config = MemberConfig { rank: Rank(0), incarnation: Incarnation(1), shape };
        let (devices, _) = daemon::devices::open(&Settings::default()).unwrap();
        let own = (Arc::new(Mutex::new(Member::new(config))), Standing::default());
        let flight = Flight::embedded(Role::Server, &Settings::default());
        (Sources::new(Rank(0), vec![mailbox], own, PortWatch::new(&devices), flight), letters)
    }

    /// Answers until somebody has heard it; then its thread is stuck.
    fn answer(sources: &Sources, letters: &Letters<LaneMessage>) -> ServerStatus {
        let stats = LaneStats { newest: 7, ..LaneStats::default() };
        let told = LaneReport { stats, under_way: 2, stored_bytes: 64, ..LaneReport::default() };
        let asked = AtomicBool::new(true);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while asked.load(Ordering::Acquire) {
                    if let Ok(LaneMessage::Report(reply)) = letters.try_recv() {
                        reply.send(told.clone());
                    }
                    std::thread::yield_now();
                }
            });
            let deadline = Instant::now() + PATIENCE;
            let status = loop {
                let status = collect(sources);
                if status.stats.newest == 7 {
                    break status;
                }
                assert!(Instant::now() < deadline, "the lane answers");
            };
            asked.store(false, Ordering::Release);
            status
        })
    }

    #[test]
    fn a_stuck_lane_counts_with_what_it_told_last_and_is_named_among_the_waits() {
        let (sources, letters) = sources();
        let first = report(&answer(&sources, &letters), None);
        assert_eq!((first.round, first.in_flight, first.waits.len()), (7, 2, 0));
        let deadline = Instant::now() + PATIENCE;
        loop {
            let later = report(&collect(&sources), None);
            assert_eq!((later.round, later.in_flight), (7, 2), "no zeros");
            assert_eq!(later.load, first.load);
            if let Some(wait) = later.waits.first() {
                assert_eq!((&wait.what[..], wait.cause), ("lane 0 did not answer", WaitCause::Lane));
                break;
            }
            assert!(Instant::now() < deadline, "it is late by now");
        }
    }
}
