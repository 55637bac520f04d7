//! One server's lane and one worker's over a simulated network, with one tensor between them, for tests that put a queue
//! of their own in the way. It must not decide what they do.

use fabric::{ChannelId, CompletionQueue, Region};
use gradwire_server::engine::{ChunkSpec, EngineConfig as ServerEngine};
use gradwire_server::runtime::{DataLane, LaneConfig as ServerConfig, WorkerInbox};
use gradwire_server::space::Space;
use gradwire_worker::engine::EngineConfig as WorkerEngine;
use gradwire_worker::runtime::{LaneConfig as WorkerConfig, LaneDriver, ServerInbox};
use proto_common::batch::SlotGrant;
use proto_common::codec::Codec;
use proto_common::config::WorkerLoss;
use proto_common::element::Dtype;
use proto_common::ids::{ChunkId, Epoch, Incarnation, JobId, Lane, Rank};
use proto_common::limits::CARRIED_BYTES_MAX;
use proto_common::message::InboxGrant;
use proto_common::mode::Mode;
use proto_common::optimizer::Optimizer;

const EPOCH: Epoch = Epoch { term: 1, counter: 1 };
const SERVER: Incarnation = Incarnation(1);
const WORKER: Incarnation = Incarnation(2);
const JOB: JobId = JobId(7);
const LANE: Lane = Lane(0);

/// The server's lane, with chunks of tensor 1 that have so many bytes each.
#[must_use]
pub fn server<Q: CompletionQueue>(queue: Q, chunk_bytes: u64, chunks: &[u64]) -> DataLane<Q> {
    let engine = ServerEngine {
        job: JOB,
        incarnation: SERVER,
        lane: LANE,
        workers: 1,
        deterministic: true,
        inbox_slots: 4,
        spill_blocks: 4,
        carried_bytes_max: CARRIED_BYTES_MAX,
        worker_loss: WorkerLoss::Stop,
    };
    let config = ServerConfig { engine, rank: Rank(0), chunk_bytes, space: Space::default() };
    let mut server = DataLane::new(queue, config).unwrap();
    let optimizer = Optimizer::assign();
    let spec = |(index, bytes): (usize, &u64)| {
        let id = ChunkId::new(1, index as u32);
        ChunkSpec {
            id,
            bytes: *bytes,
            dynamic: false,
            dtype: Dtype::F32,
            codec: Codec::Plain,
            optimizer,
            mode: Mode::Sync,
            backup_workers: 0,
        }
    };
    server.assign(EPOCH, &chunks.iter().enumerate().map(spec).collect::<Vec<_>>()).unwrap();
    server
}

/// The worker's lane, whose weights land in `landing`.
#[must_use]
pub fn worker<Q: CompletionQueue>(queue: Q, landing: Region) -> LaneDriver<Q> {
    let engine = WorkerEngine {
        job: JOB,
        incarnation: WORKER,
        lane: LANE,
        rank: Rank(0),
        servers: 1,
        gather_max: 16,
        in_flight_max: 100,
        keeps_calls: false,
    };
    let config = WorkerConfig { engine, result_slots: 4 };
    let mut worker = LaneDriver::new(queue, config, landing).unwrap();
    worker.set_epoch(EPOCH);
    worker
}

/// Attaches both ends of a channel, the server's named first, as far as it goes; with checksums of payloads or without.
pub fn join<S: CompletionQueue, W: CompletionQueue>(
    server: &mut DataLane<S>,
    worker: &mut LaneDriver<W>,
    (theirs, ours): (ChannelId, ChannelId),
    sums: bool,
) -> Result<(), String> {
    let grant = worker.attach(Rank(0), 0, ours).map_err(|error| error.to_string())?;
    let grants = slots(&grant);
    let InboxGrant { region, offset, slot_bytes, .. } = grant;
    let inbox = WorkerInbox { region, offset, slot_bytes, grants };
    let grant = server.adopt(Rank(0), WORKER, theirs, inbox).map_err(|error| error.to_string())?;
    let grants = slots(&grant);
    let InboxGrant { region, offset, slot_bytes, .. } = grant;
    if sums {
        worker.sum_payloads(Rank(0));
    }
    let inbox = ServerInbox { region, offset, slot_bytes, grants };
    worker.activate(Rank(0), SERVER, inbox).map_err(|error| error.to_string())
}

fn slots(grant: &InboxGrant) -> Vec<SlotGrant> {
    grant.grants.iter().map(|wire| SlotGrant::from_wire(*wire).unwrap()).collect()
}
