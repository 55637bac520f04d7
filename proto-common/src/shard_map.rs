//! Which server holds which key range: contiguous ranges over the ordered (key, chunk) space, cut between chunks so
//! that bytes balance. Large tensors are divided, small ones are not. Also the lane of each chunk.

use crate::ids::{ChunkId, ChunkIndex, Epoch, Key, Lane, Rank};
use crate::tensor::{ChunkSpan, TensorSpec};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;
use thiserror::Error;

/// A half-open range of the ordered (key, chunk) space within one tensor, and its servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyRange {
    /// First chunk.
    pub first: ChunkId,
    /// The number of chunks, all of the same key.
    pub chunks: u32,
    /// The primary: the server that serves the range.
    pub server: Rank,
    /// The server with an up-to-date replica. The primary answers nothing before this server has it.
    pub backup: Option<Rank>,
    /// A server on which a replica is being made. It does not count before it is up to date.
    pub seeding: Option<Rank>,
}

impl KeyRange {
    /// Chunks without a replica.
    #[must_use]
    pub fn alone(first: ChunkId, chunks: u32, server: Rank) -> Self {
        Self { first, chunks, server, backup: None, seeding: None }
    }

    /// Bytes of the range; `spec` is its tensor.
    #[must_use]
    pub fn bytes(&self, spec: &TensorSpec, chunk_bytes: u64) -> u64 {
        let start = u64::from(self.first.chunk.0).saturating_mul(chunk_bytes);
        let end = start.saturating_add(u64::from(self.chunks).saturating_mul(chunk_bytes));
        end.min(spec.bytes()).saturating_sub(start)
    }
}

/// Changes of the shard map for tensors that are already placed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum MapChange {
    /// A server has failed or left: its ranges go to their backups, and its replicas do not exist any more.
    ServerGone(Rank),
    /// New ranges of some tensors, which replace the old ones.
    Ranges(Vec<KeyRange>),
    /// Tensors that could not be allocated on every server: they are removed from the map.
    Dropped(Vec<Key>),
}

/// Tensors added under one epoch, with their ranges. The scheduler sends this when tensors are declared.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MapUpdate {
    /// The epoch of this update.
    pub epoch: Epoch,
    /// New tensors, or tensors that were asked about.
    pub tensors: Vec<TensorSpec>,
    /// Their ranges.
    pub ranges: Vec<KeyRange>,
}

/// An update that several receivers are told: clones share it, and its bytes are those of the update.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SharedUpdate(Arc<MapUpdate>);

impl SharedUpdate {
    /// Whether these two are clones of one another. Equal updates that were made apart are not.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The update; copied if there are other clones.
    #[must_use]
    pub fn into_inner(self) -> MapUpdate {
        Arc::unwrap_or_clone(self.0)
    }
}

impl From<MapUpdate> for SharedUpdate {
    fn from(update: MapUpdate) -> Self {
        Self(Arc::new(update))
    }
}

impl Deref for SharedUpdate {
    type Target = MapUpdate;

    fn deref(&self) -> &MapUpdate {
        &self.0
    }
}

impl Serialize for SharedUpdate {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.as_ref().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for SharedUpdate {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        MapUpdate::deserialize(deserializer).map(Self::from)
    }
}

/// An update that cannot be applied.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum MapError {
    /// The update is from an older scheduler.
    #[error(
        "shard map update is outdated: it has epoch {got}, the current epoch is {have}; a replaced scheduler is still running, stop it"
    )]
    OldTerm { got: Epoch, have: Epoch },
    /// A tensor's ranges do not cover its chunks exactly.
    #[error("invalid shard map update for tensor {key}: {what}")]
    BadCover { key: Key, what: String },
}

/// One tensor's entry.
#[derive(Clone, Debug, PartialEq)]
struct Entry {
    spec: TensorSpec,
    ranges: Vec<KeyRange>,
}

/// The shard map of one epoch.
#[derive(Clone, Debug, PartialEq)]
pub struct ShardMap {
    epoch: Epoch,
    chunk_bytes: u64,
    lanes: u16,
    tensors: BTreeMap<Key, Entry>,
}

impl ShardMap {
    /// An empty map. `lanes` is at least 1.
    #[must_use]
    pub fn new(chunk_bytes: u64, lanes: u16) -> Self {
        Self { epoch: Epoch::default(), chunk_bytes, lanes: lanes.max(1), tensors: BTreeMap::new() }
    }

    /// The epoch in force.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Bytes of a chunk.
    #[must_use]
    pub fn chunk_bytes(&self) -> u64 {
        self.chunk_bytes
    }

    /// The tensor with this key.
    #[must_use]
    #[inline]
    pub fn tensor(&self, key: Key) -> Option<&TensorSpec> {
        self.tensors.get(&key).map(|entry| &entry.spec)
    }

    /// How many tensors are declared.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Whether no tensor is declared.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// The range that contains a chunk.
    #[must_use]
    #[inline]
    pub fn server_of(&self, id: ChunkId) -> Option<Rank> {
        let ranges = &self.tensors.get(&id.key)?.ranges;
        let at = ranges.partition_point(|range| range.first.chunk <= id.chunk).checked_sub(1)?;
        let range = ranges[at];
        (id.chunk.0 - range.first.chunk.0 < range.chunks).then_some(range.server)
    }

    /// The lane of a chunk. Neighbouring chunks, and neighbouring small tensors, are on different lanes; tensors whose
    /// rule needs norms over the whole tensor are on one lane.
    #[must_use]
    #[inline]
    pub fn lane_of(&self, id: ChunkId) -> Lane {
        let together = self.tensor(id.key).is_some_and(|spec| spec.optimizer.needs_norms());
        lane_of(if together { ChunkId { chunk: ChunkIndex(0), ..id } } else { id }, self.lanes)
    }

    /// The chunks of a tensor with their servers, in order.
    pub fn placed_chunks(&self, key: Key) -> impl Iterator<Item = (ChunkSpan, Rank)> + '_ {
        let chunk_bytes = self.chunk_bytes;
        self.tensors.get(&key).into_iter().flat_map(move |entry| {
            let spans = move |range: &KeyRange| {
                let (first, server) = (range.first.chunk.0, range.server);
                (first..first + range.chunks)
                    .filter_map(move |c| Some((entry.spec.chunk(ChunkIndex(c), chunk_bytes)?, server)))
            };
            entry.ranges.iter().flat_map(spans)
        })
    }

    /// Applies an update. On an error nothing changes.
    pub fn apply(&mut self, update: &MapUpdate) -> Result<(), MapError> {
        if update.epoch < self.epoch && update.epoch.term < self.epoch.term {
            return Err(MapError::OldTerm { got: update.epoch, have: self.epoch });
        }
        let mut ranges: BTreeMap<Key, Vec<KeyRange>> = BTreeMap::new();
        for range in &update.ranges {
            ranges.entry(range.first.key).or_default().push(*range);
        }
        let mut entries = Vec::with_capacity(update.tensors.len());
        for spec in &update.tensors {
            let ranges = ranges.remove(&spec.key).unwrap_or_default();
            check_cover(spec, &ranges, self.chunk_bytes)?;
            entries.push((spec.key, Entry { spec: spec.clone(), ranges }));
        }
        if let Some(key) = ranges.keys().next() {
            return Err(MapError::BadCover {
                key: *key,
                what: "the update has ranges but no declaration of this tensor".into(),
            });
        }
        self.tensors.extend(entries);
        self.epoch = self.epoch.max(update.epoch);
        Ok(())
    }

    /// Applies a change of existing tensors; unknown ones are skipped. On an error nothing changes. Returns the
    /// tensors with ranges that no server has any more.
    pub fn change(&mut self, epoch: Epoch, change: &MapChange) -> Result<Vec<Key>, MapError> {
        if epoch.term < self.epoch.term {
            return Err(MapError::OldTerm { got: epoch, have: self.epoch });
        }
        let mut lost = Vec::new();
        match change {
            MapChange::ServerGone(gone) => {
                for (key, entry) in &mut self.tensors {
                    let held = entry.ranges.iter_mut().map(|range| lose(range, *gone));
                    // All of them change, whatever becomes of one.
                    if held.filter(|held| !held).count() == 0 {
                        continue;
                    }
                    lost.push(*key);
                }
            }
            MapChange::Dropped(keys) => keys.iter().for_each(|key| drop(self.tensors.remove(key))),
            MapChange::Ranges(ranges) => {
                let mut by_key: BTreeMap<Key, Vec<KeyRange>> = BTreeMap::new();
                for range in ranges {
                    by_key.entry(range.first.key).or_default().push(*range);
                }
                by_key.retain(|key, _| self.tensors.contains_key(key));
                for (key, ranges) in &by_key {
                    check_cover(&self.tensors[key].spec, ranges, self.chunk_bytes)?;
                }
                for (key, ranges) in by_key {
                    if let Some(entry) = self.tensors.get_mut(&key) {
                        entry.ranges = ranges;
                    }
                }
            }
        }
        self.epoch = self.epoch.max(epoch);
        Ok(lost)
    }

    /// All tensors with their ranges: what a member sends to a restarted scheduler.
    #[must_use]
    pub fn whole(&self) -> MapUpdate {
        let entries = self.tensors.values();
        let tensors = entries.clone().map(|entry| entry.spec.clone()).collect();
        let ranges = entries.flat_map(|entry| entry.ranges.iter().copied()).collect();
        MapUpdate { epoch: self.epoch, tensors, ranges }
    }

    /// All ranges of all tensors, in order.
    pub fn ranges(&self) -> impl Iterator<Item = &KeyRange> {
        self.tensors.values().flat_map(|entry| &entry.ranges)
    }

    /// All tensors with their ranges, by key.
    pub fn tensors(&self) -> impl Iterator<Item = (&TensorSpec, &[KeyRange])> {
        self.tensors.values().map(|entry| (&entry.spec, &entry.ranges[..]))
    }

    /// A tensor's ranges, in order.
    #[must_use]
    pub fn ranges_of(&self, key: Key) -> &[KeyRange] {
        self.tensors.get(&key).map_or(&[], |entry| &entry.ranges)
    }
}

/// Applies a server's failure to a range. Returns false if no server has the range any more.
fn lose(range: &mut KeyRange, gone: Rank) -> bool {
    if range.server == gone {
        // A copy that was being made is no copy, and nobody goes on making it.
        range.seeding = None;
        match range.backup.take() {
            Some(backup) => range.server = backup,
            None => return false,
        }
    }
    range.backup.take_if(|backup| *backup == gone);
    range.seeding.take_if(|seeding| *seeding == gone);
    true
}

/// The lane of a chunk among `lanes`.
#[must_use]
#[inline]
pub fn lane_of(id: ChunkId, lanes: u16) -> Lane {
    let mixed =
        id.key.0.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_right(32).wrapping_add(u64::from(id.chunk.0));
    Lane((mixed % u64::from(lanes.max(1))) as u16)
}

fn check_cover(spec: &TensorSpec, ranges: &[KeyRange], chunk_bytes: u64) -> Result<(), MapError> {
    let bad = |what: String| Err(MapError::BadCover { key: spec.key, what });
    let mut next = 0u64;
    for range in ranges {
        if u64::from(range.first.chunk.0) != next || range.chunks == 0 {
            return bad(format!("a range starts at chunk {}, expected {next}", range.first.chunk));
        }
        next += u64::from(range.chunks);
    }
    if spec.optimizer.needs_norms() && ranges.len() > 1 {
        return bad(format!(
            "its update rule needs norms of the whole tensor, but it is split into {} ranges",
            ranges.len()
        ));
    }
    let chunks = spec.chunk_count(chunk_bytes);
    if next != chunks {
        return bad(format!("the ranges cover {next} of {chunks} chunks"));
    }
    Ok(())
}

/// Divides new tensors among servers so that bytes balance, given the bytes that each server (by rank) holds already.
/// Each server's total is within one chunk of the balanced level, if its load allows it. Tensors whose rule needs
/// norms over the whole tensor are not divided, and count as one chunk here.
#[must_use]
pub fn assign(tensors: &[TensorSpec], loads: &[u64], chunk_bytes: u64) -> Vec<KeyRange> {
    let mut sorted: Vec<&TensorSpec> = tensors.iter().collect();
    sorted.sort_by_key(|spec| spec.key);
    let new: u64 = sorted.iter().map(|spec| spec.bytes()).sum();
    let borders: Vec<u64> = quotas(new, loads)
        .iter()
        .scan(0u64, |sum, quota| {
            *sum += quota;
            Some(*sum)
        })
        .collect();
    let mut ranges: Vec<KeyRange> = Vec::new();
    let (mut server, mut placed) = (0usize, 0u64);
    // A chunk, or a tensor that stays whole, belongs to the server in whose stretch its middle lies.
    let mut place = |bytes: u64| {
        while server + 1 < borders.len() && placed + bytes / 2 >= borders[server] {
            server += 1;
        }
        placed += bytes;
        Rank(server as u32)
    };
    for spec in sorted {
        if spec.optimizer.needs_norms() {
            let (first, chunks) =
                (ChunkId { key: spec.key, chunk: ChunkIndex(0) }, spec.chunk_count(chunk_bytes));
            // Validated tensors have chunk numbers of 32 bits.
            let chunks = u32::try_from(chunks).unwrap_or(u32::MAX);
            ranges.push(KeyRange::alone(first, chunks, place(spec.bytes())));
            continue;
        }
        for span in spec.chunks(chunk_bytes) {
            let rank = place(span.bytes);
            match ranges.last_mut().filter(|r| r.first.key == span.id.key && r.server == rank) {
                Some(range) => range.chunks += 1,
                None => ranges.push(KeyRange::alone(span.id, 1, rank)),
            }
        }
    }
    ranges
}

/// How many of `new` bytes each server takes so that the totals are balanced.
fn quotas(new: u64, loads: &[u64]) -> Vec<u64> {
    let mut sorted: Vec<u64> = loads.to_vec();
    sorted.sort_unstable();
    // The water level: the least loaded servers are filled first.
    let (mut sum, mut level) = (0u64, 0u64);
    for (i, load) in sorted.iter().enumerate() {
        let count = i as u64 + 1;
        sum += load;
        level = (new + sum).div_ceil(count);
        if sorted.get(i + 1).is_none_or(|next| *next >= level) {
            break;
        }
    }
    loads.iter().map(|load| level.saturating_sub(*load)).collect()
}

#[cfg(test)]
mod tests;
