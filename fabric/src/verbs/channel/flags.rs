//! Notices by flag words instead of immediates, where both sides ask for it (Xue et al., section 3.2: a flag at the tail
//! of what is written, which the receiver polls). Each side has a ring of words that the other writes, each after the bytes
//! that it tells of: no receive is used and no completion polled. That the flag arrives last is what devices do, and no
//! promise of the specification; and nothing wakes who sleeps, so nobody may. Hence not the default.

use crate::error::FabricError;
use crate::verbs::registrar::{Own, Registrar};
use std::sync::Arc;

/// Words of a ring, and so notices that the peer may not have taken yet.
pub(super) const ENTRIES: u64 = 256;
/// Where the peer says how many it has taken.
const TAKEN_AT: u64 = ENTRIES * 8;
use crate::verbs::words::FLAGS_BYTES as BYTES;
const _: () = assert!(BYTES == TAKEN_AT + 8);
/// It says so after as many.
const TAKEN_EVERY: u64 = ENTRIES / 4;

/// One side's words.
#[derive(Debug)]
pub(in crate::verbs) struct Flags {
    memory: Own,
    /// The other side's: where they begin, and their key.
    theirs: (u64, u32),
    /// Notices that the peer has sent and we have taken; those of which it knows.
    taken: u64,
    told: u64,
    /// Notices that we have sent.
    sent: u64,
}

impl Flags {
    pub(in crate::verbs) fn new(registrar: &Arc<Registrar>) -> Result<Self, FabricError> {
        let memory = registrar.own(BYTES, "gradwire-verbs-flags", true)?;
        Ok(Self { memory, theirs: (0, 0), taken: 0, told: 0, sent: 0 })
    }

    /// What the peer has to know of ours.
    pub(in crate::verbs) fn ours(&self) -> (u64, u32) {
        let (_, key, address) = self.memory.registration.keys();
        (address, key)
    }

    /// What the peer has said of its own.
    pub(in crate::verbs) fn towards(mut self, theirs: (u64, u32)) -> Self {
        self.theirs = theirs;
        self
    }

    /// Where a word of the peer's is, and the key for it.
    pub(super) fn at(&self, offset: u64) -> (u64, u32) {
        (self.theirs.0 + offset, self.theirs.1)
    }

    /// The next notice of the peer's.
    pub(super) fn take(&mut self) -> Option<u32> {
        let word = self.load(self.taken % ENTRIES * 8);
        if (word >> 32) as u32 != sequence(self.taken) {
            return None;
        }
        self.taken += 1;
        Some(word as u32)
    }

    /// The word that tells the peer how many we have taken, and where it goes; none while it need not know.
    pub(super) fn acknowledgement(&mut self) -> Option<(u64, [u8; 8])> {
        if self.taken - self.told < TAKEN_EVERY {
            return None;
        }
        self.told = self.taken;
        Some((TAKEN_AT, self.taken.to_le_bytes()))
    }

    /// Would the peer's next word overwrite one that it has not taken? A lie about that hurts the liar's notices only.
    pub(super) fn is_full(&self) -> bool {
        self.sent.wrapping_sub(self.load(TAKEN_AT)) >= ENTRIES
    }

    /// Where the next notice goes.
    pub(super) fn next_at(&self) -> u64 {
        self.sent % ENTRIES * 8
    }

    /// The word of the next notice.
    pub(super) fn next(&mut self, immediate: u32) -> [u8; 8] {
        let word = u64::from(sequence(self.sent)) << 32 | u64::from(immediate);
        self.sent += 1;
        word.to_le_bytes()
    }

    fn load(&self, at: u64) -> u64 {
        // All offsets here are within the region.
        u64::from_le(self.memory.registration.region.load(at).unwrap_or(0))
    }
}

/// What tells a notice from whatever its word was before: never 0, as memory is at first.
fn sequence(number: u64) -> u32 {
    (number / ENTRIES) as u32 % (u32::MAX - 1) + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_never_taken_for_the_one_before_it_in_its_place() {
        for number in [0, ENTRIES - 1, 5 * ENTRIES, u64::from(u32::MAX) * ENTRIES] {
            assert_ne!(sequence(number), 0, "{number}");
            assert_ne!(sequence(number), sequence(number + ENTRIES), "{number}");
        }
    }
}
