//! Who may decide, where the network is divided and another scheduler may run: a decision is in force only when a majority of the
//! roster before it has heard of it, and a restarted scheduler decides only when a majority has elected it. `docs/recovery.md` says why
//! ("A divided network"). It must not know what is decided.
//!
//! A process that has exited is on neither side of a division, so it counts for no majority. Only a goodbye, a failure report or a
//! closed connection proves an exit. Silence does not.

use super::member::ConnectionId;
use proto_common::ids::{Epoch, Incarnation, MemberId};
use std::collections::BTreeSet;

mod deciding;

/// Rosters that may be in force at once: one, and one more for each scheduler that failed while it decided.
const ROSTERS_MAX: usize = 16;

/// The processes of a roster, servers first, by rank.
pub(super) type Lives = Vec<Incarnation>;

/// Whether these members are a majority of the roster: more than half of the processes that have not exited, or exactly half
/// including the first.
fn is_majority(
    roster: &[Incarnation],
    exited: &BTreeSet<Incarnation>,
    is_there: impl Fn(&Incarnation) -> bool,
) -> bool {
    let of = || roster.iter().filter(|life| !exited.contains(life));
    let (all, there) = (of().count(), of().filter(|life| is_there(life)).count());
    2 * there > all || 2 * there == all && of().next().is_none_or(is_there)
}

/// Decisions that members were sent, and that are not in force yet.
#[derive(Clone, Debug)]
struct Proposed {
    epoch: Epoch,
    roster: Lives,
    /// Members that have received them.
    heard: BTreeSet<Incarnation>,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Quorum {
    /// Rosters that may be in force: a decision needs a majority of each.
    rosters: Vec<Lives>,
    proposed: Option<Proposed>,
    /// Members were sent decisions that no proposal names yet.
    has_more: bool,
    exited: BTreeSet<Incarnation>,
    /// Since when no majority has been heard of.
    lost_ms: Option<u64>,
    /// Members that leave, each with the epoch at which the others hear of it. They are answered when that is proposed: if the
    /// scheduler failed before, then the next one would wait for a member that has gone.
    leaving: Vec<(Epoch, ConnectionId)>,
}

impl Quorum {
    /// Of a scheduler that continues with these rosters.
    pub(super) fn of(rosters: Vec<Lives>, exited: BTreeSet<Incarnation>) -> Self {
        Self { rosters, exited, ..Self::default() }
    }

    /// The rosters that may be in force.
    pub(super) fn rosters(&self) -> Vec<Lives> {
        distinct(self.rosters.iter().cloned().chain(self.proposed.iter().map(|one| one.roster.clone())))
    }

    /// Answers a goodbye once the others have heard of the decisions up to this epoch.
    pub(super) fn let_go(&mut self, epoch: Epoch, connection: ConnectionId) {
        self.leaving.push((epoch, connection));
    }

    /// Those that may go: all, or those whose leaving is proposed.
    fn may_go(&mut self, all: bool) -> Vec<ConnectionId> {
        let proposed = self.proposed.as_ref().map(|one| one.epoch);
        let may = |(epoch, _): &mut (Epoch, ConnectionId)| {
            all || !self.has_more || proposed.is_some_and(|proposed| *epoch <= proposed)
        };
        self.leaving.extract_if(.., may).map(|(_, connection)| connection).collect()
    }

    /// Does a proposal still lack its majority?
    #[cfg(test)]
    pub(super) fn has_undecided(&self) -> bool {
        self.proposed.is_some()
    }

    pub(super) fn exited(&self) -> &BTreeSet<Incarnation> {
        &self.exited
    }

    /// This process has exited, or will, and follows no other scheduler before.
    pub(super) fn exits(&mut self, life: Incarnation) {
        self.exited.insert(life);
    }

    fn has(&self, is_there: impl Fn(&Incarnation) -> bool) -> bool {
        self.rosters.iter().all(|roster| is_majority(roster, &self.exited, &is_there))
    }

    /// What was proposed is in force, once enough members have heard of it.
    fn decide(&mut self, is_alone: bool) -> Option<Epoch> {
        let heard = &self.proposed.as_ref()?.heard;
        if !is_alone && !self.has(|life| heard.contains(life)) {
            return None;
        }
        let Proposed { epoch, roster, .. } = self.proposed.take()?;
        self.exited.retain(|life| roster.contains(life));
        self.rosters = vec![roster];
        Some(epoch)
    }
}

/// Each roster once. If a scheduler fails again and again before it decides, then each of its successors finds the same one.
pub(super) fn distinct(rosters: impl Iterator<Item = Lives>) -> Vec<Lives> {
    let mut seen = Vec::new();
    rosters.for_each(|roster| {
        if !seen.contains(&roster) {
            seen.push(roster);
        }
    });
    seen
}

/// Checks the bounds of the rosters that a member reports. The error names the violated bound.
pub(super) fn check_rosters(had: usize, more: &[Lives], places: usize) -> Result<(), String> {
    match had + more.len() <= ROSTERS_MAX && more.iter().all(|roster| roster.len() <= places) {
        true => Ok(()),
        false => Err(format!(
            "it reports more than {ROSTERS_MAX} undecided rosters, or one with more than {places} members"
        )),
    }
}

/// An election among those who have come to a restarted scheduler.
#[derive(Clone, Debug)]
pub(super) struct Election {
    pub(super) term: u32,
    asked: BTreeSet<ConnectionId>,
    votes: BTreeSet<Incarnation>,
}

/// Members for an error or a log.
#[must_use]
pub fn named(members: &[MemberId]) -> String {
    const NAMED_MAX: usize = 8;
    let mut named: Vec<String> = members.iter().take(NAMED_MAX).map(ToString::to_string).collect();
    if members.len() > NAMED_MAX {
        named.push(format!("{} more", members.len() - NAMED_MAX));
    }
    named.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lives(numbers: impl IntoIterator<Item = u64>) -> Lives {
        numbers.into_iter().map(Incarnation).collect()
    }

    #[test]
    fn two_majorities_of_a_roster_share_a_member_whoever_has_exited() {
        for size in 1..=6u64 {
            let roster = lives(0..size);
            for exited in 0..1u64 << size {
                let gone: BTreeSet<Incarnation> =
                    lives(0..size).into_iter().filter(|life| exited >> life.0 & 1 == 1).collect();
                for alive in 0..1u64 << size {
                    // Each side knows of some exits, or of none.
                    let one = |life: &Incarnation| alive >> life.0 & 1 == 1 && !gone.contains(life);
                    let other = |life: &Incarnation| alive >> life.0 & 1 == 0 && !gone.contains(life);
                    for knows in [&gone, &BTreeSet::new()] {
                        let both = is_majority(&roster, &gone, one) && is_majority(&roster, knows, other);
                        assert!(!both || gone.len() as u64 == size, "{roster:?} {gone:?} {alive:b}");
                    }
                }
            }
        }
    }

    #[test]
    fn half_with_the_first_is_a_majority() {
        let is_one_of = |there: &'static [u64]| move |life: &Incarnation| there.contains(&life.0);
        let (roster, nobody) = (lives(0..4), BTreeSet::new());
        assert!(is_majority(&roster, &nobody, is_one_of(&[0, 3])));
        assert!(!is_majority(&roster, &nobody, is_one_of(&[1, 3])));
        assert!(!is_majority(&roster, &nobody, is_one_of(&[0])));
        let exited: BTreeSet<Incarnation> = lives([0, 2]).into_iter().collect();
        assert!(is_majority(&roster, &exited, is_one_of(&[1])), "of two that are left it is the first");
        assert!(!is_majority(&roster, &exited, is_one_of(&[3])));
    }
}
