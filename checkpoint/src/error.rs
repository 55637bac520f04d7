//! Errors of checkpoints, with their cause and what to do about it.

use proto_common::error::ExitCode;
use std::io;
use thiserror::Error;

/// Why a checkpoint cannot be written, found or read.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "a name that says it all needs no sentence")]
pub enum CheckpointError {
    /// The operating system or the object store returned an error.
    #[error(
        "cannot {what} {file}: {source}; check that the directory exists, its permissions and its free space"
    )]
    Io { what: &'static str, file: String, source: io::Error },
    /// There is no complete checkpoint of this name.
    #[error(
        "no complete checkpoint {name:?} in {place}; `gradwire checkpoint list {place}` lists the complete ones"
    )]
    Missing { name: String, place: String },
    /// The name is not valid.
    #[error(
        "invalid checkpoint name {name:?}: names look like job-0/round-000000120 or round-000000120, as `gradwire checkpoint list` shows them"
    )]
    BadName { name: String },
    /// The job's checkpoints belong to another scheduler.
    #[error(
        "another scheduler of this job owns the checkpoints in {place}: {by}; stop it first, or give one of the two jobs another number (job) or another checkpoint.directory"
    )]
    Owned { place: String, by: String },
    /// This scheduler owned the job's checkpoints, and another scheduler has replaced it.
    #[error(
        "another scheduler of this job has taken over the checkpoints in {place}: {by}; this scheduler no longer writes or removes checkpoints. If both are to run, give one of the two jobs another number (job) or another checkpoint.directory"
    )]
    Deposed { place: String, by: String },
    /// The place is not usable.
    #[error("cannot store checkpoints at {place}: {why}")]
    BadPlace { place: String, why: String },
    /// The file was written by another program or another release.
    #[error(
        "{file} is not a checkpoint file of this release: {why}; use another checkpoint, or the release that wrote it"
    )]
    Foreign {
        file: String,
        /// How it differs from a checkpoint file.
        why: String,
    },
    /// The file is missing, or its content has changed since it was written.
    #[error(
        "{file} is damaged: {why}; restore it from a copy, or set checkpoint.restore to an earlier checkpoint (`gradwire checkpoint verify` finds the intact ones)"
    )]
    Corrupt { file: String, why: String },
    /// The newest checkpoint cannot be determined.
    #[error(
        "cannot determine the newest checkpoint, because {name} may be it and cannot be read: {why}; set checkpoint.restore to the name of the checkpoint to restore, or delete this one (`gradwire checkpoint delete {place} {name}`)"
    )]
    Unclear { name: String, place: String, why: Box<CheckpointError> },
    /// The checkpoint has chunks of another length than the cluster.
    #[error(
        "checkpoint {name} was written with cluster.chunk_bytes = {theirs}, but this cluster has {ours}; set cluster.chunk_bytes to {theirs}"
    )]
    ChunkBytes { name: String, theirs: u64, ours: u64 },
    /// A tensor is declared differently than in the checkpoint.
    #[error(
        "{tensor} is declared as {ours}, but as {theirs} in checkpoint {name}; declare it as in the checkpoint, and change its rule afterwards"
    )]
    OtherSpec { tensor: String, name: String, ours: String, theirs: String },
    /// The header of a part would be longer than a safetensors file may have.
    #[error(
        "a checkpoint part with {chunks} chunks needs a header of {header_bytes} bytes, more than a safetensors file may have; raise cluster.lanes, cluster.servers or cluster.chunk_bytes"
    )]
    TooManyChunks { chunks: u64, header_bytes: u64 },
    /// The data to write differ from their description: a bug.
    #[error("internal error while writing a checkpoint: {0}")]
    Plan(String),
}

impl CheckpointError {
    /// The exit code of a program that this error ends.
    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Io { .. } => ExitCode::Io,
            Self::BadName { .. } | Self::BadPlace { .. } => ExitCode::Usage,
            Self::Owned { .. } | Self::Deposed { .. } => ExitCode::Refused,
            Self::Unclear { why, .. } => why.exit_code(),
            _ => ExitCode::BadData,
        }
    }

    pub(crate) fn io(what: &'static str, file: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { what, file: file.into(), source }
    }

    pub(crate) fn corrupt(file: &str, why: impl Into<String>) -> Self {
        Self::Corrupt { file: file.into(), why: why.into() }
    }

    pub(crate) fn foreign(file: &str, why: impl Into<String>) -> Self {
        Self::Foreign { file: file.into(), why: why.into() }
    }
}
