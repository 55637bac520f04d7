//! What must hold at every step of a laboratory: one server for each chunk and epoch, nothing acknowledged missing where the
//! newest map says that it is, versions that never go back, credits that are never more than there are.

use super::Lab;
use proto_common::ids::{ChunkId, Epoch, Rank};
use std::collections::BTreeMap;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// The newest round of each tensor that somebody was answered.
    acknowledged: BTreeMap<usize, u64>,
    /// By epoch of a map: who serves each chunk that some member's map has.
    servers: BTreeMap<(Epoch, ChunkId), Rank>,
}

impl Watch {
    pub(super) fn acknowledge(&mut self, tensor: usize, round: u64) {
        let known = self.acknowledged.entry(tensor).or_default();
        *known = (*known).max(round);
    }
}

impl Lab {
    /// What holds after every step of a server.
    pub(super) fn check_server(&mut self, at: usize) {
        let slots = self.shape.inbox_slots as usize;
        let Self { seats, watch, tensors, .. } = self;
        let Some(server) = seats[at].server() else { return };
        let engine = server.lane.engine();
        let (free, total) = engine.credits();
        assert!(free <= total && total == slots, "seat {at}: {free} of {total} credits");
        assert_eq!(server.lane.expelled(), 0, "seat {at} expelled a worker that kept the protocol");
        let map = server.member.map();
        let (epoch, rank) = (map.epoch(), server.rank);
        for (index, tensor) in tensors.iter().enumerate() {
            let acknowledged = watch.acknowledged.get(&index).copied().unwrap_or_default();
            for (span, holder) in map.placed_chunks(tensor.key) {
                let id = span.id;
                let known = *watch.servers.entry((epoch, id)).or_insert(holder);
                assert_eq!(known, holder, "two servers of {id:?} in epoch {epoch}");
                let Some(version) = engine.version(id).filter(|_| holder == rank) else { continue };
                let before = server.versions.insert(id, version.0).unwrap_or_default();
                assert!(version.0 >= before, "seat {at} {id:?}: version {version} after {before}");
                let is_current = !watch.servers.keys().any(|(other, chunk)| *chunk == id && *other > epoch);
                assert!(
                    !is_current || version.0 >= acknowledged,
                    "seat {at} {id:?}: version {version}, but round {acknowledged} was acknowledged"
                );
            }
        }
    }
}
