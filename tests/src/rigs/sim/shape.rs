//! What a simulated cluster is like, and which tensors it has.

use fabric::sim::{Rng, SimFaults};
use proto_common::codec::{Codec, Compression};
use proto_common::mode::Mode;
use proto_common::optimizer::{Optimizer, Rule};
use proto_common::plan::Placement;
use proto_common::tensor::TensorSpec;

/// Bytes of a chunk: fewer than settings allow, so that small tensors have several and a seed is quick.
pub(super) const CHUNK_BYTES: u64 = 512;
/// Elements of a whole chunk.
const CHUNK: u64 = CHUNK_BYTES / 4;

/// Every placement.
pub const PLACEMENTS: [Placement; 4] =
    [Placement::Slot, Placement::Static, Placement::RendezvousRead, Placement::RendezvousWrite];

/// A simulated cluster's size, limits, network and tensors.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Servers.
    pub servers: u32,
    /// Workers.
    pub workers: u32,
    /// Slots of each server's inbox.
    pub inbox_slots: u32,
    /// Slots of each worker's inbox, per server.
    pub result_slots: u32,
    /// Spill blocks of each server.
    pub spill_blocks: u32,
    /// Time an operation has.
    pub timeout_ms: u32,
    /// Fold in rank order.
    pub deterministic: bool,
    /// The network.
    pub faults: SimFaults,
    /// What is declared.
    pub tensors: Vec<TensorSpec>,
    /// How contributions travel: each operation draws one of these.
    pub placements: Vec<Placement>,
    /// Most time between two stages of connecting, in microseconds.
    pub bootstrap_us: u64,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            servers: 2,
            workers: 3,
            inbox_slots: 8,
            result_slots: 3,
            spill_blocks: 64,
            timeout_ms: 20_000,
            deterministic: true,
            faults: SimFaults::rough(),
            tensors: tensors(),
            placements: vec![Placement::Slot],
            bootstrap_us: 300,
        }
    }
}

impl Shape {
    /// As [`Shape::drawn`], with a tensor of each mode that is not a round of everybody.
    #[must_use]
    pub fn of_modes(seed: u64) -> Self {
        let drawn = Self::drawn(seed);
        let backup = (1 + seed as u32 / 5 % 2).min(drawn.workers - 1);
        let [small, large, middle] = [0, 1, 2].map(|at| drawn.tensors[at].clone());
        let by_count = |spec: TensorSpec| TensorSpec {
            optimizer: Optimizer { average: true, ..Optimizer::sum() },
            ..spec
        };
        let tensors = vec![
            by_count(small).in_mode(Mode::Async),
            by_count(large).in_mode(Mode::Bounded(seed as u32 / 3 % 4)),
            by_count(middle).with_backup(backup),
        ];
        Self { tensors, deterministic: false, ..drawn }
    }

    /// Servers, workers and limits drawn from a seed: one of few slots or plenty, one of little spill or much, one
    /// placement for all or all of them mixed, contributions to the large tensor encoded or not.
    #[must_use]
    pub fn drawn(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x5EED_5A9E);
        Self {
            servers: rng.within(1, 3) as u32,
            workers: rng.within(1, 4) as u32,
            inbox_slots: rng.within(2, 10) as u32,
            result_slots: rng.within(1, 4) as u32,
            spill_blocks: rng.within(1, 12) as u32,
            placements: match rng.below(8) {
                one @ 0..4 => vec![PLACEMENTS[one as usize]],
                _ => PLACEMENTS.to_vec(),
            },
            tensors: if rng.below(2) == 0 { tensors() } else { encoded_tensors() },
            ..Self::default()
        }
    }
}

/// Is a tensor one of [`Shape::of_modes`]? Contributions to such a one are ones, and their mean is added, so that its
/// weights say which version they are.
pub(super) fn counts(tensor: &TensorSpec) -> bool {
    tensor.optimizer.rule == Rule::Sum
}

/// Contributions that make a version.
pub(super) fn needed(tensor: &TensorSpec, workers: u32) -> u32 {
    if tensor.settled_mode().has_rounds() { workers - tensor.settled_backup() } else { 1 }
}

/// As [`tensors`], with contributions to the second one encoded.
pub(super) fn encoded_tensors() -> Vec<TensorSpec> {
    let mut tensors = tensors();
    tensors[1].compression = Compression::of(Codec::F16);
    tensors
}

/// Three tensors that matter: one of a few elements, one of several chunks with a short last one, one with
/// momentum, whose state would show a contribution applied twice for ever after.
#[must_use]
pub fn tensors() -> Vec<TensorSpec> {
    vec![
        TensorSpec::f32(3, 5, Optimizer::sgd(0.25, 0.0, 0.0)),
        TensorSpec::f32(u64::MAX - 1, 2 * CHUNK + 7, Optimizer::sgd(0.1, 0.0, 0.0)),
        TensorSpec::f32(7, 100, Optimizer::sgd(0.5, 0.9, 0.0)),
    ]
}
