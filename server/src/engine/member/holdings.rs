//! How much of the model a server has, and as what, by the shard map: for its status. Nothing is decided by it.

use super::Member;
use proto_common::shard_map::KeyRange;
use serde::Serialize;

/// Chunks, and their weights' bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Held {
    /// How many.
    pub chunks: u64,
    /// Bytes of their weights.
    pub bytes: u64,
}

/// What a server has chunks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Holdings {
    /// Served here.
    pub served: Held,
    /// Of those: with a copy elsewhere that is kept up.
    pub backed: Held,
    /// Of those: a copy is being made elsewhere.
    pub copying: Held,
    /// Served elsewhere, with a copy here that is kept up.
    pub copies: Held,
    /// Served elsewhere, a copy is being made here.
    pub arriving: Held,
}

impl Held {
    fn add(&mut self, chunks: u64, bytes: u64) {
        self.chunks += chunks;
        self.bytes += bytes;
    }
}

impl Member {
    /// What it has, by the map in force.
    #[must_use]
    pub fn holdings(&self) -> Holdings {
        let (own, mut all) = (self.config.rank, Holdings::default());
        for range in self.map.ranges() {
            let (chunks, bytes) = (u64::from(range.chunks), self.bytes_of(range));
            if range.server == own {
                all.served.add(chunks, bytes);
                if range.backup.is_some() {
                    all.backed.add(chunks, bytes);
                }
                if range.seeding.is_some() {
                    all.copying.add(chunks, bytes);
                }
            } else if range.backup == Some(own) {
                all.copies.add(chunks, bytes);
            } else if range.seeding == Some(own) {
                all.arriving.add(chunks, bytes);
            }
        }
        all
    }

    fn bytes_of(&self, range: &KeyRange) -> u64 {
        let Some(spec) = self.map.tensor(range.first.key) else { return 0 };
        let chunk_bytes = self.map.chunk_bytes();
        let start = u64::from(range.first.chunk.0) * chunk_bytes;
        spec.bytes().saturating_sub(start).min(u64::from(range.chunks) * chunk_bytes)
    }
}
