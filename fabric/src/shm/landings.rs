//! Copies that the receiving side makes: whoever has the bytes says where they lie and where they belong, the receiver copies
//! them and counts what it has copied. So nobody but a process itself writes into what its user computes in, and a peer that was
//! stopped in the middle of anything cannot change that memory later. Pure algorithm, as `ring`: it must not map memory, copy or
//! make system calls.
//!
//! A receiver that has copied looks whether the writer has closed, or has told of another place, meanwhile. Until then the bytes
//! are as they were told of; after that the writer may have used its memory for something else, so they count for nothing, or
//! are copied again from the other place.

use super::ring::{RingBroken, RingMemory};
use super::word::{Primitives, Word32, Word64};
use std::sync::atomic::Ordering;

/// Words of an entry: its mark, and the fields of [`Landing`]. The others keep entries on cache lines of their own.
pub(crate) const ENTRY_WORDS: u32 = 8;
/// In the word of an entry's length.
const STREAMS: u64 = 1 << 63;
/// In the word of the other place's key: there is one.
const MOVED: u64 = 1 << 63;

/// One copy. Keys and offsets are the peer's word: whoever copies checks them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Landing {
    /// Key of the writer's region, and the bytes before the source in it.
    pub(crate) source: (u64, u64),
    /// The same of the receiver's region and the target.
    pub(crate) target: (u64, u64),
    pub(crate) bytes: u64,
    /// The copy may pass by the cache.
    pub(crate) streams: bool,
    /// The source is the other place.
    pub(crate) is_moved: bool,
}

/// What a receiver's copy is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Copied {
    /// It is what was told of.
    Whole,
    /// The bytes have moved meanwhile.
    Moved,
    /// The writer has closed meanwhile.
    Closed,
}

/// The writer's end: what it has told, and how much of that it knows to be copied.
#[derive(Debug, Default)]
pub(crate) struct Told {
    told: u64,
    done: u64,
}

impl Told {
    /// Is there space for one more?
    #[inline]
    pub(crate) fn has_space<M: RingMemory>(&self, memory: &M) -> bool {
        self.told - self.done < u64::from(memory.capacity())
    }

    /// `has_space` must have said so.
    pub(crate) fn tell<M: RingMemory>(&mut self, memory: &M, landing: &Landing) {
        let index = (self.told & u64::from(memory.capacity() - 1)) as u32;
        let length = landing.bytes | if landing.streams { STREAMS } else { 0 };
        let fields = [landing.source.0, landing.source.1, landing.target.0, landing.target.1, length, 0];
        for (word, field) in (1..).zip(fields) {
            memory.landing(index, word).store(field, Ordering::Relaxed);
        }
        self.told += 1;
        // Release: whoever sees the mark sees the fields, and the bytes that they name.
        memory.landing(index, 0).store(self.told, Ordering::Release);
    }

    /// The bytes of the `nth` entry that is not known to be copied are in another place, too. False where that happened before.
    /// From here on the old place may change.
    pub(crate) fn relocate<M: RingMemory>(&self, memory: &M, nth: u64, place: (u64, u64)) -> bool {
        let index = ((self.done + nth) & u64::from(memory.capacity() - 1)) as u32;
        if memory.landing(index, 6).load(Ordering::Relaxed) != 0 {
            return false;
        }
        memory.landing(index, 7).store(place.1, Ordering::Relaxed);
        memory.landing(index, 6).store(place.0 | MOVED, Ordering::Release);
        // See `judge`.
        M::P::fence();
        true
    }

    /// How many more were copied than were known to be.
    #[inline]
    pub(crate) fn take_done<M: RingMemory>(&mut self, memory: &M) -> Result<u64, RingBroken> {
        if self.told == self.done {
            return Ok(0);
        }
        // Acquire: the receiver has read the bytes before they are written again.
        let taken = memory.taken().load(Ordering::Acquire);
        if taken < self.done || taken > self.told {
            return Err(RingBroken::Taken);
        }
        let more = taken - self.done;
        self.done = taken;
        Ok(more)
    }

    /// Would `take_done` say anything but 0?
    #[inline]
    pub(crate) fn has_done<M: RingMemory>(&self, memory: &M) -> bool {
        self.told != self.done && memory.taken().load(Ordering::Relaxed) != self.done
    }
}

/// The receiver's end: how many it has copied.
#[derive(Debug, Default)]
pub(crate) struct Taken(u64);

impl Taken {
    fn mark<M: RingMemory>(&self, memory: &M) -> (u32, u64) {
        let index = (self.0 & u64::from(memory.capacity() - 1)) as u32;
        (index, memory.landing(index, 0).load(Ordering::Acquire))
    }

    /// Is there one to be copied?
    #[inline]
    pub(crate) fn has_next<M: RingMemory>(&self, memory: &M) -> bool {
        self.mark(memory).1 == self.0 + 1
    }

    /// The next one to be copied.
    #[inline]
    pub(crate) fn next<M: RingMemory>(&self, memory: &M) -> Option<Landing> {
        let (index, mark) = self.mark(memory);
        if mark != self.0 + 1 {
            return None;
        }
        let field = |word| memory.landing(index, word).load(Ordering::Relaxed);
        let (length, moved) = (field(5), memory.landing(index, 6).load(Ordering::Acquire));
        let is_moved = moved & MOVED != 0;
        Some(Landing {
            source: if is_moved { (moved & !MOVED, field(7)) } else { (field(1), field(2)) },
            is_moved,
            target: (field(3), field(4)),
            bytes: length & !STREAMS,
            streams: length & STREAMS != 0,
        })
    }

    /// It is copied.
    pub(crate) fn done<M: RingMemory>(&mut self, memory: &M) {
        self.0 += 1;
        memory.taken().store(self.0, Ordering::Release);
    }

    /// To be asked after a copy; `back` is the ring that the writer reads.
    pub(crate) fn judge<M: RingMemory>(&self, memory: &M, back: &M, landing: &Landing) -> Copied {
        // The writer says that it has closed, or another place, fences, and then uses its memory otherwise: whoever has read
        // something of that sees what was said.
        M::P::fence();
        if back.closed().load(Ordering::Relaxed) != 0 {
            return Copied::Closed;
        }
        let (index, _) = self.mark(memory);
        let is_moved = memory.landing(index, 6).load(Ordering::Relaxed) & MOVED != 0;
        if is_moved == landing.is_moved { Copied::Whole } else { Copied::Moved }
    }
}
