//! Payloads that do not come in a slot: buffers that workers write them into, and what was read out of workers' memory. Which spill
//! block is whose is decided in [`Placement`](crate::engine::placed::Placement).

use super::LaneEngine;
use crate::engine::command::{Commands, Place, Source};
use crate::engine::peers::sent_back;
use proto_common::batch::{Block, Status};
use proto_common::ids::Rank;

impl LaneEngine {
    /// Spill blocks in use, and all there are. Key buffers are counted apart.
    #[must_use]
    pub fn spills(&self) -> (usize, usize) {
        self.placement.sizes()
    }

    /// Spill blocks that workers may write their contributions into, or have written.
    #[must_use]
    pub fn key_buffers(&self) -> u32 {
        self.placement.key_buffers()
    }

    /// Spill blocks that workers may not write any more, while their channels are open.
    pub fn taken_buffers(&mut self) -> std::vec::Drain<'_, (Rank, u32)> {
        self.placement.taken()
    }

    /// Answers an announcement with a buffer, or says that there is none.
    pub(super) fn announce(&mut self, index: u32, peer: Rank, block: &Block, keep: bool) {
        let chunk = &mut self.chunks[index as usize];
        let spill = self.placement.grant(&mut chunk.key_buffers, peer, keep);
        let bytes = chunk.spec.bytes;
        match spill {
            Some(spill) => {
                let block = sent_back(block, Status::Granted);
                self.peers.answer_with_place(peer, block, Place::Spill(spill), bytes);
            }
            None => self.peers.send_back(peer, block, Status::Granted, Vec::new()),
        }
    }

    /// A placed payload is taken: nothing may be written over it.
    pub(super) fn fill(&mut self, index: u32, peer: Rank, from: Source) {
        let is_placed = self.placement.fill(&mut self.chunks[index as usize].key_buffers, peer, from);
        self.stats.placed += u64::from(is_placed);
    }

    /// A payload is not needed any more: its spill block is free, or its worker's to write again.
    pub(super) fn release(&mut self, index: u32, rank: Rank, from: Source) {
        self.placement.release(&mut self.chunks[index as usize].key_buffers, rank, from);
    }

    /// What a worker's memory was read for is there.
    pub fn fetched(&mut self, peer: Rank, chunk: u32, spill: u32, out: &mut Commands) {
        let Some(state) = self.chunks.get_mut(chunk as usize) else { return };
        let from = Source::Spill(spill);
        match (state.rounds.arrive(peer, from), state.is_served()) {
            (Some(0), true) => {
                self.initialise(chunk, peer, from, out);
                self.end_short(chunk, out);
            }
            (Some(0), false) => return self.release(chunk, peer, from),
            (Some(_), true) => {}
            (Some(_), false) => return self.release_held(chunk),
            (None, _) => return,
        }
        self.advance(chunk, out);
    }

    /// The worker's channel is closed: its grants end, and what was not read to its end is asked for again, as if it had not
    /// been taken. What it had placed stays, until its turn. Returns the blocks that it may have been writing, or that its
    /// memory was being read into.
    pub(super) fn take_back(&mut self, rank: Rank) -> Vec<u32> {
        self.places.forget_worker(rank);
        let Self { chunks, placement, .. } = self;
        let buffers = chunks.iter_mut().map(|chunk| &mut chunk.key_buffers);
        let mut lent: Vec<u32> = buffers.filter_map(|of| placement.revoke(of, rank)).collect();
        for chunk in chunks {
            chunk.rounds.channel_ended(rank, |held| {
                if let Source::Spill(spill) = held.from {
                    lent.push(spill);
                }
            });
        }
        lent
    }
}
