//! What the engine wants done. Commands carry ids and numbers, never senders or pointers, and are executed
//! strictly in order. Their vectors are reused, so that deciding allocates nothing in steady state.

use super::image::ChunkState;
use proto_common::batch::{Block, Landing, Notice, SlotGrant};
use proto_common::ids::{Epoch, Rank};
use std::ops::Range;

/// Where a contribution's bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// In a slot of the inbox, this many bytes after the slot's start.
    Slot {
        /// The slot.
        slot: u32,
        /// Bytes from the slot's start.
        offset: u64,
    },
    /// In a spill block.
    Spill(u32),
    /// In a slot of the stream from a server whose chunks we have copies of. As a contribution it is a whole sum: plain
    /// numbers, whatever the tensor's codec.
    Record {
        /// The server.
        from: Rank,
        /// The slot.
        slot: u32,
        /// Bytes from the slot's start.
        offset: u64,
    },
    /// In the worker's own memory, which can be read where it lies.
    Worker {
        /// The worker.
        peer: Rank,
        /// Its region's key.
        region: u64,
        /// Bytes from the region's start.
        offset: u64,
        /// Its bytes.
        bytes: u64,
    },
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

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// The commands that follow are about the first so many bytes of a dynamic chunk.
    Size {
        /// Chunk index.
        chunk: u32,
        /// Its length for now.
        bytes: u64,
    },
    /// The sum goes to the accumulator.
    Reduce {
        /// Chunk index within the lane.
        chunk: u32,
        /// The contribution.
        addend: Addend,
    },
    /// The round is complete: update rule over the accumulator and, where given, one last contribution that
    /// was not reduced yet; the new weights go to buffer `into`. Answered by `LaneEngine::finished`.
    Finish {
        /// Chunk index.
        chunk: u32,
        /// The round, counted from 1.
        round: u64,
        /// The last contribution, fused into the update's pass.
        last: Option<Addend>,
        /// Which of the two weight buffers holds the version in force.
        old: u8,
        /// Which one is written; the same one where nobody reads it.
        into: u8,
        /// How many contributed.
        contributors: u32,
    },
    /// All have contributed to a chunk whose tensor's norms count: its step, and its share of the norms, are computed. Its
    /// weights stay; `Finish` follows when all chunks of the tensor are prepared.
    Prepare {
        /// Chunk index.
        chunk: u32,
        /// The round, counted from 1.
        round: u64,
        /// The last contribution, where it was not reduced yet.
        last: Option<Addend>,
        /// The buffer with the weights in force.
        old: u8,
        /// How many contributed.
        contributors: u32,
    },
    /// These are all chunks of a tensor, prepared: their shares, in this order, make its norms.
    Norms {
        /// Chunk indices.
        chunks: Range<u32>,
    },
    /// The initial value of the chunk.
    Init {
        /// Chunk index.
        chunk: u32,
        /// Its bytes.
        from: Source,
        /// Which buffer.
        into: u8,
    },
    /// Copy a contribution out of its slot.
    Spill {
        /// Chunk index, for the length.
        chunk: u32,
        /// Where it is.
        from: Source,
        /// The spill block.
        to: u32,
    },
    /// Read a contribution one-sided out of the worker's memory. Answered by `LaneEngine::fetched`.
    Fetch {
        /// The worker.
        peer: Rank,
        /// Chunk index, for the length.
        chunk: u32,
        /// Remote key of the worker's region.
        region: u64,
        /// Bytes from the region's start.
        offset: u64,
        /// The spill block.
        to: u32,
    },
    /// Write weights one-sided to where the operation granted. Answered by `LaneEngine::landed`.
    Land {
        /// The worker.
        peer: Rank,
        /// Chunk index.
        chunk: u32,
        /// Which buffer.
        buffer: u8,
        /// Where to.
        landing: Landing,
    },
    /// Copy the weights in a buffer into a spill block, and let workers that have not copied them yet copy those. Answered by
    /// `LaneEngine::relieved`.
    Relieve {
        /// Chunk index.
        chunk: u32,
        /// Which buffer.
        buffer: u8,
        /// The spill block.
        to: u32,
    },
    /// Copy a call's frame out of its slot, and read what its worker has of the body. Answered by
    /// `LaneEngine::call_arrived`.
    CallTake(CallTaken),
    /// The call goes to its handler, which answers with `LaneEngine::call_answered`.
    CallDeliver {
        /// The call.
        call: u64,
    },
    /// The call is answered: its handler need not begin with it.
    CallCancel {
        /// The call.
        call: u64,
    },
    /// Write a reply's body one-sided to where the call granted. Answered by `LaneEngine::call_landed`, when all of it is on
    /// its way.
    CallLand {
        /// The worker.
        peer: Rank,
        /// The call.
        call: u64,
        /// Where to.
        landing: Landing,
    },
    /// Nothing is kept of the call any more.
    CallDrop {
        /// The call.
        call: u64,
    },
    /// Write a batch of results into a slot of the worker's inbox.
    Results {
        /// The worker.
        peer: Rank,
        /// The slot of its inbox.
        slot: SlotGrant,
        /// Which of [`Commands::results`].
        results: Range<usize>,
        /// Which of [`Commands::grants`].
        grants: Range<usize>,
        /// Count of batches on the channel.
        sequence: u64,
    },
    /// Write a notice without a batch.
    Notice {
        /// The worker.
        peer: Rank,
        /// What it says.
        notice: Notice,
    },
    /// The worker broke the protocol: close its channel.
    Expel {
        /// The worker.
        peer: Rank,
        /// What it did.
        reason: String,
    },
    /// A chunk's image is taken, for its `State` in a stream. Answered by `LaneEngine::captured`.
    Capture {
        /// The server that is to have it.
        to: Rank,
        /// Chunk index.
        chunk: u32,
        /// The engine's part.
        state: Box<ChunkState>,
        /// The buffer with the weights in force.
        live: u8,
    },
    /// Write a record into a slot of a server that has copies.
    Record {
        /// The server.
        to: Rank,
        /// The slot.
        slot: SlotGrant,
        /// Chunk index.
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
    TellPrimary {
        /// The server.
        from: Rank,
        /// What.
        notice: Notice,
    },
    /// The sum of a chunk that we have a copy of: so many bytes of it are there.
    TakeSum {
        /// Chunk index.
        chunk: u32,
        /// Where they are.
        from: Source,
        /// Bytes of the sum before them.
        at: u64,
        /// How many.
        bytes: u64,
        /// The sum left its integers.
        left: bool,
    },
    /// Part of an image of a chunk that we have a copy of.
    TakePart {
        /// Whose stream.
        from: Rank,
        /// Where it is.
        part: Source,
        /// Bytes of the image before it.
        at: u64,
        /// How many.
        bytes: u64,
        /// Bytes of the image.
        total: u64,
        /// Chunk index.
        chunk: u32,
    },
    /// The image is whole: the chunk becomes what it says, in buffer `into`. Answered by `LaneEngine::loaded`.
    Load {
        /// Whose stream.
        from: Rank,
        /// Chunk index.
        chunk: u32,
        /// The buffer for the weights.
        into: u8,
        /// The other buffer is being read.
        keeps_other: bool,
        /// The slot of the last part.
        slot: SlotGrant,
    },
    /// Changes of a chunk's rule, of rounds after this one.
    TakeRules {
        /// Whose stream.
        from: Rank,
        /// Chunk index.
        chunk: u32,
        /// Where they are.
        rules: Source,
        /// How many bytes.
        bytes: u64,
        /// The version that is there.
        after: u64,
    },
    /// A stream's, or a copy's, other side broke the protocol: close its channel.
    EndStream {
        /// The other server.
        peer: Rank,
        /// It is our stream to it, and not its stream to us.
        ours: bool,
        /// What it did.
        reason: String,
    },
    /// Nobody needs what storage has of a chunk any more.
    Free {
        /// Chunk index.
        chunk: u32,
    },
    /// All that was being copied to a server is kept up there.
    Seeded {
        /// The server.
        to: Rank,
        /// As of this epoch.
        epoch: Epoch,
    },
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
    /// The handler.
    pub app: u32,
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
pub enum Place {
    /// A spill block, for a payload.
    Spill(u32),
    /// The weights of a chunk, in one of its buffers.
    Weights {
        /// Chunk index.
        chunk: u32,
        /// Which buffer.
        buffer: u8,
    },
}

/// A result block with the few bytes it may carry (ranks waited for).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResultBlock {
    /// The table entry. Where there is a `place`, its landing has the bytes of that only.
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
    /// Bytes that travel in the batch.
    #[must_use]
    pub fn inline_bytes(&self) -> u64 {
        if self.call.is_some() { self.block.bytes } else { 4 * self.missing.len() as u64 }
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
