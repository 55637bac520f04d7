//! Payloads that do not come in a slot: buffers that workers write them into, and what was read out of workers'
//! memory. Owns the life of key buffers; both kinds lie in spill blocks, and so within the spill budget.

use super::chunk::{KeyBuffer, Reopened};
use super::command::{Commands, Source};
use super::held::Held;
use super::lane::LaneEngine;
use proto_common::batch::{Block, BlockData, Landing, Status};
use proto_common::ids::Rank;

impl LaneEngine {
    /// Why a block that says that its payload is placed is a lie, if it is one: such a worker writes where it may
    /// not.
    pub(super) fn misplaced(&self, index: u32, peer: Rank, block: &Block) -> Option<String> {
        if block.data != BlockData::Placed {
            return None;
        }
        let chunk = &self.chunks[index as usize];
        match chunk.buffer_of(peer) {
            KeyBuffer::None => Some("it placed a payload without a grant".into()),
            KeyBuffer::Full { .. } => Some("it placed a payload over one that was not reduced yet".into()),
            KeyBuffer::Granted { .. } if block.bytes > chunk.spec.bytes => {
                Some("it placed a payload longer than its grant".into())
            }
            KeyBuffer::Granted { .. } => None,
        }
    }

    /// Where a placed payload lies.
    pub(super) fn placed(&self, index: u32, peer: Rank) -> Option<Source> {
        match self.chunks[index as usize].buffer_of(peer) {
            KeyBuffer::Granted { spill, .. } => Some(Source::Spill(spill)),
            KeyBuffer::None | KeyBuffer::Full { .. } => None,
        }
    }

    /// Answers an announcement with a buffer, or says that there is none.
    pub(super) fn announce(&mut self, index: u32, peer: Rank, block: &Block, keep: bool) {
        let spill = self.key_buffer(index, peer, keep);
        let bytes = self.chunks[index as usize].spec.bytes;
        let landing = spill.map(|spill| Landing { region: 0, offset: u64::from(spill), bytes });
        let data = BlockData::Inline { offset: 0 };
        let block =
            Block { status: Status::Granted, bytes: 0, data, landing, view: false, timeout_ms: 0, ..*block };
        self.tell(peer, block, Vec::new());
    }

    /// The spill block that the worker may write now. At most half of all are key buffers: contributions before
    /// their turn need the others.
    fn key_buffer(&mut self, index: u32, peer: Rank, keep: bool) -> Option<u32> {
        let chunk = &mut self.chunks[index as usize];
        let spill = match chunk.buffer_of(peer) {
            KeyBuffer::Full { .. } => return None,
            KeyBuffer::Granted { spill, .. } => spill,
            KeyBuffer::None if 2 * (self.key_buffers + 1) > self.config.spill_blocks => return None,
            KeyBuffer::None => {
                let spill = self.spills.pop()?;
                self.key_buffers += 1;
                spill
            }
        };
        chunk.set_buffer(peer, KeyBuffer::Granted { spill, keep });
        Some(spill)
    }

    /// A placed payload is taken: nothing may be written over it.
    pub(super) fn fill(&mut self, index: u32, peer: Rank, from: Source) {
        let chunk = &mut self.chunks[index as usize];
        if let (Source::Spill(_), KeyBuffer::Granted { spill, keep }) = (from, chunk.buffer_of(peer)) {
            chunk.set_buffer(peer, KeyBuffer::Full { spill, keep });
            self.stats.placed += 1;
            if !keep {
                self.taken_buffers.push((peer, spill));
            }
        }
    }

    /// The worker has said that it does not write its buffer any more.
    pub(super) fn end_buffer(&mut self, index: u32, rank: Rank) {
        let granted = match self.chunks[index as usize].buffer_of(rank) {
            KeyBuffer::Granted { spill, .. } | KeyBuffer::Full { spill, .. } => Some((rank, spill)),
            KeyBuffer::None => None,
        };
        self.taken_buffers.extend(granted);
        let unused = self.revoke_buffer(index, rank);
        self.spills.extend(unused);
    }

    /// Spill blocks that workers may not write any more, while their channels are open.
    pub fn taken_buffers(&mut self) -> std::vec::Drain<'_, (Rank, u32)> {
        self.taken_buffers.drain(..)
    }

    /// The grant is void; its block, where nothing that was taken lies in it. What does is a contribution's as any other.
    fn revoke_buffer(&mut self, index: u32, rank: Rank) -> Option<u32> {
        let chunk = &mut self.chunks[index as usize];
        let unused = match chunk.buffer_of(rank) {
            KeyBuffer::None => return None,
            KeyBuffer::Granted { spill, .. } => Some(spill),
            KeyBuffer::Full { .. } => None,
        };
        self.key_buffers -= 1;
        chunk.set_buffer(rank, KeyBuffer::None);
        unused
    }

    /// A payload is not needed any more: its spill block is free, or its worker's to write again.
    pub(super) fn release(&mut self, index: u32, rank: Rank, from: Source) {
        let Source::Spill(spill) = from else { return };
        let chunk = &mut self.chunks[index as usize];
        match chunk.buffer_of(rank) {
            KeyBuffer::Full { spill: full, keep: true } if full == spill => {
                return chunk.set_buffer(rank, KeyBuffer::Granted { spill, keep: true });
            }
            KeyBuffer::Full { spill: full, keep: false } if full == spill => {
                chunk.set_buffer(rank, KeyBuffer::None);
                self.key_buffers -= 1;
            }
            _ => {}
        }
        self.spills.push(spill);
    }

    /// What a worker's memory was read for is there.
    pub fn fetched(&mut self, peer: Rank, chunk: u32, spill: u32, out: &mut Commands) {
        let Some(state) = self.chunks.get_mut(chunk as usize) else { return };
        let from = Source::Spill(spill);
        match state.held.arrive(peer, from) {
            Some(0) if !state.role.is_some_and(|role| role.serves()) => {
                return self.release(chunk, peer, from);
            }
            Some(0) => self.initialise(chunk, peer, from, out),
            Some(_) if state.role.is_some_and(|role| role.serves()) => {}
            Some(_) => return self.release_held(chunk),
            None => return,
        }
        self.settle(chunk, out);
    }

    /// The worker's channel is closed: its grants end, and what was not read to its end is asked for again, as if it had not
    /// been taken. What it had placed stays, until its turn. Returns the blocks that it may have been writing, or that its
    /// memory was being read into.
    pub(super) fn take_back(&mut self, rank: Rank) -> Vec<u32> {
        self.copying.lapsing.retain(|lapsing| lapsing.rank != rank);
        let chunks = 0..self.chunks.len() as u32;
        let mut lent: Vec<u32> = chunks.filter_map(|index| self.revoke_buffer(index, rank)).collect();
        for chunk in &mut self.chunks {
            // Those behind it stay taken: the worker does not send again what a deadline has ended.
            let first = chunk.forget_first(rank);
            let reopened = &mut chunk.reopened;
            let mut reopen = |held: &Held| {
                if let Source::Spill(spill) = held.from {
                    lent.push(spill);
                }
                let Held { rank, round, operation, .. } = *held;
                reopened.push(Reopened { rank, operation, round });
            };
            first.iter().for_each(&mut reopen);
            chunk.held.drop_unread(rank, reopen);
        }
        lent
    }
}
