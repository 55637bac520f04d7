//! What the trainer needs from whoever keeps the parameters: a cluster, or the single-process reference.
//!
//! Owns the trait and its argument types; no implementation lives here.

use proto_common::codec::Compression;
use proto_common::mode::Mode;
use proto_common::optimizer::Optimizer;
use std::ops::Range;

/// One tensor as the trainer declares it. Its key is its index in the list given to [`Exchange::init`].
#[derive(Debug, Clone, PartialEq)]
pub struct NamedTensor {
    /// Name for people and for saved models, such as `layers.0.weight`.
    pub name: String,
    /// Lengths of the axes, outermost first.
    pub shape: Vec<usize>,
    /// Initial values, row-major; as many as the product of `shape`.
    pub values: Vec<f32>,
}

/// How gradients become weights.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct How {
    /// The update rule.
    pub optimizer: Optimizer,
    /// What is done to gradients before they are sent.
    pub compression: Compression,
    /// How gradients of several workers become versions; the cluster's mode where it is not said.
    pub mode: Option<Mode>,
    /// Workers whose gradients a round does not wait for; as many as the cluster says where it is not said.
    pub backup_workers: Option<u32>,
    /// Rounds of the whole training.
    pub rounds: u64,
}

#[cfg(test)]
impl How {
    /// By this rule, and else as it is usual.
    pub fn by(optimizer: Optimizer) -> Self {
        Self { optimizer, compression: Compression::default(), mode: None, backup_workers: None, rounds: 1 }
    }
}

/// Bytes of gradients, each counted once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// As they were computed.
    pub plain_bytes: u64,
    /// As they were sent.
    pub sent_bytes: u64,
}

impl Traffic {
    /// One more gradient.
    pub fn add(&mut self, plain_bytes: u64, sent_bytes: u64) {
        self.plain_bytes += plain_bytes;
        self.sent_bytes += sent_bytes;
    }
}

/// Keeps the parameters and turns gradients into new weights.
///
/// The trainer's side of the contract, per tensor: `start` once a round, then `finish` before `weights` or
/// `gradient_mut` are touched again. Between the two the weights may change and the gradient is being sent.
pub trait Exchange {
    /// This process's rank, 0 to `workers() - 1`. Rank 0 reports and saves.
    fn rank(&self) -> u32;

    /// Number of workers whose gradients make one update.
    fn workers(&self) -> u32;

    /// The ranks whose gradients this process computes, in this order: its own; in the reference, all.
    fn local_ranks(&self) -> Range<u32> {
        self.rank()..self.rank() + 1
    }

    /// Declares one f32 tensor per entry (key = index); rank 0's values win. Says how many rounds are over already: those of
    /// an earlier life of this process, or of a checkpoint. On return `weights(i)` hold what these left, or the initial values.
    fn init(&mut self, tensors: &[NamedTensor], how: &How) -> anyhow::Result<u64>;

    /// Have all tensors had their last round, perhaps without this worker? Then there is nothing left to contribute to.
    fn is_over(&self) -> bool {
        false
    }

    /// The current weights of tensor `i`.
    fn weights(&self, i: usize) -> &[f32];

    /// Where the gradient of tensor `i` is to be written, whole: the exchange's own (registered) memory.
    fn gradient_mut(&mut self, i: usize) -> &mut [f32];

    /// Gradient `i` is complete: send it. Low indices (first layers) have the highest priority.
    fn start(&mut self, i: usize) -> anyhow::Result<()>;

    /// Blocks until the new weights of `i` have landed; returns at once where nothing was started.
    fn finish(&mut self, i: usize) -> anyhow::Result<()>;

    /// A number of the training for whoever watches it, such as its loss. Nobody need listen.
    fn report(&self, _name: &str, _value: f64) {}

    /// Waits until all workers have trained: then `weights` are the last ones.
    fn settle(&mut self) -> anyhow::Result<()> {
        Ok(())
    }

    /// An orderly goodbye. The job is over with the last one: what is to come of it is kept by then.
    fn leave(self: Box<Self>) -> anyhow::Result<()>;

    /// What this process's gradients were, and what was sent for them.
    fn traffic(&self) -> Traffic;

    /// How gradients travel: `shm`, `tcp` or `reference`.
    fn transport(&self) -> String;
}
