//! What a server has a chunk for. The shard map says it; lanes act on it.

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
