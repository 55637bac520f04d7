//! The messages of a lane, and its reports. Must not know who drives the lane.

use super::link::ServerInbox;
use super::op::Submission;
use crate::engine::{LaneStats, OldestOp, Traffic};
use crate::error::OpError;
use fabric::{ChannelSetup, oneshot};
use proto_common::ids::{ChunkId, Epoch, Incarnation, Rank};
use proto_common::message::InboxGrant;

/// A message to a lane's thread.
pub(crate) enum LaneMessage {
    Submit(Submission),
    Epoch(Epoch),
    /// Chunks of this lane have other servers from now on.
    Remap {
        epoch: Epoch,
        moves: Vec<(ChunkId, Rank)>,
    },
    /// Of this server channels of this connection are taken from now on, and of no other.
    Expect {
        server: Rank,
        number: u64,
    },
    /// A server's process has failed or left: close and fence its channel, and accept no other channel to it.
    End {
        server: Rank,
    },
    Attach {
        server: Rank,
        number: u64,
        setup: ChannelSetup,
        reply: oneshot::Sender<Result<InboxGrant, String>>,
    },
    Activate {
        server: Rank,
        number: u64,
        incarnation: Incarnation,
        inbox: ServerInbox,
        /// Requests are to carry a checksum of their payload.
        sum_payloads: bool,
        reply: oneshot::Sender<Result<(), String>>,
    },
    Fail(OpError),
    Report(oneshot::Sender<LaneReport>),
    /// Is this thread alive?
    Beat(oneshot::Sender<()>),
    Stop,
}

/// What a lane tells about itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct LaneReport {
    pub(crate) stats: LaneStats,
    /// By server.
    pub(crate) traffic: Vec<Traffic>,
    pub(crate) in_flight: usize,
    pub(crate) oldest: Option<OldestOp>,
}
