//! Ids of work requests: what a completion is of, told by what no request before it had. A channel's number is never
//! given twice and a receive counts how often it was posted, while the device gives the number of a queue pair that is
//! gone to the next one.

use crate::work::ChannelId;

/// Marks the ids of receives.
const RECEIVE: u64 = 1 << 63;

/// What a work request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Id {
    /// A channel's request, by the lower half of its number.
    Sent { channel: ChannelId, number: u32 },
    /// A receive, the so many-th in its place.
    Received { place: u32, turn: u32 },
}

impl Id {
    /// Turns have 31 bits, as channels do.
    const TURNS: u32 = (1 << 31) - 1;

    pub(super) fn encode(self) -> u64 {
        match self {
            Self::Sent { channel, number } => u64::from(channel.0 & Self::TURNS) << 32 | u64::from(number),
            Self::Received { place, turn } => {
                RECEIVE | u64::from(turn & Self::TURNS) << 32 | u64::from(place)
            }
        }
    }

    pub(super) fn decode(id: u64) -> Self {
        let (high, low) = ((id >> 32) as u32 & Self::TURNS, id as u32);
        match id & RECEIVE {
            0 => Self::Sent { channel: ChannelId(high), number: low },
            _ => Self::Received { place: low, turn: high },
        }
    }
}

/// How often each receive was posted.
#[derive(Debug)]
pub(super) struct Turns(Vec<u32>);

impl Turns {
    pub(super) fn new(places: usize) -> Self {
        Self(vec![0; places])
    }

    /// The id of a receive that is posted now.
    pub(super) fn id(&self, place: u32) -> u64 {
        let turn = self.0.get(place as usize).copied().unwrap_or_default();
        Id::Received { place, turn }.encode()
    }

    /// Takes the completion of a receive. False: it is not the one that is posted.
    pub(super) fn take(&mut self, place: u32, turn: u32) -> bool {
        match self.0.get_mut(place as usize) {
            Some(now) if *now == turn => {
                *now = (turn + 1) & Id::TURNS;
                true
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_survives() {
        for id in [
            Id::Sent { channel: ChannelId(0), number: 0 },
            Id::Sent { channel: ChannelId((1 << 30) - 1), number: u32::MAX },
            Id::Received { place: 0, turn: 0 },
            Id::Received { place: 1023, turn: Id::TURNS },
        ] {
            assert_eq!(Id::decode(id.encode()), id);
        }
    }

    #[test]
    fn a_receive_is_taken_once_a_turn() {
        let mut turns = Turns::new(2);
        let Id::Received { place, turn } = Id::decode(turns.id(1)) else { panic!("a receive") };
        assert!(turns.take(place, turn) && !turns.take(place, turn));
        assert_ne!(turns.id(1), Id::Received { place, turn }.encode());
        assert!(!turns.take(2, 0), "there is no such place");
        turns.0[0] = Id::TURNS;
        assert!(turns.take(0, Id::TURNS) && turns.take(0, 0));
    }
}
