//! Contributions of one chunk that wait for their turn, in order of round and rank: with a thousand workers most of a
//! round may wait here, and each is found without looking at the others. Keeps its memory.

use crate::engine::command::Source;
use proto_common::ids::{Operation, Rank};
use std::collections::VecDeque;

/// A contribution that cannot be reduced yet, kept in a spill block, or where its worker has it.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct Held {
    pub(in crate::engine) rank: Rank,
    /// The round it is for; 0 is the initial value.
    pub(in crate::engine) round: u64,
    pub(in crate::engine) operation: Operation,
    pub(in crate::engine) bytes: u64,
    pub(in crate::engine) from: Source,
    /// Is it all there? Not while it is being read out of the worker's memory.
    pub(in crate::engine) arrived: bool,
}

impl Held {
    /// Does it need the worker's memory still?
    pub(super) fn is_in_worker_memory(&self) -> bool {
        !self.arrived || matches!(self.from, Source::Worker { .. })
    }
}

/// See the module. One of a rank and round at most.
#[derive(Debug, Default)]
pub(super) struct HeldSet {
    /// Those whose turn is next are at the front, from where they leave at no cost.
    sorted: VecDeque<Held>,
}

impl HeldSet {
    pub(super) fn insert(&mut self, held: Held) {
        let at = self.sorted.partition_point(|other| (other.round, other.rank) < (held.round, held.rank));
        self.sorted.insert(at, held);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sorted.is_empty()
    }

    fn find(&self, round: u64, rank: Rank) -> Option<usize> {
        self.sorted.binary_search_by_key(&(round, rank), |held| (held.round, held.rank)).ok()
    }

    pub(super) fn contains(&self, round: u64, rank: Rank) -> bool {
        self.find(round, rank).is_some()
    }

    /// Is it there, and not still being read?
    pub(super) fn has_arrived(&self, round: u64, rank: Rank) -> bool {
        self.find(round, rank).is_some_and(|at| self.sorted[at].arrived)
    }

    /// Is the initial value being read?
    pub(super) fn has_initial(&self) -> bool {
        self.sorted.front().is_some_and(|held| held.round == 0)
    }

    /// What is in the worker's memory only, of this operation.
    pub(super) fn in_worker_memory(&mut self, rank: Rank, operation: Operation) -> Option<&mut Held> {
        let is_it =
            |held: &&mut Held| held.rank == rank && held.operation == operation && held.is_in_worker_memory();
        self.sorted.iter_mut().find(is_it)
    }

    pub(super) fn of_round(&self, round: u64) -> impl Iterator<Item = &Held> {
        let first = self.sorted.partition_point(|held| held.round < round);
        self.sorted.iter().skip(first).take_while(move |held| held.round == round)
    }

    pub(super) fn of_rank(&self, rank: Rank) -> impl Iterator<Item = &Held> {
        self.sorted.iter().filter(move |held| held.rank == rank)
    }

    /// A rank's contributions are of operations before all that come from now on.
    pub(super) fn forget_operations(&mut self, rank: Rank) {
        let of_it = self.sorted.iter_mut().filter(|held| held.rank == rank);
        of_it.for_each(|held| held.operation = Operation(0));
    }

    /// Takes the first that has arrived and, of its rank, is the first of all and `is_next`.
    pub(super) fn take_in_turn(&mut self, is_next: impl Fn(&Held) -> bool) -> Option<Held> {
        let is_first =
            |at: usize, held: &Held| self.sorted.iter().take(at).all(|other| other.rank != held.rank);
        let mut all = self.sorted.iter().enumerate();
        let found = all.find(|(at, held)| held.arrived && is_next(held) && is_first(*at, held));
        let (at, _) = found?;
        self.sorted.remove(at)
    }

    /// Takes one that has arrived and is for a round before this one.
    pub(super) fn take_before(&mut self, round: u64) -> Option<Held> {
        let mut before = self.sorted.iter().take_while(|held| held.round < round);
        let at = before.position(|held| held.arrived)?;
        self.sorted.remove(at)
    }

    /// Takes a rank's contribution to a round, if it has arrived.
    pub(super) fn take(&mut self, round: u64, rank: Rank) -> Option<Held> {
        let at = self.find(round, rank).filter(|at| self.sorted[*at].arrived)?;
        self.sorted.remove(at)
    }

    /// Takes anybody's contribution to a round.
    pub(super) fn take_any(&mut self, round: u64) -> Option<Held> {
        let rank = self.of_round(round).find(|held| held.arrived)?.rank;
        self.take(round, rank)
    }

    /// What was read into this block is there; the round it is for. An initial value is not held any more.
    pub(super) fn arrive(&mut self, rank: Rank, from: Source) -> Option<u64> {
        let at =
            self.sorted.iter().position(|held| held.rank == rank && held.from == from && !held.arrived)?;
        let held = &mut self.sorted[at];
        held.arrived = true;
        let round = held.round;
        if round == 0 {
            self.sorted.remove(at);
        }
        Some(round)
    }

    /// Drops what is in this rank's memory only, each told to `dropped`.
    pub(super) fn drop_unread(&mut self, rank: Rank, mut dropped: impl FnMut(&Held)) {
        self.sorted.retain(|held| {
            let drops = held.rank == rank && held.is_in_worker_memory();
            if drops {
                dropped(held);
            }
            !drops
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(round: u64, rank: u32, arrived: bool) -> Held {
        let (operation, from) = (Operation(round), Source::Spill(rank));
        Held { rank: Rank(rank), round, operation, bytes: 4, from, arrived }
    }

    #[test]
    fn whatever_the_order_of_arrival_each_is_found_by_round_and_rank() {
        let mut set = HeldSet::default();
        for (round, rank, arrived) in [(2, 1, true), (1, 9, true), (1, 3, false), (2, 0, true), (1, 7, true)]
        {
            set.insert(held(round, rank, arrived));
        }
        assert!(set.contains(1, Rank(3)) && !set.has_arrived(1, Rank(3)) && !set.contains(1, Rank(0)));
        assert!(set.in_worker_memory(Rank(3), Operation(1)).is_some() && !set.has_initial());
        assert_eq!(set.of_round(1).map(|held| held.rank.0).collect::<Vec<_>>(), [3, 7, 9]);
        assert!(set.take(1, Rank(3)).is_none(), "it is still being read");
        assert_eq!(set.take_any(1).map(|held| held.rank), Some(Rank(7)));
        assert_eq!(set.take(2, Rank(0)).map(|held| held.round), Some(2));
        assert_eq!(set.arrive(Rank(3), Source::Spill(3)), Some(1));
        assert_eq!(set.arrive(Rank(3), Source::Spill(3)), None, "once");
        assert!(set.take(1, Rank(3)).is_some() && set.take(1, Rank(3)).is_none());
    }

    #[test]
    fn an_initial_value_leaves_as_it_arrives_and_what_is_unread_goes_with_its_worker() {
        let mut set = HeldSet::default();
        set.insert(held(1, 0, true));
        set.insert(held(1, 5, false));
        set.insert(held(0, 0, false));
        assert!(set.has_initial());
        assert_eq!(set.arrive(Rank(0), Source::Spill(0)), Some(0));
        assert!(!set.has_initial() && set.contains(1, Rank(0)));
        let mut dropped = Vec::new();
        let there = Source::Worker { peer: Rank(5), region: 1, offset: 0, bytes: 4 };
        set.insert(Held { from: there, ..held(2, 5, true) });
        set.drop_unread(Rank(5), |held| dropped.push(held.round));
        set.drop_unread(Rank(0), |held| dropped.push(held.round));
        assert_eq!(dropped, [1, 2], "what has arrived stays, but for what is read where the worker has it");
    }
}
