//! Joins a running training: finds out at which round it is, and makes this worker continue there. Also the checkpoints that a trainer
//! requests.

use super::{Client, Tensor};
use crate::error::ClientError;
use proto_common::batch::OpKind;
use proto_common::config::WorkerLoss;
use proto_common::message::Coming;
use std::time::Duration;

impl Client {
    /// Where training is: the last round of these tensors that all workers have finished. Pass all tensors that the
    /// trainer contributes to. In a job that has just begun it is 0: set initial values then ([`Client::init`] has no
    /// effect if they are set). Call it once, after the tensors are declared and before anything is pushed. This
    /// worker's next contribution to each of them is to the round after it, and its first pull returns the weights of
    /// the returned round. A trainer that continues with the next step therefore computes the same as its earlier
    /// process.
    ///
    /// It is larger than 0 in three cases: tensors began from a checkpoint; an earlier process with this rank failed
    /// and rounds wait for it (`cluster.worker_loss = "wait"`), and what that process had contributed to the next
    /// round counts once; or rounds continued without this rank (`"continue"`), and it counts from the next one on.
    ///
    /// Optimizer state is on the servers and continues. The error feedback of a codec in the failed process is lost:
    /// training continues without it, but the weights of such tensors are then not those of an undisturbed run.
    /// Outside mode sync it is the number of this worker's own contributions that are applied on every chunk; repeated
    /// later ones count once.
    ///
    /// This holds for tensors. Rows have no rounds. If pushes to rows carry their step
    /// ([`Client::push_rows_in_step`]), a repeated step counts once. Other repeated pushes are applied again to the
    /// rows that the earlier process had reached, which may be some of the rows, all or none.
    pub fn resume(&self, tensors: &[Tensor]) -> Result<u64, ClientError> {
        if self.0.coming == Coming::Between {
            // Said when they were declared, and not the same for all of them.
            return Ok(tensors.iter().map(|tensor| tensor.numbers().rounds).min().unwrap_or(0));
        }
        let tell = |tensor: &Tensor| self.tell(tensor, OpKind::Release);
        let asked = tensors.iter().map(tell).collect::<Result<Vec<_>, _>>()?;
        let versions = asked.into_iter().map(|handle| Ok(handle.wait()?.version.0));
        let versions = versions.collect::<Result<Vec<u64>, ClientError>>()?;
        self.in_step(tensors, &versions)?;
        // Nobody is further than the round after it, because that needs this worker.
        let round = versions.into_iter().min().unwrap_or(0);
        // Then servers keep the version before the one in force.
        let exactly = self.0.shape.worker_loss == WorkerLoss::Wait;
        for tensor in tensors {
            tensor.numbers().go_on_after(round, exactly && has_rounds_of_all(tensor));
        }
        Ok(round)
    }

    /// What is repeated of rounds that a tensor has already counts for nothing: so they are to be at one round, or at it and
    /// the next.
    fn in_step(&self, tensors: &[Tensor], versions: &[u64]) -> Result<(), ClientError> {
        let all = || tensors.iter().zip(versions).filter(|(tensor, _)| has_rounds_of_all(tensor));
        let (behind, ahead) = (all().min_by_key(|(_, at)| **at), all().max_by_key(|(_, at)| **at));
        match (behind, ahead) {
            (Some((behind, least)), Some((ahead, greatest))) if *greatest > *least + 1 => {
                let (least, greatest) = (*least, *greatest);
                let (behind_name, ahead_name) = (behind.name(), ahead.name());
                let (behind, ahead) = (behind.key(), ahead.key());
                Err(ClientError::Uneven { behind, behind_name, least, ahead, ahead_name, greatest })
            }
            _ => Ok(()),
        }
    }

    /// Has servers write a checkpoint of the round that this worker has finished of these tensors, which are all that the trainer
    /// contributes to; returns its name when it is complete, after `within` at the latest. To be called between rounds: after
    /// the operations of one were waited for, and before anything is pushed to the next, so that nobody's servers are past it.
    /// One worker is enough; where several ask for the same round, it is written once, and who asks for it later hears its name as
    /// long as nothing else was declared or has moved.
    ///
    /// Outside mode `sync` it is of a moment after the call: each chunk with what was in force on it when its server heard. Who
    /// asks while another one is written waits for that, and shares the next one with others who wait.
    ///
    /// Training stands still meanwhile. Checkpoints that are written behind it are those of `checkpoint.every_rounds`.
    pub fn checkpoint(&self, tensors: &[Tensor], within: Duration) -> Result<String, ClientError> {
        let round = tensors.iter().map(|tensor| tensor.numbers().rounds).max().unwrap_or(0);
        self.requests()?.save(round, within)
    }

    /// What this worker came into, as the scheduler said it.
    #[must_use]
    pub fn coming(&self) -> Coming {
        self.0.coming
    }
}

/// Does each of its rounds need every worker?
fn has_rounds_of_all(tensor: &Tensor) -> bool {
    tensor.spec().settled_mode().has_rounds() && tensor.spec().settled_backup() == 0
}
