//! Which workers are expected in which round. The scheduler sends the roster. A worker that has left in good order is not expected any
//! more; neither is a worker that has failed, if rounds continue without failed workers. A worker that joins counts from a round on that
//! the scheduler names. This file must not know how contributions travel, or why a worker leaves.

use super::ranks::RankSet;
use proto_common::batch::Status;
use proto_common::config::WorkerLoss;
use proto_common::ids::{Epoch, Incarnation, Key, Rank};
use std::collections::HashMap;

/// The state of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stands {
    /// It counts, from the first round on or from a later one.
    Counts,
    /// It is in the roster, but counts in no round before the scheduler has named its first one.
    Comes,
    /// No round waits for it.
    Gone,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    /// The incarnation in the scheduler's roster, if there is one.
    life: Option<Incarnation>,
    /// The incarnation that had a channel last.
    connected: Option<Incarnation>,
    stands: Stands,
}

/// A worker that will count, and the first round of each tensor that is not begun before the scheduler has decided about it.
#[derive(Debug)]
struct Asked {
    rank: Rank,
    rounds: HashMap<Key, u64>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Roster {
    loss: WorkerLoss,
    /// The epoch of the scheduler's last roster. Before the first roster, all workers count.
    epoch: Option<Epoch>,
    places: Vec<Place>,
    counting: RankSet,
    /// Counting workers that do not count from the first round of every tensor on, with their first rounds.
    late: Vec<(Rank, HashMap<Key, u64>)>,
    asked: Vec<Asked>,
    /// Increases whenever the set of counting workers may have changed.
    generation: u64,
}

impl Roster {
    pub(super) fn new(workers: u32, loss: WorkerLoss) -> Self {
        let place = Place { life: None, connected: None, stands: Stands::Counts };
        Self {
            loss,
            epoch: None,
            places: vec![place; workers as usize],
            counting: RankSet::all(workers),
            late: Vec::new(),
            asked: Vec::new(),
            generation: 0,
        }
    }

    /// May this incarnation of a worker have a channel?
    pub(super) fn admits(&self, rank: Rank, incarnation: Incarnation) -> bool {
        let life = self.places.get(rank.0 as usize).and_then(|place| place.life);
        self.epoch.is_none() || life == Some(incarnation)
    }

    /// An incarnation of a worker gets a channel. True if another incarnation had one before.
    pub(super) fn is_new(&mut self, rank: Rank, incarnation: Incarnation) -> bool {
        let Some(place) = self.places.get_mut(rank.0 as usize) else { return false };
        place.connected.replace(incarnation).is_some_and(|before| before != incarnation)
    }

    /// Is there a newer roster than that of this epoch?
    pub(super) fn is_stale(&self, epoch: Epoch) -> bool {
        self.epoch.is_some_and(|known| epoch < known)
    }

    /// Takes a roster of the scheduler; false if a newer one is known. `ended` gets the members that have exited.
    pub(super) fn change(
        &mut self,
        epoch: Epoch,
        present: &[(Rank, Incarnation)],
        left: &[Rank],
        mut ended: impl FnMut(Rank),
    ) -> bool {
        if self.is_stale(epoch) {
            return false;
        }
        let is_first = self.epoch.replace(epoch).is_none();
        let mut lives = vec![None; self.places.len()];
        for (rank, life) in present {
            if let Some(place) = lives.get_mut(rank.0 as usize) {
                *place = Some(*life);
            }
        }
        for (rank, life) in (0u32..).map(Rank).zip(lives) {
            let place = &mut self.places[rank.0 as usize];
            let before = std::mem::replace(&mut place.life, life);
            let is_other = before != life;
            if is_other && before.is_some() {
                ended(rank);
                self.asked.retain(|asked| asked.rank != rank);
            }
            let is_lost = is_other && !is_first && self.loss == WorkerLoss::Continue;
            place.stands = match (life, place.stands) {
                (None, _) if left.contains(&rank) => Stands::Gone,
                (None, _) if self.loss == WorkerLoss::Continue => Stands::Gone,
                (None, Stands::Comes) => Stands::Gone,
                (Some(_), Stands::Gone) => Stands::Comes,
                (Some(_), Stands::Counts) if is_lost => Stands::Comes,
                (_, stands) => stands,
            };
            if place.stands != Stands::Counts {
                self.counting.remove(rank);
                self.late.retain(|(other, _)| *other != rank);
            }
        }
        self.generation += 1;
        true
    }

    /// A worker will count: these rounds are not begun before [`Roster::count`]. False if this incarnation does not wait for that.
    pub(super) fn ask(&mut self, rank: Rank, life: Incarnation, rounds: &[(Key, u64)]) -> bool {
        if !self.is(rank, life, Stands::Comes) {
            return false;
        }
        if self.promised(rank).is_none() {
            self.asked.push(Asked { rank, rounds: rounds.iter().copied().collect() });
            self.generation += 1;
        }
        true
    }

    /// The rounds that were reported for a worker that will count, or decided for one that counts by now. A restarted scheduler asks
    /// again, and must get the same rounds.
    pub(super) fn promised(&self, rank: Rank) -> Option<Vec<(Key, u64)>> {
        let asked = self.asked.iter().find(|asked| asked.rank == rank).map(|asked| &asked.rounds);
        let late = || self.late.iter().find(|(other, _)| *other == rank).map(|(_, rounds)| rounds);
        let rounds = asked.or_else(late)?;
        let mut rounds: Vec<_> = rounds.iter().map(|(key, round)| (*key, *round)).collect();
        rounds.sort_unstable();
        Some(rounds)
    }

    /// A chunk is new here. If workers will count, no round of its tensor is begun from this one on, either.
    pub(super) fn cover(&mut self, key: Key, round: u64) {
        for asked in &mut self.asked {
            asked.rounds.entry(key).or_insert(round);
        }
    }

    /// A worker counts from these rounds on. True if it did not count before; `None` if the roster has another incarnation.
    pub(super) fn count(&mut self, rank: Rank, life: Incarnation, rounds: &[(Key, u64)]) -> Option<bool> {
        let is_new = self.is(rank, life, Stands::Comes);
        if !is_new && !self.is(rank, life, Stands::Counts) {
            return None;
        }
        self.asked.retain(|asked| asked.rank != rank);
        self.late.retain(|(other, _)| *other != rank);
        let late: HashMap<_, _> = rounds.iter().copied().filter(|(_, round)| *round > 1).collect();
        if !late.is_empty() {
            self.late.push((rank, late));
        }
        self.places[rank.0 as usize].stands = Stands::Counts;
        self.counting.insert(rank);
        self.generation += 1;
        Some(is_new)
    }

    fn is(&self, rank: Rank, life: Incarnation, stands: Stands) -> bool {
        let place = self.places.get(rank.0 as usize);
        place.is_some_and(|place| place.life == Some(life) && place.stands == stands)
    }

    /// Workers that joined after a tensor's first round, with the first round (or contribution) of the tensor in which they count.
    pub(super) fn counting_from(&self, key: Key) -> impl Iterator<Item = (Rank, u64)> {
        self.late.iter().filter_map(move |(rank, rounds)| Some((*rank, *rounds.get(&key)?)))
    }

    /// Workers that will count, and whose first rounds are not decided yet.
    pub(super) fn comers(&self) -> impl Iterator<Item = Rank> {
        self.asked.iter().map(|asked| asked.rank)
    }

    /// The first round of a tensor that is not begun before the scheduler has decided which workers count in it.
    pub(super) fn barred(&self, key: Key) -> Option<u64> {
        self.asked.iter().filter_map(|asked| asked.rounds.get(&key).copied()).min()
    }

    /// Does a worker count in a later round of a tensor, but not in this one?
    pub(super) fn is_counted_after(&self, key: Key, round: u64) -> bool {
        self.absent_in(key, round).next().is_some()
    }

    /// Ranks that count, but not in this round of a tensor yet.
    pub(super) fn absent_in(&self, key: Key, round: u64) -> impl Iterator<Item = Rank> {
        self.counting_from(key).filter(move |(_, from)| *from > round).map(|(rank, _)| rank)
    }

    pub(super) fn counting(&self) -> &RankSet {
        &self.counting
    }

    /// May a worker contribute at all? It learns its first round before it does.
    pub(super) fn check(&self, rank: Rank) -> Result<(), Status> {
        if self.counting.contains(rank) { Ok(()) } else { Err(Status::Retry) }
    }

    /// Does the worker count from a later round on, so that this round does not wait for it?
    pub(super) fn is_early(&self, rank: Rank, key: Key, round: u64) -> bool {
        let late = self.late.iter().find(|(other, _)| *other == rank);
        late.and_then(|(_, rounds)| rounds.get(&key)).is_some_and(|first| round < *first)
    }

    /// The worker whose initial value counts.
    pub(super) fn setter(&self) -> Rank {
        self.counting.first().unwrap_or_default()
    }

    /// Do all workers count, in all rounds?
    fn is_whole(&self) -> bool {
        self.late.is_empty() && self.asked.is_empty() && self.counting.len() as usize == self.places.len()
    }

    /// A key for the set of workers that a chunk expects in this round. The set stays the same while the key does.
    pub(super) fn as_of(&self, round: u64) -> (u64, u64) {
        (self.generation, if self.is_whole() { 0 } else { round })
    }
}
