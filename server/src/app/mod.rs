//! The interface for a program that runs a server: handlers for workers' calls. Each handler has its own thread, so
//! that a slow one delays no rounds. The lanes' engines know what a call is and when it is answered.

mod ahead;
mod body;
mod queue;
mod reply;

pub(crate) use ahead::{Ahead, Place};
pub(crate) use body::AnswerBody;
pub use body::{Body, CallBuffer, ReplyBody};
pub(crate) use queue::Queue;
pub use queue::{Apps, RegisterError, StuckHandler};
pub(crate) use reply::ReplyMemory;
pub use reply::{Reply, ReplyError};

use proto_common::ids::Rank;

/// Answers calls. It runs on its own thread and receives one call at a time; calls of one worker arrive in the order
/// in which it made them. A panic ends the handler: its current call is answered with an error, and later calls wait
/// for another handler until their deadline.
pub trait App: Send {
    /// Handles a call. The call may be answered here, or later and from any thread, by its [`Reply`].
    fn call(&mut self, call: Call);
}

impl<F: FnMut(Call) + Send> App for F {
    fn call(&mut self, call: Call) {
        self(call);
    }
}

/// A worker's request.
#[derive(Debug)]
pub struct Call {
    /// The calling worker.
    pub from: Rank,
    /// The handler's number.
    pub app: u32,
    /// The request's head.
    pub head: Vec<u8>,
    /// The request's complete body; a large one is aligned to 64 bytes.
    pub body: Body,
    /// Answers the request. If it is dropped without an answer, the worker gets an error.
    pub reply: Reply,
}
