//! What this server has chunks for, as it changes: chunks taken up and given up, copies that begin to serve, servers that
//! become copies. What was asked of a chunk that is served elsewhere now is answered with `Reroute`.

use super::LaneEngine;
use super::answers::answer_block;
use crate::engine::chunk::{Chunk, Lineage};
use crate::engine::command::{Command, Commands};
use crate::engine::role::{Role, RoleChanges};
use crate::engine::rounds::Stage;
use crate::engine::sabotage::BrokenRule;
use crate::engine::spec::ChunkSpec;
use proto_common::batch::{Block, BlockData, OpKind, Status};
use proto_common::ids::{ChunkId, Epoch, Operation, Rank};
use std::collections::HashSet;

impl LaneEngine {
    /// All chunks that this lane has a part in from an epoch on.
    pub fn roles(&mut self, epoch: Epoch, all: &[(ChunkSpec, Role)], out: &mut Commands) -> RoleChanges {
        let mut changes = RoleChanges::default();
        // Members apply decisions in order: an earlier one comes late, and counts for nothing.
        if epoch < self.epoch && self.has_roles {
            return changes;
        }
        self.epoch = self.epoch.max(epoch);
        self.has_roles = true;
        self.streams.new_epoch();
        let stay: HashSet<ChunkId> = all.iter().map(|(spec, _)| spec.id).collect();
        let mut gone: Vec<u32> =
            self.index.iter().filter(|(id, _)| !stay.contains(*id)).map(|(_, index)| *index).collect();
        gone.sort_unstable();
        gone.into_iter().for_each(|index| self.give_up(index));
        let mut promoted = Vec::new();
        for (at, (spec, role)) in all.iter().enumerate() {
            if !self.index.contains_key(&spec.id) {
                self.take_up(&all[at..], &mut changes.added);
            }
            let Some(index) = self.index.get(&spec.id).copied() else { continue };
            let chunk = &self.chunks[index as usize];
            let is_promoted = matches!(chunk.role, Some(Role::Copy { .. })) && role.serves();
            promoted.extend(is_promoted.then_some(index));
            changes.blank.extend((is_promoted && chunk.lineage == Lineage::Zeros).then_some(index));
            self.set_role(index, *role, out);
            if self.chunks[index as usize].copies.iter().any(Option::is_some) {
                changes.lent.push(index);
            }
        }
        promoted.into_iter().for_each(|index| self.look_for_tears(index));
        self.copies.say_ready(out);
        // Last: storage frees them after it has made the new ones.
        self.free_retired(out);
        changes
    }

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

    /// These are new, and nothing can be kept of them: they are given up, and count as none. Of a tensor with norms all chunks
    /// go, because they lie together.
    pub fn unmade(&mut self, new: &[u32], out: &mut Commands) {
        for index in new {
            let group = self.chunks[*index as usize].group;
            for index in self.groups.with(*index, group) {
                if self.index.get(&self.chunks[index as usize].spec.id) == Some(&index) {
                    self.give_up(index);
                }
            }
        }
        if !new.is_empty() {
            self.free_retired(out);
        }
    }

    /// The first of these is new; of a tensor with norms all that follow it are, and lie together.
    fn take_up(&mut self, from: &[(ChunkSpec, Role)], added: &mut Vec<(u32, ChunkSpec)>) {
        let Some((spec, _)) = from.first() else { return };
        if !spec.optimizer.needs_norms() {
            let index = self.places.take(self.chunks.len());
            self.put(index, *spec, None);
            return added.push((index, *spec));
        }
        let run = from.iter().take_while(|(other, _)| other.id.key == spec.id.key);
        let count = run.clone().count() as u32;
        let indices = self.places.take_group(count, self.chunks.len());
        let group = self.groups.place(indices.clone());
        for (index, (spec, _)) in indices.zip(run) {
            self.put(index, *spec, Some(group));
            added.push((index, *spec));
        }
    }

    fn put(&mut self, index: u32, spec: ChunkSpec, group: Option<u32>) {
        let mut chunk = Chunk::new(spec, &self.config);
        (chunk.group, chunk.since) = (group, self.epoch);
        match self.chunks.get_mut(index as usize) {
            Some(place) => *place = chunk,
            None => self.chunks.push(chunk),
        }
        self.index.insert(spec.id, index);
        self.cover(index);
        self.chunks[index as usize].rounds.renew(spec.id.key, &self.roster);
    }

    fn set_role(&mut self, index: u32, role: Role, out: &mut Commands) {
        let Role::Primary { backup, seeding } = role else {
            if matches!(self.chunks[index as usize].role, Some(Role::Primary { .. })) {
                self.end_streams_of_sum(index, role, out);
                self.disengage(index);
            }
            self.chunks[index as usize].role = Some(role);
            return;
        };
        let epoch = self.epoch;
        let chunk = &mut self.chunks[index as usize];
        chunk.filled = 0;
        let is_promoted = matches!(chunk.role, Some(Role::Copy { .. }));
        let loses_backup = backup.is_none() && chunk.copies[0].is_some();
        if !chunk.is_served() {
            chunk.since = epoch;
        }
        chunk.role = Some(role);
        chunk.lineage = Lineage::Own;
        // What copies were told of a round does not go for the one that is collected instead of it.
        let throws = loses_backup && chunk.rounds.stage() == Stage::Copies;
        if loses_backup || (is_promoted && backup.is_none()) {
            // What is answered from now on may be known to this server alone: only to who knows that.
            chunk.alone_since = epoch;
            self.reroute(index);
        }
        let chunk = &mut self.chunks[index as usize];
        let mut before = std::mem::take(&mut chunk.copies);
        let mut new = Vec::new();
        for (place, to) in [backup, seeding].into_iter().enumerate() {
            let Some(to) = to else { continue };
            let is_backup = place == 0;
            let known = before.iter_mut().find(|keep| keep.is_some_and(|keep| keep.to == to));
            let keep = match known.and_then(Option::take) {
                Some(mut keep) => {
                    keep.is_backup = is_backup;
                    keep
                }
                None => {
                    new.push(to);
                    self.streams.keep(to, is_backup, epoch)
                }
            };
            chunk.copies[place] = Some(keep);
        }
        before.iter_mut().flatten().for_each(|keep| self.streams.forget(keep));
        let chunk = &mut self.chunks[index as usize];
        // Its version may be one that nobody else has.
        chunk.init_pending |= is_promoted && chunk.has_copies();
        if throws {
            self.end_streams_of_sum(index, role, out);
            self.streams.restart_copies(index, &mut self.chunks, &self.groups);
        }
        new.into_iter().for_each(|to| self.streams.check(index, &mut self.chunks[index as usize], to));
        self.go_on(index, out);
    }

    fn give_up(&mut self, index: u32) {
        self.leave_group(index);
        self.chunks[index as usize].rounds.give_up();
        self.streams.leave(index);
        self.disengage(index);
        let chunk = &mut self.chunks[index as usize];
        chunk.role = None;
        let id = chunk.spec.id;
        self.index.remove(&id);
        self.places.retire(index);
    }

    /// This server does not serve the chunk any more: who waits is told, and what was collected is let go; but for a round
    /// that copies have confirmed, which ends here as it does there: half of it may be in what the rule keeps already.
    fn disengage(&mut self, index: u32) {
        let chunk = &mut self.chunks[index as usize];
        chunk.init_pending = false;
        for keep in std::mem::take(&mut chunk.copies).iter_mut().flatten() {
            self.streams.forget(keep);
        }
        self.reroute(index);
        let chunk = &mut self.chunks[index as usize];
        chunk.filled = 0;
        chunk.key_buffers.writers().for_each(|rank| self.places.lapse(rank, index, self.epoch));
    }

    /// Whoever waits is to come again, here or elsewhere, and what was collected of a round counts for nothing; but for one
    /// that is past what copies confirm, which ends.
    fn reroute(&mut self, index: u32) {
        let chunk = &mut self.chunks[index as usize];
        for waiter in chunk.waiters.take_all() {
            let block = answer_block(&chunk.spec, &waiter, Status::Reroute, chunk.rounds.version());
            self.peers.answer(waiter.rank, block, Vec::new());
        }
        chunk.rounds.abandon();
        self.release_held(index);
    }

    /// Contributions that are not wanted any more, but for those that are still being read.
    pub(super) fn release_held(&mut self, index: u32) {
        while let Some(held) = self.chunks[index as usize].rounds.take_unwanted() {
            self.release(index, held.rank, held.from);
        }
    }

    /// A chunk of a tensor with norms is not part of the round that the others collect any more.
    pub(super) fn leave_group(&mut self, index: u32) {
        let chunk = &mut self.chunks[index as usize];
        if let Some(group) = chunk.group
            && chunk.rounds.leave_norms()
        {
            self.groups.one_less(group);
        }
    }

    /// Chunks that were given up, and that nobody reads or writes any more, are free.
    pub(super) fn free_retired(&mut self, out: &mut Commands) {
        let Self { chunks, places, streams, groups, .. } = self;
        let is_used = |index: u32| !chunks[index as usize].is_unused() || streams.is_leaving(index);
        let is_grouped = |index: u32| chunks[index as usize].group.is_some();
        if places.free_unused(is_used, is_grouped, |chunk| out.push(Command::Free { chunk })) {
            places.free_groups(groups, |index| chunks[index as usize].role.is_none());
        }
    }

    /// The index of a chunk that this server serves.
    pub(super) fn serves(&self, id: &ChunkId) -> Option<u32> {
        let index = self.index.get(id).copied()?;
        if self.breaks(BrokenRule::EpochCheck) {
            return Some(index);
        }
        self.is_served(index).then_some(index)
    }

    /// An operation on a chunk that is served elsewhere, or nowhere. What it says of this server's memory counts.
    pub(super) fn misrouted(&mut self, peer: Rank, block: &Block, out: &mut Commands) {
        if !self.has_roles {
            return self.refuse(peer, block, Status::UnknownChunk);
        }
        self.hide_retired(peer, block);
        let known = self.index.get(&block.id).copied();
        if let Some(index) = known.or_else(|| self.retired_as(&block.id)) {
            self.chunks[index as usize].weights.hide(peer, block.reading);
            if block.data == BlockData::Placed {
                self.let_go_of_placed(index, peer);
            }
            self.finish_late(index, out);
        }
        self.peers.send_back(peer, block, Status::Reroute, Vec::new());
    }

    fn retired_as(&self, id: &ChunkId) -> Option<u32> {
        self.places.retired().iter().copied().find(|index| self.chunks[*index as usize].spec.id == *id)
    }

    fn let_go_of_placed(&mut self, index: u32, peer: Rank) {
        if let Ok(source) = self.chunks[index as usize].key_buffers.placed(peer) {
            self.fill(index, peer, source);
            self.release(index, peer, source);
        }
    }

    /// A payload that was placed where the chunk was before this server gave it up and took it again: it is to come in a
    /// slot. False where it is none of those.
    pub(super) fn placed_before(
        &mut self,
        index: u32,
        peer: Rank,
        epoch: Epoch,
        block: &Block,
        out: &mut Commands,
    ) -> bool {
        let is_none = self.chunks[index as usize].key_buffers.has_none(peer);
        if block.data != BlockData::Placed || !is_none {
            return false;
        }
        let before = self
            .retired_as(&block.id)
            .filter(|before| !self.chunks[*before as usize].key_buffers.has_none(peer));
        if let Some(before) = before {
            self.let_go_of_placed(before, peer);
            self.peers.send_back(peer, block, Status::Granted, Vec::new());
            return true;
        }
        // Of a buffer that went with an earlier role; its worker has not heard that the chunk is here again.
        let is_old = epoch < self.chunks[index as usize].since;
        if is_old {
            self.misrouted(peer, block, out);
        }
        is_old
    }

    /// A worker says by a batch which decisions it knows: buffers of chunks that were taken from here by those it does not
    /// write any more.
    pub(super) fn lapse(&mut self, rank: Rank, epoch: Epoch, out: &mut Commands) {
        let mut freed = false;
        while let Some(chunk) = self.places.next_lapsed(rank, epoch) {
            self.placement.end(&mut self.chunks[chunk as usize].key_buffers, rank);
            freed = true;
        }
        if freed {
            self.free_retired(out);
        }
    }
}

/// Weights that workers read where they lie, of chunks that this server does not serve any more. They stay as they are until each
/// worker has said that it reads them no more, once and by a block of its own: its operations go elsewhere by then.
impl LaneEngine {
    /// Does a worker say that views which it had of a chunk while that was served here have ended?
    pub(super) fn is_farewell(&mut self, peer: Rank, block: &Block, out: &mut Commands) -> bool {
        let is_one = block.op == OpKind::Release && block.operation == Operation(0);
        if is_one {
            self.hide_retired(peer, block);
            // What is shown of a chunk that is served again its operations speak of.
            let copy = self.index.get(&block.id).copied().filter(|index| !self.is_served(*index));
            if let Some(index) = copy {
                self.chunks[index as usize].weights.hide(peer, block.reading);
                self.finish_late(index, out);
            }
            // A version that it keeps may be in a buffer that more than one version is in: it says so again when it keeps
            // that one no more.
            let of_it =
                self.places.retired().iter().filter(|at| self.chunks[**at as usize].spec.id == block.id);
            let is_shown =
                of_it.chain(&copy).any(|index| self.chunks[*index as usize].weights.views.is_shown(peer));
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
                chunk.weights.hide(peer, block.reading);
            }
        }
    }
}
