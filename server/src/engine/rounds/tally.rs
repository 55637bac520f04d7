//! What a chunk keeps whose versions are not rounds of everybody: whose contribution is being applied, how many each
//! worker has made, and which of them ended otherwise than by being applied. Chunks in mode sync without backup workers
//! have none of it. Owns the counts and the marks. It must not know how contributions travel.
//!
//! ```text
//!  idle ──begin_applying──▶ applying ──end_applying──▶ idle: counted, and marked where it did not fit
//!                              └────forget_applying──▶ idle: its worker sends it again
//! ```

use super::held::Held;
use crate::engine::numbers::Numbers;
use crate::engine::ranks::RankSet;
use crate::engine::spec::ChunkSpec;
use proto_common::ids::{Operation, Rank};

/// See the module. A worker's contributions are told apart by its count of them, which is what their blocks name as round.
#[derive(Debug)]
pub(super) struct Tally {
    /// Outside mode sync: the contribution that is folded, and not in force yet.
    applying: Option<Held>,
    /// Outside mode sync.
    made: Made,
    /// How many workers have marks: all, or none where no contribution can end otherwise.
    marked: u32,
    /// By rank: the last one, and those of the 64 up to it that ended otherwise. More than a worker can ask about. Empty before
    /// the first one does.
    marks: Vec<(u64, u64)>,
}

impl Tally {
    /// What a chunk needs, if anything.
    pub(super) fn of(spec: &ChunkSpec, workers: u32) -> Option<Box<Self>> {
        let drops = spec.mode.has_rounds() && spec.backup_workers > 0;
        if spec.mode.has_rounds() && !drops {
            return None;
        }
        let marked = if drops || spec.is_asked() { workers } else { 0 };
        let counted = if spec.mode.has_rounds() { 0 } else { workers };
        let made = Made::new(counted);
        Some(Box::new(Self { applying: None, made, marked, marks: Vec::new() }))
    }

    /// Counts and marks, as an image has them.
    pub(super) fn saved(&self) -> (Vec<u64>, Vec<(u64, u64)>) {
        let mut marks = self.marks.clone();
        marks.resize(self.marked as usize, (0, 0));
        (self.made.by_rank.all().map(|(_, made)| made).collect(), marks)
    }

    /// Of how many workers counts and marks are.
    pub(super) fn lengths(&self) -> (usize, usize) {
        (self.made.by_rank.workers() as usize, self.marked as usize)
    }

    /// Goes on from counts and marks of an image, which are of as many workers.
    pub(super) fn restore(&mut self, made: &[u64], marks: &[(u64, u64)]) {
        self.applying = None;
        self.made.by_rank.clear();
        (0..).map(Rank).zip(made).for_each(|(rank, made)| self.made.by_rank.raise(rank, *made));
        self.made.find_least();
        self.marks.clear();
        if marks.iter().any(|(_, marks)| *marks != 0) {
            self.marks.extend_from_slice(marks);
        }
    }

    /// Others count than before.
    pub(super) fn count(&mut self, counting: &RankSet) {
        self.made.count(counting);
    }

    /// How many contributions of a rank are in force.
    pub(super) fn made(&self, rank: Rank) -> u64 {
        self.made.of(rank)
    }

    /// The fewest of any that count.
    pub(super) fn least(&self) -> u64 {
        self.made.least
    }

    /// Ranks that count, and have made fewer.
    pub(super) fn behind(&self, least: u64) -> impl Iterator<Item = Rank> + '_ {
        self.made.counting.ranks().filter(move |rank| self.made.of(*rank) < least)
    }

    /// A rank has made at least so many.
    pub(super) fn advance(&mut self, rank: Rank, to: u64) {
        self.made.advance(rank, to);
    }

    /// A contribution is folded; it is in force when it is ended.
    pub(super) fn begin_applying(&mut self, held: Held) {
        self.applying = Some(held);
    }

    /// The contribution that is folded.
    pub(super) fn applying(&self) -> Option<&Held> {
        self.applying.as_ref()
    }

    /// What was folded is let go.
    pub(super) fn forget_applying(&mut self) {
        self.applying = None;
    }

    /// What was folded is in force, or it did not fit.
    pub(super) fn end_applying(&mut self, fits: bool) {
        if let Some(Held { rank, round, .. }) = self.applying.take() {
            self.made.advance(rank, round);
            self.mark(rank, round, !fits);
        }
    }

    /// What a rank has folded is of an operation before all that come from now on.
    pub(super) fn forget_operation(&mut self, rank: Rank) {
        if let Some(held) = self.applying.as_mut().filter(|held| held.rank == rank) {
            held.operation = Operation(0);
        }
    }

    /// A rank's contribution to a round has ended, by being applied or otherwise.
    pub(super) fn mark(&mut self, rank: Rank, round: u64, ended_otherwise: bool) {
        if self.marks.is_empty() && ended_otherwise {
            self.marks.resize(self.marked as usize, (0, 0));
        }
        let Some((last, marks)) = self.marks.get_mut(rank.0 as usize) else { return };
        // One that was sent back may come after those behind it.
        if round > *last {
            let shift = u32::try_from(round - *last).unwrap_or(u32::MAX);
            (*last, *marks) = (round, marks.checked_shl(shift).unwrap_or(0));
        }
        *marks |= u64::from(ended_otherwise).checked_shl((*last - round).min(64) as u32).unwrap_or(0);
    }

    /// Did that contribution end otherwise than by being applied?
    pub(super) fn is_marked(&self, rank: Rank, round: u64) -> bool {
        let Some((last, marks)) = self.marks.get(rank.0 as usize) else { return false };
        let back = last.checked_sub(round).and_then(|back| u32::try_from(back).ok());
        back.and_then(|back| marks.checked_shr(back)).is_some_and(|marks| marks & 1 == 1)
    }
}

/// How many contributions each worker has made that are in force, and the fewest of those that count: found anew only when
/// the last one that had so few has made another, or others count.
#[derive(Debug)]
struct Made {
    /// Of no workers where nobody asks.
    by_rank: Numbers,
    counting: RankSet,
    least: u64,
    least_ranks: u32,
}

impl Made {
    fn new(workers: u32) -> Self {
        let counting = RankSet::all(workers);
        Self { by_rank: Numbers::new(workers), counting, least: 0, least_ranks: workers }
    }

    fn of(&self, rank: Rank) -> u64 {
        self.by_rank.of(rank)
    }

    fn advance(&mut self, rank: Rank, to: u64) {
        let before = self.of(rank);
        if before >= to {
            return;
        }
        self.by_rank.raise(rank, to);
        if before > self.least || !self.counting.contains(rank) {
            return;
        }
        self.least_ranks -= 1;
        if self.least_ranks == 0 {
            self.find_least();
        }
    }

    /// With nobody who counts it stays: nobody waits then either.
    fn find_least(&mut self) {
        let counting = || self.counting.ranks().map(|rank| self.of(rank));
        let least = counting().min().unwrap_or(self.least);
        let ranks = counting().filter(|made| *made == least).count() as u32;
        (self.least, self.least_ranks) = (least, ranks);
    }

    fn count(&mut self, counting: &RankSet) {
        self.counting.copy(counting);
        self.find_least();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fewest_made_is_known_whoever_makes_more() {
        let mut made = Made::new(3);
        for (rank, to, least) in
            [(0, 1, 0), (0, 5, 0), (1, 2, 0), (2, 3, 2), (1, 9, 3), (2, 3, 3), (2, 4, 4), (2, 9, 5)]
        {
            made.advance(Rank(rank), to);
            assert_eq!(made.least, least, "{rank} {to}");
        }
        made.advance(Rank(7), 1);
        assert!(made.by_rank.all().map(|(_, made)| made).eq([5, 9, 9]));
        let mut others = RankSet::all(3);
        others.remove(Rank(0));
        made.count(&others);
        assert_eq!((made.least, made.least_ranks), (9, 2));
        made.advance(Rank(0), 7);
        made.advance(Rank(1), 10);
        assert_eq!((made.of(Rank(0)), made.least, made.least_ranks), (7, 9, 1));
        made.count(&RankSet::new(3));
        assert_eq!(made.least, 9);
    }

    #[test]
    fn marks_last_as_long_as_workers_can_ask_and_no_longer() {
        let mut tally = Tally { applying: None, made: Made::new(0), marked: 2, marks: Vec::new() };
        tally.mark(Rank(1), 3, true);
        tally.mark(Rank(1), 5, false);
        tally.mark(Rank(1), 4, true);
        let marked =
            |tally: &Tally| (0..70).filter(|round| tally.is_marked(Rank(1), *round)).collect::<Vec<_>>();
        assert_eq!(marked(&tally), [3, 4]);
        tally.mark(Rank(1), 67, true);
        assert_eq!(marked(&tally), [4, 67]);
        tally.mark(Rank(1), u64::MAX, false);
        assert_eq!(marked(&tally), [0; 0]);
        tally.mark(Rank(1), 1, true);
        assert!(!tally.is_marked(Rank(1), 1) && !tally.is_marked(Rank(0), 0), "longer ago than is kept");
        tally.mark(Rank(9), 1, true);
    }
}
