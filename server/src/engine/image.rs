//! The engine's part of a chunk's image: what a server has to know of a chunk, beside its numbers, to continue with it as
//! another one would have. It must not know how images travel or are stored.

use proto_common::limits::WORKERS_MAX;
use serde::{Deserialize, Serialize};

/// Versions and counts of contributions are below: they are counted on from what others say.
pub(super) const COUNT_END: u64 = u64::MAX / 2;

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChunkState {
    /// Published version.
    pub version: u64,
    /// Its initial value was set.
    pub initialised: bool,
    /// Rounds that ended without new weights: bit 0 is the one in force.
    pub bad: u64,
    /// Bytes of the version in force.
    pub live_bytes: u64,
    /// First and last version that the weights in force are of.
    pub versions: (u64, u64),
    /// As `versions`, of the weights before, where they are in the image.
    pub previous: Option<(u64, u64)>,
    /// Bytes of those.
    pub previous_bytes: u64,
    /// Contributions of each worker that are in force, where they are counted.
    pub made: Vec<u64>,
    /// Of each worker, where contributions can end otherwise than by being applied: the last one, and which of the 64 up to
    /// it did.
    pub marks: Vec<(u64, u64)>,
}

pub(super) const NOT_IN_ORDER: &str = "the versions in the image are inconsistent";

impl ChunkState {
    pub(super) fn check(&self) -> Result<(), String> {
        let (first, last) = self.versions;
        let before = self.previous.is_none_or(|(from, to)| from <= to && to < first);
        let bounded = self.made.len().max(self.marks.len()) <= WORKERS_MAX as usize;
        let counted = self.made.iter().all(|made| *made < COUNT_END) && self.version < COUNT_END;
        if first <= last && last == self.version && before && bounded && counted {
            Ok(())
        } else {
            Err(NOT_IN_ORDER.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_follow_one_another() {
        let good =
            ChunkState { version: 5, versions: (4, 5), previous: Some((2, 3)), ..ChunkState::default() };
        assert_eq!(good.check(), Ok(()));
        assert_eq!(ChunkState::default().check(), Ok(()));
        for bad in [
            ChunkState { versions: (4, 6), ..good.clone() },
            ChunkState { versions: (6, 5), ..good.clone() },
            ChunkState { previous: Some((3, 4)), ..good.clone() },
            ChunkState { previous: Some((3, 2)), ..good.clone() },
            ChunkState { made: vec![0; WORKERS_MAX as usize + 1], ..good },
        ] {
            assert_eq!(bad.check(), Err(NOT_IN_ORDER.into()), "{bad:?}");
        }
    }
}
