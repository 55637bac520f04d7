//! Copies of other servers' chunks: each record of a stream is judged (epoch, role, round) and confirmed. What is confirmed will
//! be applied, in order, whatever happens to the sender. Nothing here waits: a record that cannot be taken now is answered so.
//! Owns others' streams to this server and the slots that they may write. It must not end rounds: it returns the round that is
//! complete, which ends by the same path as one with a last contribution.
//!
//! ```text
//!  a slot: granted ──notified──▶ read ──give_back──▶ granted, with the next generation
//!
//!  a record ──admitted?──▶ its chunk is a copy of the sender's? ──▶ its round is the next one? ──▶ Confirmed
//!              │ no                       │ no                          │ no
//!              ▼                          ▼                             ▼
//!          EndStream                 Later (Ready follows)      Wanting: it comes whole
//! ```
//!
//! If an update were confirmed before it is certain to be applied, its sender would publish a round that nobody else has when
//! it crashes.

use super::chunk::{Chunk, Lineage, Stage};
use super::command::{Addend, Command, Commands, Onto, Source};
use super::credits::{Misuse, misuse};
use super::held::Held;
use super::image::COUNT_END;
use super::inputs::{EngineConfig, RecordContext};
use super::role::Role;
use proto_common::batch::{
    BatchKind, Block, BlockData, Judgement, Landing, Notice, OpKind, RECORD_INITIALISED, RECORD_LEFT,
    SlotGrant,
};
use proto_common::element::{Arithmetic, Dtype};
use proto_common::ids::{ChunkId, Epoch, Incarnation, Operation, Rank};
use std::collections::HashMap;

/// The stream of one server, from the side of the copies.
#[derive(Debug)]
struct CopyOf {
    from: Rank,
    incarnation: Incarnation,
    /// The generation of each slot's grant, and whether a record lies in it that was read and whose slot is not given back.
    slots: Vec<(u8, bool)>,
    /// It was told to ask later, and is to hear when.
    owes_ready: bool,
    /// The chunk whose image is coming, its version, and how much of it is there.
    image: Option<(u32, u64, u64)>,
}

/// What the lane lends for one record.
#[derive(Debug)]
pub(super) struct Here<'a> {
    pub(super) config: &'a EngineConfig,
    pub(super) epoch: Epoch,
    pub(super) index: &'a HashMap<ChunkId, u32>,
    pub(super) chunks: &'a mut [Chunk],
}

impl Here<'_> {
    /// The copy that a record is about.
    fn copy_of(&mut self, from: Rank, block: &Block) -> Option<(u32, &mut Chunk)> {
        let index = self.index.get(&block.id).copied()?;
        let chunk = self.chunks.get_mut(index as usize)?;
        (chunk.role == Some(Role::Copy { of: from })).then_some((index, chunk))
    }
}

/// A round of a copy is complete: the lane ends it, and then the record's slot is given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Complete {
    pub(super) chunk: u32,
    /// A sum that is applied from where it lies.
    pub(super) last: Option<Addend>,
}

/// What becomes of a record.
enum Judged {
    As(Judgement),
    /// It was confirmed already: it is the last part of an update.
    Complete(Complete),
    /// More is to come: another part, or what the runtime says of an image.
    Nothing,
}

type Answer = Result<Judged, &'static str>;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Copies {
    all: Vec<CopyOf>,
}

impl Copies {
    fn copy(&mut self, from: Rank) -> Option<&mut CopyOf> {
        self.all.iter_mut().find(|copy| copy.from == from)
    }

    fn known(&self, from: Rank) -> Option<&CopyOf> {
        self.all.iter().find(|copy| copy.from == from)
    }

    /// A server's stream to us is up. Returns the slots that it may write.
    pub(super) fn up(&mut self, from: Rank, incarnation: Incarnation, slots: u32) -> Vec<SlotGrant> {
        let (owes_ready, image) = (false, None);
        let slots = vec![(1, false); slots as usize];
        self.all.push(CopyOf { from, incarnation, slots, owes_ready, image });
        self.granted(from)
    }

    /// A server's stream to us is closed.
    pub(super) fn down(&mut self, from: Rank) {
        self.all.retain(|copy| copy.from != from);
    }

    /// The life of a server that has a stream to us; zero without one.
    pub(super) fn incarnation(&self, from: Rank) -> Incarnation {
        self.known(from).map_or(Incarnation::default(), |copy| copy.incarnation)
    }

    /// The slots that a server may write, as they are granted now; none without a stream of it.
    pub(super) fn granted(&self, from: Rank) -> Vec<SlotGrant> {
        let slots = (0..).zip(self.known(from).into_iter().flat_map(|copy| &copy.slots));
        slots.map(|(slot, (generation, _))| SlotGrant { slot, generation: *generation }).collect()
    }

    /// A server says that a record lies in a slot: may it be read? Once: a notice that comes again says nothing, and is counted
    /// as one more of `duplicates`.
    pub(super) fn notified(
        &mut self,
        from: Rank,
        slot: SlotGrant,
        duplicates: &mut u64,
        out: &mut Commands,
    ) -> bool {
        let Some(copy) = self.copy(from) else { return false };
        match copy.slots.get_mut(slot.slot as usize) {
            Some((generation, is_read)) if *generation == slot.generation => {
                let is_first = !std::mem::replace(is_read, true);
                *duplicates += u64::from(!is_first);
                is_first
            }
            Some((generation, _)) if misuse(*generation, slot.generation) == Misuse::Stale => {
                *duplicates += 1;
                false
            }
            _ => {
                end(from, "it wrote to a slot that it was not granted", out);
                false
            }
        }
    }

    /// A record lies in a slot. Returns the round that is complete with it.
    pub(super) fn record(
        &mut self,
        record: &RecordContext<'_>,
        here: &mut Here<'_>,
        out: &mut Commands,
    ) -> Option<Complete> {
        let from = record.from;
        let judged = self.admit(record, here).and_then(|block| match block.op {
            OpKind::CopyCheck => Ok(Judged::As(self.checked(from, block, here))),
            OpKind::CopyUpdate => self.update(record, block, here, out),
            OpKind::CopyState => self.image_part(record, block, here, out),
            OpKind::CopyRules => rules(record, block, here, out),
            _ => Err("its record is invalid"),
        });
        match judged {
            // An image says it when it is loaded.
            Ok(Judged::Nothing) => {}
            Ok(Judged::Complete(complete)) => return Some(complete),
            Ok(Judged::As(judgement)) => {
                self.judge(from, record.slot, judgement, out);
                self.give_back(from, record.slot, out);
            }
            Err(reason) => end(from, reason, out),
        }
        None
    }

    fn admit<'a>(&self, record: &RecordContext<'a>, here: &Here<'_>) -> Result<&'a Block, &'static str> {
        let RecordContext { from, header, blocks, .. } = *record;
        if header.kind != BatchKind::Record || header.job != here.config.job || header.sender != from {
            return Err("its record carries the wrong kind, job or rank");
        }
        let lives = (header.sender_incarnation, header.receiver_incarnation);
        if lives != (self.incarnation(from), here.config.incarnation) {
            return Err("its record carries the wrong incarnation");
        }
        if header.lane != here.config.lane {
            return Err("its record carries the wrong lane");
        }
        // Its epoch is not judged: it may hear of a new scheduler later than we do. That it is deposed our own role says.
        blocks.first().filter(|_| blocks.len() <= 2).ok_or("its record does not have one or two blocks")
    }

    /// Says what becomes of a record.
    pub(super) fn judge(&mut self, from: Rank, slot: SlotGrant, judgement: Judgement, out: &mut Commands) {
        if judgement == Judgement::Later
            && let Some(copy) = self.copy(from)
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
    ) -> Answer {
        if is_last {
            return Ok(Judged::As(judgement));
        }
        self.give_back(record.from, record.slot, out);
        Ok(Judged::Nothing)
    }

    /// A record was read: its slot may be written again.
    pub(super) fn give_back(&mut self, from: Rank, slot: SlotGrant, out: &mut Commands) {
        let Some(copy) = self.copy(from) else { return };
        let (generation, is_read) = &mut copy.slots[slot.slot as usize];
        (*generation, *is_read) = (generation.wrapping_add(1), false);
        let notice = Notice::Returned(SlotGrant { slot: slot.slot, generation: *generation });
        out.push(Command::TellPrimary { from, notice });
    }

    /// What can be taken may be more by now: whoever was told to ask later may ask.
    pub(super) fn say_ready(&mut self, out: &mut Commands) {
        for copy in self.all.iter_mut().filter(|copy| copy.owes_ready) {
            copy.owes_ready = false;
            out.push(Command::TellPrimary { from: copy.from, notice: Notice::Ready });
        }
    }

    fn checked(&self, from: Rank, block: &Block, here: &mut Here<'_>) -> Judgement {
        let life = self.incarnation(from);
        // A copy from before that decision is given up when we hear of what came in between.
        let since = Epoch::from_number(block.operation.0);
        if since > here.epoch {
            return Judgement::Later;
        }
        let Some((_, chunk)) = here.copy_of(from, block) else { return Judgement::Later };
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

    fn update(
        &mut self,
        record: &RecordContext<'_>,
        block: &Block,
        here: &mut Here<'_>,
        out: &mut Commands,
    ) -> Answer {
        let from = record.from;
        let (place, landing) = part_of(record, block)?;
        let is_last = landing.offset + block.bytes == landing.bytes;
        let life = self.incarnation(from);
        let Some((index, chunk)) = here.copy_of(from, block) else {
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
            self.give_back(from, record.slot, out);
            return Ok(Judged::Nothing);
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
        // Posted before the update is applied, because it will be. Over tcp it is sent at the end of this turn.
        self.judge(from, record.slot, Judgement::Confirmed, out);
        here.chunks[index as usize].size(index, bytes, out);
        let last = is_whole.then_some(Addend { from: place, onto: Onto::Nothing });
        if !is_whole {
            out.push(take);
        }
        Ok(Judged::Complete(Complete { chunk: index, last }))
    }

    fn image_part(
        &mut self,
        record: &RecordContext<'_>,
        block: &Block,
        here: &mut Here<'_>,
        out: &mut Commands,
    ) -> Answer {
        let from = record.from;
        let (part, Landing { offset: at, bytes: total, .. }) = part_of(record, block)?;
        let is_last = at + block.bytes == total;
        let Some((index, chunk)) = here.copy_of(from, block) else {
            return self.judge_last(record, is_last, Judgement::Later, out);
        };
        let (room, other) = (chunk.writable(), chunk.is_read(1));
        let keeps_other = chunk.is_read(0) || other;
        let Some(copy) = self.copy(from) else {
            return Ok(Judged::Nothing);
        };
        let expected = if at == 0 { Some((index, block.round, 0)) } else { copy.image };
        if expected != Some((index, block.round, at)) {
            return self.judge_last(record, is_last, Judgement::Wanting, out);
        }
        copy.image = Some((index, block.round, at + block.bytes));
        out.push(Command::TakePart { from, part, at, bytes: block.bytes, total, chunk: index });
        if !is_last {
            self.give_back(from, record.slot, out);
            return Ok(Judged::Nothing);
        }
        copy.image = None;
        let Some(into) = room else { return Ok(Judged::As(Judgement::Later)) };
        out.push(Command::Load { from, chunk: index, into, keeps_other, slot: record.slot });
        Ok(Judged::Nothing)
    }
}

fn rules(record: &RecordContext<'_>, block: &Block, here: &mut Here<'_>, out: &mut Commands) -> Answer {
    let from = record.from;
    let BlockData::Inline { offset } = block.data else { return Err("its record is not in its batch") };
    let rules = record_source(record, offset);
    let Some((chunk, copy)) = here.copy_of(from, block) else { return Ok(Judged::As(Judgement::Later)) };
    let after = copy.promised();
    out.push(Command::TakeRules { from, chunk, rules, bytes: block.bytes, after });
    Ok(Judged::As(Judgement::Confirmed))
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

/// The sender broke the protocol.
pub(super) fn end(peer: Rank, reason: &str, out: &mut Commands) {
    out.push(Command::EndStream { peer, ours: false, reason: reason.to_owned() });
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto_common::batch::BatchHeader;

    const FROM: Rank = Rank(2);

    struct Rig {
        copies: Copies,
        config: EngineConfig,
        index: HashMap<ChunkId, u32>,
        chunks: [Chunk; 1],
    }

    impl Rig {
        /// A copy of a chunk of that server, whose stream has two slots.
        fn new() -> Self {
            let mut chunk = Chunk::sample(1);
            chunk.role = Some(Role::Copy { of: FROM });
            let index = HashMap::from([(chunk.spec.id, 0)]);
            let (mut copies, config) = (Copies::default(), EngineConfig::sample());
            assert_eq!(copies.up(FROM, Incarnation(5), 2).len(), 2);
            Self { copies, config, index, chunks: [chunk] }
        }

        /// What is said of a record in a slot, and the round that is complete with it.
        fn record(&mut self, slot: SlotGrant, op: OpKind, round: u64) -> (Option<Complete>, Vec<Notice>) {
            let header = BatchHeader {
                kind: BatchKind::Record,
                lane: self.config.lane,
                wanted: 0,
                sender: FROM,
                job: self.config.job,
                epoch: Epoch::default(),
                sender_incarnation: Incarnation(5),
                receiver_incarnation: self.config.incarnation,
                sequence: 1,
                payload_offset: 0,
                payload_bytes: 0,
                payload_checksum: None,
            };
            let landing = (op == OpKind::CopyUpdate).then_some(Landing { region: 16, offset: 0, bytes: 16 });
            let bytes = landing.map_or(0, |landing| landing.bytes);
            let bare = Block::bare(self.chunks[0].spec.id, op, Dtype::F32, Operation(0));
            let blocks = [Block { round, landing, bytes, ..bare }];
            let record =
                RecordContext { from: FROM, slot, header: &header, blocks: &blocks, contributors: &[3] };
            let Self { copies, config, index, chunks } = self;
            let mut out = Commands::default();
            let mut here = Here { config, epoch: Epoch::default(), index, chunks };
            let complete = copies.record(&record, &mut here, &mut out);
            let told = |command: &Command| match command {
                Command::TellPrimary { notice, .. } => *notice,
                other => panic!("{other:?}"),
            };
            (complete, out.list.iter().map(told).collect())
        }
    }

    fn slot(slot: u32, generation: u8) -> SlotGrant {
        SlotGrant { slot, generation }
    }

    #[test]
    fn an_update_of_the_next_round_is_confirmed_before_it_ends_and_another_one_is_not() {
        let mut rig = Rig::new();
        let judged = |slot, judgement| Notice::Judged(slot, judgement);
        let (none, told) = rig.record(slot(0, 1), OpKind::CopyCheck, 0);
        let returned = Notice::Returned(slot(0, 2));
        assert_eq!((none, told), (None, vec![judged(slot(0, 1), Judgement::Confirmed), returned]));
        let (none, told) = rig.record(slot(1, 1), OpKind::CopyUpdate, 2);
        let returned = Notice::Returned(slot(1, 2));
        assert_eq!((none, told), (None, vec![judged(slot(1, 1), Judgement::Wanting), returned]));
        let (complete, told) = rig.record(slot(0, 2), OpKind::CopyUpdate, 1);
        assert_eq!(
            told,
            [judged(slot(0, 2), Judgement::Confirmed)],
            "its slot is given back after its round"
        );
        let from = Source::Record { from: FROM, slot: 0, offset: 0 };
        let last = Some(Addend { from, onto: Onto::Nothing });
        assert_eq!(complete, Some(Complete { chunk: 0, last }));
    }

    #[test]
    fn a_record_is_read_once_and_a_slot_that_was_not_granted_ends_the_stream() {
        let (mut rig, mut duplicates, mut out) = (Rig::new(), 0, Commands::default());
        let mut notified = |slot, duplicates: &mut u64| rig.copies.notified(FROM, slot, duplicates, &mut out);
        assert!(notified(slot(0, 1), &mut duplicates) && !notified(slot(0, 1), &mut duplicates));
        assert!(!notified(slot(0, 0), &mut duplicates), "an old grant");
        assert_eq!(duplicates, 2);
        assert!(!notified(slot(2, 1), &mut duplicates) && duplicates == 2);
        assert!(matches!(out.list[..], [Command::EndStream { peer: FROM, ours: false, .. }]));
    }
}
