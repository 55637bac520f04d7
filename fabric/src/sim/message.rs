//! Messages under way: what is known of one, and the slab that holds them all. Owns the copying of bytes
//! out of sources and into targets; decides nothing.

use crate::memory::{Region, Span};
use crate::work::{DisconnectReason, RemoteKey, RemoteSpan};

/// A message in the slab; stale once the message is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Handle {
    index: u32,
    generation: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Write,
    Read,
    /// The end of a channel, behind everything that was still under way.
    Fin,
    /// The second arrival of a write.
    Duplicate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// Its sender waits for it.
    Live,
    /// Its sender is gone; it may still arrive.
    Orphan,
    /// Its sender is gone and only a part of it arrives.
    Cut,
}

/// When the source is read. A device may do so at any time up to the completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Capture {
    AtPost,
    UnderWay,
    AtArrival,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) landed: bool,
}

#[derive(Debug)]
pub(super) struct Message {
    /// The sender's end.
    pub(super) channel: u32,
    pub(super) kind: Kind,
    pub(super) fate: Fate,
    pub(super) id: u64,
    pub(super) immediate: Option<u32>,
    pub(super) signaled: bool,
    /// The receiver copies it.
    pub(super) is_landing: bool,
    pub(super) is_moved: bool,
    /// A write's place among those of its channel, in the order of their posts.
    pub(super) number: u64,
    pub(super) is_acknowledged: bool,
    pub(super) bytes: u64,
    pub(super) remote: RemoteSpan,
    /// A write's sources; a read's target.
    pub(super) spans: Vec<Span>,
    pub(super) capture: Capture,
    pub(super) captured: bool,
    pub(super) data: Vec<u8>,
    /// The peer's region, once the peer has checked the access.
    pub(super) target: Option<Region>,
    pub(super) pieces: Vec<Piece>,
    /// When it started among all of the network.
    pub(super) order: u64,
    /// Losses in a row.
    pub(super) losses: u32,
    /// Earliest arrival.
    pub(super) plan_us: u64,
    /// Why a channel ends.
    pub(super) reason: Option<DisconnectReason>,
}

/// Largest copy buffer that a free message keeps.
const DATA_KEPT_MAX: usize = 64 << 10;

impl Message {
    fn new() -> Self {
        Self {
            channel: 0,
            kind: Kind::Write,
            fate: Fate::Live,
            id: 0,
            immediate: None,
            signaled: false,
            is_landing: false,
            is_moved: false,
            number: 0,
            is_acknowledged: false,
            bytes: 0,
            remote: RemoteSpan { key: RemoteKey(0), offset: 0 },
            spans: Vec::new(),
            capture: Capture::AtArrival,
            captured: false,
            data: Vec::new(),
            target: None,
            pieces: Vec::new(),
            order: 0,
            losses: 0,
            plan_us: 0,
            reason: None,
        }
    }

    /// Empties it for reuse; buffers stay.
    fn reset(&mut self) {
        let (mut spans, mut data, mut pieces) = (
            std::mem::take(&mut self.spans),
            std::mem::take(&mut self.data),
            std::mem::take(&mut self.pieces),
        );
        spans.clear();
        pieces.clear();
        if data.capacity() > DATA_KEPT_MAX {
            data = Vec::new();
        }
        *self = Self { spans, data, pieces, ..Self::new() };
    }

    /// Reads the source now; from here on its owner may change it without harm.
    pub(super) fn capture_now(&mut self) {
        if !self.captured && self.kind == Kind::Write {
            gather(&self.spans, 0, self.bytes, &mut self.data);
            self.captured = true;
        }
    }

    /// Puts bytes `start..end` of the write into the peer's memory.
    pub(super) fn land(&self, start: u64, end: u64, scratch: &mut Vec<u8>) {
        let Some(target) = self.target.as_ref().filter(|_| start < end) else { return };
        let offset = self.remote.offset + start;
        let landed = if self.captured {
            target.write(offset, &self.data[start as usize..end as usize])
        } else {
            gather(&self.spans, start, end, scratch);
            target.write(offset, scratch)
        };
        // Invariant: the peer checked the bounds before it set the target.
        debug_assert!(landed.is_ok(), "a checked write out of bounds");
    }

    /// Reads bytes from `start` on out of the peer's memory (a read at the peer).
    pub(super) fn fetch(&mut self, start: u64) {
        let Some(target) = &self.target else { return };
        self.data.resize(self.bytes as usize, 0);
        let fetched = target.read(self.remote.offset + start, &mut self.data[start as usize..]);
        debug_assert!(fetched.is_ok(), "a checked read out of bounds");
    }

    /// Puts a read's bytes in place.
    pub(super) fn place(&self) {
        if let Some(local) = self.spans.first() {
            let placed = local.region().write(local.offset(), &self.data);
            debug_assert!(placed.is_ok(), "a span is always inside its region");
        }
    }
}

/// Copies bytes `start..end` of the gathered spans; `into` has exactly them afterwards.
fn gather(spans: &[Span], start: u64, end: u64, into: &mut Vec<u8>) {
    into.resize((end - start) as usize, 0);
    let (mut before, mut filled) = (0, 0);
    for span in spans {
        let (from, to) = (start.max(before), end.min(before + span.len()));
        if from < to {
            let next = filled + (to - from) as usize;
            let read = span.region().read(span.offset() + (from - before), &mut into[filled..next]);
            debug_assert!(read.is_ok(), "a span is always inside its region");
            filled = next;
        }
        before += span.len();
    }
}

#[derive(Debug)]
struct Slot {
    generation: u32,
    live: bool,
    message: Message,
}

/// All messages. Slots are reused, handles never.
#[derive(Debug, Default)]
pub(super) struct Messages {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

impl Messages {
    pub(super) fn take(&mut self, channel: u32, kind: Kind) -> Handle {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, live: false, message: Message::new() });
            (self.slots.len() - 1) as u32
        });
        let slot = &mut self.slots[index as usize];
        slot.live = true;
        slot.message.channel = channel;
        slot.message.kind = kind;
        Handle { index, generation: slot.generation }
    }

    pub(super) fn get(&mut self, handle: Handle) -> Option<&mut Message> {
        let slot = &mut self.slots[handle.index as usize];
        (slot.live && slot.generation == handle.generation).then_some(&mut slot.message)
    }

    /// Gives it back; a stale handle does nothing.
    pub(super) fn free(&mut self, handle: Handle) {
        let slot = &mut self.slots[handle.index as usize];
        if slot.live && slot.generation == handle.generation {
            slot.live = false;
            slot.generation = slot.generation.wrapping_add(1);
            slot.message.reset();
            self.free.push(handle.index);
        }
    }

    /// Messages under way.
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}
