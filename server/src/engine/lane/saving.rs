//! Checkpoints, as the runtime asks for them: what they hold up is continued here. Which chunks are copied when is decided in
//! [`Savings`].

use super::LaneEngine;
use crate::engine::chunk::{Chunk, Saving};
use crate::engine::command::Commands;
use crate::engine::image::ChunkState;
use crate::engine::saving::Savings;
use crate::engine::spec::ChunkSpec;
use proto_common::ids::ChunkId;

impl LaneEngine {
    /// The chunk under an index.
    #[must_use]
    pub fn chunk_id(&self, index: u32) -> Option<ChunkId> {
        self.chunks.get(index as usize).map(|chunk| chunk.spec.id)
    }

    /// The home of rows under an index; none of other chunks.
    #[must_use]
    pub fn home(&self, index: u32) -> Option<ChunkId> {
        let spec = &self.chunks.get(index as usize)?.spec;
        spec.has_rows().then_some(spec.id)
    }

    /// Is a home here, as served or as a copy?
    #[must_use]
    pub fn has_home(&self, home: ChunkId) -> bool {
        self.index.contains_key(&home)
    }

    /// Is a home served here?
    #[must_use]
    pub fn serves_home(&self, home: ChunkId) -> bool {
        self.serves(&home).is_some()
    }

    /// May reads of a home be answered with its rows? Not while its newest version may be one that nobody else has.
    #[must_use]
    pub fn may_answer_rows(&self, home: ChunkId) -> bool {
        self.serves(&home).is_some_and(|index| !self.chunks[index as usize].init_pending)
    }

    /// Does this server serve a chunk, by its index?
    #[must_use]
    pub fn is_served(&self, index: u32) -> bool {
        self.chunks.get(index as usize).is_some_and(Chunk::is_served)
    }

    /// What decides when checkpoints begin, and has news of them.
    pub fn savings(&mut self) -> &mut Savings {
        &mut self.savings
    }

    /// A checkpoint of this round begins, or (`now`) of the moment. False where it has begun, or is over. One that was under
    /// way ends without being complete.
    pub fn begin_save(&mut self, round: u64, now: bool, out: &mut Commands) -> bool {
        if self.savings.is_known(round, now) {
            // This lane may have begun the same round by itself, before it heard that a worker waits for it. The worker trains on
            // only when it has its checkpoint: chunks that nobody contributes to would wait for a round that never comes.
            if now {
                self.pass_save(round);
            }
            return false;
        }
        if let Some((current, _)) = self.savings.current() {
            self.drop_save(current, out);
        }
        self.savings.begin(round, now, &mut self.chunks);
        true
    }

    /// The newest round of any chunk that is served and has rounds; of any, where none has.
    #[must_use]
    pub fn newest_version(&self) -> u64 {
        self.savings.newest_version(&self.chunks)
    }

    /// Would a checkpoint of this round, not begun here, come too late? Then where training is.
    #[must_use]
    pub fn is_past(&self, round: u64) -> Option<u64> {
        self.savings.is_past(round, &self.chunks)
    }

    /// What the checkpoint under way waits for here: how many chunks, and the one that is furthest behind, with its version.
    #[must_use]
    pub fn save_waits(&self) -> Option<(u64, u32, ChunkId, u64)> {
        self.savings.waits(&self.chunks)
    }

    /// Something was published: is a checkpoint due with it?
    pub(super) fn note_published(&mut self, index: u32) {
        self.stats.newest = self.stats.newest.max(self.chunks[index as usize].rounds.version());
        self.savings.published(index, &mut self.chunks);
    }

    /// Training has gone on past a checkpoint: chunks without a contribution since take no part in it, and are copied as they
    /// are.
    pub fn pass_save(&mut self, round: u64) {
        self.savings.pass(round, &mut self.chunks);
    }

    /// Nothing comes of a checkpoint: what it holds up continues.
    pub fn drop_save(&mut self, round: u64, out: &mut Commands) {
        if !self.savings.drop(round, &self.chunks) {
            return;
        }
        for index in 0..self.chunks.len() {
            let saving = std::mem::take(&mut self.chunks[index].saving);
            if saving == Saving::Due {
                self.resume_round(index as u32, out);
            }
        }
    }

    /// The checkpoint under way, where chunks that it is to have are not this server's any more.
    #[must_use]
    pub fn torn_save(&self) -> Option<u64> {
        self.savings.torn(&self.chunks)
    }

    /// The round of the checkpoint under way, and how many chunks are not copied yet.
    #[must_use]
    pub fn saving(&self) -> Option<(u64, u32)> {
        self.savings.current()
    }

    /// All chunks that the checkpoint under way is to have.
    pub fn saved_chunks(&self) -> impl Iterator<Item = (u32, ChunkSpec)> + '_ {
        let chunks = (0u32..).zip(&self.chunks);
        chunks.filter(|(_, chunk)| chunk.saving != Saving::Nothing).map(|(index, chunk)| (index, chunk.spec))
    }

    /// The chunk that is to be copied next, with what an image says of it. One that cannot be copied at this moment is asked
    /// about again.
    pub fn next_to_save(&mut self) -> Option<(u32, ChunkState, u8)> {
        let index = self.savings.next(&self.chunks)?;
        let (state, buffer) = self.state(index, false)?;
        Some((index, state, buffer))
    }

    /// A chunk is copied: what waited for that continues. True when it was the checkpoint's last.
    pub fn saved(&mut self, index: u32, out: &mut Commands) -> bool {
        // Before anything continues: that may be what the next one begins with.
        let Some(is_last) = self.savings.copied() else { return false };
        if let Some(chunk) = self.chunks.get_mut(index as usize) {
            chunk.saving = Saving::Nothing;
            self.resume_round(index, out);
        }
        is_last
    }
}
