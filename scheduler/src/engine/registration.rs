//! Registration: who is let in, with which rank, and the roster when all are there.

use super::member::Member;
use super::{Command, ConnectionId, Engine, Phase, refuse, send};
use proto_common::ids::{MemberId, Rank, Role};
use proto_common::limits::{NAME_BYTES_MAX, PROTOCOL_VERSION};
use proto_common::message::{self, Coming, FromScheduler, RefusalReason, Register, Welcome};

impl Engine {
    pub(super) fn register(
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
        self.members.insert(id, Member::new(from, register, now_ms));
        self.connections.insert(from, id);
        let welcome = Welcome {
            rank: id.rank,
            job: self.config.job,
            epoch: self.epoch,
            scheduler: self.config.scheduler,
            shape: self.config.shape,
            restore: self.config.checkpoints.restore.clone(),
            coming: Coming::Start,
        };
        out.push(send(from, FromScheduler::Welcome(welcome)));
        let all = (self.config.shape.workers + self.config.shape.servers) as usize;
        if self.members.len() == all {
            self.complete(out);
        }
    }

    fn place_for(&self, register: &Register) -> Result<MemberId, RefusalReason> {
        let misplaced = |what: &str| Err(RefusalReason::Misplaced(what.to_owned()));
        if register.protocol != PROTOCOL_VERSION {
            return Err(RefusalReason::Protocol { theirs: register.protocol, ours: PROTOCOL_VERSION });
        }
        if register.job != self.config.job {
            return Err(RefusalReason::Job { theirs: register.job, ours: self.config.job });
        }
        let places = match register.role {
            Role::Worker => self.config.shape.workers,
            Role::Server => self.config.shape.servers,
            Role::Scheduler => {
                return misplaced(
                    "a second scheduler cannot join a job; give it a port and a job of its own",
                );
            }
        };
        if matches!(self.phase, Phase::Ending { .. } | Phase::Ended { .. }) {
            return misplaced("the job is ending; start it again");
        }
        check_texts(register)?;
        if let Some((id, _)) = self.members.iter().find(|(_, m)| m.incarnation == register.incarnation) {
            return Err(RefusalReason::Misplaced(format!(
                "incarnation {} is registered already as {id}; a process registers once, each client with an \
                 incarnation of its own",
                register.incarnation
            )));
        }
        self.free_rank(register.role, register.wanted_rank, places)
    }

    fn free_rank(&self, role: Role, wanted: Option<Rank>, places: u32) -> Result<MemberId, RefusalReason> {
        let free = |rank: &Rank| !self.members.contains_key(&MemberId { role, rank: *rank });
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
        self.epoch = self.epoch.next();
        let entry = |(id, member): (&MemberId, &Member)| message::Member {
            id: *id,
            incarnation: member.incarnation,
            data_address: member.data_address.clone(),
            http_address: member.http_address.clone(),
        };
        let members = self.members.iter().map(entry).collect();
        let roster = FromScheduler::Roster { epoch: self.epoch, members, left: Vec::new() };
        out.push(Command::Send { to: self.present(|_| true), message: Box::new(roster) });
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
