//! What a member sends to a restarted scheduler, and how it is divided into messages.

use super::digest::MapDigest;
use super::from_scheduler::Member;
use super::post::NodeGroup;
use crate::config::ClusterShape;
use crate::ids::{Epoch, Incarnation, Rank};
use crate::limits::{FIRST_FRAME_BYTES_MAX, NAME_BYTES_MAX};
use crate::shard_map::{KeyRange, MapUpdate};
use crate::tensor::TensorSpec;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Approximate bytes of a part. A single tensor's ranges stay together.
const PART_BYTES: usize = 1 << 20;
/// Bytes of a member with its addresses, of a barrier without its name, and of a range: slightly more than the codec needs.
const MEMBER_BYTES: usize = 2 * NAME_BYTES_MAX + 64;
const RANK_BYTES: usize = 4;
const INCARNATION_BYTES: usize = 9;
const BARRIER_BYTES: usize = 32;
const RANGE_BYTES: usize = 34;
/// Bytes of a map that is sent with the other lists; of a larger one only the digest is.
const MAP_BYTES_MAX: usize = FIRST_FRAME_BYTES_MAX;

/// What a member knows of a cluster whose scheduler has failed. The next scheduler rebuilds the cluster from the
/// knowledge of all members.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Resume {
    /// Its rank.
    pub rank: Rank,
    /// The highest term that it has obeyed; set by its connection to the scheduler.
    pub term: u32,
    /// Whether it has said goodbye without a confirmation; set by its connection to the scheduler.
    pub leaves: bool,
    /// The checkpoint that the job began from; set by its connection to the scheduler.
    pub restore: Option<String>,
    /// The cluster's shape; set by its connection to the scheduler.
    pub shape: Option<ClusterShape>,
    /// The newest epoch of the shard map or the roster that it has received.
    pub epoch: Epoch,
    /// The roster of that epoch.
    pub members: Vec<Member>,
    /// Workers that had left in good order by then.
    pub left: Vec<Rank>,
    /// Servers: the whole shard map. Workers: the tensors that they have declared.
    pub map: MapUpdate,
    /// Barriers that it has passed, and how many times, by name and group.
    pub barriers: Vec<(String, NodeGroup, u64)>,
    /// Instead of a large map: its digest. The scheduler asks one of the members with this digest for the map (`SendMap`).
    pub digest: Option<MapDigest>,
    /// Rosters before that of `members` that may still be in force, because `members` may not be decided; set by its connection to
    /// the scheduler.
    pub rosters: Vec<Vec<Incarnation>>,
}

impl Resume {
    /// Rank and epoch without the lists: the part that travels with the registration.
    #[must_use]
    pub fn head(&self) -> Self {
        let map = MapUpdate { epoch: self.map.epoch, ..MapUpdate::default() };
        let Self { rank, term, leaves, shape, epoch, digest, .. } = *self;
        let restore = self.restore.clone();
        Self { rank, term, leaves, restore, shape, epoch, map, digest, ..Self::default() }
    }

    /// What is sent at once, and what only if the scheduler asks for it: a large map.
    #[must_use]
    pub fn apart(self) -> (Self, Option<Self>) {
        let MapUpdate { tensors, ranges, .. } = &self.map;
        let names: usize = tensors.iter().map(TensorSpec::message_bytes).sum();
        if names + ranges.len() * RANGE_BYTES <= MAP_BYTES_MAX {
            return (self, None);
        }
        let (told, map) = self.announced();
        (told, Some(map))
    }

    /// As [`Resume::apart`] for a large map, whatever size it has.
    #[must_use]
    pub fn announced(mut self) -> (Self, Self) {
        self.digest = Some(MapDigest::of(&self.map));
        let head = self.head();
        let map = std::mem::replace(&mut self.map, head.map.clone());
        (self, Self { map, ..head })
    }

    /// The lists as parts that each fit into a message; at least one.
    #[must_use]
    pub fn parts(self) -> Vec<Self> {
        let mut cut = Cut { head: self.head(), bytes: 0, parts: vec![self.head()] };
        for member in self.members {
            cut.room(MEMBER_BYTES).members.push(member);
        }
        for rank in self.left {
            cut.room(RANK_BYTES).left.push(rank);
        }
        for roster in self.rosters {
            cut.room(roster.len() * INCARNATION_BYTES).rosters.push(roster);
        }
        for barrier in self.barriers {
            cut.room(BARRIER_BYTES + barrier.0.len()).barriers.push(barrier);
        }
        let mut ranges: BTreeMap<_, Vec<KeyRange>> = BTreeMap::new();
        for range in self.map.ranges {
            ranges.entry(range.first.key).or_default().push(range);
        }
        for spec in self.map.tensors {
            let ranges = ranges.remove(&spec.key).unwrap_or_default();
            let part = cut.room(spec.message_bytes() + ranges.len() * RANGE_BYTES);
            part.map.tensors.push(spec);
            part.map.ranges.extend(ranges);
        }
        cut.parts
    }
}

struct Cut {
    head: Resume,
    bytes: usize,
    parts: Vec<Resume>,
}

impl Cut {
    /// The part with room for this many more bytes.
    fn room(&mut self, bytes: usize) -> &mut Resume {
        if self.bytes > 0 && self.bytes + bytes > PART_BYTES {
            self.parts.push(self.head.clone());
            self.bytes = 0;
        }
        self.bytes += bytes;
        let last = self.parts.len() - 1;
        &mut self.parts[last]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{ChunkId, Key};
    use crate::message::to_bytes;
    use crate::optimizer::Optimizer;
    use crate::tensor::TensorSpec;

    #[test]
    fn parts_are_small_and_make_the_whole() {
        let tensors: Vec<TensorSpec> =
            (0..20_000).map(|key| TensorSpec::f32(key, 2048, Optimizer::sum())).collect();
        let range = |key| (0..2).map(move |at| KeyRange::alone(ChunkId::new(key, at), 1, Rank(at)));
        let ranges = (0..20_000).flat_map(range).collect();
        let barrier = |at| (format!("barrier {at}"), NodeGroup::WORKERS, at);
        let whole = Resume {
            rank: Rank(3),
            term: 3,
            leaves: true,
            restore: Some("round-8".into()),
            shape: Some(crate::config::Settings::default().shape()),
            epoch: Epoch { term: 2, counter: 9 },
            members: Vec::new(),
            left: vec![Rank(5)],
            map: MapUpdate { epoch: Epoch { term: 2, counter: 7 }, tensors, ranges },
            barriers: (0..4096).map(barrier).collect(),
            digest: None,
            rosters: vec![(0..100).map(Incarnation).collect(); 3],
        };
        let parts = whole.clone().parts();
        assert!(parts.len() > 3, "{}", parts.len());
        let mut joined = whole.head();
        for part in parts {
            assert!(to_bytes(&part).unwrap().len() <= PART_BYTES + MEMBER_BYTES);
            assert_eq!(part.head(), whole.head());
            joined.map.tensors.extend(part.map.tensors);
            joined.map.ranges.extend(part.map.ranges);
            joined.barriers.extend(part.barriers);
            joined.left.extend(part.left);
            joined.rosters.extend(part.rosters);
        }
        assert_eq!(joined, whole);
        assert_eq!(Resume::default().parts(), [Resume::default()], "one part at least");
    }

    #[test]
    fn a_large_map_is_only_announced() {
        let tensors =
            |count: u64| (0..count).map(|key| TensorSpec::f32(key, 1024, Optimizer::sum())).collect();
        let ranges =
            |count: u64| (0..count).map(|key| KeyRange::alone(ChunkId::new(key, 0), 1, Rank(0))).collect();
        let epoch = Epoch { term: 2, counter: 9 };
        let of = |count| Resume {
            left: vec![Rank(4)],
            map: MapUpdate { epoch, tensors: tensors(count), ranges: ranges(count) },
            ..Resume::default()
        };
        assert_eq!(of(10).apart(), (of(10), None), "a small one is sent with the rest");
        let (told, map) = of(1000).apart();
        let map = map.expect("a large one");
        assert_eq!((&told.left, told.map.epoch, told.map.tensors.len()), (&vec![Rank(4)], epoch, 0));
        assert_eq!((map.digest, told.digest), (told.digest, Some(MapDigest::of(&of(1000).map))));
        assert_eq!((map.map, map.left), (of(1000).map, Vec::new()));
        assert!(to_bytes(&told).unwrap().len() < 200);
    }

    #[test]
    fn a_tensor_and_its_ranges_stay_together() {
        let ranges: Vec<KeyRange> =
            (0..100_000).map(|at| KeyRange::alone(ChunkId::new(1, at), 1, Rank(at % 2))).collect();
        let tensors = [1, 2].map(|key| TensorSpec::f32(key, 100_000 * 1024, Optimizer::sum())).to_vec();
        let map = MapUpdate { epoch: Epoch::default(), tensors, ranges };
        let parts = Resume { map, ..Resume::default() }.parts();
        let keys: Vec<Vec<Key>> =
            parts.iter().map(|part| part.map.tensors.iter().map(|t| t.key).collect()).collect();
        assert_eq!(keys, [vec![Key(1)], vec![Key(2)]]);
        assert_eq!(parts[0].map.ranges.len(), 100_000);
    }
}
