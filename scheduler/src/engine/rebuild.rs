//! A scheduler that follows another one: members say what they know, and nothing is decided before all of them have, or had
//! their time for it. Then the cluster goes on under a new term. Strangers wait meanwhile.

use super::member::ConnectionId;
use super::member::Member;
use super::quorum::{Election, Lives as Roster, check_rosters};
use super::report::check_lists;
use maps::Told;
use proto_common::ids::{Epoch, Incarnation, Key, MemberId, Rank, Role};
use proto_common::limits::{TENSORS_MAX, WORKERS_MAX};
use proto_common::message::{self, NodeGroup, RefusalReason, Register, Resume};
use proto_common::shard_map::{KeyRange, MapChange, MapUpdate, ShardMap};
use std::collections::{BTreeMap, BTreeSet};

pub(super) use settings::later;

mod elects;
mod hearing;
mod maps;
mod seats;
mod settings;
mod telling;
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
