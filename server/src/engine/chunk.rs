//! One chunk's state: its version, the round being collected, who waits for what. Pure bookkeeping; the
//! bytes lie in the runtime's storage under the same index.

use super::lengths::Lengths;
use proto_common::batch::{Landing, OpKind};
use proto_common::codec::Codec;
use proto_common::element::Dtype;
use proto_common::ids::{ChunkId, Operation, Rank};
use proto_common::limits::RANKS_LISTED_MAX;
use proto_common::optimizer::Optimizer;
use std::cmp::Ordering;

/// A chunk that this lane is to hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChunkSpec {
    /// Which chunk.
    pub id: ChunkId,
    /// Its bytes; at most, where it is dynamic.
    pub bytes: u64,
    /// Each round has its own length.
    pub dynamic: bool,
    /// Its element type.
    pub dtype: Dtype,
    /// How contributions to it are encoded.
    pub codec: Codec,
    /// Its update rule.
    pub optimizer: Optimizer,
}

impl ChunkSpec {
    /// Bytes of the payload of a contribution that is `bytes` long as plain numbers.
    #[must_use]
    pub fn payload_bytes(&self, bytes: u64) -> u64 {
        if self.codec.is_plain() {
            return bytes;
        }
        // A chunk's elements fit the address space: limits bound its bytes.
        self.codec.encoded_bytes((bytes / self.dtype.bytes() as u64) as usize) as u64
    }

    /// Bytes as plain numbers of a contribution with so long a payload, which has the right shape.
    #[must_use]
    pub fn plain_bytes(&self, payload_bytes: u64) -> u64 {
        if self.codec.is_plain() { payload_bytes } else { self.bytes }
    }
}

/// A contribution that cannot be reduced yet, kept in a spill block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub(super) rank: Rank,
    /// The round it is for; 0 is the initial value.
    pub(super) round: u64,
    pub(super) operation: Operation,
    /// As plain numbers.
    pub(super) bytes: u64,
    pub(super) spill: u32,
    /// Is it all there? Not while it is being read out of the worker's memory.
    pub(super) arrived: bool,
}

/// An operation that was taken, and then lost with the channel that its payload was read over: when it comes again it
/// is new.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reopened {
    pub(super) rank: Rank,
    pub(super) operation: Operation,
    /// As of [`Held`].
    pub(super) round: u64,
}

/// How an operation's number stands to those that its worker sent before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Number {
    /// It is the next one.
    Fresh,
    /// It came before, and was taken.
    Repeated,
    /// One before it has not come.
    Early,
}

/// The spill block that a worker may write its contributions to a chunk into.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum KeyBuffer {
    #[default]
    None,
    /// The worker may write it: once, or (`keep`) again and again.
    Granted { spill: u32, keep: bool },
    /// It holds a contribution until that is reduced.
    Full { spill: u32, keep: bool },
}

/// An operation to be answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiter {
    pub(super) rank: Rank,
    pub(super) op: OpKind,
    pub(super) operation: Operation,
    /// The least version that answers it.
    pub(super) version: u64,
    pub(super) landing: Option<Landing>,
    pub(super) token: u64,
    pub(super) deadline_ms: u64,
    pub(super) since_ms: u64,
}

/// Whether a contribution can be reduced now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    Now,
    Later,
    /// This rank contributed to this round already.
    Repeated,
}

#[derive(Debug)]
pub(super) struct Chunk {
    pub(super) spec: ChunkSpec,
    /// Published version; the round being collected is the next one.
    pub(super) version: u64,
    /// Buffer of the published version (0 or 1).
    pub(super) buffer: u8,
    /// Who reads each buffer: the landings in flight from it.
    pub(super) readers: [Vec<Rank>; 2],
    pub(super) initialised: bool,
    /// Ranks reduced into the accumulator this round.
    pub(super) contributed: RankSet,
    /// All have contributed, but both buffers are being read.
    pub(super) complete: bool,
    pub(super) held: Vec<Held>,
    pub(super) lengths: Lengths,
    /// By worker rank; empty until the first one is granted.
    buffers: Vec<KeyBuffer>,
    pub(super) waiters: Vec<Waiter>,
    /// Last operation taken, per worker rank.
    pub(super) operations: Vec<u64>,
    /// Operations up to those that are to come again. Never more than workers have under way.
    pub(super) reopened: Vec<Reopened>,
}

impl Chunk {
    pub(super) fn new(spec: ChunkSpec, workers: u32) -> Self {
        Self {
            spec,
            version: 0,
            buffer: 0,
            readers: [Vec::new(), Vec::new()],
            initialised: false,
            contributed: RankSet::new(workers),
            complete: false,
            held: Vec::new(),
            lengths: Lengths::new(&spec),
            buffers: Vec::new(),
            waiters: Vec::new(),
            operations: vec![0; workers as usize],
            reopened: Vec::new(),
        }
    }

    /// Is this operation its worker's next one? One that was lost goes before all behind it, taken or not.
    pub(super) fn number(&self, rank: Rank, operation: Operation) -> Number {
        let lost = self.reopened.iter().filter(|open| open.rank == rank).map(|open| open.operation).min();
        let next = lost.unwrap_or(Operation(self.operations[rank.0 as usize] + 1));
        match operation.cmp(&next) {
            Ordering::Less => Number::Repeated,
            Ordering::Equal => Number::Fresh,
            Ordering::Greater => Number::Early,
        }
    }

    /// An operation is taken, or refused for good: it is not awaited any more.
    pub(super) fn mark_taken(&mut self, rank: Rank, operation: Operation) {
        let last = &mut self.operations[rank.0 as usize];
        *last = (*last).max(operation.0);
        self.reopened.retain(|open| open.rank != rank || open.operation != operation);
    }

    /// The buffer to publish into: the one in force where nobody reads it, which is in the cache and needs no
    /// second one; else the other; none while both are being read.
    pub(super) fn writable(&self) -> Option<u8> {
        [self.buffer, 1 - self.buffer]
            .into_iter()
            .find(|buffer| self.readers[usize::from(*buffer)].is_empty())
    }

    /// Whoever still reads an older version, in rank order.
    pub(super) fn reading(&self) -> Vec<Rank> {
        let mut ranks: Vec<Rank> = self.readers.iter().flatten().copied().collect();
        ranks.sort_unstable();
        ranks.dedup();
        ranks
    }

    pub(super) fn round(&self) -> u64 {
        self.version + 1
    }

    /// May `rank` be reduced into the round being collected now?
    pub(super) fn turn(&self, rank: Rank, deterministic: bool) -> Turn {
        if self.contributed.contains(rank) || self.holds(rank, self.round()) {
            return Turn::Repeated;
        }
        if self.is_turn(rank, deterministic) { Turn::Now } else { Turn::Later }
    }

    pub(super) fn holds(&self, rank: Rank, round: u64) -> bool {
        self.held.iter().any(|held| held.rank == rank && held.round == round)
    }

    /// Has this contribution to a round to come come? One that is still being read has not.
    pub(super) fn has(&self, rank: Rank, round: u64) -> bool {
        self.held.iter().any(|held| held.rank == rank && held.round == round && held.arrived)
    }

    /// Is this operation's payload still being read out of the worker's memory?
    pub(super) fn is_fetching(&self, rank: Rank, operation: Operation) -> bool {
        self.held.iter().any(|held| held.rank == rank && held.operation == operation && !held.arrived)
    }

    /// Is the initial value being read, or to be read again? Nothing is folded, and nothing told, before it is there.
    pub(super) fn initialising(&self) -> bool {
        self.held.iter().any(|held| held.round == 0) || self.reopened.iter().any(|open| open.round == 0)
    }

    /// Is its payload being read at this moment?
    pub(super) fn is_reading_initial(&self) -> bool {
        self.held.iter().any(|held| held.round == 0)
    }

    pub(super) fn buffer_of(&self, rank: Rank) -> KeyBuffer {
        self.buffers.get(rank.0 as usize).copied().unwrap_or_default()
    }

    pub(super) fn set_buffer(&mut self, rank: Rank, buffer: KeyBuffer) {
        if self.buffers.is_empty() {
            self.buffers.resize(self.operations.len(), KeyBuffer::None);
        }
        if let Some(place) = self.buffers.get_mut(rank.0 as usize) {
            *place = buffer;
        }
    }

    /// Ranks whose contributions could be reduced at once and have not come (the first few): a contribution that
    /// has to be tried again waits for these. None while it is readers that hold the round up.
    pub(super) fn awaited(&self, workers: u32, deterministic: bool) -> Vec<Rank> {
        let round = self.round();
        let absent = |rank: &Rank| {
            self.is_turn(*rank, deterministic) && !self.contributed.contains(*rank) && !self.has(*rank, round)
        };
        (0..workers).map(Rank).filter(absent).take(RANKS_LISTED_MAX).collect()
    }

    /// Takes a held contribution whose turn has come.
    pub(super) fn take_held(&mut self, deterministic: bool) -> Option<Held> {
        let round = self.round();
        let mut held = self.held.iter();
        let is_next =
            |held: &Held| held.arrived && held.round == round && self.is_turn(held.rank, deterministic);
        let at = held.position(is_next)?;
        Some(self.held.swap_remove(at))
    }

    /// In deterministic mode contributions are folded in rank order; ranks 0 and 1 may come in either order,
    /// because one addition commutes.
    fn is_turn(&self, rank: Rank, deterministic: bool) -> bool {
        let count = self.contributed.len();
        let next = if self.contributed.contains(Rank(1)) && count == 1 { 0 } else { count };
        !self.complete
            && !self.initialising()
            && (!deterministic || rank.0 == next || (count == 0 && rank.0 == 1))
    }
}

/// A set of worker ranks.
#[derive(Clone, Debug)]
pub(super) struct RankSet {
    words: Vec<u64>,
    count: u32,
}

impl RankSet {
    pub(super) fn new(workers: u32) -> Self {
        Self { words: vec![0; workers.div_ceil(64) as usize], count: 0 }
    }

    pub(super) fn contains(&self, rank: Rank) -> bool {
        self.words.get(rank.0 as usize / 64).is_some_and(|word| word >> (rank.0 % 64) & 1 == 1)
    }

    pub(super) fn insert(&mut self, rank: Rank) {
        if let Some(word) = self.words.get_mut(rank.0 as usize / 64) {
            let bit = 1 << (rank.0 % 64);
            self.count += u32::from(*word & bit == 0);
            *word |= bit;
        }
    }

    pub(super) fn len(&self) -> u32 {
        self.count
    }

    pub(super) fn clear(&mut self) {
        self.words.fill(0);
        self.count = 0;
    }
}
