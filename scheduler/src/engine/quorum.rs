//! Which scheduler may decide if the network is divided and another scheduler may run. A decision is in force only when a majority of
//! the roster before it has received it, and a restarted scheduler decides only when a majority has elected it. `docs/recovery.md`
//! explains the reasons ("A divided network"). This module must not know the content of decisions.
//!
//! A process that has exited is on neither side of a division, so it counts for no majority. Only a goodbye, a failure report or a
//! closed connection proves an exit. Silence does not.

use super::{Command, ConnectionId, Engine, Note, Outcome, Phase, let_go, send, send_to};
use proto_common::config::WorkerLoss;
use proto_common::error::{Death, DeathCause};
use proto_common::ids::{Epoch, Incarnation, MemberId, Role};
use proto_common::message::FromScheduler;
use std::collections::BTreeSet;

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

    /// Connections whose goodbye may be answered now: all, or those whose departure has been proposed.
    fn may_go(&mut self, all: bool) -> Vec<ConnectionId> {
        let proposed = self.proposed.as_ref().map(|one| one.epoch);
        let may = |(epoch, _): &mut (Epoch, ConnectionId)| {
            all || !self.has_more || proposed.is_some_and(|proposed| *epoch <= proposed)
        };
        self.leaving.extract_if(.., may).map(|(_, connection)| connection).collect()
    }

    /// Is a proposal still without a majority?
    #[cfg(test)]
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

    fn has(&self, is_there: impl Fn(&Incarnation) -> bool) -> bool {
        self.rosters.iter().all(|roster| is_majority(roster, &self.exited, &is_there))
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

/// An election among the members that have registered with a restarted scheduler.
#[derive(Clone, Debug)]
pub(super) struct Election {
    pub(super) term: u32,
    asked: BTreeSet<ConnectionId>,
    votes: BTreeSet<Incarnation>,
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

impl Engine {
    /// After each step: proposes its decisions. There is one proposal at a time; it is in force when a majority has received it.
    pub(super) fn propose(&mut self, out: &mut Vec<Command>) {
        if self.phase == Phase::Running {
            self.propose_and_decide(out);
        }
        for connection in self.quorum.may_go(self.phase != Phase::Running) {
            out.extend(let_go(connection));
        }
    }

    /// Members exit at once if they lose this scheduler, so no other scheduler can decide anything.
    fn is_alone(&self) -> bool {
        self.config.shape.scheduler_ms == 0
    }

    fn propose_and_decide(&mut self, out: &mut Vec<Command>) {
        let is_decision = |command: &Command| {
            matches!(command, Command::Send { message, .. }
                if matches!(**message, FromScheduler::Roster { .. } | FromScheduler::Remap { .. }))
        };
        self.quorum.has_more |= out.iter().any(is_decision);
        loop {
            let is_alone = self.is_alone();
            let message = if let Some(epoch) = self.quorum.decide(is_alone) {
                FromScheduler::Decided { epoch }
            } else if self.quorum.has_more && self.quorum.proposed.is_none() {
                let there = self.members.values().filter(|member| !member.gone);
                let roster = there.map(|member| member.incarnation).collect();
                self.quorum.has_more = false;
                self.quorum.proposed = Some(Proposed { epoch: self.epoch, roster, heard: BTreeSet::new() });
                FromScheduler::Proposed { epoch: self.epoch, rosters: self.quorum.rosters.clone() }
            } else {
                return;
            };
            let to = self.present(|_| true);
            if !to.is_empty() {
                out.push(send_to(to, message));
            }
        }
    }

    /// A member has received the decisions up to this epoch.
    pub(super) fn heard(&mut self, id: MemberId, epoch: Epoch) {
        let Some(member) = self.members.get(&id).filter(|_| epoch <= self.epoch) else { return };
        if let Some(proposed) = self.quorum.proposed.as_mut().filter(|proposed| proposed.epoch <= epoch) {
            proposed.heard.insert(member.incarnation);
        }
    }

    /// Members that are silent, or look for another scheduler, are dropped only if the remaining members are a majority. Otherwise the
    /// silent members may be a majority that follows another scheduler. Without a majority the job waits for `deadlines.scheduler_ms`.
    pub(super) fn keeps_majority(
        &mut self,
        now_ms: u64,
        silent: &[MemberId],
        out: &mut Vec<Command>,
    ) -> bool {
        let is_heard = |(id, member): &(&MemberId, &super::Member)| !member.gone && !silent.contains(id);
        let there: BTreeSet<Incarnation> =
            self.members.iter().filter(is_heard).map(|(_, member)| member.incarnation).collect();
        // If the loss of a silent member ends the job anyway, no majority is needed: there are no decisions after it.
        let shape = &self.config.shape;
        let ends = |id: &MemberId| match id.role {
            Role::Server => shape.replicas == 0,
            _ => shape.worker_loss == WorkerLoss::Stop,
        };
        let needs_none = self.phase != Phase::Running || self.is_alone() || silent.iter().any(ends);
        if needs_none || self.quorum.has(|life| there.contains(life)) {
            self.quorum.lost_ms = None;
            return true;
        }
        let is_new = self.quorum.lost_ms.is_none();
        let lost_ms = *self.quorum.lost_ms.get_or_insert(now_ms);
        if is_new {
            self.note(Note::Minority { silent: silent.to_vec(), ends_ms: self.config.shape.scheduler_ms });
        }
        let (waited_ms, limit_ms) = (now_ms.saturating_sub(lost_ms), self.config.shape.scheduler_ms);
        if waited_ms >= limit_ms {
            let silent_ms = waited_ms.saturating_add(self.config.shape.silence_ms);
            let member = silent.first().copied();
            let member = member.unwrap_or(MemberId { role: Role::Scheduler, rank: Default::default() });
            let what = format!(
                "the scheduler reaches no majority of the members ({} silent) for deadlines.scheduler_ms = {limit_ms} ms, and the \
                 silent members may continue with another scheduler; check the network. If no other scheduler runs, restart \
                 the job from a checkpoint",
                named(silent)
            );
            let cause = DeathCause::Beyond { cause: Box::new(DeathCause::Silent { silent_ms }), what };
            self.end(now_ms, Outcome::Died(Death { member, cause }), out);
        }
        false
    }

    /// Whether this process may register again: this scheduler has no majority, and the process is a member that has abandoned it and has
    /// found no other scheduler.
    pub(super) fn may_return(&self, life: Incarnation) -> bool {
        let is_it = |member: &super::Member| member.incarnation == life && !member.left;
        self.quorum.lost_ms.is_some() && self.members.values().any(is_it)
    }

    /// Has a majority of each roster that may be in force registered with this restarted scheduler?
    pub(super) fn has_quorum(&self) -> bool {
        self.quorum_of_rebuild().has(|life| self.rebuild.is_back(*life))
    }

    /// Processes that count for no majority: exited and leaving ones, and, with `--force`, all that have not registered.
    fn exited_before(&self) -> BTreeSet<Incarnation> {
        let mut exited: BTreeSet<Incarnation> = self.quorum.exited.clone();
        exited.extend(self.rebuild.leaving());
        if self.config.force {
            let all = self.rebuild.rosters().into_iter().flatten();
            exited.extend(all.filter(|life| !self.rebuild.is_back(*life)));
        }
        exited
    }

    /// Asks the members that have registered for their votes, and counts the votes. A member votes once in a term, so of two schedulers
    /// with the same members at most one is elected.
    pub(super) fn is_elected(&mut self, out: &mut Vec<Command>) -> bool {
        if !self.has_quorum() {
            let missing = self.rebuild.not_back();
            if self.rebuild.said_missing.as_ref() != Some(&missing) {
                self.note(Note::NoQuorum { missing: missing.clone() });
                self.rebuild.said_missing = Some(missing);
            }
            return false;
        }
        // Higher than every term that a member has reported. The scheduler's own term grows by one each time it was suspended.
        let term = self.config.term.max(self.rebuild.term().max(self.epoch.term).saturating_add(1));
        // If the member that had reported the highest term has gone, the others have already voted in that election: keep its term.
        let term = self.rebuild.election.as_ref().map_or(term, |election| term.max(election.term));
        let fresh = || Election { term, asked: BTreeSet::new(), votes: BTreeSet::new() };
        let mut election = self.rebuild.election.take().filter(|one| one.term == term).unwrap_or_else(fresh);
        for connection in self.rebuild.back() {
            if election.asked.insert(connection) {
                out.push(send(connection, FromScheduler::Candidate { term }));
            }
        }
        let is_elected = self.quorum_of_rebuild().has(|life| election.votes.contains(life));
        self.rebuild.election = Some(election);
        is_elected
    }

    /// A member that has registered with a restarted scheduler votes for it.
    pub(super) fn voted(&mut self, now_ms: u64, from: ConnectionId, epoch: Epoch, out: &mut Vec<Command>) {
        let Some(life) = self.rebuild.life_on(from) else { return };
        if let Some(election) = &mut self.rebuild.election
            && election.term == epoch.term
        {
            election.votes.insert(life);
        }
        self.rebuild_if_whole(now_ms, out);
    }

    /// The quorum that a restarted scheduler begins with.
    pub(super) fn quorum_of_rebuild(&self) -> Quorum {
        Quorum::of(self.rebuild.rosters(), self.exited_before())
    }
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
