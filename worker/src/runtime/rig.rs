//! What tests of lanes start from: a driver with nobody connected, and an operation that nobody answers.
#![allow(clippy::unwrap_used, reason = "test code: a panic is a failed test")]

use super::{LaneConfig, LaneDriver, OpState, Submission};
use crate::engine::{EngineConfig, PartSpec, Submit};
use fabric::{CompletionQueue, LaneQueue, Pool, Region};
use proto_common::batch::{Count, OpKind, Reading};
use proto_common::element::Dtype;
use proto_common::ids::{ChunkId, Incarnation, JobId, Lane, Operation, Rank};
use proto_common::plan::Placement;
use std::sync::Arc;

pub(crate) fn driver(index: u16) -> LaneDriver<LaneQueue> {
    let pool = Pool::new(1 << 20, "gradwire-test").unwrap();
    driver_over(LaneQueue::new(64).unwrap(), (index, 1), pool.region())
}

/// A lane for so many servers, with buffers in this region.
pub(crate) fn driver_over<Q: CompletionQueue>(
    queue: Q,
    (index, servers): (u16, u32),
    buffers: &Region,
) -> LaneDriver<Q> {
    let config = LaneConfig { engine: engine(index, servers), result_slots: 1 };
    LaneDriver::new(queue, config, buffers.clone()).unwrap()
}

/// The engine of a lane for so many servers.
pub(crate) fn engine(index: u16, servers: u32) -> EngineConfig {
    EngineConfig {
        job: JobId(1),
        incarnation: Incarnation(1),
        lane: Lane(index),
        rank: Rank(0),
        servers,
        gather_max: 8,
        in_flight_max: 8,
        keeps_calls: false,
    }
}

/// A push of one chunk to server 0.
pub(crate) fn submission(op: u64, state: Arc<OpState>) -> Submission {
    let part = PartSpec { id: ChunkId::new(op, 0), server: Rank(0), offset: 0, bytes: 4, coded: None };
    let submit = Submit {
        op,
        kind: OpKind::Push,
        dtype: Dtype::F32,
        payload: false,
        placement: Placement::Slot,
        operation: Operation(1),
        view: false,
        exact: false,
        reading: Reading::default(),
        count: Count::Round(1),
        priority: 0,
        timeout_ms: 600_000,
        busy_ms: 0,
        by_chunk: false,
    };
    Submission { state, submit, parts: [part].into(), source: None, target: None }
}
