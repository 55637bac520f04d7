//! What scheduler and servers say to each other about checkpoints. One is known by its round.

use crate::ids::ChunkId;
use crate::table::TableSpec;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// What the scheduler tells servers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum CheckpointOrder {
    /// Copy every chunk as it was when this version was published, and write it.
    Save {
        /// The version.
        round: u64,
        /// As the chunks are at this moment: who asks knows that nothing is under way.
        now: bool,
    },
    /// Some tensors have gone two rounds further: those without a contribution since take no part in training, and are copied
    /// as they are.
    Passed {
        /// The checkpoint.
        round: u64,
    },
    /// Nothing comes of it: stop copying and writing.
    Drop {
        /// The checkpoint.
        round: u64,
    },
}

/// Chunks of a part, next to one another, of the same version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cover {
    /// The first.
    pub first: ChunkId,
    /// How many.
    pub chunks: u32,
    /// Their version.
    pub version: u64,
}

/// A part that lies in its place.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PartWritten {
    /// The checkpoint.
    pub round: u64,
    /// Which lane's part it is.
    pub lane: u16,
    /// Its file.
    pub file: String,
    /// Its bytes.
    pub bytes: u64,
    /// The checksum of all of it.
    pub crc32c: u32,
    /// The checksum of its header and table.
    pub index_crc32c: u32,
    /// The chunks in it.
    pub covers: Vec<Cover>,
    /// The tables in it, with their rows.
    pub tables: Vec<(TableSpec, u64)>,
}

/// What servers tell the scheduler.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum CheckpointNews {
    /// A chunk has come to a round of which a checkpoint is written: all servers are to begin.
    Begun {
        /// The round.
        round: u64,
    },
    /// A chunk has gone two rounds further than that.
    Passed {
        /// The round.
        round: u64,
    },
    /// A part is there.
    Part(PartWritten),
    /// Nothing comes of it.
    Failed {
        /// The round.
        round: u64,
        /// Why not.
        reason: String,
    },
}

/// Why a checkpoint that was asked for was not written.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
pub enum SaveError {
    /// There is no place for it.
    #[error(
        "no checkpoint can be written: checkpoint.directory is not set at the scheduler; set it for all processes"
    )]
    NoPlace,
    /// It was begun, and something went wrong.
    #[error("checkpoint of round {round} was not written: {reason}")]
    Failed {
        /// The round.
        round: u64,
        /// Why.
        reason: String,
    },
    /// It takes longer than its asker waits. It may be complete later.
    #[error(
        "checkpoint of round {round} is not complete after {waited_ms} ms: {missing} of {parts} parts are missing; ask with a longer timeout, or look at the servers' logs"
    )]
    Deadline {
        /// The round.
        round: u64,
        /// How long was waited.
        waited_ms: u64,
        /// Parts that have not come.
        missing: u64,
        /// Parts that it is to have.
        parts: u64,
    },
    /// The cluster is not complete, or ends.
    #[error("{0}")]
    NotNow(String),
}
