//! Ranks in a job that continues under a restarted scheduler: which process has which rank, and which members the others wait for.

use super::super::member::Member;
use super::super::rebuild::Rebuild;
use super::super::{Command, Engine, Phase, refuse};
use proto_common::config::WorkerLoss;
use proto_common::error::{Death, DeathCause};
use proto_common::ids::{MemberId, Role};
use proto_common::message::{Coming, RefusalReason};

impl Engine {
    /// Gives every member of the newest roster its rank, and returns those that have not registered. Other processes are refused.
    pub(super) fn seat(
        &mut self,
        now_ms: u64,
        rebuild: &mut Rebuild,
        out: &mut Vec<Command>,
    ) -> Vec<MemberId> {
        let (mut gone, mut seated) = (Vec::new(), Vec::new());
        rebuild.seat(|entry, came| match came {
            Some((connection, register)) => {
                self.members.seat(entry.id, Member::new(connection, register, now_ms));
                seated.push((entry.id, connection));
            }
            None => {
                self.members.seat_absent(entry, now_ms);
                gone.push(entry.id);
            }
        });
        for (id, connection) in seated {
            self.welcome(id, connection, Coming::Start, out);
        }
        for rank in rebuild.left() {
            self.members.seat_departed(*rank, now_ms);
        }
        for (connection, life) in rebuild.take_unseated() {
            if self.members.is_there(life) {
                let reason = "this process has reconnected on another connection";
                refuse(connection, RefusalReason::Misplaced(reason.into()), out);
                continue;
            }
            self.members.bury(life);
            self.refuse_dead(now_ms, connection, life, out);
        }
        gone
    }

    /// Sets which members barriers and rounds wait for.
    pub(super) fn await_those(&mut self, now_ms: u64, rebuild: &Rebuild) {
        let policy = self.config.shape.worker_loss;
        for id in self.places().collect::<Vec<_>>() {
            if self.members.get(id).is_some() {
                continue;
            }
            // The previous scheduler has declared it failed.
            if id.role == Role::Worker && policy == WorkerLoss::Wait {
                let cause = DeathCause::ConnectionLost;
                let deadline_ms = now_ms.saturating_add(self.config.rejoin_ms);
                self.members.await_again(deadline_ms, Death { member: id, cause });
            } else {
                self.barriers.without(id);
            }
        }
        for member in rebuild.members() {
            self.barriers.join(member.id);
        }
        for rank in rebuild.left() {
            let id = MemberId { role: Role::Worker, rank: *rank };
            let goes_on = policy == WorkerLoss::Continue;
            drop(if goes_on { self.barriers.without(id) } else { self.barriers.leave(id) });
        }
    }

    /// A process that was admitted before the scheduler knew of a running job. It stays a member if its rank is free in that job, and if
    /// its welcome is right for that job.
    pub(super) fn seat_early(
        &mut self,
        now_ms: u64,
        id: MemberId,
        (mut member, began_otherwise): (Member, bool),
        out: &mut Vec<Command>,
    ) {
        let connection = member.connection;
        // A server that was sent another checkpoint's name would restore tensors from that checkpoint.
        let is_otherwise = began_otherwise && id.role == Role::Server;
        // Its welcome was that of a new job, but it replaces a server that has failed: its handlers would start with an empty state.
        let is_otherwise = is_otherwise || (self.config.shape.replicas > 0 && self.is_first_server(id));
        if self.phase != Phase::Running || is_otherwise || self.members.get(id).is_some() {
            let reason = "the scheduler was restarted and continues a running job that this process is no member of; \
                          restart this process to join that job";
            return refuse(connection, RefusalReason::Later(reason.into()), out);
        }
        member.heard_ms = now_ms;
        self.members.seat(id, member);
        self.join(id, connection, out);
    }
}
