//! What a laboratory's cluster is like: its size, its clocks, its network, and how much goes wrong.

use fabric::sim::{Rng, SimFaults};
use proto_common::config::WorkerLoss;
use proto_common::message::ClusterShape;
use proto_common::mode::Mode;

/// Bytes of a chunk: the smallest that there is.
pub(super) const CHUNK_BYTES: u64 = 4096;

/// See the module.
#[derive(Clone, Debug)]
pub struct LabShape {
    /// Servers at the start.
    pub servers: u32,
    /// Servers that there may be.
    pub places: u32,
    /// Workers.
    pub workers: u32,
    /// Copies of each chunk.
    pub replicas: u32,
    /// Rounds that each worker trains.
    pub rounds: u64,
    /// Slots of each server's inbox.
    pub inbox_slots: u32,
    /// Slots of each worker's inbox, per server.
    pub result_slots: u32,
    /// Spill blocks of each server.
    pub spill_blocks: u32,
    /// The network of the data paths.
    pub faults: SimFaults,
    /// The longest way of a control message, in microseconds.
    pub control_us: u64,
    /// Most time between two stages of connecting, in microseconds.
    pub bootstrap_us: u64,
    /// Most that a member's clock is fast or slow, in millionths.
    pub skew_ppm: u64,
    /// What happens how often.
    pub plan: Plan,
}

/// How many faults of each kind happen while training goes on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plan {
    /// All faults are over by then, in microseconds since training began.
    pub horizon_us: u64,
    /// Data channels between two processes that break.
    pub breaks: u32,
    /// Pairs of processes that cannot reach each other's data paths for a while.
    pub partitions: u32,
    /// Members that the scheduler cannot hear, or that cannot hear it, for less than makes them dead.
    pub silences: u32,
    /// Members that do nothing for a while.
    pub pauses: u32,
    /// Servers that die.
    pub server_crashes: u32,
    /// Members that are cut off from the scheduler until it declares them dead, and live.
    pub deposed: u32,
    /// Lives of the scheduler that end.
    pub scheduler_crashes: u32,
    /// Servers that come.
    pub joins: u32,
    /// Servers that wish to go.
    pub drains: u32,
    /// Workers that die and come again.
    pub worker_crashes: u32,
}

impl LabShape {
    /// A cluster drawn from a seed, whose plan is empty.
    #[must_use]
    pub fn drawn(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x1AB0_5A9E);
        let servers = rng.within(2, 3) as u32;
        Self {
            servers,
            places: servers,
            workers: rng.within(1, 3) as u32,
            replicas: 0,
            rounds: rng.within(4, 10),
            inbox_slots: rng.within(2, 10) as u32,
            result_slots: rng.within(1, 4) as u32,
            spill_blocks: rng.within(1, 12) as u32,
            faults: SimFaults::rough(),
            control_us: [200, 2_000, 20_000][rng.below(3) as usize],
            bootstrap_us: 300,
            skew_ppm: 50_000,
            plan: Plan::default(),
        }
    }

    pub(super) fn cluster(&self) -> ClusterShape {
        ClusterShape {
            workers: self.workers,
            servers: self.servers,
            chunk_bytes: CHUNK_BYTES,
            lanes: 1,
            deterministic: true,
            mode: Mode::Sync,
            backup_workers: 0,
            heartbeat_ms: 50,
            silence_ms: 500,
            replicas: self.replicas,
            server_places: self.places,
            worker_loss: if self.plan.worker_crashes > 0 { WorkerLoss::Wait } else { WorkerLoss::Stop },
            workers_min: 1,
            scheduler_ms: if self.plan.scheduler_crashes > 0 { 30_000 } else { 0 },
        }
    }
}
