//! Rounds that wait for readers of older weights. When something is done about them is decided in
//! [`Relief`](crate::engine::relief::Relief); who reads what each chunk's [`Views`](crate::engine::views::Views) know.

use super::LaneEngine;
use crate::engine::chunk::Stage;
use crate::engine::command::Commands;
use crate::engine::views::Landed;
use proto_common::ids::Rank;

impl LaneEngine {
    /// A complete round has to wait for a buffer.
    pub(super) fn wait_for_buffer(&mut self, index: u32) {
        let chunk = &mut self.chunks[index as usize];
        chunk.stage = Stage::Buffer;
        self.savings.hasten(index, chunk);
        self.relief.wait(index);
    }

    /// Does a complete round wait only for workers to copy? Then [`LaneEngine::relieve`] must be called every few milliseconds.
    /// Holders of views may keep a round waiting for long, and nothing can be moved for them, so the lane sleeps meanwhile.
    #[must_use]
    pub fn is_stuck(&self) -> bool {
        self.relief.is_stuck(&self.chunks)
    }

    /// Moves weights out of the way of rounds that have waited for long.
    pub fn relieve(&mut self, now_ms: u64, out: &mut Commands) {
        self.relief.relieve(now_ms, &self.chunks, &mut self.placement, out);
    }

    /// The weights of a buffer are in a spill block, too, where these workers copy them: one entry for each landing.
    pub fn relieved(&mut self, index: u32, buffer: u8, spill: u32, moved: &[Rank], out: &mut Commands) {
        let Some(chunk) = self.chunks.get_mut(index as usize) else { return };
        if !chunk.views.move_away(buffer & 1, spill, moved) {
            self.placement.give(spill);
            return;
        }
        self.stats.relieved += 1;
        self.finish_late(index, out);
    }

    /// A landing at this worker is done (or its channel is gone): the buffer has one reader less.
    pub fn landed(&mut self, peer: Rank, index: u32, buffer: u8, out: &mut Commands) {
        let Some(chunk) = self.chunks.get_mut(index as usize) else { return };
        match chunk.views.landed(peer, buffer & 1) {
            Landed::Moved(free) => free.into_iter().for_each(|spill| self.placement.give(spill)),
            Landed::Read => self.finish_late(index, out),
        }
    }
}
