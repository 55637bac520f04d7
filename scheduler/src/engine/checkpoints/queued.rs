//! Workers that request a checkpoint while another one is being written that will be complete by itself. They wait for it, and share the
//! next one. No worker's checkpoint is abandoned for that of another worker. It must not know how parts become a checkpoint.

use super::{Asker, Checkpoints, Command, Pending, Wanted, answer};
use crate::engine::member::ConnectionId;
use proto_common::ids::Epoch;
use proto_common::message::SaveError;

impl Wanted<'_> {
    /// Has any tensor rounds?
    fn has_rounds(&self) -> bool {
        self.tensors.iter().any(|(spec, _)| spec.settled_mode().has_rounds())
    }

    /// Are there tensors, but none with rounds? Then the number of a round is each worker's own count.
    fn is_loose(&self) -> bool {
        !self.tensors.is_empty() && !self.has_rounds()
    }
}

impl Checkpoints {
    /// The name of the complete checkpoint that a worker would have written again, chunk for chunk.
    pub(super) fn has_already(&self, round: u64, epoch: Epoch) -> Option<&str> {
        let last = self.finished.as_ref()?;
        (last.round == round && last.begun == epoch).then_some(last.name.as_str())
    }

    /// Is one under way that a worker's is to wait for? Without rounds each takes chunks as they are, and so does what a
    /// worker asked for: it needs nobody's training. What has begun by itself may wait for rounds that do not come as long as
    /// a trainer waits for its own.
    pub(super) fn is_to_wait(&self, round: u64, wanted: &Wanted<'_>) -> bool {
        if wanted.is_loose() {
            return !self.pending.is_empty();
        }
        let needs_nobody = |pending: &Pending| pending.is_now || pending.is_complete;
        !self.pending.contains_key(&round) && self.pending.values().any(needs_nobody)
    }

    /// Begins what was waited with, as soon as it can be: one for all who have finished the same round; without rounds, one for
    /// all.
    pub(super) fn begin_queued(&mut self, epoch: Epoch, wanted: &Wanted<'_>, out: &mut Vec<Command>) {
        let Some((first, _)) = self.queued.first() else { return };
        let is_loose = wanted.is_loose();
        let round = if is_loose { self.queued.iter().map(|(round, _)| *round).max() } else { Some(*first) };
        let Some(round) = round.filter(|round| !self.is_to_wait(*round, wanted)) else { return };
        let (next, later): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.queued).into_iter().partition(|(other, _)| is_loose || *other == round);
        self.queued = later;
        for (_, asker) in next {
            self.take_up(asker, round, epoch, wanted, out);
        }
    }

    /// Answers those whose turn has not come by their deadline.
    pub(super) fn expire_queued(&mut self, now_ms: u64, out: &mut Vec<Command>) {
        let is_late = |(_, asker): &(u64, Asker)| asker.deadline_ms <= now_ms;
        let late: Vec<_> = self.queued.extract_if(.., |entry| is_late(entry)).collect();
        for (_, asker) in late {
            let other =
                self.pending.keys().next().map_or_else(String::new, |round| format!(" of round {round}"));
            let (waited_ms, why) = (
                now_ms.saturating_sub(asker.since_ms),
                format!("the checkpoint{other} before it is still being written"),
            );
            answer(&[asker], &Err(SaveError::NotBegun { waited_ms, why }), out);
        }
    }

    /// What was asked for and is not begun is not.
    pub(in super::super) fn refuse_orders(&mut self, why: &str, out: &mut Vec<Command>) {
        let askers = self.take_unbegun();
        answer(&askers, &Err(SaveError::NotNow(why.into())), out);
    }

    /// Nobody who waits here will hear anything any more.
    pub(in super::super) fn refuse_all(
        &mut self,
        is_told: impl Fn(ConnectionId) -> bool,
        why: &str,
        out: &mut Vec<Command>,
    ) {
        let mut askers = self.take_unbegun();
        askers.extend(self.pending.values_mut().flat_map(|pending| std::mem::take(&mut pending.askers)));
        askers.retain(|asker| is_told(asker.connection));
        answer(&askers, &Err(SaveError::NotNow(why.into())), out);
    }

    fn take_unbegun(&mut self) -> Vec<Asker> {
        let mut askers = std::mem::take(&mut self.ordered.askers);
        askers.extend(self.queued.drain(..).map(|(_, asker)| asker));
        askers
    }
}
