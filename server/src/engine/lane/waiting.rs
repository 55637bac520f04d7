//! What waits longest on a lane, for people: operations on chunks, and calls. It decides nothing.

use super::LaneEngine;
use super::answers::Found;
use crate::engine::chunk::Waiter;
use crate::engine::waiting::Waiting;
use proto_common::batch::Status;
use proto_common::ids::Rank;
use proto_common::limits::RANKS_LISTED_MAX;
use proto_common::message::WaitCause;
use std::cmp::Reverse;
use std::collections::BTreeMap;

impl LaneEngine {
    /// Operations and calls that were taken and are not answered.
    #[must_use]
    pub fn under_way(&self) -> usize {
        let waiters = |index: &u32| self.chunks[*index as usize].waiters.len();
        self.deadlines.chunks().iter().map(waiters).sum::<usize>() + self.calls.open()
    }

    /// Has the worker operations that were taken and are not answered?
    #[must_use]
    pub fn owes(&self, rank: Rank) -> bool {
        self.peers.owes(rank)
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
            .chain(self.calls.oldest(now_ms))
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
