//! What the lane's engine is given: its configuration, and batches and records, with their addresses. It must not decide anything.

use proto_common::batch::{BatchHeader, Block, SlotGrant};
use proto_common::config::WorkerLoss;
use proto_common::ids::{Incarnation, JobId, Lane, Rank};

/// The configuration of the engine.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "a name that says it all needs no sentence")]
pub struct EngineConfig {
    pub job: JobId,
    /// The incarnation of this server's process.
    pub incarnation: Incarnation,
    pub lane: Lane,
    /// How many workers contribute to a round.
    pub workers: u32,
    /// Fold contributions in rank order.
    pub deterministic: bool,
    pub inbox_slots: u32,
    pub spill_blocks: u32,
    /// Weights of at most this many bytes travel in the result batch.
    pub carried_bytes_max: u64,
    /// What the failure of a worker means for rounds. If rounds wait for the worker, the version before the one in force is kept, for
    /// pulls that ask for exactly that version.
    pub worker_loss: WorkerLoss,
}

/// A batch, with its slot and its header.
#[derive(Clone, Copy, Debug)]
pub struct BatchContext<'a> {
    /// The worker whose channel it came over.
    pub peer: Rank,
    /// The slot it lies in.
    pub slot: SlotGrant,
    /// Its header.
    pub header: &'a BatchHeader,
    /// Its blocks.
    pub blocks: &'a [Block],
    /// Slots of the worker's inbox that it grants again.
    pub grants: &'a [SlotGrant],
}

/// A record, with its slot and its header.
#[derive(Clone, Copy, Debug)]
pub struct RecordContext<'a> {
    /// The server whose stream it came over.
    pub from: Rank,
    /// The slot it lies in.
    pub slot: SlotGrant,
    /// Its header.
    pub header: &'a BatchHeader,
    /// Its blocks.
    pub blocks: &'a [Block],
    /// Words of the set of contributors.
    pub contributors: &'a [u64],
}
