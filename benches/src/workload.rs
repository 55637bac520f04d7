//! What is measured: the work of one run, and the list of works the suite goes through.
//!
//! Every subject gets the same [`WorkSpec`] and must do the same work for it. Nothing here runs or measures.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What one operation does. Its payload counts once for each direction it travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Op {
    /// Gradients to the server, which applies them; acknowledged without payload.
    Push,
    /// Weights from the server.
    Pull,
    /// Gradients to the server, and the weights after this round back.
    PushPull,
}

impl Op {
    /// How often an operation's payload crosses between worker and server.
    pub(crate) fn directions(self) -> u64 {
        match self {
            Op::Push | Op::Pull => 1,
            Op::PushPull => 2,
        }
    }

    /// Whether gradients travel to the server.
    pub(crate) fn pushes(self) -> bool {
        self != Op::Pull
    }

    /// Whether weights travel to the worker.
    pub(crate) fn pulls(self) -> bool {
        self != Op::Push
    }
}

/// The order in which a round goes through the tensors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Order {
    /// Each once, the first one first.
    #[default]
    InTurn,
    /// So many draws by Zipf's law, the first tensor being the most frequent, in batches of as many as are in flight;
    /// a batch names a tensor once, however often it was drawn, as a lookup of embeddings does. The same draws in each
    /// round and for each worker.
    Zipf {
        /// Draws of one round, before those are left out that a batch has already.
        draws: u32,
    },
}

/// The work of one run, the same for every subject.
///
/// Each worker declares f32 tensors of the given sizes and goes through them in the given order, with `inflight`
/// operations outstanding; a tensor has one outstanding at most. So `inflight = 1` measures latency and more measures
/// throughput. One round is one time through the order. Pushes are synchronous: the server averages the contributions
/// of all workers, and applies SGD with [`LEARNING_RATE`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct WorkSpec {
    /// The benchmark's name in the report.
    pub(crate) name: String,
    /// What each operation does.
    pub(crate) op: Op,
    /// Bytes of each tensor, multiples of four.
    pub(crate) tensors: Vec<u64>,
    /// Operations outstanding per worker; not more than there are tensors.
    pub(crate) inflight: u32,
    /// How a round goes through the tensors.
    pub(crate) order: Order,
    /// Worker processes.
    pub(crate) workers: u32,
    /// Server processes; a tensor of several chunks is spread over all.
    pub(crate) servers: u32,
    /// How long the measured part of one run should take; subjects choose their number of rounds by it.
    pub(crate) seconds: f64,
    /// Rounds done, and not counted, before the measured part of each run.
    pub(crate) warmup_rounds: u64,
    /// How much later than the others worker 0 begins each round.
    pub(crate) late_us: u32,
}

/// The learning rate of every run: a power of two, so that the expected weights are exact in f32.
pub(crate) const LEARNING_RATE: f32 = 0.5;

/// The most elements of one tensor (4 GiB): above it a mistyped size would only exhaust the machine.
pub(crate) const MAX_TENSOR_BYTES: u64 = 4 << 30;

/// The most tensors of one work.
pub(crate) const MAX_TENSORS: u32 = 4096;

/// The most draws of one round.
const MAX_DRAWS: u32 = 1 << 20;

impl WorkSpec {
    /// So many tensors alike, each with an operation outstanding, on one worker and one server.
    pub(crate) fn alike(name: &str, op: Op, bytes: u64, inflight: u32) -> Self {
        Self::of_tensors(name, op, vec![bytes; inflight as usize])
    }

    /// Tensors of these sizes, each with an operation outstanding, on one worker and one server.
    pub(crate) fn of_tensors(name: &str, op: Op, tensors: Vec<u64>) -> Self {
        Self {
            name: name.to_owned(),
            op,
            inflight: u32::try_from(tensors.len()).unwrap_or(u32::MAX),
            tensors,
            order: Order::InTurn,
            workers: 1,
            servers: 1,
            seconds: 0.1,
            // Twice: the first touches memory, the second still meets cold translations.
            warmup_rounds: 2,
            late_us: 0,
        }
    }

    /// Bytes of the first tensor: of each, where they are alike.
    pub(crate) fn tensor_bytes(&self) -> u64 {
        self.tensors.first().copied().unwrap_or(0)
    }

    /// Are all tensors of one size?
    pub(crate) fn is_alike(&self) -> bool {
        self.tensors.iter().all(|bytes| *bytes == self.tensor_bytes())
    }

    /// Bytes of all tensors.
    pub(crate) fn model_bytes(&self) -> u64 {
        self.tensors.iter().sum()
    }

    /// The tensors that one round goes through, in order.
    pub(crate) fn lap(&self) -> Vec<u32> {
        let tensors = self.tensors.len() as u32;
        match self.order {
            Order::InTurn => (0..tensors).collect(),
            Order::Zipf { draws } => zipf_lap(tensors, draws, self.inflight),
        }
    }

    /// How long a worker waits before each round.
    pub(crate) fn late(&self, rank: u32) -> Duration {
        if rank == 0 { Duration::from_micros(self.late_us.into()) } else { Duration::ZERO }
    }

    /// Payload bytes that cross between workers and servers in `rounds` rounds, over the whole cluster.
    pub(crate) fn payload_bytes(&self, rounds: u64) -> u64 {
        let lap_bytes: u64 = self.lap().iter().map(|tensor| self.tensors[*tensor as usize]).sum();
        lap_bytes * self.op.directions() * u64::from(self.workers) * rounds
    }

    /// The gradient a worker pushes: every element is `(rank + 1) / 1024`, exact in f32.
    pub(crate) fn gradient_value(rank: u32) -> f32 {
        (rank + 1) as f32 / 1024.0
    }

    /// What a weight must be after `rounds` operations on its tensor, and how far off rounding may take it.
    pub(crate) fn expected_weight(&self, rounds: u64) -> (f64, f64) {
        let mean = (1..=self.workers).map(f64::from).sum::<f64>() / 1024.0 / f64::from(self.workers);
        let weight = if self.op.pushes() { -f64::from(LEARNING_RATE) * mean * rounds as f64 } else { 0.0 };
        // Sums are exact until the weight outgrows 24 bits of mantissa; after that each round may be off by one
        // unit in the last place, in one direction at worst.
        (weight, 1e-3 * weight.abs())
    }

    /// What a weight must be once so many operations on its tensor have been added up, and how far off rounding may take it.
    pub(crate) fn expected_sum(&self, rounds: u64) -> (f64, f64) {
        let sum = (1..=self.workers).map(f64::from).sum::<f64>() / 1024.0;
        let weight = if self.op.pushes() { sum * rounds as f64 } else { 0.0 };
        (weight, 1e-3 * weight.abs())
    }

    /// Refuses work that no subject could do.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        for bytes in &self.tensors {
            anyhow::ensure!(
                *bytes > 0 && bytes.is_multiple_of(4) && *bytes <= MAX_TENSOR_BYTES,
                "{bytes} bytes is no f32 tensor: take a multiple of 4 up to {MAX_TENSOR_BYTES}"
            );
        }
        let tensors = self.tensors.len();
        anyhow::ensure!(
            (1..=MAX_TENSORS as usize).contains(&tensors),
            "{tensors} tensors: take 1 to {MAX_TENSORS}"
        );
        anyhow::ensure!(
            (1..=tensors).contains(&(self.inflight as usize)),
            "{} operations in flight: take 1 to the number of tensors, {tensors}",
            self.inflight
        );
        if let Order::Zipf { draws } = self.order {
            anyhow::ensure!((1..=MAX_DRAWS).contains(&draws), "{draws} draws: take 1 to {MAX_DRAWS}");
        }
        anyhow::ensure!((1..=64).contains(&self.workers), "{} workers: take 1 to 64", self.workers);
        anyhow::ensure!((1..=64).contains(&self.servers), "{} servers: take 1 to 64", self.servers);
        Ok(())
    }
}

/// Zipf's exponent, as YCSB has it (Cooper et al., "Benchmarking Cloud Serving Systems with YCSB", section 5.3).
const ZIPF_EXPONENT: f64 = 0.99;

fn zipf_lap(tensors: u32, draws: u32, batch: u32) -> Vec<u32> {
    let mut total = 0.0;
    let reached: Vec<f64> = (1..=tensors)
        .map(|place| {
            total += f64::from(place).powf(-ZIPF_EXPONENT);
            total
        })
        .collect();
    let mut state = 1_u64;
    let mut lap = Vec::with_capacity(draws as usize);
    let mut batch_start = 0;
    for draw in 0..draws {
        if draw % batch.max(1) == 0 {
            batch_start = lap.len();
        }
        let wanted = uniform(&mut state) * total;
        let tensor = reached.partition_point(|reached| *reached <= wanted).min(reached.len() - 1) as u32;
        if !lap[batch_start..].contains(&tensor) {
            lap.push(tensor);
        }
    }
    lap
}

/// The next number in [0, 1) of splitmix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators").
fn uniform(state: &mut u64) -> f64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut bits = *state;
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    ((bits ^ (bits >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
}

/// One line of the suite: an operation at a size, measured for throughput, for latency, or both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Workload {
    /// The benchmark's name in the report.
    pub(crate) name: &'static str,
    /// What each operation does.
    pub(crate) op: Op,
    /// Bytes of each tensor.
    pub(crate) bytes: u64,
    /// Whether throughput is of interest (a tensor of four floats has only latency).
    pub(crate) throughput: bool,
    /// Whether `--quick` keeps it.
    pub(crate) quick: bool,
}

/// The seed papers' smallest message.
pub(crate) const FOUR_FLOATS_BYTES: u64 = 16;

/// The seed paper's workload: messages of 100,000 f32, sustained.
const KV_100K_BYTES: u64 = 400_000;

/// The sizes that the suite sweeps, and what stands beside them.
pub(crate) const WORKLOADS: &[Workload] = &[
    Workload {
        name: "push_pull",
        op: Op::PushPull,
        bytes: FOUR_FLOATS_BYTES,
        throughput: false,
        quick: true,
    },
    sweep(64, false),
    sweep(1 << 10, true),
    sweep(16 << 10, false),
    sweep(64 << 10, false),
    sweep(1 << 20, true),
    sweep(4 << 20, false),
    sweep(16 << 20, false),
    sweep(64 << 20, false),
    Workload { name: "push", op: Op::Push, bytes: 1 << 20, throughput: true, quick: false },
    Workload { name: "pull", op: Op::Pull, bytes: 1 << 20, throughput: true, quick: false },
    Workload { name: "kv_100k_f32", op: Op::PushPull, bytes: KV_100K_BYTES, throughput: true, quick: true },
];

const fn sweep(bytes: u64, quick: bool) -> Workload {
    Workload { name: "push_pull", op: Op::PushPull, bytes, throughput: true, quick }
}

/// Tensors in flight for throughput at a size: enough that neither side ever waits for the other, and from
/// 64 MiB up 256 MiB in all, which no cache holds.
pub(crate) fn throughput_inflight(bytes: u64) -> u32 {
    match bytes {
        0..=4096 => 64,
        4097..=131_072 => 32,
        131_073..=1_048_576 => 8,
        _ => 4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(op: Op, workers: u32) -> WorkSpec {
        WorkSpec { workers, ..WorkSpec::alike("test", op, 1024, 4) }
    }

    #[test]
    fn payload_counts_every_direction_of_every_worker() {
        assert_eq!(spec(Op::Push, 1).payload_bytes(10), 40_960);
        assert_eq!(spec(Op::PushPull, 3).payload_bytes(1), 24_576);
    }

    #[test]
    fn expected_weight_is_minus_rate_times_mean_gradient() {
        assert_eq!(spec(Op::PushPull, 1).expected_weight(1024).0, -0.5);
        assert_eq!(spec(Op::Push, 2).expected_weight(1024).0, -0.75);
        assert_eq!(spec(Op::Pull, 2).expected_weight(1024), (0.0, 0.0));
        assert_eq!(spec(Op::Push, 2).expected_sum(1024).0, 3.0);
    }

    #[test]
    fn impossible_work_is_refused_on_both_sides_of_each_bound() {
        assert!(spec(Op::Push, 64).check().is_ok());
        assert!(spec(Op::Push, 65).check().is_err());
        assert!(spec(Op::Push, 0).check().is_err());
        for (bytes, good) in [(0, false), (4, true), (6, false), (MAX_TENSOR_BYTES, true)] {
            let tensors = vec![4, bytes];
            assert_eq!(WorkSpec::of_tensors("test", Op::Push, tensors).check().is_ok(), good, "{bytes}");
        }
        for (tensors, good) in [(0, false), (1, true), (MAX_TENSORS, true), (MAX_TENSORS + 1, false)] {
            assert_eq!(WorkSpec::alike("test", Op::Push, 4, tensors).check().is_ok(), good, "{tensors}");
        }
        for (inflight, good) in [(0, false), (1, true), (4, true), (5, false)] {
            assert_eq!(WorkSpec { inflight, ..spec(Op::Push, 1) }.check().is_ok(), good, "{inflight}");
        }
        for (draws, good) in [(0, false), (1, true), (MAX_DRAWS, true), (MAX_DRAWS + 1, false)] {
            let order = Order::Zipf { draws };
            assert_eq!(WorkSpec { order, ..spec(Op::Push, 1) }.check().is_ok(), good, "{draws}");
        }
    }

    #[test]
    fn rows_are_drawn_by_zipf_and_a_batch_names_each_once() {
        let order = Order::Zipf { draws: 40_000 };
        let spec = WorkSpec { inflight: 8, order, ..WorkSpec::alike("test", Op::PushPull, 256, 1000) };
        let lap = spec.lap();
        assert_eq!(lap, spec.lap(), "the same for each worker");
        assert!(lap.iter().all(|tensor| *tensor < 1000) && lap.len() < 40_000);
        let of = |tensor| lap.iter().filter(|drawn| **drawn == tensor).count();
        // Batches of eight hide some of the first one's 13 %, and next to none of the hundredth's.
        assert!(of(0) > 2 * of(3) && of(3) > 5 * of(99) && of(99) > 0, "{} {} {}", of(0), of(3), of(99));
        assert_eq!(spec.payload_bytes(1), lap.len() as u64 * 512);
        let alone = WorkSpec { inflight: 1, order: Order::Zipf { draws: 9 }, ..spec };
        assert_eq!(alone.lap().len(), 9, "batches of one leave nothing out");
    }

    #[test]
    fn only_the_first_worker_is_late() {
        let spec = WorkSpec { late_us: 5, ..spec(Op::Push, 2) };
        assert_eq!((spec.late(0), spec.late(1)), (Duration::from_micros(5), Duration::ZERO));
    }
}
