//! A worker that comes in between rounds: servers are asked from which round of each tensor on it could count, and told the
//! highest of what they say. It must not know what a round is.

use super::member::Asked;
use super::{Command, Engine, send, send_to};
use proto_common::config::WorkerLoss;
use proto_common::ids::{Incarnation, Key, MemberId, Rank, Role};
use proto_common::message::{Coming, FromScheduler, RefusalReason, RoundsPart, RoundsSoFar};
use std::collections::BTreeMap;

impl Engine {
    /// What somebody who takes this place comes into.
    pub(super) fn comes_into(&self, id: MemberId) -> Coming {
        match self.config.shape.worker_loss {
            _ if self.phase != super::Phase::Running || id.role != Role::Worker => Coming::Start,
            WorkerLoss::Continue => Coming::Between,
            WorkerLoss::Wait | WorkerLoss::Stop => Coming::Again,
        }
    }

    /// A worker has come in between: its first rounds are asked for.
    pub(super) fn ask_rounds(&mut self, id: MemberId, incarnation: Incarnation, out: &mut Vec<Command>) {
        let deadline_ms = self.awake_ms.saturating_add(self.config.rejoin_ms);
        self.ask_rounds_until(id, incarnation, Some(deadline_ms), out);
    }

    fn ask_rounds_until(
        &mut self,
        id: MemberId,
        incarnation: Incarnation,
        deadline_ms: Option<u64>,
        out: &mut Vec<Command>,
    ) {
        if self.comes_into(id) != Coming::Between {
            return;
        }
        let unheard = |server: Rank| (server, RoundsSoFar::default());
        let servers = self.servers().there.into_iter().map(unheard).collect();
        out.push(self.to_all(Role::Server, FromScheduler::AskRounds { rank: id.rank, incarnation }));
        let asked = Asked { incarnation, servers, deadline_ms, rounds: BTreeMap::new() };
        self.comings.0.insert(id.rank, asked);
    }

    /// A scheduler that follows another one does not know who of the workers counts: servers do, and hold rounds for those of
    /// whom they were not told yet.
    pub(super) fn ask_again(&mut self, out: &mut Vec<Command>) {
        let there = self.members.iter().filter(|(id, member)| id.role == Role::Worker && !member.gone);
        let workers: Vec<_> = there.map(|(id, member)| (*id, member.incarnation)).collect();
        workers.into_iter().for_each(|(id, incarnation)| self.ask_rounds_until(id, incarnation, None, out));
    }

    /// A server's answer, or part of it.
    pub(super) fn rounds(
        &mut self,
        from: MemberId,
        rank: Rank,
        incarnation: Incarnation,
        part: RoundsPart,
        out: &mut Vec<Command>,
    ) {
        let Some(asked) = self.comings.0.get_mut(&rank).filter(|asked| asked.incarnation == incarnation)
        else {
            return;
        };
        let so_far = asked.servers.get_mut(&from.rank).filter(|_| from.role == Role::Server);
        let Some(rounds) = so_far.and_then(|so_far| so_far.take(part)) else { return };
        asked.servers.remove(&from.rank);
        for (key, round) in rounds {
            let first = asked.rounds.entry(key).or_default();
            *first = round.max(*first);
        }
        self.count_from(rank, out);
    }

    /// A server is gone: its answer is not waited for. What it served has its rounds from the copy.
    pub(super) fn count_without(&mut self, server: Rank, out: &mut Vec<Command>) {
        let waiting = self.comings.0.iter_mut();
        let ranks: Vec<Rank> =
            waiting.filter_map(|(rank, asked)| asked.servers.remove(&server).map(|_| *rank)).collect();
        ranks.into_iter().for_each(|rank| self.count_from(rank, out));
    }

    /// A worker is gone, or another life has its place.
    pub(super) fn forget_coming(&mut self, rank: Rank) {
        self.comings.0.remove(&rank);
    }

    /// Once all have answered: from which rounds on it counts.
    fn count_from(&self, rank: Rank, out: &mut Vec<Command>) {
        let Some(asked) = self.comings.0.get(&rank).filter(|asked| asked.servers.is_empty()) else { return };
        let to = self.present(|id| id.role == Role::Server || id.rank == rank);
        out.extend(told(rank, asked).map(|message| send_to(to.clone(), message)));
    }

    /// Servers did not say in time from which round on a worker could count: it is taken out, and nothing is held for it.
    pub(super) fn expire_comings(&mut self, now_ms: u64, out: &mut Vec<Command>) {
        if self.phase != super::Phase::Running {
            return;
        }
        let is_due =
            |asked: &Asked| !asked.servers.is_empty() && asked.deadline_ms.is_some_and(|at| at <= now_ms);
        let due = self.comings.0.iter().filter(|(_, asked)| is_due(asked));
        let due: Vec<(Rank, String)> = due.map(|(rank, asked)| (*rank, self.silence_of(asked))).collect();
        for (rank, why) in due {
            let id = MemberId { role: Role::Worker, rank };
            if let Some(member) = self.members.get(&id).filter(|member| !member.gone) {
                let refused = FromScheduler::Refused(RefusalReason::Misplaced(why.clone()));
                out.push(send(member.connection, refused));
            }
            self.forget_coming(rank);
            self.fault(now_ms, id, why, out);
        }
    }

    fn silence_of(&self, asked: &Asked) -> String {
        let servers: Vec<String> = asked.servers.keys().map(Rank::to_string).collect();
        format!(
            "servers {} did not report within {} ms (deadlines.rejoin_ms) from which round it contributes; check their logs, and \
             restart it",
            servers.join(", "),
            self.config.rejoin_ms
        )
    }

    /// What a server that comes later is told of those that came in between.
    pub(super) fn tell_comings(&self, to: super::ConnectionId, out: &mut Vec<Command>) {
        let whole = self.comings.0.iter().filter(|(_, asked)| asked.servers.is_empty());
        out.extend(whole.flat_map(|(rank, asked)| told(*rank, asked)).map(|message| send(to, message)));
    }
}

/// In as many parts as it takes, in a row.
fn told(rank: Rank, asked: &Asked) -> impl Iterator<Item = FromScheduler> + use<> {
    let rounds: Vec<(Key, u64)> = asked.rounds.iter().map(|(key, round)| (*key, *round)).collect();
    let incarnation = asked.incarnation;
    let told = move |rounds| FromScheduler::CountFrom { rank, incarnation, rounds };
    RoundsPart::cut(&rounds).into_iter().map(told)
}
