//! Coming into a training that others are in: where it is, and how this worker goes on there.

use super::{Client, Tensor};
use crate::error::ClientError;
use proto_common::batch::OpKind;
use proto_common::config::WorkerLoss;
use proto_common::message::Coming;

impl Client {
    /// Where training is: the round that every worker has finished of all these tensors, which are all that the trainer
    /// contributes to. 0 in a job that has just begun; then initial values are to be set ([`Client::init`], which is harmless
    /// where they are). To be called once, when tensors are declared and before anything is pushed: this worker's next
    /// contribution to each of them is to the round after, and its first pull brings the weights that the round returned left,
    /// so that a trainer that goes on with the step after it computes what its earlier life did.
    ///
    /// It gives more than 0 where tensors begin from a checkpoint; where an earlier life of this rank died and rounds wait for it
    /// (`cluster.worker_loss = "wait"`): what that had contributed to the round after counts once; and where rounds went on
    /// without this rank (`"continue"`), which counts from the next one on.
    ///
    /// What servers keep of optimizers is theirs and goes on. What a codec's error feedback had kept in the process that died is
    /// lost: training goes on without it, but for tensors with such a codec weights are then not those of an undisturbed run.
    /// Outside mode sync it is how many of this worker's own contributions are in force on every chunk; what it repeats of later
    /// ones counts once.
    ///
    /// That goes for tensors. Rows have no rounds: what it repeats of a step's pushes to rows counts once where they say the step
    /// ([`Client::push_rows_in_step`]); of others it is applied once more wherever its earlier life's was, which may be some of the
    /// rows, all or none.
    pub fn resume(&self, tensors: &[Tensor]) -> Result<u64, ClientError> {
        if self.0.coming == Coming::Between {
            // Said when they were declared, and not the same for all of them.
            return Ok(tensors.iter().map(|tensor| tensor.numbers().rounds()).min().unwrap_or(0));
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
