//! What waits longest on a lane, for people: operations on chunks, and calls. It decides nothing.

use super::answers::Found;
use super::chunk::{Chunk, Waiter};
use super::command::{Arrival, Commands, NOW_MS};
use super::lane::LaneEngine;
use proto_common::batch::Status;
use proto_common::call::called;
use proto_common::ids::{ChunkId, Rank};
use proto_common::limits::RANKS_LISTED_MAX;
use proto_common::message::WaitCause;
use std::cmp::Reverse;
use std::collections::BTreeMap;

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

impl Chunk {
    /// Says when contributions came to the round that is about to end, where somebody wants to know. Whose completes it does not
    /// wait for anything yet: it came now.
    pub(super) fn tell_arrivals(&self, index: u32, out: &mut Commands) {
        let (round, before_ms) = (self.round(), out.told_before_ms);
        if before_ms == 0 {
            return;
        }
        let those = self.waiters.iter().filter(|waiter| waiter.version == round && waiter.op.contributes());
        if before_ms != NOW_MS && !those.clone().any(|waiter| waiter.since_ms <= before_ms) {
            return;
        }
        let came = |rank, since_ms| Arrival { chunk: index, round, rank, since_ms };
        let before = out.arrivals.len();
        out.arrivals.extend(those.map(|waiter| came(waiter.rank, waiter.since_ms)));
        let told = &out.arrivals[before..];
        if told.len() + 1 == self.contributed.len() as usize {
            // All ranks' sum less that of those who wait: the one who is left.
            let sum =
                |ranks: &mut dyn Iterator<Item = Rank>| ranks.map(|rank| u64::from(rank.0)).sum::<u64>();
            let all = sum(&mut self.contributed.ranks());
            let left = all.saturating_sub(sum(&mut told.iter().map(|came| came.rank)));
            out.arrivals.push(came(Rank(left as u32), NOW_MS));
        }
    }
}

impl LaneEngine {
    /// Operations and calls that were taken and are not answered.
    #[must_use]
    pub fn under_way(&self) -> usize {
        let waiters = |index: &u32| self.chunks[*index as usize].waiters.len();
        self.deadlines.chunks().iter().map(waiters).sum::<usize>() + self.open_calls()
    }

    /// Has the worker operations that were taken and are not answered?
    #[must_use]
    pub fn owes(&self, rank: Rank) -> bool {
        let peer = self.peers.get(rank.0 as usize).and_then(Option::as_ref);
        peer.is_some_and(|peer| peer.unanswered > 0)
    }

    /// What each worker has waited for the longest, for people: those that wait longest first, and few of them.
    #[must_use]
    pub fn waits(&self, now_ms: u64) -> Vec<Waiting> {
        let mut oldest: BTreeMap<Rank, (u32, &Waiter)> = BTreeMap::new();
        for index in self.deadlines.chunks() {
            for waiter in &self.chunks[index as usize].waiters {
                let known = oldest.entry(waiter.rank).or_insert((index, waiter));
                if waiter.since_ms < known.1.since_ms {
                    *known = (index, waiter);
                }
            }
        }
        let mut oldest: Vec<(u32, &Waiter)> = oldest.into_values().collect();
        oldest.sort_by_key(|(_, waiter)| waiter.since_ms);
        oldest.truncate(RANKS_LISTED_MAX);
        let mut found = Found::default();
        let mut waits: Vec<Waiting> = oldest
            .into_iter()
            .map(|(index, waiter)| self.waiting(index, waiter, &mut found, now_ms))
            .chain(self.oldest_call(now_ms))
            .collect();
        waits.sort_by_key(|wait| Reverse(wait.waited_ms));
        waits.truncate(RANKS_LISTED_MAX);
        waits
    }

    /// The operation that waits longest.
    #[must_use]
    pub fn oldest(&self, now_ms: u64) -> Option<Waiting> {
        self.waits(now_ms).into_iter().next()
    }

    fn waiting(&self, index: u32, waiter: &Waiter, found: &mut Found, now_ms: u64) -> Waiting {
        let chunk = &self.chunks[index as usize];
        let (status, late) = self.late(index, waiter, found);
        let unconfirmed: Vec<Rank> = chunk.unconfirmed().collect();
        let (cause, on) = match status {
            _ if !unconfirmed.is_empty() => (WaitCause::Copies, unconfirmed),
            _ if late.is_empty() && chunk.is_due() => (WaitCause::Checkpoint, late),
            Status::DeadlineSaving => (WaitCause::Checkpoint, late),
            Status::DeadlineCopies => (WaitCause::Copies, late),
            Status::DeadlineReading => (WaitCause::Readers, late),
            Status::DeadlineBehind => (WaitCause::Bound, late),
            _ if !late.is_empty() => (WaitCause::Contributions, late),
            _ => (WaitCause::Lane, late),
        };
        Waiting {
            chunk: chunk.spec.id,
            rank: waiter.rank,
            round: chunk.round(),
            waited_ms: now_ms.saturating_sub(waiter.since_ms),
            cause,
            on,
            call: None,
        }
    }
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
