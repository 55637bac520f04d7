//! What the engine wants done. Commands carry ids and numbers, never senders or pointers, and are executed
//! strictly in order. Their vectors are reused, so that deciding allocates nothing in steady state.

use super::image::ChunkState;
use proto_common::batch::{Block, Landing, Notice, SlotGrant};
use proto_common::ids::{Epoch, Incarnation, Rank};
use std::ops::Range;

/// Where a contribution's bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "a name that says it all needs no sentence")]
pub enum Source {
    /// In a slot of the inbox, this many bytes after the slot's start.
    Slot { slot: u32, offset: u64 },
    /// In a spill block.
    Spill(u32),
    /// In a slot of the stream from a server whose chunks we have copies of. As a contribution it is a whole sum: plain
    /// numbers, whatever the tensor's codec.
    Record { from: Rank, slot: u32, offset: u64 },
    /// In the worker's own memory, which can be read in place: at this offset of the region with this key.
    Worker { peer: Rank, region: u64, offset: u64, bytes: u64 },
}

/// A contribution to be reduced. `S` says where contributions are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addend<S = Source> {
    /// The contribution.
    pub from: S,
    /// What it is added to.
    pub onto: Onto<S>,
}

/// What a contribution is added to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Onto<S = Source> {
    /// Nothing: it is the round's first.
    Nothing,
    /// The round's first, which was left where its worker has it: one pass takes both.
    First(S),
    /// The accumulator.
    Sum,
}

/// Whether a round's values can be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// They were written.
    Fits,
    /// A sum, or a new value, does not fit its integer type: nothing was written.
    BadValue,
}

/// One thing to do. A `chunk` is a chunk's index within the lane.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "a name that says it all needs no sentence")]
pub enum Command {
    /// The commands that follow are about the first so many bytes of a dynamic chunk.
    Size { chunk: u32, bytes: u64 },
    /// The sum goes to the accumulator.
    Reduce { chunk: u32, addend: Addend },
    /// The round is complete: update rule over the accumulator and, where given, one last contribution that
    /// was not reduced yet. The weights in force are in buffer `old`, and the new ones go to buffer `into`: the same one where
    /// nobody reads it. Answered by `LaneEngine::finished`.
    Finish { chunk: u32, round: u64, last: Option<Addend>, old: u8, into: u8, contributors: u32 },
    /// All have contributed to a chunk whose tensor's norms count: its step, and its share of the norms, are computed. Its
    /// weights stay; `Finish` follows when all chunks of the tensor are prepared.
    Prepare { chunk: u32, round: u64, last: Option<Addend>, old: u8, contributors: u32 },
    /// These are all chunks of a tensor, prepared: their shares, in this order, make its norms.
    Norms { chunks: Range<u32> },
    /// The initial value of the chunk.
    Init { chunk: u32, from: Source, into: u8 },
    /// Copy a contribution to this chunk out of its slot, into spill block `to`.
    Spill { chunk: u32, from: Source, to: u32 },
    /// Read a contribution to this chunk one-sided out of the worker's memory, into spill block `to`. Answered by
    /// `LaneEngine::fetched`.
    Fetch { peer: Rank, chunk: u32, region: u64, offset: u64, to: u32 },
    /// Write weights one-sided to where the operation granted. Answered by `LaneEngine::landed`.
    Land { peer: Rank, chunk: u32, buffer: u8, landing: Landing },
    /// Copy the weights in a buffer into spill block `to`, and let workers that have not copied them yet copy those. Answered by
    /// `LaneEngine::relieved`.
    Relieve { chunk: u32, buffer: u8, to: u32 },
    /// Copy a call's frame out of its slot, and read what its worker has of the body. Answered by
    /// `LaneEngine::call_arrived`.
    CallTake(CallTaken),
    /// The call goes to its handler, which answers with `LaneEngine::call_answered`.
    CallDeliver { call: u64 },
    /// The call is answered: its handler need not begin with it.
    CallCancel { call: u64 },
    /// Write a reply's body one-sided to where the call granted. Answered by `LaneEngine::call_landed`, when all of it is on
    /// its way.
    CallLand { peer: Rank, call: u64, landing: Landing },
    /// Nothing is kept of the call any more.
    CallDrop { call: u64 },
    /// Write a batch of results into a slot of the worker's inbox.
    Results {
        peer: Rank,
        slot: SlotGrant,
        /// Which of [`Commands::results`].
        results: Range<usize>,
        grants: Range<usize>,
        /// Count of batches on the channel.
        sequence: u64,
    },
    /// Write a notice without a batch.
    Notice { peer: Rank, notice: Notice },
    /// The worker broke the protocol: close its channel.
    Expel { peer: Rank, reason: String },
    /// A chunk's image is taken, for its `State` in the stream to a server. `state` is the engine's part of it, and the weights in force
    /// are in buffer `live`. Answered by `LaneEngine::captured`.
    Capture { to: Rank, chunk: u32, state: Box<ChunkState>, live: u8 },
    /// Write a record into a slot of a server that has copies.
    Record {
        to: Rank,
        slot: SlotGrant,
        chunk: u32,
        /// The record; its payload is the part of the whole that `landing` says, of what [`Payload`] says.
        block: Block,
        /// What the whole is.
        payload: Payload,
        /// Which of [`Commands::contributors`].
        contributors: Range<usize>,
        /// Count of records on the channel.
        sequence: u64,
    },
    /// Tell the server whose chunks we have copies of.
    TellPrimary { from: Rank, notice: Notice },
    /// Part of the sum of a chunk that we have a copy of, `at` bytes after its start. `left`: the sum left its integers.
    TakeSum { chunk: u32, from: Source, at: u64, bytes: u64, left: bool },
    /// Part of an image of a chunk that we have a copy of, `at` bytes after the start of the image, which has `total` bytes.
    TakePart { from: Rank, part: Source, at: u64, bytes: u64, total: u64, chunk: u32 },
    /// The image is whole, with its last part in this slot: the chunk becomes what it says, in buffer `into`. `keeps_other`: the other
    /// buffer is being read. Answered by `LaneEngine::loaded`.
    Load { from: Rank, chunk: u32, into: u8, keeps_other: bool, slot: SlotGrant },
    /// Changes of a chunk's rule, of rounds after this one.
    TakeRules { from: Rank, chunk: u32, rules: Source, bytes: u64, after: u64 },
    /// The server at the other side of a stream broke the protocol: close its channel. `ours`: it is our stream to it, and not its
    /// stream to us.
    EndStream { peer: Rank, ours: bool, reason: String },
    /// Nobody needs what storage has of a chunk any more.
    Free { chunk: u32 },
    /// All that was being copied to a server, as of this epoch, is kept up there.
    Seeded { to: Rank, epoch: Epoch },
}

/// What a record carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload {
    /// Nothing.
    Nothing,
    /// Part of the chunk's sum.
    Sum,
    /// Part of the image that was captured last for this server.
    Image,
    /// The changes that the chunk's rule has to come.
    Rules,
}

/// A call as its batch brought it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallTaken {
    /// The call.
    pub call: u64,
    /// The worker.
    pub peer: Rank,
    /// Its process.
    pub life: Incarnation,
    /// The handler.
    pub app: u32,
    /// Its number among this worker's calls to the handler.
    pub operation: u64,
    /// Calls before this one are known to be answered.
    pub first_open: u64,
    /// Where the frame is.
    pub from: Source,
    /// Its bytes.
    pub frame_bytes: u64,
    /// Remote key of the worker's region with the rest of the body.
    pub region: u64,
    /// Bytes of the body.
    pub bytes: u64,
}

/// Memory of this server that a worker is granted, or shown. The runtime knows where it lies for the worker's channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "a name that says it all needs no sentence")]
pub enum Place {
    /// A spill block, for a payload.
    Spill(u32),
    /// The weights of a chunk, in one of its buffers.
    Weights { chunk: u32, buffer: u8 },
    /// The same, and they travel in the batch. The landing is where they are to be at the worker.
    Carried { chunk: u32, buffer: u8 },
}

/// A result block with the few bytes it may carry: ranks waited for, or small weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResultBlock {
    /// The table entry. If there is a `place`, its landing has the bytes of that only, except of a carried one.
    pub block: Block,
    /// What the block's landing is to name.
    pub place: Option<Place>,
    /// Ranks that were waited for, with `Status::DeadlineWaiting` and `Status::DeadlineReading`; ranks that come
    /// first, with `Status::Retry`.
    pub missing: Vec<Rank>,
    /// The call whose reply is the payload, of `block.bytes`.
    pub call: Option<u64>,
}

impl ResultBlock {
    /// The chunk and the buffer whose weights it carries.
    pub(super) fn carried(&self) -> Option<(u32, u8)> {
        match self.place {
            Some(Place::Carried { chunk, buffer }) => Some((chunk, buffer)),
            _ => None,
        }
    }

    /// Bytes that travel in the batch.
    #[must_use]
    pub fn inline_bytes(&self) -> u64 {
        match (self.place, self.call) {
            (Some(Place::Carried { .. }), _) => self.block.landing.map_or(0, |landing| landing.bytes),
            (_, Some(_)) => self.block.bytes,
            (_, None) => 4 * self.missing.len() as u64,
        }
    }
}

/// As [`Arrival::since_ms`]: now.
pub(super) const NOW_MS: u64 = u64::MAX;

/// When a contribution came to a round that `Finish` ends, for people. None where each contribution is an update of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Chunk index.
    pub chunk: u32,
    /// The round.
    pub round: u64,
    /// Whose it is.
    pub rank: Rank,
    /// When it came, or was first said to come; the greatest number: it is the one that completes the round.
    pub since_ms: u64,
}

/// A reused list of commands with what they refer to.
#[derive(Debug, Default)]
pub struct Commands {
    /// In order of execution.
    pub list: Vec<Command>,
    /// Result blocks that `Results` refers to.
    pub results: Vec<ResultBlock>,
    /// Grants that `Results` refers to.
    pub grants: Vec<SlotGrant>,
    /// Words of sets of contributors that `Record` refers to.
    pub contributors: Vec<u64>,
    /// Those of each `Finish`, in the order of these; as [`Commands::told_before_ms`] says.
    pub arrivals: Vec<Arrival>,
    /// Whoever executes them wants to know the arrivals of rounds whose first one came no later than this. 0: of none.
    pub told_before_ms: u64,
}

impl Commands {
    /// Forgets everything, keeps the memory.
    pub fn clear(&mut self) {
        self.list.clear();
        self.results.clear();
        self.grants.clear();
        self.contributors.clear();
        self.arrivals.clear();
    }

    pub(super) fn push(&mut self, command: Command) {
        self.list.push(command);
    }

    pub(super) fn expel(&mut self, peer: Rank, reason: impl Into<String>) {
        self.push(Command::Expel { peer, reason: reason.into() });
    }
}
