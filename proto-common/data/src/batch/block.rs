//! One entry of the block table: an operation on one chunk, or its result.

use crate::element::Dtype;
use crate::ids::{ChunkId, ChunkIndex, Key, Operation, Version};
use crate::limits::{BLOCK_BYTES, OPEN_SPAN_MAX};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, TryFromBytes, Unaligned};

/// The operation of a block. The number is the wire id and never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, TryFromBytes)]
#[repr(u8)]
pub enum OpKind {
    /// Contribute to a round; acknowledged when the round is published. Outside mode sync a contribution is applied by
    /// itself, and then acknowledged.
    Push = 1,
    /// Return the published weights of version `count` or later; with [`Block::exact`], of exactly that version.
    Pull = 2,
    /// Both: contribute, then return the version that the round produced.
    PushPull = 3,
    /// Set the initial value (the lowest rank of the workers that have not left), or wait until it is set (other workers,
    /// without payload).
    Init = 4,
    /// Only the content of [`Block::reading`]. Answered at once with the current version; outside mode sync with the
    /// number of applied contributions of its worker. With operation 0 it is no operation, and goes to a server that
    /// had the chunk before: views that this server gave to operations before `reading.from` are not read any more.
    Release = 5,
    /// A request to a handler of the server's program: see [`crate::call`]. `id` names handler and server, the payload
    /// is the request's frame, `count` the bytes of its body, `landing` the room for the reply (its region also
    /// contains the pieces of the body). Answers of calls before `first_open` are dropped. The result's payload has
    /// two bytes with the length of the reply's head, the head and, without a landing, the reply's body.
    Call = 6,
    /// Record of a stream: does the replica have version `count`? `operation` is the decision that assigns the
    /// replica, as a number. `token`: see [`crate::batch::RECORD_INITIALISED`]. No payload.
    CopyCheck = 16,
    /// Record: the sum of the contributions to round `count`. In records `landing` describes the whole of which the payload
    /// is a part: `bytes` and `offset`, and in `region` the bytes of the round's weights. A second block has the set
    /// of contributors. Outside mode sync `operation` is the count of the one worker that contributed.
    CopyUpdate = 17,
    /// Record: part of the chunk's image, of version `count`.
    CopyState = 18,
    /// Record: changes of the chunk's rule, in their place between updates.
    CopyRules = 19,
}

impl OpKind {
    /// The operation with this wire id.
    #[must_use]
    pub fn from_wire(id: u8) -> Option<Self> {
        Self::try_read_from_bytes(&[id]).ok()
    }

    /// Whether it counts as a contribution to a round.
    #[must_use]
    pub const fn contributes(self) -> bool {
        matches!(self, Self::Push | Self::PushPull)
    }

    /// Whether it ends with weights: in the worker's memory, or as a view.
    #[must_use]
    pub const fn lands(self) -> bool {
        matches!(self, Self::Pull | Self::PushPull)
    }
}

/// Record's token: the chunk has its initial value.
pub const RECORD_INITIALISED: u64 = 1;
/// Record's token: a sum of this round did not fit its integers.
pub const RECORD_LEFT: u64 = 2;

/// The result of an operation. The number is the wire id and never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, TryFromBytes)]
#[repr(u8)]
pub enum Status {
    /// In a request: no status yet.
    None = 0,
    /// Done. If weights were requested, they have arrived.
    Done = 1,
    /// Not now (spill area, order): send it again. The payload lists the ranks (u32) whose contributions must come
    /// first, if known.
    Retry = 2,
    /// Wrong server: the shard map has changed.
    Reroute = 3,
    /// The round did not complete in time; the payload lists the ranks (u32) that did not contribute.
    DeadlineWaiting = 4,
    /// The key or chunk is not declared at this server.
    UnknownChunk = 5,
    /// Dtype, length or landing does not match the declared chunk.
    WrongShape = 6,
    /// The operation violates the protocol (number reused, init after the first round, another codec than
    /// declared).
    Refused = 7,
    /// Answer to a contribution: a sum or new value of its round does not fit its integers. The round has ended, and
    /// the chunk's weights are those of the round before.
    BadValue = 8,
    /// The round is complete, but both buffers of weights were read until the deadline. The payload lists the ranks
    /// (u32) that still read older weights.
    DeadlineReading = 9,
    /// The batch's payload does not match its checksum: it changed on the way. Nothing of it was used; send it again,
    /// a bounded number of times. In a request: the worker has given up the operation because of this; it carries
    /// nothing and is refused, and its number is used up.
    Corrupt = 10,
    /// Answer to an announcement: `landing` is the buffer for the payload, for one write or, if requested, until the
    /// channel closes. Without a landing, also as an answer to a reference: no buffer is available, send the payload
    /// in a slot.
    Granted = 11,
    /// The payload is invalid for the tensor's codec. Nothing of it was used, and the operation's number is used up.
    Malformed = 12,
    /// The worker is too many contributions ahead of the slowest one for a bounded tensor. The payload lists the ranks
    /// (u32) that did not catch up in time.
    DeadlineBehind = 13,
    /// As [`Status::Done`], for a contribution whose round had ended without it, as with backup workers: it was
    /// dropped.
    Late = 14,
    /// Answer to a call at its deadline: the server's program has no handler for it.
    NoHandler = 15,
    /// Answer to a call: its handler dropped it without an answer, or it was answered before a channel broke and the
    /// answer is no longer stored.
    NoReply = 16,
    /// Answer to a call: the reply has `count` bytes, and the request had no room for it. Ask again, with room.
    ReplyRoom = 17,
    /// Answer to a call: with the calls of other workers the server has no room for this one now
    /// (`memory.call_bytes`). Send it again.
    CallRoom = 18,
    /// Answer to a call: the server has no memory for its body or reply, or cannot register it. The call has failed.
    NoMemory = 19,
    /// Answer to a pull of one exact version: newer versions have replaced it. `count` is the current one.
    VersionGone = 20,
    /// The round is complete, or this server has taken over the chunk, but a replica did not confirm in time. The
    /// payload lists the ranks (u32) of the servers with these replicas.
    DeadlineCopies = 21,
    /// For a tensor with norms: this server took over while its replica was being made, and its chunks have different
    /// rounds. No operation on the tensor can complete any more. `count` is this chunk's.
    Torn = 22,
    /// The round is complete, but the version before it was not copied for a checkpoint in time.
    DeadlineSaving = 23,
    /// Answer to an init without payload: all workers of lower ranks have left before they set the initial value. Send it
    /// again, with the payload.
    Unset = 24,
    /// In the request of a call: it was sent to an earlier process of this server, which may have handled it.
    Again = 25,
    /// Answer to a call: the state of its handler is lost, because its server failed, and the server with its journal, too.
    StateLost = 26,
}

impl Status {
    /// The status with this wire id.
    #[must_use]
    pub fn from_wire(id: u8) -> Option<Self> {
        Self::try_read_from_bytes(&[id]).ok()
    }
}

/// The place of a block's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockData {
    /// In this batch, `offset` bytes into the payload.
    Inline {
        /// Bytes from the payload's beginning.
        offset: u64,
    },
    /// In the sender's region, with a grant to read it.
    ByReference {
        /// The region's remote key.
        region: u64,
        /// Bytes from the region's beginning.
        offset: u64,
    },
    /// Not sent yet: the sender requests a buffer to write it into.
    Announced {
        /// For all contributions to the chunk while the channel is open, and not for one only.
        keep: bool,
    },
    /// In the buffer that the receiver has granted for this chunk; written before this batch.
    Placed,
    /// Nowhere: another worker of the same host has added the bytes to its own contribution to this round.
    Merged,
}

impl BlockData {
    /// How many of the block's bytes travel in the batch.
    #[must_use]
    pub const fn inline_bytes(&self, bytes: u64) -> u64 {
        match self {
            Self::Inline { .. } => bytes,
            Self::ByReference { .. } | Self::Announced { .. } | Self::Placed | Self::Merged => 0,
        }
    }
}

/// A grant to write `bytes`. In requests: for weights, at their final address, for one write. In results: see
/// [`Status::Granted`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Landing {
    /// Remote key of the grantor's region.
    pub region: u64,
    /// Bytes from the region's beginning.
    pub offset: u64,
    /// Bytes that may be written.
    pub bytes: u64,
}

/// Which views of a tensor a worker still reads: all views of operations from this number on, and some earlier ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// The first operation whose view may be read without being kept.
    pub from: Operation,
    /// The views of earlier operations that are still read.
    pub kept: Kept,
}

/// Which version of earlier views is still read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kept {
    /// None.
    #[default]
    None,
    /// Only this one.
    Version(Version),
    /// Possibly any.
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

/// What an operation counts. The table of blocks has a number for it, and the operation says which of these it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// Request: the round of the contribution, or the oldest acceptable version; outside mode sync the number of the
    /// worker's contributions so far, including this one. Result: the published version, which was also returned.
    Round(u64),
    /// Of a call. Request: the bytes of its body. Result: the bytes of the reply's body.
    Body(u64),
}

impl Count {
    /// What this number is in a block of that operation.
    #[inline]
    #[must_use]
    pub const fn of(op: OpKind, number: u64) -> Self {
        if matches!(op, OpKind::Call) { Self::Body(number) } else { Self::Round(number) }
    }

    /// The round; 0 of a call.
    #[inline]
    #[must_use]
    pub const fn round(self) -> u64 {
        if let Self::Round(round) = self { round } else { 0 }
    }

    /// The bytes of a body; 0 of what is no call.
    #[inline]
    #[must_use]
    pub const fn body_bytes(self) -> u64 {
        if let Self::Body(bytes) = self { bytes } else { 0 }
    }

    const fn to_wire(self) -> u64 {
        let (Self::Round(number) | Self::Body(number)) = self;
        number
    }
}

/// One operation on one chunk, or its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// The chunk.
    pub id: ChunkId,
    /// The operation.
    pub op: OpKind,
    /// The type of the payload's elements.
    pub dtype: Dtype,
    /// The encoding of the payload: [`crate::codec::Codec::wire_id`], 0 without one.
    pub codec: u8,
    /// The result; in requests [`Status::None`], or [`Status::Corrupt`].
    pub status: Status,
    /// The worker's operation number on the key.
    pub operation: Operation,
    /// Request: all earlier operations of the worker on the chunk have been answered. A server that has not seen them
    /// knows from this which operation is next. At most [`OPEN_SPAN_MAX`] before `operation`, and never after it.
    /// Results repeat it.
    pub first_open: Operation,
    /// The round or version that it is about; of a call, the bytes of a body.
    pub count: Count,
    /// Payload bytes.
    pub bytes: u64,
    /// The place of the payload.
    pub data: BlockData,
    /// Request: the address for weights. Result: the address for the payload; for a pull of a dynamic tensor, how many
    /// bytes arrived; for a view, where the weights are in the server's region.
    pub landing: Option<Landing>,
    /// Request: return a view instead of a copy of the weights. Result: `landing` says where the weights are. They do
    /// not change until a request says that they are not read any more.
    pub view: bool,
    /// Request, for pulls: exactly the version that `count` names, and no later one.
    pub exact: bool,
    /// Request: which views of this tensor the worker still reads.
    pub reading: Reading,
    /// Request: the server answers within this time even if the round is not complete; 0 means at once.
    pub timeout_ms: u32,
    /// Chosen by the requester, repeated in the result.
    pub token: u64,
}

impl Block {
    /// A block that says no more than this; an answer, where a status is added.
    #[inline]
    #[must_use]
    pub fn bare(id: ChunkId, op: OpKind, dtype: Dtype, operation: Operation) -> Self {
        Self {
            id,
            op,
            dtype,
            codec: 0,
            status: Status::None,
            operation,
            first_open: operation,
            count: Count::of(op, 0),
            bytes: 0,
            data: BlockData::Inline { offset: 0 },
            landing: None,
            view: false,
            exact: false,
            reading: Reading::default(),
            timeout_ms: 0,
            token: 0,
        }
    }
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
    /// `first_open`, as the distance before `operation`.
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
const FLAG_MERGED: u8 = 128;

impl Block {
    pub(super) fn to_raw(self) -> RawBlock {
        let (data_flags, source_region, offset) = match self.data {
            BlockData::Inline { offset } => (0, 0, offset),
            BlockData::ByReference { region, offset } => (FLAG_BY_REFERENCE, region, offset),
            BlockData::Announced { keep: false } => (FLAG_ANNOUNCED, 0, 0),
            BlockData::Announced { keep: true } => (FLAG_ANNOUNCED | FLAG_KEEP, 0, 0),
            BlockData::Placed => (FLAG_PLACED, 0, 0),
            BlockData::Merged => (FLAG_MERGED, 0, 0),
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
            round: U64::new(self.count.to_wire()),
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

    /// Larger distances are never sent: workers wait.
    fn open_span(&self) -> u16 {
        let span = self.operation.0.saturating_sub(self.first_open.0);
        debug_assert!(span <= OPEN_SPAN_MAX, "operation {} is too far ahead", self.operation);
        u16::try_from(span).unwrap_or(u16::MAX)
    }

    /// The typed form; `None` if an id or flag is unknown, if an unused field is not zero, or if operations from
    /// before the first one are open.
    pub(super) fn from_raw(raw: &RawBlock) -> Option<Self> {
        if raw.reserved0 != 0 {
            return None;
        }
        let first_open = raw.operation.get().checked_sub(u64::from(raw.open_span.get()))?;
        let (op, data) = (OpKind::from_wire(raw.op)?, data_from_raw(raw)?);
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
            op,
            dtype: Dtype::from_wire(raw.dtype)?,
            codec: raw.codec,
            status: Status::from_wire(raw.status)?,
            operation: Operation(raw.operation.get()),
            first_open: Operation(first_open),
            count: Count::of(op, raw.round.get()),
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

/// The place of the bytes. Exactly one kind is used, and fields of the other kinds must be zero.
fn data_from_raw(raw: &RawBlock) -> Option<BlockData> {
    const KEPT: u8 = FLAG_ANNOUNCED | FLAG_KEEP;
    let place = (raw.source_region.get(), raw.offset.get());
    Some(match (raw.flags & !(FLAG_LANDING | FLAG_VIEW | FLAG_EXACT), place) {
        (0, (0, offset)) => BlockData::Inline { offset },
        (FLAG_BY_REFERENCE, (region, offset)) => BlockData::ByReference { region, offset },
        (FLAG_ANNOUNCED, (0, 0)) => BlockData::Announced { keep: false },
        (KEPT, (0, 0)) => BlockData::Announced { keep: true },
        (FLAG_PLACED, (0, 0)) => BlockData::Placed,
        (FLAG_MERGED, (0, 0)) => BlockData::Merged,
        _ => return None,
    })
}
