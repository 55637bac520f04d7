//! Tensors: who declared what, where it was put, and who waits for servers to allocate it, each to its own
//! deadline. The first declaration of a tensor places it; the same declaration from others gets the same ranges. It must not know
//! who is a member.
//!
//! ```text
//!                   all servers have answered
//!   (none) ─place─▶ Pending ───────────────────▶ Ready
//!      ▲              │ a server cannot have it, and nobody counts on it
//!      └── settle ── Failed: it leaves the map with the next decision, and may be declared anew then
//! ```

use super::command::{Command, send};
use super::member::ConnectionId;
use super::shards::{RANGE_BYTES, Servers, Shards};
use super::waiters::{Asker, DueAnswer, Waiters};
use proto_common::ids::{ChunkId, Epoch, Key, MemberId, Rank, Role};
use proto_common::limits::{CONTROL_FRAME_BYTES_MAX, TENSORS_MAX};
use proto_common::message::{ClusterShape, DeclareError, FromScheduler, NotTaken, Resume};
use proto_common::shard_map::{MapChange, MapError, MapUpdate, SharedUpdate};
use proto_common::tensor::{RuleChange, TensorError, TensorSpec};
use std::collections::{BTreeMap, BTreeSet};

/// Changes of rules that may wait for servers at once.
pub(super) const CHANGES_MAX: usize = 4096;
/// Chunks placed by one declaration: placing takes time for each.
const CHUNKS_MAX: u64 = 1 << 26;
/// Decisions that follow from one another without an event in between; each makes progress, so this is never reached.
const PLANS_MAX: usize = 64;

/// What follows from a declaration.
#[derive(Debug, PartialEq)]
pub(super) enum Step {
    Answer(Result<SharedUpdate, DeclareError>),
    /// Servers are to allocate this; the answer waits for them.
    Assign(MapUpdate),
    /// The answer waits for servers that were asked before.
    Wait,
    /// Servers are to take this change; the answer waits for them.
    Change(Epoch, RuleChange),
}

#[derive(Clone, Debug)]
enum State {
    /// Servers are allocating it.
    Pending,
    Ready,
    Failed(DeclareError),
}

#[derive(Clone, Debug)]
struct Entry {
    /// The decision that placed it, which servers answer.
    epoch: Epoch,
    state: State,
}

#[derive(Debug)]
struct Pending {
    servers: BTreeSet<Rank>,
    keys: Vec<Key>,
    error: Option<DeclareError>,
    /// Tensors of before, that somebody counts on: whatever a server says, they stay.
    stay: BTreeSet<Key>,
    /// Who is to hear of a change of a rule.
    changer: Option<Asker>,
}

impl Pending {
    fn new(servers: &Servers, keys: Vec<Key>, changer: Option<Asker>) -> Self {
        Self { servers: servers.there.clone(), keys, error: None, stay: BTreeSet::new(), changer }
    }

    /// A change of a rule, and not the tensors of a declaration, of which there is at least one.
    fn is_change(&self) -> bool {
        self.keys.is_empty()
    }
}

/// All declared tensors.
#[derive(Debug)]
pub(super) struct Declarations {
    shape: ClusterShape,
    tensors: BTreeMap<Key, Entry>,
    pending: BTreeMap<Epoch, Pending>,
    waiters: Waiters,
    /// The last answer that was made, for those who declare the same soon after; with the map's epoch.
    answered: Option<(Epoch, SharedUpdate)>,
    /// What could not be allocated everywhere, and is to leave the map.
    dropped: Vec<Key>,
    /// Copies are missing, or bytes are not level, as far as is known.
    unsettled: bool,
    /// For what nothing was to be decided: the epoch, the decisions that servers have not answered, and the servers.
    planned_for: Option<(Epoch, usize, Servers)>,
    pub(super) shards: Shards,
}

impl Declarations {
    pub(super) fn new(shape: &ClusterShape) -> Self {
        Self {
            shape: *shape,
            tensors: BTreeMap::new(),
            pending: BTreeMap::new(),
            waiters: Waiters::default(),
            answered: None,
            dropped: Vec::new(),
            unsettled: false,
            planned_for: None,
            shards: Shards::new(shape),
        }
    }

    /// Tensors and their bytes.
    pub(super) fn totals(&self) -> (u64, u64) {
        (self.tensors.len() as u64, self.shards.served_bytes())
    }

    /// All tensors that servers hold, with the epoch that each was placed in.
    pub(super) fn placed(&self) -> impl Iterator<Item = (&TensorSpec, Epoch)> {
        let map = self.shards.map();
        self.tensors.iter().filter_map(|(key, entry)| Some((map.tensor(*key)?, entry.epoch)))
    }

    /// One declaration. `epoch` moves on where tensors are new.
    pub(super) fn declare(
        &mut self,
        who: Asker,
        tensors: Vec<TensorSpec>,
        servers: &Servers,
        epoch: &mut Epoch,
    ) -> Step {
        // Said to the scheduler before this one as well, and perhaps on its way twice.
        self.waiters.forget_request(&who);
        let keys: Vec<Key> = tensors.iter().map(|spec| spec.key).collect();
        let fresh = match self.fresh(tensors) {
            Ok(fresh) => fresh,
            Err(error) => return Step::Answer(Err(error)),
        };
        if fresh.is_empty()
            && let Some(result) = self.answer_for(&keys)
        {
            return Step::Answer(result);
        }
        if !self.waiters.has_room(&keys) {
            let what = "too many declarations wait already; wait for their answers before declaring more";
            return Step::Answer(Err(DeclareError::NotNow(what.into())));
        }
        let mut step = Step::Wait;
        if !fresh.is_empty() {
            match self.place(fresh, servers, epoch.next()) {
                Ok(update) => step = Step::Assign(update),
                Err(error) => return Step::Answer(Err(error)),
            }
            *epoch = epoch.next();
        }
        self.waiters.add(keys, who);
        step
    }

    /// A declared tensor gets another rule. What servers say to it changes nothing of the tensor's own state.
    pub(super) fn change(
        &mut self,
        who: Asker,
        change: RuleChange,
        servers: &Servers,
        epoch: &mut Epoch,
    ) -> Step {
        if let Err(error) = self.may_change(&change) {
            return Step::Answer(Err(error));
        }
        // Those that nobody waits for any more are kept, too, until servers have answered.
        if self.pending.values().filter(|pending| pending.is_change()).count() >= CHANGES_MAX {
            let what = "too many changes of rules wait already; wait for their answers before changing more";
            return Step::Answer(Err(DeclareError::NotNow(what.into())));
        }
        *epoch = epoch.next();
        self.pending.insert(*epoch, Pending::new(servers, Vec::new(), Some(who)));
        Step::Change(*epoch, change)
    }

    fn may_change(&self, change: &RuleChange) -> Result<(), DeclareError> {
        let key = change.key;
        let Some(entry) = self.tensors.get(&key) else {
            let what = "it is not declared; declare it before its rule is changed".into();
            return Err(TensorError::Unsupported { key, name: String::new(), what }.into());
        };
        match &entry.state {
            State::Ready => {
                let spec = self.shards.map().tensor(key);
                Ok(spec.map_or(Ok(()), |spec| spec.validate_change(change, self.shape.chunk_bytes))?)
            }
            State::Pending => {
                let what =
                    "servers are still allocating it; change its rule once its declaration is answered";
                let label =
                    self.shards.map().tensor(key).map_or_else(|| format!("tensor {key}"), TensorSpec::label);
                Err(DeclareError::NotNow(format!("{label}: {what}")))
            }
            State::Failed(error) => Err(error.clone()),
        }
    }

    /// A server's answer to an assignment, and whose declarations it completes.
    pub(super) fn assigned(
        &mut self,
        who: MemberId,
        epoch: Epoch,
        error: Option<NotTaken>,
    ) -> Vec<DueAnswer> {
        let Some(pending) = self.pending.get_mut(&epoch) else { return Vec::new() };
        if who.role != Role::Server || !pending.servers.remove(&who.rank) {
            return Vec::new();
        }
        if let Some(NotTaken { reason, is_checkpoint }) = error {
            let server = who.rank;
            pending.error.get_or_insert(match is_checkpoint {
                true => DeclareError::Checkpoint { server, reason },
                false => DeclareError::Server { server, reason },
            });
        }
        self.complete(epoch)
    }

    /// A server is gone: nobody waits for what it would have answered. Whether a change of a rule that it had not answered
    /// reached the copies that serve now, nobody knows: it is to be asked for again, which is harmless where they have it.
    pub(super) fn without(&mut self, server: Rank) -> Vec<DueAnswer> {
        let mut epochs: Vec<Epoch> = Vec::new();
        for (epoch, pending) in &mut self.pending {
            if !pending.servers.remove(&server) {
                continue;
            }
            if pending.is_change() {
                let what = format!("server {server} failed while the rule was changed; change it again");
                pending.error.get_or_insert(DeclareError::NotNow(what));
            }
            epochs.push(*epoch);
        }
        epochs.into_iter().flat_map(|epoch| self.complete(epoch)).collect()
    }

    /// Ends what all servers have answered.
    fn complete(&mut self, epoch: Epoch) -> Vec<DueAnswer> {
        if self.pending.get(&epoch).is_none_or(|pending| !pending.servers.is_empty()) {
            return Vec::new();
        }
        let Some(done) = self.pending.remove(&epoch) else { return Vec::new() };
        for key in &done.keys {
            if let Some(entry) = self.tensors.get_mut(key) {
                let error = done.error.clone().filter(|_| !done.stay.contains(key));
                let has_failed = error.is_some();
                entry.state = error.map_or(State::Ready, State::Failed);
                if has_failed {
                    self.dropped.push(*key);
                }
            }
        }
        let mut due = self.due();
        if let Some(who) = done.changer {
            let result = done.error.map_or_else(|| Ok(SharedUpdate::default()), Err);
            due.push(who.answer(result));
        }
        due
    }

    /// What nobody counts on leaves the map: servers need not keep it, nor copy it, nor wait for others to take it over. Whoever
    /// waited has heard why; who declares it from now on declares it anew.
    fn drop_failed(&mut self, epoch: &mut Epoch) -> Option<(Epoch, MapChange)> {
        if self.dropped.is_empty() {
            return None;
        }
        *epoch = epoch.next();
        for key in &self.dropped {
            self.tensors.remove(key);
        }
        let change = MapChange::Dropped(std::mem::take(&mut self.dropped));
        self.shards.drop_tensors(*epoch, &change);
        Some((*epoch, change))
    }

    /// Are the tensors of this decision new, so that a server that cannot have them fails a declaration, and nothing else?
    pub(super) fn is_new(&self, epoch: Epoch) -> bool {
        self.pending.get(&epoch).is_some_and(|pending| pending.stay.is_empty())
    }

    /// Everything as a scheduler before this one left it: `servers` are asked again for all of it, in these messages. Tensors
    /// that somebody may have been told of (`is_known`) stay whatever servers say; others leave where one of those that
    /// came in the same message cannot be had.
    pub(super) fn restore(
        &mut self,
        map: MapUpdate,
        is_known: impl Fn(Key) -> bool,
        servers: &Servers,
        epoch: &mut Epoch,
    ) -> Result<Vec<MapUpdate>, MapError> {
        self.shards.restore(&MapUpdate { epoch: *epoch, ..map })?;
        let parts = Resume { map: self.shards.map().whole(), ..Resume::default() }.parts();
        let mut told = Vec::new();
        for MapUpdate { tensors, ranges, .. } in parts.into_iter().map(|part| part.map) {
            if tensors.is_empty() {
                continue;
            }
            *epoch = epoch.next();
            let keys: Vec<Key> = tensors.iter().map(|spec| spec.key).collect();
            for key in &keys {
                self.tensors.insert(*key, Entry { epoch: *epoch, state: State::Pending });
            }
            let stay = keys.iter().copied().filter(|key| is_known(*key)).collect();
            self.pending.insert(*epoch, Pending { stay, ..Pending::new(servers, keys, None) });
            told.push(MapUpdate { epoch: *epoch, tensors, ranges });
        }
        Ok(told)
    }

    /// Everything that servers have, in messages that each fit: what one that comes is told.
    pub(super) fn whole(&self, epoch: &mut Epoch) -> Vec<MapUpdate> {
        let parts = Resume { map: self.shards.map().whole(), ..Resume::default() }.parts();
        let full = parts.into_iter().map(|part| part.map).filter(|map| !map.tensors.is_empty());
        let stamped = full.map(|map| {
            *epoch = epoch.next();
            MapUpdate { epoch: *epoch, ..map }
        });
        stamped.collect()
    }

    /// Has a declaration of it been answered?
    pub(super) fn is_ready(&self, key: Key) -> bool {
        self.tensors.get(&key).is_some_and(|entry| matches!(entry.state, State::Ready))
    }

    /// Does anybody count on it? On what could not be allocated nobody does.
    pub(super) fn is_kept(&self, key: Key) -> bool {
        self.tensors.get(&key).is_some_and(|entry| !matches!(entry.state, State::Failed(_)))
    }

    /// Copies may be missing, or bytes be not level.
    pub(super) fn unsettle(&mut self) {
        self.unsettled = true;
    }

    /// Are all copies there, and bytes level, as far as is known?
    pub(super) fn is_level(&self) -> bool {
        !self.unsettled
    }

    /// Is nothing to be decided?
    pub(super) fn is_settled(&self) -> bool {
        self.is_level() && self.dropped.is_empty()
    }

    /// Decides what leaves the map, and about copies and moves as far as they can be decided now.
    pub(super) fn settle(
        &mut self,
        servers: &Servers,
        balance: bool,
        epoch: &mut Epoch,
    ) -> Vec<(Epoch, MapChange)> {
        let mut told = Vec::from_iter(self.drop_failed(epoch));
        for _ in 0..PLANS_MAX {
            if !self.unsettled {
                break;
            }
            // Every answer and every tick comes here, and a plan looks at all ranges.
            let planned_for = (*epoch, self.pending.len(), servers.clone());
            if self.planned_for.as_ref() == Some(&planned_for) {
                break;
            }
            let tensors = &self.tensors;
            let is_ready =
                |key| tensors.get(&key).is_some_and(|entry: &Entry| matches!(entry.state, State::Ready));
            let (changes, is_quiet) = self.shards.plan(servers, is_ready, balance, epoch);
            // What is still being allocated is looked at when it is there.
            self.unsettled = !is_quiet || !self.pending.values().all(Pending::is_change);
            if changes.is_empty() {
                self.planned_for = Some(planned_for);
                break;
            }
            told.extend(changes);
        }
        told
    }

    /// A server could not do what decisions up to `said` asked of it: copies are given up, and others are asked. Returns the first
    /// chunks of those copies, too.
    pub(super) fn refused(
        &mut self,
        by: Rank,
        said: Epoch,
        epoch: &mut Epoch,
    ) -> (Vec<(Epoch, MapChange)>, Vec<ChunkId>) {
        let (changes, given_up) = self.shards.refused(by, said, epoch);
        self.unsettled |= !changes.is_empty();
        (changes, given_up)
    }

    /// A connection is gone: what it waited for is not answered.
    pub(super) fn forget(&mut self, connection: ConnectionId) {
        self.waiters.forget(connection);
        for pending in self.pending.values_mut() {
            pending.changer = pending.changer.filter(|who| !who.is_on(connection));
        }
    }

    /// Answers those whose deadline has passed. Their tensors stay placed: servers may still answer, and the same
    /// declaration waits anew or finds them ready.
    pub(super) fn expire(&mut self, now_ms: u64) -> Vec<DueAnswer> {
        // Whoever declares the same later gets a new one.
        self.answered = None;
        let Self { tensors, pending, waiters, .. } = self;
        let mut due = waiters.expire(now_ms, |keys| silent_servers(tensors, pending, keys));
        for pending in pending.values_mut() {
            if let Some(who) = pending.changer.take_if(|who| who.deadline_ms() <= now_ms) {
                due.push(who.too_late(now_ms, pending.servers.iter().copied().collect()));
            }
        }
        due
    }

    pub(super) fn next_deadline_ms(&self) -> Option<u64> {
        let changers = self.pending.values().filter_map(|pending| pending.changer.as_ref());
        changers.map(Asker::deadline_ms).chain(self.waiters.next_deadline_ms()).min()
    }

    fn due(&mut self) -> Vec<DueAnswer> {
        let mut waiters = std::mem::take(&mut self.waiters);
        let due = waiters.answer(|keys| self.answer_for(keys));
        self.waiters = waiters;
        due
    }

    /// The tensors that were not declared before; an error where any of them cannot be taken.
    fn fresh(&self, tensors: Vec<TensorSpec>) -> Result<Vec<TensorSpec>, DeclareError> {
        let mut seen = BTreeSet::new();
        let mut fresh = Vec::new();
        for spec in tensors {
            let spec = spec.settled(&self.shape);
            if !seen.insert(spec.key) {
                return Err(DeclareError::Duplicate { key: spec.key, name: spec.name });
            }
            match self.tensors.get(&spec.key) {
                None => {
                    spec.validate_in(&self.shape)?;
                    fresh.push(spec);
                }
                Some(_) => {
                    let before = self.shards.map().tensor(spec.key);
                    if before != Some(&spec) {
                        let (before, now) = (before.map(describe).unwrap_or_default(), describe(&spec));
                        return Err(DeclareError::Conflict { key: spec.key, name: spec.name, before, now });
                    }
                }
            }
        }
        if self.tensors.len() + fresh.len() > TENSORS_MAX {
            return Err(DeclareError::TooMany { limit: TENSORS_MAX as u64 });
        }
        Ok(fresh)
    }

    /// Puts new tensors on servers; nothing changes on error.
    fn place(
        &mut self,
        fresh: Vec<TensorSpec>,
        servers: &Servers,
        epoch: Epoch,
    ) -> Result<MapUpdate, DeclareError> {
        let mut chunks = 0u64;
        for spec in &fresh {
            chunks = chunks.saturating_add(spec.chunk_count(self.shape.chunk_bytes));
            if chunks > CHUNKS_MAX {
                let (key, name, elements) = (spec.key, spec.name.clone(), spec.elements);
                return Err(TensorError::TooLarge { key, name, elements }.into());
            }
        }
        let ranges = self.shards.place(&fresh, servers);
        fits_a_message(fresh.iter(), ranges.len())?;
        let update = MapUpdate { epoch, tensors: fresh, ranges };
        self.shards.add(&update).map_err(|error| DeclareError::NotNow(error.to_string()))?;
        let keys: Vec<Key> = update.tensors.iter().map(|spec| spec.key).collect();
        for key in &keys {
            self.tensors.insert(*key, Entry { epoch, state: State::Pending });
        }
        self.pending.insert(epoch, Pending::new(servers, keys, None));
        Ok(update)
    }

    /// The answer for these tensors, once all of them are allocated or one has failed.
    fn answer_for(&mut self, keys: &[Key]) -> Option<Result<SharedUpdate, DeclareError>> {
        let entries: Vec<&Entry> = keys.iter().filter_map(|key| self.tensors.get(key)).collect();
        let failed = entries.iter().find_map(|entry| match &entry.state {
            State::Failed(error) => Some(error.clone()),
            State::Pending | State::Ready => None,
        });
        if let Some(error) = failed {
            return Some(Err(error));
        }
        if entries.iter().any(|entry| matches!(entry.state, State::Pending)) {
            return None;
        }
        let map = self.shards.map();
        let epoch = entries.iter().map(|entry| entry.epoch).max().unwrap_or_default();
        let is_it = |(at, update): &&(Epoch, SharedUpdate)| {
            let told = update.tensors.iter().map(|spec| spec.key);
            (*at, update.epoch) == (map.epoch(), epoch) && told.eq(keys.iter().copied())
        };
        if let Some((_, update)) = self.answered.as_ref().filter(is_it) {
            return Some(Ok(update.clone()));
        }
        // Each was declared in a message that it fitted, and all of them need not fit one.
        let ranges = keys.iter().map(|key| map.ranges_of(*key).len()).sum();
        if let Err(error) = fits_a_message(keys.iter().filter_map(|key| map.tensor(*key)), ranges) {
            return Some(Err(error));
        }
        let mut update = MapUpdate { epoch, ..MapUpdate::default() };
        for key in keys {
            update.tensors.extend(map.tensor(*key).cloned());
            update.ranges.extend_from_slice(map.ranges_of(*key));
        }
        let update = SharedUpdate::from(update);
        self.answered = Some((map.epoch(), update.clone()));
        Some(Ok(update))
    }
}

/// Servers that have not answered the assignments of these tensors.
fn silent_servers(
    tensors: &BTreeMap<Key, Entry>,
    pending: &BTreeMap<Epoch, Pending>,
    keys: &[Key],
) -> Vec<Rank> {
    let epochs: BTreeSet<Epoch> =
        keys.iter().filter_map(|key| tensors.get(key)).map(|entry| entry.epoch).collect();
    let pending = epochs.iter().filter_map(|epoch| pending.get(epoch));
    let silent: BTreeSet<Rank> = pending.flat_map(|pending| &pending.servers).copied().collect();
    silent.into_iter().collect()
}

/// Can tensors and their ranges be told in one message?
fn fits_a_message<'a>(
    specs: impl Iterator<Item = &'a TensorSpec>,
    ranges: usize,
) -> Result<(), DeclareError> {
    let names: usize = specs.map(TensorSpec::message_bytes).sum();
    if names + ranges * RANGE_BYTES > CONTROL_FRAME_BYTES_MAX {
        let what = "the declaration is too large for one message; declare fewer tensors at once";
        return Err(DeclareError::NotNow(what.into()));
    }
    Ok(())
}

fn describe(spec: &TensorSpec) -> String {
    let TensorSpec { name, dtype, elements, compression, optimizer, .. } = spec;
    let most = if spec.dynamic { "at most " } else { "" };
    let (mode, backup) = (spec.settled_mode(), spec.settled_backup());
    format!(
        "{name:?} with {most}{elements} elements of {dtype:?}, {compression:?}, {optimizer:?}, mode {mode} with {backup} backup workers"
    )
}

pub(super) fn declared(answers: impl IntoIterator<Item = DueAnswer>, out: &mut Vec<Command>) {
    for (to, request, result) in answers {
        out.push(send(to, FromScheduler::Declared { request, result }));
    }
}
