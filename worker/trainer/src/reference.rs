//! The single-process reference: all workers' gradients in one process, summed and applied in rank order.
//!
//! It is the oracle for the servers' kernels, so it is naive on purpose: scalar code, one element after the
//! other, nothing shared with them, no fused multiply-add, no reordering. Only codecs are those of everyone, over chunks
//! of the size that clusters have unless it is set.

use std::ops::Range;

use crate::exchange::{Exchange, How, NamedTensor, Traffic};
use gradwire_worker::encoder::Encoder;
use proto_common::ids::{ChunkIndex, Rank};
use proto_common::limits::CHUNK_BYTES_DEFAULT;
use proto_common::optimizer::{Optimizer, Rule, rules};
use proto_common::tensor::TensorSpec;

/// The one rule that it knows: stochastic gradient descent.
///
/// Per element, in plain f32 without fused multiply-add, with gradients summed in rank order:
/// `g = sum * (1 / workers)`; unless weight decay is 0, `g = g + weight_decay * w`; unless momentum is 0,
/// `m = momentum * m + g; w = w - lr * m` with m starting at 0; otherwise `w = w - lr * g`.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Sgd {
    lr: f32,
    momentum: f32,
    weight_decay: f32,
}

/// One tensor with everything its update needs.
#[derive(Debug)]
struct Slot {
    weights: Vec<f32>,
    gradient: Vec<f32>,
    sum: Vec<f32>,
    momentum: Vec<f32>,
    /// Contributions in `sum`.
    contributions: u32,
    round: u64,
    /// One a worker, where gradients are encoded.
    encoders: Vec<Encoder>,
}

/// Plays every worker and the servers.
#[derive(Debug)]
pub struct Reference {
    workers: u32,
    sgd: Sgd,
    slots: Vec<Slot>,
    traffic: Traffic,
}

impl Reference {
    /// A reference for `workers` workers (at least one).
    pub fn new(workers: u32) -> Self {
        Self { workers: workers.max(1), sgd: Sgd::default(), slots: Vec::new(), traffic: Traffic::default() }
    }
}

impl Slot {
    fn contribute(&mut self) {
        if self.contributions == 0 {
            self.sum.copy_from_slice(&self.gradient);
        } else {
            for k in 0..self.sum.len() {
                self.sum[k] += self.gradient[k];
            }
        }
        self.contributions += 1;
    }

    fn update(&mut self, sgd: &Sgd, workers: u32) {
        let share = 1.0f32 / workers as f32;
        for k in 0..self.sum.len() {
            let mut g = self.sum[k] * share;
            if sgd.weight_decay != 0.0 {
                g += sgd.weight_decay * self.weights[k];
            }
            if sgd.momentum != 0.0 {
                self.momentum[k] = sgd.momentum * self.momentum[k] + g;
                self.weights[k] -= sgd.lr * self.momentum[k];
            } else {
                self.weights[k] -= sgd.lr * g;
            }
        }
        self.contributions = 0;
    }

    /// What the servers make of the next worker's gradient takes its place; the bytes that were sent.
    fn encode(&mut self) -> anyhow::Result<u64> {
        self.round += u64::from(self.contributions == 0);
        let Some(encoder) = self.encoders.get_mut(self.contributions as usize) else {
            return Ok(4 * self.gradient.len() as u64);
        };
        let mut bytes = vec![0; encoder.bytes()];
        encoder.encode(&self.gradient, self.round, &mut bytes);
        for (index, chunk) in self.gradient.chunks_mut(CHUNK_BYTES_DEFAULT as usize / 4).enumerate() {
            let encoded = &bytes[encoder.place(ChunkIndex(index as u32))];
            encoder.codec().check(chunk.len(), encoded)?;
            encoder.codec().decode(encoded, chunk);
        }
        Ok(bytes.len() as u64)
    }
}

impl Exchange for Reference {
    fn rank(&self) -> u32 {
        0
    }

    fn workers(&self) -> u32 {
        self.workers
    }

    fn local_ranks(&self) -> Range<u32> {
        0..self.workers
    }

    fn init(&mut self, tensors: &[NamedTensor], how: &How) -> anyhow::Result<u64> {
        let How { optimizer, compression, .. } = *how;
        let Rule::Sgd(rules::Sgd { momentum, nesterov: false }) = optimizer.rule else {
            anyhow::bail!("the reference computes sgd only, not {:?}", optimizer.rule);
        };
        self.sgd = Sgd { lr: optimizer.learning_rate, momentum, weight_decay: optimizer.weight_decay };
        let slot = |(key, t): (usize, &NamedTensor)| {
            let spec =
                TensorSpec::f32(key as u64, t.values.len() as u64, Optimizer::sum()).compressed(compression);
            let encoder = |rank| Encoder::new(&spec, CHUNK_BYTES_DEFAULT, Rank(rank));
            let zeros = vec![0.0; t.values.len()];
            Slot {
                weights: t.values.clone(),
                gradient: zeros.clone(),
                sum: zeros.clone(),
                momentum: zeros,
                contributions: 0,
                round: 0,
                encoders: (0..self.workers).filter_map(encoder).collect(),
            }
        };
        self.slots = tensors.iter().enumerate().map(slot).collect();
        Ok(0)
    }

    fn weights(&self, i: usize) -> &[f32] {
        &self.slots[i].weights
    }

    fn gradient_mut(&mut self, i: usize) -> &mut [f32] {
        &mut self.slots[i].gradient
    }

    /// Ranks contribute one after the other, so the order of calls is the rank order; the last one's call
    /// updates the weights.
    fn start(&mut self, i: usize) -> anyhow::Result<()> {
        let slot = &mut self.slots[i];
        let sent_bytes = slot.encode()?;
        self.traffic.add(4 * slot.gradient.len() as u64, sent_bytes);
        slot.contribute();
        if slot.contributions == self.workers {
            slot.update(&self.sgd, self.workers);
        }
        Ok(())
    }

    fn finish(&mut self, _i: usize) -> anyhow::Result<()> {
        Ok(())
    }

    fn leave(self: Box<Self>) -> anyhow::Result<()> {
        Ok(())
    }

    fn traffic(&self) -> Traffic {
        self.traffic
    }

    fn transport(&self) -> String {
        "reference".into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(workers: u32, w: f32, sgd: Sgd) -> Reference {
        let mut reference = Reference::new(workers);
        let tensor = NamedTensor { name: "t".into(), shape: vec![1], values: vec![w] };
        let optimizer = Optimizer::sgd(sgd.lr, sgd.momentum, sgd.weight_decay);
        reference.init(&[tensor], &How::by(optimizer)).unwrap();
        reference
    }

    fn push(reference: &mut Reference, g: f32) {
        reference.gradient_mut(0)[0] = g;
        reference.start(0).unwrap();
    }

    #[test]
    fn weights_change_only_with_the_last_contribution_and_by_the_mean() {
        let mut r = one(2, 1.0, Sgd { lr: 0.5, momentum: 0.0, weight_decay: 0.0 });
        push(&mut r, 1.0);
        assert_eq!(r.weights(0), [1.0]);
        push(&mut r, 3.0);
        assert_eq!(r.weights(0), [0.0]);
    }

    #[test]
    fn momentum_and_weight_decay_follow_the_formula() {
        let mut r = one(1, 2.0, Sgd { lr: 0.5, momentum: 0.5, weight_decay: 0.25 });
        push(&mut r, 1.0); // g = 1.5, m = 1.5, w = 1.25
        assert_eq!(r.weights(0), [1.25]);
        push(&mut r, 1.0); // g = 1.3125, m = 2.0625, w = 0.21875
        assert_eq!(r.weights(0), [0.21875]);
    }

    #[test]
    fn sums_run_in_rank_order() {
        let lr_one = Sgd { lr: 1.0, momentum: 0.0, weight_decay: 0.0 };
        let run = |gs: [f32; 4]| {
            let mut r = one(4, 0.0, lr_one);
            gs.iter().for_each(|g| push(&mut r, *g));
            r.weights(0)[0]
        };
        // (1e8 + 1) + -1e8 loses the 1 in f32; (1e8 + -1e8) + 1 keeps it.
        assert_eq!(run([1e8, 1.0, -1e8, 0.0]), 0.0);
        assert_eq!(run([1e8, -1e8, 1.0, 0.0]), -0.25);
    }
}
