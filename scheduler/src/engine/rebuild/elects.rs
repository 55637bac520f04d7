//! Elections: which members have registered with a restarted scheduler, and the end of its wait for a majority.

use super::super::quorum::{Lives, distinct};
use super::super::{Command, ConnectionId, Engine, Outcome};
use super::{Arrival, Rebuild};
use proto_common::config::WorkerLoss;
use proto_common::ids::{Incarnation, MemberId, Role};

impl Rebuild {
    /// The rosters that may be in force: the newest, and earlier ones if no member knows that a newer one is in force.
    pub(in super::super) fn rosters(&self) -> Vec<Lives> {
        let newest = self.members.iter().map(|member| member.incarnation).collect();
        distinct(self.rosters.iter().cloned().chain([newest]))
    }

    fn whole(&self) -> impl Iterator<Item = (&ConnectionId, &Arrival)> {
        self.arrivals.iter().filter(|(_, arrival)| arrival.is_whole)
    }

    /// Connections of the members that have registered and reported everything.
    pub(in super::super) fn back(&self) -> Vec<ConnectionId> {
        self.whole().map(|(connection, _)| *connection).collect()
    }

    /// Has this process registered and reported everything?
    pub(in super::super) fn is_back(&self, life: Incarnation) -> bool {
        self.whole().any(|(_, arrival)| arrival.register.incarnation == life)
    }

    /// The process that has reported everything on this connection.
    pub(in super::super) fn life_on(&self, connection: ConnectionId) -> Option<Incarnation> {
        let arrival = self.arrivals.get(&connection).filter(|arrival| arrival.is_whole);
        arrival.map(|arrival| arrival.register.incarnation)
    }

    /// Has any member reported a roster?
    pub(in super::super) fn has_roster(&self) -> bool {
        !self.members.is_empty()
    }

    /// Members of the newest roster that have not registered.
    pub(in super::super) fn not_back(&self) -> Vec<MemberId> {
        self.members.iter().filter(|member| self.came(member).is_none()).map(|member| member.id).collect()
    }

    /// Members that have said goodbye. They follow no scheduler any more, so they count for no majority.
    pub(in super::super) fn leaving(&self) -> impl Iterator<Item = Incarnation> {
        let leaves = |arrival: &&Arrival| {
            let resume = arrival.register.resume.as_ref();
            resume.is_some_and(|resume| resume.leaves)
        };
        self.whole().map(|(_, arrival)| arrival).filter(leaves).map(|arrival| arrival.register.incarnation)
    }

    /// Are the leaving members the last workers?
    fn ends_with_leaving(&self, places: usize, waits_for_the_dead: bool) -> bool {
        let of_workers = |life: &Incarnation| {
            self.members.iter().any(|member| member.incarnation == *life && member.id.role == Role::Worker)
        };
        let leaving: Vec<Incarnation> = self.leaving().filter(of_workers).collect();
        let mut workers = self.members.iter().filter(|member| member.id.role == Role::Worker);
        let left = self.left.len() + leaving.len();
        !leaving.is_empty()
            && workers.all(|worker| leaving.contains(&worker.incarnation))
            && (left >= places || !waits_for_the_dead)
    }

    /// The highest term that a registered member has voted for or obeyed.
    pub(in super::super) fn term(&self) -> u32 {
        self.arrivals.values().map(|arrival| arrival.term).max().unwrap_or(0)
    }
}

impl Engine {
    /// Do the reports of the members show that every worker has left? Then the only decision is to end the job.
    pub(super) fn was_over(&self) -> bool {
        let shape = &self.config.shape;
        let (places, waits) = (shape.workers as usize, shape.worker_loss == WorkerLoss::Wait);
        self.rebuild.is_over(places, waits) || self.rebuild.ends_with_leaving(places, waits)
    }

    /// When the election begins although members are missing. Without a majority, or during the vote: when the scheduler gives up.
    pub(super) fn election_due_ms(&self, since_ms: u64) -> u64 {
        let shape = &self.config.shape;
        match self.was_over() || self.rebuild.election.is_none() && self.has_quorum() {
            true => since_ms.saturating_add(shape.silence_ms),
            false => since_ms.saturating_add(shape.scheduler_ms.max(2 * shape.silence_ms)),
        }
    }

    /// No majority has elected this scheduler in time: the missing members may follow another scheduler.
    pub(super) fn end_without_quorum(&mut self, now_ms: u64, out: &mut Vec<Command>) {
        let missing = self.rebuild.not_back();
        let since_ms = self.rebuild.since_ms.unwrap_or(self.started_ms);
        let waited_ms = now_ms.saturating_sub(since_ms);
        if now_ms < self.election_due_ms(since_ms) {
            return;
        }
        self.turn_away(
            "no majority of the members has registered with the restarted scheduler within deadlines.scheduler_ms, and the \
             missing members may follow another scheduler; if no other scheduler runs, restart the job from a checkpoint",
            out,
        );
        self.end(now_ms, Outcome::Incomplete { waited_ms, missing }, out);
    }
}
