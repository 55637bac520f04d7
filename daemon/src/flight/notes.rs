//! What the scheduler says, as notes: the same words at the scheduler, which says it, and at members, which hear it.

use super::Flight;
use proto_common::message::{CheckpointOrder, FromScheduler};
use proto_common::tensor::TensorSpec;

impl Flight {
    /// The scheduler said this. Answers that follow from nothing but a question are left out.
    pub fn told(&self, message: &FromScheduler) {
        match message {
            FromScheduler::Welcome(welcome) => {
                self.note("joined", format!("rank {} of job {}", welcome.rank, welcome.job));
            }
            FromScheduler::Refused(reason) => self.note("refused", reason.to_string()),
            FromScheduler::Roster { epoch, members, .. } => {
                let members: Vec<String> = members.iter().map(|member| member.id.to_string()).collect();
                self.note("roster", format!("epoch {epoch}: {}", members.join(", ")));
            }
            FromScheduler::Assign(update) => {
                self.names(&update.tensors);
                self.note("tensors", format!("epoch {}: {} placed", update.epoch, update.tensors.len()));
            }
            FromScheduler::Declared { result, .. } => match result {
                Ok(update) => self.names(&update.tensors),
                Err(error) => self.note("not declared", error.to_string()),
            },
            FromScheduler::Released { result: Err(error), .. } => self.note("barrier", error.to_string()),
            FromScheduler::Released { .. } => self.note("barrier", "released"),
            FromScheduler::Remap { epoch, .. } => self.note("shards", format!("epoch {epoch}: shards move")),
            FromScheduler::MemberDied(death) => self.note("died", death.to_string()),
            FromScheduler::Shutdown { reason } => self.note("end", reason.clone()),
            FromScheduler::ChangeRule { change, .. } => {
                let text = format!("tensor {}, from round {}", change.key, change.from_round);
                self.note("rule", text);
            }
            // Asked at every tick, while somebody waits.
            FromScheduler::Checkpoint(CheckpointOrder::Where) => {}
            FromScheduler::Checkpoint(order) => self.note("checkpoint", format!("{order:?}")),
            FromScheduler::CheckpointSaved { result, .. } => {
                let text = match result {
                    Ok(name) => format!("{name} is complete"),
                    Err(error) => error.to_string(),
                };
                self.note("checkpoint", text);
            }
            FromScheduler::Candidate { .. }
            | FromScheduler::Proposed { .. }
            | FromScheduler::Decided { .. }
            | FromScheduler::CheckpointGoes(_)
            | FromScheduler::Posted { .. }
            | FromScheduler::PostAnswered { .. }
            | FromScheduler::AskRounds { .. }
            | FromScheduler::CountFrom { .. }
            | FromScheduler::HeartbeatAck
            | FromScheduler::SendMap
            | FromScheduler::GoodbyeAck => {}
        }
    }

    fn names(&self, tensors: &[TensorSpec]) {
        tensors.iter().for_each(|tensor| self.name(tensor.key, &tensor.name));
    }
}
