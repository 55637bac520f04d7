//! Weights that workers read where they lie, of chunks that this server does not serve any more. They stay where they are until
//! each worker has said that it reads them no more; what this server has the chunk for since then lies elsewhere.

use super::chunk::{Chunk, ChunkSpec};
use super::lane::LaneEngine;
use super::role::Role;
use proto_common::batch::{Block, OpKind, Status};
use proto_common::ids::{Operation, Rank};
use std::ops::Range;

impl Chunk {
    fn is_shown(&self) -> bool {
        self.views.iter().any(|views| !views.is_empty())
    }
}

impl LaneEngine {
    /// Would this server need memory for a chunk that it is to have for this?
    #[must_use]
    pub fn needs_room(&self, spec: &ChunkSpec, role: Role) -> bool {
        let Some(index) = self.index.get(&spec.id).copied() else { return true };
        !role.serves() && self.is_left(index)
    }

    /// Is anything else changed by these roles than what is new, and where copies are made?
    #[must_use]
    pub fn changes_duties(&self, all: &[(ChunkSpec, Role)]) -> bool {
        let known = all.iter().filter_map(|(spec, role)| Some((*self.index.get(&spec.id)?, *role)));
        let is_other = |(index, role): (u32, Role)| match (self.chunks[index as usize].role, role) {
            (Some(Role::Primary { backup: before, .. }), Role::Primary { backup, .. }) => before != backup,
            (before, role) => before != Some(role),
        };
        known.clone().count() < self.index.len() || known.clone().any(is_other)
    }

    /// Is anything of a chunk, or of those that go with it, read where it lies?
    fn is_left(&self, index: u32) -> bool {
        self.together(index).any(|index| self.chunks[index as usize].is_shown())
    }

    /// The chunks that end rounds together with one.
    fn together(&self, index: u32) -> Range<u32> {
        let group = self.chunks[index as usize].group.and_then(|group| self.groups.get(group as usize));
        group.map_or(index..index + 1, |group| group.chunks.clone())
    }

    /// Chunks that this server is to have copies of, and whose weights are read here since it served them: the copy is made
    /// anew, in another place. It would wait for readers otherwise, and its primary for it.
    pub(super) fn leave_shown(&mut self, all: &[(ChunkSpec, Role)]) {
        for (spec, _) in all.iter().filter(|(_, role)| !role.serves()) {
            let Some(index) = self.index.get(&spec.id).copied() else { continue };
            // Chunks of a tensor with norms lie together.
            if self.is_left(index) {
                self.together(index).for_each(|index| self.give_up(index));
            }
        }
    }

    /// Does a worker say that views which it had of a chunk while that was served here have ended?
    pub(super) fn is_farewell(&mut self, peer: Rank, block: &Block) -> bool {
        let is_one = block.op == OpKind::Release && block.operation == Operation(0);
        if is_one {
            self.hide_retired(peer, block);
            self.send_back(peer, block, Status::Done, Vec::new());
        }
        is_one
    }

    /// What a worker says of its reading goes for what is not served any more, too.
    pub(super) fn hide_retired(&mut self, peer: Rank, block: &Block) {
        for index in &self.copying.retired {
            let chunk = &mut self.chunks[*index as usize];
            if chunk.spec.id == block.id {
                chunk.hide(peer, block.reading);
            }
        }
    }
}
