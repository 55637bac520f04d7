//! Streams to servers that have copies, as the runtime brings their news. What goes out is decided in
//! [`Streams`](crate::engine::streams::Streams); rounds that waited for it end here.

use super::LaneEngine;
use crate::engine::chunk::Stage;
use crate::engine::command::{Command, Commands};
use crate::engine::keep::At;
use crate::engine::role::Role;
use crate::engine::sabotage::BrokenRule;
use crate::engine::streams::whole;
use proto_common::batch::{Notice, SlotGrant};
use proto_common::ids::{Incarnation, Rank};

impl LaneEngine {
    /// The stream to a server's life is up: these slots of it are ours to write, with so many bytes of payload each. What
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

    /// The stream to a server is closed, and fenced. Rounds wait for those copies that there were.
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

    /// The life of a server that we have a stream to; zero without one.
    #[must_use]
    pub fn stream_incarnation(&self, to: Rank) -> Incarnation {
        self.streams.incarnation(to).unwrap_or_default()
    }

    /// Chunks with copies that are wanted, and those of them that are kept up; records that wait to be written.
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

    /// The initial value is there: copies get it as a state, and nobody is told before.
    pub(super) fn copy_initial(&mut self, index: u32) {
        self.streams.copy_initial(index, &mut self.chunks[index as usize]);
    }

    /// A chunk's rule has changed: copies hear of it, in its place.
    pub fn rule_changed(&mut self, index: u32) {
        if let Some(chunk) = self.chunks.get_mut(index as usize) {
            self.streams.rule_changed(index, chunk);
        }
    }

    /// What a server says about a record. A wrong word ends its channel.
    pub fn stream_notice(&mut self, to: Rank, notice: Notice, out: &mut Commands) {
        match self.streams.notice(to, notice, &mut self.chunks, &self.groups) {
            Ok(None) => {}
            Ok(Some(index)) => self.go_on(index, out),
            Err(reason) => out.push(Command::EndStream { peer: to, ours: true, reason: reason.to_owned() }),
        }
    }

    /// Ends a round that copies have confirmed by now, and answers who waited for them.
    pub(super) fn go_on(&mut self, index: u32, out: &mut Commands) {
        let chunk = &mut self.chunks[index as usize];
        chunk.init_pending &= !chunk.has_initial_everywhere();
        let is_complete = chunk.stage == Stage::Copies;
        let is_sent = || self.streams.queued() == 0;
        let skips = is_complete && self.breaks(BrokenRule::AckAfterReplicate) && is_sent();
        if self.is_confirmed(index) || skips {
            self.end_round(index, None, out);
        }
        self.settle(index, out);
    }

    /// Is the complete round of a chunk confirmed wherever it has to be?
    pub(super) fn is_confirmed(&mut self, index: u32) -> bool {
        whole::is_confirmed(index, &mut self.chunks, &self.groups)
    }

    /// Writes what there are slots for. States wait until nothing else does.
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

    /// The image that was asked for has so many bytes.
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
