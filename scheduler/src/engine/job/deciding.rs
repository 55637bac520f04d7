//! Decisions that are not in force yet: proposals, elections, and the end of a scheduler that reaches no majority. It must not count
//! votes: `quorum` does.

use super::super::quorum::{Contact, Quorum, named};
use super::super::{Command, ConnectionId, Engine, Note, Outcome, Phase, let_go, send_to};
use proto_common::config::WorkerLoss;
use proto_common::error::{Death, DeathCause};
use proto_common::ids::{Epoch, Incarnation, MemberId, Role};
use proto_common::message::FromScheduler;
use std::collections::BTreeSet;

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
        if out.iter().any(is_decision) {
            self.quorum.add_decisions();
        }
        let (is_alone, members) = (self.is_alone(), &self.members);
        let roster = || members.there().map(|(_, member)| member.incarnation).collect();
        while let Some(message) = self.quorum.step(is_alone, self.epoch, roster) {
            let to = members.connections(|_| true);
            if !to.is_empty() {
                out.push(send_to(to, message));
            }
        }
    }

    /// A member has received the decisions up to this epoch.
    pub(super) fn heard(&mut self, id: MemberId, epoch: Epoch) {
        if let Some(member) = self.members.get(id).filter(|_| epoch <= self.epoch) {
            self.quorum.heard(member.incarnation, epoch);
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
        let heard = self.members.there().filter(|(id, _)| !silent.contains(id));
        let there: BTreeSet<Incarnation> = heard.map(|(_, member)| member.incarnation).collect();
        // If the loss of a silent member ends the job anyway, no majority is needed: there are no decisions after it.
        let shape = &self.config.shape;
        let ends = |id: &MemberId| match id.role {
            Role::Server => shape.replicas == 0,
            _ => shape.worker_loss == WorkerLoss::Stop,
        };
        let needs_none = self.phase != Phase::Running || self.is_alone() || silent.iter().any(ends);
        let Contact::Lost { since_ms, is_new } = self.quorum.judge(now_ms, needs_none, &there) else {
            return true;
        };
        let (waited_ms, limit_ms) = (now_ms.saturating_sub(since_ms), self.config.shape.scheduler_ms);
        if is_new {
            self.note(Note::Minority { silent: silent.to_vec(), ends_ms: limit_ms });
        }
        if waited_ms >= limit_ms {
            let silent_ms = waited_ms.saturating_add(self.config.shape.silence_ms);
            let member = silent.first().copied();
            let member = member.unwrap_or(MemberId { role: Role::Scheduler, rank: Default::default() });
            // Processes that failed while no scheduler ran have new processes in their places, and nobody has seen them exit.
            let whom = match silent {
                [] => format!("{} processes failed unseen", self.quorum.unheard(|life| there.contains(life))),
                _ => format!("{} silent", named(silent)),
            };
            let what = format!(
                "the scheduler reaches no majority of the members ({whom}) for deadlines.scheduler_ms = {limit_ms} ms, and these \
                 members may continue with another scheduler; check the network. If no other scheduler runs, restart the job from a \
                 checkpoint"
            );
            let cause = DeathCause::Beyond { cause: Box::new(DeathCause::Silent { silent_ms }), what };
            self.end(now_ms, Outcome::Died(Death { member, cause }), out);
        }
        false
    }

    /// Whether this process may register again: this scheduler has no majority, and the process is a member that has abandoned it and has
    /// found no other scheduler.
    pub(super) fn may_return(&self, life: Incarnation) -> bool {
        let mut members = self.members.iter();
        self.quorum.is_lost() && members.any(|(_, member)| member.incarnation == life && !member.left)
    }

    /// Has a majority of each roster that may be in force registered with this restarted scheduler?
    pub(super) fn has_quorum(&self) -> bool {
        self.quorum_of_rebuild().has(|life| self.rebuild.is_back(*life))
    }

    /// Processes that count for no majority: exited and leaving ones, and, with `--force`, all that have not registered.
    fn exited_before(&self) -> BTreeSet<Incarnation> {
        let mut exited: BTreeSet<Incarnation> = self.quorum.exited().clone();
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
            if self.rebuild.is_news(&missing) {
                self.note(Note::NoQuorum { missing });
            }
            return false;
        }
        // Higher than every term that a member has reported. The scheduler's own term grows by one each time it was suspended.
        let term = self.config.term.max(self.rebuild.term().max(self.epoch.term).saturating_add(1));
        self.rebuild.elect(term, out);
        self.quorum_of_rebuild().has(|life| self.rebuild.has_vote(life))
    }

    /// A member that has registered with a restarted scheduler votes for it.
    pub(super) fn voted(&mut self, now_ms: u64, from: ConnectionId, epoch: Epoch, out: &mut Vec<Command>) {
        if self.rebuild.vote(from, epoch.term) {
            self.rebuild_if_whole(now_ms, out);
        }
    }

    /// The quorum that a restarted scheduler begins with.
    pub(super) fn quorum_of_rebuild(&self) -> Quorum {
        Quorum::of(self.rebuild.rosters(), self.exited_before())
    }
}
