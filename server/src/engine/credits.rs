//! The inbox's slots and who may write them. Circular reuse without allocate and free lists of bytes (Li et
//! al., section 3.3), shared by all workers: the slot used last is granted next, because it is still in
//! cache.

use proto_common::batch::SlotGrant;
use proto_common::ids::Rank;

/// A use of a slot that the ledger refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Misuse {
    /// An old grant, used again: a duplicate or a late arrival. Harmless, ignored.
    Stale,
    /// A slot that was never granted to this peer.
    NotGranted,
}

/// What a wrong generation means: an age of up to half the circle counts as late, the rest was never granted.
pub(super) fn misuse(newest: u8, generation: u8) -> Misuse {
    if newest.wrapping_sub(generation) < 128 { Misuse::Stale } else { Misuse::NotGranted }
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    holder: Option<Rank>,
    generation: u8,
}

/// Who holds which slot.
#[derive(Debug)]
pub(super) struct Ledger {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

impl Ledger {
    pub(super) fn new(slots: u32) -> Self {
        let empty = Slot { holder: None, generation: 0 };
        Self { slots: vec![empty; slots as usize], free: (0..slots).rev().collect() }
    }

    pub(super) fn free(&self) -> usize {
        self.free.len()
    }

    pub(super) fn total(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn grant(&mut self, to: Rank) -> Option<SlotGrant> {
        let slot = self.free.pop()?;
        let entry = &mut self.slots[slot as usize];
        entry.generation = entry.generation.wrapping_add(1);
        entry.holder = Some(to);
        Some(SlotGrant { slot, generation: entry.generation })
    }

    /// Is this grant the holder's to use?
    pub(super) fn check(&self, from: Rank, grant: SlotGrant) -> Result<(), Misuse> {
        let entry = self.slots.get(grant.slot as usize).ok_or(Misuse::NotGranted)?;
        // Generations wrap after 256 grants of one slot; a duplicate that old is not told apart, but the
        // operation's own identity still is.
        if entry.holder == Some(from) && entry.generation == grant.generation {
            return Ok(());
        }
        Err(misuse(entry.generation, grant.generation))
    }

    /// The holder has used, or given back, its grant. The slot is free before its payload has been read; that is safe because free
    /// slots are granted only when results are sent, after the commands that read them.
    pub(super) fn redeem(&mut self, from: Rank, grant: SlotGrant) -> Result<(), Misuse> {
        self.check(from, grant)?;
        if let Some(entry) = self.slots.get_mut(grant.slot as usize) {
            entry.holder = None;
            self.free.push(grant.slot);
        }
        Ok(())
    }

    /// The grants of a peer whose channel has ended are void. Its slots are nobody's until they are taken back.
    pub(super) fn revoke(&mut self, from: Rank) -> Vec<u32> {
        let held = self.slots.iter_mut().enumerate().filter(|(_, slot)| slot.holder == Some(from));
        let revoked = held.map(|(index, slot)| {
            slot.holder = None;
            index as u32
        });
        revoked.collect()
    }

    /// Revoked slots that nobody writes any more: they are free.
    pub(super) fn take_back(&mut self, slots: &[u32]) {
        self.free.extend_from_slice(slots);
    }

    /// Slots that somebody may write.
    pub(super) fn held(&self) -> usize {
        self.slots.iter().filter(|slot| slot.holder.is_some()).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_credit_is_lost_or_made(steps in prop::collection::vec((0u8..5, 0u32..3, any::<prop::sample::Index>()), 1..200)) {
            let mut ledger = Ledger::new(5);
            let mut out: Vec<(Rank, SlotGrant)> = Vec::new();
            let mut revoked: Vec<u32> = Vec::new();
            for (step, rank, index) in steps {
                let rank = Rank(rank);
                match step {
                    0 | 1 => match ledger.grant(rank) {
                        Some(grant) => {
                            prop_assert!(out.iter().all(|(_, g)| g.slot != grant.slot), "one slot, one holder");
                            out.push((rank, grant));
                        }
                        None => prop_assert_eq!(out.len() + revoked.len(), 5),
                    },
                    2 if !out.is_empty() => {
                        let (holder, grant) = out.swap_remove(index.index(out.len()));
                        let stranger = Rank(holder.0 + 10);
                        prop_assert!(ledger.redeem(stranger, grant).is_err());
                        prop_assert_eq!(ledger.redeem(holder, grant), Ok(()));
                        prop_assert_eq!(ledger.redeem(holder, grant), Err(Misuse::Stale));
                    }
                    3 if revoked.is_empty() => {
                        revoked = ledger.revoke(rank);
                        out.retain(|(holder, _)| *holder != rank);
                    }
                    _ => ledger.take_back(&std::mem::take(&mut revoked)),
                }
                prop_assert_eq!(ledger.free() + revoked.len() + out.len(), ledger.total());
                prop_assert_eq!(ledger.held(), out.len());
            }
        }
    }

    #[test]
    fn a_slot_that_does_not_exist_or_was_not_granted_is_no_accident() {
        let mut ledger = Ledger::new(2);
        let bad = SlotGrant { slot: 2, generation: 1 };
        assert_eq!(ledger.redeem(Rank(0), bad), Err(Misuse::NotGranted));
        let future = SlotGrant { slot: 0, generation: 1 };
        assert_eq!(ledger.redeem(Rank(0), future), Err(Misuse::NotGranted));
    }
}
