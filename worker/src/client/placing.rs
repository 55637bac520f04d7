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
            self.0.planned_bytes.store(0, Ordering::Relaxed);
            let tensors = self.0.tensors.read().unwrap_or_else(PoisonError::into_inner);
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
                tracing::info!(%key, %placement, why = planned.why, "a tensor's placement");
            }
            tensor.set_placement(planned.placement);
            self.0.planned_bytes.fetch_add(planned.buffer_bytes, Ordering::Relaxed);
        }
    }

    fn trace(&self, tensor: &Tensor) -> Trace {
        let bytes = tensor.bytes();
        let (contributions, single_writer) = (tensor.numbers().rounds(), self.0.shape.workers == 1);
        Trace { contributions, bytes_min: bytes, bytes_max: bytes, single_writer }
    }

    fn facts(&self) -> Facts {
        let (settings, shape) = (&self.0.settings, self.0.shape);
        let mut drivers: Vec<Driver> = self.0.links.iter().map(|(_, choice)| choice.driver).collect();
        drivers.sort_unstable();
        drivers.dedup();
        // Servers lend half of their spill blocks; they have the same settings as we have, or say no.
        let budget_bytes = (settings.memory.spill_bytes / 2).saturating_mul(u64::from(shape.lanes));
        Facts {
            chunk_bytes: shape.chunk_bytes,
            workers: shape.workers,
            servers: shape.servers,
            budget_bytes,
            spent_bytes: self.0.planned_bytes.load(Ordering::Relaxed),
            checksums: settings.transport.payload_checksum && drivers.iter().any(|d| *d != Driver::Shm),
            drivers,
            policy: settings.transport.placement,
        }
    }
}
