//! How often this member has come through each barrier, for a scheduler that has lost its memory. It must not know who waits.

use proto_common::message::NodeGroup;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Barriers that are remembered, by name and group; those passed longest ago make way.
pub const BARRIERS_KEPT_MAX: usize = 4096;

/// Counts of one member; clones share them.
#[derive(Clone, Debug, Default)]
pub struct Passed(Arc<Mutex<Counts>>);

#[derive(Debug, Default)]
struct Counts {
    /// How often, and when last, counted in passings.
    by_barrier: HashMap<(String, NodeGroup), (u64, u64)>,
    passings: u64,
}

impl Passed {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        // Counts are whole, whatever happened to others.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How often this member has come through it.
    #[must_use]
    pub fn times(&self, name: &str, group: NodeGroup) -> u64 {
        self.counts().by_barrier.get(&(name.to_owned(), group)).map_or(0, |(times, _)| *times)
    }

    /// It has come through once more.
    pub fn count(&self, name: &str, group: NodeGroup) {
        let mut counts = self.counts();
        counts.passings += 1;
        let (now, key) = (counts.passings, (name.to_owned(), group));
        if counts.by_barrier.len() >= BARRIERS_KEPT_MAX && !counts.by_barrier.contains_key(&key) {
            let oldest = counts.by_barrier.iter().min_by_key(|(_, (_, last))| *last);
            let oldest = oldest.map(|(key, _)| key.clone());
            oldest.and_then(|key| counts.by_barrier.remove(&key));
        }
        let entry = counts.by_barrier.entry(key).or_default();
        *entry = (entry.0 + 1, now);
    }

    /// All of them, as a member tells them to the next scheduler.
    #[must_use]
    pub fn all(&self) -> Vec<(String, NodeGroup, u64)> {
        let counts = self.counts();
        let show =
            |((name, group), (times, _)): (&(String, NodeGroup), &(u64, u64))| (name.clone(), *group, *times);
        counts.by_barrier.iter().map(show).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passings_are_counted_by_name_and_group_and_the_oldest_make_way() {
        let passed = Passed::default();
        passed.count("b", NodeGroup::ALL);
        passed.clone().count("b", NodeGroup::ALL);
        passed.count("b", NodeGroup::WORKERS);
        assert_eq!((passed.times("b", NodeGroup::ALL), passed.times("b", NodeGroup::WORKERS)), (2, 1));
        assert_eq!(passed.times("b", NodeGroup::SERVERS), 0);
        for at in 2..BARRIERS_KEPT_MAX {
            passed.count(&at.to_string(), NodeGroup::ALL);
        }
        assert_eq!((passed.all().len(), passed.times("b", NodeGroup::ALL)), (BARRIERS_KEPT_MAX, 2));
        passed.count("one more", NodeGroup::ALL);
        assert_eq!((passed.all().len(), passed.times("b", NodeGroup::ALL)), (BARRIERS_KEPT_MAX, 0));
    }
}
