//! Elections among the members that have registered with a restarted scheduler. It must not count votes: `quorum` does.

use super::super::command::{Command, send};
use super::super::member::ConnectionId;
use super::super::quorum::{Election, Lives, distinct};
use super::{Arrival, Rebuild};
use proto_common::ids::{Incarnation, MemberId, Role};
use proto_common::message::FromScheduler;

impl Rebuild {
    /// The rosters that may be in force: the newest, and earlier ones if no member knows that a newer one is in force.
    pub(in super::super) fn rosters(&self) -> Vec<Lives> {
        let newest = self.members.iter().map(|member| member.incarnation).collect();
        distinct(self.rosters.iter().cloned().chain([newest]))
    }

    fn whole(&self) -> impl Iterator<Item = (&ConnectionId, &Arrival)> {
        self.arrivals.iter().filter(|(_, arrival)| arrival.is_whole)
    }

    /// Has this process registered and reported everything?
    pub(in super::super) fn is_back(&self, life: Incarnation) -> bool {
        self.whole().any(|(_, arrival)| arrival.register.incarnation == life)
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
        self.arrivals.values().filter(|arrival| arrival.leaves()).map(|arrival| arrival.register.incarnation)
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

    /// Had every worker left by what members report? Then the only decision is to end the job.
    pub(in super::super) fn was_over(&self, places: usize, waits_for_the_dead: bool) -> bool {
        self.is_over(places, waits_for_the_dead) || self.ends_with_leaving(places, waits_for_the_dead)
    }

    /// Do members vote?
    pub(in super::super) fn is_voting(&self) -> bool {
        self.election.is_some()
    }

    /// The term of the election.
    pub(in super::super) fn elected_term(&self) -> Option<u32> {
        self.election.as_ref().map(Election::term)
    }

    /// Asks the members that have reported everything for their votes, in this term or a later one.
    pub(in super::super) fn elect(&mut self, term: u32, out: &mut Vec<Command>) {
        // If the member that had reported the highest term has gone, the others have already voted in that election: keep its term.
        let term = self.elected_term().map_or(term, |elected| term.max(elected));
        let Self { arrivals, election, .. } = self;
        if election.as_ref().is_none_or(|election| election.term() != term) {
            *election = Some(Election::new(term));
        }
        let Some(election) = election else { return };
        for (connection, _) in arrivals.iter().filter(|(_, arrival)| arrival.is_whole) {
            if election.ask(*connection) {
                out.push(send(*connection, FromScheduler::Candidate { term }));
            }
        }
    }

    /// Has this process voted?
    pub(in super::super) fn has_vote(&self, life: &Incarnation) -> bool {
        self.election.as_ref().is_some_and(|election| election.has_vote(life))
    }

    /// The member that has reported everything on this connection votes. False if there is none.
    pub(in super::super) fn vote(&mut self, from: ConnectionId, term: u32) -> bool {
        let Some(arrival) = self.arrivals.get(&from).filter(|arrival| arrival.is_whole) else { return false };
        if let Some(election) = &mut self.election {
            election.vote(arrival.register.incarnation, term);
        }
        true
    }

    /// These are missing for a majority. True if that is not known yet.
    pub(in super::super) fn is_news(&mut self, missing: &[MemberId]) -> bool {
        let is_news = self.said_missing.as_deref() != Some(missing);
        if is_news {
            self.said_missing = Some(missing.to_vec());
        }
        is_news
    }

    /// Had every worker left in good order by the newest roster? Then the job was over, but for its last checkpoint, or its end had
    /// been told to some already.
    fn is_over(&self, places: usize, waits_for_the_dead: bool) -> bool {
        let has_worker = self.members.iter().any(|member| member.id.role == Role::Worker);
        !has_worker && !self.left.is_empty() && (self.left.len() >= places || !waits_for_the_dead)
    }
}
