//! The 32 bits of immediate data: a grant index (24 bits) and its generation (8 bits). The upper part of the index
//! space is for notices without a batch.

use crate::limits::{INBOX_SLOTS_MAX, REPLICA_SLOTS_MAX};

const INDEX_BITS: u32 = 24;
const RETURN_BASE: u32 = 0xF0_0000;
const RETURN_END: u32 = RETURN_BASE + INBOX_SLOTS_MAX as u32;
const GIVE_BACK_BASE: u32 = 0xF8_0000;
const GIVE_BACK_END: u32 = GIVE_BACK_BASE + INBOX_SLOTS_MAX as u32;
const JUDGED_BASE: u32 = 0xFA_0000;
const JUDGED_END: u32 = JUDGED_BASE + (4 << 8);
const READY: u32 = 0xFF_FFFC;
const WANT: u32 = 0xFF_FF00;
const PROBE: u32 = 0xFF_FFFE;
const PROBE_REPLY: u32 = 0xFF_FFFD;

const _: () = assert!(
    INBOX_SLOTS_MAX as u32 <= RETURN_BASE && RETURN_END <= GIVE_BACK_BASE && GIVE_BACK_END <= JUDGED_BASE
);
const _: () = assert!(JUDGED_END <= WANT && REPLICA_SLOTS_MAX <= 1 << 8);

/// The right to write one batch into one slot: a credit. A slot's generation changes with each grant, so a late or
/// repeated use is recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotGrant {
    /// Slot number in the grantor's inbox of this lane, below [`INBOX_SLOTS_MAX`].
    pub slot: u32,
    /// Counts grants of this slot, wrapping.
    pub generation: u8,
}

impl SlotGrant {
    /// The 32 bits on the wire.
    #[must_use]
    pub const fn to_wire(self) -> u32 {
        (self.slot << 8) | self.generation as u32
    }

    /// Decodes the 32 bits; `None` if the index is no slot.
    #[must_use]
    pub const fn from_wire(wire: u32) -> Option<Self> {
        let slot = wire >> 8;
        if slot < INBOX_SLOTS_MAX as u32 { Some(Self { slot, generation: wire as u8 }) } else { None }
    }
}

/// The answer of a server with a replica to a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Judgement {
    /// It has, or will have, the record's content, whatever happens to the sender.
    Confirmed = 0,
    /// It is one version newer than the record asks for.
    Ahead = 1,
    /// It needs the whole state.
    Wanting = 2,
    /// Not now: ask again after [`Notice::Ready`].
    Later = 3,
}

impl Judgement {
    const fn from_wire(wire: u32) -> Option<Self> {
        Some(match wire {
            0 => Self::Confirmed,
            1 => Self::Ahead,
            2 => Self::Wanting,
            3 => Self::Later,
            _ => return None,
        })
    }
}

/// The meaning of a write's immediate data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A batch is in this slot of the receiver's inbox.
    Batch(SlotGrant),
    /// The receiver's batch in this slot of the sender's inbox was read. The same slot may be written again with the
    /// next generation.
    Returned(SlotGrant),
    /// The sender will not use this grant of the receiver's inbox; the slot is free again.
    GivenBack(SlotGrant),
    /// The sender holds no credit and could use this many (1 to 255). At most one such notice is outstanding.
    Want(u8),
    /// Between servers: the result for the record in this slot, which is below [`REPLICA_SLOTS_MAX`].
    Judged(SlotGrant, Judgement),
    /// Between servers: the receiver may ask again about chunks that were not ready.
    Ready,
    /// The first write over a new channel.
    Probe,
    /// Answer to [`Notice::Probe`].
    ProbeReply,
}

impl Notice {
    /// The immediate data.
    #[must_use]
    pub const fn to_wire(self) -> u32 {
        match self {
            Self::Batch(grant) => grant.to_wire(),
            Self::Returned(grant) => ((RETURN_BASE + grant.slot) << 8) | grant.generation as u32,
            Self::GivenBack(grant) => ((GIVE_BACK_BASE + grant.slot) << 8) | grant.generation as u32,
            Self::Want(count) => (WANT << 8) | count as u32,
            Self::Judged(grant, judgement) => {
                let place = (judgement as u32) << 8 | (grant.slot & 0xFF);
                ((JUDGED_BASE + place) << 8) | grant.generation as u32
            }
            Self::Ready => READY << 8,
            Self::Probe => PROBE << 8,
            Self::ProbeReply => PROBE_REPLY << 8,
        }
    }

    /// Decodes immediate data; `None` for values that no version sends.
    #[must_use]
    pub const fn from_wire(wire: u32) -> Option<Self> {
        let (index, generation) = (wire >> (32 - INDEX_BITS), wire as u8);
        Some(match index {
            RETURN_BASE..RETURN_END => Self::Returned(SlotGrant { slot: index - RETURN_BASE, generation }),
            GIVE_BACK_BASE..GIVE_BACK_END => {
                Self::GivenBack(SlotGrant { slot: index - GIVE_BACK_BASE, generation })
            }
            JUDGED_BASE..JUDGED_END => {
                let place = index - JUDGED_BASE;
                match Judgement::from_wire(place >> 8) {
                    Some(judgement) => Self::Judged(SlotGrant { slot: place & 0xFF, generation }, judgement),
                    None => return None,
                }
            }
            READY if generation == 0 => Self::Ready,
            WANT if generation > 0 => Self::Want(generation),
            PROBE if generation == 0 => Self::Probe,
            PROBE_REPLY if generation == 0 => Self::ProbeReply,
            _ => match SlotGrant::from_wire(wire) {
                Some(grant) => Self::Batch(grant),
                None => return None,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn whatever_is_read_writes_the_same_bits(wire: u32) {
            if let Some(notice) = Notice::from_wire(wire) {
                prop_assert_eq!(notice.to_wire(), wire);
            }
        }

        #[test]
        fn notices_round_trip(slot in 0..INBOX_SLOTS_MAX as u32, generation: u8, count in 1u8..) {
            let grant = SlotGrant { slot, generation };
            for notice in [Notice::Batch(grant), Notice::Returned(grant), Notice::GivenBack(grant),
                           Notice::Want(count), Notice::Probe, Notice::ProbeReply] {
                prop_assert_eq!(Notice::from_wire(notice.to_wire()), Some(notice));
            }
        }
    }

    #[test]
    fn frozen_bits() {
        let grant = SlotGrant { slot: 0x1234, generation: 0x56 };
        assert_eq!(Notice::Batch(grant).to_wire(), 0x0012_3456);
        assert_eq!(Notice::Returned(grant).to_wire(), 0xF012_3456);
        assert_eq!(Notice::GivenBack(grant).to_wire(), 0xF812_3456);
        assert_eq!(Notice::Want(7).to_wire(), 0xFFFF_0007);
        assert_eq!(Notice::Probe.to_wire(), 0xFFFF_FE00);
        assert_eq!(Notice::ProbeReply.to_wire(), 0xFFFF_FD00);
        let grant = SlotGrant { slot: 0x34, generation: 0x56 };
        assert_eq!(Notice::Judged(grant, Judgement::Confirmed).to_wire(), 0xFA00_3456);
        assert_eq!(Notice::Judged(grant, Judgement::Later).to_wire(), 0xFA03_3456);
        assert_eq!(Notice::Ready.to_wire(), 0xFFFF_FC00);
        assert_eq!(Notice::from_wire(0xFA04_0000), None);
        assert_eq!(Notice::from_wire(0x8000_0000), None);
    }
}
