//! Which chunks a change of a tensor's rule is about here, from which round on it can be, and whether copies have it. The rules
//! themselves are storage's.

use super::LaneEngine;
use crate::engine::chunk::Chunk;
use crate::engine::role::Role;
use proto_common::ids::{Epoch, Key, Rank};

impl LaneEngine {
    /// A tensor's chunks, each with the first round whose rule is still open.
    pub fn rounds_of(&self, key: Key) -> impl Iterator<Item = (u32, u64)> + '_ {
        // A copy's rule changes with its primary's.
        let serves = |chunk: &Chunk| chunk.role.is_some_and(Role::serves);
        let chunks = (0u32..).zip(&self.chunks);
        let chunks = chunks.filter(move |(_, chunk)| chunk.spec.id.key == key && serves(chunk));
        chunks.map(|(at, chunk)| (at, chunk.round() + u64::from(chunk.is_complete())))
    }

    /// Chunks of a tensor that this server serves, and since when.
    pub fn served_since(&self, key: Key) -> impl Iterator<Item = (u32, Epoch)> + '_ {
        self.rounds_of(key).map(|(index, _)| (index, self.chunks[index as usize].since))
    }

    /// Can a worker know which of a tensor's rounds are open? Only where none ends without it.
    #[must_use]
    pub fn has_common_rounds(&self, key: Key) -> bool {
        self.chunks.iter().find(|chunk| chunk.spec.id.key == key).is_none_or(|chunk| chunk.tally.is_none())
    }

    /// Servers that have copies of a tensor's chunks, but not every change of its rule; one for each of these chunks.
    pub fn lacking_rules(&self, key: Key) -> impl Iterator<Item = Rank> + '_ {
        self.chunks.iter().filter(move |chunk| chunk.spec.id.key == key).flat_map(Chunk::lacking_rules)
    }
}
