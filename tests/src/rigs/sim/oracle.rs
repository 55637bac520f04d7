//! An independent computation of what every version's weights are: a sum in rank order and the update rule,
//! written down once more, without chunks, lanes or servers. Gradients and initial values come from the seed.

use super::shape::counts;
use fabric::sim::Rng;
use proto_common::codec::Codec;
use proto_common::half::{f16_to_f32, f32_to_f16};
use proto_common::optimizer::{Rule, Sgd};
use proto_common::tensor::TensorSpec;

/// See the module.
#[derive(Debug)]
pub struct Oracle {
    seed: u64,
    workers: u32,
    tensors: Vec<Known>,
}

#[derive(Debug)]
struct Known {
    spec: TensorSpec,
    /// Weights by version, from 0.
    versions: Vec<Vec<f32>>,
    momentum: Vec<f32>,
}

impl Oracle {
    /// An oracle; tensors are zeros until [`Oracle::initialise`].
    #[must_use]
    pub fn new(seed: u64, workers: u32, specs: &[TensorSpec]) -> Self {
        let known = |spec: &TensorSpec| Known {
            versions: vec![vec![0.0; if spec.dynamic { 0 } else { spec.elements as usize }]],
            momentum: vec![0.0; spec.elements as usize],
            spec: spec.clone(),
        };
        Self { seed, workers, tensors: specs.iter().map(known).collect() }
    }

    /// What worker 0 sets a tensor to.
    #[must_use]
    pub fn initial(&self, tensor: usize) -> Vec<f32> {
        self.values(tensor, u64::MAX, 0)
    }

    /// The tensor is initialised, not zeros.
    pub fn initialise(&mut self, tensor: usize) {
        self.tensors[tensor].versions[0] = self.initial(tensor);
    }

    /// What a worker contributes to a round.
    #[must_use]
    pub fn gradient(&self, tensor: usize, rank: u32, round: u64) -> Vec<f32> {
        let mut values = self.values(tensor, u64::from(rank), round);
        values.truncate(self.length(tensor, round));
        values
    }

    /// Elements of a round: of a dynamic tensor another number each time.
    #[must_use]
    pub fn length(&self, tensor: usize, round: u64) -> usize {
        let spec = &self.tensors[tensor].spec;
        match (spec.dynamic, round) {
            (false, _) => spec.elements as usize,
            (true, 0) => 0,
            (true, _) => Rng::new(self.seed ^ round.rotate_left(21)).within(1, spec.elements) as usize,
        }
    }

    /// Values of very different sizes, so that the order of additions shows in the bits. Those that are encoded are such
    /// that nothing is left out, so that the oracle needs no codec.
    fn values(&self, tensor: usize, who: u64, round: u64) -> Vec<f32> {
        let spec = &self.tensors[tensor].spec;
        if counts(spec) {
            let value = if who == u64::MAX { 0.0 } else { 1.0 };
            return vec![value; spec.elements as usize];
        }
        let mut rng =
            Rng::new(self.seed ^ who.rotate_left(17) ^ round.rotate_left(33) ^ spec.key.0.rotate_left(49));
        let mut value = || {
            let bits = rng.next_u64();
            let sign = if bits & 1 == 0 { 1.0 } else { -1.0 };
            let exponent = ((bits >> 1) % 21) as i32 - 10;
            sign * (1.0 + (bits >> 40) as f32 / 16_777_216.0) * 2f32.powi(exponent)
        };
        match spec.compression.codec {
            Codec::Plain => (0..spec.elements).map(|_| value()).collect(),
            Codec::F16 => (0..spec.elements).map(|_| f16_to_f32(f32_to_f16(value()))).collect(),
            other => panic!("the oracle has no values that {other} keeps"),
        }
    }

    /// The weights of a version.
    pub fn weights(&mut self, tensor: usize, version: u64) -> &[f32] {
        while (self.tensors[tensor].versions.len() as u64) <= version {
            self.next_version(tensor);
        }
        &self.tensors[tensor].versions[version as usize]
    }

    fn next_version(&mut self, tensor: usize) {
        let round = self.tensors[tensor].versions.len() as u64;
        let mut sum = self.gradient(tensor, 0, round);
        for rank in 1..self.workers {
            for (total, part) in sum.iter_mut().zip(self.gradient(tensor, rank, round)) {
                *total += part;
            }
        }
        let known = &mut self.tensors[tensor];
        if known.spec.dynamic {
            return known.versions.push(sum);
        }
        let (rule, scale) = (known.spec.optimizer, 1.0 / self.workers as f32);
        let Rule::Sgd(Sgd { momentum: kept, .. }) = rule.rule else { panic!("the oracle knows sgd only") };
        let old = &known.versions[round as usize - 1];
        let mut new = Vec::with_capacity(old.len());
        for ((weight, total), momentum) in old.iter().zip(&sum).zip(&mut known.momentum) {
            let mean = *total * scale;
            let step = if kept == 0.0 { mean } else { kept * *momentum + mean };
            *momentum = step;
            new.push(*weight - rule.learning_rate * step);
        }
        known.versions.push(new);
    }
}

/// A short name of exact bits.
#[must_use]
pub fn bits_hash(values: &[f32]) -> u64 {
    // FNV-1a over the bits: it only has to tell runs apart.
    values.iter().fold(0xCBF2_9CE4_8422_2325, |hash, value| {
        (hash ^ u64::from(value.to_bits())).wrapping_mul(0x0000_0100_0000_01B3)
    })
}
