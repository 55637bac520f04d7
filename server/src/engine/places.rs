//! The indices of chunks: which are free, and which belong to chunks that were given up but are still read or may still be written. (It
//! has nothing to do with the placement of tensors: that is `placed`.) It guarantees that an index, and the memory of its chunk, is not
//! used for another chunk while anybody uses it for the old one. It must not know what is in a chunk.
//!
//! ```text
//!  free ──take──▶ in use ──retire──▶ retired ──nobody reads it, no record is read from it──▶ free
//!
//!  a worker's key buffer of a chunk that was given up:
//!  granted ──lapse(epoch)──▶ lapsing ──the worker says that it knows the epoch──▶ over
//! ```
//!
//! If an index were another chunk's at once, a worker that has not heard of the new map would write its contribution to one tensor
//! into the memory of another.

use super::norms::Groups;
use proto_common::ids::{Epoch, Rank};
use std::ops::Range;

/// A worker's key buffer that ends when the worker says that it knows this epoch.
#[derive(Clone, Copy, Debug)]
struct Lapsing {
    rank: Rank,
    chunk: u32,
    epoch: Epoch,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Places {
    /// Key buffers of chunks that are not served any more. Their workers may write them until they have heard of that.
    lapsing: Vec<Lapsing>,
    /// Given up, and not free: somebody reads them still, or may write to them.
    retired: Vec<u32>,
    free: Vec<u32>,
    /// Stretches of indices that tensors with norms had.
    free_groups: Vec<Range<u32>>,
}

impl Places {
    /// An index for a new chunk, where there are so many chunks.
    pub(super) fn take(&mut self, chunks: usize) -> u32 {
        self.free.pop().unwrap_or(chunks as u32)
    }

    /// A stretch of so many indices for a new tensor with norms.
    pub(super) fn take_group(&mut self, count: u32, chunks: usize) -> Range<u32> {
        let place = self.free_groups.iter().position(|range| range.len() as u32 == count);
        let first = place.map_or(chunks as u32, |place| self.free_groups.swap_remove(place).start);
        first..first + count
    }

    /// A chunk is given up.
    pub(super) fn retire(&mut self, chunk: u32) {
        self.retired.push(chunk);
    }

    /// Chunks that were given up and are not free.
    pub(super) fn retired(&self) -> &[u32] {
        &self.retired
    }

    /// A worker may write a key buffer of this chunk until it knows the epoch.
    pub(super) fn lapse(&mut self, rank: Rank, chunk: u32, epoch: Epoch) {
        self.lapsing.push(Lapsing { rank, chunk, epoch });
    }

    /// A worker knows this epoch: a chunk whose key buffer it does not write any more; none when there is none left.
    pub(super) fn next_lapsed(&mut self, rank: Rank, epoch: Epoch) -> Option<u32> {
        let is_over = |lapsing: &Lapsing| lapsing.rank == rank && lapsing.epoch <= epoch;
        let at = self.lapsing.iter().position(is_over)?;
        Some(self.lapsing.swap_remove(at).chunk)
    }

    /// A worker's channel has ended, and its key buffers with it.
    pub(super) fn forget_worker(&mut self, rank: Rank) {
        self.lapsing.retain(|lapsing| lapsing.rank != rank);
    }

    /// Chunks that were given up and that nobody uses any more are free; `freed` is called with each. True if there was one.
    pub(super) fn free_unused(
        &mut self,
        is_used: impl Fn(u32) -> bool,
        is_grouped: impl Fn(u32) -> bool,
        mut freed: impl FnMut(u32),
    ) -> bool {
        let Self { lapsing, retired, free, .. } = self;
        let before = retired.len();
        retired.retain(|index| {
            if is_used(*index) {
                return true;
            }
            lapsing.retain(|lapsing| lapsing.chunk != *index);
            freed(*index);
            if !is_grouped(*index) {
                free.push(*index);
            }
            false
        });
        retired.len() < before
    }

    /// Stretches of tensors with norms whose chunks were all given up, and are free, are free for other tensors.
    pub(super) fn free_groups(&mut self, groups: &Groups, is_given_up: impl Fn(u32) -> bool) {
        for range in groups.ranges() {
            let is_free = |index: u32| is_given_up(index) && !self.retired.contains(&index);
            if range.clone().all(is_free) && !self.free_groups.contains(&range) {
                self.free_groups.push(range);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_is_another_chunk_s_when_nobody_uses_it() {
        let mut places = Places::default();
        assert_eq!((places.take(3), places.take_group(2, 4)), (3, 4..6));
        places.retire(1);
        places.retire(4);
        let mut freed = Vec::new();
        assert!(!places.free_unused(|_| true, |_| false, |index| freed.push(index)));
        assert_eq!(places.retired(), [1, 4]);
        assert_eq!(places.take(6), 6);
        assert!(places.free_unused(|_| false, |index| index == 4, |index| freed.push(index)));
        assert_eq!((freed, places.take(7), places.take(7)), (vec![1, 4], 1, 7));
        let mut groups = Groups::default();
        groups.place(4..6);
        places.free_groups(&groups, |index| index == 4);
        assert_eq!(places.take_group(2, 8), 8..10, "one of its chunks is in use");
        (0..2).for_each(|_| places.free_groups(&groups, |_| true));
        assert_eq!((places.take_group(2, 8), places.take_group(2, 8)), (4..6, 8..10), "once");
    }

    #[test]
    fn a_worker_s_buffers_end_with_its_word_or_its_channel() {
        let mut places = Places::default();
        let epoch = |counter| Epoch { term: 1, counter };
        places.lapse(Rank(0), 1, epoch(2));
        places.lapse(Rank(0), 2, epoch(3));
        places.lapse(Rank(1), 3, epoch(2));
        assert_eq!(
            (places.next_lapsed(Rank(0), epoch(2)), places.next_lapsed(Rank(0), epoch(2))),
            (Some(1), None)
        );
        places.forget_worker(Rank(1));
        assert_eq!(places.next_lapsed(Rank(1), epoch(9)), None);
        assert_eq!(places.next_lapsed(Rank(0), epoch(9)), Some(2));
    }
}
