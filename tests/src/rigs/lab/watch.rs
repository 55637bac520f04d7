//! What must hold at every step of a laboratory: one server for each chunk and epoch, nothing acknowledged missing where the
//! newest map says that it is, versions that never go back, credits that are never more than there are.

use super::Lab;
use super::seat::Seat;
use gradwire_server::runtime::DataLane;
use proto_common::batch::SlotGrant;
use proto_common::ids::{ChunkId, Epoch, Rank};
use proto_common::mode::Mode;
use std::collections::{BTreeMap, BTreeSet};

/// Rounds that a worker contributed to.
#[derive(Debug, Default)]
struct Rounds {
    all: BTreeSet<u64>,
    /// A worker that came in between has left some out: how many there are is not the number of the newest.
    has_gaps: bool,
}

impl Rounds {
    fn add(&mut self, round: u64, has_gaps: bool) {
        self.has_gaps = has_gaps;
        if round > 0 {
            self.all.insert(round);
        }
    }

    fn newest(&self) -> u64 {
        self.all.last().copied().unwrap_or(0)
    }

    fn count(&self) -> u64 {
        if self.has_gaps { self.all.len() as u64 } else { self.newest() }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Watch {
    has_gaps: bool,
    /// The rounds of each tensor that each worker began, and was answered.
    rounds: BTreeMap<(usize, Rank), (Rounds, Rounds)>,
    /// By epoch of a map: who serves each chunk that some member's map has.
    servers: BTreeMap<(Epoch, ChunkId), Rank>,
    /// Slots for records that were looked at.
    pub(super) record_slots: u64,
}

impl Watch {
    /// Of a laboratory where workers may come in between rounds, or not.
    pub(super) fn new(has_gaps: bool) -> Self {
        Self { has_gaps, ..Self::default() }
    }

    pub(super) fn begin(&mut self, tensor: usize, rank: Rank, round: u64) {
        self.rounds.entry((tensor, rank)).or_default().0.add(round, self.has_gaps);
    }

    pub(super) fn acknowledge(&mut self, tensor: usize, rank: Rank, round: u64) {
        self.rounds.entry((tensor, rank)).or_default().1.add(round, self.has_gaps);
    }

    pub(super) fn begun(&self, tensor: usize, rank: Rank) -> u64 {
        self.rounds.get(&(tensor, rank)).map_or(0, |(begun, _)| begun.count())
    }

    pub(super) fn acknowledged_of(&self, tensor: usize, rank: Rank) -> u64 {
        self.rounds.get(&(tensor, rank)).map_or(0, |(_, acknowledged)| acknowledged.count())
    }

    /// How many of a worker's contributions to rounds up to this one were acknowledged.
    pub(super) fn acknowledged_up_to(&self, tensor: usize, rank: Rank, round: u64) -> u64 {
        let acknowledged = self.rounds.get(&(tensor, rank)).map(|(_, acknowledged)| &acknowledged.all);
        acknowledged.map_or(0, |all| all.range(..=round).count() as u64)
    }

    /// Between which versions every chunk of a tensor is: what was answered is in it, and what nobody began is not.
    fn versions(&self, tensor: usize, mode: Mode) -> (u64, u64) {
        let of_it =
            || self.rounds.iter().filter(|((other, _), _)| *other == tensor).map(|(_, rounds)| rounds);
        let (begun, acknowledged) = (of_it().map(|rounds| &rounds.0), of_it().map(|rounds| &rounds.1));
        if !mode.has_rounds() {
            return (acknowledged.map(Rounds::count).sum(), begun.map(Rounds::count).sum());
        }
        // Rounds that nobody is left for end with nothing, up to the first in which somebody who comes counts.
        let most = begun.map(Rounds::newest).max().unwrap_or(0);
        (acknowledged.map(Rounds::newest).max().unwrap_or(0), if self.has_gaps { u64::MAX } else { most })
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

    /// Slots that servers grant each other for records: each is one that may be written, as it was granted last, or one that was
    /// and is not given back, or whose return is on its way.
    pub(super) fn check_records(&mut self, at: usize) {
        let mut slots = 0;
        let Some(one) = self.seats[at].server_ref() else { return };
        let life = |seat: &Seat| seat.process.as_ref().map(|process| process.life);
        let servers = self.seats.iter().filter_map(|seat| Some((seat, seat.server_ref()?)));
        for (seat, other) in servers.filter(|(_, other)| other.rank != one.rank) {
            let (life, own) = (life(seat), life(&self.seats[at]));
            for (ours, theirs) in one.lanes.iter().map(DataLane::engine).zip(&other.lanes) {
                let granted = theirs.engine().granted_slots(one.rank);
                let lives = (ours.stream_incarnation(other.rank), theirs.engine().copy_incarnation(one.rank));
                if Some(lives) != life.zip(own) {
                    continue;
                }
                let name = || format!("seat {at}, records to server {}", other.rank);
                let (free, used) = ours.record_slots(other.rank);
                assert_eq!(free.len() + used.len(), granted.len(), "{}: slots", name());
                slots += granted.len() as u64;
                for grant in granted {
                    let before = SlotGrant { generation: grant.generation.wrapping_sub(1), ..grant };
                    let is_known = free.contains(&grant) || used.contains(&grant) || used.contains(&before);
                    assert!(is_known, "{}: {grant:?}, but {free:?} and {used:?}", name());
                }
            }
        }
        self.watch.record_slots += slots;
    }

    /// What holds after every step of a server.
    pub(super) fn check_server(&mut self, at: usize) {
        let slots = self.shape.inbox_slots as usize;
        let Self { seats, watch, tensors, shape, .. } = self;
        let Some(server) = seats[at].server() else { return };
        for lane in &server.lanes {
            let ((free, total), lent) = (lane.engine().credits(), lane.engine().credits_lent());
            let (fencing, _) = lane.engine().quarantined();
            let all = free + lent + fencing;
            assert!(
                all == total && total == slots,
                "seat {at}: {free} + {lent} + {fencing} of {total} credits"
            );
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
