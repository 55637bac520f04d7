//! Tensors whose rule needs norms over all of them (LAMB): their chunks are on one lane, and finish a round together. It
//! must not know how the norms are computed.

use super::chunk::{Chunk, Stage};
use super::command::{Addend, Command, Commands};
use super::lane::LaneEngine;
use proto_common::batch::{Block, Status};
use proto_common::ids::Rank;
use std::ops::Range;

/// The chunks of one such tensor, in order.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) chunks: Range<u32>,
    /// Those whose norms are known.
    ready: u32,
}

impl Group {
    pub(super) fn new(chunks: Range<u32>) -> Self {
        Self { chunks, ready: 0 }
    }

    /// One that was ready is not.
    pub(super) fn one_less(&mut self) {
        self.ready = self.ready.saturating_sub(1);
    }
}

impl LaneEngine {
    /// A tensor with norms is served here from now on, of which this server had a copy: is it whole? Where its primary died
    /// between the states of two chunks it is not, and nobody has what would make it so.
    pub(super) fn look_for_tears(&mut self, index: u32) {
        let Some(group) = self.chunks[index as usize].group.and_then(|group| self.groups.get(group as usize))
        else {
            return;
        };
        let range = group.chunks.start as usize..group.chunks.end as usize;
        let Some(chunks) = self.chunks.get_mut(range) else { return };
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
        let group = group.unwrap_or_else(|| {
            self.groups.push(Group { chunks: index..index, ready: 0 });
            self.groups.len() as u32 - 1
        });
        self.groups[group as usize].chunks.end = index + 1;
        self.chunks[index as usize].group = Some(group);
    }

    /// All have contributed to a chunk of such a tensor: its step and its share of the norms are computed, and the last
    /// chunk finishes all of them.
    pub(super) fn prepare(&mut self, index: u32, group: u32, last: Option<Addend>, out: &mut Commands) {
        let chunk = &mut self.chunks[index as usize];
        let (round, old, contributors) = (chunk.round(), chunk.buffer, chunk.contributed.len());
        out.push(Command::Prepare { chunk: index, round, last, old, contributors });
        chunk.stage = Stage::Norms;
        let group = &mut self.groups[group as usize];
        group.ready += 1;
        if group.ready < group.chunks.len() as u32 {
            return;
        }
        group.ready = 0;
        let chunks = group.chunks.clone();
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
