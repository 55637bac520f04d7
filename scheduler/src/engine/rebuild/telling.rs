//! Members that report maps of tensors: whose map is asked for, and how long a recovery waits for it.

use super::super::Engine;
use super::super::command::{Command, refuse, send};
use super::super::member::ConnectionId;
use super::maps::{ASKED_MAX, Asked, Known};
use super::{Arrival, Rebuild};
use proto_common::ids::{Epoch, Role};
use proto_common::message::{FromScheduler, MapDigest, RefusalReason};

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
