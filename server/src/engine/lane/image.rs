//! Images of chunks: taken from the table of chunks, and put into it.

use super::LaneEngine;
use crate::engine::chunk::Stage;
use crate::engine::image::{ChunkState, NOT_IN_ORDER};
use crate::engine::role::Role;

impl LaneEngine {
    /// What an image of a chunk is to say, and in which buffer its weights are; nothing while it cannot be taken, in the
    /// middle of a round's end. Weights before those in force are in the other buffer, where the state has them.
    #[must_use]
    pub fn state(&self, chunk: u32, with_previous: bool) -> Option<(ChunkState, u8)> {
        let chunk = self.chunks.get(chunk as usize).filter(|chunk| chunk.is_whole())?;
        Some((chunk.state(with_previous), chunk.buffer))
    }

    /// Where the weights of an image can be put: a buffer that nobody reads. None while both are being read.
    #[must_use]
    pub fn room_for_image(&self, chunk: u32) -> Option<u8> {
        self.chunks.get(chunk as usize)?.writable()
    }

    /// Does the state of an image fit the chunk?
    pub fn check_state(&self, chunk: u32, state: &ChunkState) -> Result<(), String> {
        self.chunks.get(chunk as usize).map_or(Err(NOT_IN_ORDER.into()), |chunk| chunk.fits(state))
    }

    /// The chunk goes on from an image, whose weights are in buffer `into` now. What was collected of a round is forgotten:
    /// the chunk is to have had none (as a copy, or before anybody contributed).
    pub fn restore(&mut self, index: u32, state: &ChunkState, into: u8) -> Result<(), String> {
        self.check_state(index, state)?;
        let Some(chunk) = self.chunks.get_mut(index as usize) else { return Err(NOT_IN_ORDER.into()) };
        chunk.version = state.version;
        chunk.buffer = into & 1;
        chunk.initialised = state.initialised;
        chunk.bad = state.bad;
        chunk.set_versions(state.versions, state.previous);
        chunk.set_live_bytes(state.live_bytes);
        chunk.set_before(state.previous.map(|_| state.previous_bytes));
        chunk.contributed.clear();
        chunk.stage = Stage::Contributions;
        (chunk.is_spoilt, chunk.is_torn) = (false, false);
        if let Some(tally) = &mut chunk.tally {
            tally.restore(&state.made, &state.marks);
        }
        // The image may be of before its server was told so, and nobody tells this one again.
        self.roster.counting_from(chunk.spec.id.key).for_each(|(rank, from)| chunk.begin_count(rank, from));
        if chunk.role.is_some_and(Role::serves) {
            self.look_for_tears(index);
        }
        Ok(())
    }
}
