//! A tensor's rule changes: at one round on all of its chunks, or not at all on this lane. Where no worker knows which
//! rounds are open, each chunk changes with its next one.

use super::lane::{DataLane, LaneError};
use crate::own::Rules;
use fabric::{CompletionQueue, oneshot};
use proto_common::ids::{Epoch, Key, Rank};
use proto_common::message::NotTaken;
use proto_common::tensor::RuleChange;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// How long copies may take to confirm a change. Less than whoever asks lanes waits for them, so that it hears whom this
/// waits for; one that is silent for so long is dead by then, and waited for no more.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(30);

/// A change that is made here, and is answered when copies have confirmed it: it is to outlive this server.
#[derive(Debug)]
pub(super) struct Changed {
    key: Key,
    /// Chunks that were changed here, and since when this server serves each.
    chunks: Vec<(u32, Epoch)>,
    made: Instant,
    reply: oneshot::Sender<Result<(), NotTaken>>,
}

impl Changed {
    /// What is to be said of it now; nothing yet while servers that lack it may still confirm it.
    fn answer(
        &self,
        moved: bool,
        lacking: impl Iterator<Item = Rank>,
        waited: Duration,
    ) -> Option<Result<(), NotTaken>> {
        let key = self.key;
        if moved {
            let what = "it moved to another server during the change of its optimizer; change it again";
            return Some(Err(format!("tensor {key}: {what}").into()));
        }
        let lacking: BTreeSet<u32> = lacking.map(|server| server.0).collect();
        if lacking.is_empty() {
            return Some(Ok(()));
        }
        (waited >= CONFIRMED_WITHIN).then(|| {
            let waited_ms = waited.as_millis();
            Err(format!(
                "tensor {key}: its optimizer was changed here, but servers {lacking:?} with replicas have not confirmed the change for {waited_ms} ms; check these servers, and change it again"
            )
            .into())
        })
    }
}

impl<Q: CompletionQueue> DataLane<Q> {
    /// Update rules of the server's program.
    pub fn set_rules(&mut self, rules: Rules) {
        self.storage.set_rules(rules);
    }

    /// As [`DataLane::change_rule`], answered at once where it failed, and else when it is wherever the tensor is copied. Who asks
    /// waits no longer than it says.
    pub(super) fn take_change(&mut self, change: &RuleChange, reply: oneshot::Sender<Result<(), NotTaken>>) {
        match self.change_rule(change) {
            Ok(()) => {
                let chunks = self.engine.served_since(change.key).collect();
                self.changed.push(Changed { key: change.key, chunks, made: Instant::now(), reply });
            }
            // Nobody listens any more where the deadline has passed.
            Err(error) => reply.send(Err(error.into())),
        }
        self.answer_changes();
    }

    /// Answers changes of rules that copies have confirmed by now. Whoever serves a chunk that has moved meanwhile may have
    /// heard of the change, or not.
    pub(super) fn answer_changes(&mut self) {
        let Self { changed, engine, .. } = self;
        changed.retain(|change| {
            let key = change.key;
            let moved = engine.served_since(key).ne(change.chunks.iter().copied());
            let answer = change.answer(moved, engine.lacking_rules(key), change.made.elapsed());
            // Nobody listens any more where the asker's deadline has passed.
            answer.map(|answer| change.reply.send(answer)).is_none()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_that_copies_do_not_confirm_ends_with_their_names() {
        let reply = oneshot::channel().0;
        let change = Changed { key: Key(7), chunks: Vec::new(), made: Instant::now(), reply };
        let lacking = || [Rank(2), Rank(1), Rank(2)].into_iter();
        assert_eq!(change.answer(false, lacking(), CONFIRMED_WITHIN - Duration::from_millis(1)), None);
        let late = change.answer(false, lacking(), CONFIRMED_WITHIN).and_then(Result::err).unwrap().reason;
        assert!(
            late.contains("tensor 7") && late.contains("servers {1, 2}") && late.contains("30000 ms"),
            "{late}"
        );
        assert_eq!(change.answer(false, std::iter::empty(), Duration::ZERO), Some(Ok(())));
        assert!(
            change.answer(true, lacking(), Duration::ZERO).unwrap().unwrap_err().reason.contains("moved")
        );
    }
}
