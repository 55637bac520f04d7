//! A job that goes on under a restarted scheduler: members are heard one by one, and once they are whole the job runs as they
//! say.

use super::super::command::{Command, Outcome, refuse};
use super::super::member::ConnectionId;
use super::super::{Engine, Note, Phase};
use super::{Arrival, Rebuild, WAITING_MAX, term_of};
use proto_common::error::{Death, DeathCause};
use proto_common::ids::{Epoch, Key, MemberId, Role};
use proto_common::message::{CheckpointOrder, FromScheduler, RefusalReason, Register, Resume};
use proto_common::shard_map::{MapChange, MapUpdate};

impl Engine {
    /// From now on members say what they know.
    pub(in super::super) fn rebuild(&mut self, now_ms: u64) {
        self.phase = Phase::Rebuilding;
        self.connections.clear();
        let early = std::mem::take(&mut self.members).into_iter().filter(|(_, member)| !member.gone);
        let (early, waiting) = (early.collect(), self.rebuild.take_waiting());
        self.rebuild = Rebuild { since_ms: Some(now_ms), early, waiting, ..Rebuild::default() };
    }

    /// Somebody registers while the cluster is being rebuilt.
    pub(in super::super) fn arrive_again(
        &mut self,
        now_ms: u64,
        from: ConnectionId,
        register: Register,
        out: &mut Vec<Command>,
    ) {
        let Some(resume) = &register.resume else {
            if self.rebuild.waiting.len() >= WAITING_MAX {
                let reason =
                    "too many processes wait for the recovery of the scheduler; restart this process later";
                return refuse(from, RefusalReason::Later(reason.into()), out);
            }
            return self.rebuild.waiting.push((from, register));
        };
        if let Some(wrong) = resume.shape.and_then(|told| self.conflict(&told)) {
            return self.end_misconfigured(now_ms, from, wrong, out);
        }
        self.rebuild.since_ms.get_or_insert(now_ms);
        let (epoch, term) = (resume.epoch, term_of(resume));
        let (members, left, tensors, barriers) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let rosters = Vec::new();
        let (has_lists, is_whole) = (false, false);
        let arrival =
            Arrival { register, members, left, tensors, barriers, epoch, term, rosters, has_lists, is_whole };
        self.rebuild.heard_ms = now_ms;
        self.rebuild.arrivals.insert(from, arrival);
    }

    /// A member says a part of what it knows.
    pub(in super::super) fn resuming(
        &mut self,
        now_ms: u64,
        from: ConnectionId,
        part: Resume,
        last: bool,
        out: &mut Vec<Command>,
    ) {
        let shape = self.shape_of_maps();
        self.rebuild.heard_ms = now_ms;
        let taken = self.rebuild.take(from, part, shape);
        let taken = taken.and_then(|()| if last { self.rebuild.finish(from) } else { Ok(()) });
        if let Err(what) = taken {
            self.rebuild_without(from);
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

    /// A connection has closed: what was said on it stays said.
    pub(in super::super) fn rebuild_without(&mut self, connection: ConnectionId) {
        self.rebuild.arrivals.remove(&connection);
        self.rebuild.maps.forget(connection);
        self.rebuild.waiting.retain(|(waiting, _)| *waiting != connection);
        self.rebuild.early.retain(|(_, member)| member.connection != connection);
    }

    pub(in super::super) fn rebuild_deadline_ms(&self) -> Option<u64> {
        if self.phase != Phase::Rebuilding {
            return None;
        }
        let shape = &self.config.shape;
        let deadline_ms = match self.rebuild.since_ms {
            Some(since_ms) if self.knows_enough() => Some(self.election_due_ms(since_ms)),
            Some(since_ms) if self.follows() => Some(since_ms + shape.scheduler_ms.max(shape.silence_ms)),
            Some(since_ms) => Some(since_ms + 2 * shape.silence_ms),
            None => Some(self.rebuild.woke_ms.unwrap_or(self.started_ms) + self.config.assemble_ms),
        };
        deadline_ms.map(|deadline_ms| self.while_telling(deadline_ms))
    }

    /// Is it sure that there is a job to take over?
    fn follows(&self) -> bool {
        self.config.resume || self.changes.rosters > 0
    }

    /// With neither a worker nor all servers nothing is decided: a server that has not come may have published alone, and
    /// only workers would know.
    fn knows_enough(&self) -> bool {
        self.was_over() || self.rebuild.has_worker() || self.follows() && self.rebuild.has_all_servers()
    }

    /// Goes on when everyone has come, or had the time to.
    pub(in super::super) fn rebuild_if_whole(&mut self, now_ms: u64, out: &mut Vec<Command>) {
        for connection in self.rebuild.satisfied() {
            // Its lists were checked when they came.
            let _ = self.rebuild.finish(connection);
        }
        self.ask_for_maps(now_ms, out);
        let Some(deadline_ms) = self.rebuild_deadline_ms() else { return };
        let is_due = now_ms >= deadline_ms;
        // If the only worker is lost while members vote, it may come back until the deadline.
        let votes = self.rebuild.election.is_some() && self.knows_enough();
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

    /// Nobody has said what the cluster was: there is nothing to go on with.
    fn give_up_rebuilding(&mut self, now_ms: u64, out: &mut Vec<Command>) {
        if !self.follows() {
            return self.assemble(now_ms, out);
        }
        let since_ms = self.rebuild.since_ms.unwrap_or(self.started_ms);
        let waited_ms = now_ms.saturating_sub(since_ms);
        self.turn_away(
            "no worker, and not all servers, of the previous job have reconnected; restart the job",
            out,
        );
        let missing = self.missing();
        self.end(now_ms, Outcome::Incomplete { waited_ms, missing }, out);
    }

    /// Who came was of a job that is over: this one is fresh after all.
    fn assemble(&mut self, now_ms: u64, out: &mut Vec<Command>) {
        let early = std::mem::take(&mut self.rebuild.early);
        let waiting = self.rebuild.take_waiting();
        self.turn_away("no worker of its job has reconnected; restart this process", out);
        self.phase = Phase::Assembling;
        for (id, mut member) in early {
            member.heard_ms = now_ms;
            self.connections.insert(member.connection, id);
            self.members.insert(id, member);
        }
        for (connection, register) in waiting {
            self.register(now_ms, connection, register, out);
        }
    }

    /// Nobody who waits for the cluster to be rebuilt is let in.
    pub(in super::super) fn turn_away(&mut self, reason: &str, out: &mut Vec<Command>) {
        let rebuild = std::mem::take(&mut self.rebuild);
        self.turn_away_from(rebuild, reason, out);
    }

    fn turn_away_from(&mut self, rebuild: Rebuild, reason: &str, out: &mut Vec<Command>) {
        let Rebuild { arrivals, waiting, early, .. } = rebuild;
        let waiting = waiting.into_iter().map(|(connection, _)| connection);
        let early = early.into_iter().map(|(_, member)| member.connection);
        for connection in arrivals.into_keys().chain(waiting).chain(early) {
            refuse(connection, RefusalReason::Misplaced(reason.into()), out);
        }
    }

    fn resume(&mut self, now_ms: u64, mut rebuild: Rebuild, out: &mut Vec<Command>) {
        self.changes.rebuilt += 1;
        // It was said of those that were missing now, not of others later.
        self.config.force = false;
        let after = || rebuild.term().max(self.epoch.term).saturating_add(1);
        let term =
            rebuild.election.as_ref().map_or_else(after, |election| election.term).max(self.config.term);
        self.epoch = Epoch { term, counter: 0 };
        self.posts.begin(term);
        self.phase = Phase::Running;
        let began_otherwise = self.began_from(rebuild.restore.take());
        let servers = rebuild.members.iter().filter(|member| member.id.role == Role::Server);
        self.changes.servers = servers.count() as u32;
        let (going, left) = rebuild.take_leaving();
        left.into_iter().for_each(|id| self.note(Note::Left(id)));
        let gone = self.seat(now_ms, &mut rebuild, out);
        for ((name, group), times) in std::mem::take(&mut rebuild.barriers) {
            self.barriers.was_opened(name, group, times);
        }
        self.await_those(now_ms, &rebuild);
        // Workers that are not there may have been told of what these do not know.
        let is_there = |id: &MemberId| self.members.get(id).is_some_and(|member| !member.gone);
        let all_say = self.places().filter(|id| id.role == Role::Worker).all(|id| is_there(&id));
        let answered = std::mem::take(&mut rebuild.answered);
        // Lives before places: a map names ranks.
        if !self.present(|_| true).is_empty() {
            self.tell_roster(out);
        }
        if self.end_if_left(now_ms, out) {
            self.turn_away_from(rebuild, "the job is ending: all workers are done", out);
            return out.extend(going);
        }
        out.extend(going);
        let shape = self.shape_of_maps();
        let (map, lost) = rebuild.map(shape);
        // Of what was under way this one knows nothing, and its lanes would wait for ever.
        super::super::checkpoints::order(
            &self.present(|id| id.role == Role::Server),
            CheckpointOrder::Reset,
            out,
        );
        self.tell_map(map, |key| !all_say || answered.contains(&key), out);
        self.unsettled = true;
        if let Some((rank, keys)) = lost {
            let member = MemberId { role: Role::Server, rank };
            let cause = Box::new(DeathCause::ConnectionLost);
            let cause = DeathCause::Beyond { cause, what: self.loss(&keys) };
            return self.end(now_ms, Outcome::Died(Death { member, cause }), out);
        }
        if gone.is_empty() {
            self.settle(out);
        }
        let silent_ms = now_ms.saturating_sub(rebuild.since_ms.unwrap_or(now_ms));
        for member in gone {
            self.death(now_ms, Death { member, cause: DeathCause::Silent { silent_ms } }, out);
        }
        self.ask_again(out);
        for (id, member) in rebuild.early {
            self.seat_early(now_ms, id, (member, began_otherwise), out);
        }
        for (connection, register) in rebuild.waiting {
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
        let servers = self.servers();
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
