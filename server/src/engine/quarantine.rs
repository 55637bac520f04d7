//! Memory that a worker was granted over a channel that has ended, until the fence of that channel is done. Owns who gets what
//! back; the proof is the driver's.
//!
//! ```text
//!          grant                    the channel ends                 the fence is done
//!  free ───────────▶ leased ─────────────────────────▶ fencing ─────────────────────────▶ free
//! ```
//!
//! Without it: worker 0 is stopped in the middle of a copy into slot 7 and its channel is closed. Slot 7 is granted to worker 1,
//! which fills it. Worker 0 continues, and its bytes replace worker 1's gradient, which nobody notices.

use super::lane::LaneEngine;
use fabric::Fenced;
use proto_common::ids::Rank;

/// A channel that has ended, as whoever closed it names its fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "what was granted over the channel comes back with `LaneEngine::fenced` only"]
pub struct FenceId(u64);

/// What a channel had been granted when it ended.
#[derive(Debug)]
struct Fencing {
    id: FenceId,
    rank: Rank,
    slots: Vec<u32>,
    spills: Vec<u32>,
}

/// See the module. As many entries as channels have ended whose fences are pending.
#[derive(Debug, Default)]
pub(super) struct Quarantine {
    fencing: Vec<Fencing>,
    last: u64,
}

impl LaneEngine {
    /// The fence is done: what the channel had been granted is free.
    pub fn fenced(&mut self, fence: FenceId, _proof: Fenced) {
        let Some(at) = self.quarantine.fencing.iter().position(|fencing| fencing.id == fence) else { return };
        let Fencing { slots, spills, .. } = self.quarantine.fencing.swap_remove(at);
        self.ledger.take_back(&slots);
        self.spills.extend(spills);
    }

    /// Slots and spill blocks whose fence is pending.
    #[must_use]
    pub fn quarantined(&self) -> (usize, usize) {
        let all = self.quarantine.fencing.iter();
        all.fold((0, 0), |(slots, spills), of| (slots + of.slots.len(), spills + of.spills.len()))
    }

    /// Workers that may be in the middle of a copy over a channel that has ended, and hold up memory by it.
    pub fn fencing(&self) -> impl Iterator<Item = Rank> {
        let holds = |fencing: &&Fencing| !fencing.slots.is_empty() || !fencing.spills.is_empty();
        self.quarantine.fencing.iter().filter(holds).map(|fencing| fencing.rank)
    }
}

impl Quarantine {
    pub(super) fn begin(&mut self, rank: Rank, slots: Vec<u32>, spills: Vec<u32>) -> FenceId {
        self.last += 1;
        let id = FenceId(self.last);
        self.fencing.push(Fencing { id, rank, slots, spills });
        id
    }
}
