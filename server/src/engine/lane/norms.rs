//! Tensors whose chunks finish a round together. Which chunks belong together is kept in [`Groups`](crate::engine::norms::Groups).

use super::LaneEngine;
use crate::engine::chunk::{Chunk, Stage};
use crate::engine::command::{Addend, Command, Commands};
use proto_common::batch::{Block, Status};
use proto_common::ids::Rank;

impl LaneEngine {
    /// A tensor with norms is served here from now on, of which this server had a copy: is it whole? Where its primary died
    /// between the states of two chunks it is not, and nobody has what would make it so.
    pub(super) fn look_for_tears(&mut self, index: u32) {
        let Some(group) = self.chunks[index as usize].group else { return };
        let chunks = self.groups.chunks(group);
        let Some(chunks) = self.chunks.get_mut(chunks.start as usize..chunks.end as usize) else { return };
        // A round that is past the norms ends wherever its readers let it.
        let reached = |chunk: &Chunk| {
            let is_past = matches!(chunk.stage, Stage::Buffer | Stage::Verdict { .. });
            chunk.version + u64::from(is_past)
        };
        let first = chunks.first().map_or(0, reached);
        let is_torn = chunks.iter().any(|chunk| chunk.is_spoilt || reached(chunk) != first);
        chunks.iter_mut().for_each(|chunk| chunk.is_torn = is_torn);
    }

    #[cfg(test)]
    pub(crate) fn has_tear(&self, id: proto_common::ids::ChunkId) -> bool {
        self.index.get(&id).is_some_and(|index| self.chunks[*index as usize].is_torn)
    }

    /// Is an operation on what is torn? Then its worker hears of it at once.
    pub(super) fn is_torn(&mut self, index: u32, peer: Rank, block: &Block) -> bool {
        let Chunk { is_torn, version: round, .. } = self.chunks[index as usize];
        if is_torn {
            self.refuse(peer, &Block { round, ..*block }, Status::Torn);
        }
        is_torn
    }

    /// A chunk of a tensor with norms is new: it joins the chunks before it.
    pub(super) fn join_group(&mut self, index: u32) {
        let key = self.chunks[index as usize].spec.id.key;
        let before = index.checked_sub(1).map(|before| &self.chunks[before as usize]);
        let group = before
            .filter(|before| before.spec.id.key == key && before.role.is_some())
            .and_then(|before| before.group);
        self.chunks[index as usize].group = Some(self.groups.join(index, group));
    }

    /// All have contributed to a chunk of such a tensor: its step and its share of the norms are computed, and the last
    /// chunk finishes all of them.
    pub(super) fn prepare(&mut self, index: u32, group: u32, last: Option<Addend>, out: &mut Commands) {
        let chunk = &mut self.chunks[index as usize];
        let (round, old, contributors) = (chunk.round(), chunk.buffer, chunk.contributed.len());
        out.push(Command::Prepare { chunk: index, round, last, old, contributors });
        chunk.stage = Stage::Norms;
        let Some(chunks) = self.groups.ready(group) else { return };
        out.push(Command::Norms { chunks: chunks.clone() });
        for other in chunks {
            self.wait_for_buffer(other);
            if let Some(into) = self.chunks[other as usize].writable() {
                self.finish(other, None, into, out);
                self.ripe.push(other);
            }
        }
    }
}
