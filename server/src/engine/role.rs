//! The role of a server for a chunk: primary or replica. The shard map assigns it, and `lane/roles.rs` applies it.

use super::spec::ChunkSpec;
use proto_common::ids::Rank;

/// The role of this server for a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It serves the chunk.
    Primary {
        /// The server with the up-to-date replica. No worker is answered before this server has confirmed the update.
        backup: Option<Rank>,
        /// The server on which a replica is being made.
        seeding: Option<Rank>,
    },
    /// It has a replica, up to date or being made.
    Copy {
        /// The chunk's primary, whose stream keeps the replica up to date.
        of: Rank,
    },
}

impl Role {
    /// Whether it answers workers.
    #[must_use]
    pub const fn serves(self) -> bool {
        matches!(self, Self::Primary { .. })
    }
}

/// What storage has to do for new roles.
#[derive(Debug, Default)]
pub struct RoleChanges {
    /// New chunks, of zeros, under these indices.
    pub added: Vec<(u32, ChunkSpec)>,
    /// Chunks whose sums are sent to replicas.
    pub lent: Vec<u32>,
    /// Replicas that become primary before their old primary has sent them anything. They are zeros. If the old primary began from a
    /// checkpoint, the replica begins from it, too. It has missed nothing, because a primary acknowledges no push and no initial value
    /// before its replica has confirmed it.
    pub blank: Vec<u32>,
}
