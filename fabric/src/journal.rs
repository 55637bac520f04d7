//! A ring of small records that one thread writes and any thread reads meanwhile: the newest stay. Writing takes no lock, no
//! memory and no system call, and never waits for readers; a reader leaves out what is overwritten while it looks. It must not
//! know what records mean.

use crate::shm::word::{Native, Primitives, Word64};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Words of a record.
pub const RECORD_WORDS: usize = 7;

/// A record: what its words are is its writer's to know.
pub type Record = [u64; RECORD_WORDS];

/// A line of the processor's caches: the record's number, counted from 1, and its words. Number 0: none, or one is being written.
#[repr(align(64))]
struct Slot<W>([W; RECORD_WORDS + 1]);

/// Written by one, read by many.
struct Ring<P: Primitives> {
    slots: Box<[Slot<P::Word64>]>,
    /// Records written since the beginning.
    written: P::Word64,
}

impl<P: Primitives> Ring<P> {
    fn new(records: usize, word: impl Fn() -> P::Word64) -> Self {
        let slot = |_| Slot(std::array::from_fn(|_| word()));
        // Every page is touched here, and not by the first round.
        Self { slots: (0..records).map(slot).collect(), written: word() }
    }

    /// Only ever called by one thread at a time.
    #[inline]
    fn write(&self, number: u64, record: &Record) {
        let at = (number - 1) as usize & (self.slots.len() - 1);
        let [sequence, words @ ..] = &self.slots[at].0;
        sequence.store(0, Ordering::Relaxed);
        for (word, value) in words.iter().zip(record) {
            // Whoever sees this word sees that the record before it is gone.
            word.store(*value, Ordering::Release);
        }
        sequence.store(number, Ordering::Release);
        self.written.store(number, Ordering::Release);
    }

    fn read(&self, number: u64) -> Option<Record> {
        let at = (number - 1) as usize & (self.slots.len() - 1);
        let [sequence, words @ ..] = &self.slots[at].0;
        if sequence.load(Ordering::Acquire) != number {
            return None;
        }
        let record = std::array::from_fn(|word| words[word].load(Ordering::Acquire));
        (sequence.load(Ordering::Relaxed) == number).then_some(record)
    }

    fn newest(&self, most: usize) -> Records {
        let written = self.written.load(Ordering::Acquire);
        let kept = written.min(self.slots.len() as u64).min(most as u64);
        let records: Vec<Record> =
            (written - kept + 1..=written).filter_map(|number| self.read(number)).collect();
        let overwritten = kept - records.len() as u64;
        Records { records, written, overwritten }
    }
}

/// What a reader found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Records {
    /// The newest, oldest first.
    pub records: Vec<Record>,
    /// Records written since the beginning.
    pub written: u64,
    /// Records that were overwritten while they were read, and are left out.
    pub overwritten: u64,
}

impl<P: Primitives> fmt::Debug for Ring<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring").field("records", &self.slots.len()).finish_non_exhaustive()
    }
}

/// The writing end of a journal; see the module.
#[derive(Debug)]
pub struct JournalWriter {
    ring: Arc<Ring<Native>>,
    written: u64,
}

/// A reading end of a journal.
#[derive(Clone, Debug)]
pub struct JournalReader(Arc<Ring<Native>>);

/// A journal of so many records, rounded up to a power of two; of two at least.
#[must_use]
pub fn journal(records: usize) -> (JournalWriter, JournalReader) {
    let records = records.clamp(2, 1 << 30).next_power_of_two();
    let ring = Arc::new(Ring::new(records, Default::default));
    (JournalWriter { ring: ring.clone(), written: 0 }, JournalReader(ring))
}

impl JournalWriter {
    /// Writes a record over the oldest one.
    #[inline]
    pub fn write(&mut self, record: &Record) {
        self.written += 1;
        self.ring.write(self.written, record);
    }
}

impl JournalReader {
    /// The newest records, at most so many, while their writer goes on.
    #[must_use]
    pub fn newest(&self, most: usize) -> Records {
        self.0.newest(most)
    }

    /// Records that are kept.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.0.slots.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::atomic::AtomicBool;

    fn record(number: u64) -> Record {
        [number; RECORD_WORDS]
    }

    proptest! {
        #[test]
        fn the_newest_are_there_in_order(capacity in 0usize..20, written in 0u64..100, most in 0usize..40) {
            let (mut writer, reader) = journal(capacity);
            (1..=written).for_each(|number| writer.write(&record(number)));
            let kept = written.min(reader.capacity() as u64).min(most as u64);
            let expected: Vec<Record> = (written - kept + 1..=written).map(record).collect();
            prop_assert_eq!(reader.newest(most), Records { records: expected, written, overwritten: 0 });
        }
    }

    /// Each record has the same number in all its words.
    #[test]
    fn a_reader_beside_the_writer_sees_whole_records_only() {
        let (mut writer, reader) = journal(8);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let read = scope.spawn(|| {
                let (mut seen, mut last) = (0u64, 0);
                while !over.load(Ordering::Acquire) {
                    let found = reader.newest(usize::MAX);
                    for record in &found.records {
                        assert!(record.iter().all(|word| word == &record[0]), "{record:?}");
                    }
                    assert!(found.records.is_sorted() && found.written >= last, "{found:?}");
                    assert!(found.records.len() as u64 + found.overwritten <= 8);
                    (seen, last) = (seen + found.records.len() as u64, found.written);
                }
                seen
            });
            (1..=400_000).for_each(|number| writer.write(&record(number)));
            over.store(true, Ordering::Release);
            read.join().unwrap();
        });
        assert_eq!(reader.newest(2).records, [record(399_999), record(400_000)]);
    }
}

/// Checked by loom.
#[cfg(test)]
mod models {
    use super::*;
    use crate::shm::word::{Modelled, explore};
    use loom::sync::atomic::AtomicU64;

    #[test]
    fn no_record_is_torn() {
        explore(true, || {
            let ring = Arc::new(Ring::<Modelled>::new(1, || AtomicU64::new(0)));
            let theirs = ring.clone();
            let writer = loom::thread::spawn(move || {
                // The second goes over the first.
                (1..=2).for_each(|number| theirs.write(number, &[number; RECORD_WORDS]));
            });
            for number in 1..=2 {
                if let Some(record) = ring.read(number) {
                    assert_eq!(record, [number; RECORD_WORDS]);
                }
            }
            writer.join().unwrap();
            assert_eq!(ring.read(2), Some([2; RECORD_WORDS]));
            assert_eq!(ring.newest(9).records, [[2; RECORD_WORDS]]);
        });
    }
}
