//! What a server has a chunk for. The shard map says it; lanes act on it.

use super::spec::ChunkSpec;
use proto_common::ids::Rank;

/// What this server has a chunk for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It serves it.
    Primary {
        /// Who has a copy that is kept up: nothing is answered before it is there, too.
        backup: Option<Rank>,
        /// Where a copy is being made.
        seeding: Option<Rank>,
    },
    /// It has a copy, kept up or being made.
    Copy {
        /// The server that serves the chunk, and whose stream keeps the copy up.
        of: Rank,
    },
}

impl Role {
    /// Does it answer workers?
    #[must_use]
    pub const fn serves(self) -> bool {
        matches!(self, Self::Primary { .. })
    }
}

/// What storage is to know of new roles.
#[derive(Debug, Default)]
pub struct RoleChanges {
    /// New chunks, of zeros, under these indices.
    pub added: Vec<(u32, ChunkSpec)>,
    /// Chunks whose sums are sent to others.
    pub lent: Vec<u32>,
    /// Copies that begin to serve before their primary has sent them anything. They are zeros. If the primary began from a checkpoint,
    /// the copy begins from there, too. It has missed nothing, because a primary acknowledges no push and no initial value before
    /// its copy has confirmed it.
    pub blank: Vec<u32>,
}
