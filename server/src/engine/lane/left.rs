//! Weights that workers read where they lie, of chunks that this server does not serve any more. They stay as they are until each
//! worker has said that it reads them no more, once and by a block of its own: its operations go elsewhere by then.

use super::LaneEngine;
use crate::engine::command::Commands;
use crate::engine::role::Role;
use crate::engine::spec::ChunkSpec;
use proto_common::batch::{Block, OpKind, Status};
use proto_common::ids::{Operation, Rank};

impl LaneEngine {
    /// True if these roles change more than new chunks and new replicas. A replica that is no longer made counts as a change,
    /// because a round may wait for it.
    #[must_use]
    pub fn changes_duties(&self, all: &[(ChunkSpec, Role)]) -> bool {
        let known = || all.iter().filter_map(|(spec, role)| Some((*self.index.get(&spec.id)?, *role)));
        let is_other = |(index, role): (u32, Role)| match (self.chunks[index as usize].role, role) {
            (Some(Role::Primary { backup: before, seeding: was }), Role::Primary { backup, seeding }) => {
                before != backup || was.is_some_and(|was| seeding != Some(was))
            }
            (before, role) => before != Some(role),
        };
        known().count() < self.index.len() || known().any(is_other)
    }

    /// Does a worker say that views which it had of a chunk while that was served here have ended?
    pub(super) fn is_farewell(&mut self, peer: Rank, block: &Block, out: &mut Commands) -> bool {
        let is_one = block.op == OpKind::Release && block.operation == Operation(0);
        if is_one {
            self.hide_retired(peer, block);
            // What is shown of a chunk that is served again its operations speak of.
            let copy = self.index.get(&block.id).copied().filter(|index| !self.is_served(*index));
            if let Some(index) = copy {
                self.chunks[index as usize].hide(peer, block.reading);
                self.finish_late(index, out);
            }
            // A version that it keeps may be in a buffer that more than one version is in: it says so again when it keeps
            // that one no more.
            let of_it =
                self.places.retired().iter().filter(|at| self.chunks[**at as usize].spec.id == block.id);
            let is_shown = of_it.chain(&copy).any(|index| self.chunks[*index as usize].views.is_shown(peer));
            self.peers.send_back(
                peer,
                block,
                if is_shown { Status::Retry } else { Status::Done },
                Vec::new(),
            );
        }
        is_one
    }

    /// What a worker says of its reading goes for what was given up, too.
    pub(super) fn hide_retired(&mut self, peer: Rank, block: &Block) {
        for index in self.places.retired() {
            let chunk = &mut self.chunks[*index as usize];
            if chunk.spec.id == block.id {
                chunk.hide(peer, block.reading);
            }
        }
    }
}
