//! Ranks in a job that continues under a restarted scheduler: which process has which rank, and which members the others wait for.

use super::super::member::Member;
use super::super::registration::DECLARED_DEAD;
use super::super::{Awaited, Command, Engine, Phase, let_go, refuse};
use super::{Arrival, Rebuild};
use proto_common::config::WorkerLoss;
use proto_common::error::{Death, DeathCause};
use proto_common::ids::{MemberId, Role};
use proto_common::message::{self, Coming, RefusalReason};

impl Rebuild {
    /// Removes the members whose goodbye the previous scheduler had not confirmed. Workers count as left before any member is missed:
    /// the other members may have been notified already, and may have exited. Returns the confirmations, which are sent after the other
    /// members have been notified, and the workers that left now.
    pub(super) fn take_leaving(&mut self) -> (Vec<Command>, Vec<MemberId>) {
        let (mut told, mut left) = (Vec::new(), Vec::new());
        let leaves = |arrival: &&mut Arrival| {
            arrival.is_whole && arrival.register.resume.as_ref().is_some_and(|resume| resume.leaves)
        };
        self.arrivals.retain(|connection, arrival| {
            let Some(Arrival { register, .. }) = Some(arrival).filter(leaves) else { return true };
            let is_it = |member: &message::Member| {
                member.incarnation == register.incarnation && member.id.role == register.role
            };
            let rank = register.resume.as_ref().map(|resume| resume.rank).unwrap_or_default();
            let is_known = match (self.members.iter().position(is_it), register.role) {
                // Whether this server may leave is decided later: it repeats its goodbye.
                (Some(_), Role::Server) => false,
                (Some(at), _) => {
                    let id = self.members.remove(at).id;
                    self.left.push(id.rank);
                    left.push(id);
                    true
                }
                // No roster has this server, so it has no data that is needed.
                (None, Role::Server) => true,
                (None, _) => self.left.contains(&rank),
            };
            if is_known {
                told.extend(let_go(*connection));
            }
            !is_known
        });
        (told, left)
    }
}

impl Engine {
    /// Gives every member of the newest roster its rank, and returns those that have not registered. Other processes are refused.
    pub(super) fn seat(
        &mut self,
        now_ms: u64,
        rebuild: &mut Rebuild,
        out: &mut Vec<Command>,
    ) -> Vec<MemberId> {
        let mut gone = Vec::new();
        for entry in &rebuild.members {
            let came = rebuild.came(entry);
            let arrival =
                came.and_then(|connection| Some((connection, rebuild.arrivals.remove(&connection)?)));
            match arrival {
                Some((connection, arrival)) => {
                    let member = Member::new(connection, arrival.register, now_ms);
                    self.members.insert(entry.id, member);
                    self.connections.insert(connection, entry.id);
                    self.welcome(entry.id, connection, Coming::Start, out);
                }
                None => {
                    self.members.insert(entry.id, Member::absent(entry, now_ms));
                    gone.push(entry.id);
                }
            }
        }
        for rank in &rebuild.left {
            let id = MemberId { role: Role::Worker, rank: *rank };
            self.members.entry(id).or_insert_with(|| Member::departed(now_ms));
        }
        for (connection, arrival) in std::mem::take(&mut rebuild.arrivals) {
            let life = arrival.register.incarnation;
            if self.members.values().any(|member| !member.gone && member.incarnation == life) {
                let reason = "this process has reconnected on another connection";
                refuse(connection, RefusalReason::Misplaced(reason.into()), out);
                continue;
            }
            self.dead.add(life);
            refuse(connection, RefusalReason::Misplaced(DECLARED_DEAD.into()), out);
        }
        gone
    }

    /// Sets which members barriers and rounds wait for.
    pub(super) fn await_those(&mut self, now_ms: u64, rebuild: &Rebuild) {
        let policy = self.config.shape.worker_loss;
        for id in self.places().collect::<Vec<_>>() {
            if self.members.contains_key(&id) {
                continue;
            }
            // The previous scheduler has declared it failed.
            if id.role == Role::Worker && policy == WorkerLoss::Wait {
                let cause = DeathCause::ConnectionLost;
                let deadline_ms = now_ms.saturating_add(self.config.rejoin_ms);
                self.awaited.insert(id.rank, Awaited { deadline_ms, death: Death { member: id, cause } });
            } else {
                self.barriers.without(id);
            }
        }
        for member in &rebuild.members {
            self.barriers.join(member.id);
        }
        for rank in &rebuild.left {
            let id = MemberId { role: Role::Worker, rank: *rank };
            let goes_on = policy == WorkerLoss::Continue;
            drop(if goes_on { self.barriers.without(id) } else { self.barriers.leave(id) });
        }
    }

    /// A process that was admitted before the scheduler knew of a running job. It stays a member if its rank is free in that job.
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
        if self.phase != Phase::Running || is_otherwise || self.members.contains_key(&id) {
            let reason = "the scheduler was restarted and continues a running job that this process is no member of; \
                          restart this process to join that job";
            return refuse(connection, RefusalReason::Later(reason.into()), out);
        }
        member.heard_ms = now_ms;
        self.members.insert(id, member);
        self.connections.insert(connection, id);
        self.join(id, connection, out);
    }
}
