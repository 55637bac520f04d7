//! Which scheduler may decide if the network is divided and another scheduler may run. A decision is in force only when a majority of
//! the roster before it has received it, and a restarted scheduler decides only when a majority has elected it. `docs/recovery.md`
//! explains the reasons ("A divided network"). This module must not know the content of decisions.
//!
//! A process that has exited is on neither side of a division, so it counts for no majority. Only a goodbye, a failure report or a
//! closed connection proves an exit. Silence does not. A process that is refused because it was declared failed says goodbye, too.
//!
//! ```text
//!   decisions ──▶ has_more ──step: none is proposed──▶ proposed ──step: a majority of each roster has heard──▶ in force
//!
//!   in contact ──judge: the others are no majority──▶ lost since lost_ms ──for scheduler_ms──▶ the job ends here
//!        ▲──────────────judge: they are one────────────┘
//! ```

use super::member::ConnectionId;
use proto_common::ids::{Epoch, Incarnation, MemberId};
use proto_common::message::FromScheduler;
use std::collections::{BTreeMap, BTreeSet};

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
    let of = || roster.iter().filter(|life| !exited.contains(life)); // those that have not exited
    let (all, there) = (of().count(), of().filter(|life| is_there(life)).count());
    2 * there > all || 2 * there == all && of().next().is_none_or(is_there)
}

/// Decisions that were sent to the members and are not in force yet.
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
    /// Decisions were sent to members since the last proposal.
    has_more: bool,
    exited: BTreeSet<Incarnation>,
    /// Since when the scheduler has heard from no majority.
    lost_ms: Option<u64>,
    /// Members that leave, each with the epoch of the roster without it. A goodbye is answered when that epoch is proposed. If it were
    /// answered earlier and the scheduler failed, the next scheduler would wait for a member that has exited.
    leaving: Vec<(Epoch, ConnectionId)>,
    /// Processes that were refused. Each counts until it has said goodbye, for which it has until this time.
    refused: BTreeMap<ConnectionId, (Incarnation, u64)>,
}

impl Quorum {
    /// The state of a scheduler that continues with these rosters.
    pub(super) fn of(rosters: Vec<Lives>, exited: BTreeSet<Incarnation>) -> Self {
        Self { rosters, exited, ..Self::default() }
    }

    /// The rosters that may be in force.
    pub(super) fn rosters(&self) -> Vec<Lives> {
        distinct(self.rosters.iter().cloned().chain(self.proposed.iter().map(|one| one.roster.clone())))
    }

    /// Answers a goodbye once the decisions up to this epoch have been proposed.
    pub(super) fn let_go(&mut self, epoch: Epoch, connection: ConnectionId) {
        self.leaving.push((epoch, connection));
    }

    /// Does this connection wait for the answer to its goodbye?
    pub(super) fn is_leaving(&self, connection: ConnectionId) -> bool {
        self.leaving.iter().any(|(_, leaving)| *leaving == connection)
    }

    /// Connections whose goodbye may be answered now: all, or those whose departure has been proposed.
    pub(super) fn may_go(&mut self, all: bool) -> Vec<ConnectionId> {
        let proposed = self.proposed.as_ref().map(|one| one.epoch);
        let may = |(epoch, _): &mut (Epoch, ConnectionId)| {
            all || !self.has_more || proposed.is_some_and(|proposed| *epoch <= proposed)
        };
        self.leaving.extract_if(.., may).map(|(_, connection)| connection).collect()
    }

    /// Is a proposal still without a majority?
    pub(super) fn has_undecided(&self) -> bool {
        self.proposed.is_some()
    }

    pub(super) fn exited(&self) -> &BTreeSet<Incarnation> {
        &self.exited
    }

    /// This process has exited, or will exit without following another scheduler.
    pub(super) fn exits(&mut self, life: Incarnation) {
        self.exited.insert(life);
    }

    /// A process that was declared failed is refused on this connection, and says goodbye by then.
    pub(super) fn refuse(&mut self, connection: ConnectionId, life: Incarnation, until_ms: u64) {
        self.refused.insert(connection, (life, until_ms));
    }

    /// Was a process refused on this connection that has not said goodbye?
    pub(super) fn has_refused(&self, connection: ConnectionId) -> bool {
        self.refused.contains_key(&connection)
    }

    /// A refused process has said goodbye.
    pub(super) fn refused_exits(&mut self, connection: ConnectionId) {
        if let Some((life, _)) = self.refused.remove(&connection) {
            self.exits(life);
        }
    }

    /// Refused processes that have not said goodbye in time: their connections are closed.
    pub(super) fn expire(&mut self, now_ms: u64) -> Vec<ConnectionId> {
        let mut late = Vec::new();
        self.refused.retain(|connection, (_, until_ms)| {
            let is_late = *until_ms <= now_ms;
            if is_late {
                late.push(*connection);
            }
            !is_late
        });
        late
    }

    /// A connection has closed.
    pub(super) fn forget(&mut self, connection: ConnectionId) {
        self.refused.remove(&connection);
    }

    /// Are these members a majority of each roster that may be in force?
    pub(super) fn has(&self, is_there: impl Fn(&Incarnation) -> bool) -> bool {
        self.rosters.iter().all(|roster| is_majority(roster, &self.exited, &is_there))
    }

    /// Decisions have been sent to the members.
    pub(super) fn add_decisions(&mut self) {
        self.has_more = true;
    }

    /// What is proposed next, or is in force, if there is anything. There is one proposal at a time. `is_alone`: no other scheduler
    /// can decide anything.
    pub(super) fn step(
        &mut self,
        is_alone: bool,
        epoch: Epoch,
        roster: impl FnOnce() -> Lives,
    ) -> Option<FromScheduler> {
        if let Some(epoch) = self.decide(is_alone) {
            return Some(FromScheduler::Decided { epoch });
        }
        if !self.has_more || self.proposed.is_some() {
            return None;
        }
        self.has_more = false;
        self.proposed = Some(Proposed { epoch, roster: roster(), heard: BTreeSet::new() });
        Some(FromScheduler::Proposed { epoch, rosters: self.rosters.clone() })
    }

    /// A member has received the decisions up to this epoch.
    pub(super) fn heard(&mut self, life: Incarnation, epoch: Epoch) {
        if let Some(proposed) = self.proposed.as_mut().filter(|proposed| proposed.epoch <= epoch) {
            proposed.heard.insert(life);
        }
    }

    /// Only these members are heard of. If they must be a majority and are none: since when.
    pub(super) fn judge(&mut self, now_ms: u64, needs_none: bool, there: &BTreeSet<Incarnation>) -> Contact {
        if needs_none || self.has(|life| there.contains(life)) {
            self.lost_ms = None;
            return Contact::Held;
        }
        let is_new = self.lost_ms.is_none();
        Contact::Lost { since_ms: *self.lost_ms.get_or_insert(now_ms), is_new }
    }

    /// Is no majority heard of?
    pub(super) fn is_lost(&self) -> bool {
        self.lost_ms.is_some()
    }

    /// How many processes of the rosters in force are neither heard nor known to have exited.
    pub(super) fn unheard(&self, is_there: impl Fn(&Incarnation) -> bool) -> usize {
        let lives: BTreeSet<_> = self.rosters.iter().flatten().collect();
        lives.into_iter().filter(|life| !self.exited.contains(life) && !is_there(life)).count()
    }

    /// The proposal is in force once a majority of each roster has received it. Returns its epoch then.
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

/// Removes duplicates. If several schedulers fail one after another before they decide, each of them has reported the same roster.
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
            "the member reports more than {ROSTERS_MAX} undecided rosters, or one with more than {places} members"
        )),
    }
}

/// Whether a majority is heard of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Contact {
    Held,
    Lost {
        since_ms: u64,
        /// It was held before.
        is_new: bool,
    },
}

/// An election among the members that have registered with a restarted scheduler.
#[derive(Clone, Debug)]
pub(super) struct Election {
    term: u32,
    asked: BTreeSet<ConnectionId>,
    votes: BTreeSet<Incarnation>,
}

impl Election {
    pub(super) fn new(term: u32) -> Self {
        Self { term, asked: BTreeSet::new(), votes: BTreeSet::new() }
    }

    pub(super) fn term(&self) -> u32 {
        self.term
    }

    /// True if this member has not been asked for its vote.
    pub(super) fn ask(&mut self, connection: ConnectionId) -> bool {
        self.asked.insert(connection)
    }

    /// A member has voted in the election of this term.
    pub(super) fn vote(&mut self, life: Incarnation, term: u32) {
        if term == self.term {
            self.votes.insert(life);
        }
    }

    pub(super) fn has_vote(&self, life: &Incarnation) -> bool {
        self.votes.contains(life)
    }
}

/// The names of members for an error or a log: the first ones, and the number of the others.
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
                    // The second side knows of all exits, or of none.
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
    fn a_decision_is_in_force_when_a_majority_of_the_roster_before_has_heard_of_it() {
        let at = |counter| Epoch { term: 1, counter };
        let mut quorum = Quorum::of(vec![lives(0..3)], BTreeSet::new());
        let step = |quorum: &mut Quorum, counter| quorum.step(false, at(counter), || lives(0..2));
        assert_eq!(step(&mut quorum, 1), None, "nothing is decided");
        quorum.add_decisions();
        let proposed = FromScheduler::Proposed { epoch: at(1), rosters: vec![lives(0..3)] };
        assert_eq!(step(&mut quorum, 1), Some(proposed));
        quorum.heard(Incarnation(2), at(0));
        quorum.heard(Incarnation(0), at(1));
        quorum.add_decisions();
        assert_eq!(step(&mut quorum, 2), None, "one of three; the next decision waits");
        quorum.heard(Incarnation(1), at(1));
        assert_eq!(step(&mut quorum, 2), Some(FromScheduler::Decided { epoch: at(1) }));
        assert_eq!(quorum.rosters(), [lives(0..2)]);
        assert!(matches!(step(&mut quorum, 2), Some(FromScheduler::Proposed { .. })));
    }

    #[test]
    fn contact_is_lost_until_a_majority_is_heard_of_again() {
        let mut quorum = Quorum::of(vec![lives(0..3)], BTreeSet::new());
        let (one, two) = (BTreeSet::from([Incarnation(2)]), BTreeSet::from([Incarnation(1), Incarnation(2)]));
        assert_eq!(quorum.judge(5, false, &one), Contact::Lost { since_ms: 5, is_new: true });
        assert_eq!(quorum.judge(9, false, &one), Contact::Lost { since_ms: 5, is_new: false });
        assert!(quorum.is_lost());
        assert_eq!(quorum.judge(9, false, &two), Contact::Held);
        assert_eq!(quorum.judge(11, true, &one), Contact::Held, "none is needed");
        assert!(!quorum.is_lost());
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
