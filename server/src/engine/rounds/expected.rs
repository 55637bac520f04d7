//! Who is expected in the round that is being collected, and whose turn it is. It must not know how contributions travel.

use super::{Rounds, Stage};
use crate::engine::ranks::RankSet;
use crate::engine::roster::Roster;
use proto_common::ids::{Key, Rank};
use proto_common::limits::RANKS_LISTED_MAX;

impl Rounds {
    /// Updates the ranks that the round expects, if they may have changed. A contribution that was reduced or is held still counts
    /// if its worker has left.
    pub(in crate::engine) fn renew(&mut self, key: Key, roster: &Roster) {
        let round = self.round();
        let as_of = roster.as_of(round);
        if self.as_of == as_of {
            return;
        }
        self.as_of = as_of;
        if !self.has_rounds() {
            self.expected.copy(roster.counting());
            return self.count_needed();
        }
        self.barred = roster.barred(key);
        // No rank is added after the first contribution was reduced: it would break the rank order.
        let begun = self.contributed.has_any().then(|| self.expected.clone());
        self.expected.copy(roster.counting());
        roster.absent_in(key, round).for_each(|rank| self.expected.remove(rank));
        let held = self.held.of_round(round).filter(|held| held.arrived);
        held.for_each(|held| self.expected.insert(held.rank));
        self.contributed.ranks().ranks().for_each(|rank| self.expected.insert(rank));
        if let Some(begun) = begun {
            self.expected.retain(&begun);
        }
        self.count_needed();
    }

    /// How many contributions make a version: a worker that has gone is one that is not waited for.
    pub(super) fn count_needed(&mut self) {
        let all = self.expected.limit().saturating_sub(self.backup_workers).min(self.expected.len());
        let has_rounds = self.has_rounds();
        self.needed = if has_rounds { all.max(1) } else { 1 };
        if let Some(tally) = self.tally.as_mut().filter(|_| !has_rounds) {
            tally.count(&self.expected);
        }
    }

    /// Is nobody left for the round being collected, while somebody counts in a later one? It ends with nothing then. All who
    /// counted in it have failed or left, in the time in which others came.
    pub(in crate::engine) fn is_vacant(&self, key: Key, roster: &Roster) -> bool {
        let is_open = self.expected.len() == 0 && self.has_nothing();
        let is_vacant = is_open && self.has_rounds() && !self.is_barred();
        is_vacant && roster.is_counted_after(key, self.round())
    }

    /// Is nothing of the round being collected begun before it is known who counts in it?
    pub(in crate::engine) fn is_barred(&self) -> bool {
        self.barred.is_some_and(|from| self.round() >= from)
    }

    /// Has everybody contributed who is still to come? Workers that others were expected beside may have gone.
    pub(in crate::engine) fn is_short(&self) -> bool {
        let has_all = self.contributed.has_any() && self.contributed.count() >= self.needed;
        has_all && self.has_rounds() && self.stage == Stage::Contributions && !self.is_initialising()
    }

    /// Ranks whose contributions could be reduced at once and have not come (the first few): a contribution that
    /// has to be tried again waits for these. None while it is readers that hold the round up, and none where contributions
    /// wait for no others.
    pub(in crate::engine) fn awaited(&self, deterministic: bool) -> Vec<Rank> {
        if !self.has_rounds() {
            return Vec::new();
        }
        let round = self.round();
        let absent = |rank: &Rank| {
            let has_come = self.contributed.contains(*rank) || self.held.has_arrived(round, *rank);
            self.is_turn(*rank, deterministic) && !has_come
        };
        self.expected.ranks().filter(absent).take(RANKS_LISTED_MAX).collect()
    }

    /// Adds the ranks that the round being collected still waits for. `present` is used for it, and says nothing afterwards.
    pub(in crate::engine) fn add_absent(&self, present: &mut RankSet, absent: &mut RankSet) {
        present.copy(self.contributed());
        let held = self.held.of_round(self.round()).filter(|held| held.arrived);
        held.for_each(|held| present.insert(held.rank));
        self.expected.without(present).for_each(|rank| absent.insert(rank));
    }

    /// Is nothing of the round being collected here?
    fn has_nothing(&self) -> bool {
        self.stage == Stage::Contributions && !self.contributed.has_any() && !self.is_initialising()
    }

    /// Whose turn it is where contributions are reduced in rank order; and who else may come, because one addition
    /// commutes: the first two in either order.
    pub(super) fn next_in_order(&self) -> (Option<Rank>, Option<Rank>) {
        let (next, other) = self.expected.first_two_without(self.contributed());
        (next, other.filter(|_| !self.contributed.has_payload()))
    }

    pub(super) fn is_turn(&self, rank: Rank, deterministic: bool) -> bool {
        let is_next = || {
            let (next, other) = self.next_in_order();
            next == Some(rank) || other == Some(rank)
        };
        let is_open = self.stage == Stage::Contributions && !self.is_initialising() && !self.is_barred();
        is_open && (!deterministic || is_next())
    }
}
