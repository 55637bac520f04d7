//! Small messages between programs of a cluster, which the scheduler forwards: a few bytes to a member or a group. The
//! receiver's handler answers each one.

use crate::ids::{MemberId, Role};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// All members of these roles. A barrier waits for them, or a message goes to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NodeGroup {
    /// The scheduler, if it is part of a program. A separate scheduler is not waited for.
    pub scheduler: bool,
    /// The servers.
    pub servers: bool,
    /// The workers.
    pub workers: bool,
}

impl NodeGroup {
    /// All workers.
    pub const WORKERS: Self = Self { scheduler: false, servers: false, workers: true };
    /// All servers.
    pub const SERVERS: Self = Self { scheduler: false, servers: true, workers: false };
    /// All members except the scheduler.
    pub const ALL: Self = Self { scheduler: false, servers: true, workers: true };

    /// Whether members with this role are part of it.
    #[must_use]
    pub fn holds(self, role: Role) -> bool {
        match role {
            Role::Scheduler => self.scheduler,
            Role::Server => self.servers,
            Role::Worker => self.workers,
        }
    }
}

/// Bytes of the body of a message or an answer, at most.
pub const POST_BODY_BYTES_MAX: usize = 1 << 20;
/// Unanswered messages of one member, counted per receiver, at most.
pub const POSTS_ASKED_MAX: usize = 8192;
/// Unanswered messages to one member, at most; the scheduler holds further ones until it has answered some.
pub const POSTS_OWED_MAX: usize = 1024;
/// Bytes of these messages, at most; and of those that are held of one member.
pub const POSTS_OWED_BYTES_MAX: usize = 16 << 20;

/// The receivers of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum PostTo {
    /// One member, or the scheduler.
    One(MemberId),
    /// All members of these roles, including the sender if it has one of them.
    Group(NodeGroup),
}

impl PostTo {
    /// Whether this member is a receiver.
    #[must_use]
    pub fn holds(&self, id: MemberId) -> bool {
        match *self {
            Self::One(one) => one == id,
            Self::Group(group) => group.holds(id.role),
        }
    }
}

/// A message to a handler.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PostMessage {
    /// The handler's number.
    pub app: u32,
    /// The head, for the handler.
    pub head: i32,
    /// The body, at most [`POST_BODY_BYTES_MAX`].
    #[serde(with = "serde_bytes")]
    pub body: Vec<u8>,
}

/// A handler's answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PostReply {
    /// The head, for the sender.
    pub head: i32,
    /// The body, at most [`POST_BODY_BYTES_MAX`].
    #[serde(with = "serde_bytes")]
    pub body: Vec<u8>,
}

/// Why a message was not answered.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[expect(missing_docs, reason = "a name that says it all needs no sentence")]
pub enum PostError {
    /// The receiver did not answer in time.
    #[error(
        "{member} did not answer within {waited_ms} ms: its program has no such handler, or the handler is slow; check its log"
    )]
    Deadline { member: MemberId, waited_ms: u64 },
    /// The handler dropped the message without an answer.
    #[error("the handler returned without a reply")]
    NoReply,
    /// The receiver has left the job.
    #[error("{member} has left the job")]
    Gone { member: MemberId },
    /// The group is empty.
    #[error("no such member: name a member of the cluster, or a group that is not empty")]
    Nobody,
    /// The body is too long.
    #[error(
        "message too large: the body has {bytes} bytes, the limit is {POST_BODY_BYTES_MAX}; send it as a call to a server, or in parts"
    )]
    TooLong { bytes: u64 },
    /// Too many messages are in flight.
    #[error("too many messages in flight: wait for replies before you send more")]
    Busy,
    /// The sender has no room for the answer, because it has not read others.
    #[error(
        "no room for a reply of {bytes} bytes: too many replies are on their way to the sender of the message; send fewer messages at once"
    )]
    Crowded { bytes: u64 },
    /// A handler of messages tried to wait for an answer.
    #[error(
        "a message handler cannot wait for replies, because they arrive on the thread that runs the handler; use `post` with a callback, or wait on another thread"
    )]
    OwnThread,
    /// The cluster is not complete, or is ending.
    #[error("{0}")]
    NotNow(String),
}
