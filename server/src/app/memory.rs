//! The memory that replies are made in. It must not know how an answer gets to its lane.

use super::body::{CallBuffer, ReplyBody};
use fabric::{Exclusive, FabricError, Pool};
use proto_common::call::{CALL_HEAD_BYTES_MAX, REPLY_INLINE_BYTES_MAX};
use thiserror::Error;

/// A reply that cannot be sent. The call is then answered with an error.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ReplyError {
    /// The head is too long.
    #[error(
        "the reply's head has {0} bytes, but at most {CALL_HEAD_BYTES_MAX} are allowed; put the rest into the body"
    )]
    LongHead(usize),
    /// The body is longer than the memory of a lane for calls.
    #[error(
        "the reply's body has {bytes} bytes, but at most {most} are allowed; raise memory.call_bytes, or answer in parts"
    )]
    LongBody {
        /// Its bytes.
        bytes: u64,
        /// Bytes of that memory.
        most: u64,
    },
    /// The system has no memory for the body.
    #[error("no memory for the {bytes} bytes of the reply's body: {reason}")]
    NoRoom {
        /// Its bytes.
        bytes: u64,
        /// What the system says.
        reason: String,
    },
    /// The server has ended.
    #[error("the server has ended")]
    Ended,
}

/// Where replies are made, and how long they may be.
#[derive(Clone, Debug)]
pub(crate) struct ReplyMemory {
    pub(crate) pool: Pool,
    /// Bytes that a lane keeps of all calls.
    pub(crate) most_bytes: u64,
    /// Long replies are sent from the pool only, which is registered once.
    pub(crate) is_registered: bool,
}

impl ReplyMemory {
    /// Memory for a body. What is kept of calls is counted elsewhere.
    pub(crate) fn allocate(&self, bytes: u64) -> Result<Exclusive, FabricError> {
        self.pool.allocate_anyway(bytes)
    }

    /// The body as it may be sent in place.
    pub(super) fn settle(&self, body: ReplyBody) -> Result<ReplyBody, ReplyError> {
        let bytes = body.len() as u64;
        if bytes > self.most_bytes {
            return Err(ReplyError::LongBody { bytes, most: self.most_bytes });
        }
        if !self.is_registered || bytes <= REPLY_INLINE_BYTES_MAX / 2 || matches!(body, ReplyBody::Buffer(_))
        {
            return Ok(body);
        }
        let no_memory = |error: FabricError| ReplyError::NoRoom { bytes, reason: error.to_string() };
        let mut copy = self.allocate(bytes).map_err(no_memory)?;
        match &body {
            ReplyBody::Bytes(bytes) => copy.copy_from_slice(bytes),
            ReplyBody::Buffer(buffer) => copy.copy_from_slice(buffer),
            // All of it: it is as long.
            ReplyBody::Adopted(region) => copy.copy_in_region(region),
        }
        Ok(ReplyBody::Buffer(CallBuffer::new(copy)))
    }
}
