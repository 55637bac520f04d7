//! Who hears of a device's events: any lane that is awake reads them, and each is handed to the lanes that it concerns,
//! which are woken. Also remembers what is wrong with the device and its port, and what the port counts, so that what fails by
//! it says so. It must not end channels itself: their lane's thread does.

use super::counters::PortCounters;
use super::sys::{Context, Event, Fault};
use crate::error::FabricError;
use crate::lock::lock;
use crate::work::DisconnectReason;
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Instant;

/// Events read at once: a port that goes up and down without end keeps nobody.
const EVENTS_MAX: usize = 64;
/// Words for a lane that has not taken them: more than its queue pairs can cause while it is asleep.
const WORDS_MAX: usize = 4096;

/// What a lane has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// End the channel of this queue pair.
    Channel { queue_pair: u32, reason: DisconnectReason },
    /// End all.
    All { reason: DisconnectReason },
}

/// What a lane is woken by.
#[derive(Debug)]
pub(super) struct Alarm {
    /// Addresses of its queues, by which events name them.
    completions: usize,
    receives: usize,
    bell: OwnedFd,
    words: Mutex<Vec<Word>>,
    is_rung: AtomicBool,
}

impl Alarm {
    /// Readable while there is a word to take.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    fn ring(&self, word: Word) {
        {
            let mut words = lock(&self.words);
            if words.contains(&word) {
                return;
            }
            let word = if words.len() < WORDS_MAX {
                word
            } else {
                words.clear();
                let what = format!("the RDMA device told of more than {WORDS_MAX} faults at once");
                Word::All { reason: DisconnectReason::Failed(what) }
            };
            words.push(word);
        }
        // It can only fail where it is readable already. Before the word that there is something to take: whoever takes
        // then silences it.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        self.is_rung.store(true, Ordering::Release);
    }

    /// What has come since; costs nothing where that is nothing.
    pub(super) fn take(&self) -> Vec<Word> {
        if !self.is_rung.swap(false, Ordering::AcqRel) {
            return Vec::new();
        }
        let _ = rustix::io::read(&self.bell, &mut [0u8; 8]);
        std::mem::take(&mut *lock(&self.words))
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Watch {
    context: Arc<Context>,
    notes: Notes,
    /// What the port had counted when the device was opened.
    began: PortCounters,
}

/// What is known of the device and who is to know it.
#[derive(Debug)]
struct Notes {
    name: String,
    port: u8,
    /// Since when the port has been down.
    down_since: Mutex<Option<Instant>>,
    is_gone: OnceLock<()>,
    alarms: Mutex<Vec<Weak<Alarm>>>,
}

impl Watch {
    pub(super) fn new(context: &Arc<Context>, port: u8) -> Self {
        let notes = Notes::new(context.name.clone(), port);
        Self { context: Arc::clone(context), began: notes.count(), notes }
    }

    /// What the port has counted until now.
    pub(super) fn count(&self) -> PortCounters {
        self.notes.count()
    }

    /// What the port has counted since the device was opened.
    pub(super) fn counted(&self) -> PortCounters {
        self.count().since(&self.began)
    }

    /// An alarm for the lane of these queues.
    pub(super) fn alarm(&self, completions: usize, receives: usize) -> Result<Arc<Alarm>, FabricError> {
        self.notes.alarm(completions, receives)
    }

    /// Readable while an event has not been read.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.context.events_fd()
    }

    /// Reads what has come.
    pub(super) fn look(&self) {
        for event in (0..EVENTS_MAX).map_while(|_| self.context.next_event()) {
            self.notes.note(event);
        }
    }

    /// Looks, and adds what is wrong with the port to a failure, of which it is the likely cause; also what the port has
    /// counted since the channel was new.
    pub(super) fn explain(&self, reason: DisconnectReason, new: &PortCounters) -> DisconnectReason {
        self.look();
        self.notes.explain(reason, &self.count().since(new).trouble())
    }

    /// An error once the device is gone.
    pub(super) fn check(&self) -> Result<(), FabricError> {
        self.look();
        self.notes.check()
    }
}

impl Notes {
    fn new(name: String, port: u8) -> Self {
        let (down_since, is_gone, alarms) = (Mutex::default(), OnceLock::new(), Mutex::default());
        Self { name, port, down_since, is_gone, alarms }
    }

    fn alarm(&self, completions: usize, receives: usize) -> Result<Arc<Alarm>, FabricError> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| FabricError::os("making an event descriptor (raise the limit of open files)", e))?;
        let (words, is_rung) = (Mutex::default(), AtomicBool::new(false));
        let alarm = Arc::new(Alarm { completions, receives, bell, words, is_rung });
        let mut alarms = lock(&self.alarms);
        alarms.retain(|alarm| alarm.strong_count() > 0);
        alarms.push(Arc::downgrade(&alarm));
        Ok(alarm)
    }

    fn count(&self) -> PortCounters {
        PortCounters::read(&self.name, self.port)
    }

    fn note(&self, event: Event) {
        let name = &self.name;
        match event {
            Event::QueuePair { number, completions, fault } => {
                let reason = reason(name, fault);
                tracing::warn!(device = name, queue_pair = number, %reason, "a queue pair failed");
                let word = Word::Channel { queue_pair: number, reason };
                self.ring(&word, |alarm| alarm.completions == completions);
            }
            Event::Completions { completions } => {
                self.lose("a completion queue", |alarm| alarm.completions == completions);
            }
            Event::Receives { receives } => {
                self.lose("a receive queue", |alarm| alarm.receives == receives);
            }
            Event::Port { port, is_up } if port == self.port => {
                tracing::warn!(device = name, port, is_up, "the port of an RDMA device went up or down");
                let mut since = lock(&self.down_since);
                *since = if is_up { None } else { since.or_else(|| Some(Instant::now())) };
            }
            Event::Device => {
                let _ = self.is_gone.set(());
                self.lose("itself (it was removed or reset)", |_| true);
            }
            Event::Port { .. } | Event::Other => {}
        }
    }

    fn lose(&self, what: &str, is_its: impl Fn(&Alarm) -> bool) {
        let what = format!("RDMA device {} lost {what}", self.name);
        tracing::error!(what);
        self.ring(&Word::All { reason: DisconnectReason::Failed(what) }, is_its);
    }

    fn ring(&self, word: &Word, is_its: impl Fn(&Alarm) -> bool) {
        let alarms = lock(&self.alarms);
        let alarms = alarms.iter().filter_map(Weak::upgrade).filter(|alarm| is_its(alarm));
        alarms.for_each(|alarm| alarm.ring(word.clone()));
    }

    fn explain(&self, reason: DisconnectReason, trouble: &PortCounters) -> DisconnectReason {
        let DisconnectReason::Failed(mut why) = reason else { return reason };
        let port = format!("port {} of RDMA device {}", self.port, self.name);
        if let Some(since) = *lock(&self.down_since) {
            why += &format!("; {port} went down {} ms ago", since.elapsed().as_millis());
        }
        if !trouble.is_empty() {
            why += &format!("; {port} has counted since the channel began, of all channels: {trouble}");
        }
        DisconnectReason::Failed(why)
    }

    fn check(&self) -> Result<(), FabricError> {
        match self.is_gone.get() {
            None => Ok(()),
            Some(()) => Err(FabricError::Misuse(format!(
                "RDMA device {} was removed or reset: restart the process once it is back",
                self.name
            ))),
        }
    }
}

fn reason(device: &str, fault: Fault) -> DisconnectReason {
    let (of, what): (fn(String) -> DisconnectReason, _) = match fault {
        Fault::Request => (DisconnectReason::PeerMisbehaved, "took its request for invalid"),
        Fault::Access => (DisconnectReason::PeerMisbehaved, "refused it access (key or bounds)"),
        Fault::Fatal => (DisconnectReason::Failed, "lost the channel's queue pair"),
    };
    of(format!("RDMA device {device} {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notes() -> (Notes, Arc<Alarm>, Arc<Alarm>) {
        let notes = Notes::new("rxe9".into(), 2);
        let (one, other) = (notes.alarm(0x10, 0x11).unwrap(), notes.alarm(0x20, 0x21).unwrap());
        (notes, one, other)
    }

    fn is_readable(alarm: &Alarm) -> bool {
        rustix::io::ioctl_fionread(alarm.fd()).is_ok_and(|bytes| bytes > 0) || {
            let mut fds = [rustix::event::PollFd::new(&alarm.bell, rustix::event::PollFlags::IN)];
            rustix::event::poll(&mut fds, Some(&rustix::event::Timespec::default())).unwrap() == 1
        }
    }

    #[test]
    fn a_fault_wakes_the_lane_that_it_is_of_and_no_other() {
        let (notes, one, other) = notes();
        notes.note(Event::QueuePair { number: 7, completions: 0x20, fault: Fault::Fatal });
        notes.note(Event::QueuePair { number: 7, completions: 0x20, fault: Fault::Fatal });
        assert!(!is_readable(&one) && is_readable(&other));
        assert_eq!(one.take(), []);
        let reason = reason("rxe9", Fault::Fatal);
        assert_eq!(other.take(), [Word::Channel { queue_pair: 7, reason }]);
        assert!(!is_readable(&other) && other.take().is_empty());
        notes.note(Event::Receives { receives: 0x11 });
        assert!(
            matches!(&one.take()[..], [Word::All { reason: DisconnectReason::Failed(why) }] if why.contains("rxe9"))
        );
        assert_eq!(other.take(), []);
        notes.note(Event::Completions { completions: 0x20 });
        assert_eq!((one.take().len(), other.take().len()), (0, 1));
    }

    #[test]
    fn a_device_that_is_gone_ends_all_and_takes_nothing_new() {
        let (notes, one, other) = notes();
        assert!(notes.check().is_ok());
        notes.note(Event::Device);
        assert_eq!((one.take().len(), other.take().len()), (1, 1));
        assert!(notes.check().unwrap_err().to_string().contains("rxe9"));
    }

    #[test]
    fn a_failure_while_the_port_is_down_says_so() {
        let (notes, one, _other) = notes();
        let failed = || DisconnectReason::Failed("no answer".into());
        let explained = |reason| notes.explain(reason, &PortCounters::default());
        notes.note(Event::Port { port: 1, is_up: false });
        assert_eq!(explained(failed()), failed());
        notes.note(Event::Port { port: 2, is_up: false });
        let why = explained(failed()).to_string();
        assert!(why.starts_with("no answer; port 2 of RDMA device rxe9 went down"), "{why}");
        assert_eq!(explained(DisconnectReason::PeerClosed), DisconnectReason::PeerClosed);
        notes.note(Event::Port { port: 2, is_up: true });
        assert_eq!(explained(failed()), failed());
        assert_eq!(one.take(), [], "a link may come back: nobody is ended for it");
    }

    #[test]
    fn words_that_nobody_takes_are_bounded() {
        let (notes, one, _other) = notes();
        for number in 0..2 * WORDS_MAX as u32 {
            notes.note(Event::QueuePair { number, completions: 0x10, fault: Fault::Fatal });
        }
        let words = one.take();
        assert!(words.len() <= WORDS_MAX && words.iter().any(|word| matches!(word, Word::All { .. })));
    }
}
