//! The path of an answer to the lane that received the call, and the memory that replies are made in.

use super::body::{AnswerBody, CallBuffer, ReplyBody};
use crate::runtime::Answers;
use fabric::{Exclusive, FabricError, Pages, Pool};
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

/// Answers one call, once, from any thread. If it is dropped without an answer, the worker gets an error.
#[derive(Debug)]
pub struct Reply {
    /// The lane that the call came over; gone once it is answered.
    answers: Option<Answers>,
    call: u64,
    memory: ReplyMemory,
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
    /// Memory for a body. What is kept of calls is counted elsewhere; where no hole is long enough it gets pages of its own.
    pub(crate) fn allocate(&self, bytes: u64) -> Result<Exclusive, FabricError> {
        let own = || {
            let pool = Pool::with_pages(Pages::Private, bytes, "gradwire-call")?;
            pool.allocate(bytes).map_err(|error| FabricError::Internal(error.to_string()))
        };
        self.pool.allocate(bytes).or_else(|_| own())
    }

    /// The body as it may be sent in place.
    fn settle(&self, body: ReplyBody) -> Result<ReplyBody, ReplyError> {
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

impl Reply {
    pub(crate) fn new(answers: Answers, call: u64, memory: ReplyMemory) -> Self {
        Self { answers: Some(answers), call, memory }
    }

    /// Registered memory for the body, with undefined contents.
    pub fn allocate(&self, bytes: u64) -> Result<CallBuffer, FabricError> {
        self.memory.allocate(bytes).map(CallBuffer::new)
    }

    /// Answers the call.
    pub fn send(mut self, head: &[u8], body: impl Into<ReplyBody>) -> Result<(), ReplyError> {
        if head.len() > CALL_HEAD_BYTES_MAX {
            return Err(ReplyError::LongHead(head.len()));
        }
        let body = self.memory.settle(body.into())?;
        let answer = AnswerBody::new(head, body);
        match self.answers.take() {
            Some(answers) if answers.send(self.call, Some(answer)) => Ok(()),
            _ => Err(ReplyError::Ended),
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if let Some(answers) = self.answers.take() {
            // Nobody waits for it where the lane has ended.
            let _ = answers.send(self.call, None);
        }
    }
}
