//! One server as the lane sees it: credits for its inbox, our inbox's slots granted to it, and the queue
//! of parts for it.

use super::chunk::Farewell;
use super::part::Place;
use proto_common::batch::{Landing, SlotGrant};
use proto_common::ids::{ChunkId, Incarnation};
use std::collections::{BinaryHeap, HashMap, VecDeque};

/// What the server did with a slot of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotUse {
    Granted,
    /// An old grant used again: a duplicate or late arrival.
    Stale,
    /// Never granted.
    Unknown,
}

/// What a server gave for a chunk.
#[derive(Clone, Copy, Debug)]
pub(super) enum KeyBuffer {
    /// A buffer that may be written: once, or (`keep`) again and again.
    Granted { landing: Landing, keep: bool },
    /// It holds a part's payload until that is answered.
    Occupied { landing: Landing, keep: bool },
    /// None; payloads travel in slots until then.
    Refused { until_ms: u64 },
}

#[derive(Debug, Default)]
pub(super) struct Link {
    pub(super) up: bool,
    pub(super) incarnation: Incarnation,
    pub(super) slot_bytes: u64,
    /// Slots of the server's inbox that we may write.
    pub(super) credits: Vec<SlotGrant>,
    /// Credits asked for and not granted yet.
    pub(super) asked: u16,
    pub(super) queue: BinaryHeap<Place>,
    /// What the server gave for chunks whose payloads it was asked to take outside its slots.
    pub(super) buffers: HashMap<ChunkId, KeyBuffer>,
    /// All payloads travel in slots: only those have a checksum.
    pub(super) slots_only: bool,
    /// The slots of our inbox, each with the generation that the server must use next.
    pub(super) inbox: Vec<SlotGrant>,
    /// Slots read and granted again that the server was not told of yet.
    pub(super) owed: Vec<SlotGrant>,
    /// What it is to hear of chunks that it had.
    pub(super) farewells: VecDeque<Farewell>,
    pub(super) sent_parts: usize,
    pub(super) sequence: u64,
    pub(super) last_use_ms: u64,
}

impl Link {
    /// Blocks that could be sent to it.
    pub(super) fn to_send(&self) -> usize {
        self.queue.len() + self.farewells.len()
    }

    /// May this slot hold results that were not read yet?
    pub(super) fn check(&self, grant: SlotGrant) -> SlotUse {
        let Some(held) = self.inbox.iter().find(|held| held.slot == grant.slot) else {
            return SlotUse::Unknown;
        };
        match held.generation.wrapping_sub(grant.generation) {
            0 => SlotUse::Granted,
            1..128 => SlotUse::Stale,
            _ => SlotUse::Unknown,
        }
    }

    /// A result lies in a slot: takes it and grants it again.
    pub(super) fn used(&mut self, grant: SlotGrant) -> SlotUse {
        let found = self.check(grant);
        if found == SlotUse::Granted
            && let Some(held) = self.inbox.iter_mut().find(|held| held.slot == grant.slot)
        {
            held.generation = held.generation.wrapping_add(1);
            self.owed.push(*held);
        }
        found
    }
}
