//! Copies that a server cannot make: they are given up, and others are asked first. It decides nothing about who is.

use super::shards::Shards;
use proto_common::ids::{ChunkId, Epoch, Key, Rank};
use proto_common::shard_map::{KeyRange, MapChange};
use std::collections::BTreeMap;

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
    pub(super) fn refusals(&self, rank: Rank) -> Option<u32> {
        Some(self.refusals.get(&rank).copied().unwrap_or(0)).filter(|times| *times < REFUSALS_MAX)
    }

    /// Another life has that place.
    pub(super) fn forgive(&mut self, rank: Rank) {
        self.refusals.remove(&rank);
    }
}
