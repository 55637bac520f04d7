//! Replicas of chunks: streams to servers that have replicas of this server's chunks, streams of servers of whose chunks this server has
//! replicas, and images. [`Streams`](crate::engine::streams::Streams) decides what is sent, and
//! [`Copies`](crate::engine::copies::Copies) what is accepted. Rounds that become confirmed or complete by this end here.

use super::LaneEngine;
use crate::engine::chunk::{Chunk, Lineage};
use crate::engine::command::{Command, Commands};
use crate::engine::copies::{Complete, Here, end};
use crate::engine::image::{ChunkState, NOT_IN_ORDER};
use crate::engine::inputs::RecordContext;
use crate::engine::keep::At;
use crate::engine::role::Role;
use crate::engine::rounds::Stage;
use crate::engine::sabotage::BrokenRule;
use crate::engine::streams::whole;
use proto_common::batch::{Block, Count, Judgement, Notice, SlotGrant, Status};
use proto_common::ids::{Epoch, Incarnation, Key, Rank};

/// Streams to servers that have replicas.
impl LaneEngine {
    /// The stream to an incarnation of a server is up: these slots of it are ours to write, with so many bytes of payload each. What
    /// the other side has of each chunk is asked first.
    pub fn stream_up(
        &mut self,
        to: Rank,
        incarnation: Incarnation,
        slots: &[SlotGrant],
        part_bytes: u64,
        out: &mut Commands,
    ) {
        self.stream_down(to, out);
        self.streams.up(to, incarnation, slots, part_bytes);
        for (index, chunk) in (0u32..).zip(&mut self.chunks) {
            self.streams.check(index, chunk, to);
        }
    }

    /// The stream to a server is closed, and fenced. Rounds still wait for its replicas.
    pub fn stream_down(&mut self, to: Rank, out: &mut Commands) {
        if !self.streams.down(to) {
            return;
        }
        for index in 0..self.chunks.len() as u32 {
            let copies = &mut self.chunks[index as usize].copies;
            let mut of_it = copies.iter_mut().flatten().filter(|keep| keep.to == to);
            if let Some(keep) = of_it.next() {
                (keep.at, keep.queued) = (At::Out, 0);
                self.go_on(index, out);
            }
        }
    }

    /// The incarnation of a server that we have a stream to; zero without one.
    #[must_use]
    pub fn stream_incarnation(&self, to: Rank) -> Incarnation {
        self.streams.incarnation(to).unwrap_or_default()
    }

    /// The number of replicas that the map requires, how many of them are up to date, and the records that wait to be written.
    #[must_use]
    pub fn copies(&self) -> (usize, usize, usize) {
        let keeps = || self.chunks.iter().flat_map(|chunk| chunk.copies.iter().flatten());
        (keeps().count(), keeps().filter(|keep| keep.is_kept_up()).count(), self.streams.queued())
    }

    /// Is a chunk's image still being sent to a server?
    #[must_use]
    pub fn sends_image(&self, to: Rank) -> bool {
        self.streams.sends_image(to)
    }

    /// Slots for records that were written and not given back.
    #[must_use]
    pub fn records_unreturned(&self) -> usize {
        self.streams.unreturned()
    }

    /// Slots that a server has granted for records: those that may be written, and those that were and are not given back.
    #[must_use]
    pub fn record_slots(&self, to: Rank) -> (Vec<SlotGrant>, Vec<SlotGrant>) {
        self.streams.slots(to)
    }

    /// The initial value is set. Replicas get it as a `State`, and workers are answered afterwards.
    pub(super) fn copy_initial(&mut self, index: u32) {
        self.streams.copy_initial(index, &mut self.chunks[index as usize]);
    }

    /// A chunk's rule has changed. Replicas get the change in the order of the rounds.
    pub fn rule_changed(&mut self, index: u32) {
        if let Some(chunk) = self.chunks.get_mut(index as usize) {
            self.streams.rule_changed(index, chunk);
        }
    }

    /// A server's answer to a record. An invalid answer ends its channel.
    pub fn stream_notice(&mut self, to: Rank, notice: Notice, out: &mut Commands) {
        match self.streams.notice(to, notice, &mut self.chunks, &self.groups) {
            Ok(None) => {}
            Ok(Some(index)) => self.go_on(index, out),
            Err(reason) => out.push(Command::EndStream { peer: to, ours: true, reason: reason.to_owned() }),
        }
    }

    /// Ends a round that all replicas have confirmed by now, and answers the operations that waited for it.
    pub(super) fn go_on(&mut self, index: u32, out: &mut Commands) {
        let chunk = &mut self.chunks[index as usize];
        chunk.init_pending &= !chunk.has_initial_everywhere();
        let is_complete = chunk.rounds.stage() == Stage::Copies;
        let is_sent = || self.streams.queued() == 0;
        let skips = is_complete && self.breaks(BrokenRule::AckAfterReplicate) && is_sent();
        if self.is_confirmed(index) || skips {
            self.end_round(index, None, out);
        }
        self.advance(index, out);
    }

    /// Have all required replicas confirmed the complete round of a chunk?
    pub(super) fn is_confirmed(&mut self, index: u32) -> bool {
        whole::is_confirmed(index, &mut self.chunks, &self.groups)
    }

    /// Writes as many records as there are slots. A `State` waits until no other record does.
    pub(super) fn pump(&mut self, out: &mut Commands) {
        for at in 0..self.streams.len() {
            self.streams.write(at, &mut self.chunks, out);
            if self.breaks(BrokenRule::AckAfterReplicate) {
                (0..self.chunks.len() as u32).for_each(|index| self.go_on(index, out));
            }
            let begun = self.streams.begin_next(at, self.epoch, &mut self.chunks, &self.groups, out);
            self.stats.states += u64::from(begun);
        }
    }

    /// The requested image has this many bytes.
    pub fn captured(&mut self, to: Rank, chunk: u32, bytes: u64, out: &mut Commands) {
        self.streams.captured(to, chunk, bytes);
        self.pump(out);
    }

    /// Records of a round that is thrown away may not have left yet, and would be read from memory that another round is
    /// summed in: what their channels have not sent by now they are not to send. If another server serves the chunk from now
    /// on, its own channel stays: before it sends rounds that are summed up there, it stops taking any from here.
    pub(super) fn end_streams_of_sum(&mut self, index: u32, role: Role, out: &mut Commands) {
        let copies = self.chunks[index as usize].copies.iter().flatten();
        for keep in copies.filter(|keep| role != Role::Copy { of: keep.to }) {
            if self.streams.reads_sum(keep.to, index) {
                let reason = "a round that is under way to it is collected anew".to_owned();
                out.push(Command::EndStream { peer: keep.to, ours: true, reason });
            }
        }
    }
}

/// Changes of rules. The rules themselves are storage's.
impl LaneEngine {
    /// A tensor's chunks, each with the first round whose rule is still open.
    pub fn rounds_of(&self, key: Key) -> impl Iterator<Item = (u32, u64)> + '_ {
        // The rule of a replica changes with that of its primary.
        let chunks = (0u32..)
            .zip(&self.chunks)
            .filter(move |(_, chunk)| chunk.spec.id.key == key && chunk.is_served());
        chunks.map(|(at, chunk)| (at, chunk.rounds.promised() + 1))
    }

    /// Chunks of a tensor that this server serves, and the epoch since when.
    pub fn served_since(&self, key: Key) -> impl Iterator<Item = (u32, Epoch)> + '_ {
        self.rounds_of(key).map(|(index, _)| (index, self.chunks[index as usize].since))
    }

    /// Can a worker know which of a tensor's rounds are open? Only if no round ends without it.
    #[must_use]
    pub fn has_common_rounds(&self, key: Key) -> bool {
        self.chunks
            .iter()
            .find(|chunk| chunk.spec.id.key == key)
            .is_none_or(|chunk| chunk.rounds.are_common())
    }

    /// Servers that have replicas of a tensor's chunks, but not every change of its rule; one entry for each of these chunks.
    pub fn lacking_rules(&self, key: Key) -> impl Iterator<Item = Rank> + '_ {
        self.chunks.iter().filter(move |chunk| chunk.spec.id.key == key).flat_map(Chunk::lacking_rules)
    }
}

/// Replicas of other servers' chunks.
impl LaneEngine {
    /// A server's stream to us is up. Returns the slots that it may write.
    pub fn copy_up(&mut self, from: Rank, incarnation: Incarnation, slots: u32) -> Vec<SlotGrant> {
        self.copy_down(from);
        self.copies.up(from, incarnation, slots)
    }

    /// A server's stream to us is closed, and fenced. Replicas stay as they are; confirmed updates are applied.
    pub fn copy_down(&mut self, from: Rank) {
        self.copies.down(from);
        let of_it = |chunk: &&mut Chunk| chunk.role == Some(Role::Copy { of: from });
        self.chunks.iter_mut().filter(of_it).for_each(|chunk| chunk.filled = 0);
    }

    /// The incarnation of a server that has a stream to us; zero without one.
    #[must_use]
    pub fn copy_incarnation(&self, from: Rank) -> Incarnation {
        self.copies.incarnation(from)
    }

    /// The slots that a server may write, as they are granted now; none without a stream of it.
    #[must_use]
    pub fn granted_slots(&self, from: Rank) -> Vec<SlotGrant> {
        self.copies.granted(from)
    }

    /// A server notifies that a record lies in a slot. May the slot be read? Only once: a repeated notice is ignored.
    pub fn record_notified(&mut self, from: Rank, slot: SlotGrant, out: &mut Commands) -> bool {
        self.copies.notified(from, slot, &mut self.stats.duplicates, out)
    }

    /// A record lies in a slot.
    pub fn record(&mut self, record: &RecordContext<'_>, out: &mut Commands) {
        let Self { copies, config, epoch, roster, index, chunks, .. } = self;
        let mut here = Here { config, epoch: *epoch, roster, index, chunks };
        let Some(Complete { chunk, last }) = copies.record(record, &mut here, out) else { return };
        // If it cannot be applied now, because both buffers are being read, it is copied out of the slot.
        self.end_round(chunk, last, out);
        self.copies.give_back(record.from, record.slot, out);
        self.advance(chunk, out);
    }

    /// The image of a replica was checked. `state` is its state if it fits this chunk; the weights are in buffer `into` then.
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

    /// If chunks of the same tensor have a part of a round from another primary, or from before the round of the loaded chunk, that round
    /// never ends. These chunks are sent whole, too.
    fn drop_halves(&mut self, index: u32) {
        let Some(group) = self.chunks[index as usize].group else { return };
        let of = |chunk: &Chunk| (chunk.lineage, chunk.rounds.round());
        let loaded = of(&self.chunks[index as usize]);
        for other in self.groups.chunks(group) {
            let chunk = &self.chunks[other as usize];
            if chunk.rounds.stage() == Stage::Norms && of(chunk) != loaded {
                self.leave_group(other);
                let chunk = &mut self.chunks[other as usize];
                (chunk.lineage, chunk.is_spoilt) = (Lineage::Own, true);
            }
        }
    }
}

/// Images of chunks: taken from the table of chunks, and put into it.
impl LaneEngine {
    /// The state for an image of a chunk, and the buffer with its weights. `None` while no image can be taken, in the middle of a round's
    /// end. If the state has the version before, the weights of that version are in the other buffer.
    #[must_use]
    pub fn state(&self, chunk: u32, with_previous: bool) -> Option<(ChunkState, u8)> {
        let chunk = self.chunks.get(chunk as usize).filter(|chunk| chunk.is_whole())?;
        Some((chunk.state(with_previous), chunk.weights.buffer()))
    }

    /// Does the state of an image fit the chunk?
    pub fn check_state(&self, chunk: u32, state: &ChunkState) -> Result<(), String> {
        self.chunks.get(chunk as usize).map_or(Err(NOT_IN_ORDER.into()), |chunk| chunk.fits(state))
    }

    /// The chunk continues from an image, whose weights are in buffer `into` now. Collected contributions are discarded. The chunk must not
    /// have had any: it was a replica, or no worker has contributed yet.
    pub fn restore(&mut self, index: u32, state: &ChunkState, into: u8) -> Result<(), String> {
        self.check_state(index, state)?;
        let Some(chunk) = self.chunks.get_mut(index as usize) else { return Err(NOT_IN_ORDER.into()) };
        chunk.restore(state, into);
        // The image may come from a time before its server received this, and this server does not receive it again.
        let counting = self.roster.counting_from(chunk.spec.id.key);
        counting.for_each(|(rank, from)| chunk.rounds.begin_count(rank, from));
        if chunk.is_served() {
            self.look_for_tears(index);
        }
        Ok(())
    }

    /// This server serves a tensor with norms from now on, of which it had a replica. Is the replica whole? If the primary failed between
    /// the `State`s of two chunks it is not, and no server has the missing data.
    pub(super) fn look_for_tears(&mut self, index: u32) {
        let Some(group) = self.chunks[index as usize].group else { return };
        let chunks = self.groups.chunks(group);
        let Some(chunks) = self.chunks.get_mut(chunks.start as usize..chunks.end as usize) else { return };
        // A round that is past the norms ends on each chunk as soon as its readers allow it.
        let first = chunks.first().map_or(0, |chunk| chunk.rounds.certain());
        let is_torn = chunks.iter().any(|chunk| chunk.is_spoilt || chunk.rounds.certain() != first);
        chunks.iter_mut().for_each(|chunk| chunk.is_torn = is_torn);
    }

    #[cfg(test)]
    pub(crate) fn has_tear(&self, id: proto_common::ids::ChunkId) -> bool {
        self.index.get(&id).is_some_and(|index| self.chunks[*index as usize].is_torn)
    }

    /// Is the operation on a torn chunk? Then its worker gets an error at once.
    pub(super) fn is_torn(&mut self, index: u32, peer: Rank, block: &Block) -> bool {
        let Chunk { is_torn, rounds, .. } = &self.chunks[index as usize];
        let (is_torn, round) = (*is_torn, rounds.version());
        if is_torn {
            self.refuse(peer, &Block { count: Count::Round(round), ..*block }, Status::Torn);
        }
        is_torn
    }
}
