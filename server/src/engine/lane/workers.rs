//! What a lane is told of workers as such: who is there, who is to count, and from which round on. Who counts when is kept
//! in `roster`; here is what becomes of the rounds that are open.

use super::LaneEngine;
use super::answers::answer_block;
use crate::engine::chunk::{Stage, Waiter};
use crate::engine::command::{Addend, Command, Commands, Onto};
use proto_common::batch::{Kept, OpKind, Reading, Status};
use proto_common::ids::{Epoch, Incarnation, Key, Operation, Rank};
use proto_common::limits::RANKS_LISTED_MAX;
use std::collections::BTreeMap;

/// Nothing of what was shown is read any more.
const NOTHING: Reading = Reading { from: Operation(u64::MAX), kept: Kept::None };

impl LaneEngine {
    /// May this life of a worker have a channel? Before the scheduler has said who is there, any may.
    #[must_use]
    pub fn admits(&self, rank: Rank, incarnation: Incarnation) -> bool {
        self.roster.admits(rank, incarnation)
    }

    /// Has the scheduler said something newer than this?
    #[must_use]
    pub fn knows_newer(&self, epoch: Epoch) -> bool {
        self.roster.is_stale(epoch)
    }

    /// The scheduler says who is there, and who has left in good order. Channels of other lives are closed already. Rounds go
    /// on without whom they need no more.
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

    /// A worker is to count between two rounds: the first round of each tensor in which it could, which is not begun before
    /// [`LaneEngine::count_from`] has said so, or the worker has gone. Of one that counts already, what was said of it.
    pub fn ask_rounds(&mut self, rank: Rank, incarnation: Incarnation) -> Vec<(Key, u64)> {
        if let Some(promised) = self.roster.promised(rank) {
            return promised;
        }
        let mut rounds = BTreeMap::new();
        for chunk in self.chunks.iter().filter(|chunk| chunk.role.is_some()) {
            let first = rounds.entry(chunk.spec.id.key).or_insert(0);
            *first = chunk.first_for(rank).max(*first);
        }
        let all: Vec<_> = rounds.into_iter().collect();
        if self.roster.ask(rank, incarnation, &all) {
            self.chunks.iter_mut().for_each(|chunk| _ = self.roster.renew(chunk));
            return all;
        }
        Vec::new()
    }

    /// A worker counts from these rounds on; of tensors that are not named from the first.
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
            // Of one that has counted before contributions may be under way, to some chunks and not yet to others. A copy may be
            // of before its server was told this; here that worker counted from the start.
            let is_told = |_: &&u64| is_new || !chunk.is_served();
            if let Some(from) = from.get(&chunk.spec.id.key).filter(is_told) {
                chunk.begin_count(rank, *from);
            }
        }
        self.look_again(out);
    }

    /// A chunk is new here: where workers are to count, nothing of it is begun either.
    pub(super) fn cover(&mut self, index: u32) {
        let chunk = &self.chunks[index as usize];
        let (key, round) = (chunk.spec.id.key, chunk.round());
        self.roster.cover(key, round);
    }

    /// A life of a worker has a channel: of an earlier one numbers and views are over. What that contributed stays.
    pub(super) fn begin_life(&mut self, rank: Rank, incarnation: Incarnation, out: &mut Commands) {
        if self.roster.is_new(rank, incarnation) {
            self.end_life(rank, out);
        }
    }

    fn end_life(&mut self, rank: Rank, out: &mut Commands) {
        for index in 0..self.chunks.len() {
            let chunk = &mut self.chunks[index];
            chunk.forget_life(rank);
            chunk.hide(rank, NOTHING);
            self.finish_late(index as u32, out);
        }
    }

    /// Whom the rounds need may have changed: those that lack nothing more end.
    fn look_again(&mut self, out: &mut Commands) {
        for index in 0..self.chunks.len() as u32 {
            self.roster.renew(&mut self.chunks[index as usize]);
            if self.chunks[index as usize].is_served() {
                self.ask_for_initial(index);
                self.end_short(index, out);
                self.settle(index, out);
            }
        }
    }

    /// If the worker that was to set the initial value is gone, the next one, which waits without a payload, is to set its own.
    fn ask_for_initial(&mut self, index: u32) {
        let chunk = &mut self.chunks[index as usize];
        let setter = self.roster.setter();
        let is_setter = |waiter: &Waiter| waiter.op == OpKind::Init && waiter.rank == setter;
        while !chunk.has_initial()
            && let Some(at) = chunk.waiters.iter().position(is_setter)
        {
            let waiter = chunk.waiters.remove(at);
            let block = answer_block(&chunk.spec, &waiter, Status::Unset, chunk.version);
            self.peers.tell(setter, block, Vec::new());
        }
    }

    /// Updates the ranks that the current round expects. If none is left for it, the round ends without new weights. If the chunk has
    /// replicas, they get the new state.
    pub(super) fn look_at_expected(&mut self, index: u32) {
        let at = index as usize;
        self.roster.renew(&mut self.chunks[at]);
        let mut has_passed = false;
        while self.chunks[at].is_served() && self.roster.pass_vacant(&mut self.chunks[at]) {
            has_passed = true;
            self.note_published(index);
        }
        if has_passed {
            self.copy_initial(index);
        }
    }

    /// Ends a round that others were expected in who come no more.
    fn end_short(&mut self, index: u32, out: &mut Commands) {
        let chunk = &mut self.chunks[index as usize];
        let is_short = chunk.contributed.len() > 0 && chunk.contributed.len() >= chunk.needed;
        if !is_short || chunk.is_loose() || chunk.stage != Stage::Contributions || chunk.initialising() {
            return;
        }
        if let Some(first) = chunk.first.take() {
            chunk.size(index, first.bytes, out);
            out.push(Command::Reduce {
                chunk: index,
                addend: Addend { from: first.from, onto: Onto::Nothing },
            });
            self.count(index, first.bytes, first.from);
        }
        self.complete(index, None, out);
    }

    /// Whose contributions come before one that has to be tried again; where nothing is begun, who is to count.
    pub(super) fn awaited_first(&self, index: u32) -> Vec<Rank> {
        let chunk = &self.chunks[index as usize];
        if chunk.is_barred() {
            return self.roster.comers().take(RANKS_LISTED_MAX).collect();
        }
        chunk.awaited(self.config.deterministic)
    }
}
