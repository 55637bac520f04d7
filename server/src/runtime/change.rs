//! A tensor's rule changes: at one round on all of its chunks, or not at all on this lane.

use super::lane::{DataLane, LaneError};
use fabric::CompletionQueue;
use proto_common::tensor::RuleChange;

impl<Q: CompletionQueue> DataLane<Q> {
    /// Gives a tensor another rule from a round on. Nothing changes where a chunk is past it.
    pub fn change_rule(&mut self, change: &RuleChange) -> Result<(), LaneError> {
        let RuleChange { key, from_round: round, optimizer } = *change;
        if self.engine.rounds_of(key).any(|(_, open)| round < open) {
            return Err(LaneError::RuleTooLate { key, round });
        }
        let chunks: Vec<u32> = self.engine.rounds_of(key).map(|(chunk, _)| chunk).collect();
        Ok(self.storage.change_rule(&chunks, round, optimizer)?)
    }
}
