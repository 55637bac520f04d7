//! What data threads record, and how it is packed into a record of a journal. What an event looks like on a timeline is the
//! command line's to know.

use fabric::Record;

/// No peer.
pub const NOBODY: u32 = u32::MAX;

/// How an event lies on its thread's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// A moment.
    Moment,
    /// The thread does it, and nothing else meanwhile.
    Work,
    /// It lasts while the thread does other things, and beside others of its kind.
    Wait,
}

/// What happened. The number stands in files and never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A worker's operation, as far as this lane has a part in it: `extra` is what it does (its wire id), `chunk` how many
    /// microseconds passed until its last part was sent, `peer` the server that answered last.
    Operation = 1,
    /// A batch left for server `peer`, with `extra` blocks; key, chunk and round are the first one's.
    BatchSent = 2,
    /// A result batch of server `peer` was taken, with `extra` blocks; key and chunk are the first one's.
    Answered = 3,
    /// A batch for server `peer` waited for a credit.
    CreditWait = 4,
    /// The channel to or from `peer` has ended; `extra`: operations that wait for the next one.
    ChannelDown = 5,
    /// A channel is there.
    ChannelUp = 6,
    /// A batch of worker `peer` was taken, with `extra` blocks; key, chunk and round are the first one's.
    BatchTaken = 7,
    /// A contribution of worker `peer` came, of at least [`OWN_EVENT_BYTES`]; smaller ones show as their batch.
    Contribution = 8,
    /// A contribution was added to the sum.
    Reduce = 9,
    /// All have contributed: the update rule made the new weights. `extra`: how many contributed.
    Finish = 10,
    /// A round of a chunk, from its first contribution until its weights were made. `peer`: the worker that came last;
    /// `extra`: how many microseconds after the first.
    Round = 11,
    /// A result batch left for worker `peer`, with `extra` blocks.
    ResultsSent = 12,
    /// The oldest operation here waits, for `bytes` milliseconds so far; `peer`: the first rank it waits for; `extra`: all of
    /// them below 64, a bit each.
    Waits = 13,
    /// A contribution that came before its turn was copied.
    Spill = 14,
    /// Worker `peer` broke the protocol, and its channel was closed.
    Expel = 15,
    /// A round's sum left for server `peer`, which has the copy.
    CopySent = 16,
    /// From there until the copy was confirmed.
    CopyConfirmed = 17,
    /// A chunk was copied for a checkpoint, of `round`.
    CheckpointCopy = 18,
}

/// A contribution of so many bytes has an event of its own, and reductions of so many are timed: what is smaller takes about as
/// long as looking at the clock does.
pub const OWN_EVENT_BYTES: u64 = 16 << 10;

impl Kind {
    /// All of them.
    pub const ALL: [Self; 18] = [
        Self::Operation,
        Self::BatchSent,
        Self::Answered,
        Self::CreditWait,
        Self::ChannelDown,
        Self::ChannelUp,
        Self::BatchTaken,
        Self::Contribution,
        Self::Reduce,
        Self::Finish,
        Self::Round,
        Self::ResultsSent,
        Self::Waits,
        Self::Spill,
        Self::Expel,
        Self::CopySent,
        Self::CopyConfirmed,
        Self::CheckpointCopy,
    ];

    /// The kind of this number.
    #[must_use]
    pub fn from_number(number: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u64 == number)
    }

    /// How it lies in time.
    #[must_use]
    pub const fn extent(self) -> Extent {
        match self {
            Self::Operation | Self::CreditWait | Self::Round | Self::CopyConfirmed => Extent::Wait,
            Self::Reduce | Self::Finish | Self::Spill | Self::CheckpointCopy => Extent::Work,
            _ => Extent::Moment,
        }
    }
}

/// One event. What fields mean beside their names, its kind says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// What happened.
    pub kind: Kind,
    /// Which tensor.
    pub key: u64,
    /// Which of its chunks.
    pub chunk: u32,
    /// A rank, or [`NOBODY`].
    pub peer: u32,
    /// Which round.
    pub round: u64,
    /// How much.
    pub bytes: u64,
    /// As the kind says.
    pub extra: u64,
}

impl Event {
    /// One of which nothing more is known.
    #[must_use]
    pub const fn of(kind: Kind) -> Self {
        Self { kind, key: 0, chunk: 0, peer: NOBODY, round: 0, bytes: 0, extra: 0 }
    }
}

/// Nanoseconds that a record has room for: more than two years.
const SPAN_NS_MAX: u64 = (1 << 56) - 1;

/// An event with its time, in nanoseconds since its process's recorder began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timed {
    /// When it began.
    pub start_ns: u64,
    /// How long it took; 0 for a moment.
    pub took_ns: u64,
    /// What.
    pub event: Event,
}

impl Timed {
    /// As a journal keeps it.
    #[inline]
    #[must_use]
    pub fn packed(&self) -> Record {
        let Event { kind, key, chunk, peer, round, bytes, extra } = self.event;
        [
            self.start_ns,
            self.took_ns.min(SPAN_NS_MAX) << 8 | kind as u64,
            key,
            u64::from(chunk) << 32 | u64::from(peer),
            round,
            bytes,
            extra,
        ]
    }

    /// What a record says; `None` where a later release wrote it.
    #[must_use]
    pub fn unpacked(record: &Record) -> Option<Self> {
        let [start_ns, took, key, place, round, bytes, extra] = *record;
        let kind = Kind::from_number(took & 0xff)?;
        let event = Event { kind, key, chunk: (place >> 32) as u32, peer: place as u32, round, bytes, extra };
        Some(Self { start_ns, took_ns: took >> 8, event })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_is_unpacked() {
        for kind in Kind::ALL {
            let event = Event { kind, key: u64::MAX, chunk: 7, peer: 3, round: 9, bytes: 1 << 40, extra: 5 };
            let timed = Timed { start_ns: u64::MAX, took_ns: SPAN_NS_MAX, event };
            assert_eq!(Timed::unpacked(&timed.packed()), Some(timed));
            let longer = Timed { took_ns: u64::MAX, ..timed };
            assert_eq!(Timed::unpacked(&longer.packed()), Some(timed), "{kind:?}");
        }
        assert_eq!(Timed::unpacked(&[0; 7]), None);
        assert_eq!(Timed::unpacked(&[0, 99, 0, 0, 0, 0, 0]), None);
    }

    #[test]
    fn numbers_are_what_files_have() {
        let numbers: Vec<u64> = Kind::ALL.into_iter().map(|kind| kind as u64).collect();
        assert_eq!(numbers, (1..=18).collect::<Vec<u64>>());
    }
}
