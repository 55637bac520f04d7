//! Registration: which processes become members, with which rank, and the roster when all have registered. A process that registers while
//! the job runs takes a free place: that of a new server, of a failed server, or of a worker that may rejoin. A process that requests no
//! particular rank waits for one until it is certain that no earlier scheduler has assigned that rank.

use super::super::member::Member;
use super::super::rebuild::check_term;
use super::super::{Command, ConnectionId, Engine, Outcome, Phase, let_go, own_rules, refuse, send};
use proto_common::config::WorkerLoss;
use proto_common::ids::{Incarnation, MemberId, Rank, Role};
use proto_common::limits::{NAME_BYTES_MAX, PROTOCOL_VERSION};
use proto_common::message::{Build, Coming, FromScheduler, RefusalReason, Register, Welcome};

impl Engine {
    pub(super) fn register(
        &mut self,
        now_ms: u64,
        from: ConnectionId,
        register: Register,
        out: &mut Vec<Command>,
    ) {
        if self.may_go(&register) {
            self.quorum.exits(register.incarnation);
            return out.extend(let_go(from));
        }
        if let Err(reason) = self.may_register(&register) {
            return refuse(from, reason, out);
        }
        if self.members.is_dead(register.incarnation) {
            return self.refuse_dead(now_ms, from, register.incarnation, out);
        }
        let resumes = register.resume.is_some();
        match self.phase {
            Phase::Rebuilding => self.arrive_again(now_ms, from, register, out),
            // The first who was a member before: this is no fresh job.
            Phase::Assembling if resumes => {
                self.rebuild(now_ms);
                self.arrive_again(now_ms, from, register, out);
            }
            // Without a majority nothing is decided about those that have given this scheduler up. They come back, and it asks all.
            Phase::Running if resumes && self.may_return(register.incarnation) => {
                self.follow_itself(now_ms, out);
                self.arrive_again(now_ms, from, register, out);
            }
            Phase::Running if resumes => {
                let reason = "this process was declared failed, or the scheduler has not restarted since it joined; \
                               start it as a new process";
                refuse(from, RefusalReason::Misplaced(reason.into()), out);
            }
            Phase::Assembling if self.may_follow(now_ms) && register.wanted_rank.is_none() => {
                self.hold(now_ms, from, register, out);
            }
            _ => self.admit(now_ms, from, register, out),
        }
    }

    /// Has it said goodbye to the scheduler before this one, which told the others and could not answer any more? A server that no
    /// roster has is needed for nothing, however it left.
    fn may_go(&self, Register { protocol, job, role, incarnation, resume, .. }: &Register) -> bool {
        let Some(resume) = resume.as_ref().filter(|resume| resume.leaves) else { return false };
        let is_ours = (*protocol, *job) == (PROTOCOL_VERSION, self.config.job);
        let is_here = self.members.is_there(*incarnation);
        let has_left = match role {
            Role::Worker => self.members.left().contains(&resume.rank),
            Role::Server => true,
            Role::Scheduler => false,
        };
        is_ours && !is_here && has_left && matches!(self.phase, Phase::Running | Phase::Ending { .. })
    }

    /// May there be a cluster of before, whose members have ranks and come yet? They look for their scheduler all the time.
    fn may_follow(&self, now_ms: u64) -> bool {
        let shape = &self.config.shape;
        shape.scheduler_ms > 0 && now_ms < self.started_ms.saturating_add(shape.silence_ms)
    }

    /// Nobody of a cluster of before has come: those who wait for a rank get one.
    pub(super) fn let_in(&mut self, now_ms: u64, out: &mut Vec<Command>) {
        if self.phase != Phase::Assembling || self.may_follow(now_ms) {
            return;
        }
        for (connection, register) in self.rebuild.take_waiting() {
            self.admit(now_ms, connection, register, out);
        }
    }

    /// Who wants no rank of its own gets one when all are there, or nobody of before has come for so long: until then it is
    /// not known that the job is fresh, and any rank may be that of a member of before.
    fn hold(&mut self, now_ms: u64, from: ConnectionId, register: Register, out: &mut Vec<Command>) {
        let (role, life, places) = (register.role, register.incarnation, self.places_of(register.role));
        let held = self.rebuild.waiting();
        let count = held.filter(|register| register.role == role).count();
        let there = self.members.iter().filter(|(id, _)| id.role == role).count();
        if let Err(reason) = self.is_unknown(life) {
            return refuse(from, reason, out);
        }
        if there + count >= places as usize {
            return refuse(from, RefusalReason::Full { role: role.to_string(), places }, out);
        }
        self.rebuild.hold(from, register);
        self.complete_if_all(now_ms, out);
    }

    /// A process that comes for the first time.
    fn admit(&mut self, now_ms: u64, from: ConnectionId, register: Register, out: &mut Vec<Command>) {
        let Some(id) = self.place(now_ms, from, register, out) else { return };
        match self.phase {
            Phase::Assembling => self.complete_if_all(now_ms, out),
            Phase::Running => self.join(id, from, out),
            Phase::Rebuilding | Phase::Ending { .. } | Phase::Ended { .. } => {}
        }
    }

    /// Gives it a rank, or says why there is none.
    fn place(
        &mut self,
        now_ms: u64,
        from: ConnectionId,
        register: Register,
        out: &mut Vec<Command>,
    ) -> Option<MemberId> {
        let id = match self.place_for(&register) {
            Ok(id) => id,
            Err(reason) => {
                refuse(from, reason, out);
                return None;
            }
        };
        let coming = self.comes_into(id);
        self.members.seat(id, Member::new(from, register, now_ms));
        self.welcome(id, from, coming, out);
        Some(id)
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
        self.members.join(id);
        self.barriers.join(id);
        self.tell_roster(out);
        if let Some(incarnation) = self.members.get(id).map(|member| member.incarnation) {
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
            // And from which rounds on the workers count that joined before it.
            out.extend(self.comings.all_known().map(|message| send(connection, message)));
            self.declarations.unsettle();
            self.settle(out);
        }
    }

    fn may_register(&self, register: &Register) -> Result<(), RefusalReason> {
        let misplaced = |what: &str| Err(RefusalReason::Misplaced(what.to_owned()));
        if register.protocol != PROTOCOL_VERSION {
            let theirs = Build { protocol: register.protocol, version: register.build.clone() };
            return Err(RefusalReason::Protocol { theirs, ours: Build::own() });
        }
        if register.job != self.config.job {
            return Err(RefusalReason::Job { theirs: register.job, ours: self.config.job });
        }
        if register.role == Role::Scheduler {
            return misplaced("a second scheduler cannot join a job: give it another scheduler.port and job");
        }
        if matches!(self.phase, Phase::Ending { .. } | Phase::Ended { .. }) {
            return misplaced("the job is ending: restart this process later");
        }
        check_texts(register)?;
        own_rules::check(register, self.own_rules())?;
        register.resume.as_ref().map_or(Ok(()), check_term)
    }

    fn places_of(&self, role: Role) -> u32 {
        match role {
            Role::Server => self.config.shape.server_places,
            _ => self.config.shape.workers,
        }
    }

    fn place_for(&self, register: &Register) -> Result<MemberId, RefusalReason> {
        self.is_unknown(register.incarnation)?;
        if let Some(reason) = self.held_by_another(register) {
            return Err(RefusalReason::Later(reason));
        }
        self.free_rank(register.role, register.wanted_rank, self.places_of(register.role))
    }

    fn is_unknown(&self, life: Incarnation) -> Result<(), RefusalReason> {
        let seated = self.members.iter().find(|(_, member)| member.incarnation == life);
        let waits = self.rebuild.waiting().any(|register| register.incarnation == life);
        let whom = match (seated, waits) {
            (Some((id, _)), _) => format!(" as {id}"),
            (None, true) => ", and waits for the others".to_owned(),
            (None, false) => return Ok(()),
        };
        Err(RefusalReason::Misplaced(format!(
            "incarnation {life} is already registered{whom}; a process registers once, each client with an incarnation \
             of its own"
        )))
    }

    /// While the job runs, the life before of whoever wants a rank may have died unnoticed.
    fn held_by_another(&self, register: &Register) -> Option<String> {
        let rank = register.wanted_rank.filter(|_| self.phase == Phase::Running)?;
        let id = MemberId { role: register.role, rank };
        let holder = self.members.get(id).filter(|member| !member.left && !self.is_free(id))?;
        let (pid, silence_ms) = (holder.pid, self.config.shape.silence_ms);
        Some(format!(
            "rank already in use: process {pid} is {id}; if {pid} is a previous run of this process, restart: its failure is detected \
             within {silence_ms} ms (deadlines.silence_ms); otherwise leave node.rank unset, or give each process its own rank"
        ))
    }

    /// A worker that has left may only be followed where rounds go on without it.
    fn is_free(&self, id: MemberId) -> bool {
        let may_follow = self.config.shape.worker_loss == WorkerLoss::Continue;
        self.members.get(id).is_none_or(|member| member.left && may_follow)
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

    /// Places that nobody has: those who wait for a rank get the first.
    pub(super) fn missing(&self) -> Vec<MemberId> {
        let held = |role| match self.phase {
            Phase::Assembling => self.rebuild.waiting().filter(|register| register.role == role).count(),
            _ => 0,
        };
        let (mut servers, mut workers) = (held(Role::Server), held(Role::Worker));
        let mut is_open = |id: &MemberId| {
            let left = if id.role == Role::Server { &mut servers } else { &mut workers };
            let is_open = *left == 0;
            *left = left.saturating_sub(1);
            is_open
        };
        if self.phase == Phase::Rebuilding && self.rebuild.has_roster() {
            return self.rebuild.not_back();
        }
        self.places().filter(|id| self.members.get(*id).is_none() && is_open(id)).collect()
    }

    /// Everyone is there: ranks for those who have none, the first epoch, and the roster for all.
    fn complete_if_all(&mut self, now_ms: u64, out: &mut Vec<Command>) {
        if !self.missing().is_empty() {
            return;
        }
        for (connection, register) in self.rebuild.take_waiting() {
            self.place(now_ms, connection, register, out);
        }
        // Nobody has come who knows the job: it is a fresh one.
        if let Some(unusable) = self.config.checkpoints.unusable.take() {
            return self.end(now_ms, Outcome::Unusable(unusable), out);
        }
        self.phase = Phase::Running;
        self.members.iter().for_each(|(id, _)| self.barriers.join(id));
        self.tell_roster(out);
    }
}

fn check_texts(register: &Register) -> Result<(), RefusalReason> {
    let Register { build, data_address, http_address, host, .. } = register;
    let texts = [Some(build), data_address.as_ref(), http_address.as_ref(), host.as_ref()];
    if texts.into_iter().flatten().any(|text| text.len() > NAME_BYTES_MAX) {
        return Err(RefusalReason::Misplaced(format!(
            "address too long: at most {NAME_BYTES_MAX} bytes; shorten it"
        )));
    }
    if register.role == Role::Server && register.data_address.is_none() {
        return Err(RefusalReason::Misplaced(
            "a server registers with its data address; bind it before registering".into(),
        ));
    }
    Ok(())
}
