//! What is measured: the work of one run, and the list of works the suite goes through.
//!
//! Every subject gets the same [`WorkSpec`] and must do the same work for it. Nothing here runs or measures.

use serde::{Deserialize, Serialize};

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

/// The work of one run, the same for every subject.
///
/// Each worker declares `inflight` f32 tensors of `bytes` bytes and keeps exactly one operation on each of
/// them outstanding: when it completes, the next one on that tensor starts. So `inflight = 1` measures
/// latency and more measures throughput. One round is one operation on every tensor. Pushes are synchronous:
/// the server averages the contributions of all workers, and applies SGD with [`LEARNING_RATE`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct WorkSpec {
    /// The benchmark's name in the report.
    pub(crate) name: String,
    /// What each operation does.
    pub(crate) op: Op,
    /// Bytes of each tensor, a multiple of four.
    pub(crate) bytes: u64,
    /// Tensors, and operations outstanding per worker.
    pub(crate) inflight: u32,
    /// Worker processes.
    pub(crate) workers: u32,
    /// Server processes; a tensor of several chunks is spread over all.
    pub(crate) servers: u32,
    /// How long the measured part of one run should take; subjects choose their number of rounds by it.
    pub(crate) seconds: f64,
    /// Rounds done, and not counted, before the measured part of each run.
    pub(crate) warmup_rounds: u64,
}

/// The learning rate of every run: a power of two, so that the expected weights are exact in f32.
pub(crate) const LEARNING_RATE: f32 = 0.5;

/// The most elements of one tensor (4 GiB): above it a mistyped size would only exhaust the machine.
pub(crate) const MAX_TENSOR_BYTES: u64 = 4 << 30;

/// The most tensors in flight.
pub(crate) const MAX_INFLIGHT: u32 = 4096;

impl WorkSpec {
    /// Payload bytes that cross between workers and servers in `rounds` rounds, over the whole cluster.
    pub(crate) fn payload_bytes(&self, rounds: u64) -> u64 {
        self.bytes * self.op.directions() * u64::from(self.inflight) * u64::from(self.workers) * rounds
    }

    /// The gradient a worker pushes: every element is `(rank + 1) / 1024`, exact in f32.
    pub(crate) fn gradient_value(rank: u32) -> f32 {
        (rank + 1) as f32 / 1024.0
    }

    /// What every weight must be after `rounds` rounds, and how far off rounding may take it.
    pub(crate) fn expected_weight(&self, rounds: u64) -> (f64, f64) {
        let mean = (1..=self.workers).map(f64::from).sum::<f64>() / 1024.0 / f64::from(self.workers);
        let weight = if self.op.pushes() { -f64::from(LEARNING_RATE) * mean * rounds as f64 } else { 0.0 };
        // Sums are exact until the weight outgrows 24 bits of mantissa; after that each round may be off by one
        // unit in the last place, in one direction at worst.
        (weight, 1e-3 * weight.abs())
    }

    /// What every weight must be once so many rounds have been added up, and how far off rounding may take it.
    pub(crate) fn expected_sum(&self, rounds: u64) -> (f64, f64) {
        let sum = (1..=self.workers).map(f64::from).sum::<f64>() / 1024.0;
        let weight = if self.op.pushes() { sum * rounds as f64 } else { 0.0 };
        (weight, 1e-3 * weight.abs())
    }

    /// Refuses work that no subject could do.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        anyhow::ensure!(
            self.bytes > 0 && self.bytes.is_multiple_of(4) && self.bytes <= MAX_TENSOR_BYTES,
            "{} bytes is no f32 tensor: take a multiple of 4 up to {MAX_TENSOR_BYTES}",
            self.bytes
        );
        anyhow::ensure!(
            (1..=MAX_INFLIGHT).contains(&self.inflight),
            "{} tensors in flight: take 1 to {MAX_INFLIGHT}",
            self.inflight
        );
        anyhow::ensure!((1..=64).contains(&self.workers), "{} workers: take 1 to 64", self.workers);
        anyhow::ensure!((1..=64).contains(&self.servers), "{} servers: take 1 to 64", self.servers);
        Ok(())
    }
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

/// The seed paper's workload: messages of 100,000 f32, sustained.
const KV_100K_BYTES: u64 = 400_000;

/// Everything the suite measures.
pub(crate) const WORKLOADS: &[Workload] = &[
    Workload { name: "push_pull", op: Op::PushPull, bytes: 16, throughput: false, quick: true },
    Workload { name: "push_pull", op: Op::PushPull, bytes: 1 << 10, throughput: true, quick: true },
    Workload { name: "push_pull", op: Op::PushPull, bytes: 64 << 10, throughput: true, quick: false },
    Workload { name: "push_pull", op: Op::PushPull, bytes: 1 << 20, throughput: true, quick: true },
    Workload { name: "push_pull", op: Op::PushPull, bytes: 4 << 20, throughput: true, quick: false },
    Workload { name: "push_pull", op: Op::PushPull, bytes: 64 << 20, throughput: true, quick: false },
    Workload { name: "push", op: Op::Push, bytes: 1 << 20, throughput: true, quick: false },
    Workload { name: "pull", op: Op::Pull, bytes: 1 << 20, throughput: true, quick: false },
    Workload { name: "kv_100k_f32", op: Op::PushPull, bytes: KV_100K_BYTES, throughput: true, quick: true },
];

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
        WorkSpec {
            name: "test".into(),
            op,
            bytes: 1024,
            inflight: 4,
            workers,
            servers: 1,
            seconds: 0.1,
            warmup_rounds: 1,
        }
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
            assert_eq!(WorkSpec { bytes, ..spec(Op::Push, 1) }.check().is_ok(), good, "{bytes}");
        }
        for (inflight, good) in [(0, false), (1, true), (MAX_INFLIGHT, true), (MAX_INFLIGHT + 1, false)] {
            assert_eq!(WorkSpec { inflight, ..spec(Op::Push, 1) }.check().is_ok(), good, "{inflight}");
        }
    }
}
