//! A tensor's rule changes: at one round on all of its chunks, or not at all on this lane. Where no worker knows which
//! rounds are open, each chunk changes with its next one.

use super::lane::{DataLane, LaneError};
use fabric::CompletionQueue;
use proto_common::ids::{Epoch, Key};
use proto_common::tensor::RuleChange;
use std::sync::mpsc::SyncSender;

/// A change that is made here, and is answered when copies have confirmed it: it is to outlive this server.
#[derive(Debug)]
pub(super) struct Changed {
    key: Key,
    /// Chunks that were changed here, and since when this server serves each.
    chunks: Vec<(u32, Epoch)>,
    reply: SyncSender<Result<(), String>>,
}

impl<Q: CompletionQueue> DataLane<Q> {
    /// As [`DataLane::change_rule`], answered at once where it failed, and else when it is wherever the tensor is copied. Who asks
    /// waits no longer than it says.
    pub(super) fn take_change(&mut self, change: &RuleChange, reply: SyncSender<Result<(), String>>) {
        match self.change_rule(change) {
            Ok(()) => {
                let chunks = self.engine.served_since(change.key).collect();
                self.changed.push(Changed { key: change.key, chunks, reply });
            }
            // Nobody listens any more where the deadline has passed.
            Err(error) => _ = reply.try_send(Err(error.to_string())),
        }
        self.answer_changes();
    }

    /// Answers changes of rules that copies have confirmed by now. Whoever serves a chunk that has moved meanwhile may have
    /// heard of the change, or not.
    pub(super) fn answer_changes(&mut self) {
        let Self { changed, engine, .. } = self;
        changed.retain(|Changed { key, chunks, reply }| {
            let moved = engine.served_since(*key).ne(chunks.iter().copied());
            let waits = !moved && !engine.has_rules_everywhere(*key);
            if moved {
                let what = "it moved to another server while its rule was changed; change it again";
                let _ = reply.try_send(Err(format!("tensor {key}: {what}")));
            } else if !waits {
                let _ = reply.try_send(Ok(()));
            }
            waits
        });
    }

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
