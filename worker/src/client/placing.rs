//! Which placement each declared tensor has: planned when it is declared, and once more when the first iteration has
//! shown what is contributed. It must not choose by itself: the plan is `proto_common::plan`'s.

use super::{Client, Tensor};
use proto_common::plan::{Facts, Subject, Trace, plan};
use proto_common::transport::Driver;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

/// The round whose first contribution says that an iteration is over.
const SECOND_ROUND: u64 = 2;

impl Client {
    /// A contribution to this round was started: the first of a second round ends the first iteration, and then all
    /// tensors are placed anew.
    pub(super) fn look_at_round(&self, round: u64) {
        if round == SECOND_ROUND && !self.0.traced.swap(true, Ordering::Relaxed) {
            let tensors = self.0.tensors.read().unwrap_or_else(PoisonError::into_inner);
            // Whoever declares meanwhile waits: what it plans is not to be counted twice.
            self.0.planned_bytes.store(0, Ordering::Relaxed);
            self.place(&tensors.values().cloned().collect::<Vec<_>>(), true);
        }
    }

    /// Gives tensors their placement, within what others have left of the budget; `traced`: they have been through the
    /// first iteration. Operations that are under way keep theirs.
    pub(super) fn place(&self, tensors: &[Tensor], traced: bool) {
        let subject = |tensor: &Tensor| Subject::of(tensor.spec(), traced.then(|| self.trace(tensor)));
        let subjects: Vec<Subject> = tensors.iter().map(subject).collect();
        for (tensor, planned) in tensors.iter().zip(plan(&subjects, &self.facts())) {
            if tensor.placement() != planned.placement {
                let (key, placement) = (tensor.key(), planned.placement);
                tracing::info!(%key, %placement, why = planned.why, "placement of a tensor");
            }
            tensor.set_placement(planned.placement);
            self.0.planned_bytes.fetch_add(planned.buffer_bytes, Ordering::Relaxed);
        }
    }

    fn trace(&self, tensor: &Tensor) -> Trace {
        let bytes = tensor.bytes();
        let single_writer = self.0.shape.workers == 1;
        Trace {
            contributions: in_first_iteration(tensor.numbers().rounds),
            bytes_min: bytes,
            bytes_max: bytes,
            single_writer,
        }
    }

    fn facts(&self) -> Facts {
        let (settings, shape) = (&self.0.settings, self.0.shape);
        let links = self.0.links.all();
        let mut drivers: Vec<Driver> = links.iter().map(|(_, choice)| choice.driver).collect();
        drivers.sort_unstable();
        drivers.dedup();
        // Servers lend half of their spill blocks; they have the same settings as we have, or say no.
        let budget_bytes = (settings.memory.spill_bytes / 2).saturating_mul(u64::from(shape.lanes));
        Facts {
            chunk_bytes: shape.chunk_bytes,
            workers: shape.workers,
            // Those that are there now: servers may have come since the start, or gone.
            servers: (links.len() as u32).max(1),
            lanes: shape.lanes,
            budget_bytes,
            spent_bytes: self.0.planned_bytes.load(Ordering::Relaxed),
            checksums: drivers.iter().any(|driver| settings.transport.sums_over(*driver)),
            drivers,
            policy: settings.transport.placement,
        }
    }
}

/// How many of a tensor's contributions were of the first iteration: the one that ended it is of the second, and so is
/// what other threads have started meanwhile.
fn in_first_iteration(rounds: u64) -> u64 {
    rounds.min(SECOND_ROUND - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto_common::optimizer::Optimizer;
    use proto_common::plan::{Placement, PlacementPolicy};
    use proto_common::tensor::TensorSpec;

    /// Room for one of two: the smaller one, whichever began the second iteration.
    #[test]
    fn the_contribution_that_ends_the_first_iteration_gets_its_tensor_no_precedence() {
        let facts = Facts {
            chunk_bytes: 256 << 10,
            workers: 2,
            servers: 1,
            lanes: 1,
            budget_bytes: 512 << 10,
            spent_bytes: 0,
            drivers: vec![Driver::Verbs],
            checksums: false,
            policy: PlacementPolicy::Auto,
        };
        let subject = |key: u64, elements: u64, rounds: u64| {
            let contributions = in_first_iteration(rounds);
            let bytes = elements * 4;
            let trace = Trace { contributions, bytes_min: bytes, bytes_max: bytes, single_writer: false };
            Subject::of(&TensorSpec::f32(key, elements, Optimizer::sum()), Some(trace))
        };
        for rounds in [[1, 1], [2, 1], [2, 2]] {
            let planned = plan(&[subject(1, 128 << 10, rounds[0]), subject(2, 64 << 10, rounds[1])], &facts);
            let placements: Vec<_> = planned.iter().map(|planned| planned.placement).collect();
            assert_eq!(placements, [Placement::Slot, Placement::Static], "{rounds:?}");
        }
        assert_eq!(in_first_iteration(0), 0);
    }
}
