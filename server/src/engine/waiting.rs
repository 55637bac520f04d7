//! What waits longest on a lane, for people: an operation on a chunk, or a call. It decides nothing.

use super::answers::Found;
use super::lane::LaneEngine;
use proto_common::call::called;
use proto_common::ids::{ChunkId, Rank};
use std::fmt;

/// The oldest unanswered operation, for `status`.
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
    /// Ranks that have not contributed, or that still read what is to be overwritten (the first few).
    pub missing: Vec<Rank>,
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

impl LaneEngine {
    /// The operation that waits longest, for people.
    #[must_use]
    pub fn oldest(&self, now_ms: u64) -> Option<Waiting> {
        let all =
            (0u32..).zip(&self.chunks).flat_map(|(at, chunk)| chunk.waiters.iter().map(move |w| (at, w)));
        let call = self.oldest_call(now_ms);
        let Some((index, waiter)) = all.min_by_key(|(_, waiter)| waiter.since_ms) else { return call };
        let waited_ms = now_ms.saturating_sub(waiter.since_ms);
        if call.as_ref().is_some_and(|call| call.waited_ms > waited_ms) {
            return call;
        }
        let chunk = &self.chunks[index as usize];
        Some(Waiting {
            chunk: chunk.spec.id,
            rank: waiter.rank,
            round: chunk.round(),
            waited_ms,
            missing: self.late(index, waiter, &mut Found::default()).1,
            call: None,
        })
    }
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { chunk, rank, round, missing, call, .. } = self;
        let Some(call) = call else {
            let missing: Vec<String> = missing.iter().map(ToString::to_string).collect();
            let missing = missing.join(", ");
            return write!(
                f,
                "worker {rank} waits for round {round} of chunk {chunk}, missing workers: {missing}"
            );
        };
        let (app, server) = called(*chunk).unwrap_or_default();
        write!(f, "a call of worker {rank} to handler {app} at server {server} waits: ")?;
        f.write_str(match call {
            CallWaits::Body => "its body is being read",
            CallWaits::Turn => "bodies of calls before it are being read",
            CallWaits::Answer => "the handler has not answered it",
            CallWaits::Handler => "there is no such handler",
        })
    }
}
