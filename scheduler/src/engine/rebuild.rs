//! A scheduler that follows another one: members say what they know, and nothing is decided before all of them have, or had
//! their time for it. Then the cluster goes on under a new term. Strangers wait meanwhile.

use super::lists::check_lists;
use super::member::Member;
use super::quorum::{Election, Lives as Roster, check_rosters};
use super::{Command, ConnectionId, Engine, Note, Phase, refuse};
use proto_common::error::{Death, DeathCause};
use proto_common::ids::{Epoch, Incarnation, Key, MemberId, Rank, Role};
use proto_common::limits::{TENSORS_MAX, WORKERS_MAX};
use proto_common::message::{
    self, CheckpointOrder, FromScheduler, NodeGroup, RefusalReason, Register, Resume,
};
use proto_common::shard_map::{KeyRange, MapChange, MapUpdate, ShardMap};
use proto_common::tensor::TensorSpec;
use std::collections::{BTreeMap, BTreeSet};

pub(super) use settings::later;

mod elects;
mod maps;
mod seats;
mod settings;
mod wake;

/// Processes that wait to be let in.
const WAITING_MAX: usize = 1024;

/// A member that was one before.
#[derive(Debug)]
struct Arrival {
    register: Register,
    /// The lists of its roster so far.
    members: Vec<message::Member>,
    left: Vec<Rank>,
    tensors: Vec<Told>,
    barriers: Vec<(String, NodeGroup, u64)>,
    epoch: Epoch,
    term: u32,
    rosters: Vec<Roster>,
    /// Its lists are complete; of its map perhaps only the digest is there.
    has_lists: bool,
    /// It has said all it knows.
    is_whole: bool,
}

/// What was told of a tensor, and by whom.
#[derive(Debug)]
struct Told {
    epoch: Epoch,
    by: ConnectionId,
    spec: TensorSpec,
    ranges: Vec<KeyRange>,
}

/// The highest term that a member says it has obeyed.
fn term_of(resume: &Resume) -> u32 {
    resume.term.max(resume.epoch.term)
}

/// The scheduler that follows decides under a higher term: a member that shows one to which there is none would make two
/// schedulers whose decisions nobody can tell apart.
pub(super) fn check_term(resume: &Resume) -> Result<(), RefusalReason> {
    let term = term_of(resume);
    match term.checked_add(1) {
        Some(_) => Ok(()),
        None => Err(RefusalReason::Misplaced(format!(
            "it reports scheduler term {term}, the maximum, which no scheduler can follow; start it as a new process"
        ))),
    }
}

/// The servers' lives in a roster.
type Lives = BTreeMap<Rank, Incarnation>;

fn lives_of(members: &[message::Member]) -> Lives {
    let servers = members.iter().filter(|member| member.id.role == Role::Server);
    servers.map(|member| (member.id.rank, member.incarnation)).collect()
}

/// What members have said.
#[derive(Debug, Default)]
pub(super) struct Rebuild {
    /// When the first came.
    since_ms: Option<u64>,
    /// When somebody last came, or said a part of what it knows.
    heard_ms: u64,
    /// Nobody has, and it slept until then.
    woke_ms: Option<u64>,
    arrivals: BTreeMap<ConnectionId, Arrival>,
    /// Strangers; while a job assembles, those who have no rank yet.
    waiting: Vec<(ConnectionId, Register)>,
    /// Those who were let in before it was known that this is no fresh job.
    early: Vec<(MemberId, Member)>,
    /// The newest roster that was told, and its epoch.
    epoch: Epoch,
    members: Vec<message::Member>,
    left: Vec<Rank>,
    /// Rosters before it that may still be in force.
    rosters: Vec<Roster>,
    pub(super) election: Option<Election>,
    /// Who was missing for a majority, as the log has it.
    pub(super) said_missing: Option<Vec<MemberId>>,
    /// The newest that was told of each tensor.
    tensors: BTreeMap<Key, Told>,
    /// Maps that were reported by digest.
    maps: maps::Maps,
    /// Those that workers know: their declarations were answered.
    answered: BTreeSet<Key>,
    /// The lives that those who told of tensors mean by a rank.
    lives: BTreeMap<ConnectionId, Lives>,
    barriers: BTreeMap<(String, NodeGroup), u64>,
    /// The checkpoint that the job began from, once somebody has said it.
    restore: Option<Option<String>>,
}

impl Rebuild {
    /// Somebody waits for a rank.
    pub(super) fn hold(&mut self, connection: ConnectionId, register: Register) {
        self.waiting.push((connection, register));
    }

    pub(super) fn waiting(&self) -> impl Iterator<Item = &Register> {
        self.waiting.iter().map(|(_, register)| register)
    }

    /// Nobody waits any more.
    pub(super) fn take_waiting(&mut self) -> Vec<(ConnectionId, Register)> {
        std::mem::take(&mut self.waiting)
    }

    pub(super) fn knows(&self, connection: ConnectionId) -> bool {
        self.was_let_in(connection) || self.waiting.iter().any(|(waiting, _)| *waiting == connection)
    }

    /// Is it one's that was a member before: of another scheduler, or of this one before it knew that it follows one?
    pub(super) fn was_let_in(&self, connection: ConnectionId) -> bool {
        self.arrivals.contains_key(&connection)
            || self.early.iter().any(|(_, member)| member.connection == connection)
    }

    /// A part of what a member knows; the error is what is wrong with it.
    fn take(&mut self, from: ConnectionId, part: Resume, shape: (u64, u16, u32)) -> Result<(), String> {
        let announced = self.arrivals.get(&from).filter(|arrival| !arrival.is_whole);
        announced.map_or(Ok(()), |arrival| self.may_tell(from, arrival))?;
        let Some(arrival) = self.arrivals.get_mut(&from).filter(|arrival| !arrival.is_whole) else {
            return Err("it sent recovery state that its registration did not announce".into());
        };
        let (chunk_bytes, lanes, server_places) = shape;
        let mut check = ShardMap::new(chunk_bytes, lanes);
        let MapUpdate { epoch, tensors, ranges } = part.map;
        let is_known = |rank: Rank| rank.0 < server_places;
        let servers = |range: &KeyRange| [Some(range.server), range.backup, range.seeding];
        if !ranges.iter().flat_map(servers).flatten().all(is_known) {
            return Err("its shard map has servers that do not exist in this cluster".into());
        }
        let update = MapUpdate { epoch, tensors, ranges };
        check.apply(&update).map_err(|error| error.to_string())?;
        if arrival.tensors.len() + update.tensors.len() > TENSORS_MAX {
            return Err("its shard map has too many tensors".into());
        }
        let had = (arrival.members.len(), arrival.left.len(), arrival.barriers.len());
        check_lists(had, &part.members, &part.left, &part.barriers, server_places)?;
        check_rosters(
            arrival.rosters.len(),
            &part.rosters,
            WORKERS_MAX.saturating_add(server_places) as usize,
        )?;
        arrival.rosters.extend(part.rosters);
        arrival.members.extend(part.members);
        arrival.left.extend(part.left);
        let told = check.tensors().map(|(spec, ranges)| Told {
            epoch,
            by: from,
            spec: spec.clone(),
            ranges: ranges.to_vec(),
        });
        let before = arrival.tensors.len();
        arrival.tensors.extend(told);
        self.maps.add(self.heard_ms, from, &arrival.tensors[before..]);
        arrival.barriers.extend(part.barriers);
        Ok(())
    }

    /// A member has said all it knows; the error is what is wrong with it.
    fn finish(&mut self, from: ConnectionId) -> Result<(), String> {
        let Some(arrival) = self.arrivals.get_mut(&from) else { return Ok(()) };
        let Register { role, incarnation, .. } = &arrival.register;
        // A scheduler tells a roster to those who are in it: it counts for nothing where somebody else shows it.
        if !arrival.members.iter().any(|one| one.incarnation == *incarnation && one.id.role == *role) {
            return Err(
                "the roster that it reports does not contain this process; start it as a new process".into(),
            );
        }
        if !self.has_map(from)? {
            return Ok(());
        }
        let Some(arrival) = self.arrivals.get_mut(&from) else { return Ok(()) };
        arrival.is_whole = true;
        let (members, left) = (std::mem::take(&mut arrival.members), std::mem::take(&mut arrival.left));
        for told in std::mem::take(&mut arrival.tensors) {
            if arrival.register.role == Role::Worker {
                self.answered.insert(told.spec.key);
            }
            let known = self.tensors.get(&told.spec.key).is_some_and(|known| known.epoch >= told.epoch);
            if !known {
                self.tensors.insert(told.spec.key, told);
            }
        }
        for (name, group, times) in std::mem::take(&mut arrival.barriers) {
            let most = self.barriers.entry((name, group)).or_default();
            *most = times.max(*most);
        }
        self.lives.insert(from, lives_of(&members));
        let knows_more = arrival.epoch == self.epoch && arrival.rosters.len() < self.rosters.len();
        if self.members.is_empty() || arrival.epoch > self.epoch || knows_more {
            (self.epoch, self.members, self.left) = (arrival.epoch, members, left);
            self.rosters = std::mem::take(&mut arrival.rosters);
            self.restore = arrival.register.resume.as_ref().map(|resume| resume.restore.clone());
        }
        Ok(())
    }

    /// The newest map, without what servers had that are gone by the newest roster: others may have their ranks by now. Says
    /// which tensors nobody has any more, and with whom they went.
    fn map(&mut self, (chunk_bytes, lanes, _): (u64, u16, u32)) -> (MapUpdate, Option<(Rank, Vec<Key>)>) {
        let newest = lives_of(&self.members);
        let mut by_teller: BTreeMap<ConnectionId, MapUpdate> = BTreeMap::new();
        for told in std::mem::take(&mut self.tensors).into_values() {
            let update = by_teller.entry(told.by).or_default();
            update.tensors.push(told.spec);
            update.ranges.extend(told.ranges);
        }
        let (mut whole, mut lost) = (MapUpdate::default(), None);
        for (by, update) in by_teller {
            let mut map = ShardMap::new(chunk_bytes, lanes);
            // Each tensor was checked when it came.
            let _ = map.apply(&update);
            let mut ranks: BTreeSet<Rank> = BTreeSet::new();
            for range in &update.ranges {
                ranks.extend([Some(range.server), range.backup, range.seeding].into_iter().flatten());
            }
            let meant = self.lives.get(&by);
            for rank in ranks {
                let now = newest.get(&rank);
                if now.is_some() && meant.and_then(|lives| lives.get(&rank)) == now {
                    continue;
                }
                let keys = map.change(Epoch::default(), &MapChange::ServerGone(rank)).unwrap_or_default();
                if !keys.is_empty() {
                    lost = Some((rank, keys));
                }
            }
            let MapUpdate { tensors, ranges, .. } = map.whole();
            whole.tensors.extend(tensors);
            whole.ranges.extend(ranges);
        }
        (whole, lost)
    }

    /// Who is it that came on this connection, among those of the newest roster?
    fn came(&self, member: &message::Member) -> Option<ConnectionId> {
        let is_it = |(_, arrival): &(&ConnectionId, &Arrival)| {
            arrival.is_whole
                && arrival.register.incarnation == member.incarnation
                && arrival.register.role == member.id.role
        };
        // The newest connection of that life: one of before may be half open.
        self.arrivals.iter().rev().find(is_it).map(|(connection, _)| *connection)
    }

    fn has_worker(&self) -> bool {
        self.members.iter().any(|member| member.id.role == Role::Worker && self.came(member).is_some())
    }

    /// Have all servers come that the newest roster has? Whoever publishes alone knows since when, and a later roster with
    /// somebody else in it would have been told to those who had the data before: they would show it.
    fn has_all_servers(&self) -> bool {
        let mut servers = self.members.iter().filter(|member| member.id.role == Role::Server).peekable();
        servers.peek().is_some() && servers.all(|member| self.came(member).is_some())
    }

    /// Had every worker left in good order by the newest roster? Then the job was over, but for its last checkpoint, or its end had
    /// been told to some already.
    fn is_over(&self, places: usize, waits_for_the_dead: bool) -> bool {
        let has_worker = self.members.iter().any(|member| member.id.role == Role::Worker);
        !has_worker && !self.left.is_empty() && (self.left.len() >= places || !waits_for_the_dead)
    }

    fn is_whole(&self) -> bool {
        !self.members.is_empty()
            && self.arrivals.values().all(|arrival| arrival.is_whole)
            && self.members.iter().all(|member| self.came(member).is_some())
    }
}

impl Engine {
    /// From now on members say what they know.
    pub(super) fn rebuild(&mut self, now_ms: u64) {
        self.phase = Phase::Rebuilding;
        self.connections.clear();
        let early = std::mem::take(&mut self.members).into_iter().filter(|(_, member)| !member.gone);
        let (early, waiting) = (early.collect(), self.rebuild.take_waiting());
        self.rebuild = Rebuild { since_ms: Some(now_ms), early, waiting, ..Rebuild::default() };
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
    pub(super) fn resuming(
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
    pub(super) fn rebuild_without(&mut self, connection: ConnectionId) {
        self.rebuild.arrivals.remove(&connection);
        self.rebuild.maps.forget(connection);
        self.rebuild.waiting.retain(|(waiting, _)| *waiting != connection);
        self.rebuild.early.retain(|(_, member)| member.connection != connection);
    }

    pub(super) fn rebuild_deadline_ms(&self) -> Option<u64> {
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
    pub(super) fn rebuild_if_whole(&mut self, now_ms: u64, out: &mut Vec<Command>) {
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
        self.end(now_ms, super::Outcome::Incomplete { waited_ms, missing }, out);
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
    pub(super) fn turn_away(&mut self, reason: &str, out: &mut Vec<Command>) {
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
        super::checkpoints::order(&self.present(|id| id.role == Role::Server), CheckpointOrder::Reset, out);
        self.tell_map(map, |key| !all_say || answered.contains(&key), out);
        self.unsettled = true;
        if let Some((rank, keys)) = lost {
            let member = MemberId { role: Role::Server, rank };
            let cause = Box::new(DeathCause::ConnectionLost);
            let cause = DeathCause::Beyond { cause, what: self.loss(&keys) };
            return self.end(now_ms, super::Outcome::Died(Death { member, cause }), out);
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
