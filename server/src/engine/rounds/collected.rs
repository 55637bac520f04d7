//! Who has contributed to the round that is being collected, and whether anything of it was summed. It must not know where
//! contributions are.
//!
//! A worker whose contribution another worker of its host has added to its own contributes nothing itself (*merged*), and counts
//! all the same. If the first contribution with a payload were added to the accumulator because others count already, it would be
//! added to the sum of the round before.

use crate::engine::ranks::RankSet;
use proto_common::ids::Rank;

/// See the module.
#[derive(Debug)]
pub(super) struct Collected {
    ranks: RankSet,
    /// How many of them are merged.
    merged: u32,
}

impl Collected {
    pub(super) fn new(workers: u32) -> Self {
        Self { ranks: RankSet::new(workers), merged: 0 }
    }

    /// All who have contributed.
    pub(super) fn ranks(&self) -> &RankSet {
        &self.ranks
    }

    pub(super) fn contains(&self, rank: Rank) -> bool {
        self.ranks.contains(rank)
    }

    /// How many have contributed.
    pub(super) fn count(&self) -> u32 {
        self.ranks.len()
    }

    /// Has anybody contributed?
    pub(super) fn has_any(&self) -> bool {
        self.count() > 0
    }

    /// Has anybody contributed a payload?
    pub(super) fn has_payload(&self) -> bool {
        self.count() > self.merged
    }

    /// Has anybody contributed without a payload?
    pub(super) fn has_merged(&self) -> bool {
        self.merged > 0
    }

    /// A worker has contributed a payload.
    pub(super) fn insert(&mut self, rank: Rank) {
        self.ranks.insert(rank);
    }

    /// A worker counts whose contribution is part of another one.
    pub(super) fn insert_merged(&mut self, rank: Rank) {
        self.ranks.insert(rank);
        self.merged += 1;
    }

    /// A sum has come, with those who have contributed to it. False: there are none, or unknown ones.
    pub(super) fn set(&mut self, words: &[u64]) -> bool {
        self.merged = 0;
        self.ranks.set_words(words)
    }

    pub(super) fn clear(&mut self) {
        self.merged = 0;
        self.ranks.clear();
    }
}
