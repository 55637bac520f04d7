//! Registration: who is let in, with which rank, and the roster when all are there. Whoever comes while the job runs takes a
//! free place: a new server's, a dead one's, or that of a worker that may come again.

use super::member::Member;
use super::{Command, ConnectionId, Engine, Phase, refuse, send};
use proto_common::config::WorkerLoss;
use proto_common::ids::{MemberId, Rank, Role};
use proto_common::limits::{NAME_BYTES_MAX, PROTOCOL_VERSION};
use proto_common::message::{Coming, FromScheduler, RefusalReason, Register, Welcome};

impl Engine {
    pub(super) fn register(
        &mut self,
        now_ms: u64,
        from: ConnectionId,
        register: Register,
        out: &mut Vec<Command>,
    ) {
        if let Err(reason) = self.may_register(&register) {
            return refuse(from, reason, out);
        }
        let resumes = register.resume.is_some();
        match self.phase {
            Phase::Rebuilding => self.arrive_again(now_ms, from, register, out),
            // The first who was a member before: this is no fresh job.
            Phase::Assembling if resumes => {
                self.rebuild(now_ms);
                self.arrive_again(now_ms, from, register, out);
            }
            Phase::Running if resumes => {
                let reason = "this life of it was declared dead, or its scheduler has never died; start it as a \
                              new process";
                refuse(from, RefusalReason::Misplaced(reason.into()), out);
            }
            _ => self.admit(now_ms, from, register, out),
        }
    }

    /// A process that comes for the first time.
    pub(super) fn admit(
        &mut self,
        now_ms: u64,
        from: ConnectionId,
        register: Register,
        out: &mut Vec<Command>,
    ) {
        let id = match self.place_for(&register) {
            Ok(id) => id,
            Err(reason) => return refuse(from, reason, out),
        };
        let coming = self.comes_into(id);
        self.members.insert(id, Member::new(from, register, now_ms));
        self.connections.insert(from, id);
        self.welcome(id, from, coming, out);
        match self.phase {
            Phase::Assembling if self.missing().is_empty() => self.complete(out),
            Phase::Running => self.join(id, from, out),
            _ => {}
        }
    }

    pub(super) fn welcome(&self, id: MemberId, to: ConnectionId, coming: Coming, out: &mut Vec<Command>) {
        let welcome = Welcome {
            rank: id.rank,
            job: self.config.job,
            epoch: self.epoch,
            scheduler: self.config.scheduler,
            shape: self.config.shape,
            coming,
            restore: self.config.checkpoints.restore.clone(),
        };
        out.push(send(to, FromScheduler::Welcome(welcome)));
    }

    /// Somebody has come into a job that runs.
    pub(super) fn join(&mut self, id: MemberId, connection: ConnectionId, out: &mut Vec<Command>) {
        self.changes.joined += 1;
        self.barriers.join(id);
        if id.role == Role::Worker {
            self.awaited.remove(&id.rank);
        }
        self.tell_roster(out);
        if let Some(incarnation) = self.members.get(&id).map(|member| member.incarnation) {
            self.ask_rounds(id, incarnation, out);
        }
        if id.role == Role::Server {
            self.declarations.shards.forgive(id.rank);
            // What is being written would lack its parts.
            self.fail_checkpoints(&format!("{id} came while it was written"), out);
            // What it has no part in, too: it must know where everything is, for the next scheduler.
            for update in self.declarations.whole(&mut self.epoch) {
                out.push(send(connection, FromScheduler::Assign(update)));
            }
            self.tell_comings(connection, out);
            self.unsettled = true;
            self.settle(out);
        }
    }

    fn may_register(&self, register: &Register) -> Result<(), RefusalReason> {
        let misplaced = |what: &str| Err(RefusalReason::Misplaced(what.to_owned()));
        if register.protocol != PROTOCOL_VERSION {
            return Err(RefusalReason::Protocol { theirs: register.protocol, ours: PROTOCOL_VERSION });
        }
        if register.job != self.config.job {
            return Err(RefusalReason::Job { theirs: register.job, ours: self.config.job });
        }
        if register.role == Role::Scheduler {
            return misplaced("a second scheduler cannot join a job; give it a port and a job of its own");
        }
        if matches!(self.phase, Phase::Ending { .. } | Phase::Ended { .. }) {
            return misplaced("the job is ending; start it again");
        }
        check_texts(register)?;
        if self.dead.holds(register.incarnation) {
            return misplaced("this life of it was declared dead; start it as a new process");
        }
        Ok(())
    }

    fn place_for(&self, register: &Register) -> Result<MemberId, RefusalReason> {
        let places = match register.role {
            Role::Server => self.config.shape.server_places,
            _ => self.config.shape.workers,
        };
        if let Some((id, _)) = self.members.iter().find(|(_, m)| m.incarnation == register.incarnation) {
            return Err(RefusalReason::Misplaced(format!(
                "incarnation {} is registered already as {id}; a process registers once, each client with an \
                 incarnation of its own",
                register.incarnation
            )));
        }
        self.free_rank(register.role, register.wanted_rank, places)
    }

    /// A worker that has left may only be followed where rounds go on without it.
    fn is_free(&self, id: MemberId) -> bool {
        let may_follow = self.config.shape.worker_loss == WorkerLoss::Continue;
        self.members.get(&id).is_none_or(|member| member.left && may_follow)
    }

    fn free_rank(&self, role: Role, wanted: Option<Rank>, places: u32) -> Result<MemberId, RefusalReason> {
        let free = |rank: &Rank| self.is_free(MemberId { role, rank: *rank });
        let mut ranks = (0..places).map(Rank);
        let Some(lowest) = ranks.find(free) else {
            return Err(RefusalReason::Full { role: role.to_string(), places });
        };
        let rank = match wanted {
            Some(Register::LAST) => (0..places).rev().map(Rank).find(free).unwrap_or(lowest),
            wanted => wanted.unwrap_or(lowest),
        };
        if rank.0 >= places || !free(&rank) {
            return Err(RefusalReason::RankTaken { rank, places });
        }
        Ok(MemberId { role, rank })
    }

    /// Everyone is there: the first epoch, and the roster for all.
    fn complete(&mut self, out: &mut Vec<Command>) {
        self.phase = Phase::Running;
        let beyond: Vec<MemberId> = self.members.keys().copied().collect();
        beyond.into_iter().for_each(|id| self.barriers.join(id));
        self.tell_roster(out);
    }
}

fn check_texts(register: &Register) -> Result<(), RefusalReason> {
    let texts = [Some(&register.build), register.data_address.as_ref(), register.http_address.as_ref()];
    if texts.into_iter().flatten().any(|text| text.len() > NAME_BYTES_MAX) {
        return Err(RefusalReason::Misplaced(format!(
            "a registration's texts may have {NAME_BYTES_MAX} bytes each; shorten the address"
        )));
    }
    if register.role == Role::Server && register.data_address.is_none() {
        return Err(RefusalReason::Misplaced(
            "a server registers with its data address; bind it before registering".into(),
        ));
    }
    Ok(())
}
