//! Large maps of tensors. Members report the digest of theirs, and only one member of those with the same digest is asked for
//! the map, so a thousand members cost one map. While members still report, nobody is declared failed: the scheduler may be
//! the slow one. It must not decide what the newest map is.

use super::super::{Command, ConnectionId, Engine, refuse, send};
use super::{Arrival, Rebuild, Told};
use proto_common::ids::{Epoch, Key, Role};
use proto_common::message::{FromScheduler, MapDigest, RefusalReason};
use std::collections::BTreeMap;

/// Maps that are sent to the scheduler at once: each is in memory twice until it is whole.
const ASKED_MAX: usize = 4;

/// A map that a member has sent.
#[derive(Debug)]
struct Known {
    /// The newest epoch at which it was sent.
    epoch: Epoch,
    /// Its tensors, as long as only servers have reported it: a worker has had answers for them.
    unanswered: Vec<Key>,
}

/// Who sends a map.
#[derive(Debug)]
struct Asked {
    connection: ConnectionId,
    /// The digest of what it has sent.
    sent: MapDigest,
    /// When it was asked, or has sent the last part.
    heard_ms: u64,
}

/// Digests that members have reported.
#[derive(Debug, Default)]
pub(super) struct Maps {
    known: BTreeMap<MapDigest, Known>,
    asked: BTreeMap<MapDigest, Asked>,
}

impl Maps {
    /// This scheduler's own map, before it began to follow itself.
    pub(super) fn of_own(tensors: &BTreeMap<Key, Told>, epoch: Epoch) -> Self {
        let mut digest = MapDigest::default();
        tensors.values().for_each(|told| digest.add(&told.spec, &told.ranges));
        let known = Known { epoch, unanswered: tensors.keys().copied().collect() };
        Self { known: BTreeMap::from([(digest, known)]), ..Self::default() }
    }

    /// Is this map there, as new as a member has it? A newer one replaces what others have said meanwhile, and is sent again.
    fn has(&self, digest: MapDigest, epoch: Epoch) -> bool {
        self.known.get(&digest).is_some_and(|known| known.epoch >= epoch)
    }

    fn is_asked(&self, connection: ConnectionId) -> bool {
        self.asked.values().any(|asked| asked.connection == connection)
    }

    /// A part of a map has come.
    pub(super) fn add(&mut self, now_ms: u64, from: ConnectionId, told: &[Told]) {
        if let Some(asked) = self.asked.values_mut().find(|asked| asked.connection == from) {
            asked.heard_ms = now_ms;
            told.iter().for_each(|told| asked.sent.add(&told.spec, &told.ranges));
        }
    }

    /// A connection has closed: another member is asked.
    pub(super) fn forget(&mut self, connection: ConnectionId) {
        self.asked.retain(|_, asked| asked.connection != connection);
    }
}

impl Arrival {
    /// The digest of the map that it has not sent.
    fn owes(&self) -> Option<MapDigest> {
        self.register.resume.as_ref().and_then(|resume| resume.digest).filter(|_| !self.is_whole)
    }

    fn map_epoch(&self) -> Epoch {
        self.register.resume.as_ref().map(|resume| resume.map.epoch).unwrap_or_default()
    }
}

impl Rebuild {
    /// May this member send a part? After its lists only one that was asked does.
    pub(super) fn may_tell(&self, from: ConnectionId, arrival: &Arrival) -> Result<(), String> {
        match arrival.has_lists && !self.maps.is_asked(from) {
            true => Err("it sent a shard map that it was not asked for".into()),
            false => Ok(()),
        }
    }

    /// A member's lists are complete. Is its map there, too? The error is what is wrong with the one that it has sent.
    pub(super) fn has_map(&mut self, from: ConnectionId) -> Result<bool, String> {
        let Self { arrivals, maps, answered, .. } = self;
        let Some(arrival) = arrivals.get_mut(&from) else { return Ok(false) };
        arrival.has_lists = true;
        let Some(digest) = arrival.owes() else { return Ok(true) };
        let is_worker = arrival.register.role == Role::Worker;
        match maps.asked.get(&digest) {
            Some(asked) if asked.connection == from => {
                if asked.sent != digest {
                    return Err("its shard map is not the one whose digest it reported".into());
                }
                maps.asked.remove(&digest);
                let keys = arrival.tensors.iter().map(|told| told.spec.key).filter(|_| !is_worker);
                let known = Known { epoch: arrival.map_epoch(), unanswered: keys.collect() };
                maps.known.insert(digest, known);
                Ok(true)
            }
            _ if maps.has(digest, arrival.map_epoch()) => {
                let known = maps.known.get_mut(&digest).filter(|_| is_worker);
                answered.extend(known.map(|known| std::mem::take(&mut known.unanswered)).unwrap_or_default());
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Members whose map has come, from another one: they have reported everything.
    pub(super) fn satisfied(&self) -> Vec<ConnectionId> {
        let is_there = |arrival: &Arrival| {
            let owed = arrival.owes().filter(|_| arrival.has_lists);
            owed.is_some_and(|digest| self.maps.has(digest, arrival.map_epoch()))
        };
        self.arrivals.iter().filter(|(_, arrival)| is_there(arrival)).map(|(at, _)| *at).collect()
    }

    /// Asks for maps that nobody sends yet.
    pub(super) fn ask_for_maps(&mut self, now_ms: u64, out: &mut Vec<Command>) {
        let Self { arrivals, maps, heard_ms, .. } = self;
        for (connection, arrival) in arrivals.iter().filter(|(_, arrival)| arrival.has_lists) {
            if maps.asked.len() >= ASKED_MAX {
                return;
            }
            let owed = arrival.owes().filter(|digest| !maps.asked.contains_key(digest));
            if let Some(digest) = owed {
                let (connection, sent) = (*connection, MapDigest::default());
                // Everybody waits for it from now on.
                *heard_ms = now_ms;
                maps.asked.insert(digest, Asked { connection, sent, heard_ms: now_ms });
                out.push(send(connection, FromScheduler::SendMap));
            }
        }
    }

    /// The scheduler was suspended, and has not read what came meanwhile.
    pub(super) fn woke(&mut self, now_ms: u64) {
        self.heard_ms = now_ms;
        self.maps.asked.values_mut().for_each(|asked| asked.heard_ms = now_ms);
    }

    /// Members that were asked for their map and have sent nothing since then, where this keeps others waiting: those with the same
    /// map, or those that are not asked yet.
    fn silent(&self, since_ms: u64) -> Vec<ConnectionId> {
        let Self { arrivals, maps, .. } = self;
        let owing = || arrivals.iter().filter(|(_, arrival)| arrival.has_lists);
        let is_full =
            owing().any(|(_, other)| other.owes().is_some_and(|digest| !maps.asked.contains_key(&digest)));
        let keeps_waiting = |digest: MapDigest, asked: ConnectionId| {
            is_full || owing().any(|(at, other)| *at != asked && other.owes() == Some(digest))
        };
        let silent = maps.asked.iter().filter(|(_, asked)| asked.heard_ms <= since_ms);
        let silent = silent.filter(|(digest, asked)| keeps_waiting(**digest, asked.connection));
        silent.map(|(_, asked)| asked.connection).collect()
    }
}

impl Engine {
    /// The deadline of a recovery in which these times are due. Scenario: a thousand members connect at once and each is read
    /// in its turn. If the deadline ran from the first one, the last ones would be declared failed while they wait to be read.
    pub(super) fn while_telling(&self, deadline_ms: u64) -> u64 {
        let shape = &self.config.shape;
        let is_telling = self.rebuild.arrivals.values().any(|arrival| !arrival.is_whole);
        let quiet_ms = self.rebuild.heard_ms.saturating_add(shape.silence_ms);
        if is_telling { deadline_ms.max(quiet_ms.min(self.last_deadline_ms())) } else { deadline_ms }
    }

    /// Members themselves do not wait longer.
    fn last_deadline_ms(&self) -> u64 {
        let shape = &self.config.shape;
        let since_ms = self.rebuild.since_ms.unwrap_or(self.started_ms);
        since_ms.saturating_add(shape.scheduler_ms.max(shape.silence_ms))
    }

    /// Asks for maps that are not there; others, where those that were asked are silent.
    pub(super) fn ask_for_maps(&mut self, now_ms: u64, out: &mut Vec<Command>) {
        let silent =
            now_ms.checked_sub(self.config.shape.silence_ms).map(|since_ms| self.rebuild.silent(since_ms));
        for connection in silent.unwrap_or_default() {
            self.rebuild_without(connection);
            let reason =
                "it did not send its shard map within deadlines.silence_ms; start it as a new process";
            refuse(connection, RefusalReason::Misplaced(reason.into()), out);
        }
        self.rebuild.ask_for_maps(now_ms, out);
    }
}
