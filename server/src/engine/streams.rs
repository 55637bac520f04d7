//! Streams to servers that have copies of our chunks: what of each chunk is in them, what was confirmed, and in which order
//! records go out. A round that all have contributed to ends when whoever is to have a copy has confirmed it
//! (docs/recovery.md). Owns the streams, their slots and queues; where each copy stands is kept with the chunk, in
//! [`Keep`]. It must not know how copies are made of what it sends (that is `copies`), or how rounds end: it
//! returns the chunk whose round may end now.
//!
//! ```text
//!             check              Confirmed, or Ahead by the round under way
//!  Out ──────────────▶ Checking ───────────────────────────────────────────▶ In: every update follows
//!   ▲                  │  ▲  │                                               ▲ │
//!   │            Later │  │  └── anything else ──▶ Wanted ──image taken──▶ Sent│ begin anew, a new initial value
//!   │                  ▼  │ Ready                  ▲ │                     └───┘ Confirmed
//!   │                Later┘                        │ └──────────────────────────│
//!   └── the stream is down, from any               └────────────────────────────┘
//!
//!  a record: queued ──a slot is free──▶ used, to be judged ──Judged──▶ used ──Returned──▶ its slot is free
//! ```
//!
//! If an update overtook the image of its chunk, the copy would apply it to older weights.

use super::chunk::Chunk;
use super::command::{Command, Commands, Payload};
use super::credits::{Misuse, misuse};
use super::keep::{At, Keep};
use super::norms::Groups;
use super::record::block_of;
use super::rounds::Stage;
use proto_common::batch::{Judgement, Notice, OpKind, SlotGrant};
use proto_common::ids::{Epoch, Incarnation, Rank};
use std::collections::VecDeque;
use whole::{can_begin, keep_together};

mod images;
#[cfg(test)]
mod tests;
pub(super) mod whole;

/// A record to be written, or written.
#[derive(Clone, Copy, Debug)]
struct Item {
    chunk: u32,
    keep: u64,
    op: OpKind,
    round: u64,
    /// Bytes of its whole that were written; how many there are. Of an image 0 until it is taken.
    at: u64,
    total: u64,
}

/// The stream to one server.
#[derive(Debug)]
struct Stream {
    to: Rank,
    incarnation: Incarnation,
    /// First in, first out.
    free: VecDeque<SlotGrant>,
    /// Written, and not given back; what is to be judged, until it is.
    used: Vec<(SlotGrant, Option<Item>)>,
    /// Not written. A chunk has a few at most.
    queue: VecDeque<Item>,
    wanted: VecDeque<u32>,
    /// Chunks that the other side is to be asked about again; some may not need it any more.
    later: Vec<u32>,
    /// The copy whose image is in the runtime's hands, until its last part was taken.
    image: Option<(u64, Option<SlotGrant>)>,
    seeded: Option<Epoch>,
    sequence: u64,
    /// Chunks that were given up while records were under way that are read from their sums; until these slots are given back.
    leaving: Vec<(u32, Vec<SlotGrant>)>,
    /// Bytes of a record's payload at most.
    part_bytes: u64,
}

impl Stream {
    /// Is a record under way that is read from the chunk's sum?
    fn reads_sum(&self, chunk: u32) -> bool {
        let is_of_it = |item: &Item| item.chunk == chunk && item.op == OpKind::CopyUpdate;
        let is_begun = self.queue.front().is_some_and(|item| is_of_it(item) && item.at > 0);
        is_begun || self.used.iter().any(|(_, item)| item.as_ref().is_some_and(is_of_it))
    }

    /// Is the sum of a chunk that was given up still read?
    fn is_leaving(&self, chunk: u32) -> bool {
        self.leaving.iter().any(|(leaving, _)| *leaving == chunk)
    }

    /// Has the other side said this already? Its word on a record is of the slot's generation then, or of one before; what it
    /// gives back is one further (`ahead`).
    fn heard_before(&self, slot: SlotGrant, ahead: u8) -> bool {
        let judged = self.used.iter().any(|(used, item)| *used == slot && item.is_none());
        let known =
            self.used.iter().map(|(used, _)| used).chain(&self.free).find(|known| known.slot == slot.slot);
        let newest = known.map(|known| known.generation.wrapping_add(ahead).wrapping_sub(1));
        judged || newest.is_some_and(|newest| misuse(newest, slot.generation) == Misuse::Stale)
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Streams {
    all: Vec<Stream>,
    /// Copies that there ever were.
    ids: u64,
}

impl Streams {
    fn stream(&mut self, to: Rank) -> Option<&mut Stream> {
        self.all.iter_mut().find(|stream| stream.to == to)
    }

    fn known(&self, to: Rank) -> Option<&Stream> {
        self.all.iter().find(|stream| stream.to == to)
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// The stream to an incarnation of a server is up: these slots of it are ours to write, with so many bytes of payload each. What
    /// the other side has of each chunk is to be asked first.
    pub(super) fn up(&mut self, to: Rank, incarnation: Incarnation, slots: &[SlotGrant], part_bytes: u64) {
        self.all.push(Stream {
            to,
            incarnation,
            free: slots.iter().copied().collect(),
            used: Vec::new(),
            queue: VecDeque::new(),
            wanted: VecDeque::new(),
            later: Vec::new(),
            image: None,
            seeded: None,
            sequence: 0,
            leaving: Vec::new(),
            // A part of nothing would never end a record.
            part_bytes: part_bytes.max(64),
        });
    }

    /// The stream to a server is closed, and fenced. False where there was none.
    pub(super) fn down(&mut self, to: Rank) -> bool {
        let before = self.all.len();
        self.all.retain(|stream| stream.to != to);
        self.all.len() != before
    }

    /// The incarnation of a server that we have a stream to.
    pub(super) fn incarnation(&self, to: Rank) -> Option<Incarnation> {
        self.known(to).map(|stream| stream.incarnation)
    }

    /// Records that wait to be written.
    pub(super) fn queued(&self) -> usize {
        self.all.iter().map(|stream| stream.queue.len()).sum()
    }

    /// Is a chunk's image still being sent to a server?
    pub(super) fn sends_image(&self, to: Rank) -> bool {
        self.known(to).is_some_and(|stream| stream.image.is_some())
    }

    /// Slots for records that were written and not given back.
    pub(super) fn unreturned(&self) -> usize {
        self.all.iter().map(|stream| stream.used.len()).sum()
    }

    /// Slots that a server has granted for records: those that may be written, and those that were and are not given back.
    pub(super) fn slots(&self, to: Rank) -> (Vec<SlotGrant>, Vec<SlotGrant>) {
        let Some(stream) = self.known(to) else { return Default::default() };
        (stream.free.iter().copied().collect(), stream.used.iter().map(|(slot, _)| *slot).collect())
    }

    /// A server is to have a copy, which is like none before it.
    pub(super) fn keep(&mut self, to: Rank, is_backup: bool, since: Epoch) -> Keep {
        Keep::new(to, self.next_id(), is_backup, since)
    }

    fn next_id(&mut self) -> u64 {
        self.ids += 1;
        self.ids
    }

    /// What was to be sent of a copy is not.
    pub(super) fn forget(&mut self, keep: &mut Keep) {
        if std::mem::take(&mut keep.queued) == 0 {
            return;
        }
        if let Some(stream) = self.stream(keep.to) {
            // An image that is being sent has its place until its parts are given back.
            let cut = stream.queue.iter().any(|item| item.keep == keep.id && item.op == OpKind::CopyState);
            stream.queue.retain(|item| item.keep != keep.id);
            if cut {
                let last = stream.used.last().map(|(slot, _)| *slot);
                stream.image = last.map(|last| (keep.id, Some(last)));
            }
        }
    }

    /// The chunk is given up. Its sum stays what it is until the records that are read from it have arrived. Scenario: the stream's
    /// other side is stopped, and half of a record has not left yet. Another chunk is summed up in the memory, the other side
    /// continues, takes both halves for a round that others have confirmed, and serves them when it is promoted.
    pub(super) fn leave(&mut self, chunk: u32) {
        for stream in self.all.iter_mut().filter(|stream| stream.reads_sum(chunk)) {
            stream.leaving.push((chunk, stream.used.iter().map(|(slot, _)| *slot).collect()));
        }
    }

    /// Is the sum of a chunk that was given up still read?
    pub(super) fn is_leaving(&self, chunk: u32) -> bool {
        self.all.iter().any(|stream| stream.is_leaving(chunk))
    }

    /// Is a record under way to this server that is read from the chunk's sum?
    pub(super) fn reads_sum(&self, to: Rank, chunk: u32) -> bool {
        self.known(to).is_some_and(|stream| stream.reads_sum(chunk))
    }

    pub(super) fn new_epoch(&mut self) {
        self.all.iter_mut().for_each(|stream| stream.seeded = None);
    }

    /// Asks a server which version of a chunk it has, if it is to have a copy.
    pub(super) fn check(&mut self, index: u32, chunk: &mut Chunk, to: Rank) {
        let asked = (chunk.rounds.version(), chunk.rounds.is_initialised());
        let Some(keep) = chunk.copies.iter_mut().flatten().find(|keep| keep.to == to) else { return };
        let Some(stream) = self.stream(to) else { return };
        (keep.at, keep.asked) = (At::Checking, asked);
        let op = OpKind::CopyCheck;
        keep.queued += 1;
        stream.queue.push_back(Item { chunk: index, keep: keep.id, op, round: asked.0, at: 0, total: 0 });
    }

    /// A round is complete: it goes to wherever the chunk is copied, and waits.
    pub(super) fn send_update(&mut self, index: u32, chunk: &mut Chunk) {
        chunk.rounds.wait_for(Stage::Copies);
        let Some(update) = chunk.pending() else { return };
        for keep in chunk.copies.iter_mut().flatten().filter(|keep| keep.is_in_stream()) {
            self.push_update(index, keep, update);
        }
    }

    /// The initial value is there: copies get it as a state, and workers are answered afterwards.
    pub(super) fn copy_initial(&mut self, index: u32, chunk: &mut Chunk) {
        chunk.init_pending = chunk.has_copies();
        for keep in chunk.copies.iter_mut().flatten() {
            keep.has_initial = false;
            if !matches!(keep.at, At::Out | At::Later) {
                self.want(index, keep);
            }
        }
    }

    /// A chunk's rule has changed: copies get the change in the order of the rounds.
    pub(super) fn rule_changed(&mut self, index: u32, chunk: &mut Chunk) {
        chunk.rules += 1;
        for keep in chunk.copies.iter_mut().flatten().filter(|keep| keep.is_in_stream()) {
            self.push_rules(index, keep);
        }
    }

    /// What a server says about a record. Returns the chunk whose round, or operations, may have waited for it. The error says
    /// why the word is wrong.
    pub(super) fn notice(
        &mut self,
        to: Rank,
        notice: Notice,
        chunks: &mut [Chunk],
        groups: &Groups,
    ) -> Result<Option<u32>, &'static str> {
        match notice {
            Notice::Judged(slot, judgement) => self.judged(to, (slot, judgement), chunks, groups),
            Notice::Returned(slot) => self.returned(to, slot).map(|()| None),
            Notice::Ready => {
                self.ask_again(to, chunks);
                Ok(None)
            }
            Notice::Probe | Notice::ProbeReply => Ok(None),
            _ => Err("its notice is not one that a replica sends"),
        }
    }

    fn returned(&mut self, to: Rank, slot: SlotGrant) -> Result<(), &'static str> {
        let Some(stream) = self.stream(to) else { return Ok(()) };
        let Some(at) = stream.used.iter().position(|(used, _)| used.slot == slot.slot) else {
            return stream.heard_before(slot, 1).then_some(()).ok_or("it returned an unused slot");
        };
        let (used, item) = stream.used[at];
        if slot.generation != used.generation.wrapping_add(1) {
            return match misuse(used.generation, slot.generation) {
                Misuse::Stale => Ok(()),
                Misuse::NotGranted => Err("it returned a slot with a generation that it never had"),
            };
        }
        if item.is_some() {
            return Err("it returned a slot without a result for its record");
        }
        stream.used.remove(at);
        stream.free.push_back(slot);
        if stream.image.is_some_and(|(_, last)| last == Some(used)) {
            stream.image = None;
        }
        stream.leaving.iter_mut().for_each(|(_, slots)| slots.retain(|slot| *slot != used));
        stream.leaving.retain(|(_, slots)| !slots.is_empty());
        Ok(())
    }

    fn judged(
        &mut self,
        to: Rank,
        (slot, judgement): (SlotGrant, Judgement),
        chunks: &mut [Chunk],
        groups: &Groups,
    ) -> Result<Option<u32>, &'static str> {
        let Some(stream) = self.stream(to) else { return Ok(None) };
        let written = stream.used.iter_mut().find(|(used, _)| *used == slot);
        let Some(item) = written.and_then(|(_, item)| item.take()) else {
            let is_repeated = stream.heard_before(slot, 0);
            return is_repeated.then_some(None).ok_or("it confirmed a record that was not sent");
        };
        let can_begin = item.op == OpKind::CopyCheck && can_begin(chunks, groups, item.chunk, to);
        let Some(chunk) = chunks.get_mut(item.chunk as usize) else { return Ok(None) };
        let (version, is_complete) = (chunk.rounds.version(), chunk.rounds.is_complete());
        let (initialised, pending) = (chunk.rounds.is_initialised(), chunk.pending());
        // What was said about a copy that is not wanted any more counts for nothing.
        let Some(keep) = chunk.keep_of(item.keep) else { return Ok(None) };
        let joined = joins_at(judgement, item.round, (version, is_complete), can_begin);
        let joined = joined.filter(|_| !keep.whole_only);
        let joins = match (item.op, judgement) {
            // It is sent whole meanwhile, because the initial value came.
            (OpKind::CopyCheck, _) if keep.at != At::Checking => None,
            (OpKind::CopyUpdate, Judgement::Confirmed) => {
                keep.confirmed = keep.confirmed.max(item.round);
                None
            }
            (OpKind::CopyState, Judgement::Confirmed) if keep.at == At::Sent => {
                (keep.at, keep.kept, keep.has_initial) = (At::In, true, keep.asked.1 == initialised);
                keep.confirmed = keep.confirmed.max(item.round);
                keep.whole_only = false;
                keep.rules.1 = keep.rules.1.max(keep.rules.0);
                None
            }
            (OpKind::CopyRules, Judgement::Confirmed) => {
                keep.rules.1 = keep.rules.1.max(item.round);
                None
            }
            (OpKind::CopyState, Judgement::Confirmed) => None,
            (_, Judgement::Later) => {
                keep.at = At::Later;
                self.forget(keep);
                if let Some(stream) = self.stream(to) {
                    stream.later.push(item.chunk);
                }
                None
            }
            (OpKind::CopyCheck, _) if joined.is_some() => joined,
            _ => {
                self.forget(keep);
                self.want(item.chunk, keep);
                None
            }
        };
        if let Some(confirmed) = joins {
            (keep.at, keep.kept, keep.has_initial) = (At::In, true, keep.asked.1 == initialised);
            keep.confirmed = confirmed;
            self.push_rules(item.chunk, keep);
            if let Some(update) = pending.filter(|(round, _)| confirmed < *round) {
                self.push_update(item.chunk, keep, update);
            }
            keep_together(item.chunk, to, chunks, groups);
        }
        Ok(Some(item.chunk))
    }

    fn ask_again(&mut self, to: Rank, chunks: &mut [Chunk]) {
        let Some(stream) = self.stream(to) else { return };
        for index in std::mem::take(&mut stream.later) {
            let chunk = &mut chunks[index as usize];
            let mut keeps = chunk.copies.iter().flatten();
            if keeps.any(|keep| keep.to == to && keep.at == At::Later) {
                self.check(index, chunk, to);
            }
        }
    }

    /// Writes what there are slots for in one of the streams.
    pub(super) fn write(&mut self, at: usize, chunks: &mut [Chunk], out: &mut Commands) {
        while self.all[at].write_next(chunks, out) {}
    }

    fn want(&mut self, chunk: u32, keep: &mut Keep) {
        let again = keep.at == At::Wanted;
        if keep.at == At::Sent {
            self.forget(keep);
        }
        keep.at = At::Wanted;
        if let Some(stream) = self.stream(keep.to).filter(|_| !again) {
            stream.wanted.push_back(chunk);
        }
    }

    fn push_update(&mut self, chunk: u32, keep: &mut Keep, (round, total): (u64, u64)) {
        let op = OpKind::CopyUpdate;
        if let Some(stream) = self.stream(keep.to) {
            keep.queued += 1;
            stream.queue.push_back(Item { chunk, keep: keep.id, op, round, at: 0, total });
        }
    }

    /// A record has all changes that are pending when it is written. If one is queued already, a second one is not needed.
    fn push_rules(&mut self, chunk: u32, keep: &mut Keep) {
        let op = OpKind::CopyRules;
        let Some(stream) = self.stream(keep.to) else { return };
        let is_it = |item: &Item| (item.keep, item.op) == (keep.id, op);
        if keep.queued == 0 || !stream.queue.iter().any(is_it) {
            keep.queued += 1;
            stream.queue.push_back(Item { chunk, keep: keep.id, op, round: 0, at: 0, total: 0 });
        }
    }
}

impl Stream {
    /// Writes the next record, or part of one. False where there is none, or no slot.
    fn write_next(&mut self, chunks: &mut [Chunk], out: &mut Commands) -> bool {
        let stream = self;
        let Some(item) = stream.queue.front_mut() else { return false };
        let Some(chunk) = chunks.get_mut(item.chunk as usize) else { return false };
        if item.op == OpKind::CopyState && item.total == 0 {
            return false;
        }
        let Some(slot) = stream.free.pop_front() else { return false };
        let bytes = stream.part_bytes.min(item.total - item.at);
        let is_last = item.at + bytes == item.total;
        if item.op == OpKind::CopyRules {
            // All that there are now are in it.
            item.round = chunk.rules;
        }
        let block = block_of(chunk, (item.op, item.keep, item.round), (item.at, bytes, item.total));
        let first = out.contributors.len();
        if item.op == OpKind::CopyUpdate {
            out.contributors.extend(chunk.rounds.contributed().words());
        }
        let payload = match item.op {
            OpKind::CopyUpdate => Payload::Sum,
            OpKind::CopyState => Payload::Image,
            OpKind::CopyRules => Payload::Rules,
            _ => Payload::Nothing,
        };
        stream.sequence += 1;
        let (to, sequence, contributors) = (stream.to, stream.sequence, first..out.contributors.len());
        out.push(Command::Record { to, slot, chunk: item.chunk, block, payload, contributors, sequence });
        item.at += bytes;
        let item = *item;
        stream.used.push((slot, is_last.then_some(item)));
        if is_last {
            if let Some(keep) = chunk.keep_of(item.keep) {
                keep.queued = keep.queued.saturating_sub(1);
            }
            if item.op == OpKind::CopyState {
                stream.image = Some((item.keep, Some(slot)));
            }
            stream.queue.pop_front();
        }
        true
    }
}

/// A copy that was asked about a version joins the stream: the version that it has. One that cannot begin now does where it has
/// the round under way.
fn joins_at(
    judgement: Judgement,
    asked: u64,
    (version, is_complete): (u64, bool),
    can_begin: bool,
) -> Option<u64> {
    match judgement {
        Judgement::Confirmed if version == asked && can_begin => Some(version),
        // The update that was not confirmed has come: it is the one that is complete here, or was meanwhile.
        Judgement::Ahead if version == asked && is_complete => Some(version + 1),
        Judgement::Ahead if version == asked + 1 && can_begin => Some(version),
        _ => None,
    }
}
