//! Asks servers from which rounds on workers that join can count, and sends the result to members. It must not store the answers: `comings`
//! does.

use super::super::{Command, Engine, Phase, send, send_to};
use proto_common::config::WorkerLoss;
use proto_common::ids::{Incarnation, MemberId, Rank, Role};
use proto_common::message::{Coming, FromScheduler, RefusalReason, RoundsPart};

impl Engine {
    /// What somebody who takes this place comes into.
    pub(super) fn comes_into(&self, id: MemberId) -> Coming {
        match self.config.shape.worker_loss {
            _ if self.phase != Phase::Running => Coming::Start,
            _ if self.is_first_server(id) => Coming::Again,
            _ if id.role != Role::Worker => Coming::Start,
            WorkerLoss::Continue => Coming::Between,
            WorkerLoss::Wait | WorkerLoss::Stop => Coming::Again,
        }
    }

    /// Is this the place of a server that the job began with? A process that takes such a place while the job runs replaces one that has
    /// failed or left. Higher ranks are those of servers that are added later.
    pub(super) fn is_first_server(&self, id: MemberId) -> bool {
        id.role == Role::Server && id.rank.0 < self.config.shape.servers
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
        out.push(self.to_all(Role::Server, FromScheduler::AskRounds { rank: id.rank, incarnation }));
        let servers = self.members.there_as(Role::Server).map(|(rank, _)| rank);
        self.comings.ask(id.rank, incarnation, servers, deadline_ms);
    }

    /// A restarted scheduler does not know which workers contribute. Servers know it, and hold rounds for workers that have not been
    /// reported to them.
    pub(super) fn ask_again(&mut self, out: &mut Vec<Command>) {
        let workers = self.members.there().filter(|(id, _)| id.role == Role::Worker);
        let workers: Vec<_> = workers.map(|(id, member)| (id, member.incarnation)).collect();
        workers.into_iter().for_each(|(id, incarnation)| self.ask_rounds_until(id, incarnation, None, out));
    }

    /// A server's answer, or part of it.
    pub(super) fn rounds(
        &mut self,
        from: MemberId,
        (rank, incarnation): (Rank, Incarnation),
        part: RoundsPart,
        out: &mut Vec<Command>,
    ) {
        if from.role == Role::Server && self.comings.answer(from.rank, (rank, incarnation), part) {
            self.count_from(rank, out);
        }
    }

    /// Once all have answered: from which rounds on it counts.
    pub(super) fn count_from(&self, rank: Rank, out: &mut Vec<Command>) {
        let Some(told) = self.comings.known(rank) else { return };
        let to = self.members.connections(|id| id.role == Role::Server || id.rank == rank);
        out.extend(told.map(|message| send_to(to.clone(), message)));
    }

    /// Servers did not say in time from which round on a worker could count: it is taken out, and nothing is held for it.
    pub(super) fn expire_comings(&mut self, now_ms: u64, out: &mut Vec<Command>) {
        if self.phase != Phase::Running {
            return;
        }
        for (rank, servers) in self.comings.due(now_ms) {
            let servers: Vec<String> = servers.iter().map(Rank::to_string).collect();
            let why = format!(
                "servers {} did not report within {} ms (deadlines.rejoin_ms) from which round it contributes; check their \
                 logs, and restart it",
                servers.join(", "),
                self.config.rejoin_ms
            );
            let id = MemberId { role: Role::Worker, rank };
            if let Some(member) = self.members.get(id).filter(|member| !member.gone) {
                let refused = FromScheduler::Refused(RefusalReason::Misplaced(why.clone()));
                out.push(send(member.connection, refused));
            }
            self.comings.forget(rank);
            self.fault(now_ms, id, why, out);
        }
    }
}
