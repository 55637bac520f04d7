//! The notice ring: how a peer learns that bytes have landed. One producer, one consumer, each in its own
//! process; neither trusts a word the other can write. Pure algorithm: it must not map memory or make
//! system calls.
//!
//! Each slot is one 64-bit word: the low half is the notice, the high half a mark that says which position
//! of the endless sequence wrote it. So one cache line moves per notice: there is no tail to read. A slot
//! waiting for position `p` holds the mark of `p - capacity`; anything else is a peer's lie.

use super::word::{Primitives, Word32, Word64};
use std::sync::atomic::Ordering;
use thiserror::Error;

/// It copies bytes from there, or into there.
const COPIES: u32 = 1;
/// It reads bytes where they lie.
const READS: u32 = 2;

/// What a producer does in the memory of a consumer that has closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Busy {
    /// Nothing, and it begins nothing any more.
    No,
    /// It reads, and begins no copy any more.
    Reads,
    /// It may be in the middle of a copy.
    Copies,
}

/// Where a ring's words lie. Indices given to `slot` are below the capacity.
pub(crate) trait RingMemory {
    type P: Primitives;
    /// A power of two.
    fn capacity(&self) -> u32;
    fn slot(&self, index: u32) -> &<Self::P as Primitives>::Word64;
    /// Consumer's: positions before it may be written again.
    fn head(&self) -> &<Self::P as Primitives>::Word32;
    /// Consumer's: not 0 once nothing may land any more.
    fn closed(&self) -> &<Self::P as Primitives>::Word32;
    /// Producer's: what it does in the consumer's memory, [`COPIES`] and [`READS`] added.
    fn busy(&self) -> &<Self::P as Primitives>::Word32;
    /// Set by a producer that found no space, cleared by the consumer that made some.
    fn starved(&self) -> &<Self::P as Primitives>::Word32;
    /// Consumer's: how many landings it has copied.
    fn taken(&self) -> &<Self::P as Primitives>::Word64;
    /// A word of an entry for a landing, of which there are as many as slots.
    fn landing(&self, index: u32, word: u32) -> &<Self::P as Primitives>::Word64;
}

/// The other side wrote something that the algorithm never writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum RingBroken {
    #[error("its notice ring holds a slot of another sequence")]
    Slot,
    #[error("its notice ring's head is out of range")]
    Head,
    #[error("it says that it copied what it was not told of")]
    Taken,
}

fn word_of(position: u32, notice: u32) -> u64 {
    u64::from(position.wrapping_add(1)) << 32 | u64::from(notice)
}

/// The writing end. Lives in the process that writes.
#[derive(Debug)]
pub(crate) struct Producer<M> {
    memory: M,
    next: u32,
    /// The consumer's head as last read: it is only read again when the ring looks full.
    head: u32,
    /// No space was found and nobody was told of any since.
    waits: bool,
    /// The producer stays busy until `release`, also when a shorter copy ends.
    is_held: bool,
}

impl<M: RingMemory> Producer<M> {
    pub(crate) fn new(memory: M) -> Self {
        Self { memory, next: 0, head: 0, waits: false, is_held: false }
    }

    pub(crate) fn memory(&self) -> &M {
        &self.memory
    }

    /// After `has_space` said no, and a fence: would it say something else now? Says so once.
    #[inline]
    pub(crate) fn take_space(&mut self) -> bool {
        let came = self.waits
            && self.next.wrapping_sub(self.memory.head().load(Ordering::Relaxed)) != self.memory.capacity();
        self.waits &= !came;
        came
    }

    /// Is there space for a notice? When not, the consumer will be asked to ring once there is.
    #[inline]
    pub(crate) fn has_space(&mut self) -> Result<bool, RingBroken> {
        if self.next.wrapping_sub(self.head) < self.memory.capacity() {
            return Ok(true);
        }
        self.waits = false;
        let space = self.refresh()?;
        if !space {
            // The consumer stores its head, fences, and looks at this; we fence when we lie down, and look at
            // the head again: one of us sees the other.
            self.memory.starved().store(1, Ordering::Relaxed);
            self.waits = true;
        }
        Ok(space)
    }

    fn refresh(&mut self) -> Result<bool, RingBroken> {
        // Acquire: the consumer has read a slot before we write it again.
        let head = self.memory.head().load(Ordering::Acquire);
        let used = self.next.wrapping_sub(head);
        if used > self.memory.capacity() {
            return Err(RingBroken::Head);
        }
        self.head = head;
        Ok(used < self.memory.capacity())
    }

    /// Opens a stretch in which bytes are copied into the consumer's memory. False: the consumer has closed
    /// and nothing may be copied.
    #[inline]
    #[must_use]
    pub(crate) fn enter(&mut self) -> bool {
        self.memory.busy().store(COPIES | self.reading(), Ordering::Relaxed);
        // The consumer stores `closed`, fences, and looks at `busy`: one of us sees the other.
        M::P::fence();
        let open = self.memory.closed().load(Ordering::Relaxed) == 0;
        if !open {
            self.leave();
        }
        open
    }

    /// Ends what `enter` opened. True: the consumer has closed meanwhile, and must be rung. That is a hint without a
    /// fence of its own: a consumer that it misses looks again by itself.
    #[inline]
    pub(crate) fn leave(&mut self) -> bool {
        // A held stretch also survives an `enter` that finds the consumer closed: otherwise the consumer would believe that
        // nobody reads its memory any more, and write it.
        self.memory.busy().store(self.reading(), Ordering::Release);
        !self.is_held && self.memory.closed().load(Ordering::Relaxed) != 0
    }

    /// Instead of `leave`: from now on the producer reads, until `release`.
    pub(crate) fn hold(&mut self) {
        self.is_held = true;
        self.memory.busy().store(self.reading(), Ordering::Release);
    }

    fn reading(&self) -> u32 {
        if self.is_held { READS } else { 0 }
    }

    pub(crate) fn is_held(&self) -> bool {
        self.is_held
    }

    /// Ends a held stretch, if there is one. The answer is that of `leave`.
    pub(crate) fn release(&mut self) -> bool {
        std::mem::take(&mut self.is_held) && self.leave()
    }

    /// Publishes a notice after all bytes written before; `has_space` must have said so.
    #[inline]
    pub(crate) fn publish(&mut self, notice: u32) {
        let slot = self.memory.slot(self.next & (self.memory.capacity() - 1));
        slot.store(word_of(self.next, notice), Ordering::Release);
        self.next = self.next.wrapping_add(1);
    }
}

/// The reading end. Lives in the process whose memory the notices are about.
#[derive(Debug)]
pub(crate) struct Consumer<M> {
    memory: M,
    next: u32,
    released: u32,
}

impl<M: RingMemory> Consumer<M> {
    /// Takes fresh memory and marks all slots as free. Before the producer knows of it.
    pub(crate) fn new(memory: M) -> Self {
        let capacity = memory.capacity();
        for index in 0..capacity {
            let before = index.wrapping_sub(capacity);
            memory.slot(index).store(word_of(before, 0), Ordering::Relaxed);
        }
        Self { memory, next: 0, released: 0 }
    }

    pub(crate) fn memory(&self) -> &M {
        &self.memory
    }

    #[inline]
    fn mark(&self) -> (u32, u32) {
        // Acquire: all bytes written before the notice was published are visible after it is seen.
        let word = self.memory.slot(self.next & (self.memory.capacity() - 1)).load(Ordering::Acquire);
        ((word >> 32) as u32, word as u32)
    }

    /// Would `pop` say anything but `None`?
    #[inline]
    pub(crate) fn has_next(&self) -> bool {
        self.mark().0 != self.next.wrapping_add(1).wrapping_sub(self.memory.capacity())
    }

    /// Takes the next notice, if there is one.
    #[inline]
    pub(crate) fn pop(&mut self) -> Result<Option<u32>, RingBroken> {
        let (mark, notice) = self.mark();
        let expected = self.next.wrapping_add(1);
        if mark == expected {
            self.next = expected;
            return Ok(Some(notice));
        }
        if mark == expected.wrapping_sub(self.memory.capacity()) { Ok(None) } else { Err(RingBroken::Slot) }
    }

    /// Gives the slots of popped notices back. True: the producer was waiting for that and must be rung.
    #[inline]
    pub(crate) fn release(&mut self) -> bool {
        if self.released == self.next {
            return false;
        }
        self.released = self.next;
        self.memory.head().store(self.next, Ordering::Release);
        // See `has_space`.
        M::P::fence();
        if self.memory.starved().load(Ordering::Relaxed) == 0 {
            return false;
        }
        // Cleared before the producer is rung: what it sets afterwards stays.
        self.memory.starved().store(0, Ordering::Relaxed);
        true
    }

    /// From now on an honest producer begins no copy.
    pub(crate) fn close(&mut self) {
        self.memory.closed().store(1, Ordering::Relaxed);
        // See `enter`.
        M::P::fence();
    }

    /// After `close`: what has the producer not ended yet?
    pub(crate) fn busy(&self) -> Busy {
        match self.memory.busy().load(Ordering::Acquire) {
            0 => Busy::No,
            READS => Busy::Reads,
            _ => Busy::Copies,
        }
    }

    /// Notices that can lie in the ring at once.
    pub(crate) fn capacity(&self) -> u32 {
        self.memory.capacity()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::shm::landings::ENTRY_WORDS;
    use crate::shm::word::Native;
    use proptest::prelude::*;
    use std::collections::VecDeque;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, AtomicU64};

    struct Words {
        slots: Vec<AtomicU64>,
        words: [AtomicU32; 4],
        taken: AtomicU64,
        landings: Vec<AtomicU64>,
    }

    impl RingMemory for Arc<Words> {
        type P = Native;
        fn capacity(&self) -> u32 {
            self.slots.len() as u32
        }
        fn slot(&self, index: u32) -> &AtomicU64 {
            &self.slots[index as usize]
        }
        fn head(&self) -> &AtomicU32 {
            &self.words[0]
        }
        fn closed(&self) -> &AtomicU32 {
            &self.words[1]
        }
        fn busy(&self) -> &AtomicU32 {
            &self.words[2]
        }
        fn starved(&self) -> &AtomicU32 {
            &self.words[3]
        }
        fn taken(&self) -> &AtomicU64 {
            &self.taken
        }
        fn landing(&self, index: u32, word: u32) -> &AtomicU64 {
            &self.landings[(index * ENTRY_WORDS + word) as usize]
        }
    }

    fn ring(capacity: usize) -> (Arc<Words>, Producer<Arc<Words>>, Consumer<Arc<Words>>) {
        let zeros = |count| (0..count).map(|_| AtomicU64::new(0)).collect();
        let (slots, landings) = (zeros(capacity), zeros(capacity * ENTRY_WORDS as usize));
        let words = Arc::new(Words { slots, words: Default::default(), taken: AtomicU64::new(0), landings });
        let consumer = Consumer::new(words.clone());
        (words.clone(), Producer::new(words), consumer)
    }

    proptest! {
        #[test]
        fn it_is_a_bounded_queue(start in any::<u32>(), steps in prop::collection::vec(0u8..4, 1..200)) {
            let (words, mut producer, mut consumer) = ring(4);
            // Anywhere in the sequence, the place where it wraps included.
            let start = if start % 3 == 0 { u32::MAX - 5 } else { start };
            for i in 0..4u32 {
                let position = start.wrapping_add(i);
                words.slot(position & 3).store(word_of(position.wrapping_sub(4), 0), Ordering::Relaxed);
            }
            words.head().store(start, Ordering::Relaxed);
            (producer.next, producer.head, consumer.next, consumer.released) = (start, start, start, start);
            let mut model = VecDeque::new();
            let mut unreleased = 0;
            for (i, step) in steps.into_iter().enumerate() {
                match step {
                    0 | 1 => {
                        let space = producer.has_space().unwrap();
                        prop_assert_eq!(space, model.len() + unreleased < 4);
                        if space {
                            producer.publish(i as u32);
                            model.push_back(i as u32);
                        }
                    }
                    2 => {
                        prop_assert_eq!(consumer.has_next(), !model.is_empty());
                        let popped = consumer.pop().unwrap();
                        unreleased += usize::from(popped.is_some());
                        prop_assert_eq!(popped, model.pop_front());
                    }
                    _ => {
                        consumer.release();
                        unreleased = 0;
                    }
                }
            }
        }
    }

    #[test]
    fn a_starved_producer_is_rung_once() {
        let (_, mut producer, mut consumer) = ring(2);
        producer.publish(1);
        producer.publish(2);
        assert_eq!(consumer.pop(), Ok(Some(1)));
        assert!(!consumer.release(), "nobody waits");
        assert!(producer.has_space().unwrap());
        producer.publish(3);
        assert!(!producer.has_space().unwrap());
        assert_eq!(consumer.pop(), Ok(Some(2)));
        assert!(consumer.release());
        assert_eq!(consumer.pop(), Ok(Some(3)));
        assert!(!consumer.release());
    }

    #[test]
    fn lies_are_noticed() {
        let (words, mut producer, mut consumer) = ring(4);
        words.slot(0).store(word_of(1, 9), Ordering::Relaxed);
        assert!(consumer.has_next());
        assert_eq!(consumer.pop(), Err(RingBroken::Slot));
        for i in 0..4 {
            assert!(producer.has_space().unwrap());
            producer.publish(i);
        }
        words.head().store(5, Ordering::Relaxed);
        assert_eq!(producer.has_space(), Err(RingBroken::Head));
    }

    #[test]
    fn a_closed_ring_lets_nobody_in() {
        let (_, mut producer, mut consumer) = ring(2);
        assert!(producer.enter());
        assert_eq!(consumer.busy(), Busy::Copies);
        consumer.close();
        producer.leave();
        assert_eq!(consumer.busy(), Busy::No);
        assert!(!producer.enter());
        assert_eq!(consumer.busy(), Busy::No);
    }

    #[test]
    fn a_producer_that_reads_copies_beside_that_until_the_ring_is_closed() {
        let (_, mut producer, mut consumer) = ring(2);
        assert!(producer.enter());
        producer.hold();
        assert_eq!(consumer.busy(), Busy::Reads);
        assert!(producer.enter());
        consumer.close();
        assert_eq!(consumer.busy(), Busy::Copies);
        producer.leave();
        assert!(!producer.enter());
        assert_eq!(consumer.busy(), Busy::Reads);
        assert!(producer.release());
        assert_eq!(consumer.busy(), Busy::No);
    }
}
