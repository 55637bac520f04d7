//! An exchange that delays every `start` by a seeded random time, so that tests meet arrivals in any order.
//!
//! For tests of determinism only (`--jitter-us`): results must not change, whatever the delays.

use std::ops::Range;
use std::time::Duration;

use crate::exchange::{Exchange, How, NamedTensor, Traffic};
use crate::rng::{Rng, STREAM_JITTER};

/// Wraps an exchange; every call but `start` goes straight through.
pub struct Jittered {
    inner: Box<dyn Exchange>,
    rng: Rng,
    limit_us: u64,
}

impl Jittered {
    /// Delays each `start` by 0 to `limit_us` microseconds; ranks draw from streams of their own.
    pub fn new(inner: Box<dyn Exchange>, seed: u64, limit_us: u64) -> Self {
        let rng = Rng::new(seed, STREAM_JITTER + u64::from(inner.rank()));
        Self { inner, rng, limit_us }
    }
}

impl Exchange for Jittered {
    fn rank(&self) -> u32 {
        self.inner.rank()
    }

    fn workers(&self) -> u32 {
        self.inner.workers()
    }

    fn local_ranks(&self) -> Range<u32> {
        self.inner.local_ranks()
    }

    fn is_over(&self) -> bool {
        self.inner.is_over()
    }

    fn init(&mut self, tensors: &[NamedTensor], how: &How) -> anyhow::Result<u64> {
        self.inner.init(tensors, how)
    }

    fn weights(&self, i: usize) -> &[f32] {
        self.inner.weights(i)
    }

    fn gradient_mut(&mut self, i: usize) -> &mut [f32] {
        self.inner.gradient_mut(i)
    }

    fn start(&mut self, i: usize) -> anyhow::Result<()> {
        // Sleep: the delay itself is what this type is for; there is no event to wait on.
        std::thread::sleep(Duration::from_micros(self.rng.below(self.limit_us + 1)));
        self.inner.start(i)
    }

    fn finish(&mut self, i: usize) -> anyhow::Result<()> {
        self.inner.finish(i)
    }

    fn report(&self, name: &str, value: f64) {
        self.inner.report(name, value);
    }

    fn settle(&mut self) -> anyhow::Result<()> {
        self.inner.settle()
    }

    fn leave(self: Box<Self>) -> anyhow::Result<()> {
        self.inner.leave()
    }

    fn traffic(&self) -> Traffic {
        self.inner.traffic()
    }

    fn transport(&self) -> String {
        self.inner.transport()
    }
}
