//! A restarted scheduler: owns the reports and votes of members. Nothing is decided before all members have reported, or their deadline
//! has passed. Then the cluster continues under a new term. Processes that are not members wait meanwhile. It must not know the
//! deadline, nor what follows it.
//!
//! ```text
//!   a member:   arrive ──▶ telling ──tell, the last part──▶ has its lists ──its map is known──▶ whole ──elect──▶ asked ──vote──▶ voted
//!                            └── forget: its connection has closed, or what it tells is wrong ──▶ not back
//! ```

use super::command::{Command, let_go};
use super::member::{ConnectionId, LOCAL, Member};
use super::quorum::{Election, Lives as Roster, check_rosters};
use super::report::check_lists;
use maps::{Maps, Told};
use proto_common::ids::{Epoch, Incarnation, Key, MemberId, Rank, Role};
use proto_common::limits::{TENSORS_MAX, WORKERS_MAX};
use proto_common::message::{self, NodeGroup, RefusalReason, Register, Resume};
use proto_common::shard_map::{KeyRange, MapChange, MapUpdate, ShardMap};
use proto_common::tensor::TensorSpec;
use std::collections::{BTreeMap, BTreeSet};

mod elects;
mod maps;
mod telling;

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

impl Arrival {
    fn new(register: Register, epoch: Epoch, term: u32) -> Self {
        Self {
            register,
            members: Vec::new(),
            left: Vec::new(),
            tensors: Vec::new(),
            barriers: Vec::new(),
            epoch,
            term,
            rosters: Vec::new(),
            has_lists: false,
            is_whole: false,
        }
    }

    fn is_of(&self, member: &message::Member) -> bool {
        self.register.incarnation == member.incarnation && self.register.role == member.id.role
    }

    /// It has said goodbye to the scheduler before this one.
    fn leaves(&self) -> bool {
        self.is_whole && self.register.resume.as_ref().is_some_and(|resume| resume.leaves)
    }
}

/// On which connection a member has come and said everything.
fn came(arrivals: &BTreeMap<ConnectionId, Arrival>, member: &message::Member) -> Option<ConnectionId> {
    let is_it = |(_, arrival): &(&ConnectionId, &Arrival)| arrival.is_whole && arrival.is_of(member);
    // The newest connection of that life: one of before may be half open.
    arrivals.iter().rev().find(is_it).map(|(connection, _)| *connection)
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
    election: Option<Election>,
    /// Who was missing for a majority, as the log has it.
    said_missing: Option<Vec<MemberId>>,
    /// The newest that was told of each tensor.
    tensors: BTreeMap<Key, Told>,
    /// Maps that were reported by digest.
    maps: Maps,
    /// Those that workers know: their declarations were answered.
    pub(super) answered: BTreeSet<Key>,
    /// The lives that those who told of tensors mean by a rank.
    lives: BTreeMap<ConnectionId, Lives>,
    pub(super) barriers: BTreeMap<(String, NodeGroup), u64>,
    /// The checkpoint that the job began from, once somebody has said it.
    pub(super) restore: Option<Option<String>>,
}

impl Rebuild {
    /// Members say what they know from now on: these were let in before that was known, and those wait.
    pub(super) fn begin(
        now_ms: u64,
        early: Vec<(MemberId, Member)>,
        waiting: Vec<(ConnectionId, Register)>,
    ) -> Self {
        Self { since_ms: Some(now_ms), early, waiting, ..Self::default() }
    }

    /// A scheduler that follows itself knows this already, and these tensors, of which some were answered.
    pub(super) fn begin_with(
        now_ms: u64,
        own: Resume,
        tensors: impl Iterator<Item = (TensorSpec, Vec<KeyRange>)>,
        answered: BTreeSet<Key>,
    ) -> Self {
        let Resume { epoch, members, left, barriers, rosters, .. } = own;
        let told = |(spec, ranges): (TensorSpec, _)| (spec.key, Told { epoch, by: LOCAL, spec, ranges });
        let tensors: BTreeMap<Key, Told> = tensors.map(told).collect();
        Self {
            since_ms: Some(now_ms),
            epoch,
            lives: BTreeMap::from([(LOCAL, lives_of(&members))]),
            members,
            left,
            rosters,
            maps: Maps::of_own(&tensors, epoch),
            tensors,
            answered,
            barriers: barriers.into_iter().map(|(name, group, times)| ((name, group), times)).collect(),
            ..Self::default()
        }
    }

    /// The scheduler was suspended, and has not read what came meanwhile: members have their time once more.
    pub(super) fn woke(&mut self, now_ms: u64) {
        self.heard_ms = now_ms;
        self.maps.woke(now_ms);
        match &mut self.since_ms {
            Some(since_ms) => *since_ms = now_ms,
            None => self.woke_ms = Some(now_ms),
        }
    }

    /// When the first member came.
    pub(super) fn since_ms(&self) -> Option<u64> {
        self.since_ms
    }

    /// No member has come, and the scheduler was suspended until then.
    pub(super) fn woke_ms(&self) -> Option<u64> {
        self.woke_ms
    }

    /// When a member last came, or said a part of what it knows, if one has not said everything.
    pub(super) fn telling_ms(&self) -> Option<u64> {
        self.arrivals.values().any(|arrival| !arrival.is_whole).then_some(self.heard_ms)
    }

    /// A member comes.
    pub(super) fn arrive(&mut self, now_ms: u64, from: ConnectionId, register: Register) {
        let Some(resume) = &register.resume else { return };
        self.since_ms.get_or_insert(now_ms);
        self.heard_ms = now_ms;
        let (epoch, term) = (resume.epoch, term_of(resume));
        self.arrivals.insert(from, Arrival::new(register, epoch, term));
    }

    /// A member says a part of what it knows; the error is what is wrong with it.
    pub(super) fn tell(
        &mut self,
        now_ms: u64,
        from: ConnectionId,
        (part, is_last): (Resume, bool),
        shape: (u64, u16, u32),
    ) -> Result<(), String> {
        self.heard_ms = now_ms;
        self.take(from, part, shape)?;
        if is_last { self.finish(from) } else { Ok(()) }
    }

    /// Members whose map has come from another one have said everything.
    pub(super) fn finish_satisfied(&mut self) {
        for connection in self.satisfied() {
            // Its lists were checked when they came.
            let _ = self.finish(connection);
        }
    }

    /// A connection has closed: what was said on it stays said.
    pub(super) fn forget(&mut self, connection: ConnectionId) {
        self.arrivals.remove(&connection);
        self.maps.forget(connection);
        self.waiting.retain(|(waiting, _)| *waiting != connection);
        self.early.retain(|(_, member)| member.connection != connection);
    }

    /// A process that is not a member waits until the job continues. False if too many wait.
    pub(super) fn wait(&mut self, connection: ConnectionId, register: Register) -> bool {
        let has_room = self.waiting.len() < WAITING_MAX;
        if has_room {
            self.hold(connection, register);
        }
        has_room
    }

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

    /// Those who were let in before it was known that this is no fresh job.
    pub(super) fn take_early(&mut self) -> Vec<(MemberId, Member)> {
        std::mem::take(&mut self.early)
    }

    /// Members are not heard any more: they wait for another scheduler.
    pub(super) fn leave_members(&mut self) {
        self.arrivals.clear();
    }

    /// Everyone who waits here.
    pub(super) fn into_connections(self) -> impl Iterator<Item = ConnectionId> {
        let waiting = self.waiting.into_iter().map(|(connection, _)| connection);
        let early = self.early.into_iter().map(|(_, member)| member.connection);
        self.arrivals.into_keys().chain(waiting).chain(early)
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
        // A scheduler tells a roster to those who are in it: it counts for nothing where somebody else shows it.
        if !arrival.members.iter().any(|one| arrival.is_of(one)) {
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
    pub(super) fn map(
        &mut self,
        (chunk_bytes, lanes, _): (u64, u16, u32),
    ) -> (MapUpdate, Option<(Rank, Vec<Key>)>) {
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

    /// On which connection has this member of the newest roster come?
    fn came(&self, member: &message::Member) -> Option<ConnectionId> {
        came(&self.arrivals, member)
    }

    pub(super) fn has_worker(&self) -> bool {
        self.members.iter().any(|member| member.id.role == Role::Worker && self.came(member).is_some())
    }

    /// Have all servers come that the newest roster has? Whoever publishes alone knows since when, and a later roster with
    /// somebody else in it would have been told to those who had the data before: they would show it.
    pub(super) fn has_all_servers(&self) -> bool {
        let mut servers = self.members.iter().filter(|member| member.id.role == Role::Server).peekable();
        servers.peek().is_some() && servers.all(|member| self.came(member).is_some())
    }

    pub(super) fn is_whole(&self) -> bool {
        !self.members.is_empty()
            && self.arrivals.values().all(|arrival| arrival.is_whole)
            && self.members.iter().all(|member| self.came(member).is_some())
    }

    /// Removes the members whose goodbye the previous scheduler had not confirmed. Workers count as left before any member is missed:
    /// the other members may have been notified already, and may have exited. Returns the confirmations, which are sent after the other
    /// members have been notified, and the workers that left now.
    pub(super) fn take_leaving(&mut self) -> (Vec<Command>, Vec<MemberId>) {
        let (mut told, mut left) = (Vec::new(), Vec::new());
        self.arrivals.retain(|connection, arrival| {
            if !arrival.leaves() {
                return true;
            }
            let register = &arrival.register;
            let rank = register.resume.as_ref().map(|resume| resume.rank).unwrap_or_default();
            let is_known = match (self.members.iter().position(|member| arrival.is_of(member)), register.role)
            {
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

    /// Members of the newest roster, each with its connection and registration if it has come.
    pub(super) fn seat(&mut self, mut place: impl FnMut(&message::Member, Option<(ConnectionId, Register)>)) {
        let Self { members, arrivals, .. } = self;
        for entry in members.iter() {
            let connection = came(arrivals, entry);
            let arrival = connection.and_then(|connection| Some((connection, arrivals.remove(&connection)?)));
            place(entry, arrival.map(|(connection, arrival)| (connection, arrival.register)));
        }
    }

    /// Those who have come and are in no seat.
    pub(super) fn take_unseated(&mut self) -> impl Iterator<Item = (ConnectionId, Incarnation)> + use<> {
        let unseated = std::mem::take(&mut self.arrivals).into_iter();
        unseated.map(|(connection, arrival)| (connection, arrival.register.incarnation))
    }

    /// The newest roster.
    pub(super) fn members(&self) -> &[message::Member] {
        &self.members
    }

    /// Workers that have left by the newest roster.
    pub(super) fn left(&self) -> &[Rank] {
        &self.left
    }
}
