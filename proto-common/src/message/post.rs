//! Small messages between programs of a cluster, which the scheduler passes on: a few bytes to a member or a group, each
//! answered by its receiver's handler.

use crate::ids::{MemberId, Role};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Bytes of a body, of a message or an answer.
pub const POST_BODY_BYTES_MAX: usize = 1 << 20;
/// Messages of one member that are not answered, counted by receiver.
pub const POSTS_ASKED_MAX: usize = 8192;
/// Messages to one member that it has not answered.
pub const POSTS_OWED_MAX: usize = 1024;
/// Bytes of those.
pub const POSTS_OWED_BYTES_MAX: usize = 16 << 20;

/// Whom a message is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum PostTo {
    /// One member, or the scheduler.
    One(MemberId),
    /// All of these, the sender too where it is one of them.
    Group {
        /// The scheduler.
        scheduler: bool,
        /// Servers.
        servers: bool,
        /// Workers.
        workers: bool,
    },
}

impl PostTo {
    /// Is it for this member?
    #[must_use]
    pub fn holds(&self, id: MemberId) -> bool {
        match *self {
            Self::One(one) => one == id,
            Self::Group { scheduler, servers, workers } => match id.role {
                Role::Scheduler => scheduler,
                Role::Server => servers,
                Role::Worker => workers,
            },
        }
    }
}

/// A message to a handler.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PostMessage {
    /// The handler's number.
    pub app: u32,
    /// For the handler.
    pub head: i32,
    /// For the handler, at most [`POST_BODY_BYTES_MAX`].
    pub body: Vec<u8>,
}

/// A handler's answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PostReply {
    /// For the sender.
    pub head: i32,
    /// For the sender, at most [`POST_BODY_BYTES_MAX`].
    pub body: Vec<u8>,
}

/// Why a message was not answered.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
pub enum PostError {
    /// Nobody there answered in time.
    #[error(
        "{member} did not answer within {waited_ms} ms: its program has no such handler, or the handler is slow; check its log"
    )]
    Deadline {
        /// Who did not.
        member: MemberId,
        /// How long it had.
        waited_ms: u64,
    },
    /// The handler let it go.
    #[error("the handler returned without a reply")]
    NoReply,
    /// It has left the job.
    #[error("{member} has left the job")]
    Gone {
        /// Who.
        member: MemberId,
    },
    /// Nobody is meant.
    #[error("no such member: name a member of the cluster, or a group that is not empty")]
    Nobody,
    /// The body is too long.
    #[error(
        "message too large: the body has {bytes} bytes, the limit is {POST_BODY_BYTES_MAX}; send it as a call to a server, or in parts"
    )]
    TooLong {
        /// Its bytes.
        bytes: u64,
    },
    /// Too much is under way.
    #[error("too many messages in flight: wait for replies before you send more")]
    Busy,
    /// An answer that its asker has no room for: it has not read others.
    #[error(
        "no room for a reply of {bytes} bytes: too many replies are on their way to the sender of the message; send fewer messages at once"
    )]
    Crowded {
        /// Bytes of its body.
        bytes: u64,
    },
    /// A handler of messages waits for answers.
    #[error(
        "a message handler cannot wait for replies, because they arrive on the thread that runs the handler; use `post` with a callback, or wait on another thread"
    )]
    OwnThread,
    /// The cluster is not complete, or is ending.
    #[error("{0}")]
    NotNow(String),
}
