//! What is submitted, and its parts: one part is one chunk's share of one operation.

use proto_common::batch::{Block, BlockData, Count, OpKind, Reading, Status};
use proto_common::element::Dtype;
use proto_common::ids::{ChunkId, Operation, Rank};
use proto_common::plan::Placement;
use std::cmp::Reverse;

/// How often a part is sent again because its payload changed on the way: a path that does so every time is broken.
const CORRUPT_RETRIES_MAX: u8 = 3;

/// One chunk of an operation, and who holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartSpec {
    /// Which chunk.
    pub id: ChunkId,
    /// Its server when the operation was submitted. If the chunk has moved since, the engine has the new one (`chunk.rs`).
    pub server: Rank,
    /// Bytes before it in the tensor.
    pub offset: u64,
    /// Its bytes.
    pub bytes: u64,
    /// Its payload, if that is encoded.
    pub coded: Option<Coded>,
}

/// An encoded payload, within an operation's source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coded {
    /// The codec's wire id.
    pub codec: u8,
    /// Bytes before it.
    pub offset: u64,
    /// Its bytes.
    pub bytes: u64,
}

impl PartSpec {
    /// Offset and bytes of its payload in the operation's source.
    pub(super) fn payload(&self) -> (u64, u64) {
        self.coded.map_or((self.offset, self.bytes), |coded| (coded.offset, coded.bytes))
    }
}

/// An operation as each lane receives it. Operations of one key come in the order of their numbers.
#[derive(Clone, Copy, Debug)]
pub struct Submit {
    /// The caller's id of the operation, unique among live ones.
    pub op: u64,
    /// What it does.
    pub kind: OpKind,
    /// Element type.
    pub dtype: Dtype,
    /// Does it carry a payload? Init from ranks other than 0 does not, unless a server asks for it. Nor does a contribution that
    /// another worker of this host has added to its own.
    pub payload: bool,
    /// How its payload travels, if that is possible; otherwise in a slot.
    pub placement: Placement,
    /// Its number on the key.
    pub operation: Operation,
    /// The weights are not written to this worker, but read in the server's memory as a view.
    pub view: bool,
    /// A pull must return exactly the version that `count` names, and not a later one.
    pub exact: bool,
    /// The views that the trainer still reads.
    pub reading: Reading,
    /// The round it contributes to, or the least version wanted; of a call, the bytes of its body.
    pub count: Count,
    /// Higher goes first; never reorders one key.
    pub priority: i32,
    /// Time that servers have for the operation, from now.
    pub timeout_ms: u32,
    /// How long it waits for other workers, if that is longer.
    pub busy_ms: u64,
    /// Report the version of each chunk, not only the lowest.
    pub by_chunk: bool,
}

/// Where a chunk is among those of its lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct At(pub(super) u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Waits for its turn, for a credit, or until it can be tried again.
    Queued,
    /// Sent, not answered; with the place of its payload as the block named it.
    Sent(BlockData),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) op: u32,
    /// Where its chunk is.
    pub(super) chunk: At,
    pub(super) spec: PartSpec,
    /// Order of submission on this lane.
    pub(super) order: u64,
    pub(super) state: State,
    /// When the server last reported the workers that it waits for; none if its last answer was another one.
    pub(super) told_ms: Option<u64>,
    /// A reply was announced for which there is no room yet.
    pub(super) is_announced: bool,
    /// How often its payload changed on the way.
    corrupt: u8,
    /// Its server has asked for the initial value.
    brings_initial: bool,
    /// A process of its server may have received it.
    was_sent: bool,
    /// An earlier process of its server may have received it.
    again: bool,
}

impl Part {
    pub(super) fn new(op: u32, chunk: At, spec: PartSpec, order: u64) -> Self {
        Self {
            op,
            chunk,
            spec,
            order,
            state: State::Queued,
            told_ms: None,
            is_announced: false,
            corrupt: 0,
            brings_initial: false,
            was_sent: false,
            again: false,
        }
    }

    /// It is sent again with the initial value.
    pub(super) fn bring_initial(&mut self) {
        self.brings_initial = true;
    }

    /// The operation as this part does it.
    pub(super) fn submit(&self, of: &Submit) -> Submit {
        Submit { payload: of.payload || self.brings_initial, ..*of }
    }

    /// Its payload changed on the way.
    pub(super) fn has_changed(&mut self) {
        (self.corrupt, self.told_ms) = ((self.corrupt + 1).min(CORRUPT_RETRIES_MAX + 1), None);
    }

    /// It is sent once more, with its operation number and without payload.
    pub(super) fn give_up(&mut self) {
        self.corrupt = CORRUPT_RETRIES_MAX + 1;
    }

    pub(super) fn is_given_up(&self) -> bool {
        self.corrupt > CORRUPT_RETRIES_MAX
    }

    /// It was sent, with its payload in this place.
    pub(super) fn sent(&mut self, data: BlockData) {
        (self.state, self.was_sent) = (State::Sent(data), true);
    }

    pub(super) fn was_sent(&self) -> bool {
        self.was_sent
    }

    /// The process of its server has failed: the part is for the next one.
    pub(super) fn outlive(&mut self) {
        self.again |= self.was_sent;
    }

    pub(super) fn is_again(&self) -> bool {
        self.again
    }

    /// The block to send. If the part is given up, it has only the operation's number, so that the server does not wait for that.
    pub(super) fn as_sent(&self, block: Block) -> Block {
        if !self.is_given_up() {
            let status = if self.again { Status::Again } else { block.status };
            return Block { status, ..block };
        }
        let data = BlockData::Inline { offset: 0 };
        Block { status: Status::Corrupt, bytes: 0, data, landing: None, view: false, exact: false, ..block }
    }
}

/// Place in a server's queue: higher priority first, then older first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) priority: i32,
    pub(super) order: Reverse<u64>,
    pub(super) part: u32,
}

/// A slab with generations, so that an answer to a part that is gone is recognised.
#[derive(Debug)]
pub(super) struct Slab<T> {
    entries: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    pub(super) fn new() -> Self {
        Self { entries: Vec::new(), free: Vec::new() }
    }

    pub(super) fn insert(&mut self, value: T) -> u32 {
        match self.free.pop() {
            Some(index) => {
                self.entries[index as usize].1 = Some(value);
                index
            }
            None => {
                self.entries.push((0, Some(value)));
                (self.entries.len() - 1) as u32
            }
        }
    }

    pub(super) fn remove(&mut self, index: u32) -> Option<T> {
        let (generation, value) = self.entries.get_mut(index as usize)?;
        let value = value.take()?;
        *generation = generation.wrapping_add(1);
        self.free.push(index);
        Some(value)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.len() == self.free.len()
    }

    /// Removes all.
    pub(super) fn take_all(&mut self) -> Vec<T> {
        (0..self.entries.len()).filter_map(|index| self.remove(index as u32)).collect()
    }

    pub(super) fn get(&self, index: u32) -> Option<&T> {
        self.entries.get(index as usize)?.1.as_ref()
    }

    pub(super) fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        self.entries.get_mut(index as usize)?.1.as_mut()
    }

    /// Index and generation as one number that travels.
    pub(super) fn token(&self, index: u32) -> u64 {
        let generation = self.entries.get(index as usize).map_or(0, |entry| entry.0);
        u64::from(generation) << 32 | u64::from(index)
    }

    /// The live index behind a token.
    pub(super) fn by_token(&self, token: u64) -> Option<u32> {
        let (index, generation) = (token as u32, (token >> 32) as u32);
        let entry = self.entries.get(index as usize)?;
        (entry.0 == generation && entry.1.is_some()).then_some(index)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        self.entries.iter_mut().enumerate().filter_map(|(i, (_, value))| Some((i as u32, value.as_mut()?)))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.entries.iter().enumerate().filter_map(|(i, (_, value))| Some((i as u32, value.as_ref()?)))
    }
}
