//! Messages between scheduler and servers about checkpoints. A checkpoint is identified by its round.

use crate::ids::{ChunkId, Rank};
use crate::table::TableSpec;
use serde::{Deserialize, Serialize};
use std::fmt;
use thiserror::Error;

/// Parts that an error names; further ones are counted.
pub const WAITING_LISTED_MAX: usize = 8;

/// Orders of the scheduler to servers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum CheckpointOrder {
    /// Copy every chunk as it was when this version was published, and write it.
    Save {
        /// The version.
        round: u64,
        /// Copy the chunks as they are now: the requester knows that nothing is in flight.
        now: bool,
    },
    /// Some tensors are two rounds further. Tensors without a contribution since then take no part in training, and
    /// are copied as they are.
    Passed {
        /// The checkpoint.
        round: u64,
    },
    /// Abandoned: stop copying and writing.
    Drop {
        /// The checkpoint.
        round: u64,
    },
    /// From a scheduler that knows of no checkpoint: abandon any that is in progress.
    Reset,
    /// Report the version of each lane, and what a checkpoint waits for there. Answered by `At`.
    Where,
}

/// What a checkpoint waits for on a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waits {
    /// The checkpoint.
    pub round: u64,
    /// Chunks that are not copied yet.
    pub left: u32,
    /// The chunk with the oldest version.
    pub chunk: ChunkId,
    /// Its version.
    pub version: u64,
}

/// A missing part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    /// The server.
    pub server: Rank,
    /// The lane.
    pub lane: u16,
    /// What it waits for, as far as known: chunks, or else the writing of the file.
    pub waits: Option<Waits>,
}

impl Waiting {
    /// The first of the missing parts, as text.
    #[must_use]
    pub fn list(waiting: &[Self], missing: u64) -> String {
        let named: Vec<String> = waiting.iter().map(Self::to_string).collect();
        match missing.saturating_sub(waiting.len() as u64) {
            0 if named.is_empty() => "the manifest, which is being written".into(),
            0 => named.join(", "),
            more => format!("{} and {more} more", named.join(", ")),
        }
    }
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "server {} lane {}", self.server, self.lane)?;
        let Some(Waits { round, left, chunk, version }) = self.waits else { return Ok(()) };
        let (key, chunk) = (chunk.key, chunk.chunk);
        if version < round {
            write!(
                f,
                " ({left} chunks left; chunk {chunk} of tensor {key} is at round {version}, not yet at round {round})"
            )
        } else {
            write!(
                f,
                " ({left} chunks left to copy; chunk {chunk} of tensor {key} waits for buffer memory or for the disk)"
            )
        }
    }
}

/// Progress of a checkpoint that an operator ordered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SaveProgress {
    /// Its round; none while servers are asked for their rounds, or another checkpoint is being written.
    pub round: Option<u64>,
    /// The newest round of any chunk, as far as reported.
    pub newest: u64,
    /// Parts that are complete.
    pub parts: u64,
    /// Parts in total.
    pub parts_expected: u64,
}

/// Adjacent chunks of a part with the same version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cover {
    /// The first chunk.
    pub first: ChunkId,
    /// The number of chunks.
    pub chunks: u32,
    /// Their version.
    pub version: u64,
}

/// A completely written part.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PartWritten {
    /// The checkpoint.
    pub round: u64,
    /// The lane of the part.
    pub lane: u16,
    /// Its file.
    pub file: String,
    /// The size of the file.
    pub bytes: u64,
    /// The checksum of the file.
    pub crc32c: u32,
    /// The checksum of its header and table.
    pub index_crc32c: u32,
    /// The chunks in it.
    pub covers: Vec<Cover>,
    /// The tables in it, with their rows.
    pub tables: Vec<(TableSpec, u64)>,
}

/// Reports of servers to the scheduler.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "a name that says it all needs no sentence")]
pub enum CheckpointNews {
    /// A chunk has reached a round for which a checkpoint is written: all servers must begin.
    Begun { round: u64 },
    /// A chunk is two rounds further.
    Passed { round: u64 },
    /// A part is complete.
    Part(PartWritten),
    /// The checkpoint failed.
    Failed { round: u64, reason: String },
    /// The checkpoint failed: a chunk had passed its round before the order arrived.
    Past { round: u64, newest: u64 },
    /// The version of a lane.
    At {
        lane: u16,
        /// The newest version of any chunk with rounds; if no chunk has rounds, of any chunk.
        newest: u64,
        /// What a checkpoint in progress waits for on this lane.
        waits: Option<Waits>,
    },
}

/// Why a requested checkpoint was not written.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[expect(missing_docs, reason = "a name that says it all needs no sentence")]
pub enum SaveError {
    /// No directory is set.
    #[error(
        "cannot write a checkpoint: checkpoint.directory is not set at the scheduler; set it for all processes"
    )]
    NoPlace,
    /// It was begun and failed.
    #[error("checkpoint of round {round} was not written: {reason}")]
    Failed { round: u64, reason: String },
    /// It takes longer than the requester waits. It may be completed later.
    #[error(
        "checkpoint of round {round} is not complete after {waited_ms} ms: {missing} of {parts} parts are missing: {}; retry with a longer timeout, or check the servers' logs",
        Waiting::list(waiting, *missing)
    )]
    Deadline { round: u64, waited_ms: u64, missing: u64, parts: u64, waiting: Vec<Waiting> },
    /// It was not begun.
    #[error("no checkpoint was started within {waited_ms} ms: {why}; retry with a longer timeout")]
    NotBegun { waited_ms: u64, why: String },
    /// The cluster is not complete, or is ending.
    #[error("{0}")]
    NotNow(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_names_servers_tensors_and_rounds() {
        let waits = |version| Some(Waits { round: 20, left: 3, chunk: ChunkId::new(7, 2), version });
        let waiting = |server, waits| Waiting { server: Rank(server), lane: 1, waits };
        let waiting = vec![waiting(0, waits(15)), waiting(1, waits(20)), waiting(2, None)];
        let error = SaveError::Deadline { round: 20, waited_ms: 5, missing: 4, parts: 9, waiting };
        let text = error.to_string();
        for words in [
            "server 0 lane 1 (3 chunks left; chunk 2 of tensor 7 is at round 15, not yet at round 20)",
            "server 1 lane 1 (3 chunks left to copy; chunk 2 of tensor 7 waits for buffer memory or for the disk)",
            "server 2 lane 1 and 1 more",
        ] {
            assert!(text.contains(words), "{text}");
        }
        let error = SaveError::Deadline { round: 1, waited_ms: 5, missing: 0, parts: 9, waiting: Vec::new() };
        assert!(error.to_string().contains("the manifest, which is being written"));
    }
}
