//! The payloads of operations, on their way to rounds. A contribution or initial value is reduced in its turn, held until its turn, read
//! from the worker's memory first, or sent back. A complete round passes replicas, norms, a free buffer and storage.
//! [`Rounds`](crate::engine::rounds::Rounds) decides the order, and `answers` answers operations.

use super::LaneEngine;
use crate::engine::command::{Addend, Command, Commands, Onto, Source, Verdict};
use crate::engine::inputs::BatchContext;
use crate::engine::rounds::{Held, Stage, Turn};
use crate::engine::sabotage::BrokenRule;
use crate::engine::shape::check_shape;
use crate::engine::views::Landed;
use proto_common::batch::{Block, BlockData, OpKind, Status};
use proto_common::ids::Rank;

/// What an operation waits for once it is taken.
pub(super) enum Taken {
    /// This version, or its deadline.
    Waits { version: u64 },
    /// Nothing: it was an announcement, which is answered already.
    Answered,
}

/// An operation on a chunk.
#[derive(Clone, Copy)]
struct Asked<'a> {
    chunk: u32,
    peer: Rank,
    block: &'a Block,
}

/// Where an operation's payload is.
#[derive(Clone, Copy)]
enum Payload {
    /// This thread can read it: in the batch's slot, in the worker's key buffer, or in the worker's own memory.
    Here(Source),
    /// In the worker's memory, from which it must be copied first.
    There { region: u64, offset: u64 },
    /// Part of the contribution of another worker.
    Merged,
}

/// Operations.
impl LaneEngine {
    /// Executes an operation. Returns what it waits for then, or the status with which it is refused.
    pub(super) fn take(
        &mut self,
        index: u32,
        batch: &BatchContext<'_>,
        block: &Block,
        fresh: bool,
        out: &mut Commands,
    ) -> Result<Taken, Status> {
        let peer = batch.peer;
        let asked = Asked { chunk: index, peer, block };
        let in_place = self.peers.reads_in_place(peer);
        let chunk = &self.chunks[index as usize];
        check_shape(&chunk.spec, block, peer, in_place)?;
        let version =
            if matches!(block.op, OpKind::Init | OpKind::Release) { 0 } else { block.count.round() };
        let from = match block.data {
            BlockData::Inline { offset } => {
                let offset = batch.header.payload_offset + offset;
                Payload::Here(Source::Slot { slot: batch.slot.slot, offset })
            }
            BlockData::ByReference { region, offset } if in_place => {
                Payload::Here(Source::Worker { peer, region, offset, bytes: block.bytes })
            }
            BlockData::ByReference { region, offset } => Payload::There { region, offset },
            BlockData::Placed => Payload::Here(chunk.key_buffers.placed(peer)?),
            BlockData::Merged => Payload::Merged,
            BlockData::Announced { keep } if fresh => {
                self.announce(index, peer, block, keep);
                return Ok(Taken::Answered);
            }
            // The announced payload has arrived already.
            BlockData::Announced { .. } => return Ok(Taken::Waits { version }),
        };
        match block.op {
            OpKind::Init => self.init(asked, from, out)?,
            OpKind::Push | OpKind::PushPull if fresh => self.contribute(asked, from, out)?,
            _ => {}
        }
        Ok(Taken::Waits { version })
    }

    /// Sets the initial value, once, from the lowest rank that counts. The other workers send none. If all workers of lower ranks have
    /// left without setting it, the next worker is asked for its own.
    fn init(&mut self, asked: Asked<'_>, from: Payload, out: &mut Commands) -> Result<(), Status> {
        let Asked { chunk, peer, block } = asked;
        let is_setter = self.roster.setter() == peer;
        let rounds = &mut self.chunks[chunk as usize].rounds;
        match (rounds.takes_initial()?, block.bytes > 0, from) {
            (true, false, _) if is_setter => {
                rounds.order.ask_initial(peer, block.operation);
                return Err(Status::Unset);
            }
            (_, false, _) => {}
            // The worker or this server has not received the newest roster yet.
            (true, true, _) if !is_setter => return Err(Status::Retry),
            (false, true, _) => self.pass_over(chunk, peer, from),
            (true, true, Payload::Here(source)) => {
                self.fill(chunk, peer, source);
                self.initialise(chunk, peer, source, out);
            }
            (true, true, Payload::There { region, offset }) => {
                return self.fetch(Turn::Now, asked, (region, offset), out);
            }
            // Only contributions are merged (see `shape`).
            (true, true, Payload::Merged) => return Err(Status::Refused),
        }
        Ok(())
    }

    pub(super) fn initialise(&mut self, index: u32, peer: Rank, from: Source, out: &mut Commands) {
        let chunk = &mut self.chunks[index as usize];
        chunk.rounds.initialise();
        let into = chunk.weights.initialise();
        out.push(Command::Init { chunk: index, from, into });
        self.release(index, peer, from);
        self.copy_initial(index);
    }

    /// Takes a contribution: reduces it, or holds it until its turn. The error says how the worker must send it again: later, or in
    /// a slot.
    fn contribute(&mut self, asked: Asked<'_>, from: Payload, out: &mut Commands) -> Result<(), Status> {
        let Asked { chunk: index, peer, block } = asked;
        let is_broken = self.breaks(BrokenRule::Dedupe);
        let Self { chunks, roster, config, .. } = self;
        let chunk = &mut chunks[index as usize];
        let rounds = &mut chunk.rounds;
        let (round, operation) = (block.count.round(), block.operation);
        let mut turn = rounds.turn((peer, round), block.id.key, roster, config.deterministic)?;
        if turn == Turn::Repeated && is_broken && !rounds.is_complete() {
            turn = Turn::Now;
        }
        let bytes = match from {
            Payload::Merged => chunk.spec.bytes,
            Payload::Here(_) | Payload::There { .. } => chunk.spec.plain_bytes(block.bytes),
        };
        if matches!(from, Payload::Merged) {
            turn = rounds.merged_turn(turn, round)?;
        }
        if matches!(turn, Turn::Now | Turn::Later) {
            rounds.check_length(round, bytes)?;
            rounds.size(index, bytes, out);
        }
        match (turn, from) {
            (Turn::Repeated, _) => {
                self.stats.duplicates += 1;
                self.pass_over(index, peer, from);
            }
            (Turn::Late, _) => {
                self.stats.late += 1;
                rounds.mark_late(peer, round);
                self.pass_over(index, peer, from);
            }
            (_, Payload::Merged) => self.count_merged(index, (peer, bytes), out),
            (Turn::Now, Payload::Here(source)) => {
                self.fill(index, peer, source);
                let held = Held { rank: peer, round, operation, bytes, from: source, arrived: true };
                self.fold(index, held, out);
            }
            (Turn::Later, Payload::Here(source @ Source::Slot { .. })) => {
                let spill = self.placement.take_for(false)?;
                self.hold(asked, Source::Spill(spill), true);
                self.stats.spills += 1;
                out.push(Command::Spill { chunk: index, from: source, to: spill });
            }
            (Turn::Later, Payload::Here(source)) => {
                self.fill(index, peer, source);
                self.hold(asked, source, true);
            }
            (turn, Payload::There { region, offset }) => {
                return self.fetch(turn, asked, (region, offset), out);
            }
        }
        Ok(())
    }

    fn hold(&mut self, Asked { chunk, peer: rank, block }: Asked<'_>, from: Source, arrived: bool) {
        let round = if block.op == OpKind::Init { 0 } else { block.count.round() };
        let chunk = &mut self.chunks[chunk as usize];
        let (operation, bytes) = (block.operation, chunk.spec.plain_bytes(block.bytes));
        chunk.rounds.hold(Held { rank, round, operation, bytes, from, arrived });
    }

    /// Starts reading a payload into a spill block.
    fn fetch(
        &mut self,
        turn: Turn,
        asked: Asked<'_>,
        (region, offset): (u64, u64),
        out: &mut Commands,
    ) -> Result<(), Status> {
        let to = self.placement.take_for(turn == Turn::Now)?;
        self.hold(asked, Source::Spill(to), false);
        self.stats.fetches += 1;
        let Asked { chunk, peer, .. } = asked;
        out.push(Command::Fetch { peer, chunk, region, offset, to });
        Ok(())
    }

    /// Releases a payload that is not needed. If it lies in a key buffer, the worker may write that buffer again.
    fn pass_over(&mut self, index: u32, peer: Rank, from: Payload) {
        if let Payload::Here(source) = from {
            self.fill(index, peer, source);
            self.release(index, peer, source);
        }
    }

    /// Reduces one contribution. The first one of a round may stay in its worker's memory until the next one arrives. The last one is
    /// fused with the update.
    fn fold(&mut self, index: u32, held: Held, out: &mut Commands) {
        let Held { rank, from, bytes, .. } = held;
        let Some((addend, is_last)) = self.chunks[index as usize].rounds.fold(held) else { return };
        if let Onto::First(first) = addend.onto {
            self.count(index, bytes, first);
        }
        self.count(index, bytes, from);
        self.chunks[index as usize].rounds.size(index, bytes, out);
        if is_last {
            self.complete(index, Some(addend), out);
        } else {
            out.push(Command::Reduce { chunk: index, addend });
        }
        self.release(index, rank, from);
    }

    /// Counts a worker whose contribution another worker has added to its own.
    fn count_merged(&mut self, index: u32, (peer, bytes): (Rank, u64), out: &mut Commands) {
        // A first contribution that stayed in its worker's memory is alone in its round, so that it can be sent again.
        self.fold_first(index, |_| true, out);
        self.stats.merged += 1;
        let rounds = &mut self.chunks[index as usize].rounds;
        if rounds.count_merged(peer, bytes) {
            self.complete(index, None, out);
        }
    }

    fn count(&mut self, index: u32, bytes: u64, from: Source) {
        self.stats.contributions += 1;
        self.stats.contribution_bytes += self.chunks[index as usize].spec.payload_bytes(bytes);
        self.stats.in_place += u64::from(matches!(from, Source::Worker { .. }));
    }

    /// If the first contribution of the round is still in its worker's memory, and is this one, it is reduced now.
    pub(super) fn fold_first(&mut self, index: u32, is_it: impl Fn(&Held) -> bool, out: &mut Commands) {
        let chunk = &mut self.chunks[index as usize];
        let Some(first) = chunk.rounds.take_first(is_it) else { return };
        chunk.rounds.size(index, first.bytes, out);
        let addend = Addend { from: first.from, onto: Onto::Nothing };
        out.push(Command::Reduce { chunk: index, addend });
        self.count(index, first.bytes, first.from);
    }

    /// Reduces held contributions whose turn has come, and answers the operations that can be answered.
    pub(super) fn advance(&mut self, index: u32, out: &mut Commands) {
        let mut next = Some(index);
        while let Some(index) = next {
            self.pass_vacant(index);
            while let Some(Held { rank, from, .. }) = self.chunks[index as usize].rounds.take_late() {
                self.stats.late += 1;
                self.release(index, rank, from);
            }
            self.answer(index, out);
            match self.chunks[index as usize].rounds.take_held(self.config.deterministic) {
                Some(held) => self.fold(index, held, out),
                None => next = self.ripe.pop(),
            }
        }
    }

    /// Rounds in which no worker is expected any more end without new weights. If the chunk has replicas, they get the new state.
    fn pass_vacant(&mut self, index: u32) {
        let at = index as usize;
        let key = self.chunks[at].spec.id.key;
        self.chunks[at].rounds.renew(key, &self.roster);
        let mut has_passed = false;
        // A chunk that a checkpoint must copy stays unchanged until it is copied.
        while self.chunks[at].rounds.is_vacant(key, &self.roster)
            && self.chunks[at].is_served()
            && !self.chunks[at].is_due()
        {
            has_passed = true;
            self.chunks[at].publish(None);
            self.note_published(index);
            self.chunks[at].rounds.renew(key, &self.roster);
        }
        if has_passed {
            self.copy_initial(index);
        }
    }
}

/// The end of a round.
impl LaneEngine {
    /// Ends a round that waits for no contribution any more, because the missing workers have left or the initial value has arrived.
    pub(super) fn end_short(&mut self, index: u32, out: &mut Commands) {
        if self.chunks[index as usize].rounds.is_short() {
            self.fold_first(index, |_| true, out);
            self.complete(index, None, out);
        }
    }

    /// A round has all contributions. It is sent to the replicas, or ends at once if there are none.
    pub(super) fn complete(&mut self, index: u32, last: Option<Addend>, out: &mut Commands) {
        if self.chunks[index as usize].rounds.has_no_payload() {
            // All of them leave their contribution to somebody who has sent none: there is no sum, and the accumulator has an old one.
            self.publish(index, None);
            return self.copy_initial(index);
        }
        if !self.chunks[index as usize].has_copies() {
            return self.end_round(index, last, out);
        }
        if let Some(addend) = last {
            out.push(Command::Reduce { chunk: index, addend });
        }
        self.streams.send_update(index, &mut self.chunks[index as usize]);
        if self.is_confirmed(index) {
            self.end_round(index, None, out);
        }
    }

    /// A round has all contributions, and all replicas have confirmed it.
    pub(super) fn end_round(&mut self, index: u32, last: Option<Addend>, out: &mut Commands) {
        let chunk = &self.chunks[index as usize];
        match (chunk.writable(), chunk.group) {
            (_, Some(group)) if !chunk.is_due() => self.prepare(index, group, last, out),
            (Some(into), None) => self.finish(index, last, into, out),
            _ => {
                self.wait_for_buffer(index);
                if let Some(addend) = last {
                    out.push(Command::Reduce { chunk: index, addend });
                }
            }
        }
    }

    /// A chunk of a tensor with norms has all contributions: its step and its share of the norms are computed. The last chunk of the
    /// tensor finishes the round of all its chunks.
    fn prepare(&mut self, index: u32, group: u32, last: Option<Addend>, out: &mut Commands) {
        let chunk = &mut self.chunks[index as usize];
        let (round, old) = (chunk.rounds.round(), chunk.weights.buffer());
        let contributors = chunk.rounds.contributed().len();
        out.push(Command::Prepare { chunk: index, round, last, old, contributors });
        chunk.rounds.wait_for(Stage::Norms);
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

    /// A complete round has to wait for a buffer.
    fn wait_for_buffer(&mut self, index: u32) {
        let chunk = &mut self.chunks[index as usize];
        chunk.rounds.wait_for(Stage::Buffer);
        self.savings.hasten(index, chunk);
        self.relief.wait(index);
    }

    /// The round is complete, and there is a free buffer for its weights.
    fn finish(&mut self, index: u32, last: Option<Addend>, into: u8, out: &mut Commands) {
        let chunk = &mut self.chunks[index as usize];
        chunk.begin_finish(index, out);
        let (round, old) = (chunk.rounds.round(), chunk.weights.buffer());
        let contributors = chunk.rounds.contributed().len();
        out.push(Command::Finish { chunk: index, round, last, old, into, contributors });
        if chunk.spec.is_asked() {
            chunk.rounds.wait_for(Stage::Verdict { into });
        } else {
            self.publish(index, Some(into));
        }
    }

    fn publish(&mut self, index: u32, into: Option<u8>) {
        self.chunks[index as usize].publish(into);
        self.stats.rounds += 1;
        self.note_published(index);
    }

    /// Storage has computed a round whose values may not fit their type, and reports whether they do. If they do not, the round ends
    /// without new weights, and all contributors get an error.
    pub fn finished(&mut self, index: u32, verdict: Verdict, out: &mut Commands) {
        let stage = self.chunks.get(index as usize).map(|chunk| chunk.rounds.stage());
        let Some(Stage::Verdict { into }) = stage else { return };
        let fits = verdict == Verdict::Fits;
        self.stats.bad_rounds += u64::from(!fits);
        self.publish(index, fits.then_some(into));
        self.advance(index, out);
    }

    /// A chunk has one reader less. If a complete round waits for a buffer, and one is free now, the round ends.
    pub(super) fn finish_late(&mut self, index: u32, out: &mut Commands) {
        let chunk = &self.chunks[index as usize];
        let serves = chunk.is_served();
        let Some(into) = chunk.writable() else { return };
        if chunk.rounds.stage() == Stage::Buffer {
            self.finish(index, None, into, out);
            self.advance(index, out);
        }
        if !serves {
            self.copies.say_ready(out);
        }
    }

    /// A checkpoint has copied the chunk, or does not need to any more: its round continues.
    pub(super) fn resume_round(&mut self, index: u32, out: &mut Commands) {
        let chunk = &self.chunks[index as usize];
        match (chunk.rounds.stage(), chunk.group) {
            // It could not be prepared before the copy.
            (Stage::Buffer, Some(group)) => {
                self.prepare(index, group, None, out);
                self.advance(index, out);
            }
            (Stage::Buffer, None) => self.finish_late(index, out),
            // Rounds without expected workers may have waited for the copy.
            _ => self.advance(index, out),
        }
        let chunk = &self.chunks[index as usize];
        // It may have become a replica meanwhile: there is a buffer now for an image that had none.
        if !chunk.is_served() && chunk.writable().is_some() {
            self.copies.say_ready(out);
        }
    }
}

/// Readers of older weights.
impl LaneEngine {
    /// Does a complete round wait only for workers to copy? Then [`LaneEngine::relieve`] must be called every few milliseconds.
    /// Holders of views may keep a round waiting for long, and nothing can be moved for them, so the lane sleeps meanwhile.
    #[must_use]
    pub fn is_stuck(&self) -> bool {
        self.relief.is_stuck(&self.chunks)
    }

    /// Moves weights out of the way of rounds that have waited for long.
    pub fn relieve(&mut self, now_ms: u64, out: &mut Commands) {
        self.relief.relieve(now_ms, &self.chunks, &mut self.placement, out);
    }

    /// The weights of a buffer are now in a spill block, too, and these workers copy them from there. `moved` has one entry per landing.
    pub fn relieved(&mut self, index: u32, buffer: u8, spill: u32, moved: &[Rank], out: &mut Commands) {
        let Some(chunk) = self.chunks.get_mut(index as usize) else { return };
        if !chunk.weights.views.move_away(buffer & 1, spill, moved) {
            self.placement.give(spill);
            return;
        }
        self.stats.relieved += 1;
        self.finish_late(index, out);
    }

    /// A landing at this worker is done (or its channel is gone): the buffer has one reader less.
    pub fn landed(&mut self, peer: Rank, index: u32, buffer: u8, out: &mut Commands) {
        let Some(chunk) = self.chunks.get_mut(index as usize) else { return };
        match chunk.weights.views.landed(peer, buffer & 1) {
            Landed::Moved(free) => free.into_iter().for_each(|spill| self.placement.give(spill)),
            Landed::Read => self.finish_late(index, out),
        }
    }
}
