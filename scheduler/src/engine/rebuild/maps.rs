//! Large maps of tensors. Members report the digest of theirs, and only one member of those with the same digest is asked for
//! the map, so a thousand members cost one map. While members still report, nobody is declared failed: the scheduler may be
//! the slow one. It must not decide what the newest map is.

use super::super::member::ConnectionId;
use proto_common::ids::{Epoch, Key};
use proto_common::message::MapDigest;
use proto_common::shard_map::KeyRange;
use proto_common::tensor::TensorSpec;
use std::collections::BTreeMap;

/// Maps that are sent to the scheduler at once: each is in memory twice until it is whole.
pub(super) const ASKED_MAX: usize = 4;

/// What was told of a tensor, and by whom.
#[derive(Debug)]
pub(super) struct Told {
    pub(super) epoch: Epoch,
    pub(super) by: ConnectionId,
    pub(super) spec: TensorSpec,
    pub(super) ranges: Vec<KeyRange>,
}

/// A map that a member has sent.
#[derive(Debug)]
pub(super) struct Known {
    /// The newest epoch at which it was sent.
    pub(super) epoch: Epoch,
    /// Its tensors, as long as only servers have reported it: a worker has had answers for them.
    pub(super) unanswered: Vec<Key>,
}

/// Who sends a map.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) connection: ConnectionId,
    pub(super) sent: MapDigest,
    /// When it was asked, or has sent the last part.
    pub(super) heard_ms: u64,
}

/// Digests that members have reported.
#[derive(Debug, Default)]
pub(super) struct Maps {
    pub(super) known: BTreeMap<MapDigest, Known>,
    pub(super) asked: BTreeMap<MapDigest, Asked>,
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
    pub(super) fn has(&self, digest: MapDigest, epoch: Epoch) -> bool {
        self.known.get(&digest).is_some_and(|known| known.epoch >= epoch)
    }

    pub(super) fn is_asked(&self, connection: ConnectionId) -> bool {
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

    /// The scheduler was suspended, and has not read what came meanwhile.
    pub(super) fn woke(&mut self, now_ms: u64) {
        self.asked.values_mut().for_each(|asked| asked.heard_ms = now_ms);
    }
}
