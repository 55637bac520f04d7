//! What an operation brought: in mode sync the oracle's bits of its round. Outside it each worker's contributions are ones of
//! its own digit, so that a chunk's weights say how many of each worker's are in force: none twice, none of one's own lost,
//! none of others' missing by more than the bound. So it is in every mode where rounds go on without the dead: which of their
//! last contributions are in is known by nobody, but all that were acknowledged are, and nothing that was not begun.

use super::Lab;
use super::shape::CHUNK_BYTES;
use super::trainer::Live;
use crate::rigs::sim::bits_hash;
use proto_common::ids::Rank;
use proto_common::mode::Mode;
use proto_common::optimizer::Optimizer;
use proto_common::tensor::TensorSpec;

/// Contributions of one worker are fewer. All digits together are exact in the weights' type.
const BASE: u64 = 64;

/// The tensor whose weights count contributions in this mode.
pub(super) fn counting(spec: TensorSpec, mode: Mode) -> TensorSpec {
    let average = !mode.has_rounds();
    TensorSpec { optimizer: Optimizer { average, ..Optimizer::sum() }, ..spec }.in_mode(mode)
}

/// A contribution of this worker.
pub(super) fn marks(rank: Rank, elements: u64) -> Vec<f32> {
    vec![BASE.pow(rank.0) as f32; elements as usize]
}

/// How many contributions of a rank are in a weight.
fn made_by(weight: f32, rank: u32) -> u64 {
    weight as u64 / BASE.pow(rank) % BASE
}

impl Lab {
    pub(super) fn check_landing(&mut self, rank: Rank, live: &Live, weights: &[f32], name: &str) {
        let bound = match self.shape.mode {
            Mode::Sync if self.shape.continues => u64::MAX,
            Mode::Sync => {
                let known = self.oracle.weights(live.tensor, live.round);
                assert_eq!(bits_hash(known), bits_hash(weights), "{name}: these are not its weights");
                return;
            }
            Mode::Bounded(bound) => u64::from(bound),
            Mode::Async => u64::MAX,
        };
        // Who is cut off may read from a server that is: such a one has what it had.
        let is_known =
            self.seats.iter().filter(|seat| seat.worker_ref().is_some_and(|worker| worker.rank == rank));
        let is_known = is_known.filter_map(|seat| seat.process.as_ref()).all(|process| !process.is_doubtful);
        // So may who has not heard yet what was decided last: the laboratory's gate is no barrier, whose release comes behind it.
        let decided = self.brain.engine.as_ref().map(|engine| engine.epoch());
        let mut heard = self.seats.iter().filter_map(|seat| seat.worker_ref());
        let has_heard = heard
            .find(|worker| worker.rank == rank)
            .is_some_and(|worker| decided.is_none_or(|epoch| worker.member.epoch() >= epoch));
        let all_through =
            is_known && has_heard && self.gate && live.round == self.shape.rounds && !live.kind.contributes();
        for (index, chunk) in weights.chunks((CHUNK_BYTES / 4) as usize).enumerate() {
            assert!(chunk.iter().all(|weight| *weight == chunk[0]), "{name}: a chunk is of one version");
            for other in 0..self.shape.workers {
                let made = made_by(chunk[0], other);
                let begun = self.watch.begun(live.tensor, Rank(other));
                let least = match () {
                    () if self.shape.continues => {
                        let up_to = match self.shape.mode {
                            _ if all_through => u64::MAX,
                            Mode::Sync => live.round,
                            _ => 0,
                        };
                        let own = live.acknowledged + u64::from(live.kind.contributes());
                        let of_all = self.watch.acknowledged_up_to(live.tensor, Rank(other), up_to);
                        if Rank(other) == rank { own.max(of_all) } else { of_all }
                    }
                    () if all_through => self.shape.rounds,
                    () if Rank(other) == rank => live.round.max(live.acknowledged),
                    () => live.round.saturating_sub(bound),
                };
                assert!(
                    (least..=begun).contains(&made),
                    "{name}: chunk {index} has {made} contributions of worker {other}, not {least} to {begun}"
                );
            }
        }
    }
}
