//! The flight recorder of a process: what its data threads and its control side did last, kept in memory that is written round
//! and round. It is shown at `/trace`, and written to a file where the process fails or is asked to by SIGUSR1
//! (`log.dump_directory`). It must not decide anything, and nothing of it may wait: who records goes on.
//!
//! | file | owns |
//! | --- | --- |
//! | `event` | what data threads record |
//! | `recorder` | a data thread's pen |
//! | `dump` | the document that all of it becomes |
//! | `file` | panics, bad ends and signals: files in a directory |
//! | `notes` | what the scheduler says
//! | `slow` | counting what took too long, and how often it may be said |

mod dump;
mod event;
mod file;
mod notes;
mod recorder;
mod slow;

pub use dump::{Dump, FORMAT, Note, Stamp, ThreadDump};
pub use event::{Event, Extent, Kind, NOBODY, OWN_EVENT_BYTES, Timed};
pub use recorder::Recorder;
pub use slow::Slow;

use crate::logging::LogIdentity;
use crate::seldom::Seldom;
use fabric::JournalReader;
use proto_common::config::Settings;
use proto_common::ids::{JobId, Key, Rank, Role};
use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Events of one document, of all threads together: some 8 MiB.
const EVENTS_MAX: usize = 1 << 17;
/// Notes that are kept; the oldest go first.
const NOTES_MAX: usize = 1024;
/// Bytes of a note's text.
const NOTE_BYTES_MAX: usize = 240;
/// Tensors whose names are kept: more are shown by their keys.
const NAMES_MAX: usize = 4096;

/// See the module; clones share it.
#[derive(Clone, Debug)]
pub struct Flight(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    identity: LogIdentity,
    job: JobId,
    /// Events that a data thread keeps; 0: none.
    events: usize,
    directory: Option<PathBuf>,
    origin: Instant,
    /// The monotonic clock then.
    origin_ns: u64,
    clock: String,
    slow: Slow,
    waits: Seldom,
    /// A failure has left its file.
    crashed: AtomicBool,
    shared: Mutex<Shared>,
}

/// A copy has the same threads' journals, to be read without the lock.
#[derive(Clone, Debug, Default)]
struct Shared {
    /// As many as there are lanes.
    threads: Vec<(String, JournalReader)>,
    notes: VecDeque<Note>,
    names: BTreeMap<u64, String>,
}

impl Flight {
    /// The recorder of the process that logs as `identity`.
    #[must_use]
    pub fn new(identity: LogIdentity, settings: &Settings) -> Self {
        let log = &settings.log;
        let directory = Some(&log.dump_directory).filter(|directory| !directory.is_empty());
        Self(Arc::new(Inner {
            identity,
            job: settings.job,
            events: log.recorder_events as usize,
            directory: directory.map(PathBuf::from),
            origin_ns: dump::monotonic_ns(),
            origin: Instant::now(),
            clock: dump::clock(),
            slow: Slow::new(log.slow_ms),
            waits: Seldom::default(),
            crashed: AtomicBool::new(false),
            shared: Mutex::default(),
        }))
    }

    /// The recorder of a role that shares its process with others: their logs are not its own.
    #[must_use]
    pub fn embedded(role: Role, settings: &Settings) -> Self {
        Self::new(LogIdentity::new(role), settings)
    }

    /// The scheduler has taken this member in.
    pub fn joined(&self, rank: Rank) {
        self.set_rank(rank);
        self.note("joined", format!("{} {rank}", self.0.identity.role()));
    }

    /// The rank is known: log lines have it from now on, too.
    pub fn set_rank(&self, rank: Rank) {
        self.0.identity.set_rank(rank);
    }

    /// A data thread's pen.
    #[must_use]
    pub fn thread(&self, name: String) -> Recorder {
        let journal = (self.0.events > 0).then(|| fabric::journal(self.0.events));
        let (writer, reader) = journal.unzip();
        if let Some(reader) = reader {
            self.lock().threads.push((name, reader));
        }
        Recorder::new(writer, self.0.origin)
    }

    /// What is slow.
    #[must_use]
    pub fn slow(&self) -> &Slow {
        &self.0.slow
    }

    /// When it may be said that operations still wait for busy members.
    #[must_use]
    pub fn waits(&self) -> &Seldom {
        &self.0.waits
    }

    /// Something happened beside data threads; `what` in a word.
    pub fn note(&self, what: &str, text: impl Into<String>) {
        let mut text: String = text.into();
        if text.len() > NOTE_BYTES_MAX {
            let end = (0..=NOTE_BYTES_MAX).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
            text.truncate(end);
        }
        let note = Note { at_ns: self.now_ns(), what: what.to_owned(), text };
        let mut shared = self.lock();
        if shared.notes.len() == NOTES_MAX {
            shared.notes.pop_front();
        }
        shared.notes.push_back(note);
    }

    /// A tensor's name, for people.
    pub fn name(&self, key: Key, name: &str) {
        let mut shared = self.lock();
        if !name.is_empty() && shared.names.len() < NAMES_MAX {
            shared.names.insert(key.0, name.to_owned());
        }
    }

    /// The tensor as messages name it: `tensor "fc1.weight"`, or `tensor 5` if it has no name.
    #[must_use]
    pub fn label(&self, key: Key) -> String {
        proto_common::tensor::label(key, self.lock().names.get(&key.0).map_or("", String::as_str))
    }

    /// The tensor in a field of a log line: its name and key, or its key alone.
    #[must_use]
    pub fn called(&self, key: Key) -> String {
        match self.lock().names.get(&key.0) {
            Some(name) => format!("{name} (key {key})"),
            None => format!("key {key}"),
        }
    }

    /// This moment, by all clocks.
    #[must_use]
    pub fn stamp(&self) -> Stamp {
        let recorder_ns = self.now_ns();
        let monotonic_ns = self.0.origin_ns.saturating_add(recorder_ns);
        Stamp { clock: self.0.clock.clone(), monotonic_ns, wall_ns: dump::wall_ns(), recorder_ns }
    }

    /// All that is kept.
    #[must_use]
    pub fn dump(&self, reason: &str) -> Dump {
        // Data threads ask for names under this lock: it is not theirs to wait until all events are read.
        let shared = self.lock().clone();
        self.dump_of(reason, shared)
    }

    fn dump_of(&self, reason: &str, shared: Shared) -> Dump {
        let inner = &*self.0;
        let most = EVENTS_MAX / shared.threads.len().max(1);
        let thread = |(name, reader): (String, JournalReader)| {
            let found = reader.newest(most);
            let (written, overwritten) = (found.written, found.overwritten);
            let events = found.records.iter().filter_map(Timed::unpacked).map(|event| event.row()).collect();
            ThreadDump { name, written, overwritten, events }
        };
        Dump {
            format: FORMAT.to_owned(),
            role: inner.identity.role(),
            rank: inner.identity.rank().map(|rank| rank.0),
            job: inner.job.0,
            pid: std::process::id(),
            build: env!("CARGO_PKG_VERSION").to_owned(),
            reason: reason.to_owned(),
            stamp: self.stamp(),
            names: shared.names,
            threads: shared.threads.into_iter().map(thread).collect(),
            notes: shared.notes.into(),
        }
    }

    fn now_ns(&self) -> u64 {
        self.0.origin.elapsed().as_nanos() as u64
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Shared> {
        // Each change is whole.
        self.0.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flight(events: u32) -> Flight {
        let mut settings = Settings::default();
        settings.log.recorder_events = events;
        Flight::embedded(Role::Server, &settings)
    }

    #[test]
    fn what_is_recorded_is_dumped_and_reads_back() {
        let flight = flight(4);
        let mut recorder = flight.thread("lane 0".into());
        recorder.look();
        let start_ns = recorder.now_ns();
        for round in 1..=6 {
            recorder.note(Event { round, ..Event::of(Kind::BatchTaken) });
        }
        let begun = recorder.begin(OWN_EVENT_BYTES);
        recorder.end(begun, Event { bytes: OWN_EVENT_BYTES, ..Event::of(Kind::Reduce) });
        assert_eq!(recorder.begin(OWN_EVENT_BYTES - 1), None, "too small for a look at the clock");
        flight.note("epoch", "1.2");
        flight.name(Key(7), "fc1.weight");
        flight.set_rank(Rank(3));
        let dump = flight.dump("asked");
        let text = serde_json::to_string(&dump).unwrap();
        assert_eq!(serde_json::from_str::<Dump>(&text).unwrap(), dump);
        assert_eq!((dump.rank, dump.notes.len(), &dump.names[&7][..]), (Some(3), 1, "fc1.weight"));
        let events: Vec<Timed> =
            dump.threads[0].events.iter().map(|row| Timed::from_row(row).unwrap()).collect();
        assert_eq!((dump.threads[0].written, events.len()), (7, 4));
        assert_eq!(events[0].event.round, 4, "the newest are kept");
        assert!(events[3].start_ns >= start_ns && events[3].event.kind == Kind::Reduce);
        assert_eq!(flight.called(Key(7)), "fc1.weight (key 7)");
    }

    #[test]
    fn events_are_read_while_somebody_else_has_the_lock() {
        let flight = flight(4);
        flight.thread("lane 0".into()).note(Event::of(Kind::Expel));
        let shared = flight.lock().clone();
        let held = flight.lock();
        assert_eq!(flight.dump_of("asked", shared).threads[0].events.len(), 1);
        drop(held);
    }

    #[test]
    fn without_events_there_are_notes_and_slow_is_slow_all_the_same() {
        let flight = flight(0);
        let mut recorder = flight.thread("lane 0".into());
        recorder.note(Event::of(Kind::Expel));
        flight.note("epoch", "1.2");
        let dump = flight.dump("asked");
        assert!(dump.threads.is_empty() && dump.notes.len() == 1 && !recorder.is_on());
        assert!(flight.slow().is_slow(1_000));
    }

    #[test]
    fn notes_are_bounded_in_number_and_length() {
        let flight = flight(2);
        (0..=NOTES_MAX).for_each(|number| flight.note("x", format!("{number}{}", "ä".repeat(200))));
        let notes = flight.dump("asked").notes;
        assert_eq!((notes.len(), &notes[0].text[..1]), (NOTES_MAX, "1"));
        assert!(notes.iter().all(|note| note.text.len() <= NOTE_BYTES_MAX));
    }
}
