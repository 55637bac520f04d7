//! A tensor's rule changes: at one round on all of its chunks, or not at all on this lane. Where no worker knows which
//! rounds are open, each chunk changes with its next one.

use super::lane::{DataLane, LaneError};
use fabric::CompletionQueue;
use proto_common::tensor::RuleChange;

impl<Q: CompletionQueue> DataLane<Q> {
    /// Gives a tensor another rule from a round on. Nothing changes where a chunk is past it.
    pub fn change_rule(&mut self, change: &RuleChange) -> Result<(), LaneError> {
        let RuleChange { key, from_round: round, optimizer } = *change;
        let mut chunks: Vec<(u32, u64)> = self.engine.rounds_of(key).collect();
        if self.engine.has_common_rounds(key) {
            if chunks.iter().any(|(_, open)| round < *open) {
                return Err(LaneError::RuleTooLate { key, round });
            }
            chunks.iter_mut().for_each(|(_, from)| *from = round);
        }
        self.storage.change_rule(&chunks, optimizer)?;
        // Copies hear of it in its place between updates.
        chunks.iter().for_each(|(chunk, _)| self.engine.rule_changed(*chunk));
        Ok(())
    }
}
