//! Changes of this server's roles: chunks that it receives or gives up, replicas that become primaries, primaries that become replicas.
//! Operations that wait for a chunk which another server serves now are answered with `Reroute`.

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
        // Members apply decisions in order. An earlier one that arrives late is ignored.
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

    /// There is no memory for these new chunks: they are given up. If one belongs to a tensor with norms, all chunks of the tensor are
    /// given up, because they lie together.
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

    /// The first of these chunks is new. If its tensor has norms, all chunks of the tensor that follow are new, too, and lie together.
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
        // Replicas that are being made may have received this round. It is discarded, and collected again with other contributions.
        let throws = loses_backup && chunk.rounds.stage() == Stage::Copies;
        if loses_backup || (is_promoted && backup.is_none()) {
            // From now on only this server may have what it acknowledges. So it answers only workers that know this decision.
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
        // No other server may have its version.
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

    /// This server does not serve the chunk any more. Waiting operations are answered, and collected contributions are released. A round
    /// that replicas have confirmed is an exception: it ends here as it does there, because half of it may be in the rule's state
    /// already.
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

    /// Waiting operations must be sent again, here or to another server. The contributions that a round has collected are discarded,
    /// unless the round is past the stage in which replicas confirm it; such a round ends.
    fn reroute(&mut self, index: u32) {
        let chunk = &mut self.chunks[index as usize];
        for waiter in chunk.waiters.take_all() {
            let block = answer_block(&chunk.spec, &waiter, Status::Reroute, chunk.rounds.version());
            self.peers.answer(waiter.rank, block, Vec::new());
        }
        chunk.rounds.abandon();
        self.release_held(index);
    }

    /// Releases contributions that are not needed any more, except those that are still being read.
    pub(super) fn release_held(&mut self, index: u32) {
        while let Some(held) = self.chunks[index as usize].rounds.take_unwanted() {
            self.release(index, held.rank, held.from);
        }
    }

    /// A chunk of a tensor with norms leaves the round that the tensor's other chunks collect.
    pub(super) fn leave_group(&mut self, index: u32) {
        let chunk = &mut self.chunks[index as usize];
        if let Some(group) = chunk.group
            && chunk.rounds.leave_norms()
        {
            self.groups.one_less(group);
        }
    }

    /// Frees chunks that were given up and that no peer reads or writes any more.
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

    /// An operation on a chunk that this server does not serve. What the block says about this server's memory counts nevertheless.
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

    /// Was the payload written into a key buffer of an earlier role, before this server gave the chunk up and received it again? Then the
    /// worker must send it again, in a slot. False if not.
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
        // The buffer ended with an earlier role. The worker has not received the decision that this server has the chunk again.
        let is_old = epoch < self.chunks[index as usize].since;
        if is_old {
            self.misrouted(peer, block, out);
        }
        is_old
    }

    /// A batch names the newest decision that its worker knows. If that decision, or an earlier one, took a chunk from this server, the
    /// worker does not write the chunk's key buffers any more.
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

/// Weights that workers still read in place, of chunks that this server does not serve any more. They stay unchanged until each worker has
/// reported, once and with a separate block, that it does not read them any more. (Its operations go to another server by then.)
impl LaneEngine {
    /// Does the block report that the worker's views of a chunk that this server served before have ended?
    pub(super) fn is_farewell(&mut self, peer: Rank, block: &Block, out: &mut Commands) -> bool {
        let is_one = block.op == OpKind::Release && block.operation == Operation(0);
        if is_one {
            self.hide_retired(peer, block);
            // If the chunk is served here again, the worker's operations report its views.
            let copy = self.index.get(&block.id).copied().filter(|index| !self.is_served(*index));
            if let Some(index) = copy {
                self.chunks[index as usize].weights.hide(peer, block.reading);
                self.finish_late(index, out);
            }
            // The worker may still keep a version that shares a buffer with another one. It reports again when it has released that
            // version.
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

    /// Applies a worker's report about its views to chunks that were given up, too.
    pub(super) fn hide_retired(&mut self, peer: Rank, block: &Block) {
        for index in self.places.retired() {
            let chunk = &mut self.chunks[*index as usize];
            if chunk.spec.id == block.id {
                chunk.weights.hide(peer, block.reading);
            }
        }
    }
}
