//! Decides when a job continues under a restarted scheduler: after members have reported what they know, or their deadline has passed.
//! Members report their settings as well: those on which data depends must be the same here. It must not store reports: `rebuild` does.

use super::super::rebuild::Rebuild;
use super::super::{Command, ConnectionId, Engine, Note, Outcome, Phase, checkpoints, refuse};
use proto_common::config::{SettingError, WorkerLoss};
use proto_common::error::{Death, DeathCause};
use proto_common::ids::{Epoch, Key, MemberId, Role};
use proto_common::message::{CheckpointOrder, ClusterShape, FromScheduler, RefusalReason, Register, Resume};
use proto_common::shard_map::{MapChange, MapUpdate};

/// What those hear who came anew to a scheduler that cannot go on.
pub(super) fn later(error: &SettingError) -> RefusalReason {
    RefusalReason::Later(format!(
        "the scheduler is ending ({error}); restart this process when the next scheduler is running"
    ))
}

impl Engine {
    /// From now on members say what they know.
    pub(super) fn rebuild(&mut self, now_ms: u64) {
        self.phase = Phase::Rebuilding;
        self.rebuild = Rebuild::begin(now_ms, self.members.take_all(), self.rebuild.take_waiting());
    }

    /// Somebody registers while the cluster is being rebuilt.
    pub(super) fn arrive_again(
        &mut self,
        now_ms: u64,
        from: ConnectionId,
        register: Register,
        out: &mut Vec<Command>,
    ) {
        let Some(resume) = &register.resume else {
            if !self.rebuild.wait(from, register) {
                let reason =
                    "too many processes wait for the recovery of the scheduler; restart this process later";
                refuse(from, RefusalReason::Later(reason.into()), out);
            }
            return;
        };
        if let Some(wrong) = resume.shape.and_then(|told| self.conflict(&told)) {
            return self.end_misconfigured(now_ms, from, wrong, out);
        }
        self.rebuild.arrive(now_ms, from, register);
    }

    /// What is wrong in this scheduler's settings, for members that were told this shape.
    fn conflict(&self, told: &ClusterShape) -> Option<SettingError> {
        let (key, value, theirs) = self.config.shape.conflict(told)?;
        let fix = format!(
            "members of the running job were started with {theirs}: restart the scheduler with the same value within their \
             deadlines.scheduler_ms, or stop these members first to start another job"
        );
        Some(SettingError { key, value, fix })
    }

    /// A member has reported other settings than this scheduler has. Members are not ended: they wait for a scheduler with the right ones.
    fn end_misconfigured(
        &mut self,
        now_ms: u64,
        from: ConnectionId,
        wrong: SettingError,
        out: &mut Vec<Command>,
    ) {
        // One that slept has told its members its settings itself: whoever shows others is none of them.
        if self.members.changes().rosters > 0 {
            let reason = format!("it has the settings of another job: {wrong}");
            return refuse(from, RefusalReason::Misplaced(reason), out);
        }
        self.rebuild.leave_members();
        for (_, member) in self.rebuild.take_early() {
            refuse(member.connection, later(&wrong), out);
        }
        self.end(now_ms, Outcome::Misconfigured(wrong), out);
    }

    /// A member says a part of what it knows.
    pub(super) fn resuming(
        &mut self,
        now_ms: u64,
        from: ConnectionId,
        part: Resume,
        last: bool,
        out: &mut Vec<Command>,
    ) {
        let shape = self.shape_of_maps();
        if let Err(what) = self.rebuild.tell(now_ms, from, (part, last), shape) {
            self.rebuild.forget(from);
            return refuse(from, RefusalReason::Misplaced(what), out);
        }
        if last {
            self.rebuild_if_whole(now_ms, out);
        }
    }

    fn shape_of_maps(&self) -> (u64, u16, u32) {
        let shape = &self.config.shape;
        (shape.chunk_bytes, shape.lanes, shape.server_places)
    }

    pub(in super::super) fn rebuild_deadline_ms(&self) -> Option<u64> {
        if self.phase != Phase::Rebuilding {
            return None;
        }
        let shape = &self.config.shape;
        let deadline_ms = match self.rebuild.since_ms() {
            Some(since_ms) if self.knows_enough() => Some(self.election_due_ms(since_ms)),
            Some(since_ms) if self.follows() => Some(since_ms + shape.scheduler_ms.max(shape.silence_ms)),
            Some(since_ms) => Some(since_ms + 2 * shape.silence_ms),
            None => Some(self.rebuild.woke_ms().unwrap_or(self.started_ms) + self.config.assemble_ms),
        };
        deadline_ms.map(|deadline_ms| self.while_telling(deadline_ms))
    }

    /// The deadline of a recovery in which these times are due. Scenario: a thousand members connect at once and each is read
    /// in its turn. If the deadline ran from the first one, the last ones would be declared failed while they wait to be read.
    fn while_telling(&self, deadline_ms: u64) -> u64 {
        let Some(heard_ms) = self.rebuild.telling_ms() else { return deadline_ms };
        let shape = &self.config.shape;
        // Members themselves do not wait longer.
        let last_ms = self.rebuilding_since_ms().saturating_add(shape.scheduler_ms.max(shape.silence_ms));
        deadline_ms.max(heard_ms.saturating_add(shape.silence_ms).min(last_ms))
    }

    /// When the first member came.
    fn rebuilding_since_ms(&self) -> u64 {
        self.rebuild.since_ms().unwrap_or(self.started_ms)
    }

    /// Do the reports of the members show that every worker has left? Then the only decision is to end the job.
    fn was_over(&self) -> bool {
        let shape = &self.config.shape;
        let (places, waits) = (shape.workers as usize, shape.worker_loss == WorkerLoss::Wait);
        self.rebuild.was_over(places, waits)
    }

    /// When the election begins although members are missing. Without a majority, or during the vote: when the scheduler gives up.
    fn election_due_ms(&self, since_ms: u64) -> u64 {
        let shape = &self.config.shape;
        match self.was_over() || !self.rebuild.is_voting() && self.has_quorum() {
            true => since_ms.saturating_add(shape.silence_ms),
            false => since_ms.saturating_add(shape.scheduler_ms.max(2 * shape.silence_ms)),
        }
    }

    /// No majority has elected this scheduler in time: the missing members may follow another scheduler.
    fn end_without_quorum(&mut self, now_ms: u64, out: &mut Vec<Command>) {
        let missing = self.rebuild.not_back();
        let since_ms = self.rebuilding_since_ms();
        let waited_ms = now_ms.saturating_sub(since_ms);
        if now_ms < self.election_due_ms(since_ms) {
            return;
        }
        self.turn_away(
            "no majority of the members has registered with the restarted scheduler within deadlines.scheduler_ms, and the \
             missing members may follow another scheduler; if no other scheduler runs, restart the job from a checkpoint",
            out,
        );
        self.end(now_ms, Outcome::Incomplete { waited_ms, missing }, out);
    }

    /// Is it sure that there is a job to take over?
    fn follows(&self) -> bool {
        self.config.resume || self.members.changes().rosters > 0
    }

    /// With neither a worker nor all servers nothing is decided: a server that has not come may have published alone, and
    /// only workers would know.
    fn knows_enough(&self) -> bool {
        self.was_over() || self.rebuild.has_worker() || self.follows() && self.rebuild.has_all_servers()
    }

    /// Goes on when everyone has come, or had the time to.
    pub(super) fn rebuild_if_whole(&mut self, now_ms: u64, out: &mut Vec<Command>) {
        self.rebuild.finish_satisfied();
        self.ask_for_maps(now_ms, out);
        let Some(deadline_ms) = self.rebuild_deadline_ms() else { return };
        let is_due = now_ms >= deadline_ms;
        // If the only worker is lost while members vote, it may come back until the deadline.
        let votes = self.rebuild.is_voting() && self.knows_enough();
        if !is_due && !self.rebuild.is_whole() && !votes {
            return;
        }
        if !self.knows_enough() {
            return self.give_up_rebuilding(now_ms, out);
        }
        if !self.was_over() && !self.is_elected(out) {
            return self.end_without_quorum(now_ms, out);
        }
        self.quorum = self.quorum_of_rebuild();
        let rebuild = std::mem::take(&mut self.rebuild);
        self.resume(now_ms, rebuild, out);
    }

    /// Asks for maps that are not there; others, where those that were asked are silent.
    fn ask_for_maps(&mut self, now_ms: u64, out: &mut Vec<Command>) {
        let silent =
            now_ms.checked_sub(self.config.shape.silence_ms).map(|since_ms| self.rebuild.silent(since_ms));
        for connection in silent.unwrap_or_default() {
            self.rebuild.forget(connection);
            let reason =
                "it did not send its shard map within deadlines.silence_ms; start it as a new process";
            refuse(connection, RefusalReason::Misplaced(reason.into()), out);
        }
        self.rebuild.ask_for_maps(now_ms, out);
    }

    /// Nobody has said what the cluster was: there is nothing to go on with.
    fn give_up_rebuilding(&mut self, now_ms: u64, out: &mut Vec<Command>) {
        if !self.follows() {
            return self.assemble(now_ms, out);
        }
        let waited_ms = now_ms.saturating_sub(self.rebuilding_since_ms());
        self.turn_away(
            "no worker, and not all servers, of the previous job have reconnected; restart the job",
            out,
        );
        let missing = self.missing();
        self.end(now_ms, Outcome::Incomplete { waited_ms, missing }, out);
    }

    /// Who came was of a job that is over: this one is fresh after all.
    fn assemble(&mut self, now_ms: u64, out: &mut Vec<Command>) {
        let early = self.rebuild.take_early();
        let waiting = self.rebuild.take_waiting();
        self.turn_away("no worker of its job has reconnected; restart this process", out);
        self.phase = Phase::Assembling;
        for (id, mut member) in early {
            member.heard_ms = now_ms;
            self.members.seat(id, member);
        }
        for (connection, register) in waiting {
            self.register(now_ms, connection, register, out);
        }
    }

    /// Nobody who waits for the cluster to be rebuilt is let in.
    pub(super) fn turn_away(&mut self, reason: &str, out: &mut Vec<Command>) {
        for connection in std::mem::take(&mut self.rebuild).into_connections() {
            refuse(connection, RefusalReason::Misplaced(reason.into()), out);
        }
    }

    fn resume(&mut self, now_ms: u64, mut rebuild: Rebuild, out: &mut Vec<Command>) {
        // It was said of those that were missing now, not of others later.
        self.config.force = false;
        let after = || rebuild.term().max(self.epoch.term).saturating_add(1);
        let term = rebuild.elected_term().unwrap_or_else(after).max(self.config.term);
        self.epoch = Epoch { term, counter: 0 };
        self.posts.begin(term);
        self.phase = Phase::Running;
        let began_otherwise = self.began_from(rebuild.restore.take());
        let servers = rebuild.members().iter().filter(|member| member.id.role == Role::Server);
        self.members.rebuilt(servers.count() as u32);
        let (going, left) = rebuild.take_leaving();
        left.into_iter().for_each(|id| self.note(Note::Left(id)));
        let gone = self.seat(now_ms, &mut rebuild, out);
        for ((name, group), times) in std::mem::take(&mut rebuild.barriers) {
            self.barriers.was_opened(name, group, times);
        }
        self.await_those(now_ms, &rebuild);
        // Workers that are not there may have been told of what these do not know.
        let is_there = |id: &MemberId| self.members.get(*id).is_some_and(|member| !member.gone);
        let all_say = self.places().filter(|id| id.role == Role::Worker).all(|id| is_there(&id));
        let answered = std::mem::take(&mut rebuild.answered);
        // Lives before places: a map names ranks.
        if self.members.there().next().is_some() {
            self.tell_roster(out);
        }
        if self.end_if_left(now_ms, out) {
            self.rebuild = rebuild;
            self.turn_away("the job is ending: all workers are done", out);
            return out.extend(going);
        }
        out.extend(going);
        let shape = self.shape_of_maps();
        let (map, lost) = rebuild.map(shape);
        // Of what was under way this one knows nothing, and its lanes would wait for ever.
        checkpoints::order(&self.server_connections(), CheckpointOrder::Reset, out);
        self.tell_map(map, |key| !all_say || answered.contains(&key), out);
        self.declarations.unsettle();
        if let Some((rank, keys)) = lost {
            let member = MemberId { role: Role::Server, rank };
            let cause = Box::new(DeathCause::ConnectionLost);
            let cause = DeathCause::Beyond { cause, what: self.loss(&keys) };
            return self.end(now_ms, Outcome::Died(Death { member, cause }), out);
        }
        if gone.is_empty() {
            self.settle(out);
        }
        let silent_ms = now_ms.saturating_sub(rebuild.since_ms().unwrap_or(now_ms));
        for member in gone {
            self.death(now_ms, Death { member, cause: DeathCause::Silent { silent_ms } }, out);
        }
        self.ask_again(out);
        for (id, member) in rebuild.take_early() {
            self.seat_early(now_ms, id, (member, began_otherwise), out);
        }
        for (connection, register) in rebuild.take_waiting() {
            self.register(now_ms, connection, register, out);
        }
    }

    /// What the job began from is what its members were told, whatever `latest` means by now. True where this scheduler had
    /// thought otherwise.
    fn began_from(&mut self, told: Option<Option<String>>) -> bool {
        let Some(told) = told else { return false };
        let began_otherwise = self.config.checkpoints.restore != told;
        (self.config.checkpoints.restore, self.config.checkpoints.unusable) = (told, None);
        began_otherwise
    }

    /// Tells everybody the map that the newest of them knew; servers answer as to new tensors, because some may not have
    /// heard of all of them.
    fn tell_map(&mut self, map: MapUpdate, is_known: impl Fn(Key) -> bool, out: &mut Vec<Command>) {
        let servers = self.members.servers();
        // Each tensor was checked when it came.
        let told = self.declarations.restore(map, is_known, &servers, &mut self.epoch).unwrap_or_default();
        for update in told {
            let (epoch, change) = (update.epoch, MapChange::Ranges(update.ranges.clone()));
            out.push(self.to_all(Role::Server, FromScheduler::Assign(update)));
            out.push(self.to_all(Role::Worker, FromScheduler::Remap { epoch, change }));
        }
        out.retain(|command| !matches!(command, Command::Send { to, .. } if to.is_empty()));
    }
}
