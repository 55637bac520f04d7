//! What the head of a host and a follower tell each other, as bytes. Every letter has the same length. It must not know what either
//! does with it.

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A contribution, as all workers know it: its key and round.
pub(super) type Part = (u64, u64);

/// Bytes of a letter.
pub(super) const LETTER_BYTES: usize = size_of::<Raw>();

/// See the module. `part` is the key and the round of a contribution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Letter {
    /// Follower: its contribution is at this place of its memory. `lands`: it asks for the weights of the round.
    Offer { part: Part, offset: u64, bytes: u64, lands: bool },
    /// Follower: it has waited for long enough and would rather go alone. It waits for the answer: `Taken` or `Alone`.
    Withdraw { part: Part },
    /// Follower: it does not read the weights any more.
    Copied { part: Part },
    /// Head: the contribution is in the sum.
    Taken { part: Part },
    /// Head: the contribution is not in a sum and will not be.
    Alone { part: Part },
    /// Head: the weights are at this place of its memory.
    Result { part: Part, offset: u64, bytes: u64 },
    /// Head: it has no weights, because its operation has failed.
    Failed { part: Part },
    /// Either: it leaves in good order. From now on everybody goes alone.
    Leave,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Raw {
    kind: U64,
    key: U64,
    round: U64,
    offset: U64,
    bytes: U64,
}

const OFFER: u64 = 1;
const OFFER_LANDS: u64 = 2;
const WITHDRAW: u64 = 3;
const COPIED: u64 = 4;
const TAKEN: u64 = 5;
const ALONE: u64 = 6;
const RESULT: u64 = 7;
const FAILED: u64 = 8;
const LEAVE: u64 = 9;

impl Letter {
    pub(super) fn encode(self) -> [u8; LETTER_BYTES] {
        let (kind, (key, round), offset, bytes) = match self {
            Self::Offer { part, offset, bytes, lands: false } => (OFFER, part, offset, bytes),
            Self::Offer { part, offset, bytes, lands: true } => (OFFER_LANDS, part, offset, bytes),
            Self::Withdraw { part } => (WITHDRAW, part, 0, 0),
            Self::Copied { part } => (COPIED, part, 0, 0),
            Self::Taken { part } => (TAKEN, part, 0, 0),
            Self::Alone { part } => (ALONE, part, 0, 0),
            Self::Result { part, offset, bytes } => (RESULT, part, offset, bytes),
            Self::Failed { part } => (FAILED, part, 0, 0),
            Self::Leave => (LEAVE, (0, 0), 0, 0),
        };
        let [kind, key, round, offset, bytes] = [kind, key, round, offset, bytes].map(U64::new);
        let mut encoded = [0; LETTER_BYTES];
        encoded.copy_from_slice(Raw { kind, key, round, offset, bytes }.as_bytes());
        encoded
    }

    /// `None` of bytes that no letter has.
    pub(super) fn decode(bytes: &[u8; LETTER_BYTES]) -> Option<Self> {
        let raw = Raw::ref_from_bytes(bytes).ok()?;
        let (part, offset, bytes) = ((raw.key.get(), raw.round.get()), raw.offset.get(), raw.bytes.get());
        let letter = match raw.kind.get() {
            kind @ (OFFER | OFFER_LANDS) => Self::Offer { part, offset, bytes, lands: kind == OFFER_LANDS },
            WITHDRAW => Self::Withdraw { part },
            COPIED => Self::Copied { part },
            TAKEN => Self::Taken { part },
            ALONE => Self::Alone { part },
            RESULT => Self::Result { part, offset, bytes },
            FAILED => Self::Failed { part },
            LEAVE => Self::Leave,
            _ => return None,
        };
        (letter.encode() == raw.as_bytes()).then_some(letter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_come_as_they_were_sent_and_nothing_else_is_one() {
        let part = (7, 3);
        let letters = [
            Letter::Offer { part, offset: 64, bytes: 8, lands: true },
            Letter::Offer { part, offset: 64, bytes: 8, lands: false },
            Letter::Withdraw { part },
            Letter::Copied { part },
            Letter::Taken { part },
            Letter::Alone { part },
            Letter::Result { part, offset: 128, bytes: 8 },
            Letter::Failed { part },
            Letter::Leave,
        ];
        for letter in letters {
            assert_eq!(Letter::decode(&letter.encode()), Some(letter));
        }
        assert_eq!(Letter::decode(&[0; LETTER_BYTES]), None);
        let mut odd = Letter::Leave.encode();
        odd[LETTER_BYTES - 1] = 1;
        assert_eq!(Letter::decode(&odd), None, "a field that it does not use");
    }
}
