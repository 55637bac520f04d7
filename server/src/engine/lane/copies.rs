//! Copies of other servers' chunks, as the runtime brings their records. What each is worth is decided in
//! [`Copies`](crate::engine::copies::Copies); rounds that are complete end here.

use super::LaneEngine;
use crate::engine::chunk::{Chunk, Lineage, Stage};
use crate::engine::command::Commands;
use crate::engine::copies::{Complete, Here, end};
use crate::engine::image::ChunkState;
use crate::engine::inputs::RecordContext;
use crate::engine::role::Role;
use proto_common::batch::{Judgement, SlotGrant};
use proto_common::ids::{Incarnation, Rank};

impl LaneEngine {
    /// A server's stream to us is up. Returns the slots that it may write.
    pub fn copy_up(&mut self, from: Rank, incarnation: Incarnation, slots: u32) -> Vec<SlotGrant> {
        self.copy_down(from);
        self.copies.up(from, incarnation, slots)
    }

    /// A server's stream to us is closed, and fenced. Copies stay as they are: what was confirmed is applied.
    pub fn copy_down(&mut self, from: Rank) {
        self.copies.down(from);
        let of_it = |chunk: &&mut Chunk| chunk.role == Some(Role::Copy { of: from });
        self.chunks.iter_mut().filter(of_it).for_each(|chunk| chunk.filled = 0);
    }

    /// The life of a server that has a stream to us; zero without one.
    #[must_use]
    pub fn copy_incarnation(&self, from: Rank) -> Incarnation {
        self.copies.incarnation(from)
    }

    /// The slots that a server may write, as they are granted now; none without a stream of it.
    #[must_use]
    pub fn granted_slots(&self, from: Rank) -> Vec<SlotGrant> {
        self.copies.granted(from)
    }

    /// A server says that a record lies in a slot: may it be read? Once: a notice that comes again says nothing.
    pub fn record_notified(&mut self, from: Rank, slot: SlotGrant, out: &mut Commands) -> bool {
        self.copies.notified(from, slot, &mut self.stats.duplicates, out)
    }

    /// A record lies in a slot.
    pub fn record(&mut self, record: &RecordContext<'_>, out: &mut Commands) {
        let Self { copies, config, epoch, index, chunks, .. } = self;
        let mut here = Here { config, epoch: *epoch, index, chunks };
        let Some(Complete { chunk, last }) = copies.record(record, &mut here, out) else { return };
        // What is not applied now (somebody reads both buffers) is taken out of the slot.
        self.end_round(chunk, last, out);
        self.copies.give_back(record.from, record.slot, out);
        self.settle(chunk, out);
    }

    /// What can be taken may be more by now: whoever was told to ask later may ask.
    pub(super) fn say_ready(&mut self, out: &mut Commands) {
        self.copies.say_ready(out);
    }

    /// The image of a copy was looked at: its state, where it is one of this chunk, whose numbers are in buffer `into` then.
    pub fn loaded(
        &mut self,
        (from, slot): (Rank, SlotGrant),
        index: u32,
        state: Option<(&ChunkState, u8)>,
        out: &mut Commands,
    ) {
        self.leave_group(index);
        let restored = state.is_some_and(|(state, into)| self.restore(index, state, into).is_ok());
        if !restored {
            return end(from, "its image is not of this chunk", out);
        }
        let life = self.copies.incarnation(from);
        let chunk = &mut self.chunks[index as usize];
        chunk.lineage = Lineage::Of(from, life, chunk.copy_since);
        self.drop_halves(index);
        self.copies.judge(from, slot, Judgement::Confirmed, out);
        self.copies.give_back(from, slot, out);
    }

    /// Halves of rounds that chunks of the same tensor have from another primary, or from before a round that this one was
    /// loaded with, are never ended: those chunks come whole, too.
    fn drop_halves(&mut self, index: u32) {
        let Some(group) = self.chunks[index as usize].group else { return };
        let (lineage, round) = (self.chunks[index as usize].lineage, self.chunks[index as usize].round());
        for other in self.groups.chunks(group) {
            let chunk = &self.chunks[other as usize];
            if chunk.stage == Stage::Norms && (chunk.lineage, chunk.round()) != (lineage, round) {
                self.leave_group(other);
                let chunk = &mut self.chunks[other as usize];
                chunk.lineage = Lineage::Own;
                chunk.is_spoilt = true;
                chunk.contributed.clear();
            }
        }
    }
}
