//! Places in a cluster that goes on under another scheduler: whose they are, and whom the others wait for.

use super::super::member::Member;
use super::super::registration::DECLARED_DEAD;
use super::super::{Awaited, Command, Engine, Phase, let_go, refuse};
use super::{Arrival, Rebuild};
use proto_common::config::WorkerLoss;
use proto_common::error::{Death, DeathCause};
use proto_common::ids::{MemberId, Role};
use proto_common::message::{self, Coming, RefusalReason};

impl Rebuild {
    /// Those whose goodbye the scheduler before had not confirmed: workers are counted as left before anybody is missed, because
    /// the others may have been told already, and be gone. What they are told, when the others have been; and who left now.
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
                // Whether it may go is to be decided: it says so again.
                (Some(_), Role::Server) => false,
                (Some(at), _) => {
                    let id = self.members.remove(at).id;
                    self.left.push(id.rank);
                    left.push(id);
                    true
                }
                // It is needed for nothing any more.
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
    /// Gives everyone of the newest roster its place; says who has not come. Others are dead.
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

    /// Whom barriers and rounds wait for.
    pub(super) fn await_those(&mut self, now_ms: u64, rebuild: &Rebuild) {
        let policy = self.config.shape.worker_loss;
        for id in self.places().collect::<Vec<_>>() {
            if self.members.contains_key(&id) {
                continue;
            }
            // The scheduler before this one has decided that it is dead.
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

    /// Who was let in before it was known that there is a cluster: it stays, where its place is free there.
    pub(super) fn seat_early(
        &mut self,
        now_ms: u64,
        id: MemberId,
        (mut member, began_otherwise): (Member, bool),
        out: &mut Vec<Command>,
    ) {
        let connection = member.connection;
        // A server that was told of another checkpoint would begin tensors from it.
        let is_otherwise = began_otherwise && id.role == Role::Server;
        if self.phase != Phase::Running || is_otherwise || self.members.contains_key(&id) {
            let reason =
                "the scheduler was restarted, and an earlier process has this rank; restart this process";
            return refuse(connection, RefusalReason::Later(reason.into()), out);
        }
        member.heard_ms = now_ms;
        self.members.insert(id, member);
        self.connections.insert(connection, id);
        self.join(id, connection, out);
    }
}
