//! Where chunks are: owns the shard map, the bytes that each server has, and the replicas that are being made. It places new tensors, and
//! changes the map after failures and when replicas are complete. `copies` decides which replicas and moves are next. It must not know
//! connections or time.
//!
//! ```text
//!  a range:   served ──plan: copy──▶ served, seeding ──seeded──▶ served, with a backup ──plan: hand over──▶ served by the backup
//!                ▲                     │         └──seeded, to move──▶ served there, the old server has the backup
//!                └──refused, or gone───┘
//! ```

use proto_common::ids::{ChunkId, Epoch, Key, Rank};
use proto_common::limits::CONTROL_FRAME_BYTES_MAX;
use proto_common::message::ClusterShape;
use proto_common::shard_map::{KeyRange, MapChange, MapError, MapUpdate, ShardMap, assign};
use proto_common::tensor::TensorSpec;
use std::collections::{BTreeMap, BTreeSet};

mod copies;
mod moves;

/// Bytes of a range in a message; a little more than the codec needs.
pub(super) const RANGE_BYTES: usize = 34;
/// The most bytes of a message about chunks that are placed already: other messages wait behind it.
const CHANGE_BYTES_MAX: usize = CONTROL_FRAME_BYTES_MAX / 4;
/// Ranges that a tensor is cut into at most; more would not be told in one message.
const RANGES_MAX: usize = 1 << 16;
const _: () = assert!(RANGES_MAX * RANGE_BYTES < CHANGE_BYTES_MAX);

/// The servers of the roster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Servers {
    pub(super) there: BTreeSet<Rank>,
    pub(super) draining: BTreeSet<Rank>,
}

impl Servers {
    /// The servers for new chunks and replicas: those that do not drain, if there are any.
    pub(super) fn takers(&self) -> Vec<Rank> {
        let stay: Vec<Rank> = self.there.difference(&self.draining).copied().collect();
        if stay.is_empty() { self.there.iter().copied().collect() } else { stay }
    }

    pub(super) fn stays(&self, rank: Rank) -> bool {
        self.there.contains(&rank) && !self.draining.contains(&rank)
    }
}

/// Bytes at a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Load {
    served: u64,
    /// Copies, those that are being made included.
    copies: u64,
}

impl Load {
    fn total(self) -> u64 {
        self.served.saturating_add(self.copies)
    }
}

/// The bytes at each server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Loads {
    by_rank: BTreeMap<Rank, Load>,
    /// Bytes of replicas, by primary and by the server that has them.
    spread: BTreeMap<(Rank, Rank), u64>,
}

impl Loads {
    fn of(&self, rank: Rank) -> Load {
        self.by_rank.get(&rank).copied().unwrap_or_default()
    }

    fn add(&mut self, range: &KeyRange, bytes: u64) {
        self.by_rank.entry(range.server).or_default().served += bytes;
        for at in [range.backup, range.seeding].into_iter().flatten() {
            self.add_copy(range.server, at, bytes);
        }
    }

    fn add_copy(&mut self, of: Rank, at: Rank, bytes: u64) {
        self.by_rank.entry(at).or_default().copies += bytes;
        *self.spread.entry((of, at)).or_default() += bytes;
    }

    /// The server for a replica of a range that `of` serves: the least loaded of these; among equals, the one with the fewest replicas of
    /// `of`, so that they are spread.
    fn pick(&self, of: Rank, among: impl Iterator<Item = Rank>) -> Option<Rank> {
        let spread = |at: Rank| self.spread.get(&(of, at)).copied().unwrap_or(0);
        among.filter(|at| *at != of).min_by_key(|at| {
            let after = at.0.wrapping_sub(of.0).wrapping_sub(1);
            (self.of(*at).total(), spread(*at), after)
        })
    }
}

/// Why a replica is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    /// To be the backup.
    Copy,
    /// To serve, in its server's place.
    Move,
}

/// A replica that is being made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seed {
    pub(super) to: Rank,
    why: Why,
    bytes: u64,
    epoch: Epoch,
}

/// What has been decided since the start, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) copies_made: u64,
    pub(super) moves_made: u64,
    pub(super) moved_bytes: u64,
    pub(super) promotions: u64,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Shards {
    shape: ClusterShape,
    map: ShardMap,
    loads: Loads,
    /// By the first chunk of their range.
    seeds: BTreeMap<ChunkId, Seed>,
    counts: Counts,
    /// How often each server has refused a replica.
    refusals: BTreeMap<Rank, u32>,
}

impl Shards {
    pub(super) fn new(shape: &ClusterShape) -> Self {
        Self {
            shape: *shape,
            map: ShardMap::new(shape.chunk_bytes, shape.lanes),
            loads: Loads::default(),
            seeds: BTreeMap::new(),
            counts: Counts::default(),
            refusals: BTreeMap::new(),
        }
    }

    pub(super) fn map(&self) -> &ShardMap {
        &self.map
    }

    /// Copies that are being made, by the first chunk of their range.
    pub(super) fn seeds(&self) -> &BTreeMap<ChunkId, Seed> {
        &self.seeds
    }

    pub(super) fn counts(&self) -> Counts {
        self.counts
    }

    /// Bytes that servers serve.
    pub(super) fn served_bytes(&self) -> u64 {
        self.loads.by_rank.values().map(|load| load.served).sum()
    }

    /// Bytes that have a backup, and bytes that are being copied.
    pub(super) fn copied_bytes(&self) -> (u64, u64) {
        let copied = self.map.ranges().filter(|range| range.backup.is_some());
        (copied.map(|range| self.bytes_of(range)).sum(), self.seeds.values().map(|seed| seed.bytes).sum())
    }

    /// Where new tensors go, with their backups. A backup counts from the start: it is zeros, as its tensor is. A tensor that begins
    /// from a checkpoint is not; if its backup has to serve before the copy has arrived, it reads the checkpoint, too.
    pub(super) fn place(&self, fresh: &[TensorSpec], servers: &Servers) -> Vec<KeyRange> {
        let takers = servers.takers();
        let served: Vec<u64> = takers.iter().map(|rank| self.loads.of(*rank).served).collect();
        let mut ranges = assign(fresh, &served, self.shape.chunk_bytes);
        // `assign` numbers those that it was given.
        for range in &mut ranges {
            range.server = takers.get(range.server.0 as usize).copied().unwrap_or_default();
        }
        if self.shape.replicas > 0 {
            self.back_up(fresh, &mut ranges, &takers);
        }
        ranges
    }

    fn back_up(&self, fresh: &[TensorSpec], ranges: &mut [KeyRange], takers: &[Rank]) {
        let specs: BTreeMap<Key, &TensorSpec> = fresh.iter().map(|spec| (spec.key, spec)).collect();
        let chunk_bytes = self.shape.chunk_bytes;
        let bytes = |range: &KeyRange| specs.get(&range.first.key).map_or(0, |s| range.bytes(s, chunk_bytes));
        let mut loads = self.loads.clone();
        ranges.iter().for_each(|range| loads.add(range, bytes(range)));
        // The large ones first: what is small levels what they leave.
        let mut order: Vec<usize> = (0..ranges.len()).collect();
        order.sort_by_key(|at| std::cmp::Reverse(bytes(&ranges[*at])));
        for at in order {
            let range = &mut ranges[at];
            range.backup = loads.pick(range.server, takers.iter().copied());
            if let Some(backup) = range.backup {
                loads.add_copy(range.server, backup, bytes(range));
            }
        }
    }

    /// New tensors are where this says.
    pub(super) fn add(&mut self, update: &MapUpdate) -> Result<(), MapError> {
        self.map.apply(update)?;
        for range in &update.ranges {
            let bytes = self.bytes_of(range);
            self.loads.add(range, bytes);
        }
        Ok(())
    }

    /// All is as this says, but for copies that were being made: they are made anew.
    pub(super) fn restore(&mut self, update: &MapUpdate) -> Result<(), MapError> {
        let whole = |range: &KeyRange| KeyRange { seeding: None, ..*range };
        let ranges = update.ranges.iter().map(whole).collect();
        self.map.apply(&MapUpdate { ranges, ..update.clone() })?;
        self.weigh();
        Ok(())
    }

    /// The servers that take over what this server serves.
    pub(super) fn successors(&self, rank: Rank) -> Vec<Rank> {
        let of = self.map.ranges().filter(|range| range.server == rank).filter_map(|range| range.backup);
        of.collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// A server has failed. Returns the tensors that no server has any more.
    pub(super) fn gone(&mut self, epoch: Epoch, rank: Rank) -> Vec<Key> {
        self.counts.promotions += self.map.ranges().filter(|range| range.server == rank).count() as u64;
        // The epoch is ours and newer.
        let lost = self.map.change(epoch, &MapChange::ServerGone(rank)).unwrap_or_default();
        self.weigh();
        lost
    }

    /// These are in no map any more.
    pub(super) fn drop_tensors(&mut self, epoch: Epoch, change: &MapChange) {
        // The epoch is ours and newer.
        let _ = self.map.change(epoch, change);
        self.weigh();
    }

    /// Chunks without the copies that they are to have, and those that are being copied.
    pub(super) fn uncopied(&self) -> u64 {
        let lacks = |range: &&KeyRange| {
            range.seeding.is_some() || (self.shape.replicas > 0 && range.backup.is_none())
        };
        self.map.ranges().filter(lacks).map(|range| u64::from(range.chunks)).sum()
    }

    /// Does a server have no part in anything?
    pub(super) fn is_empty_at(&self, rank: Rank) -> bool {
        !self
            .map
            .ranges()
            .any(|range| range.server == rank || range.backup == Some(rank) || range.seeding == Some(rank))
    }

    /// Changes ranges of tensors, in messages that each fit, each under an epoch of its own.
    fn change(
        &mut self,
        edited: BTreeMap<Key, Vec<KeyRange>>,
        seeds: Vec<(ChunkId, Seed)>,
        epoch: &mut Epoch,
    ) -> Vec<(Epoch, MapChange)> {
        let mut messages: Vec<Vec<KeyRange>> = Vec::new();
        for ranges in edited.into_values() {
            let ranges = joined(ranges);
            let fits =
                |last: &&mut Vec<KeyRange>| (last.len() + ranges.len()) * RANGE_BYTES <= CHANGE_BYTES_MAX;
            match messages.last_mut().filter(fits) {
                Some(last) => last.extend(ranges),
                None => messages.push(ranges),
            }
        }
        let mut seeds: BTreeMap<ChunkId, Seed> = seeds.into_iter().collect();
        let mut told = Vec::new();
        for ranges in messages {
            *epoch = epoch.next();
            for range in ranges.iter().filter(|range| range.seeding.is_some()) {
                if let Some(seed) = seeds.remove(&range.first) {
                    self.seeds.insert(range.first, Seed { epoch: *epoch, ..seed });
                }
            }
            let change = MapChange::Ranges(ranges);
            // Ranges are cut from ranges that covered their tensors.
            if self.map.change(*epoch, &change).is_ok() {
                told.push((*epoch, change));
            }
        }
        self.weigh();
        told
    }

    /// After a change of the map: what each server has, and which copies are still being made.
    fn weigh(&mut self) {
        let (mut loads, chunk_bytes) = (Loads::default(), self.shape.chunk_bytes);
        let mut seeding: BTreeMap<ChunkId, Rank> = BTreeMap::new();
        for (spec, ranges) in self.map.tensors() {
            for range in ranges {
                loads.add(range, range.bytes(spec, chunk_bytes));
                seeding.extend(range.seeding.map(|to| (range.first, to)));
            }
        }
        self.loads = loads;
        self.seeds.retain(|first, seed| seeding.get(first) == Some(&seed.to));
    }

    fn bytes_of(&self, range: &KeyRange) -> u64 {
        self.map.tensor(range.first.key).map_or(0, |spec| range.bytes(spec, self.shape.chunk_bytes))
    }
}

/// Neighbours that lie alike become one; what is being copied stays as it was decided.
fn joined(ranges: Vec<KeyRange>) -> Vec<KeyRange> {
    let mut joined: Vec<KeyRange> = Vec::with_capacity(ranges.len());
    for range in ranges {
        let alike = |last: &&mut KeyRange| {
            (last.server, last.backup) == (range.server, range.backup)
                && last.seeding.is_none()
                && range.seeding.is_none()
        };
        match joined.last_mut().filter(alike) {
            Some(last) => last.chunks += range.chunks,
            None => joined.push(range),
        }
    }
    joined
}

// Copies that a server cannot make: they are given up, and others are asked first.

/// How often a server is asked for copies that it cannot make.
const REFUSALS_MAX: u32 = 3;

impl Shards {
    /// A server could not do what decisions up to this one ask of it: copies that were being made there, or of what it
    /// serves, are given up. Others are tried first, and it only so often.
    /// Says which copies those are, by their first chunks.
    pub(super) fn refused(
        &mut self,
        by: Rank,
        said: Epoch,
        epoch: &mut Epoch,
    ) -> (Vec<(Epoch, MapChange)>, Vec<ChunkId>) {
        let mut given_up = Vec::new();
        let mut edited: BTreeMap<Key, Vec<KeyRange>> = BTreeMap::new();
        for (first, seed) in self.seeds.iter().filter(|(_, seed)| seed.epoch <= said) {
            let ranges = edited.entry(first.key).or_insert_with(|| self.map.ranges_of(first.key).to_vec());
            let range = ranges.iter_mut().find(|range| range.first == *first);
            if let Some(range) = range.filter(|range| seed.to == by || range.server == by) {
                range.seeding = None;
                given_up.push(*first);
            }
        }
        edited.retain(|key, ranges| self.map.ranges_of(*key) != &ranges[..]);
        if !edited.is_empty() {
            *self.refusals.entry(by).or_default() += 1;
        }
        (self.change(edited, Vec::new(), epoch), given_up)
    }

    /// How often a server has refused; none where it may not be tried again.
    fn refusals(&self, rank: Rank) -> Option<u32> {
        Some(self.refusals.get(&rank).copied().unwrap_or(0)).filter(|times| *times < REFUSALS_MAX)
    }

    /// Another life has that place.
    pub(super) fn forgive(&mut self, rank: Rank) {
        self.refusals.remove(&rank);
    }
}
