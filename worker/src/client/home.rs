//! Where the rows of tables are: their homes, which lie in the shard map as tensors do, and the steps of pushes to them.

use super::Tensor;
use fabric::lock;
use proto_common::ids::{ChunkId, Lane};
use proto_common::table::{PushStep, Spread};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// One part's home.
#[derive(Debug)]
pub(super) struct Home {
    pub(super) tensor: Tensor,
    pub(super) lane: Lane,
    /// Contributions that were made, and not seen to end.
    open: AtomicU64,
}

impl Home {
    pub(super) fn new(tensor: Tensor, lane: Lane) -> Self {
        Self { tensor, lane, open: AtomicU64::new(0) }
    }

    /// What a request's head names it by.
    pub(super) fn id(&self) -> ChunkId {
        ChunkId::new(self.tensor.key().0, 0)
    }

    /// A contribution is on its way.
    pub(super) fn begin(&self) {
        self.open.fetch_add(1, Ordering::AcqRel);
    }

    /// One has ended.
    pub(super) fn end(&self) {
        self.open.fetch_sub(1, Ordering::AcqRel);
    }

    /// May one be under way?
    pub(super) fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire) != 0
    }
}

/// All homes of a cluster. Tables share them.
#[derive(Debug)]
pub(super) struct Homes {
    pub(super) spread: Spread,
    pub(super) parts: Vec<Home>,
    /// Of each table, where its pushes say their step.
    stepped: Mutex<HashMap<u32, Arc<Mutex<Stepped>>>>,
}

/// Pushes of one step to a table's rows.
#[derive(Debug, Default)]
pub(super) struct Stepped {
    step: u64,
    /// How many there were at each home.
    made: Vec<u32>,
}

impl Stepped {
    /// What follows is of this step. Steps only grow: what is of an earlier one would count as a repetition.
    pub(super) fn begin(&mut self, step: u64, parts: usize) -> Result<(), String> {
        if step < self.step {
            let last = self.step;
            return Err(format!(
                "step {step} is smaller than step {last}, which was pushed before; use a larger step for each push"
            ));
        }
        if step > self.step || self.made.is_empty() {
            (self.step, self.made) = (step, vec![0; parts]);
        }
        Ok(())
    }

    /// Which one the next push to a home is.
    pub(super) fn next(&mut self, rank: u32, part: usize) -> PushStep {
        let made = &mut self.made[part];
        let which = PushStep { rank, step: self.step, nth: *made };
        *made += 1;
        which
    }
}

impl Homes {
    pub(super) fn new(spread: Spread, parts: Vec<Home>) -> Self {
        Self { spread, parts, stepped: Mutex::default() }
    }

    pub(super) fn stepped(&self, key: u32) -> Arc<Mutex<Stepped>> {
        lock(&self.stepped).entry(key).or_default().clone()
    }
}
