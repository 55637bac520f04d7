//! The digest of a shard map: what members report instead of a large map. It must not depend on how a map is cut into messages.

use super::codec::to_bytes;
use crate::shard_map::{KeyRange, MapUpdate};
use crate::tensor::TensorSpec;
use serde::{Deserialize, Serialize};

/// FNV-1a with 128 bits.
const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;

/// Identifies the tensors of a map and their ranges, in the map's order, without its epoch. It protects against accidents: a
/// member that lies about its map could also send a wrong one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MapDigest(u128);

impl Default for MapDigest {
    /// Of no tensors.
    fn default() -> Self {
        Self(OFFSET)
    }
}

impl MapDigest {
    /// Of a whole map, in which each tensor's ranges follow those of the tensor before.
    #[must_use]
    pub fn of(map: &MapUpdate) -> Self {
        let (mut digest, mut rest) = (Self::default(), &map.ranges[..]);
        for spec in &map.tensors {
            let count = rest.iter().take_while(|range| range.first.key == spec.key).count();
            let (ranges, others) = rest.split_at(count);
            digest.add(spec, ranges);
            rest = others;
        }
        digest
    }

    /// The next tensor.
    pub fn add(&mut self, spec: &TensorSpec, ranges: &[KeyRange]) {
        // A tensor that cannot be encoded cannot be sent either.
        let bytes = to_bytes(&(spec, ranges)).unwrap_or_default();
        for byte in bytes {
            self.0 = (self.0 ^ u128::from(byte)).wrapping_mul(PRIME);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{ChunkId, Epoch, Rank};
    use crate::message::Resume;
    use crate::optimizer::Optimizer;

    fn map(tensors: u64) -> MapUpdate {
        let specs = (0..tensors).map(|key| TensorSpec::f32(key, 2048, Optimizer::sum()));
        let ranges = (0..tensors)
            .flat_map(|key| (0..2).map(move |at| KeyRange::alone(ChunkId::new(key, at), 1, Rank(at))));
        MapUpdate { epoch: Epoch::default(), tensors: specs.collect(), ranges: ranges.collect() }
    }

    #[test]
    fn it_is_of_tensors_and_ranges_and_of_nothing_else() {
        let whole = map(20_000);
        let digest = MapDigest::of(&whole);
        let mut other = whole.clone();
        other.epoch = Epoch { term: 2, counter: 1 };
        assert_eq!(MapDigest::of(&other), digest, "the epoch is not part of it");
        other.ranges[7].seeding = Some(Rank(3));
        assert_ne!(MapDigest::of(&other), digest);
        other = whole.clone();
        other.tensors[9].name.push('x');
        assert_ne!(MapDigest::of(&other), digest);
        assert_ne!(MapDigest::of(&map(19_999)), digest);
        assert_eq!(MapDigest::of(&MapUpdate::default()), MapDigest::default());
    }

    #[test]
    fn parts_make_the_digest_of_the_whole() {
        let map = map(20_000);
        let digest = MapDigest::of(&map);
        let parts = Resume { map, ..Resume::default() }.parts();
        assert!(parts.len() > 1);
        let mut told = MapDigest::default();
        for part in parts {
            for (spec, ranges) in part.map.tensors.iter().zip(part.map.ranges.chunks(2)) {
                told.add(spec, ranges);
            }
        }
        assert_eq!(told, digest);
    }
}
