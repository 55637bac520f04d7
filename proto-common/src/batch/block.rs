//! One entry of the block table: an operation on one chunk, or its result.

use crate::element::Dtype;
use crate::ids::{ChunkId, ChunkIndex, Key, Operation, Version};
use crate::limits::{BLOCK_BYTES, OPEN_SPAN_MAX};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// What an operation does. The number is the wire id and never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum OpKind {
    /// Contribute to a round; acknowledged when the round is published. Outside mode sync a contribution is applied by
    /// itself, and then acknowledged.
    Push = 1,
    /// Land the published weights of version `round` or later; where it is [`Block::exact`], of that version.
    Pull = 2,
    /// Both: contribute, then land the version that the round made.
    PushPull = 3,
    /// Set the initial value (worker rank 0 only) or wait until it is set (the others, without payload).
    Init = 4,
    /// No more than what [`Block::reading`] says; answered at once, with the version in force: outside mode sync with how many of
    /// its worker's contributions are. With operation 0 it is none, and goes to a server that had the chunk before: what that
    /// one showed to operations before `reading.from` is not read any more.
    Release = 5,
    /// A request to a handler of the server's program: see [`crate::call`]. `id` names handler and server, the payload is
    /// the request's frame, `round` the bytes of its body, `landing` room for the reply's (its region is also where pieces
    /// of the body lie). Answers of calls before `first_open` are kept no longer. The result's payload is two bytes with the
    /// length of the reply's head, the head and, where there is no landing, the body of `round` bytes.
    Call = 6,
    /// Record of a stream: has the copy version `round`? `operation`: the decision that there is to be one, as a number.
    /// `token`: see [`crate::batch::RECORD_INITIALISED`]. No payload.
    CopyCheck = 16,
    /// Record: the contributions of `round`, summed. In records `landing` says of which whole the payload is a part: `bytes`
    /// and `offset`, and in `region` bytes of the round's weights. A second block has the set of contributors; `operation` is
    /// the count of the one worker that contributed, outside mode sync.
    CopyUpdate = 17,
    /// Record: part of the chunk's image, of version `round`.
    CopyState = 18,
    /// Record: changes of the chunk's rule, in their place between updates.
    CopyRules = 19,
}

impl OpKind {
    /// The operation with this wire id.
    #[must_use]
    pub const fn from_wire(id: u8) -> Option<Self> {
        Some(match id {
            1 => Self::Push,
            2 => Self::Pull,
            3 => Self::PushPull,
            4 => Self::Init,
            5 => Self::Release,
            6 => Self::Call,
            16 => Self::CopyCheck,
            17 => Self::CopyUpdate,
            18 => Self::CopyState,
            19 => Self::CopyRules,
            _ => return None,
        })
    }

    /// Is it a record of a stream between servers? Workers send none.
    #[must_use]
    pub const fn is_record(self) -> bool {
        matches!(self, Self::CopyCheck | Self::CopyUpdate | Self::CopyState | Self::CopyRules)
    }

    /// Does it count as a round's contribution?
    #[must_use]
    pub const fn contributes(self) -> bool {
        matches!(self, Self::Push | Self::PushPull)
    }

    /// Does it end with weights: in the worker's key buffer, or with a view of them?
    #[must_use]
    pub const fn lands(self) -> bool {
        matches!(self, Self::Pull | Self::PushPull)
    }
}

/// Record's token: the chunk has its initial value.
pub const RECORD_INITIALISED: u64 = 1;
/// Record's token: a sum of this round left its integers.
pub const RECORD_LEFT: u64 = 2;

/// How an operation ended. The number is the wire id and never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Status {
    /// In a request: no status yet.
    None = 0,
    /// Done; weights, if any were to land, have landed.
    Done = 1,
    /// Not now (spill budget, order): send it again. The payload lists the ranks (u32) whose contributions have to
    /// come first, where that is known.
    Retry = 2,
    /// Not here: the shard map has changed.
    Reroute = 3,
    /// The round did not complete in time; the payload lists the ranks (u32) that did not contribute.
    DeadlineWaiting = 4,
    /// The key or chunk is not declared at this server.
    UnknownChunk = 5,
    /// Dtype, length or landing does not fit the declared chunk.
    WrongShape = 6,
    /// The operation breaks the protocol (number reused, init from a rank other than 0, another codec than declared).
    Refused = 7,
    /// To a contribution to a round whose sum, or new value, its integers cannot hold. The round has ended, and the
    /// chunk's weights are those of the round before.
    BadValue = 8,
    /// The round is complete, but its weights found no place in time: the payload lists the ranks (u32) that
    /// still read older ones.
    DeadlineReading = 9,
    /// The batch's payload is not what its checksum says: it changed on the way. Nothing of it was taken; send it
    /// again, but not for ever. In a request: the operation is given up for that, carries nothing, and is refused; its
    /// number is used up.
    Corrupt = 10,
    /// To an announcement: `landing` is the buffer to write the payload into, for one landing or, where that was asked
    /// for, until the channel ends. Without a landing, also to a reference: none is to be had, send it in a slot.
    Granted = 11,
    /// The payload is not what the tensor's codec makes: nothing of it was taken, and the operation's number is used up.
    Malformed = 12,
    /// The worker has made more contributions to a bounded tensor than the slowest one may be behind: the payload lists
    /// the ranks (u32) that did not catch up in time.
    DeadlineBehind = 13,
    /// As [`Status::Done`], to a contribution to a round that had ended without it, as rounds of tensors with backup
    /// workers do: it was dropped.
    Late = 14,
    /// To a call whose deadline is over: the server's program has no handler for it.
    NoHandler = 15,
    /// To a call: its handler let it go without an answer, or the answer came before a channel broke and is not kept any
    /// more.
    NoReply = 16,
    /// To a call: the reply has `round` bytes, for which the request had no room; ask again, with room.
    ReplyRoom = 17,
    /// To a call: beside what the server keeps of others (`memory.call_bytes`) it has no room for this one now; send it
    /// again.
    CallRoom = 18,
    /// To a call: the server has no memory for its body or its reply, or cannot register it. The call is over.
    NoMemory = 19,
    /// To a pull that asks for one version exactly: it is not there, because newer ones have taken its place. `round` is the one
    /// in force.
    VersionGone = 20,
    /// The round is complete, or what there was before this server had the chunk is to be told, but a copy was not confirmed in
    /// time: the payload lists the ranks (u32) of the servers with it.
    DeadlineCopies = 21,
    /// Of a tensor with norms: this server took over while its copy was being made, and has its chunks at different rounds.
    /// Nothing ends them any more. `round` is this one's.
    Torn = 22,
    /// The round is complete, but the version before it was not copied for a checkpoint in time.
    DeadlineSaving = 23,
}

impl Status {
    /// The status with this wire id.
    #[must_use]
    pub const fn from_wire(id: u8) -> Option<Self> {
        Some(match id {
            0 => Self::None,
            1 => Self::Done,
            2 => Self::Retry,
            3 => Self::Reroute,
            4 => Self::DeadlineWaiting,
            5 => Self::UnknownChunk,
            6 => Self::WrongShape,
            7 => Self::Refused,
            8 => Self::BadValue,
            9 => Self::DeadlineReading,
            10 => Self::Corrupt,
            11 => Self::Granted,
            12 => Self::Malformed,
            13 => Self::DeadlineBehind,
            14 => Self::Late,
            15 => Self::NoHandler,
            16 => Self::NoReply,
            17 => Self::ReplyRoom,
            18 => Self::CallRoom,
            19 => Self::NoMemory,
            20 => Self::VersionGone,
            21 => Self::DeadlineCopies,
            22 => Self::Torn,
            23 => Self::DeadlineSaving,
            _ => return None,
        })
    }
}

/// Where a block's bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockData {
    /// In this batch, `offset` bytes into the payload.
    Inline {
        /// Bytes from the payload's start.
        offset: u64,
    },
    /// In the sender's own region, by a grant to read.
    ByReference {
        /// The region's remote key.
        region: u64,
        /// Bytes from the region's start.
        offset: u64,
    },
    /// Not sent yet: the sender asks for a buffer to write it into.
    Announced {
        /// For all contributions to the chunk while the channel lives, not for one only.
        keep: bool,
    },
    /// In the buffer that the receiver granted for this chunk, written there before this batch.
    Placed,
}

impl BlockData {
    /// How many of the block's bytes travel in the batch.
    #[must_use]
    pub const fn inline_bytes(&self, bytes: u64) -> u64 {
        match self {
            Self::Inline { .. } => bytes,
            Self::ByReference { .. } | Self::Announced { .. } | Self::Placed => 0,
        }
    }
}

/// A grant to write `bytes`: in requests of weights at their final address, for one landing; in results see
/// [`Status::Granted`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Landing {
    /// Remote key of the granter's region.
    pub region: u64,
    /// Bytes from the region's start.
    pub offset: u64,
    /// Bytes that may be written.
    pub bytes: u64,
}

/// Which views of a tensor a worker still reads: those that operations from this number on are given, and of earlier ones
/// what is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// The first operation whose view may be read without being kept.
    pub from: Operation,
    /// Of views that operations before were given.
    pub kept: Kept,
}

/// Which version of earlier views is still read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kept {
    /// None is.
    #[default]
    None,
    /// This one only.
    Version(Version),
    /// Any may be.
    All,
}

impl Kept {
    const ALL: u64 = u64::MAX;

    fn to_wire(self) -> u64 {
        match self {
            Self::None => 0,
            // No tensor has had so many rounds.
            Self::Version(version) => version.0.saturating_add(1),
            Self::All => Self::ALL,
        }
    }

    fn from_wire(wire: u64) -> Self {
        match wire {
            0 => Self::None,
            Self::ALL => Self::All,
            version => Self::Version(Version(version - 1)),
        }
    }
}

/// One operation on one chunk, or its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Which chunk.
    pub id: ChunkId,
    /// What is done to it.
    pub op: OpKind,
    /// Type of the payload's elements.
    pub dtype: Dtype,
    /// How the payload is encoded: [`crate::codec::Codec::wire_id`], 0 where there is none.
    pub codec: u8,
    /// How it ended; in requests [`Status::None`], or [`Status::Corrupt`].
    pub status: Status,
    /// The worker's operation number on the key.
    pub operation: Operation,
    /// Request: all of the worker's operations on the chunk before this one have been answered. A server that never heard of them
    /// knows what comes next. At most [`OPEN_SPAN_MAX`] before `operation`, and never behind it. Results echo it.
    pub first_open: Operation,
    /// Request: the round contributed to, or the least version wanted; outside mode sync the worker's contributions so
    /// far, counting this one. Result: the version published, and that landed.
    pub round: u64,
    /// Payload bytes.
    pub bytes: u64,
    /// Where the payload is.
    pub data: BlockData,
    /// Request: where weights are to land. Result: where the payload is to be written; of a dynamic tensor's pull, how
    /// many bytes landed; of a view, where the weights lie in the server's region.
    pub landing: Option<Landing>,
    /// Request: weights are not to land, but to be read where they lie. Result: `landing` says where that is; they stay
    /// as they are until a request says that they are not read any more.
    pub view: bool,
    /// Request, of pulls: weights of version `round` are wanted, and not of a later one.
    pub exact: bool,
    /// Request: what the worker still reads of what it was shown of this tensor.
    pub reading: Reading,
    /// Request: the server answers within this time even if the round is not complete; 0 means at once.
    pub timeout_ms: u32,
    /// Chosen by the requester, echoed in the result.
    pub token: u64,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct RawBlock {
    key: U64,
    chunk: U32,
    op: u8,
    dtype: u8,
    codec: u8,
    flags: u8,
    operation: U64,
    round: U64,
    bytes: U64,
    offset: U64,
    source_region: U64,
    landing_region: U64,
    landing_offset: U64,
    landing_bytes: U64,
    views_from: U64,
    views_kept: U64,
    token: U64,
    timeout_ms: U32,
    status: u8,
    reserved0: u8,
    /// `first_open`, as how far before `operation` it is.
    open_span: U16,
}

const _: () = assert!(size_of::<RawBlock>() == BLOCK_BYTES);

const FLAG_BY_REFERENCE: u8 = 1;
const FLAG_LANDING: u8 = 2;
const FLAG_ANNOUNCED: u8 = 4;
const FLAG_KEEP: u8 = 8;
const FLAG_PLACED: u8 = 16;
const FLAG_VIEW: u8 = 32;
const FLAG_EXACT: u8 = 64;

impl Block {
    pub(super) fn to_raw(self) -> RawBlock {
        let (data_flags, source_region, offset) = match self.data {
            BlockData::Inline { offset } => (0, 0, offset),
            BlockData::ByReference { region, offset } => (FLAG_BY_REFERENCE, region, offset),
            BlockData::Announced { keep: false } => (FLAG_ANNOUNCED, 0, 0),
            BlockData::Announced { keep: true } => (FLAG_ANNOUNCED | FLAG_KEEP, 0, 0),
            BlockData::Placed => (FLAG_PLACED, 0, 0),
        };
        let landing = self.landing.unwrap_or(Landing { region: 0, offset: 0, bytes: 0 });
        RawBlock {
            key: U64::new(self.id.key.0),
            chunk: U32::new(self.id.chunk.0),
            op: self.op as u8,
            dtype: self.dtype as u8,
            codec: self.codec,
            flags: data_flags
                | if self.landing.is_some() { FLAG_LANDING } else { 0 }
                | if self.view { FLAG_VIEW } else { 0 }
                | if self.exact { FLAG_EXACT } else { 0 },
            operation: U64::new(self.operation.0),
            round: U64::new(self.round),
            bytes: U64::new(self.bytes),
            offset: U64::new(offset),
            source_region: U64::new(source_region),
            landing_region: U64::new(landing.region),
            landing_offset: U64::new(landing.offset),
            landing_bytes: U64::new(landing.bytes),
            views_from: U64::new(self.reading.from.0),
            views_kept: U64::new(self.reading.kept.to_wire()),
            token: U64::new(self.token),
            timeout_ms: U32::new(self.timeout_ms),
            status: self.status as u8,
            reserved0: 0,
            open_span: U16::new(self.open_span()),
        }
    }

    /// What lies further back than can be said is never sent: workers wait with it.
    fn open_span(&self) -> u16 {
        let span = self.operation.0.saturating_sub(self.first_open.0);
        debug_assert!(span <= OPEN_SPAN_MAX, "operation {} is too far ahead", self.operation);
        u16::try_from(span).unwrap_or(u16::MAX)
    }

    /// The typed form; `None` when an id or flag is unknown, an unused field is not zero, or operations from before the first
    /// one are open.
    pub(super) fn from_raw(raw: &RawBlock) -> Option<Self> {
        if raw.reserved0 != 0 {
            return None;
        }
        let first_open = raw.operation.get().checked_sub(u64::from(raw.open_span.get()))?;
        let data = data_from_raw(raw)?;
        let landing = Landing {
            region: raw.landing_region.get(),
            offset: raw.landing_offset.get(),
            bytes: raw.landing_bytes.get(),
        };
        let landing = if raw.flags & FLAG_LANDING != 0 {
            Some(landing)
        } else if landing == (Landing { region: 0, offset: 0, bytes: 0 }) {
            None
        } else {
            return None;
        };
        Some(Self {
            id: ChunkId { key: Key(raw.key.get()), chunk: ChunkIndex(raw.chunk.get()) },
            op: OpKind::from_wire(raw.op)?,
            dtype: Dtype::from_wire(raw.dtype)?,
            codec: raw.codec,
            status: Status::from_wire(raw.status)?,
            operation: Operation(raw.operation.get()),
            first_open: Operation(first_open),
            round: raw.round.get(),
            bytes: raw.bytes.get(),
            data,
            landing,
            view: raw.flags & FLAG_VIEW != 0,
            exact: raw.flags & FLAG_EXACT != 0,
            reading: Reading {
                from: Operation(raw.views_from.get()),
                kept: Kept::from_wire(raw.views_kept.get()),
            },
            timeout_ms: raw.timeout_ms.get(),
            token: raw.token.get(),
        })
    }
}

/// Where the bytes are: one way at a time, and no field that this way has no use for.
fn data_from_raw(raw: &RawBlock) -> Option<BlockData> {
    const KEPT: u8 = FLAG_ANNOUNCED | FLAG_KEEP;
    let place = (raw.source_region.get(), raw.offset.get());
    Some(match (raw.flags & !(FLAG_LANDING | FLAG_VIEW | FLAG_EXACT), place) {
        (0, (0, offset)) => BlockData::Inline { offset },
        (FLAG_BY_REFERENCE, (region, offset)) => BlockData::ByReference { region, offset },
        (FLAG_ANNOUNCED, (0, 0)) => BlockData::Announced { keep: false },
        (KEPT, (0, 0)) => BlockData::Announced { keep: true },
        (FLAG_PLACED, (0, 0)) => BlockData::Placed,
        _ => return None,
    })
}
