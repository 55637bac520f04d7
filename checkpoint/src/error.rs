//! What can be wrong with a checkpoint, and what to do about it.

use proto_common::error::ExitCode;
use std::io;
use thiserror::Error;

/// A checkpoint that cannot be written, found or read.
#[derive(Debug, Error)]
pub enum CheckpointError {
    /// The system says no.
    #[error(
        "cannot {what} {file}: {source}; check that the directory exists, its permissions and its free space"
    )]
    Io {
        /// What was tried.
        what: &'static str,
        /// With which file.
        file: String,
        /// The system's words.
        source: io::Error,
    },
    /// There is none of this name.
    #[error(
        "no complete checkpoint {name:?} in {place}; `gradwire checkpoint list {place}` lists the complete ones"
    )]
    Missing {
        /// Its name.
        name: String,
        /// Where it was looked for.
        place: String,
    },
    /// A name that no checkpoint has.
    #[error(
        "invalid checkpoint name {name:?}: names look like job-0/round-000000120 or round-000000120, as `gradwire checkpoint list` shows them"
    )]
    BadName {
        /// The name.
        name: String,
    },
    /// The job's checkpoints belong to another scheduler.
    #[error(
        "another scheduler of this job owns the checkpoints in {place}: {by}; stop it first, or give one of the two jobs another number (job) or another checkpoint.directory"
    )]
    Owned {
        /// The job's place.
        place: String,
        /// Who owns it.
        by: String,
    },
    /// They did belong to this one.
    #[error(
        "another scheduler of this job has taken over the checkpoints in {place}: {by}; this scheduler no longer writes or removes checkpoints. If both are to run, give one of the two jobs another number (job) or another checkpoint.directory"
    )]
    Deposed {
        /// The job's place.
        place: String,
        /// Who owns it now.
        by: String,
    },
    /// A place that this build cannot reach.
    #[error("cannot keep checkpoints at {place}: {why}")]
    BadPlace {
        /// The place.
        place: String,
        /// Why not.
        why: String,
    },
    /// The file is of somebody else, or of another release.
    #[error(
        "{file} is not a checkpoint file of this release: {why}; use another checkpoint, or the release that wrote it"
    )]
    Foreign {
        /// Which file.
        file: String,
        /// What it has that it should not have.
        why: String,
    },
    /// The file was complete once, and is not any more.
    #[error(
        "{file} is damaged: {why}; restore it from a copy, or set checkpoint.restore to an earlier checkpoint (`gradwire checkpoint verify` finds the intact ones)"
    )]
    Corrupt {
        /// Which file.
        file: String,
        /// What is wrong.
        why: String,
    },
    /// Which one is the newest cannot be said.
    #[error(
        "cannot determine the newest checkpoint, because {name} may be it and cannot be read: {why}; set checkpoint.restore to the name of the checkpoint to restore, or delete this one (`gradwire checkpoint delete {place} {name}`)"
    )]
    Unclear {
        /// The one that cannot be read.
        name: String,
        /// Where it is.
        place: String,
        /// Why it cannot be read.
        why: Box<CheckpointError>,
    },
    /// The checkpoint's grid of chunks is not the cluster's.
    #[error(
        "checkpoint {name} was written with cluster.chunk_bytes = {theirs}, this cluster has {ours}: set it to {theirs}"
    )]
    ChunkBytes {
        /// The checkpoint.
        name: String,
        /// Its chunks' bytes.
        theirs: u64,
        /// The cluster's.
        ours: u64,
    },
    /// A tensor is declared otherwise than it was.
    #[error(
        "{tensor} is declared as {ours}, but checkpoint {name} has it as {theirs}: declare it as in the checkpoint, and change its rule afterwards"
    )]
    OtherSpec {
        /// The tensor, as messages name it.
        tensor: String,
        /// The checkpoint.
        name: String,
        /// As declared now.
        ours: String,
        /// As it was.
        theirs: String,
    },
    /// One part's header would be longer than its readers take it.
    #[error(
        "a part with {chunks} chunks would need {header_bytes} bytes of header, more than a safetensors file may have; raise cluster.lanes, cluster.servers or cluster.chunk_bytes"
    )]
    TooManyChunks {
        /// Chunks of the part.
        chunks: u64,
        /// What its header would need.
        header_bytes: u64,
    },
    /// What is to be written does not fit what was said of it: a bug.
    #[error("internal error while writing a checkpoint: {0}")]
    Plan(String),
}

impl CheckpointError {
    /// What a program that cannot go on for it ends with.
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
