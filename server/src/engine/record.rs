//! What the records between servers say, and the blocks that carry it. Fields of a block that mean something else in a record than in a
//! worker's operation are written and read here only. It must not judge a record.

use super::chunk::Chunk;
use super::command::Source;
use super::inputs::RecordContext;
use proto_common::batch::{Block, BlockData, Count, Landing, OpKind, RECORD_INITIALISED, RECORD_LEFT};
use proto_common::ids::{Epoch, Operation};

/// What a record says of a chunk.
#[derive(Clone, Copy, Debug)]
pub(super) enum Said {
    /// Does the copy have this version? It is a copy since this decision.
    Check {
        version: u64,
        since: Epoch,
        initialised: bool,
    },
    Update(Update),
    /// Part of the chunk's image, of this version.
    State {
        version: u64,
        part: Part,
    },
    /// Changes of the chunk's rule.
    Rules {
        rules: Source,
        bytes: u64,
    },
}

/// Part of the sum of the contributions to a round.
#[derive(Clone, Copy, Debug)]
pub(super) struct Update {
    pub(super) round: u64,
    pub(super) part: Part,
    /// Bytes of the round's weights.
    pub(super) round_bytes: u64,
    /// Outside mode sync: which one of its worker's contributions it is.
    pub(super) count: u64,
    /// A sum left its integers.
    pub(super) left: bool,
}

/// Bytes of a whole that comes in parts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) place: Source,
    /// Bytes of the whole before it.
    pub(super) at: u64,
    pub(super) bytes: u64,
    /// Bytes of the whole.
    pub(super) total: u64,
}

impl Part {
    pub(super) fn is_last(&self) -> bool {
        self.at + self.bytes == self.total
    }
}

impl Said {
    /// What this block says; or why it says nothing.
    pub(super) fn read(record: &RecordContext<'_>, block: &Block) -> Result<Self, &'static str> {
        let (Block { bytes, token, .. }, round) = (*block, block.count.round());
        Ok(match block.op {
            OpKind::CopyCheck => {
                let (since, initialised) =
                    (Epoch::from_number(block.operation.0), token & RECORD_INITIALISED != 0);
                Self::Check { version: round, since, initialised }
            }
            OpKind::CopyUpdate => {
                let (part, round_bytes) = part_of(record, block)?;
                let (count, left) = (block.operation.0, token & RECORD_LEFT != 0);
                Self::Update(Update { round, part, round_bytes, count, left })
            }
            OpKind::CopyState => Self::State { version: round, part: part_of(record, block)?.0 },
            OpKind::CopyRules => {
                let BlockData::Inline { offset } = block.data else {
                    return Err("its record is not in its batch");
                };
                Self::Rules { rules: source(record, offset), bytes }
            }
            _ => return Err("its record is invalid"),
        })
    }

    /// Is nothing of the same whole to come?
    pub(super) fn is_last(&self) -> bool {
        match self {
            Self::Update(Update { part, .. }) | Self::State { part, .. } => part.is_last(),
            Self::Check { .. } | Self::Rules { .. } => true,
        }
    }
}

fn source(record: &RecordContext<'_>, offset: u64) -> Source {
    let offset = record.header.payload_offset.saturating_add(offset);
    Source::Record { from: record.from, slot: record.slot.slot, offset }
}

/// Where a record's part lies, and what it is a part of; and bytes of the round's weights.
fn part_of(record: &RecordContext<'_>, block: &Block) -> Result<(Part, u64), &'static str> {
    let (BlockData::Inline { offset }, Some(landing)) = (block.data, block.landing) else {
        return Err("its record does not name what it is a part of");
    };
    let Landing { region: round_bytes, offset: at, bytes: total } = landing;
    let end = at.checked_add(block.bytes);
    if end.is_none_or(|end| end > total) {
        return Err("its record reaches beyond what it is a part of");
    }
    Ok((Part { place: source(record, offset), at, bytes: block.bytes, total }, round_bytes))
}

/// The block of a record of this kind, which is about that copy and round: `bytes` of its whole, after `at`.
pub(super) fn block_of(
    chunk: &Chunk,
    (op, keep, round): (OpKind, u64, u64),
    (at, bytes, total): (u64, u64, u64),
) -> Block {
    let whole = match op {
        OpKind::CopyUpdate => Some(chunk.rounds.round_bytes()),
        OpKind::CopyState => Some(0),
        _ => None,
    };
    // What it counts is no operation: none is open before it.
    let count = Operation(match op {
        OpKind::CopyCheck => chunk.since_of(keep).to_number(),
        _ => chunk.rounds.applying(),
    });
    Block {
        count: Count::Round(round),
        bytes,
        landing: whole.map(|region| Landing { region, offset: at, bytes: total }),
        token: if chunk.rounds.is_initialised() { RECORD_INITIALISED } else { 0 },
        ..Block::bare(chunk.spec.id, op, chunk.spec.dtype, count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto_common::batch::{BatchHeader, BatchKind, SlotGrant};
    use proto_common::ids::{Incarnation, JobId, Lane, Rank};

    fn read(block: &Block) -> Result<Said, &'static str> {
        let header = BatchHeader {
            kind: BatchKind::Record,
            lane: Lane(0),
            wanted: 0,
            sender: Rank(2),
            job: JobId(7),
            epoch: Epoch::default(),
            sender_incarnation: Incarnation(1),
            receiver_incarnation: Incarnation(1),
            sequence: 1,
            payload_offset: 64,
            payload_bytes: 0,
            payload_checksum: None,
        };
        let slot = SlotGrant { slot: 3, generation: 1 };
        let blocks = std::slice::from_ref(block);
        let record = RecordContext { from: Rank(2), slot, header: &header, blocks, contributors: &[] };
        Said::read(&record, block)
    }

    #[test]
    fn what_a_block_is_made_of_is_what_it_says() {
        let mut chunk = Chunk::sample(1);
        chunk.rounds.initialise();
        let check = read(&block_of(&chunk, (OpKind::CopyCheck, 0, 5), (0, 0, 0))).unwrap();
        assert!(matches!(check, Said::Check { version: 5, initialised: true, .. }) && check.is_last());
        let part = |at| block_of(&chunk, (OpKind::CopyUpdate, 0, 6), (at, 8, 16));
        let first = read(&part(0)).unwrap();
        assert!(!first.is_last() && read(&part(8)).unwrap().is_last());
        let Said::Update(Update {
            round: 6,
            part: Part { place, at: 0, bytes: 8, total: 16 },
            round_bytes,
            ..
        }) = first
        else {
            panic!("{first:?}")
        };
        assert_eq!(place, Source::Record { from: Rank(2), slot: 3, offset: 64 });
        assert_eq!(round_bytes, chunk.rounds.round_bytes());
        assert!(read(&part(9)).is_err(), "it reaches beyond its whole");
        assert!(read(&Block { landing: None, ..part(0) }).is_err());
        assert!(read(&Block { op: OpKind::Push, ..part(0) }).is_err());
    }
}
