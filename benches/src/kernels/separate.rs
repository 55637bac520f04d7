//! The same round in separate passes over the whole tensor: one for each contribution, one for the update; for halves also
//! one that widens each contribution and one that rounds the weights. Every pass uses the server's own vector kernels.

use super::fused::gradient;
use super::{Subject, Way};
use fabric::PeerWritable;
use fabric::simd::{Pass, widest};
use gradwire_server::kernel::{self, Contribution, Element, Weights};
use proto_common::optimizer::Optimizer;
use zerocopy::IntoBytes;

/// A tensor with everything that a round of it needs.
pub(super) struct Separate<E: Element> {
    gradients: Vec<PeerWritable>,
    optimizer: Optimizer,
    /// A contribution of halves, widened.
    wide: Vec<f32>,
    sum: Vec<f32>,
    weights: Vec<f32>,
    state: [Vec<f32>; 2],
    /// Weights of halves, rounded.
    rounded: Vec<E>,
    round: u64,
}

impl<E: Element<Sum = f32>> Separate<E> {
    pub(super) fn new(subject: &Subject) -> anyhow::Result<Self> {
        let count = subject.elements as usize;
        let bytes = count * size_of::<E>();
        let region = |contribution| {
            let region = PeerWritable::allocate(bytes, "bench-gradient")?;
            region.write(0, &gradient(subject, contribution, 0..subject.elements))?;
            anyhow::Ok(region)
        };
        let arrays = subject.optimizer.state_arrays();
        // The first round touches them, and is not timed.
        let array = |wanted: bool| vec![0.0f32; if wanted { count } else { 0 }];
        let halves = size_of::<E>() < size_of::<f32>();
        Ok(Self {
            gradients: (0..subject.contributions).map(region).collect::<anyhow::Result<_>>()?,
            optimizer: subject.optimizer,
            wide: array(halves),
            sum: array(true),
            weights: array(true),
            state: [array(arrays > 0), array(arrays > 1)],
            rounded: vec![E::round(0.0); if halves { count } else { 0 }],
            round: 0,
        })
    }

    /// The weights' bytes.
    pub(super) fn weights(&self) -> &[u8] {
        if self.rounded.is_empty() { self.weights.as_bytes() } else { self.rounded.as_bytes() }
    }
}

impl<E: Element<Sum = f32>> Way for Separate<E> {
    fn rounds(&mut self, rounds: u64) -> anyhow::Result<()> {
        let Self { gradients, optimizer, wide, sum, weights, state, rounded, round } = self;
        for _ in 0..rounds {
            *round += 1;
            for (at, gradient) in gradients.iter().enumerate() {
                let gradient = Contribution::<E>(gradient.numbers(0, sum.len())?);
                match (at, wide.is_empty()) {
                    (0, _) => kernel::set(sum, gradient),
                    (_, true) => kernel::add(sum, gradient),
                    (_, false) => {
                        kernel::set(wide, gradient);
                        kernel::add(sum, &wide[..]);
                    }
                }
            }
            let step = optimizer.step(*round, gradients.len() as u32);
            let [first, second] = state;
            kernel::update(&step, &sum[..], Weights::<f32>::InPlace(weights), [first, second]);
            widest(Publish { weights, rounded });
        }
        Ok(())
    }
}

struct Publish<'a, E> {
    weights: &'a [f32],
    rounded: &'a mut [E],
}

impl<E: Element<Sum = f32>> Pass for Publish<'_, E> {
    #[inline(always)]
    fn run(self) {
        for (rounded, weight) in self.rounded.iter_mut().zip(self.weights) {
            *rounded = E::round(*weight);
        }
    }
}
