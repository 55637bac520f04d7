//! A lane over the simulated fabric, for tests of what a lane does beside its engine.

use super::lane::{DataLane, LaneConfig};
use crate::engine::EngineConfig;
use fabric::sim::{SimNet, SimQueue};
use proto_common::config::WorkerLoss;
use proto_common::ids::{Incarnation, JobId, Lane, Rank};

pub(super) fn lane(net: &SimNet, rank: u32, chunk_bytes: u64) -> DataLane<SimQueue> {
    let node = net.node(&format!("server {rank}"));
    let engine = EngineConfig {
        job: JobId(7),
        incarnation: Incarnation(1),
        lane: Lane(0),
        workers: 1,
        deterministic: true,
        inbox_slots: 4,
        result_slot_bytes: 0,
        spill_blocks: 4,
        keep_previous: false,
        worker_loss: WorkerLoss::Stop,
    };
    let config = LaneConfig { engine, rank: Rank(rank), chunk_bytes };
    DataLane::new(net.create_cq(node), config).unwrap()
}
