//! A worker that comes in between rounds: servers are asked from which round of each tensor on it could count, and told the
//! highest of what they say. It must not know what a round is.

use super::{Command, Engine, send};
use proto_common::config::WorkerLoss;
use proto_common::ids::{Incarnation, Key, MemberId, Rank, Role};
use proto_common::message::{Coming, FromScheduler};
use std::collections::{BTreeMap, BTreeSet};

/// Workers that have come in between, by rank.
#[derive(Debug, Default)]
pub(super) struct Comings(BTreeMap<Rank, Asked>);

#[derive(Debug)]
struct Asked {
    incarnation: Incarnation,
    /// Servers that have not answered.
    servers: BTreeSet<Rank>,
    rounds: BTreeMap<Key, u64>,
}

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
        if self.comes_into(id) != Coming::Between {
            return;
        }
        let servers = self.servers().there;
        let to = self.present(|id| id.role == Role::Server);
        out.push(Command::Send {
            to,
            message: Box::new(FromScheduler::AskRounds { rank: id.rank, incarnation }),
        });
        self.comings.0.insert(id.rank, Asked { incarnation, servers, rounds: BTreeMap::new() });
    }

    /// A scheduler that follows another one does not know who of the workers counts: servers do, and hold rounds for those of
    /// whom they were not told yet.
    pub(super) fn ask_again(&mut self, out: &mut Vec<Command>) {
        let there = self.members.iter().filter(|(id, member)| id.role == Role::Worker && !member.gone);
        let workers: Vec<_> = there.map(|(id, member)| (*id, member.incarnation)).collect();
        workers.into_iter().for_each(|(id, incarnation)| self.ask_rounds(id, incarnation, out));
    }

    /// A server's answer.
    pub(super) fn rounds(
        &mut self,
        from: MemberId,
        rank: Rank,
        incarnation: Incarnation,
        rounds: Vec<(Key, u64)>,
        out: &mut Vec<Command>,
    ) {
        let Some(asked) = self.comings.0.get_mut(&rank).filter(|asked| asked.incarnation == incarnation)
        else {
            return;
        };
        if from.role != Role::Server || !asked.servers.remove(&from.rank) {
            return;
        }
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
            waiting.filter_map(|(rank, asked)| asked.servers.remove(&server).then_some(*rank)).collect();
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
        out.push(Command::Send { to, message: Box::new(told(rank, asked)) });
    }

    /// What a server that comes later is told of those that came in between.
    pub(super) fn tell_comings(&self, to: super::ConnectionId, out: &mut Vec<Command>) {
        let whole = self.comings.0.iter().filter(|(_, asked)| asked.servers.is_empty());
        out.extend(whole.map(|(rank, asked)| send(to, told(*rank, asked))));
    }
}

fn told(rank: Rank, asked: &Asked) -> FromScheduler {
    let rounds = asked.rounds.iter().map(|(key, round)| (*key, *round)).collect();
    FromScheduler::CountFrom { rank, incarnation: asked.incarnation, rounds }
}
