//! Checkpoints that a trainer asks for.

use super::{Client, Tensor};
use crate::error::ClientError;
use std::time::Duration;

impl Client {
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
        let round = tensors.iter().map(|tensor| tensor.numbers().rounds()).max().unwrap_or(0);
        self.requests()?.save(round, within)
    }
}
