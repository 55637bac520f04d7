//! Members that report maps of tensors: which member is asked for its map. It must not know how long a recovery waits for the map.

use super::super::command::{Command, send};
use super::super::member::ConnectionId;
use super::maps::{ASKED_MAX, Asked, Known};
use super::{Arrival, Rebuild};
use proto_common::ids::{Epoch, Role};
use proto_common::message::{FromScheduler, MapDigest};

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
    pub(in super::super) fn ask_for_maps(&mut self, now_ms: u64, out: &mut Vec<Command>) {
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

    /// Members that were asked for their map and have sent nothing since then, where this keeps others waiting: those with the same
    /// map, or those that are not asked yet.
    pub(in super::super) fn silent(&self, since_ms: u64) -> Vec<ConnectionId> {
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
