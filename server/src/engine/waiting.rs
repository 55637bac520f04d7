//! What waits longest on a lane, for people: operations on chunks, and calls. It decides nothing.

use proto_common::call::called;
use proto_common::ids::{ChunkId, Rank};
use proto_common::message::WaitCause;

/// An unanswered operation, for `status`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Which chunk; of a call, handler and server.
    pub chunk: ChunkId,
    /// Whose operation.
    pub rank: Rank,
    /// Round being collected.
    pub round: u64,
    /// Milliseconds it waits.
    pub waited_ms: u64,
    /// Why.
    pub cause: WaitCause,
    /// For whom (the first few), in the role that the cause says.
    pub on: Vec<Rank>,
    /// Of a call: what it waits for.
    pub call: Option<CallWaits>,
}

/// What a call waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallWaits {
    /// Its body is being read.
    Body,
    /// Calls before it are not whole.
    Turn,
    /// The handler has it, or those before it.
    Answer,
    /// There is no handler.
    Handler,
}

impl Waiting {
    /// A sentence for people; `tensor` is the chunk's, as messages name it.
    #[must_use]
    pub fn words(&self, tensor: &str) -> String {
        let Self { chunk, rank, round, cause, on, call, .. } = self;
        let Some(call) = call else {
            let on = on.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            let why = match cause {
                WaitCause::Copies => format!("not confirmed by replicas at servers: {on}"),
                WaitCause::Readers => format!("old weights are still read by workers: {on}"),
                WaitCause::Bound => format!("too far ahead of workers: {on}"),
                WaitCause::Checkpoint => "which is being copied for a checkpoint".into(),
                WaitCause::Lane => "which has all contributions".into(),
                _ => format!("missing workers: {on}"),
            };
            return format!(
                "worker {rank} waits for round {round} of {tensor}, chunk {}, {why}",
                chunk.chunk.0
            );
        };
        let (app, server) = called(*chunk).unwrap_or_default();
        let why = match call {
            CallWaits::Body => "its body is being read",
            CallWaits::Turn => "bodies of calls before it are being read",
            CallWaits::Answer => "the handler has not answered it",
            CallWaits::Handler => "there is no such handler",
        };
        format!("a call of worker {rank} to handler {app} at server {server} waits: {why}")
    }
}
