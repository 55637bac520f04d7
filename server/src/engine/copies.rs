//! Copies of other servers' chunks: each record of a stream is judged (epoch, role, round), confirmed, and applied by the
//! same path as a last contribution. What is confirmed will be applied, in order, whatever happens to the sender. Nothing
//! here waits: a record that cannot be taken now is answered so.

use super::chunk::{Chunk, Lineage, Stage};
use super::command::{Addend, Command, Commands, Onto, Source};
use super::credits::{Misuse, misuse};
use super::held::Held;
use super::image::{COUNT_END, ChunkState};
use super::lane::LaneEngine;
use super::role::Role;
use proto_common::batch::{
    BatchHeader, BatchKind, Block, BlockData, Judgement, Landing, Notice, OpKind, RECORD_INITIALISED,
    RECORD_LEFT, SlotGrant,
};
use proto_common::element::{Arithmetic, Dtype};
use proto_common::ids::{Epoch, Incarnation, Operation, Rank};

/// A record with where it lies and what its header says.
#[derive(Clone, Copy, Debug)]
pub struct RecordContext<'a> {
    /// The server whose stream it came over.
    pub from: Rank,
    /// The slot it lies in.
    pub slot: SlotGrant,
    /// Its header.
    pub header: &'a BatchHeader,
    /// Its blocks.
    pub blocks: &'a [Block],
    /// Words of the set of contributors.
    pub contributors: &'a [u64],
}

/// The stream of one server, from the side of the copies.
#[derive(Debug)]
pub(super) struct CopyOf {
    from: Rank,
    incarnation: Incarnation,
    /// The generation of each slot's grant, and whether a record lies in it that was read and whose slot is not given back.
    slots: Vec<(u8, bool)>,
    /// It was told to ask later, and is to hear when.
    owes_ready: bool,
    /// The chunk whose image is coming, its version, and how much of it is there.
    image: Option<(u32, u64, u64)>,
}

type Judged = Result<Option<Judgement>, &'static str>;

impl LaneEngine {
    /// A server's stream to us is up. Returns the slots that it may write.
    pub fn copy_up(&mut self, from: Rank, incarnation: Incarnation, slots: u32) -> Vec<SlotGrant> {
        self.copy_down(from);
        let (owes_ready, image) = (false, None);
        let slots = vec![(1, false); slots as usize];
        let grant = |(slot, (generation, _)): (u32, &(u8, bool))| SlotGrant { slot, generation: *generation };
        let grants = (0..).zip(&slots).map(grant);
        let grants = grants.collect();
        self.copying.copies.push(CopyOf { from, incarnation, slots, owes_ready, image });
        grants
    }

    /// A server's stream to us is closed, and fenced. Copies stay as they are: what was confirmed is applied.
    pub fn copy_down(&mut self, from: Rank) {
        self.copying.copies.retain(|copy| copy.from != from);
        let of_it = |chunk: &&mut Chunk| chunk.role == Some(Role::Copy { of: from });
        self.chunks.iter_mut().filter(of_it).for_each(|chunk| chunk.filled = 0);
    }

    /// The life of a server that has a stream to us; zero without one.
    #[must_use]
    pub fn copy_incarnation(&self, from: Rank) -> Incarnation {
        let copy = self.copying.copies.iter().find(|copy| copy.from == from);
        copy.map_or(Incarnation::default(), |copy| copy.incarnation)
    }

    /// The slots that a server may write, as they are granted now; none without a stream of it.
    #[must_use]
    pub fn granted_slots(&self, from: Rank) -> Vec<SlotGrant> {
        let copy = self.copying.copies.iter().find(|copy| copy.from == from);
        let slots = (0..).zip(copy.into_iter().flat_map(|copy| &copy.slots));
        slots.map(|(slot, (generation, _))| SlotGrant { slot, generation: *generation }).collect()
    }

    /// A server says that a record lies in a slot: may it be read? Once: a notice that comes again says nothing.
    pub fn record_notified(&mut self, from: Rank, slot: SlotGrant, out: &mut Commands) -> bool {
        let Some(copy) = self.copying.copies.iter_mut().find(|copy| copy.from == from) else { return false };
        match copy.slots.get_mut(slot.slot as usize) {
            Some((generation, is_read)) if *generation == slot.generation => {
                let is_first = !std::mem::replace(is_read, true);
                self.stats.duplicates += u64::from(!is_first);
                is_first
            }
            Some((generation, _)) if misuse(*generation, slot.generation) == Misuse::Stale => {
                self.stats.duplicates += 1;
                false
            }
            _ => {
                end(from, "it wrote to a slot that it was not granted", out);
                false
            }
        }
    }

    /// A record lies in a slot.
    pub fn record(&mut self, record: &RecordContext<'_>, out: &mut Commands) {
        let from = record.from;
        let judged = self.admit_record(record).and_then(|block| match block.op {
            OpKind::CopyCheck => Ok(Some(self.checked(from, block))),
            OpKind::CopyUpdate => self.update(record, block, out),
            OpKind::CopyState => self.image_part(record, block, out),
            OpKind::CopyRules => self.rules(record, block, out),
            _ => Err("its record is invalid"),
        });
        match judged {
            // The update's part says it by itself, before it is applied; an image when it is loaded.
            Ok(None) => {}
            Ok(Some(judgement)) => {
                self.judge(from, record.slot, judgement, out);
                self.give_back_slot(from, record.slot, out);
            }
            Err(reason) => end(from, reason, out),
        }
    }

    fn admit_record<'a>(&self, record: &RecordContext<'a>) -> Result<&'a Block, &'static str> {
        let RecordContext { from, header, blocks, .. } = *record;
        if header.kind != BatchKind::Record || header.job != self.config.job || header.sender != from {
            return Err("its record carries the wrong kind, job or rank");
        }
        let lives = (header.sender_incarnation, header.receiver_incarnation);
        if lives != (self.copy_incarnation(from), self.config.incarnation) {
            return Err("its record carries the wrong incarnation");
        }
        if header.lane != self.config.lane {
            return Err("its record carries the wrong lane");
        }
        // Its epoch is not judged: it may hear of a new scheduler later than we do. That it is deposed our own role says.
        blocks.first().filter(|_| blocks.len() <= 2).ok_or("its record does not have one or two blocks")
    }

    /// The copy that a record is about.
    fn copy_of(&mut self, from: Rank, block: &Block) -> Option<(u32, &mut Chunk)> {
        let index = self.index.get(&block.id).copied()?;
        let chunk = self.chunks.get_mut(index as usize)?;
        (chunk.role == Some(Role::Copy { of: from })).then_some((index, chunk))
    }

    fn judge(&mut self, from: Rank, slot: SlotGrant, judgement: Judgement, out: &mut Commands) {
        if judgement == Judgement::Later
            && let Some(copy) = self.copying.copies.iter_mut().find(|copy| copy.from == from)
        {
            copy.owes_ready = true;
        }
        out.push(Command::TellPrimary { from, notice: Notice::Judged(slot, judgement) });
    }

    /// Only last parts are judged.
    fn judge_last(
        &mut self,
        record: &RecordContext<'_>,
        is_last: bool,
        judgement: Judgement,
        out: &mut Commands,
    ) -> Judged {
        if is_last {
            return Ok(Some(judgement));
        }
        self.give_back_slot(record.from, record.slot, out);
        Ok(None)
    }

    fn give_back_slot(&mut self, from: Rank, slot: SlotGrant, out: &mut Commands) {
        let Some(copy) = self.copying.copies.iter_mut().find(|copy| copy.from == from) else { return };
        let (generation, is_read) = &mut copy.slots[slot.slot as usize];
        (*generation, *is_read) = (generation.wrapping_add(1), false);
        let notice = Notice::Returned(SlotGrant { slot: slot.slot, generation: *generation });
        out.push(Command::TellPrimary { from, notice });
    }

    /// What can be taken may be more by now: whoever was told to ask later may ask.
    pub(super) fn say_ready(&mut self, out: &mut Commands) {
        for copy in self.copying.copies.iter_mut().filter(|copy| copy.owes_ready) {
            copy.owes_ready = false;
            out.push(Command::TellPrimary { from: copy.from, notice: Notice::Ready });
        }
    }

    fn checked(&mut self, from: Rank, block: &Block) -> Judgement {
        let life = self.copy_incarnation(from);
        // A copy from before that decision is given up when we hear of what came in between.
        let since = Epoch::from_number(block.operation.0);
        if since > self.epoch {
            return Judgement::Later;
        }
        let Some((_, chunk)) = self.copy_of(from, block) else { return Judgement::Later };
        chunk.copy_since = since;
        let (has, asked) = (chunk.promised(), block.round);
        let initialised = block.token & RECORD_INITIALISED != 0;
        let is_its = match chunk.lineage {
            Lineage::Zeros => asked == 0 && has == 0 && !initialised && !chunk.initialised,
            lineage @ Lineage::Of(..) => lineage == Lineage::Of(from, life, since),
            Lineage::Own => false,
        };
        if !is_its {
            return Judgement::Wanting;
        }
        chunk.lineage = Lineage::Of(from, life, since);
        match has.checked_sub(asked) {
            Some(0) if chunk.initialised == initialised => Judgement::Confirmed,
            Some(1) => Judgement::Ahead,
            _ => Judgement::Wanting,
        }
    }

    fn update(&mut self, record: &RecordContext<'_>, block: &Block, out: &mut Commands) -> Judged {
        let from = record.from;
        let (place, landing) = part_of(record, block)?;
        let is_last = landing.offset + block.bytes == landing.bytes;
        let life = self.copy_incarnation(from);
        let Some((index, chunk)) = self.copy_of(from, block) else {
            return self.judge_last(record, is_last, Judgement::Later, out);
        };
        if chunk.promised() + 1 != block.round || chunk.lineage != Lineage::Of(from, life, chunk.copy_since) {
            return self.judge_last(record, is_last, Judgement::Wanting, out);
        }
        if chunk.stage != Stage::Contributions {
            return self.judge_last(record, is_last, Judgement::Later, out);
        }
        let bytes = landing.region;
        let right = bytes <= chunk.spec.bytes
            && (chunk.spec.dynamic || bytes == chunk.spec.bytes)
            && bytes.is_multiple_of(chunk.spec.dtype.bytes() as u64)
            && landing.bytes == chunk.spec.sum_bytes(bytes)
            && block.dtype == chunk.spec.dtype;
        if !right {
            return Err("its update has another shape than the chunk");
        }
        if landing.offset != 0 && landing.offset != chunk.filled {
            return self.judge_last(record, is_last, Judgement::Wanting, out);
        }
        chunk.filled = landing.offset + block.bytes;
        let left = block.token & RECORD_LEFT != 0;
        // A sum that is whole, of numbers as storage adds them up, is applied from where it lies.
        let is_whole = landing.offset == 0 && is_last && is_summed_as_is(chunk.spec.dtype);
        let take =
            Command::TakeSum { chunk: index, from: place, at: landing.offset, bytes: block.bytes, left };
        if !is_last {
            out.push(take);
            self.give_back_slot(from, record.slot, out);
            return Ok(None);
        }
        chunk.filled = 0;
        // What follows it is counted on from there.
        if chunk.is_loose() && block.operation.0 >= COUNT_END {
            return Err("its update counts more contributions than possible");
        }
        if !chunk.contributed.set_words(record.contributors) {
            return Err("its update has no contributors, or unknown ones");
        }
        if chunk.is_loose() {
            let rank = chunk.contributed.first().unwrap_or_default();
            // Its operation is before all that come here, should this server take over.
            let (round, operation) = (block.operation.0, Operation(0));
            chunk.begin_applying(Held { rank, round, operation, bytes, from: place, arrived: true });
        }
        chunk.collect(bytes);
        // Before it is applied: it will be.
        self.judge(from, record.slot, Judgement::Confirmed, out);
        self.chunks[index as usize].size(index, bytes, out);
        let last = is_whole.then_some(Addend { from: place, onto: Onto::Nothing });
        if !is_whole {
            out.push(take);
        }
        // What is not applied now (somebody reads both buffers) is taken out of the slot.
        self.end_round(index, last, out);
        self.give_back_slot(from, record.slot, out);
        self.settle(index, out);
        Ok(None)
    }

    fn image_part(&mut self, record: &RecordContext<'_>, block: &Block, out: &mut Commands) -> Judged {
        let from = record.from;
        let (part, Landing { offset: at, bytes: total, .. }) = part_of(record, block)?;
        let is_last = at + block.bytes == total;
        let Some((index, chunk)) = self.copy_of(from, block) else {
            return self.judge_last(record, is_last, Judgement::Later, out);
        };
        let (room, other) = (chunk.writable(), chunk.is_read(1));
        let keeps_other = chunk.is_read(0) || other;
        let Some(copy) = self.copying.copies.iter_mut().find(|copy| copy.from == from) else {
            return Ok(None);
        };
        let expected = if at == 0 { Some((index, block.round, 0)) } else { copy.image };
        if expected != Some((index, block.round, at)) {
            return self.judge_last(record, is_last, Judgement::Wanting, out);
        }
        copy.image = Some((index, block.round, at + block.bytes));
        out.push(Command::TakePart { from, part, at, bytes: block.bytes, total, chunk: index });
        if !is_last {
            self.give_back_slot(from, record.slot, out);
            return Ok(None);
        }
        copy.image = None;
        let Some(into) = room else { return Ok(Some(Judgement::Later)) };
        out.push(Command::Load { from, chunk: index, into, keeps_other, slot: record.slot });
        Ok(None)
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
        let life = self.copy_incarnation(from);
        let chunk = &mut self.chunks[index as usize];
        chunk.lineage = Lineage::Of(from, life, chunk.copy_since);
        self.drop_halves(index);
        self.judge(from, slot, Judgement::Confirmed, out);
        self.give_back_slot(from, slot, out);
    }

    /// Halves of rounds that chunks of the same tensor have from another primary, or from before a round that this one was
    /// loaded with, are never ended: those chunks come whole, too.
    fn drop_halves(&mut self, index: u32) {
        let Some(group) = self.chunks[index as usize].group else { return };
        let (lineage, round) = (self.chunks[index as usize].lineage, self.chunks[index as usize].round());
        for other in self.groups[group as usize].chunks.clone() {
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

    fn rules(&mut self, record: &RecordContext<'_>, block: &Block, out: &mut Commands) -> Judged {
        let from = record.from;
        let BlockData::Inline { offset } = block.data else { return Err("its record is not in its batch") };
        let rules = record_source(record, offset);
        let Some((chunk, copy)) = self.copy_of(from, block) else { return Ok(Some(Judgement::Later)) };
        let after = copy.promised();
        out.push(Command::TakeRules { from, chunk, rules, bytes: block.bytes, after });
        Ok(Some(Judgement::Confirmed))
    }
}

impl Chunk {
    /// The version that a copy has, or will have of what it has confirmed.
    pub(super) fn promised(&self) -> u64 {
        self.version + u64::from(self.is_complete())
    }
}

/// Are numbers of this type summed in their own type? Integers are not, and say more of their sum than its numbers.
fn is_summed_as_is(dtype: Dtype) -> bool {
    matches!(dtype.arithmetic(), Arithmetic::Float)
}

fn record_source(record: &RecordContext<'_>, offset: u64) -> Source {
    let offset = record.header.payload_offset.saturating_add(offset);
    Source::Record { from: record.from, slot: record.slot.slot, offset }
}

/// Where a record's part lies, and what it is a part of.
fn part_of(record: &RecordContext<'_>, block: &Block) -> Result<(Source, Landing), &'static str> {
    let (BlockData::Inline { offset }, Some(landing)) = (block.data, block.landing) else {
        return Err("its record does not name what it is a part of");
    };
    let end = landing.offset.checked_add(block.bytes);
    if end.is_none_or(|end| end > landing.bytes) {
        return Err("its record reaches beyond what it is a part of");
    }
    Ok((record_source(record, offset), landing))
}

fn end(peer: Rank, reason: &str, out: &mut Commands) {
    out.push(Command::EndStream { peer, ours: false, reason: reason.to_owned() });
}
