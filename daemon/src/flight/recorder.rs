//! A data thread's pen: it knows the time as of the thread's last look at the clock, and writes events into the thread's journal.
//! It must not look at the clock unless it is asked to.

use super::event::{Event, OWN_EVENT_BYTES, Timed};
use fabric::JournalWriter;
use std::time::Instant;

/// See the module. The default one records nothing.
#[derive(Debug, Default)]
pub struct Recorder {
    journal: Option<JournalWriter>,
    origin: Option<Instant>,
    now_ns: u64,
}

impl Recorder {
    pub(super) fn new(journal: Option<JournalWriter>, origin: Instant) -> Self {
        Self { journal, origin: Some(origin), now_ns: 0 }
    }

    /// Is anything recorded?
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.journal.is_some()
    }

    /// The thread has looked at the clock.
    #[inline]
    pub fn saw(&mut self, now: Instant) {
        if let Some(origin) = self.origin {
            self.now_ns = now.saturating_duration_since(origin).as_nanos() as u64;
        }
    }

    /// Looks at the clock, where anything is recorded.
    #[inline]
    pub fn look(&mut self) {
        if self.is_on() {
            self.saw(Instant::now());
        }
    }

    /// The time as of the last look, in nanoseconds since the process's recorder began.
    #[inline]
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// An event of this moment.
    #[inline]
    pub fn note(&mut self, event: Event) {
        self.write(self.now_ns, 0, event);
    }

    /// An event that began then and ends now.
    #[inline]
    pub fn since(&mut self, start_ns: u64, event: Event) {
        self.write(start_ns, self.now_ns.saturating_sub(start_ns), event);
    }

    /// Work on so many bytes begins. What is small is not worth two looks at the clock.
    #[inline]
    pub fn begin(&mut self, bytes: u64) -> Option<u64> {
        if bytes < OWN_EVENT_BYTES || !self.is_on() {
            return None;
        }
        self.look();
        Some(self.now_ns)
    }

    /// It is done.
    #[inline]
    pub fn end(&mut self, begun: Option<u64>, event: Event) {
        if let Some(start_ns) = begun {
            self.look();
            self.since(start_ns, event);
        }
    }

    #[inline]
    fn write(&mut self, start_ns: u64, took_ns: u64, event: Event) {
        if let Some(journal) = &mut self.journal {
            journal.write(&Timed { start_ns, took_ns, event }.packed());
        }
    }
}
