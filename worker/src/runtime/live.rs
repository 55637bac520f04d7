//! The operations of a lane: what each moves, and whose end waits until no server reaches its buffers any more. It must not
//! post.

use super::flight::About;
use super::op::OpState;
use crate::error::OpError;
use fabric::{Ahead, ChannelId, Span, Waker};
use proto_common::batch::OpKind;
use proto_common::ids::Rank;
use proto_common::plan::Placement;
use std::collections::VecDeque;
use std::sync::Arc;

/// An operation in progress, with what it moves.
#[derive(Debug)]
pub(super) struct Live {
    pub(super) state: Arc<OpState>,
    pub(super) source: Option<Span>,
    pub(super) target: Option<Span>,
    pub(super) about: About,
    pub(super) lent: Lent,
    /// Whether a server was granted any of its memory.
    pub(super) granted: bool,
    /// Channels that have ended, over which a server may still reach its buffers.
    pub(super) fences: Vec<ChannelId>,
    /// Its failure, while that is not told.
    pub(super) failure: Option<OpError>,
}

/// How servers reach an operation's buffers in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lent {
    /// Not at all: this process copies all that is sent, and all that lands.
    No,
    /// To read. What a server makes of it counts only as long as it is a member.
    Read,
    /// To write, too.
    Write,
}

impl Lent {
    pub(super) fn of(kind: OpKind, placement: Placement) -> Self {
        match (kind, placement) {
            (OpKind::Call, _) => Self::Write,
            (_, Placement::RendezvousRead) => Self::Read,
            _ => Self::No,
        }
    }
}

/// An operation that has ended, but for its caller.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ended {
    pub(super) op: u64,
    pub(super) version: u64,
    pub(super) since_ms: u64,
    pub(super) is_told: bool,
}

/// A channel that has ended, and whose server may still reach buffers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fencing {
    pub(super) channel: ChannelId,
    pub(super) server: Rank,
    /// Its process has failed or left: what it reads counts for nothing.
    pub(super) is_gone: bool,
}

/// Fences that are pending, and operations whose end waits for them.
#[derive(Debug, Default)]
pub(super) struct Fences {
    pub(super) pending: Vec<Fencing>,
    pub(super) ended: Vec<Ended>,
    /// Operations that have failed, since when, which end for their callers when no server uses their memory any more.
    pub(super) untold: Vec<(u64, Arc<OpState>, u64)>,
    pub(super) now_ms: u64,
}

impl Fences {
    /// Is this the fence of a channel to that server?
    pub(super) fn is_of(&self, channel: ChannelId, server: Rank) -> bool {
        self.pending.iter().any(|fencing| (fencing.channel, fencing.server) == (channel, server))
    }
}

/// Announced replies that wait for memory.
#[derive(Debug, Default)]
pub(super) struct Rooms {
    /// Operations with the bytes of their replies, in the order of the announcements.
    pub(super) waiting: VecDeque<(u64, u64)>,
    /// While one waits.
    pub(super) ahead: Option<Ahead>,
    /// Wakes who drives the lane; none in the simulation, which steps anyway.
    pub(super) waker: Option<Waker>,
}
