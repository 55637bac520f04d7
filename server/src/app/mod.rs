//! What a program that runs a server brings along: handlers for workers' calls. Each has a thread of its own, so that a
//! slow one holds up nobody's rounds; what a call is and when it is answered, the lanes' engines know.

mod queue;
mod reply;

pub(crate) use queue::Queue;
pub use queue::{Apps, RegisterError, StuckHandler};
pub(crate) use reply::ReplyMemory;
pub use reply::{Body, CallBuffer, Reply, ReplyBody, ReplyError};

use proto_common::ids::Rank;

/// Answers calls. It runs on a thread of its own and is given one call at a time; calls of one worker come in the order in
/// which it made them. A panic ends the handler: the call that it had is answered with an error, and those that follow wait
/// for another one, until their deadline.
pub trait App: Send {
    /// Takes a call. It may be answered here, or later and from any thread, by its [`Reply`].
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
    /// The worker that made it.
    pub from: Rank,
    /// The handler's number.
    pub app: u32,
    /// The request's head.
    pub head: Vec<u8>,
    /// The request's body, whole: 64-byte aligned where it is large.
    pub body: Body,
    /// To answer it with; dropped without an answer it is an error at the worker.
    pub reply: Reply,
}
