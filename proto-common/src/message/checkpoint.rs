//! What scheduler and servers say to each other about checkpoints. One is known by its round.

use crate::ids::{ChunkId, Rank};
use crate::table::TableSpec;
use serde::{Deserialize, Serialize};
use std::fmt;
use thiserror::Error;

/// Parts that an error names; the others are counted.
pub const WAITING_LISTED_MAX: usize = 8;

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
    /// A scheduler that knows of none: whatever is under way, nothing comes of it.
    Reset,
    /// How far is each lane, and what does a checkpoint wait for there? Answered by `At`.
    Where,
}

/// What a checkpoint waits for on a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waits {
    /// The checkpoint.
    pub round: u64,
    /// Chunks that are not copied.
    pub left: u32,
    /// The one that is furthest behind.
    pub chunk: ChunkId,
    /// Its version.
    pub version: u64,
}

/// A part that has not come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    /// Whose.
    pub server: Rank,
    /// Which lane's.
    pub lane: u16,
    /// What it waits for, as far as it was said: chunks; without them, for the file to be written.
    pub waits: Option<Waits>,
}

impl Waiting {
    /// The first of so many parts that have not come, for people.
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

/// How a checkpoint that an operator asked for goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SaveProgress {
    /// The round that was named; none yet where servers are asked how far they are, or another one is being written.
    pub round: Option<u64>,
    /// The newest round of any chunk, as far as was said.
    pub newest: u64,
    /// Parts that are there.
    pub parts: u64,
    /// Parts that it is to have.
    pub parts_expected: u64,
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
    /// Nothing comes of it: a chunk had gone on before it was heard of.
    Past {
        /// The round.
        round: u64,
        /// Where that chunk is.
        newest: u64,
    },
    /// Where a lane is.
    At {
        /// The lane.
        lane: u16,
        /// The newest version of any chunk that has rounds; of any chunk, where none has.
        newest: u64,
        /// What a checkpoint under way waits for there.
        waits: Option<Waits>,
    },
}

/// Why a checkpoint that was asked for was not written.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
pub enum SaveError {
    /// There is no place for it.
    #[error(
        "cannot write a checkpoint: checkpoint.directory is not set at the scheduler; set it for all processes"
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
        "checkpoint of round {round} is not complete after {waited_ms} ms: {missing} of {parts} parts are missing: {}; retry with a longer timeout, or check the servers' logs",
        Waiting::list(waiting, *missing)
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
        /// The first of those that have not come.
        waiting: Vec<Waiting>,
    },
    /// It was not even begun.
    #[error("no checkpoint was started within {waited_ms} ms: {why}; retry with a longer timeout")]
    NotBegun {
        /// How long was waited.
        waited_ms: u64,
        /// What for.
        why: String,
    },
    /// The cluster is not complete, or ends.
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
