//! A lane over the simulated fabric, or another one, for tests of what a lane does beside its engine.

use super::lane::{DataLane, LaneConfig};
use crate::engine::EngineConfig;
use crate::space::Space;
use fabric::CompletionQueue;
use fabric::sim::{SimNet, SimQueue};
use proto_common::config::WorkerLoss;
use proto_common::ids::{Incarnation, JobId, Lane, Rank};

pub(super) fn lane(net: &SimNet, rank: u32, chunk_bytes: u64) -> DataLane<SimQueue> {
    let node = net.node(&format!("server {rank}"));
    lane_over(net.create_cq(node), rank, (1, 4), chunk_bytes)
}

/// A lane for so many workers, with so many slots.
pub(super) fn lane_over<Q: CompletionQueue>(
    queue: Q,
    rank: u32,
    (workers, inbox_slots): (u32, u32),
    chunk_bytes: u64,
) -> DataLane<Q> {
    let engine = EngineConfig {
        job: JobId(7),
        incarnation: Incarnation(1),
        lane: Lane(0),
        workers,
        deterministic: true,
        inbox_slots,
        spill_blocks: 4,
        carried_bytes_max: 0,
        worker_loss: WorkerLoss::Stop,
    };
    let config = LaneConfig { engine, rank: Rank(rank), chunk_bytes, space: Space::default() };
    DataLane::new(queue, config).unwrap()
}
