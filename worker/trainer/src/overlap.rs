//! When gradients go out, and what the exchange costs the trainer: an exchange that keeps time around another one.
//!
//! With overlap each gradient goes out as soon as it is complete, and new weights are waited for when a layer needs
//! them. Without, gradients are held back until all are complete, and all weights are waited for at once: what
//! overlap is to be compared with. It must not change any number: both give the same weights to the last bit.

use std::ops::Range;
use std::time::{Duration, Instant};

use crate::exchange::{Exchange, How, NamedTensor, Traffic};
use crate::rng::Rng;

/// Whether communication hides behind computing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Overlap {
    /// Gradients go out layer by layer, while earlier layers' are computed.
    On,
    /// First all is computed, then all is exchanged.
    Off,
    /// On and off, epoch by epoch, to compare them in one run.
    Alternate,
}

/// What the exchange cost the trainer's thread.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Spent {
    /// In handing gradients over.
    pub sending: Duration,
    /// In waiting for new weights, by layer, the first one first.
    pub waiting: Vec<Duration>,
}

/// See the module.
pub struct Overlapped {
    inner: Box<dyn Exchange>,
    mode: Overlap,
    overlaps: bool,
    tensors: usize,
    /// Tensors whose gradients are complete and held back.
    held: Vec<usize>,
    spent: Spent,
    /// For tests of determinism: each gradient goes out up to so many microseconds late. Results must not change by it.
    jitter: Option<(Rng, u64)>,
}

impl Overlapped {
    /// Keeps time around `inner`, and holds back its gradients where `mode` says so.
    pub fn new(inner: Box<dyn Exchange>, mode: Overlap, jitter: Option<(Rng, u64)>) -> Self {
        let overlaps = mode != Overlap::Off;
        Self { inner, mode, overlaps, tensors: 0, held: Vec::new(), spent: Spent::default(), jitter }
    }

    /// The epoch is over: whether communication overlapped with computing in it, and what it cost. Where the next one
    /// is to be another way, nothing of this one is left under way, so that each is charged with its own.
    pub fn end_epoch(&mut self) -> anyhow::Result<(bool, Spent)> {
        let overlapped = self.overlaps;
        if self.mode == Overlap::Alternate {
            self.finish_all()?;
            self.overlaps = !self.overlaps;
        }
        let none = Spent { waiting: vec![Duration::ZERO; self.spent.waiting.len()], ..Spent::default() };
        Ok((overlapped, std::mem::replace(&mut self.spent, none)))
    }

    /// Waits for all new weights, the first layer's first.
    pub fn finish_all(&mut self) -> anyhow::Result<()> {
        (0..self.tensors).try_for_each(|i| self.finish(i))
    }

    fn send(&mut self, i: usize) -> anyhow::Result<()> {
        let since = Instant::now();
        if let Some((rng, limit_us)) = &mut self.jitter {
            // Sleep: tests ask for the delay itself, so there is no event to wait for.
            std::thread::sleep(Duration::from_micros(rng.below(*limit_us + 1)));
        }
        let sent = self.inner.start(i);
        self.spent.sending += since.elapsed();
        sent
    }

    fn exchange_held(&mut self) -> anyhow::Result<()> {
        let mut held = std::mem::take(&mut self.held);
        // The order in which they are needed: the best one where all are there.
        held.sort_unstable();
        held.iter().try_for_each(|i| self.send(*i))?;
        held.clear();
        self.held = held;
        self.finish_all()
    }
}

impl Exchange for Overlapped {
    fn rank(&self) -> u32 {
        self.inner.rank()
    }

    fn workers(&self) -> u32 {
        self.inner.workers()
    }

    fn traffic(&self) -> Traffic {
        self.inner.traffic()
    }

    fn local_ranks(&self) -> Range<u32> {
        self.inner.local_ranks()
    }

    fn is_over(&self) -> bool {
        self.inner.is_over()
    }

    fn init(&mut self, tensors: &[NamedTensor], how: &How) -> anyhow::Result<u64> {
        self.tensors = tensors.len();
        self.held.reserve(tensors.len());
        // A weight and a bias per layer.
        self.spent.waiting = vec![Duration::ZERO; tensors.len().div_ceil(2)];
        self.inner.init(tensors, how)
    }

    fn weights(&self, i: usize) -> &[f32] {
        self.inner.weights(i)
    }

    fn gradient_mut(&mut self, i: usize) -> &mut [f32] {
        self.inner.gradient_mut(i)
    }

    fn start(&mut self, i: usize) -> anyhow::Result<()> {
        if self.overlaps {
            return self.send(i);
        }
        self.held.push(i);
        if self.held.len() == self.tensors { self.exchange_held() } else { Ok(()) }
    }

    fn finish(&mut self, i: usize) -> anyhow::Result<()> {
        let since = Instant::now();
        let finished = self.inner.finish(i);
        if let Some(waiting) = self.spent.waiting.get_mut(i / 2) {
            *waiting += since.elapsed();
        }
        finished
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

    fn transport(&self) -> String {
        self.inner.transport()
    }
}

#[cfg(test)]
#[path = "overlap_tests.rs"]
mod tests;
