//! Spill blocks: copies of contributions before their turn, what is read out of workers' memory, and buffers that workers write
//! their contributions into (key buffers). Owns which block is free, and the budget of key buffers. Which worker may write which
//! block is kept with each chunk, in [`KeyBuffers`]. It must not know what contributions are for.
//!
//! ```text
//!  free ──take──▶ used ──give──▶ free
//!
//!                  grant                        fill: its payload was taken
//!  None ─────────────────────────▶ Granted ────────────────────────────────▶ Full
//!   ▲                                 │  ▲                                     │
//!   │ revoke: the block is free       │  └──────────── release, kept ──────────┤
//!   ├─────────────────────────────────┘                                        │
//!   └────── release, not kept: the block is free; revoke: the contribution's ──┘
//! ```
//!
//! If a worker could write a buffer that is full, its next contribution would replace the one before its turn, which nobody
//! notices.

use super::command::Source;
use proto_common::batch::{Block, BlockData, Status};
use proto_common::ids::Rank;

/// The spill block that a worker may write its contributions to a chunk into.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum KeyBuffer {
    #[default]
    None,
    /// The worker may write it: once, or (`keep`) again and again.
    Granted { spill: u32, keep: bool },
    /// It holds a contribution until that is reduced.
    Full { spill: u32, keep: bool },
}

/// Key buffers of one chunk, of the workers that have one.
#[derive(Debug, Default)]
pub(super) struct KeyBuffers {
    of: Vec<(Rank, KeyBuffer)>,
}

impl KeyBuffers {
    pub(super) fn is_empty(&self) -> bool {
        self.of.is_empty()
    }

    /// Has this worker none?
    pub(super) fn has_none(&self, rank: Rank) -> bool {
        self.get(rank) == KeyBuffer::None
    }

    /// Workers that may write contributions to the chunk, or have written some that are not reduced.
    pub(super) fn writers(&self) -> impl Iterator<Item = Rank> + '_ {
        self.of.iter().map(|(rank, _)| *rank)
    }

    /// Where a placed payload lies.
    pub(super) fn placed(&self, rank: Rank) -> Result<Source, Status> {
        match self.get(rank) {
            KeyBuffer::Granted { spill, .. } => Ok(Source::Spill(spill)),
            KeyBuffer::None | KeyBuffer::Full { .. } => Err(Status::Refused),
        }
    }

    /// Why a block that says that its payload is placed is a lie, if it is one: such a worker writes where it may not. A buffer
    /// has as many bytes as its chunk.
    pub(super) fn misplaced(&self, rank: Rank, block: &Block, chunk_bytes: u64) -> Option<&'static str> {
        if block.data != BlockData::Placed {
            return None;
        }
        match self.get(rank) {
            KeyBuffer::None => Some("it placed a payload without a grant"),
            KeyBuffer::Full { .. } => Some("it placed a payload over one that was not reduced yet"),
            KeyBuffer::Granted { .. } if block.bytes > chunk_bytes => {
                Some("it placed a payload longer than its grant")
            }
            KeyBuffer::Granted { .. } => None,
        }
    }

    fn get(&self, rank: Rank) -> KeyBuffer {
        let own = self.of.iter().find(|(other, _)| *other == rank);
        own.map_or(KeyBuffer::None, |(_, buffer)| *buffer)
    }

    fn set(&mut self, rank: Rank, buffer: KeyBuffer) {
        match self.of.iter().position(|(other, _)| *other == rank) {
            Some(at) if buffer == KeyBuffer::None => _ = self.of.swap_remove(at),
            Some(at) => self.of[at].1 = buffer,
            None if buffer == KeyBuffer::None => {}
            None => self.of.push((rank, buffer)),
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Placement {
    total: u32,
    free: Vec<u32>,
    /// Spill blocks that are key buffers.
    key_buffers: u32,
    /// Those that workers may not write any more, while their channels are open.
    taken: Vec<(Rank, u32)>,
}

impl Placement {
    pub(super) fn new(spill_blocks: u32) -> Self {
        let free = (0..spill_blocks).rev().collect();
        Self { total: spill_blocks, free, key_buffers: 0, taken: Vec::new() }
    }

    /// Spill blocks in use, and all there are. Key buffers are counted apart.
    pub(super) fn sizes(&self) -> (usize, usize) {
        let (total, key_buffers) = (self.total as usize, self.key_buffers as usize);
        (total - key_buffers - self.free.len(), total)
    }

    /// Spill blocks that are key buffers.
    pub(super) fn key_buffers(&self) -> u32 {
        self.key_buffers
    }

    /// A free block, if there is one.
    pub(super) fn take(&mut self) -> Option<u32> {
        self.free.pop()
    }

    /// A block for a contribution; or how the contribution is to be sent again. One that others wait for is to come in a slot, as it
    /// needs no block there, and another one later.
    pub(super) fn take_for(&mut self, is_awaited: bool) -> Result<u32, Status> {
        self.take().ok_or(if is_awaited { Status::Granted } else { Status::Retry })
    }

    /// Nobody needs this block any more.
    pub(super) fn give(&mut self, spill: u32) {
        self.free.push(spill);
    }

    /// Nobody needs these blocks any more.
    pub(super) fn give_all(&mut self, spills: &[u32]) {
        self.free.extend_from_slice(spills);
    }

    /// The block that the worker may write now. At most half of all are key buffers: contributions before their turn need the
    /// others.
    pub(super) fn grant(&mut self, of: &mut KeyBuffers, rank: Rank, keep: bool) -> Option<u32> {
        let spill = match of.get(rank) {
            KeyBuffer::Full { .. } => return None,
            KeyBuffer::Granted { spill, .. } => spill,
            KeyBuffer::None if 2 * (self.key_buffers + 1) > self.total => return None,
            KeyBuffer::None => {
                let spill = self.free.pop()?;
                self.key_buffers += 1;
                spill
            }
        };
        of.set(rank, KeyBuffer::Granted { spill, keep });
        Some(spill)
    }

    /// A payload is taken: nothing may be written over it. True if it lies in a key buffer.
    pub(super) fn fill(&mut self, of: &mut KeyBuffers, rank: Rank, from: Source) -> bool {
        let Source::Spill(_) = from else { return false };
        let KeyBuffer::Granted { spill, keep } = of.get(rank) else { return false };
        of.set(rank, KeyBuffer::Full { spill, keep });
        if !keep {
            self.taken.push((rank, spill));
        }
        true
    }

    /// A payload is not needed any more: its block is free, or its worker's to write again.
    pub(super) fn release(&mut self, of: &mut KeyBuffers, rank: Rank, from: Source) {
        let Source::Spill(spill) = from else { return };
        match of.get(rank) {
            KeyBuffer::Full { spill: full, keep: true } if full == spill => {
                return of.set(rank, KeyBuffer::Granted { spill, keep: true });
            }
            KeyBuffer::Full { spill: full, keep: false } if full == spill => {
                of.set(rank, KeyBuffer::None);
                self.key_buffers -= 1;
            }
            _ => {}
        }
        self.free.push(spill);
    }

    /// The grant is void; its block, where nothing that was taken lies in it. What does is a contribution's as any other.
    pub(super) fn revoke(&mut self, of: &mut KeyBuffers, rank: Rank) -> Option<u32> {
        let unused = match of.get(rank) {
            KeyBuffer::None => return None,
            KeyBuffer::Granted { spill, .. } => Some(spill),
            KeyBuffer::Full { .. } => None,
        };
        self.key_buffers -= 1;
        of.set(rank, KeyBuffer::None);
        unused
    }

    /// The worker has said that it does not write its buffer any more.
    pub(super) fn end(&mut self, of: &mut KeyBuffers, rank: Rank) {
        let granted = match of.get(rank) {
            KeyBuffer::Granted { spill, .. } | KeyBuffer::Full { spill, .. } => Some((rank, spill)),
            KeyBuffer::None => None,
        };
        self.taken.extend(granted);
        let unused = self.revoke(of, rank);
        self.free.extend(unused);
    }

    /// Key buffers that workers may not write any more, while their channels are open.
    pub(super) fn taken(&mut self) -> std::vec::Drain<'_, (Rank, u32)> {
        self.taken.drain(..)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto_common::batch::OpKind;
    use proto_common::element::Dtype;
    use proto_common::ids::{ChunkId, Operation};

    #[test]
    fn a_kept_buffer_is_its_worker_s_again_and_one_that_is_not_is_free() {
        let (mut placement, mut of) = (Placement::new(6), KeyBuffers::default());
        let kept = placement.grant(&mut of, Rank(0), true).expect("there are enough");
        let once = placement.grant(&mut of, Rank(1), false).expect("there are enough");
        assert_eq!(placement.grant(&mut of, Rank(0), true), Some(kept), "the same one");
        assert_eq!((placement.sizes(), placement.key_buffers()), ((0, 6), 2));
        for (rank, spill) in [(Rank(0), kept), (Rank(1), once)] {
            assert!(placement.fill(&mut of, rank, Source::Spill(spill)));
            assert!(!placement.fill(&mut of, rank, Source::Spill(spill)), "it is full");
            assert_eq!((of.placed(rank), placement.grant(&mut of, rank, true)), (Err(Status::Refused), None));
            placement.release(&mut of, rank, Source::Spill(spill));
        }
        assert_eq!(placement.taken().collect::<Vec<_>>(), [(Rank(1), once)]);
        assert_eq!((of.placed(Rank(0)), of.has_none(Rank(1))), (Ok(Source::Spill(kept)), true));
        assert_eq!((placement.sizes(), placement.key_buffers()), ((0, 6), 1));
    }

    #[test]
    fn half_of_the_blocks_are_left_for_contributions_before_their_turn() {
        let (mut placement, mut of) = (Placement::new(4), KeyBuffers::default());
        let granted: Vec<_> =
            (0..4).map(|rank| placement.grant(&mut of, Rank(rank), true).is_some()).collect();
        assert_eq!(granted, [true, true, false, false]);
        assert_eq!(of.writers().count(), 2);
        let spill = placement.take().expect("two are left");
        assert_eq!(placement.sizes(), (1, 4));
        let more = placement.take_for(true).expect("one is left");
        assert_eq!(
            (placement.take_for(true), placement.take_for(false)),
            (Err(Status::Granted), Err(Status::Retry))
        );
        placement.give_all(&[spill, more]);
        // What is taken stays a contribution's when the grant ends; what is not is free.
        let full = of.placed(Rank(0)).expect("it was granted");
        placement.fill(&mut of, Rank(0), full);
        assert_eq!(placement.revoke(&mut of, Rank(0)), None);
        assert_eq!(placement.sizes(), (1, 4));
        placement.release(&mut of, Rank(0), full);
        placement.end(&mut of, Rank(1));
        assert!(of.is_empty() && placement.sizes() == (0, 4) && placement.key_buffers() == 0);
    }

    #[test]
    fn a_payload_is_placed_where_it_may_be_or_it_is_a_lie() {
        let (mut placement, mut of) = (Placement::new(4), KeyBuffers::default());
        let bare = Block::bare(ChunkId::new(1, 0), OpKind::Push, Dtype::F32, Operation(1));
        let placed = Block { data: BlockData::Placed, bytes: 8, ..bare };
        assert_eq!(of.misplaced(Rank(0), &bare, 8), None);
        assert!(of.misplaced(Rank(0), &placed, 8).is_some_and(|why| why.contains("without a grant")));
        let spill = placement.grant(&mut of, Rank(0), false).expect("there are enough");
        assert_eq!(of.misplaced(Rank(0), &placed, 8), None);
        assert!(of.misplaced(Rank(0), &placed, 4).is_some_and(|why| why.contains("longer")));
        placement.fill(&mut of, Rank(0), Source::Spill(spill));
        assert!(of.misplaced(Rank(0), &placed, 8).is_some_and(|why| why.contains("not reduced")));
    }
}
