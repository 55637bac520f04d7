//! What must hold at every step of a laboratory: one server for each chunk and epoch, nothing acknowledged missing where the
//! newest map says that it is, versions that never go back, credits that are never more than there are.

use super::Lab;
use super::seat::Seat;
use proto_common::ids::{ChunkId, Epoch, Rank};
use proto_common::mode::Mode;
use std::collections::BTreeMap;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// The newest round of each tensor that each worker began, and was answered.
    rounds: BTreeMap<(usize, Rank), (u64, u64)>,
    /// By epoch of a map: who serves each chunk that some member's map has.
    servers: BTreeMap<(Epoch, ChunkId), Rank>,
}

impl Watch {
    pub(super) fn begin(&mut self, tensor: usize, rank: Rank, round: u64) {
        let (begun, _) = self.rounds.entry((tensor, rank)).or_default();
        *begun = (*begun).max(round);
    }

    pub(super) fn acknowledge(&mut self, tensor: usize, rank: Rank, round: u64) {
        let (_, acknowledged) = self.rounds.entry((tensor, rank)).or_default();
        *acknowledged = (*acknowledged).max(round);
    }

    pub(super) fn begun(&self, tensor: usize, rank: Rank) -> u64 {
        self.rounds.get(&(tensor, rank)).map_or(0, |(begun, _)| *begun)
    }

    pub(super) fn acknowledged_of(&self, tensor: usize, rank: Rank) -> u64 {
        self.rounds.get(&(tensor, rank)).map_or(0, |(_, acknowledged)| *acknowledged)
    }

    /// Between which versions every chunk of a tensor is: what was answered is in it, and what nobody began is not.
    fn versions(&self, tensor: usize, mode: Mode) -> (u64, u64) {
        let of_it =
            || self.rounds.iter().filter(|((other, _), _)| *other == tensor).map(|(_, rounds)| *rounds);
        let (begun, acknowledged) = (of_it().map(|rounds| rounds.0), of_it().map(|rounds| rounds.1));
        match mode.has_rounds() {
            true => (acknowledged.max().unwrap_or(0), begun.max().unwrap_or(0)),
            false => (acknowledged.sum(), begun.sum()),
        }
    }
}

impl Lab {
    /// Has every server all of its slots, and of each other's for records all that it was granted?
    pub(super) fn is_quiet(&self) -> bool {
        self.seats.iter().filter_map(Seat::server_ref).flat_map(|server| &server.lanes).all(|lane| {
            let engine = lane.engine();
            let (free, total) = engine.credits();
            free == total && engine.records_unreturned() == 0 && engine.spills().0 == 0
        })
    }

    /// What holds after every step of a server.
    pub(super) fn check_server(&mut self, at: usize) {
        let slots = self.shape.inbox_slots as usize;
        let Self { seats, watch, tensors, shape, .. } = self;
        let Some(server) = seats[at].server() else { return };
        for lane in &server.lanes {
            let ((free, total), lent) = (lane.engine().credits(), lane.engine().credits_lent());
            assert!(free + lent == total && total == slots, "seat {at}: {free} + {lent} of {total} credits");
            assert_eq!(lane.expelled(), 0, "seat {at} expelled a worker that kept the protocol");
        }
        let map = server.member.map();
        let (epoch, rank) = (map.epoch(), server.rank);
        for (index, tensor) in tensors.iter().enumerate() {
            let (acknowledged, begun) = watch.versions(index, shape.mode);
            for (span, holder) in map.placed_chunks(tensor.key) {
                let id = span.id;
                let known = *watch.servers.entry((epoch, id)).or_insert(holder);
                assert_eq!(known, holder, "two servers of {id:?} in epoch {epoch}");
                let engine = server.lanes[usize::from(map.lane_of(id).0)].engine();
                let Some(version) = engine.version(id).filter(|_| holder == rank) else { continue };
                let before = server.versions.insert(id, version.0).unwrap_or_default();
                assert!(version.0 >= before, "seat {at} {id:?}: version {version} after {before}");
                assert!(
                    version.0 <= begun,
                    "seat {at} {id:?}: version {version}, but {begun} is all that was begun"
                );
                let is_current = !watch.servers.keys().any(|(other, chunk)| *chunk == id && *other > epoch);
                assert!(
                    !is_current || version.0 >= acknowledged,
                    "seat {at} {id:?}: version {version}, but round {acknowledged} was acknowledged"
                );
            }
        }
    }
}
