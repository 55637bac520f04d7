//! The reasons why a lane cannot continue. It must not decide what follows from it.

use crate::storage::StorageError;
use fabric::{FabricError, OutOfBounds, PostError};
use proto_common::ids::{Key, Rank};
use proto_common::message::NotTaken;
use thiserror::Error;

/// A lane cannot continue. A bug of ours or an exhausted machine: peers cannot cause it, but by using what the settings
/// promise them and the machine does not have.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "a name that says it all needs no sentence")]
pub enum LaneError {
    /// Storage failed.
    #[error("{0}")]
    Storage(#[from] StorageError),
    /// Memory or channel could not be set up.
    #[error("{0}")]
    Fabric(#[from] FabricError),
    /// What workers are sent, or send, cannot be registered.
    #[error("{0}")]
    Unregistered(String),
    /// The channel refused.
    #[error(transparent)]
    Post(#[from] PostError),
    /// A place that is not where it should be.
    #[error(transparent)]
    Bounds(#[from] OutOfBounds),
    /// A new rule for rounds that are over: parts of the tensor would have it earlier than others.
    #[error(
        "tensor {key} has completed round {round}, so its optimizer cannot change from that round on; pass a later round"
    )]
    RuleTooLate { key: Key, round: u64 },
    /// The checkpoint that the job continues from cannot be used.
    #[error(transparent)]
    Checkpoint(#[from] checkpoint::CheckpointError),
    /// Rows that this server has copies of cannot be what their server has.
    #[error("cannot update the replica of the rows of sparse tables: {0}")]
    Copy(String),
    /// Its thread panicked.
    #[error("the data thread of lane {lane} panicked; please report it with the log lines before")]
    Panicked { lane: u16 },
    /// A worker cannot be attached.
    #[error("cannot attach worker {rank}: {reason}")]
    Attach { rank: Rank, reason: String },
}

impl From<LaneError> for NotTaken {
    fn from(error: LaneError) -> Self {
        let is_checkpoint = matches!(error, LaneError::Checkpoint(_));
        Self { reason: error.to_string(), is_checkpoint }
    }
}
