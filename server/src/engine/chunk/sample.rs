//! A chunk for the unit tests of what works on chunks. No product code.

use super::Chunk;
use crate::engine::inputs::EngineConfig;
use crate::engine::spec::ChunkSpec;
use proto_common::codec::Codec;
use proto_common::config::WorkerLoss;
use proto_common::element::Dtype;
use proto_common::ids::{ChunkId, Incarnation, JobId, Lane};
use proto_common::mode::Mode;
use proto_common::optimizer::Optimizer;

impl EngineConfig {
    /// Of a lane with two workers, one slot and one spill block.
    pub(in crate::engine) fn sample() -> Self {
        Self {
            job: JobId(1),
            incarnation: Incarnation(1),
            lane: Lane(0),
            workers: 2,
            deterministic: false,
            inbox_slots: 1,
            spill_blocks: 1,
            worker_loss: WorkerLoss::Stop,
        }
    }
}

impl Chunk {
    /// Chunk 0 of a key, of four numbers, in mode sync.
    pub(in crate::engine) fn sample(key: u64) -> Self {
        let spec = ChunkSpec {
            id: ChunkId::new(key, 0),
            bytes: 16,
            dynamic: false,
            dtype: Dtype::F32,
            codec: Codec::Plain,
            optimizer: Optimizer::sum(),
            mode: Mode::Sync,
            backup_workers: 0,
        };
        Self::new(spec, &EngineConfig::sample())
    }
}
