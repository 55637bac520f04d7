//! How much of the model a server has, and as what, by the shard map: for its status. Nothing is decided by it.

use super::Member;
use proto_common::ids::Rank;
use proto_common::shard_map::KeyRange;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};

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

/// What a server that leaves waits for: the chunks that the map still gives it, by the server to which they are copied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Left(BTreeMap<Option<Rank>, u64>);

impl Display for Left {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("its own data threads, which have not released the last chunks");
        }
        for (at, (to, chunks)) in self.0.iter().enumerate() {
            f.write_str(if at > 0 { ", and " } else { "" })?;
            match to {
                Some(to) => write!(f, "server {to} to receive {chunks} chunks")?,
                None => write!(f, "the scheduler to choose a server for {chunks} chunks")?,
            }
        }
        Ok(())
    }
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

    /// What it waits for if it is to leave.
    #[must_use]
    pub fn left(&self) -> Left {
        let own = self.config.rank;
        let mut left = BTreeMap::new();
        let is_here = |range: &&KeyRange| range.server == own || super::copied_at(range, own);
        for range in self.map.ranges().filter(is_here) {
            *left.entry(range.seeding.filter(|to| *to != own)).or_default() += u64::from(range.chunks);
        }
        Left(left)
    }

    fn bytes_of(&self, range: &KeyRange) -> u64 {
        let Some(spec) = self.map.tensor(range.first.key) else { return 0 };
        let chunk_bytes = self.map.chunk_bytes();
        let start = u64::from(range.first.chunk.0) * chunk_bytes;
        spec.bytes().saturating_sub(start).min(u64::from(range.chunks) * chunk_bytes)
    }
}
