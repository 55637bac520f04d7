//! What the control side tells a lane of workers: who is there, who is to count, and from which rounds on. It must not decide
//! about rounds.

use super::lane::DataLane;
use fabric::CompletionQueue;
use proto_common::ids::{Epoch, Incarnation, Key, Rank};

impl<Q: CompletionQueue> DataLane<Q> {
    /// The roster has changed: channels of lives that are not in it any more are closed and fenced, and rounds go on without
    /// those that are needed no more. `left` have gone in good order.
    pub fn workers(&mut self, epoch: Epoch, present: &[(Rank, Incarnation)], left: &[Rank]) {
        if self.engine.knows_newer(epoch) {
            return;
        }
        for rank in (0..self.config.engine.workers).map(Rank) {
            let life = self.engine.peer_incarnation(rank);
            if self.connected(rank) && !present.contains(&(rank, life)) {
                tracing::info!(worker = rank.0, %epoch, "worker process has ended: closed its data channel");
                self.detach(rank);
            }
        }
        self.execute();
        self.engine.workers_changed(epoch, present, left, &mut self.commands);
        self.execute();
    }

    /// A worker is to count between two rounds: from which of each tensor could it? See [`crate::engine::LaneEngine::ask_rounds`].
    pub fn ask_rounds(&mut self, rank: Rank, incarnation: Incarnation) -> Vec<(Key, u64)> {
        self.engine.ask_rounds(rank, incarnation)
    }

    /// From these rounds on a worker counts.
    pub fn count_from(&mut self, rank: Rank, incarnation: Incarnation, rounds: &[(Key, u64)]) {
        self.engine.count_from(rank, incarnation, rounds, &mut self.commands);
        self.execute();
    }
}
