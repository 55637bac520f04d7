//! What an operation brings: contributions and initial values, folded in their turn, kept for it, read first, or sent back. The part
//! of the lane that makes rounds; who is answered when is in `answers`.

use super::LaneEngine;
use crate::engine::chunk::{ROUNDS_AHEAD_MAX, Stage, Turn, Waiter};
use crate::engine::command::{Addend, Command, Commands, Onto, Source, Verdict};
use crate::engine::held::Held;
use crate::engine::inputs::BatchContext;
use crate::engine::role::Role;
use crate::engine::sabotage::BrokenRule;
use crate::engine::shape::check_shape;
use proto_common::batch::{Block, BlockData, OpKind, Status};
use proto_common::ids::Rank;
use std::cmp::Ordering;

/// What an operation waits for once it is taken.
pub(super) enum Taken {
    /// This version, or its deadline.
    Waits { version: u64 },
    /// Nothing: it was an announcement, and its answer is on its way.
    Answered,
}

/// Where an operation's payload is.
#[derive(Clone, Copy)]
enum Payload {
    /// Here: in the batch's slot, in the worker's key buffer, or where the worker has it and it can be read.
    Here(Source),
    /// In the worker's memory, out of reach.
    There { region: u64, offset: u64 },
}

impl LaneEngine {
    /// Does what an operation asks for at once; what it waits for then, or why not.
    pub(super) fn take(
        &mut self,
        index: u32,
        batch: &BatchContext<'_>,
        block: &Block,
        fresh: bool,
        out: &mut Commands,
    ) -> Result<Taken, Status> {
        let peer = batch.peer;
        let in_place = self.peers.reads_in_place(peer);
        check_shape(&self.chunks[index as usize].spec, block, in_place)?;
        let version = if matches!(block.op, OpKind::Init | OpKind::Release) { 0 } else { block.round };
        let from = match block.data {
            BlockData::Inline { offset } => {
                let offset = batch.header.payload_offset + offset;
                Payload::Here(Source::Slot { slot: batch.slot.slot, offset })
            }
            BlockData::ByReference { region, offset } if in_place => {
                Payload::Here(Source::Worker { peer, region, offset, bytes: block.bytes })
            }
            BlockData::ByReference { region, offset } => Payload::There { region, offset },
            BlockData::Placed => Payload::Here(self.placed(index, peer).ok_or(Status::Refused)?),
            BlockData::Announced { keep } if fresh => {
                self.announce(index, peer, block, keep);
                return Ok(Taken::Answered);
            }
            // What it announces came before.
            BlockData::Announced { .. } => return Ok(Taken::Waits { version }),
        };
        match block.op {
            OpKind::Init => self.init(index, peer, block, from, out)?,
            OpKind::Push | OpKind::PushPull if fresh => self.contribute(index, peer, block, from, out)?,
            _ => {}
        }
        Ok(Taken::Waits { version })
    }

    /// Sets the initial value, once, from the lowest rank that counts. The others send none: if those before it have left without
    /// setting it, a worker is asked for its own.
    fn init(
        &mut self,
        index: u32,
        peer: Rank,
        block: &Block,
        from: Payload,
        out: &mut Commands,
    ) -> Result<(), Status> {
        let chunk = &self.chunks[index as usize];
        let (is_set, is_setter) = (chunk.has_initial(), self.roster.setter() == peer);
        match (is_set, block.bytes > 0) {
            // This one always has it.
            (_, false) if peer == Rank(0) => return Err(Status::Refused),
            (false, false) if is_setter => return Err(Status::Unset),
            (_, false) => return Ok(()),
            (true, true) => {
                self.pass_over(index, peer, from);
                return Ok(());
            }
            // One of the two has not heard yet who has come or left.
            (false, true) if !is_setter => return Err(Status::Retry),
            (false, true) => {}
        }
        // A round that is complete is under way to the buffers, whatever it still waits for.
        if chunk.version > 0 || chunk.is_complete() {
            return Err(Status::Refused);
        }
        match from {
            Payload::Here(source) => {
                self.fill(index, peer, source);
                self.initialise(index, peer, source, out);
                Ok(())
            }
            Payload::There { region, offset } => {
                self.fetch(Turn::Now, index, (peer, block), (region, offset), out)
            }
        }
    }

    pub(super) fn initialise(&mut self, index: u32, peer: Rank, from: Source, out: &mut Commands) {
        let chunk = &mut self.chunks[index as usize];
        chunk.initialised = true;
        // Out of place: the zeros may be on their way to a worker.
        let into = 1 - chunk.buffer;
        chunk.buffer = into;
        chunk.forget_before();
        out.push(Command::Init { chunk: index, from, into });
        self.release(index, peer, from);
        self.copy_initial(index);
    }

    /// Takes a contribution: reduces it, or keeps it for its turn. The error says how it is to be sent again: at
    /// another time, or in a slot.
    fn contribute(
        &mut self,
        index: u32,
        peer: Rank,
        block: &Block,
        from: Payload,
        out: &mut Commands,
    ) -> Result<(), Status> {
        let mut turn = self.turn(index, peer, block.round)?;
        if turn == Turn::Repeated && self.breaks(BrokenRule::Dedupe) {
            let collects = self.chunks[index as usize].stage == Stage::Contributions;
            turn = if collects { Turn::Now } else { Turn::Repeated };
        }
        let chunk = &mut self.chunks[index as usize];
        let bytes = chunk.spec.plain_bytes(block.bytes);
        if matches!(turn, Turn::Now | Turn::Later) {
            if !chunk.agrees(block.round, bytes) {
                return Err(Status::WrongShape);
            }
            chunk.size(index, bytes, out);
        }
        match (turn, from) {
            (Turn::Repeated, _) => {
                self.stats.duplicates += 1;
                self.pass_over(index, peer, from);
            }
            (Turn::Late, _) => {
                self.stats.late += 1;
                chunk.mark_late(peer, block.round);
                self.pass_over(index, peer, from);
            }
            (Turn::Now, Payload::Here(source)) => {
                self.fill(index, peer, source);
                let Block { round, operation, .. } = *block;
                let held = Held { rank: peer, round, operation, bytes, from: source, arrived: true };
                self.reduce(index, held, out);
            }
            (Turn::Later, Payload::Here(source @ Source::Slot { .. })) => {
                let spill = self.placement.take().ok_or(Status::Retry)?;
                self.hold(index, peer, block, Source::Spill(spill), true);
                self.stats.spills += 1;
                out.push(Command::Spill { chunk: index, from: source, to: spill });
            }
            (Turn::Later, Payload::Here(source)) => {
                self.fill(index, peer, source);
                self.hold(index, peer, block, source, true);
            }
            (turn, Payload::There { region, offset }) => {
                return self.fetch(turn, index, (peer, block), (region, offset), out);
            }
        }
        Ok(())
    }

    /// Whether a contribution to this round can be reduced now; an error if it comes too early to be kept.
    fn turn(&self, index: u32, peer: Rank, round: u64) -> Result<Turn, Status> {
        let chunk = &self.chunks[index as usize];
        self.roster.check(peer)?;
        if chunk.is_loose() {
            return chunk.loose_turn(peer, round);
        }
        if self.roster.is_early(peer, chunk.spec.id.key, round) {
            return Ok(Turn::Late);
        }
        Ok(match round.cmp(&chunk.round()) {
            Ordering::Less => chunk.late_turn(),
            Ordering::Equal if chunk.misses(peer) => Turn::Late,
            Ordering::Equal => chunk.turn(peer, self.config.deterministic),
            Ordering::Greater if round > chunk.round() + ROUNDS_AHEAD_MAX => return Err(Status::Retry),
            Ordering::Greater if chunk.holds(peer, round) => Turn::Repeated,
            Ordering::Greater => Turn::Later,
        })
    }

    fn hold(&mut self, index: u32, rank: Rank, block: &Block, from: Source, arrived: bool) {
        let round = if block.op == OpKind::Init { 0 } else { block.round };
        let chunk = &mut self.chunks[index as usize];
        let (operation, bytes) = (block.operation, chunk.spec.plain_bytes(block.bytes));
        chunk.held.insert(Held { rank, round, operation, bytes, from, arrived });
    }

    /// Starts reading a payload into a spill block. Without one it is to come in a slot where others wait for it, as it
    /// needs none there, and else later.
    fn fetch(
        &mut self,
        turn: Turn,
        index: u32,
        (peer, block): (Rank, &Block),
        (region, offset): (u64, u64),
        out: &mut Commands,
    ) -> Result<(), Status> {
        let Some(to) = self.placement.take() else {
            return Err(if turn == Turn::Now { Status::Granted } else { Status::Retry });
        };
        self.hold(index, peer, block, Source::Spill(to), false);
        self.stats.fetches += 1;
        out.push(Command::Fetch { peer, chunk: index, region, offset, to });
        Ok(())
    }

    /// A payload that is not needed: its key buffer, if it lies in one, may be written again.
    fn pass_over(&mut self, index: u32, peer: Rank, from: Payload) {
        if let Payload::Here(source) = from {
            self.fill(index, peer, source);
            self.release(index, peer, source);
        }
    }

    /// Reduces one contribution; the last of a round is fused with the update. A first one that can be read where its
    /// worker has it waits there for the second: the worker keeps it until the round ends.
    fn reduce(&mut self, index: u32, held: Held, out: &mut Commands) {
        let Held { rank, from, bytes, .. } = held;
        let chunk = &mut self.chunks[index as usize];
        chunk.collect(bytes);
        let onto = match chunk.first.take() {
            Some(first) => Onto::First(first.from),
            None if chunk.contributed.len() == 0 => Onto::Nothing,
            None => Onto::Sum,
        };
        chunk.contributed.insert(rank);
        chunk.begin_applying(held);
        let last = chunk.contributed.len() >= chunk.needed;
        if !last && (onto, held.is_worker_s()) == (Onto::Nothing, true) {
            chunk.first = Some(held);
            return;
        }
        if let Onto::First(first) = onto {
            self.count(index, bytes, first);
        }
        self.count(index, bytes, from);
        let chunk = &mut self.chunks[index as usize];
        chunk.size(index, bytes, out);
        let addend = Addend { from, onto };
        if last {
            self.complete(index, Some(addend), out);
        } else {
            out.push(Command::Reduce { chunk: index, addend });
        }
        self.release(index, rank, from);
    }

    /// All that a round needs is here: it ends.
    pub(super) fn complete(&mut self, index: u32, last: Option<Addend>, out: &mut Commands) {
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

    /// All that a round needs is here, and wherever there are copies.
    pub(super) fn end_round(&mut self, index: u32, last: Option<Addend>, out: &mut Commands) {
        let chunk = &mut self.chunks[index as usize];
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

    pub(super) fn count(&mut self, index: u32, bytes: u64, from: Source) {
        self.stats.contributions += 1;
        self.stats.contribution_bytes += self.chunks[index as usize].spec.payload_bytes(bytes);
        self.stats.in_place += u64::from(matches!(from, Source::Worker { .. }));
    }

    /// The first contribution is not left where it is any longer: its worker is about to be told that the operation has
    /// ended.
    pub(super) fn fold_first(&mut self, index: u32, waiter: &Waiter, out: &mut Commands) {
        let is_it = |first: &mut Held| (first.rank, first.operation) == (waiter.rank, waiter.operation);
        let chunk = &mut self.chunks[index as usize];
        let Some(first) = chunk.first.take_if(is_it) else { return };
        chunk.size(index, first.bytes, out);
        let addend = Addend { from: first.from, onto: Onto::Nothing };
        out.push(Command::Reduce { chunk: index, addend });
        self.count(index, first.bytes, first.from);
    }

    /// The round is complete and its weights have a place.
    pub(super) fn finish(&mut self, index: u32, last: Option<Addend>, into: u8, out: &mut Commands) {
        let chunk = &mut self.chunks[index as usize];
        let (old, contributors) = (chunk.buffer, chunk.contributed.len());
        chunk.size(index, chunk.round_bytes(), out);
        let round = chunk.round();
        chunk.tell_arrivals(index, out);
        out.push(Command::Finish { chunk: index, round, last, old, into, contributors });
        if chunk.spec.is_asked() {
            chunk.stage = Stage::Verdict { into };
        } else {
            chunk.publish(Some(into));
            self.stats.rounds += 1;
            self.note_published(index);
        }
    }

    /// A round that is complete and waited for readers: ends it where its weights have a place now.
    pub(super) fn finish_late(&mut self, chunk: u32, out: &mut Commands) {
        let state = &self.chunks[chunk as usize];
        let serves = state.role.is_some_and(Role::serves);
        if let Some(into) = state.writable() {
            if state.stage == Stage::Buffer {
                self.finish(chunk, None, into, out);
                self.settle(chunk, out);
            }
            if !serves {
                self.say_ready(out);
            }
        }
    }

    /// What became of a round that storage has finished: the answer to `Command::Finish`, which the engine asks for where
    /// values may not fit. Such a round ends without new weights, and all who contributed to it are told.
    pub fn finished(&mut self, index: u32, verdict: Verdict, out: &mut Commands) {
        let Some(chunk) = self.chunks.get_mut(index as usize) else { return };
        let Stage::Verdict { into } = chunk.stage else { return };
        let fits = verdict == Verdict::Fits;
        chunk.publish(fits.then_some(into));
        self.stats.rounds += 1;
        self.stats.bad_rounds += u64::from(!fits);
        self.note_published(index);
        self.settle(index, out);
    }

    /// Reduces held contributions whose turn has come, and answers whoever can be answered.
    pub(super) fn settle(&mut self, index: u32, out: &mut Commands) {
        let mut next = Some(index);
        while let Some(index) = next {
            self.look_at_expected(index);
            self.drop_late(index);
            self.answer(index, out);
            match self.chunks[index as usize].take_held(self.config.deterministic) {
                Some(held) => self.reduce(index, held, out),
                None => next = self.ripe.pop(),
            }
        }
    }

    /// Contributions that were held for rounds which have ended without them are dropped.
    pub(super) fn drop_late(&mut self, index: u32) {
        let chunk = &mut self.chunks[index as usize];
        if !chunk.drops_late() {
            return;
        }
        let round = chunk.round();
        while let Some(Held { rank, round, from, .. }) = self.chunks[index as usize].held.take_before(round) {
            self.chunks[index as usize].mark_late(rank, round);
            self.stats.late += 1;
            self.release(index, rank, from);
        }
    }
}
