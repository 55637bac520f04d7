//! Who reads the weights of one chunk: landings under way from each of its two buffers, workers that have a view of a buffer, and
//! landings that were moved to a spill block. Owns the answer to "may this buffer be written". It must not know what rounds are.
//!
//! ```text
//!             land                       landed
//!  unread ───────────▶ read by landings ─────────▶ unread
//!   │  ▲                     │ move_away
//!   │  │                     ▼                     landed, by all
//!   │  │           moved to a spill block ────────────────────────▶ the block is free
//!   │  │ hide: the worker reads on from a later operation, or keeps another version
//!   │  │
//!   └──┴──show──▶ read as a view: nothing can be moved
//! ```
//!
//! If a round were published into a buffer that is read, a worker would get weights of two versions in one tensor.

use proto_common::batch::{Kept, Reading};
use proto_common::ids::{Operation, Rank};
use proto_common::limits::RANKS_LISTED_MAX;

/// Weights that were moved out of a buffer, for workers that are to copy them.
#[derive(Debug)]
struct Moved {
    buffer: u8,
    spill: u32,
    readers: Vec<Rank>,
}

/// What the end of a landing means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Landed {
    /// Its buffer has a reader less, if it was one.
    Read,
    /// It was of weights that had been moved; to this spill block, where nobody needs it any more.
    Moved(Option<u32>),
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Views {
    /// The landings in flight from each buffer.
    readers: [Vec<Rank>; 2],
    /// Weights that were moved out of a buffer before all had copied them.
    moved: Vec<Moved>,
    /// Who has a view of each buffer, by the last operation that gave it.
    views: [Vec<(Rank, Operation)>; 2],
}

impl Views {
    /// Does somebody read this buffer?
    pub(super) fn is_read(&self, buffer: u8) -> bool {
        let at = usize::from(buffer);
        !self.readers[at].is_empty() || !self.views[at].is_empty()
    }

    /// Is this buffer read by landings only?
    pub(super) fn is_landing_only(&self, buffer: u8) -> bool {
        let at = usize::from(buffer);
        self.views[at].is_empty() && !self.readers[at].is_empty()
    }

    /// Has this worker a view of a buffer?
    pub(super) fn is_shown(&self, rank: Rank) -> bool {
        self.views.iter().flatten().any(|(other, _)| *other == rank)
    }

    /// Workers that read a buffer, in rank order: the first few.
    pub(super) fn reading(&self) -> Vec<Rank> {
        let views = self.views.iter().flatten().map(|(rank, _)| *rank);
        let mut ranks: Vec<Rank> = self.readers.iter().flatten().copied().chain(views).collect();
        ranks.sort_unstable();
        ranks.dedup();
        ranks.truncate(RANKS_LISTED_MAX);
        ranks
    }

    /// A landing of this worker begins from a buffer.
    pub(super) fn land(&mut self, rank: Rank, buffer: u8) {
        self.readers[usize::from(buffer)].push(rank);
    }

    /// A landing at this worker is done, or its channel is gone.
    pub(super) fn landed(&mut self, rank: Rank, buffer: u8) -> Landed {
        if let Some(spill) = self.moved_landed(rank, buffer) {
            return Landed::Moved(spill);
        }
        self.carried(rank, buffer);
        Landed::Read
    }

    /// A result that carries weights of a buffer is on its way to this worker. It is never moved, and may be told before a landing that is.
    pub(super) fn carried(&mut self, rank: Rank, buffer: u8) {
        let readers = &mut self.readers[usize::from(buffer)];
        if let Some(at) = readers.iter().position(|reader| *reader == rank) {
            readers.swap_remove(at);
        }
    }

    fn moved_landed(&mut self, rank: Rank, buffer: u8) -> Option<Option<u32>> {
        let is_it = |moved: &Moved| moved.buffer == buffer && moved.readers.contains(&rank);
        // What was moved was told before what is not.
        let at = self.moved.iter().position(is_it)?;
        let readers = &mut self.moved[at].readers;
        let place = readers.iter().position(|reader| *reader == rank)?;
        readers.swap_remove(place);
        Some(readers.is_empty().then(|| self.moved.remove(at).spill))
    }

    /// These landings read a spill block now instead of a buffer; one entry for each. False where none of them is under way any
    /// more: then the block is nobody's.
    pub(super) fn move_away(&mut self, buffer: u8, spill: u32, ranks: &[Rank]) -> bool {
        let from = &mut self.readers[usize::from(buffer)];
        let mut readers = Vec::new();
        for rank in ranks {
            if let Some(at) = from.iter().position(|reader| reader == rank) {
                readers.push(from.swap_remove(at));
            }
        }
        let is_needed = !readers.is_empty();
        if is_needed {
            self.moved.push(Moved { buffer, spill, readers });
        }
        is_needed
    }

    /// The worker is given a view of a buffer.
    pub(super) fn show(&mut self, rank: Rank, operation: Operation, buffer: u8) {
        let views = &mut self.views[usize::from(buffer)];
        match views.iter_mut().find(|(other, _)| *other == rank) {
            Some((_, last)) => *last = (*last).max(operation),
            None => views.push((rank, operation)),
        }
    }

    /// What the worker reads of what it was shown: the rest may be overwritten. `versions` are those of each buffer.
    pub(super) fn hide(&mut self, rank: Rank, reading: Reading, versions: &[(u64, u64); 2]) {
        for (views, versions) in self.views.iter_mut().zip(versions) {
            let is_kept = match reading.kept {
                Kept::None => false,
                Kept::Version(version) => (versions.0..=versions.1).contains(&version.0),
                Kept::All => true,
            };
            views.retain(|(other, last)| *other != rank || is_kept || *last >= reading.from);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto_common::ids::Version;

    #[test]
    fn a_buffer_is_free_when_every_landing_is_done_or_moved() {
        let mut views = Views::default();
        for rank in [0, 1, 1] {
            views.land(Rank(rank), 0);
        }
        assert!(views.is_landing_only(0) && !views.is_read(1));
        assert_eq!(views.reading(), [Rank(0), Rank(1)]);
        assert_eq!(views.landed(Rank(0), 0), Landed::Read);
        assert!(views.move_away(0, 7, &[Rank(1), Rank(1), Rank(5)]), "those that are under way");
        assert!(!views.is_read(0) && !views.move_away(0, 8, &[Rank(1)]), "none is left to move");
        views.land(Rank(1), 0);
        let ends: Vec<_> = (0..3).map(|_| views.landed(Rank(1), 0)).collect();
        assert_eq!(
            ends,
            [Landed::Moved(None), Landed::Moved(Some(7)), Landed::Read],
            "the moved ones end first"
        );
        assert!(!views.is_read(0));
    }

    /// The server moves the weights of a round to a spill block. The result of the next round in the same buffer carries its weights.
    #[test]
    fn what_is_carried_ends_nothing_that_was_moved() {
        let mut views = Views::default();
        views.land(Rank(0), 1);
        assert!(views.move_away(1, 7, &[Rank(0)]));
        views.land(Rank(0), 1);
        views.carried(Rank(0), 1);
        assert!(!views.is_read(1));
        assert_eq!(views.landed(Rank(0), 1), Landed::Moved(Some(7)), "it reads the spill block still");
    }

    #[test]
    fn a_view_lasts_until_its_worker_reads_on_or_keeps_another_version() {
        let (mut views, versions) = (Views::default(), [(4, 5), (3, 3)]);
        views.show(Rank(2), Operation(8), 0);
        views.show(Rank(2), Operation(6), 0);
        views.show(Rank(2), Operation(5), 1);
        assert!(views.is_read(0) && !views.is_landing_only(0));
        let reading = |from, kept| Reading { from: Operation(from), kept };
        views.hide(Rank(2), reading(8, Kept::None), &versions);
        assert!(views.is_read(0) && !views.is_read(1), "an older operation takes nothing back");
        views.hide(Rank(2), reading(9, Kept::Version(Version(5))), &versions);
        views.hide(Rank(3), reading(9, Kept::None), &versions);
        assert!(views.is_shown(Rank(2)) && !views.is_shown(Rank(3)));
        views.hide(Rank(2), reading(9, Kept::Version(Version(3))), &versions);
        assert!(!views.is_shown(Rank(2)));
    }
}
