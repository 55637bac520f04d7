//! What the workers of all subjects have in common: the order of their operations, which of their times are kept, and
//! what must have come of it. It must not do the work.

use crate::workload::WorkSpec;
use std::time::Duration;

/// The rounds of one worker.
#[derive(Debug)]
pub(crate) struct Laps {
    /// The tensors of one round, in order.
    lap: Vec<u32>,
    /// How often a round goes to each tensor.
    visits: Vec<u64>,
    late: Duration,
    rounds_done: u64,
}

impl Laps {
    /// None done yet.
    pub(crate) fn new(spec: &WorkSpec, rank: u32) -> Self {
        let lap = spec.lap();
        let mut visits = vec![0; spec.tensors.len()];
        lap.iter().for_each(|tensor| visits[*tensor as usize] += 1);
        Self { lap, visits, late: spec.late(rank), rounds_done: 0 }
    }

    /// Operations of one round.
    pub(crate) fn len(&self) -> usize {
        self.lap.len()
    }

    /// The tensor of a round's operation.
    pub(crate) fn tensor(&self, place: usize) -> usize {
        self.lap[place] as usize
    }

    /// How long to wait before each round.
    pub(crate) fn late(&self) -> Duration {
        self.late
    }

    /// So many rounds more are done.
    pub(crate) fn done(&mut self, rounds: u64) {
        self.rounds_done += rounds;
    }

    /// The first and the last weight of a tensor must be what the operations so far make of them: `expected` says it
    /// for a number of operations, with a tolerance.
    pub(crate) fn verify(
        &self,
        key: usize,
        weights: &[u8],
        expected: impl FnOnce(u64) -> (f64, f64),
    ) -> anyhow::Result<()> {
        let times = self.rounds_done * self.visits[key];
        // Nobody has brought anything there.
        if times == 0 {
            return Ok(());
        }
        let (expected, tolerance) = expected(times);
        let (values, _) = weights.as_chunks::<4>();
        for value in [values.first(), values.last()].into_iter().flatten() {
            let found = f64::from(f32::from_le_bytes(*value));
            anyhow::ensure!(
                (found - expected).abs() <= tolerance,
                "tensor {key} holds {found} after {times} operations, not {expected}"
            );
        }
        Ok(())
    }
}

/// The most operation times told per run; a regular subsample beyond that.
const MAX_TIMES: u64 = 20_000;

/// Operation times of one run.
#[derive(Debug)]
pub(crate) struct Times {
    every: u64,
    seen: u64,
    kept_ns: Vec<u64>,
}

impl Times {
    /// Room for those of so many operations, or a part of them.
    pub(crate) fn new(operations: u64) -> Self {
        let every = operations.div_ceil(MAX_TIMES).max(1);
        Self { every, seen: 0, kept_ns: Vec::with_capacity(operations.div_ceil(every) as usize) }
    }

    /// An operation took so long.
    pub(crate) fn note(&mut self, took: Duration) {
        if self.seen.is_multiple_of(self.every) {
            self.kept_ns.push(took.as_nanos() as u64);
        }
        self.seen += 1;
    }

    /// Those that were kept, in nanoseconds.
    pub(crate) fn kept(self) -> Vec<u64> {
        self.kept_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{Op, Order};

    #[test]
    fn what_a_tensor_must_hold_depends_on_how_often_a_round_goes_there() {
        let order = Order::Zipf { draws: 100 };
        let spec = WorkSpec { inflight: 2, order, ..WorkSpec::alike("test", Op::PushPull, 8, 50) };
        let mut laps = Laps::new(&spec, 0);
        laps.done(3);
        let often = laps.visits[0];
        assert!(often > 3, "the most frequent one");
        let weights = |value: f32| [value.to_le_bytes(), value.to_le_bytes()].concat();
        let exactly = |times| (times as f64, 0.0);
        laps.verify(0, &weights((3 * often) as f32), exactly).expect("right");
        assert!(laps.verify(0, &weights((3 * often + 1) as f32), exactly).is_err());
        let never = laps.visits.iter().position(|visits| *visits == 0).expect("one that was not drawn");
        laps.verify(never, &weights(-1.0), exactly).expect("nothing was brought there");
    }

    #[test]
    fn times_are_a_regular_part_of_all() {
        let mut times = Times::new(MAX_TIMES * 3);
        (0..MAX_TIMES * 3).for_each(|ns| times.note(Duration::from_nanos(ns)));
        let kept = times.kept();
        assert_eq!((kept.len() as u64, kept[1]), (MAX_TIMES, 3));
        let mut few = Times::new(2);
        few.note(Duration::from_nanos(7));
        assert_eq!(few.kept(), [7]);
    }
}
