//! Which rows a worker uses in which step.
//!
//! Each epoch has a permutation of the training rows that only seed and epoch decide. Step s takes the next
//! `workers * batch` rows of it, a block; rank r takes rows r, r + workers, … of the block. A last block that
//! is not full is dropped. So every worker count is well defined, and no worker needs to ask another.

use crate::rng::{Rng, STREAM_EPOCH};

/// The plan of one epoch.
#[derive(Debug, Clone)]
pub struct EpochPlan {
    order: Vec<u32>,
    workers: usize,
    batch: usize,
}

impl EpochPlan {
    /// Orders `rows` for `epoch` (from 0); `batch` is the rows of one worker in one step.
    pub fn new(rows: &[u32], seed: u64, epoch: u32, workers: u32, batch: usize) -> Self {
        let mut order = rows.to_vec();
        Rng::new(seed, STREAM_EPOCH + u64::from(epoch)).shuffle(&mut order);
        Self { order, workers: workers.max(1) as usize, batch: batch.max(1) }
    }

    /// Full blocks in the epoch.
    pub fn steps(&self) -> usize {
        steps(self.order.len(), self.workers, self.batch)
    }

    /// Rows of one worker in one step.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// The rows of `rank` in `step`, in order; empty beyond the last step.
    pub fn rows(&self, step: usize, rank: u32) -> impl Iterator<Item = u32> + '_ {
        let block = self.workers * self.batch;
        let range = if step < self.steps() { step * block..(step + 1) * block } else { 0..0 };
        self.order[range].iter().copied().skip(rank as usize).step_by(self.workers)
    }
}

/// Full blocks that `rows` rows give.
pub fn steps(rows: usize, workers: usize, batch: usize) -> usize {
    rows / (workers * batch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_a_full_epoch_is_used_exactly_once_whatever_the_worker_count() {
        let rows: Vec<u32> = (100..220).collect();
        for workers in [1, 2, 3, 4, 5] {
            let plan = EpochPlan::new(&rows, 1, 3, workers, 4);
            let mut used: Vec<u32> = Vec::new();
            for step in 0..plan.steps() {
                for rank in 0..workers {
                    let mine: Vec<u32> = plan.rows(step, rank).collect();
                    assert_eq!(mine.len(), 4);
                    used.extend(mine);
                }
            }
            let wanted = rows.len() / (workers as usize * 4) * workers as usize * 4;
            assert_eq!(used.len(), wanted);
            used.sort_unstable();
            used.dedup();
            assert_eq!(used.len(), wanted, "no row twice with {workers} workers");
        }
    }

    #[test]
    fn ranks_interleave_within_a_block() {
        let rows: Vec<u32> = (0..12).collect();
        let whole: Vec<u32> = EpochPlan::new(&rows, 9, 0, 1, 12).rows(0, 0).collect();
        let third: Vec<u32> = EpochPlan::new(&rows, 9, 0, 3, 4).rows(0, 1).collect();
        assert_eq!(third, [whole[1], whole[4], whole[7], whole[10]]);
    }

    #[test]
    fn the_last_partial_block_is_dropped_and_beyond_is_empty() {
        let rows: Vec<u32> = (0..11).collect();
        let plan = EpochPlan::new(&rows, 1, 0, 2, 2);
        assert_eq!(plan.steps(), 2);
        assert_eq!(plan.rows(2, 0).count(), 0);
    }

    #[test]
    fn order_depends_on_seed_and_epoch_only() {
        let rows: Vec<u32> = (0..50).collect();
        let order = |seed, epoch| EpochPlan::new(&rows, seed, epoch, 1, 50).rows(0, 0).collect::<Vec<_>>();
        assert_eq!(order(1, 2), order(1, 2));
        assert_ne!(order(1, 2), order(1, 3));
        assert_ne!(order(1, 2), order(2, 2));
    }
}
