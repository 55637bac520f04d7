//! What log, counters and recorder say of what the engine did and of what members are told. Nothing is decided here.

use super::Core;
use crate::engine::{ConnectionId, Note};
use proto_common::ids::Role;
use proto_common::message::{CheckpointOrder, FromScheduler};

impl Core {
    /// What the log should say of what has happened.
    pub(super) fn tell(&self, note: &Note) {
        match note {
            Note::Lost(death) => {
                tracing::warn!("{death}");
                self.flight.note("lost", death.to_string());
                self.metrics.count_death(death);
            }
            Note::Left(member) => {
                tracing::info!("{member} left in good order");
                self.flight.note("left", member.to_string());
            }
            Note::TakenOver { from, by } => {
                tracing::warn!(server = from.0, ?by, "others serve what a dead server did");
                self.flight.note("promoted", format!("servers {by:?} serve what server {from} did"));
            }
            Note::Refused { server, reason, given_up, tried } => {
                let what = match given_up - tried {
                    0 if *given_up == 0 => "no copy was being made there",
                    0 => "its copies are tried again, elsewhere first",
                    _ => "for lack of another server copies are given up until one comes",
                };
                tracing::error!(
                    server = server.0,
                    reason,
                    given_up,
                    tried,
                    "a server cannot have what it was to have: {what}"
                );
            }
            Note::CheckpointFailed(why) => {
                tracing::warn!(why, "a checkpoint was given up");
                self.flight.note("checkpoint", format!("given up: {why}"));
            }
            Note::CheckpointsStopped { round, stopped } => {
                let left = &stopped.left;
                tracing::error!(
                    round,
                    ?left,
                    reason = stopped.reason,
                    "a checkpoint is not written: {stopped}"
                );
                self.flight.note("checkpoint", format!("round {round} is not written: {stopped}"));
            }
        }
    }

    /// What the log should say about a message.
    pub(super) fn note(&self, to: &[ConnectionId], message: &FromScheduler) {
        let peer = to.first().and_then(|id| self.connections.get(id)).map(|outbox| outbox.peer().to_string());
        self.flight.told(message);
        let peer = peer.as_deref().unwrap_or("gone");
        match message {
            FromScheduler::Welcome(welcome) => {
                let member = to.first().and_then(|id| self.view.engine().member_of(*id));
                let role = member.map_or(Role::Scheduler, |member| member.role);
                tracing::info!(peer, "{role} {} registered", welcome.rank);
            }
            FromScheduler::Refused(reason) => {
                if let Some(others) = self.refused.may_speak() {
                    tracing::warn!(peer, %reason, others, "a process is refused");
                }
            }
            FromScheduler::Roster { epoch, members, .. } => {
                tracing::info!(%epoch, members = members.len(), "who is there");
            }
            FromScheduler::Assign(update) => {
                tracing::info!(epoch = %update.epoch, tensors = update.tensors.len(), "tensors are placed");
            }
            FromScheduler::Remap { epoch, .. } => tracing::info!(%epoch, "shards move"),
            FromScheduler::ChangeRule { change, .. } => {
                tracing::info!(tensor = %change.key, from_round = change.from_round, "a rule changes");
            }
            FromScheduler::MemberDied(death) => tracing::error!("{death}; the job ends"),
            FromScheduler::Shutdown { reason } => tracing::info!(reason, "the job ends"),
            FromScheduler::Declared { result: Err(error), .. } => {
                tracing::warn!(peer, %error, "a declaration is refused");
            }
            FromScheduler::Released { result: Err(error), .. } => {
                tracing::warn!(peer, %error, "a barrier is not opened");
            }
            // At every tick, while somebody waits.
            FromScheduler::Checkpoint(CheckpointOrder::Where) => {
                tracing::debug!("servers are asked how far they are with a checkpoint");
            }
            FromScheduler::Checkpoint(order) => tracing::info!(?order, "servers are told of a checkpoint"),
            FromScheduler::CheckpointSaved { result: Err(error), .. } => {
                tracing::warn!(peer, %error, "a checkpoint that was asked for is not written");
            }
            FromScheduler::CheckpointSaved { .. }
            | FromScheduler::CheckpointGoes(_)
            | FromScheduler::Declared { .. }
            | FromScheduler::Released { .. }
            | FromScheduler::Posted { .. }
            | FromScheduler::PostAnswered { .. }
            | FromScheduler::AskRounds { .. }
            | FromScheduler::CountFrom { .. }
            | FromScheduler::HeartbeatAck
            | FromScheduler::GoodbyeAck => {}
        }
    }
}
