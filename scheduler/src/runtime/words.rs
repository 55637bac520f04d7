//! Log lines, counters and flight recorder entries about what the engine did and which messages it sent. Nothing is decided here.

use super::Core;
use crate::engine::{ConnectionId, Note, named};
use proto_common::ids::Role;
use proto_common::message::{CheckpointOrder, FromScheduler};

impl Core {
    /// Logs what has happened.
    pub(super) fn tell(&self, note: &Note) {
        match note {
            Note::Lost(death) => {
                tracing::warn!("{death}");
                self.flight.note("lost", death.to_string());
                self.metrics.count_death(death);
            }
            Note::Left(member) => {
                tracing::info!("{member} has left the job");
                self.flight.note("left", member.to_string());
            }
            Note::TakenOver { from, by } => {
                tracing::warn!(server = from.0, ?by, "replicas took over the shards of a failed server");
                self.flight.note("promoted", format!("servers {by:?} took over the shards of server {from}"));
            }
            Note::Refused { server, reason, given_up, tried } => {
                let what = match given_up - tried {
                    0 if *given_up == 0 => "no replica was being created there",
                    0 => "retrying its replicas, on other servers first",
                    _ => "no other server available: replicas are abandoned until one joins",
                };
                tracing::error!(
                    server = server.0,
                    reason,
                    given_up,
                    tried,
                    "a server cannot hold its shards: {what}"
                );
            }
            Note::NoQuorum { missing } => {
                let missing = named(missing);
                tracing::warn!(
                    missing,
                    "waiting for a majority of the members of the job, because a majority may follow another scheduler; if the \
                     missing members have exited, kill this scheduler with SIGKILL (SIGTERM ends the job), and start it with \
                     --resume --force"
                );
            }
            Note::Minority { silent, ends_ms } => {
                let silent = named(silent);
                tracing::error!(
                    silent,
                    ends_ms,
                    "no majority of the members is reachable, so the scheduler decides nothing; check the network: without a \
                     majority it ends the job after deadlines.scheduler_ms"
                );
                self.flight.note("minority", format!("silent: {silent}"));
            }
            Note::CheckpointFailed(why) => {
                tracing::warn!(why, "abandoned a checkpoint");
                self.flight.note("checkpoint", format!("abandoned: {why}"));
            }
            Note::CheckpointsStopped { round, stopped } => {
                let left = &stopped.left;
                tracing::error!(round, ?left, reason = stopped.reason, "checkpoint not written: {stopped}");
                self.flight.note("checkpoint", format!("round {round} is not written: {stopped}"));
            }
        }
    }

    /// Logs a message.
    pub(super) fn note(&self, to: &[ConnectionId], message: &FromScheduler) {
        let peer = to.first().and_then(|id| self.connections.get(id)).map(|outbox| outbox.peer().to_string());
        // The names of these tensors were recorded with the request to allocate them.
        if !matches!(message, FromScheduler::Declared { result: Ok(_), .. }) {
            self.flight.told(message);
        }
        let peer = peer.as_deref().unwrap_or("gone");
        match message {
            FromScheduler::Welcome(welcome) => {
                let member = to.first().and_then(|id| self.engine.member_of(*id));
                let role = member.map_or(Role::Scheduler, |member| member.role);
                tracing::info!(peer, "{role} {} registered", welcome.rank);
            }
            FromScheduler::Refused(reason) => {
                if let Some(others) = self.refused.may_speak() {
                    tracing::warn!(peer, %reason, others, "refused a process");
                }
            }
            FromScheduler::Roster { epoch, members, .. } => {
                tracing::info!(%epoch, members = members.len(), "new roster");
            }
            FromScheduler::Assign(update) => {
                tracing::info!(epoch = %update.epoch, tensors = update.tensors.len(), "placed tensors");
            }
            FromScheduler::Remap { epoch, .. } => tracing::info!(%epoch, "moving shards"),
            FromScheduler::ChangeRule { change, .. } => {
                tracing::info!(tensor = %change.key, from_round = change.from_round, "changing an update rule");
            }
            FromScheduler::MemberDied(death) => tracing::error!("{death}; the job is ending"),
            FromScheduler::Shutdown { reason } => tracing::info!(reason, "the job is ending"),
            FromScheduler::Declared { result: Err(error), .. } => {
                tracing::warn!(peer, %error, "refused a declaration");
            }
            FromScheduler::Released { result: Err(error), .. } => {
                tracing::warn!(peer, %error, "barrier not released");
            }
            // Sent at every tick while a request for a checkpoint waits.
            FromScheduler::Checkpoint(CheckpointOrder::Where) => {
                tracing::debug!("asking servers for the progress of a checkpoint");
            }
            FromScheduler::Checkpoint(order) => tracing::info!(?order, "sent a checkpoint order to servers"),
            FromScheduler::CheckpointSaved { result: Err(error), .. } => {
                tracing::warn!(peer, %error, "a requested checkpoint was not written");
            }
            FromScheduler::Candidate { term } => tracing::info!(term, peer, "asking for a vote"),
            FromScheduler::Proposed { epoch, .. } => tracing::debug!(%epoch, "proposed a decision"),
            FromScheduler::Decided { epoch } => tracing::debug!(%epoch, "a decision is in force"),
            FromScheduler::CheckpointSaved { .. }
            | FromScheduler::CheckpointGoes(_)
            | FromScheduler::Declared { .. }
            | FromScheduler::Released { .. }
            | FromScheduler::Posted { .. }
            | FromScheduler::PostAnswered { .. }
            | FromScheduler::AskRounds { .. }
            | FromScheduler::CountFrom { .. }
            | FromScheduler::HeartbeatAck
            | FromScheduler::SendMap
            | FromScheduler::GoodbyeAck => {}
        }
    }
}
