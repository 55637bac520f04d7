//! Changes of the workers: a new roster, and workers that count from a round on. `roster` stores which workers count in which round; this
//! file applies the changes to open rounds.

use super::LaneEngine;
use super::answers::answer_block;
use crate::engine::chunk::Chunk;
use crate::engine::command::Commands;
use proto_common::batch::{Kept, OpKind, Reading, Status};
use proto_common::ids::{Epoch, Incarnation, Key, Operation, Rank};
use std::collections::BTreeMap;

/// The worker reads no view any more.
const NOTHING: Reading = Reading { from: Operation(u64::MAX), kept: Kept::None };

impl LaneEngine {
    /// May this incarnation of a worker have a channel? Before the first roster, every incarnation may.
    #[must_use]
    pub fn admits(&self, rank: Rank, incarnation: Incarnation) -> bool {
        self.roster.admits(rank, incarnation)
    }

    /// Is there a newer roster than that of this epoch?
    #[must_use]
    pub fn knows_newer(&self, epoch: Epoch) -> bool {
        self.roster.is_stale(epoch)
    }

    /// The scheduler sends the roster, and the workers that have left in good order. Channels of other incarnations are closed
    /// already. Rounds continue without workers that are not expected any more.
    pub fn workers_changed(
        &mut self,
        epoch: Epoch,
        present: &[(Rank, Incarnation)],
        left: &[Rank],
        out: &mut Commands,
    ) {
        let mut over = Vec::new();
        if !self.roster.change(epoch, present, left, |rank| over.push(rank)) {
            return;
        }
        for rank in over {
            self.end_life(rank, out);
            self.calls.peer_up(rank, Incarnation::default());
        }
        self.look_again(out);
    }

    /// A worker joins between two rounds. Returns the first round of each tensor in which it could count. That round is not begun before
    /// [`LaneEngine::count_from`] is called, or the worker has left. For a worker that counts already, the rounds of the earlier answer.
    pub fn ask_rounds(&mut self, rank: Rank, incarnation: Incarnation) -> Vec<(Key, u64)> {
        if let Some(promised) = self.roster.promised(rank) {
            return promised;
        }
        let mut rounds = BTreeMap::new();
        for chunk in self.chunks.iter().filter(|chunk| chunk.role.is_some()) {
            let first = rounds.entry(chunk.spec.id.key).or_insert(0);
            *first = chunk.rounds.first_for(rank).max(*first);
        }
        let all: Vec<_> = rounds.into_iter().collect();
        if self.roster.ask(rank, incarnation, &all) {
            self.chunks.iter_mut().for_each(|chunk| chunk.rounds.renew(chunk.spec.id.key, &self.roster));
            return all;
        }
        Vec::new()
    }

    /// A worker counts from these rounds on. For tensors that are not named, it counts from the first round on.
    pub fn count_from(
        &mut self,
        rank: Rank,
        incarnation: Incarnation,
        rounds: &[(Key, u64)],
        out: &mut Commands,
    ) {
        let Some(is_new) = self.roster.count(rank, incarnation, rounds) else { return };
        let from: BTreeMap<_, _> = rounds.iter().copied().collect();
        for chunk in &mut self.chunks {
            // Contributions of a worker that counted before may be under way: some chunks have received them, others have not. A replica
            // may come from a time before its server received this decision; at this server the worker counted from the start.
            let is_told = |_: &&u64| is_new || !chunk.is_served();
            if let Some(from) = from.get(&chunk.spec.id.key).filter(is_told) {
                chunk.rounds.begin_count(rank, *from);
            }
        }
        self.look_again(out);
    }

    /// A chunk is new here. If workers will count, no round of it is begun, either.
    pub(super) fn cover(&mut self, index: u32) {
        let chunk = &self.chunks[index as usize];
        let (key, round) = (chunk.spec.id.key, chunk.rounds.round());
        self.roster.cover(key, round);
    }

    /// An incarnation of a worker has a channel. Operation numbers and views of an earlier incarnation end; its contributions stay.
    pub(super) fn begin_life(&mut self, rank: Rank, incarnation: Incarnation, out: &mut Commands) {
        if self.roster.is_new(rank, incarnation) {
            self.end_life(rank, out);
        }
    }

    fn end_life(&mut self, rank: Rank, out: &mut Commands) {
        for index in 0..self.chunks.len() {
            let chunk = &mut self.chunks[index];
            chunk.rounds.worker_ended(rank);
            chunk.weights.hide(rank, NOTHING);
            self.finish_late(index as u32, out);
        }
    }

    /// The set of expected workers may have changed. A round that has all contributions now ends. Other servers
    /// send the records again that waited for a decision about workers.
    fn look_again(&mut self, out: &mut Commands) {
        self.copies.say_ready(out);
        for index in 0..self.chunks.len() as u32 {
            let chunk = &mut self.chunks[index as usize];
            chunk.rounds.renew(chunk.spec.id.key, &self.roster);
            if !chunk.is_served() {
                continue;
            }
            self.ask_for_initial(index);
            self.end_short(index, out);
            self.advance(index, out);
        }
    }

    /// If the worker that had to set the initial value has left, the next worker, which waits without a payload, is asked for its own.
    fn ask_for_initial(&mut self, index: u32) {
        let Self { chunks, peers, roster, .. } = self;
        let Chunk { spec, rounds, waiters, .. } = &mut chunks[index as usize];
        let setter = roster.setter();
        while !rounds.has_initial()
            && let Some(waiter) = waiters.take(|waiter| waiter.op == OpKind::Init && waiter.rank == setter)
        {
            rounds.order.ask_initial(setter, waiter.operation);
            peers.answer(setter, answer_block(spec, &waiter, Status::Unset, rounds.version()), Vec::new());
        }
    }
}
