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

use proto_common::ids::Rank;

/// A channel that has ended, as whoever closed it names its fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "what was granted over the channel comes back with `LaneEngine::fenced` only"]
pub struct FenceId(u64);

/// What a channel had been granted when it ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Granted {
    /// Slots of the inbox.
    pub(super) slots: Vec<u32>,
    /// Spill blocks.
    pub(super) spills: Vec<u32>,
}

#[derive(Debug)]
struct Fencing {
    id: FenceId,
    rank: Rank,
    granted: Granted,
}

/// See the module. As many entries as channels have ended whose fences are pending.
#[derive(Debug, Default)]
pub(super) struct Quarantine {
    fencing: Vec<Fencing>,
    last: u64,
}

impl Quarantine {
    /// A worker's channel has ended: nobody else may have this before the fence is done.
    pub(super) fn begin(&mut self, rank: Rank, granted: Granted) -> FenceId {
        self.last += 1;
        let id = FenceId(self.last);
        self.fencing.push(Fencing { id, rank, granted });
        id
    }

    /// The fence is done: what is free now. Nothing where that was said before.
    pub(super) fn end(&mut self, fence: FenceId) -> Option<Granted> {
        let at = self.fencing.iter().position(|fencing| fencing.id == fence)?;
        Some(self.fencing.swap_remove(at).granted)
    }

    /// Slots and spill blocks whose fence is pending.
    pub(super) fn sizes(&self) -> (usize, usize) {
        let granted = self.fencing.iter().map(|fencing| &fencing.granted);
        granted.fold((0, 0), |(slots, spills), of| (slots + of.slots.len(), spills + of.spills.len()))
    }

    /// Workers whose fences hold up memory.
    pub(super) fn ranks(&self) -> impl Iterator<Item = Rank> {
        let holds =
            |fencing: &&Fencing| !fencing.granted.slots.is_empty() || !fencing.granted.spills.is_empty();
        self.fencing.iter().filter(holds).map(|fencing| fencing.rank)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_channel_s_memory_comes_back_once_with_its_own_fence() {
        let mut quarantine = Quarantine::default();
        let granted = |slots: &[u32], spills: &[u32]| Granted { slots: slots.into(), spills: spills.into() };
        let first = quarantine.begin(Rank(0), granted(&[1, 2], &[]));
        let second = quarantine.begin(Rank(1), granted(&[3], &[9]));
        let empty = quarantine.begin(Rank(2), granted(&[], &[]));
        assert_eq!(
            (quarantine.sizes(), quarantine.ranks().collect::<Vec<_>>()),
            ((3, 1), vec![Rank(0), Rank(1)])
        );
        assert_eq!(quarantine.end(second), Some(granted(&[3], &[9])));
        assert_eq!(quarantine.end(second), None, "once");
        assert_eq!((quarantine.end(first), quarantine.end(empty)).0, Some(granted(&[1, 2], &[])));
        assert_eq!(quarantine.sizes(), (0, 0));
    }
}
