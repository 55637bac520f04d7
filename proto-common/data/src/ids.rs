//! Identities: who (role, rank, incarnation), when (term, epoch), what (key, chunk, operation, round). Typed numbers,
//! so that a rank is never mistaken for a key. No behaviour except display.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id!(
    /// A tensor's key, chosen by the user. The 2^32 keys of tables' rows are reserved (`proto_common::table::HOMES`).
    Key(u64)
);
id!(
    /// Position of a chunk within its tensor, counted from the tensor's offset 0.
    ChunkIndex(u32)
);
id!(
    /// A member's number within its role, from 0.
    Rank(u32)
);
id!(
    /// The job that a process belongs to. A process of another job has another number, and is refused.
    JobId(u64)
);
id!(
    /// Operation number: counts one worker's operations on one key, from 1.
    Operation(u64)
);
id!(
    /// A synchronous iteration of a tensor, from 1. Round 0 is the initial value.
    Round(u64)
);
id!(
    /// Version of published weights; in sync mode the round that produced them.
    Version(u64)
);
id!(
    /// A fixed function of the chunk that selects queue pair, completion queue, inbox part and data thread.
    Lane(u16)
);

/// Random id of one process, never zero. A restarted process has another one.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Incarnation(pub u64);

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Membership version: the term of the scheduler that decided, and its running count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Epoch {
    /// The number of the scheduler's process. Members reject lower terms.
    pub term: u32,
    /// Count of membership or shard map changes within the term.
    pub counter: u32,
}

impl Epoch {
    /// The epoch as one number, in the same order.
    #[must_use]
    pub fn to_number(self) -> u64 {
        (u64::from(self.term) << 32) | u64::from(self.counter)
    }

    /// The epoch of such a number.
    #[must_use]
    pub fn from_number(number: u64) -> Self {
        Self { term: (number >> 32) as u32, counter: number as u32 }
    }

    /// The epoch after this one in the same term.
    #[must_use]
    pub fn next(self) -> Self {
        Self { term: self.term, counter: self.counter.saturating_add(1) }
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.term, self.counter)
    }
}

/// One chunk of one tensor, ordered by key, then by position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ChunkId {
    /// The tensor.
    pub key: Key,
    /// The chunk within it.
    pub chunk: ChunkIndex,
}

impl ChunkId {
    /// Shorthand for a key and a chunk number.
    #[must_use]
    pub fn new(key: u64, chunk: u32) -> Self {
        Self { key: Key(key), chunk: ChunkIndex(chunk) }
    }
}

impl fmt::Display for ChunkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.key, self.chunk)
    }
}

/// What a process does in the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Manages the membership.
    Scheduler,
    /// Holds shards of the parameters.
    Server,
    /// Computes gradients.
    Worker,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Scheduler => "scheduler",
            Self::Server => "server",
            Self::Worker => "worker",
        })
    }
}

/// One member of the cluster, as people name it: "server 1".
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MemberId {
    /// Its role.
    pub role: Role,
    /// Its rank in the role.
    pub rank: Rank,
}

impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.role {
            Role::Scheduler => f.write_str("scheduler"),
            role => write!(f, "{role} {}", self.rank),
        }
    }
}
