//! The interface for a program that runs a server: handlers for workers' calls. Each handler has its own thread, so
//! that a slow one delays no rounds. The lanes' engines know what a call is and when it is answered.

mod ahead;
mod apps;
mod body;
mod handling;
mod memory;
mod origin;
mod queue;
mod reply;
mod serve;

pub(crate) use ahead::{Ahead, Place, Reader};
pub use apps::{Apps, RegisterError, StuckHandler};
pub(crate) use body::{Answer, AnswerBody};
pub use body::{Body, CallBuffer, Part, ReplyBody};
pub(crate) use handling::Handling;
pub use memory::ReplyError;
pub(crate) use memory::ReplyMemory;
pub(crate) use origin::Origin;
pub(crate) use queue::Queue;
pub use reply::Reply;

use proto_common::ids::Rank;

/// Answers calls. It runs on its own thread and receives one call at a time; calls of one worker arrive in the order
/// in which it made them. A panic ends the handler: its current call is answered with an error, and later calls wait
/// for another handler until their deadline.
///
/// A handler with a state that must outlive its process says so with [`App::has_state`]. In a job with `cluster.replicas` of at
/// least 1, another server then keeps a journal of it: the state as [`App::save`] gave it, and the requests since. A process that
/// takes a failed server's place loads that state and handles those requests again, before it handles new ones. So the same
/// requests, in the same order, must lead to the same state.
pub trait App: Send {
    /// Handles a call. The call may be answered here, or later and from any thread, by its [`Reply`].
    fn call(&mut self, call: Call);

    /// Must its state outlive the server's process? Asked once, when it is registered.
    fn has_state(&self) -> bool {
        false
    }

    /// Does it take bodies by [`Body::part`]? Asked once, when it is registered. Over shared memory, long pieces of bodies then stay
    /// where their workers have them. Others are copied before the handler gets them. One with a state is given copies in any case,
    /// because its journal has to have them.
    fn reads_in_place(&self) -> bool {
        false
    }

    /// Its state as bytes, for [`App::load`]. Called on the handler's thread between calls, while every call has been answered.
    /// `None`: it cannot be had now. It is asked for again; until then the journal continues from the state before, or, if its keeper has
    /// none of this process, answers wait.
    fn save(&mut self) -> Option<Vec<u8>> {
        None
    }

    /// Takes over the state of an earlier process, before the first call. The error says why it cannot.
    fn load(&mut self, state: &[u8]) -> Result<(), String> {
        let _ = state;
        Err("this handler has no state to load".to_owned())
    }
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
    /// For the handler's journal.
    pub(crate) origin: Origin,
}
