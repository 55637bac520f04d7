//! Rounds of tensors, as lists that may be longer than a message: divided into parts, and joined again. A part that
//! does not follow the one before is rejected. It must not know what the rounds are for.

use crate::ids::Key;
use crate::limits::TENSORS_MAX;
use serde::{Deserialize, Serialize};

/// The largest number of tensors in one part: 1 MiB.
pub const ROUNDS_PART_MAX: usize = 1 << 16;

/// Part of a list of rounds, one per tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoundsPart {
    /// The number of the part in its list, from 0.
    pub part: u32,
    /// Whether this is the last part.
    pub last: bool,
    /// By tensor.
    pub rounds: Vec<(Key, u64)>,
}

impl RoundsPart {
    /// A list as parts that each fit into a message; at least one.
    #[must_use]
    pub fn cut(rounds: &[(Key, u64)]) -> Vec<Self> {
        let count = rounds.len().div_ceil(ROUNDS_PART_MAX).max(1);
        let part = |at: usize| {
            let rounds = rounds.iter().skip(at * ROUNDS_PART_MAX).take(ROUNDS_PART_MAX);
            Self { part: at as u32, last: at + 1 == count, rounds: rounds.copied().collect() }
        };
        (0..count).map(part).collect()
    }

    /// A list in a single part.
    #[must_use]
    pub fn whole(rounds: Vec<(Key, u64)>) -> Self {
        Self { part: 0, last: true, rounds }
    }
}

/// A list that is being joined.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoundsSoFar {
    next: u32,
    rounds: Vec<(Key, u64)>,
}

impl RoundsSoFar {
    /// Takes a part; the last one completes the list. A first part begins a new list. Parts out of order, and parts
    /// beyond the largest number of tensors, discard it.
    pub fn take(&mut self, part: RoundsPart) -> Option<Vec<(Key, u64)>> {
        if part.part == 0 {
            *self = Self::default();
        } else if part.part != self.next || self.next == 0 {
            return None;
        }
        if self.rounds.len() + part.rounds.len() > TENSORS_MAX {
            *self = Self::default();
            return None;
        }
        self.rounds.extend(part.rounds);
        self.next = part.part.saturating_add(1);
        part.last.then(|| std::mem::take(self).rounds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Incarnation, Rank};
    use crate::limits::CONTROL_FRAME_BYTES_MAX;
    use crate::message::{FromScheduler, ToScheduler, encode};

    fn many(count: usize) -> Vec<(Key, u64)> {
        (0..count as u64).map(|key| (Key(key), key + 1)).collect()
    }

    #[test]
    fn as_many_tensors_as_there_can_be_come_over_in_parts_that_fit() {
        for count in [0, 1, ROUNDS_PART_MAX, ROUNDS_PART_MAX + 1, TENSORS_MAX] {
            let (whole, mut so_far) = (many(count), RoundsSoFar::default());
            let parts = RoundsPart::cut(&whole);
            assert_eq!(parts.len(), count.div_ceil(ROUNDS_PART_MAX).max(1));
            let mut got = None;
            for part in parts {
                assert!(got.is_none(), "before the last part");
                let (rank, incarnation) = (Rank(1), Incarnation(2));
                let said = ToScheduler::Rounds { rank, incarnation, rounds: part.clone() };
                let told = FromScheduler::CountFrom { rank, incarnation, rounds: part.clone() };
                let bytes = encode(&said).unwrap().len().max(encode(&told).unwrap().len());
                assert!(bytes <= CONTROL_FRAME_BYTES_MAX / 8, "{bytes}");
                got = so_far.take(part);
            }
            assert_eq!(got, Some(whole));
        }
    }

    #[test]
    fn parts_of_another_list_make_none() {
        let mut so_far = RoundsSoFar::default();
        let parts = RoundsPart::cut(&many(3 * ROUNDS_PART_MAX));
        assert_eq!(so_far.take(parts[1].clone()), None);
        assert_eq!(so_far.take(parts[2].clone()), None, "the end of what was said to somebody else");
        assert_eq!(so_far.take(parts[0].clone()), None);
        assert_eq!(so_far.take(parts[2].clone()), None, "one is missing");
        assert_eq!(so_far.take(RoundsPart::whole(many(2))), Some(many(2)), "begun anew");
        assert_eq!(so_far.take(RoundsPart { part: 1, last: true, rounds: many(1) }), None, "it has ended");
        let last = u32::MAX;
        let mut far = RoundsSoFar { next: last, rounds: Vec::new() };
        assert_eq!(far.take(RoundsPart { part: last, last: false, rounds: Vec::new() }), None);
    }

    #[test]
    fn more_than_there_can_be_is_no_list() {
        let mut so_far = RoundsSoFar::default();
        let half = many(TENSORS_MAX / 2);
        for (part, more) in [(0, 0), (1, 0), (2, 1)] {
            let rounds = half[..if more == 0 { half.len() } else { more }].to_vec();
            assert_eq!(so_far.take(RoundsPart { part, last: part == 2, rounds }), None);
        }
        assert_eq!(so_far, RoundsSoFar::default(), "and nothing is kept");
    }
}
