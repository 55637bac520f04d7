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
//!
//! A round in which a joining worker may still count is answered `Later` until the scheduler has decided the worker's first rounds.
//! If this server took it earlier, a primary that does not know the worker could end the round without it and fail. This server
//! would then take over with that round, and drop the worker's contribution.

use super::chunk::{Chunk, Lineage};
use super::command::{Addend, Command, Commands, Onto};
use super::credits::{Misuse, misuse};
use super::inputs::{EngineConfig, RecordContext};
use super::record::{Part, Said, Update};
use super::role::Role;
use super::roster::Roster;
use proto_common::batch::{BatchKind, Block, Judgement, Notice, SlotGrant};
use proto_common::element::Arithmetic;
use proto_common::ids::{ChunkId, Epoch, Incarnation, Rank};
use std::collections::HashMap;

/// The stream of one server, from the side of the copies.
#[derive(Debug)]
struct CopyOf {
    from: Rank,
    incarnation: Incarnation,
    /// The generation of each slot's grant, and whether a record lies in it that was read and whose slot is not given back.
    slots: Vec<(u8, bool)>,
    /// It was asked to come later, and waits for the notice when.
    owes_ready: bool,
    /// The chunk whose image is coming, its version, and how much of it is there.
    image: Option<(u32, u64, u64)>,
}

/// What the lane lends for one record.
#[derive(Debug)]
pub(super) struct Here<'a> {
    pub(super) config: &'a EngineConfig,
    pub(super) epoch: Epoch,
    pub(super) roster: &'a Roster,
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
    /// A sum that is applied in place.
    pub(super) last: Option<Addend>,
}

/// What becomes of a record.
enum Judged {
    /// So, if it is the last part of its whole; other parts are taken or passed over, and nothing is said of them.
    As(Judgement),
    /// It was confirmed already: it is the last part of an update.
    Complete(Complete),
    /// The runtime is to say more, of an image.
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

    /// The incarnation of a server that has a stream to us; zero without one.
    pub(super) fn incarnation(&self, from: Rank) -> Incarnation {
        self.known(from).map_or(Incarnation::default(), |copy| copy.incarnation)
    }

    /// The slots that a server may write, as they are granted now; none without a stream of it.
    pub(super) fn granted(&self, from: Rank) -> Vec<SlotGrant> {
        let slots = (0..).zip(self.known(from).into_iter().flat_map(|copy| &copy.slots));
        slots.map(|(slot, (generation, _))| SlotGrant { slot, generation: *generation }).collect()
    }

    /// A server says that a record lies in a slot: may it be read? Once: a repeated notice says nothing, and is counted
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
        let said = self.admit(record, here).and_then(|block| Ok((block, Said::read(record, block)?)));
        let (block, said) = match said {
            Ok(said) => said,
            Err(reason) => {
                end(from, reason, out);
                return None;
            }
        };
        let is_last = said.is_last();
        match self.take(record, (block, said), here, out) {
            // An image says it when it is loaded.
            Ok(Judged::Nothing) => {}
            Ok(Judged::Complete(complete)) => return Some(complete),
            Ok(Judged::As(judgement)) => {
                if is_last {
                    self.judge(from, record.slot, judgement, out);
                }
                self.give_back(from, record.slot, out);
            }
            Err(reason) => end(from, reason, out),
        }
        None
    }

    fn take(
        &mut self,
        record: &RecordContext<'_>,
        (block, said): (&Block, Said),
        here: &mut Here<'_>,
        out: &mut Commands,
    ) -> Answer {
        let (from, epoch, roster) = (record.from, here.epoch, here.roster);
        let Some(copy) = here.copy_of(from, block) else { return Ok(Judged::As(Judgement::Later)) };
        match said {
            Said::Check { version, since, initialised } => {
                // A copy from before that decision is given up when we hear of what came in between.
                if since > epoch {
                    return Ok(Judged::As(Judgement::Later));
                }
                Ok(Judged::As(self.checked(from, copy.1, (version, since, initialised))))
            }
            Said::Update(update) => self.update(record, (block, update), copy, roster, out),
            Said::State { version, part } => Ok(self.image_part(record, (version, part), copy, roster, out)),
            Said::Rules { rules, bytes } => {
                let (chunk, after) = (copy.0, copy.1.rounds.promised());
                out.push(Command::TakeRules { from, chunk, rules, bytes, after });
                Ok(Judged::As(Judgement::Confirmed))
            }
        }
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

    fn checked(
        &self,
        from: Rank,
        chunk: &mut Chunk,
        (asked, since, initialised): (u64, Epoch, bool),
    ) -> Judgement {
        let life = self.incarnation(from);
        chunk.copy_since = since;
        let (has, has_initial) = (chunk.rounds.promised(), chunk.rounds.is_initialised());
        let is_its = match chunk.lineage {
            Lineage::Zeros => asked == 0 && has == 0 && !initialised && !has_initial,
            lineage @ Lineage::Of(..) => lineage == Lineage::Of(from, life, since),
            Lineage::Own => false,
        };
        if !is_its {
            return Judgement::Wanting;
        }
        chunk.lineage = Lineage::Of(from, life, since);
        match has.checked_sub(asked) {
            Some(0) if has_initial == initialised => Judgement::Confirmed,
            Some(1) => Judgement::Ahead,
            _ => Judgement::Wanting,
        }
    }

    fn update(
        &mut self,
        record: &RecordContext<'_>,
        (block, Update { round, part, round_bytes, count, left }): (&Block, Update),
        (index, chunk): (u32, &mut Chunk),
        roster: &Roster,
        out: &mut Commands,
    ) -> Answer {
        let (from, Part { place, at, bytes, total }) = (record.from, part);
        let life = self.incarnation(from);
        if chunk.rounds.promised() + 1 != round || chunk.lineage != Lineage::Of(from, life, chunk.copy_since)
        {
            return Ok(Judged::As(Judgement::Wanting));
        }
        if chunk.rounds.is_complete() {
            return Ok(Judged::As(Judgement::Later));
        }
        if is_undecided(chunk, round, Some(record.contributors), roster) {
            chunk.filled = 0;
            return Ok(Judged::As(Judgement::Later));
        }
        let right = round_bytes <= chunk.spec.bytes
            && (chunk.spec.dynamic || round_bytes == chunk.spec.bytes)
            && round_bytes.is_multiple_of(chunk.spec.dtype.bytes() as u64)
            && total == chunk.spec.sum_bytes(round_bytes)
            && block.dtype == chunk.spec.dtype;
        if !right {
            return Err("its update has another shape than the chunk");
        }
        if at != 0 && at != chunk.filled {
            return Ok(Judged::As(Judgement::Wanting));
        }
        chunk.filled = at + bytes;
        // A sum that is whole, of numbers as storage adds them up, is applied in place. Integers are summed in another type.
        let is_float = matches!(chunk.spec.dtype.arithmetic(), Arithmetic::Float);
        let is_whole = at == 0 && part.is_last() && is_float;
        let take = Command::TakeSum { chunk: index, from: place, at, bytes, left };
        if !part.is_last() {
            out.push(take);
            return Ok(Judged::As(Judgement::Confirmed));
        }
        chunk.filled = 0;
        chunk.rounds.take_sum(record.contributors, count, (round_bytes, place))?;
        // Posted before the update is applied, because it will be. Over tcp it is sent at the end of this turn.
        self.judge(from, record.slot, Judgement::Confirmed, out);
        chunk.rounds.size(index, round_bytes, out);
        let last = is_whole.then_some(Addend { from: place, onto: Onto::Nothing });
        if !is_whole {
            out.push(take);
        }
        Ok(Judged::Complete(Complete { chunk: index, last }))
    }

    fn image_part(
        &mut self,
        record: &RecordContext<'_>,
        (version, part): (u64, Part),
        (index, chunk): (u32, &mut Chunk),
        roster: &Roster,
        out: &mut Commands,
    ) -> Judged {
        let (from, Part { place, at, bytes, total }) = (record.from, part);
        let room = chunk.writable().filter(|_| !is_undecided(chunk, version, None, roster));
        let keeps_other = chunk.weights.is_read();
        let Some(copy) = self.copy(from) else { return Judged::Nothing };
        let expected = if at == 0 { Some((index, version, 0)) } else { copy.image };
        if expected != Some((index, version, at)) {
            return Judged::As(Judgement::Wanting);
        }
        copy.image = (!part.is_last()).then_some((index, version, at + bytes));
        out.push(Command::TakePart { from, part: place, at, bytes, total, chunk: index });
        match room {
            _ if !part.is_last() => Judged::As(Judgement::Confirmed),
            Some(into) => {
                out.push(Command::Load { from, chunk: index, into, keeps_other, slot: record.slot });
                Judged::Nothing
            }
            None => Judged::As(Judgement::Later),
        }
    }
}

/// Must the first rounds of a joining worker be decided before a record is taken? In mode sync the worker may count in this round. In
/// other modes the contribution (or one in the image) may be of an earlier process of this worker, and the new process might
/// begin with the same number.
fn is_undecided(chunk: &Chunk, round: u64, contributors: Option<&[u64]>, roster: &Roster) -> bool {
    if chunk.rounds.has_rounds() {
        return roster.barred(chunk.spec.id.key).is_some_and(|from| round >= from);
    }
    let is_in = |words: &[u64], Rank(rank)| {
        words.get(rank as usize / 64).is_some_and(|word| (word >> (rank % 64)) & 1 == 1)
    };
    roster.comers().any(|rank| contributors.is_none_or(|words| is_in(words, rank)))
}

/// The sender broke the protocol.
pub(super) fn end(peer: Rank, reason: &str, out: &mut Commands) {
    out.push(Command::EndStream { peer, ours: false, reason: reason.to_owned() });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::command::Source;
    use proto_common::batch::{BatchHeader, Count, Landing, OpKind};
    use proto_common::element::Dtype;
    use proto_common::ids::Operation;

    const FROM: Rank = Rank(2);

    struct Rig {
        copies: Copies,
        config: EngineConfig,
        roster: Roster,
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
            let roster = Roster::new(config.workers, config.worker_loss);
            Self { copies, config, roster, index, chunks: [chunk] }
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
            let blocks = [Block { count: Count::Round(round), landing, bytes, ..bare }];
            let record =
                RecordContext { from: FROM, slot, header: &header, blocks: &blocks, contributors: &[3] };
            let Self { copies, config, roster, index, chunks } = self;
            let mut out = Commands::default();
            let mut here = Here { config, epoch: Epoch::default(), roster, index, chunks };
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
