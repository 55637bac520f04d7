//! What a member sends to a restarted scheduler, and how it is divided into messages.

use super::from_scheduler::{ClusterShape, Member};
use super::to_scheduler::NodeGroup;
use crate::ids::{Epoch, Incarnation, Rank};
use crate::limits::NAME_BYTES_MAX;
use crate::shard_map::{KeyRange, MapUpdate};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Approximate bytes of a part. A single tensor's ranges stay together.
const PART_BYTES: usize = 1 << 20;
/// Bytes of a member with its addresses, of a barrier or tensor without its name, and of a range: slightly more than
/// the codec needs.
const MEMBER_BYTES: usize = 2 * NAME_BYTES_MAX + 64;
const RANK_BYTES: usize = 4;
const INCARNATION_BYTES: usize = 9;
const BARRIER_BYTES: usize = 32;
const TENSOR_BYTES: usize = 112;
const RANGE_BYTES: usize = 34;

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
    /// Rosters before that of `members` that may still be in force, because `members` may not be decided; set by its connection to
    /// the scheduler.
    pub rosters: Vec<Vec<Incarnation>>,
}

impl Resume {
    /// Rank and epoch without the lists: the part that travels with the registration.
    #[must_use]
    pub fn head(&self) -> Self {
        let map = MapUpdate { epoch: self.map.epoch, ..MapUpdate::default() };
        let Self { rank, term, leaves, shape, epoch, .. } = *self;
        Self { rank, term, leaves, restore: self.restore.clone(), shape, epoch, map, ..Self::default() }
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
            let part = cut.room(TENSOR_BYTES + spec.name.len() + ranges.len() * RANGE_BYTES);
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
