//! What operations wait for: for those whose deadline is over, and for people. It decides nothing else.

use super::LaneEngine;
use crate::engine::chunk::Chunk;
use crate::engine::keep::At;
use crate::engine::ranks::RankSet;
use crate::engine::rounds::Stage;
use crate::engine::waiters::Waiter;
use crate::engine::waiting::Waiting;
use proto_common::batch::{OpKind, Status};
use proto_common::ids::Rank;
use proto_common::limits::RANKS_LISTED_MAX;
use proto_common::message::WaitCause;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;

/// The status that an operation ends with at its deadline, and the ranks that it waited for.
type Late = (Status, Vec<Rank>);

/// What was found out last about chunks by themselves, and about tensors whose chunks finish together: many operations
/// may wait for the same, and such a tensor has many chunks to look at. It is to live no longer than a tick.
#[derive(Debug, Default)]
pub(in crate::engine) struct Found {
    chunk: Option<(Range<u32>, Late)>,
    pub(in crate::engine) tensor: Option<(Range<u32>, Late)>,
}

impl LaneEngine {
    /// What an operation still waits for, told from `found` if it was found out for another operation.
    pub(in crate::engine) fn waits_for(&self, index: u32, waiter: &Waiter, found: &mut Found) -> Late {
        let chunk = &self.chunks[index as usize];
        let stage = chunk.rounds.stage();
        if stage == Stage::Copies || (chunk.init_pending && chunk.rounds.awaits(waiter).is_none()) {
            let late = self.uncopied(chunk);
            if !late.1.is_empty() {
                return late;
            }
        }
        if waiter.op == OpKind::Init || chunk.rounds.is_initialising() {
            return (Status::DeadlineWaiting, vec![self.roster.setter()]);
        }
        if let Some(late) = chunk.rounds.waits_singly(waiter, || chunk.weights.views.reading()) {
            return late;
        }
        let (chunks, known) = match (stage, chunk.group) {
            // The other chunks of its tensor wait for contributions.
            (Stage::Norms, Some(group)) => (self.groups.chunks(group), &mut found.tensor),
            _ => (index..index + 1, &mut found.chunk),
        };
        match known {
            Some((of, late)) if *of == chunks => late.clone(),
            _ => known.insert((chunks.clone(), self.awaited(chunks))).1.clone(),
        }
    }

    /// Who has not contributed to some of these chunks; or else who reads what one of them is to be written to, or that it is
    /// to be copied for a checkpoint first.
    fn awaited(&self, chunks: Range<u32>) -> Late {
        let chunks = &self.chunks[chunks.start as usize..chunks.end as usize];
        let mut present = RankSet::new(self.config.workers);
        let mut absent = RankSet::new(self.config.workers);
        for chunk in chunks.iter().filter(|chunk| !chunk.rounds.is_complete()) {
            chunk.rounds.add_absent(&mut present, &mut absent);
            if chunk.rounds.is_barred() {
                self.roster.comers().for_each(|rank| absent.insert(rank));
            }
        }
        let missing: Vec<Rank> = absent.ranks().take(RANKS_LISTED_MAX).collect();
        if !missing.is_empty() {
            return (Status::DeadlineWaiting, missing);
        }
        let first_at = |stage| chunks.iter().find(|chunk| chunk.rounds.stage() == stage);
        match (first_at(Stage::Copies), first_at(Stage::Buffer)) {
            (Some(chunk), _) => self.uncopied(chunk),
            (None, Some(unwritten)) if unwritten.is_due() => (Status::DeadlineSaving, missing),
            (None, Some(unwritten)) => (Status::DeadlineReading, unwritten.weights.views.reading()),
            (None, None) => (Status::DeadlineWaiting, missing),
        }
    }

    /// Servers whose replicas have not confirmed a chunk's round. If a replica waits until the first rounds of joining workers are decided,
    /// these workers: this may take longer than the deadline for servers.
    fn uncopied(&self, chunk: &Chunk) -> Late {
        let joining: Vec<Rank> = self.roster.comers().take(RANKS_LISTED_MAX).collect();
        match chunk.copies.iter().flatten().any(|keep| keep.at == At::Later) && !joining.is_empty() {
            true => (Status::DeadlineWaiting, joining),
            false => (Status::DeadlineCopies, chunk.unconfirmed().collect()),
        }
    }

    /// Whose contributions come before one that has to be tried again; where nothing is begun, who is to count. An initial value has to
    /// be tried again while another worker is to set it.
    pub(super) fn awaited_first(&self, index: u32, op: OpKind) -> Vec<Rank> {
        if op == OpKind::Init {
            return vec![self.roster.setter()];
        }
        let rounds = &self.chunks[index as usize].rounds;
        if rounds.is_barred() {
            return self.roster.comers().take(RANKS_LISTED_MAX).collect();
        }
        rounds.awaited(self.config.deterministic)
    }

    /// Operations and calls that were taken and are not answered.
    #[must_use]
    pub fn under_way(&self) -> usize {
        let waiters = |index: &u32| self.chunks[*index as usize].waiters.iter().len();
        self.deadlines.chunks().iter().map(waiters).sum::<usize>() + self.calls.open()
    }

    /// Does nobody wait for an answer?
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.peers.owe_nothing() && self.calls.open() == 0
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
            for waiter in self.chunks[index as usize].waiters.iter() {
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
        let (status, late) = self.waits_for(index, waiter, found);
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
            round: chunk.rounds.round(),
            waited_ms: now_ms.saturating_sub(waiter.since_ms),
            cause,
            on,
            call: None,
        }
    }
}
