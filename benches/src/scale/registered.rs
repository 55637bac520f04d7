//! What nodes really register, counted by the simulated fabric under the real runtimes: one server with W workers
//! connected, one worker with S servers.

use super::message::{EPOCH, JOB};
use super::server;
use super::shape::Shape;
use super::worker::{self, GATHER_MAX};
use fabric::Pool;
use fabric::sim::{SimFaults, SimNet};
use gradwire_server::engine::EngineConfig as ServerEngine;
use gradwire_server::runtime::{DataLane, LaneConfig as ServerConfig, WorkerInbox};
use gradwire_server::space::Space;
use gradwire_worker::engine::EngineConfig as WorkerEngine;
use gradwire_worker::runtime::{LaneConfig as WorkerConfig, LaneDriver};
use proto_common::batch::SlotGrant;
use proto_common::config::WorkerLoss;
use proto_common::ids::{Lane, Rank};
use proto_common::limits::{IN_FLIGHT_MAX, RESULT_SLOT_BYTES, RESULT_SLOTS};

/// Bytes of a worker's buffers here: they are the trainer's model, and not counted.
const POOL_BYTES: u64 = 1 << 20;

/// Bytes that W workers can address at one server once they are all connected.
pub(crate) fn server_bytes(shape: &Shape) -> anyhow::Result<u64> {
    let settings = shape.settings();
    let net = SimNet::new(1, SimFaults::default());
    let (node, peer) = (net.node("server"), net.node("workers"));
    let engine = ServerEngine {
        job: JOB,
        incarnation: server::life(0),
        lane: Lane(0),
        workers: shape.workers,
        deterministic: shape.is_deterministic,
        inbox_slots: settings.memory.inbox_slots,
        spill_blocks: shape.spill_blocks(),
        carried_bytes_max: 0,
        worker_loss: WorkerLoss::Stop,
    };
    let (chunk_bytes, space) = (shape.chunk_bytes, Space::default());
    let config = ServerConfig { engine, rank: Rank(0), chunk_bytes, space };
    let mut lane = DataLane::new(net.create_cq(node), config)?;
    lane.assign(EPOCH, &[])?;
    let workers = net.create_cq(peer);
    for rank in 0..shape.workers {
        let (channel, _) = net.connect(lane.queue_mut(), &workers);
        let grants = (0..RESULT_SLOTS).map(|slot| SlotGrant { slot, generation: 1 }).collect();
        let inbox = WorkerInbox { region: 0, offset: 0, slot_bytes: RESULT_SLOT_BYTES, grants };
        lane.adopt(Rank(rank), worker::life(rank), channel, inbox)?;
    }
    Ok(net.stats(node).registered_bytes_peak)
}

/// Bytes that S servers can address at one worker, its tensors' buffers apart.
pub(crate) fn worker_bytes(shape: &Shape) -> anyhow::Result<u64> {
    let net = SimNet::new(1, SimFaults::default());
    let (node, peer) = (net.node("worker"), net.node("servers"));
    let engine = WorkerEngine {
        job: JOB,
        incarnation: worker::life(0),
        lane: Lane(0),
        rank: Rank(0),
        servers: shape.servers,
        gather_max: GATHER_MAX,
        in_flight_max: IN_FLIGHT_MAX,
        keeps_calls: false,
    };
    let pool = Pool::new(POOL_BYTES, "scale-worker")?;
    let config = WorkerConfig { engine, result_slots: RESULT_SLOTS };
    let mut lane = LaneDriver::new(net.create_cq(node), config, pool.region().clone())?;
    let servers = net.create_cq(peer);
    for rank in 0..shape.servers {
        let (_, channel) = net.connect(&servers, lane.queue_mut());
        lane.attach(Rank(rank), 1, channel)?;
    }
    Ok(net.stats(node).registered_bytes_peak - pool.region().len() as u64)
}
