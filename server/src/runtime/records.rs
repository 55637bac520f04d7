//! The streams that a lane has to and from other servers: channels, slots, and what waits to be posted. It must not post anything.

use super::message::LaneNews;
use crate::engine::Payload;
use crate::storage::Cells;
use fabric::{Blocks, ChannelId, Exclusive};
use proto_common::batch::SlotGrant;
use proto_common::ids::Rank;
use proto_common::message::InboxGrant;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;

/// Bytes of a record that are not its payload: a table of two blocks, and a set of contributors or changes of a rule.
pub(super) const PREFIX_BYTES: u64 = 8 << 10;

/// A record that is encoded; what it carries is found again when it is posted.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordPost {
    pub(super) slot: SlotGrant,
    pub(super) chunk: u32,
    pub(super) payload: Payload,
    /// Of the whole.
    pub(super) at: u64,
    pub(super) bytes: u64,
    /// Where the payload starts, and what follows it.
    pub(super) prefix_bytes: u64,
    pub(super) extra_bytes: u64,
}

/// Our stream to a server.
#[derive(Debug)]
pub(super) struct StreamLink {
    pub(super) to: Rank,
    /// Of the dial that connected it.
    pub(super) number: u64,
    pub(super) channel: ChannelId,
    pub(super) inbox: InboxGrant,
    /// A block for each slot: it is free when the slot is.
    pub(super) prefixes: Blocks,
    /// The image that is being sent.
    pub(super) image: Option<Exclusive>,
    /// Not taken by the channel yet; no more than slots.
    pub(super) backlog: VecDeque<RecordPost>,
}

/// A server's stream to us.
#[derive(Debug)]
pub(super) struct CopyLink {
    pub(super) from: Rank,
    pub(super) channel: ChannelId,
    pub(super) cells: Cells,
    /// The image that is coming.
    pub(super) image: Vec<u8>,
    pub(super) backlog: VecDeque<u32>,
    /// It is to end: nothing is said to it any more, and it is closed when what it was taken from is executed.
    pub(super) is_over: bool,
}

/// The streams of a lane.
#[derive(Debug, Default)]
pub(super) struct Replicas {
    pub(super) streams: Vec<StreamLink>,
    pub(super) copies: Vec<CopyLink>,
    /// Whose each channel is, and whether it is a stream of ours.
    pub(super) channels: FxHashMap<ChannelId, (Rank, bool)>,
    pub(super) news: VecDeque<LaneNews>,
    pub(super) captured: Vec<u8>,
    pub(super) words: Vec<u64>,
    /// Some stream to us is to end.
    pub(super) some_over: bool,
}
