//! Checked by loom: the ring loses, repeats and tears no notice; the doorbell loses no wake; memory that was granted over a channel is
//! used again only after the fence of that channel; a landing is whole or counts for nothing.

use super::doorbell;
use super::landings::{Copied, ENTRY_WORDS, Landing, Taken, Told};
use super::ring::{Busy, Consumer, Producer, RingMemory};
use super::word::{Modelled, explore};
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

struct Words {
    slots: Vec<AtomicU64>,
    words: [AtomicU32; 4],
    taken: AtomicU64,
    landings: Vec<AtomicU64>,
    /// The memory the notices are about, a cell for each slot: loom reports a read that races with a write.
    payload: Vec<UnsafeCell<u32>>,
    bell: Bell,
}

impl Words {
    fn new(capacity: u32) -> Arc<Self> {
        Arc::new(Self {
            slots: (0..capacity).map(|_| AtomicU64::new(0)).collect(),
            words: std::array::from_fn(|_| AtomicU32::new(0)),
            taken: AtomicU64::new(0),
            landings: (0..capacity * ENTRY_WORDS).map(|_| AtomicU64::new(0)).collect(),
            payload: (0..capacity).map(|_| UnsafeCell::new(0)).collect(),
            bell: Bell::default(),
        })
    }
}

impl RingMemory for Arc<Words> {
    type P = Modelled;
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

/// A doorbell with a futex as the kernel has it: compare and sleep are one step towards wakes.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    word: AtomicU32,
    kernel: Mutex<()>,
    sleepers: Condvar,
}

impl Bell {
    /// Sleeps unless `look` finds something. A sleep that nobody ends is a deadlock, which loom reports.
    pub(crate) fn sleep_unless(&self, look: impl FnOnce() -> bool) {
        self.lie_down();
        if !look() {
            self.sleep_on_word();
        }
        self.get_up();
    }

    pub(crate) fn lie_down(&self) {
        doorbell::lie_down::<Modelled>(&self.word, doorbell::ON_WORD);
    }

    pub(crate) fn get_up(&self) {
        doorbell::get_up::<Modelled>(&self.word);
    }

    pub(crate) fn sleep_on_word(&self) {
        let guard = self.kernel.lock().unwrap();
        if self.word.load(Ordering::Relaxed) == doorbell::ON_WORD {
            drop(self.sleepers.wait(guard).unwrap());
        }
    }

    pub(crate) fn ring(&self) {
        if doorbell::ring::<Modelled>(&self.word) == doorbell::ON_WORD {
            drop(self.kernel.lock().unwrap());
            self.sleepers.notify_all();
        }
    }
}

/// Sends `count` notices with their payload through a ring of `capacity`; both sides sleep when they must.
fn transfer(capacity: u32, count: u32) {
    let words = Words::new(capacity);
    let producer_bell = Arc::new(Bell::default());
    let mut consumer = Consumer::new(words.clone());
    let sender = {
        let (words, bell) = (words.clone(), producer_bell.clone());
        thread::spawn(move || {
            let mut producer = Producer::new(words.clone());
            for i in 0..count {
                while !producer.has_space().unwrap() {
                    bell.sleep_unless(|| producer.take_space());
                }
                assert!(producer.enter());
                // SAFETY: loom's cell; the ring says that the consumer is done with this one.
                words.payload[(i % capacity) as usize].with_mut(|cell| unsafe { *cell = i + 100 });
                producer.publish(i);
                producer.leave();
                words.bell.ring();
            }
        })
    };
    for i in 0..count {
        let notice = loop {
            if let Some(notice) = consumer.pop().unwrap() {
                break notice;
            }
            words.bell.sleep_unless(|| consumer.has_next());
        };
        assert_eq!(notice, i);
        // SAFETY: loom's cell; the notice says that the producer is done with this one.
        let payload = words.payload[(i % capacity) as usize].with(|cell| unsafe { *cell });
        assert_eq!(payload, i + 100);
        if consumer.release() {
            producer_bell.ring();
        }
    }
    assert_eq!(consumer.pop(), Ok(None));
    sender.join().unwrap();
}

#[test]
fn a_ring_loses_repeats_and_tears_nothing() {
    explore(false, || transfer(2, 3));
}

#[test]
fn a_full_ring_wakes_its_producer() {
    explore(false, || transfer(1, 3));
}

#[test]
fn a_bell_with_two_ringers_loses_no_wake() {
    explore(false, || {
        let bell = Arc::new(Bell::default());
        let published = Arc::new([AtomicBool::new(false), AtomicBool::new(false)]);
        let ringers: Vec<_> = (0..2)
            .map(|i| {
                let (bell, published) = (bell.clone(), published.clone());
                thread::spawn(move || {
                    published[i].store(true, Ordering::Release);
                    bell.ring();
                })
            })
            .collect();
        let mut seen = [false; 2];
        while seen != [true; 2] {
            let look = |seen: &[bool; 2]| (0..2).any(|i| !seen[i] && published[i].load(Ordering::Acquire));
            bell.sleep_unless(|| look(&seen));
            for (i, seen) in seen.iter_mut().enumerate() {
                *seen = published[i].load(Ordering::Acquire);
            }
        }
        for ringer in ringers {
            ringer.join().unwrap();
        }
    });
}

/// A lease from its grant to the next one: the old peer copies, the owner closes its channel, and grants the cell to a new peer when
/// `is_done` says that the fence is. Loom reports a copy of the old peer that meets one of the new peer.
fn grant_to_another(is_done: impl Fn(&Consumer<Arc<Words>>) -> bool) {
    let (old, new) = (Words::new(1), Words::new(1));
    let (mut from_old, mut from_new) = (Consumer::new(old.clone()), Consumer::new(new.clone()));
    // The owner's cell, which both peers have mapped.
    let memory = new.clone();
    let copies = |words: Arc<Words>, payload: u32| {
        let memory = memory.clone();
        thread::spawn(move || {
            let mut producer = Producer::new(words);
            if producer.enter() {
                // SAFETY: loom's cell; being let in says that the cell is still granted.
                memory.payload[0].with_mut(|cell| unsafe { *cell = payload });
                producer.publish(payload);
                producer.leave();
            }
        })
    };
    let old_peer = copies(old, 1);
    from_old.close();
    while !is_done(&from_old) {
        thread::yield_now();
    }
    copies(new, 2).join().unwrap();
    assert_eq!(from_new.pop(), Ok(Some(2)));
    // SAFETY: loom's cell; the notice says that the new peer is done with it.
    assert_eq!(memory.payload[0].with(|cell| unsafe { *cell }), 2);
    old_peer.join().unwrap();
}

#[test]
fn no_copy_of_a_peer_meets_the_next_grant() {
    explore(false, || grant_to_another(is_quiet));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_fence_that_does_not_look_at_the_busy_word_is_caught() {
    explore(false, || grant_to_another(|_| true));
}

fn is_quiet(consumer: &Consumer<Arc<Words>>) -> bool {
    consumer.busy() == Busy::No
}

/// A peer reads a gradient where it lies, in a section that lasts. Meanwhile it wants to write, and may be refused. The owner closes the
/// channel and writes the next gradient when the fence is done.
fn read_in_place(is_done: impl Fn(&Consumer<Arc<Words>>) -> bool) {
    let words = Words::new(1);
    let mut consumer = Consumer::new(words.clone());
    let reader = {
        let words = words.clone();
        thread::spawn(move || {
            let mut producer = Producer::new(words.clone());
            if !producer.enter() {
                return;
            }
            producer.hold();
            if producer.enter() {
                producer.leave();
            }
            // SAFETY: loom's cell; the section says that the owner does not write it.
            assert_eq!(words.payload[0].with(|cell| unsafe { *cell }), 0);
            producer.release();
        })
    };
    consumer.close();
    while !is_done(&consumer) {
        thread::yield_now();
    }
    // SAFETY: loom's cell; the fence says that nobody reads it any more.
    words.payload[0].with_mut(|cell| unsafe { *cell = 7 });
    reader.join().unwrap();
}

#[test]
fn a_reader_in_place_keeps_the_fence_pending() {
    explore(false, || read_in_place(is_quiet));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_fence_that_does_not_wait_for_readers_is_caught() {
    explore(false, || read_in_place(|_| true));
}

/// A peer that reads in place also writes a result. The owner closes the channel, and gives the result's memory to somebody else while
/// the peer still reads.
fn write_while_reading(is_done: impl Fn(&Consumer<Arc<Words>>) -> bool) {
    let words = Words::new(1);
    let mut consumer = Consumer::new(words.clone());
    let reader = {
        let words = words.clone();
        thread::spawn(move || {
            let mut producer = Producer::new(words.clone());
            if !producer.enter() {
                return;
            }
            producer.hold();
            if producer.enter() {
                // SAFETY: loom's cell; the section says that the owner does not use it.
                words.payload[0].with_mut(|cell| unsafe { *cell = 1 });
                producer.leave();
            }
            producer.release();
        })
    };
    consumer.close();
    while !is_done(&consumer) {
        thread::yield_now();
    }
    // SAFETY: loom's cell; the fence says that nobody writes it any more.
    words.payload[0].with_mut(|cell| unsafe { *cell = 7 });
    reader.join().unwrap();
}

#[test]
fn who_only_reads_writes_no_more() {
    explore(false, || write_while_reading(|consumer| consumer.busy() != Busy::Copies));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_fence_that_takes_a_copy_for_a_read_is_caught() {
    explore(false, || write_while_reading(|_| true));
}

/// The writer tells of bytes and gives a notice. Before they are copied it closes, or tells of another place; after that it uses
/// its memory for something else. What the receiver believes is what the bytes were before.
fn tell_and_overwrite(moves: bool) {
    // The ring that the receiver reads, and the one that the writer reads.
    let (words, back) = (Words::new(2), Words::new(2));
    let source: Arc<[AtomicU32; 2]> = Arc::new([AtomicU32::new(1), AtomicU32::new(1)]);
    let writer = {
        let (words, back, source) = (words.clone(), back.clone(), source.clone());
        thread::spawn(move || {
            let mut producer = Producer::new(words.clone());
            let mut consumer = Consumer::new(back);
            let mut told = Told::default();
            source[0].store(2, Ordering::Relaxed);
            let landing =
                Landing { source: (0, 0), target: (9, 0), bytes: 4, streams: false, is_moved: false };
            told.tell(&words, &landing);
            producer.publish(7);
            if told.take_done(&words).unwrap() == 0 {
                if moves {
                    source[1].store(2, Ordering::Relaxed);
                    assert!(told.relocate(&words, 0, (1, 0)));
                } else {
                    consumer.close();
                }
            }
            source[0].store(3, Ordering::Relaxed);
        })
    };
    let consumer = Consumer::new(words.clone());
    let mut taken = Taken::default();
    let has_notice = consumer.has_next();
    let Some(mut landing) = taken.next(&words) else {
        assert!(!has_notice, "what was told before a notice is there with it");
        return writer.join().unwrap();
    };
    loop {
        let copied = source[landing.source.0 as usize].load(Ordering::Relaxed);
        match taken.judge(&words, &back, &landing) {
            Copied::Whole => {
                assert_eq!(copied, 2);
                break taken.done(&words);
            }
            Copied::Moved => {
                assert!(moves && !landing.is_moved, "once");
                landing = taken.next(&words).unwrap();
            }
            Copied::Closed => break assert!(!moves),
        }
    }
    writer.join().unwrap();
}

#[test]
fn a_landing_is_whole_or_counts_for_nothing() {
    explore(false, || tell_and_overwrite(false));
}

#[test]
fn a_landing_that_moves_is_whole() {
    explore(false, || tell_and_overwrite(true));
}
