//! One worker's channel on one lane: what is posted, what waits to be posted, what is not completed.

use super::moving::Moves;
use crate::engine::FenceId;
use fabric::{ChannelId, MappedRegions, RemoteKey, RemoteSpan};
use proto_common::batch::{Landing, SlotGrant};
use proto_common::ids::Rank;
use std::collections::VecDeque;

/// A worker's inbox on this lane, from its bootstrap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerInbox {
    /// Remote key of its region.
    pub region: u64,
    /// Bytes from the region's start to slot 0.
    pub offset: u64,
    /// Bytes of a slot.
    pub slot_bytes: u64,
    /// First grants.
    pub grants: Vec<SlotGrant>,
}

/// Something to be written to a worker, in order.
#[derive(Clone, Copy, Debug)]
pub(super) enum Post {
    /// Weights to where the operation granted; out of this spill block, where they were moved from their buffer.
    Land { chunk: u32, buffer: u8, bytes: u64, landing: Landing, moved: Option<u32> },
    /// A result batch, encoded in a prefix block.
    Results { slot: SlotGrant, block: u32, bytes: u64 },
    /// A contribution, read out of its memory into a spill block.
    Fetch { chunk: u32, block: u32, bytes: u64, from: RemoteSpan },
    /// Part of a call's body, read out of its memory.
    CallRead { call: u64, at: u64, bytes: u64, from: RemoteSpan },
    /// Part of a reply's body, to where the call granted.
    CallLand { call: u64, at: u64, landing: Landing },
    /// A bare notice.
    Notice(u32),
}

/// What a posted read was for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fetch {
    /// A contribution.
    Chunk { chunk: u32, block: u32 },
    /// Part of a call's body.
    Call { call: u64, bytes: u64 },
}

/// What a posted write was for, by its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Posted {
    Land {
        chunk: u32,
        buffer: u8,
    },
    Block(u32),
    /// Of this call. Calls are counted; no server has had as many as the bits that tell it apart would hide.
    Reply(u64),
}

const BLOCK: u64 = 1 << 63;
const REPLY: u64 = 1 << 62;

impl Posted {
    pub(super) fn to_id(self) -> u64 {
        match self {
            Self::Land { chunk, buffer } => u64::from(chunk) << 8 | u64::from(buffer),
            Self::Block(block) => BLOCK | u64::from(block),
            Self::Reply(call) => REPLY | call,
        }
    }

    pub(super) fn from_id(id: u64) -> Self {
        if id & BLOCK != 0 {
            Self::Block(id as u32)
        } else if id & REPLY != 0 {
            Self::Reply(id & !REPLY)
        } else {
            Self::Land { chunk: (id >> 8) as u32, buffer: id as u8 }
        }
    }
}

#[derive(Debug)]
pub(super) struct Link {
    pub(super) channel: ChannelId,
    pub(super) inbox: WorkerInbox,
    /// Its memory is read in place: as it was when the channel came, because what came over it is judged by that even
    /// when it has ended since.
    pub(super) in_place: bool,
    /// Contributions may lie in its memory only: its fence is pending until they have been read.
    pub(super) reads: bool,
    /// Remote key under which the worker writes into our spill blocks.
    /// The worker learns it with the first grant only: most workers never write there.
    pub(super) spill_key: Option<u64>,
    /// Remote key under which the worker reads our weights in place; told with the first view.
    pub(super) weights_key: Option<u64>,
    /// The worker's regions that contributions were read in, mapped here, by key. Bounded by what a channel hands over.
    pub(super) mapped: MappedRegions,
    /// Not taken by the channel yet. Bounded: the engine bounds a worker's unanswered operations.
    pub(super) backlog: VecDeque<Post>,
    /// Posted and not completed, in order.
    pub(super) posted: VecDeque<Posted>,
    /// Of the reads posted and not completed, in order.
    pub(super) fetches: VecDeque<Fetch>,
    /// Bodies and replies of calls.
    pub(super) moves: Moves,
}

impl Link {
    pub(super) fn new(channel: ChannelId, inbox: WorkerInbox, in_place: bool) -> Self {
        Self {
            channel,
            inbox,
            in_place,
            reads: false,
            spill_key: None,
            weights_key: None,
            mapped: MappedRegions::default(),
            backlog: VecDeque::new(),
            posted: VecDeque::new(),
            fetches: VecDeque::new(),
            moves: Moves::default(),
        }
    }

    /// One of what was posted is done. Landings that the worker copies itself are done later than what was posted after them.
    pub(super) fn completed(&mut self, posted: Posted) {
        if let Some(at) = self.posted.iter().position(|other| *other == posted) {
            self.posted.remove(at);
        }
    }

    pub(super) fn slot(&self, grant: SlotGrant) -> RemoteSpan {
        // What a worker says of its inbox is checked where it is written to.
        let offset =
            self.inbox.offset.saturating_add(u64::from(grant.slot).saturating_mul(self.inbox.slot_bytes));
        RemoteSpan { key: RemoteKey(self.inbox.region), offset }
    }

    /// A place for a notice that carries no bytes.
    pub(super) fn nowhere(&self) -> RemoteSpan {
        RemoteSpan { key: RemoteKey(self.inbox.region), offset: self.inbox.offset }
    }
}

/// A worker's channel that nothing is sent over, or taken from, any more.
#[derive(Debug)]
pub(super) struct Gone {
    pub(super) rank: Rank,
    pub(super) fence: FenceId,
    pub(super) link: Link,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_round_trip() {
        for posted in [
            Posted::Land { chunk: u32::MAX, buffer: 1 },
            Posted::Block(7),
            Posted::Reply(1 << 40),
            Posted::Land { chunk: 0, buffer: 0 },
        ] {
            assert_eq!(Posted::from_id(posted.to_id()), posted);
        }
    }
}
