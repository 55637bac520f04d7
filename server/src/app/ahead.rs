//! How far the bodies of calls are read ahead of their handlers. Bodies that a handler takes much later would go through the cache for
//! nothing: the handler reads them from memory again, and each needs memory of its own. It must not know how a body is read.

use fabric::Waker;
use proto_common::ids::Rank;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};

/// Bytes of one worker's bodies that are read before their handler takes them; one body may be longer. Caches of today's cores hold
/// about as much.
const AHEAD_BYTES: u64 = 4 << 20;

/// The same of bodies that their handler reads where the worker has them, so that nothing goes through the cache. When their channel
/// ends, all that are read then are copied at once, which is to take no longer than some milliseconds.
const LENT_AHEAD_BYTES: u64 = 64 << 20;

/// Says that handlers have taken bodies. A handler's thread orders its count before its look at `is_awaited`, and the lane
/// `is_awaited` before its look at the count: if both looked first, the lane would sleep and nobody would wake it.
#[derive(Debug, Default)]
struct Taken {
    is_new: AtomicBool,
    is_awaited: AtomicBool,
    waker: OnceLock<Waker>,
}

/// A body that is being read, or is there and was not taken by its handler yet.
#[derive(Debug)]
pub(crate) struct Place {
    bytes: u64,
    ahead_bytes: Arc<AtomicU64>,
    taken: Arc<Taken>,
}

impl Taken {
    fn tell(&self) {
        self.is_new.store(true, SeqCst);
        if self.is_awaited.load(SeqCst)
            && let Some(waker) = self.waker.get()
        {
            waker.wake();
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.ahead_bytes.fetch_sub(self.bytes, SeqCst);
        self.taken.tell();
    }
}

/// A body has it for as long as its handler reads it. Its drop wakes the lane, if that waits for it.
#[derive(Debug)]
pub(crate) struct Reader(Arc<Taken>);

impl Drop for Reader {
    fn drop(&mut self) {
        self.0.tell();
    }
}

/// One worker's calls to one handler.
#[derive(Debug, Default)]
struct Line {
    /// Calls whose bodies wait to be read, with their bytes.
    waiting: VecDeque<(u64, u64)>,
    ahead_bytes: Arc<AtomicU64>,
    /// The last one was lent, and not copied.
    lends: bool,
}

impl Line {
    /// The next body, if it may be read now.
    fn next(&mut self, taken: &Arc<Taken>) -> Option<(u64, Place)> {
        let (call, bytes) = *self.waiting.front()?;
        let ahead_bytes = self.ahead_bytes.load(SeqCst);
        let most = if self.lends { LENT_AHEAD_BYTES } else { AHEAD_BYTES };
        if ahead_bytes > 0 && ahead_bytes.saturating_add(bytes) > most {
            return None;
        }
        self.waiting.pop_front();
        self.ahead_bytes.fetch_add(bytes, SeqCst);
        Some((call, Place { bytes, ahead_bytes: self.ahead_bytes.clone(), taken: taken.clone() }))
    }
}

/// The bodies that a lane's handlers wait for.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    lines: HashMap<(Rank, u32), Line>,
    taken: Arc<Taken>,
    awaits_readers: bool,
}

impl Ahead {
    /// Sets the waker for when bodies wait and a handler has taken one.
    pub(crate) fn wake_by(&self, waker: Waker) {
        // Set once: a lane has one thread.
        let _ = self.taken.waker.set(waker);
    }

    /// For the body of a call.
    pub(crate) fn reader(&self) -> Arc<Reader> {
        Arc::new(Reader(self.taken.clone()))
    }

    /// Whether the lane waits until a handler does not read a body any more.
    pub(crate) fn await_readers(&mut self, awaits: bool) {
        self.awaits_readers = awaits;
        if awaits {
            self.taken.is_awaited.store(true, SeqCst);
        }
    }

    /// A body that is to be read, behind those before it.
    pub(crate) fn wait(&mut self, line: (Rank, u32), call: u64, bytes: u64) {
        self.lines.entry(line).or_default().waiting.push_back((call, bytes));
        self.taken.is_new.store(true, SeqCst);
    }

    /// A body was lent to its handler, or is copied: so may those be that follow.
    pub(crate) fn note(&mut self, line: (Rank, u32), is_lent: bool) {
        if let Some(line) = self.lines.get_mut(&line) {
            line.lends = is_lent;
        }
    }

    /// A call is over: its body is not read.
    pub(crate) fn forget(&mut self, line: (Rank, u32), call: u64) {
        if let Some(line) = self.lines.get_mut(&line) {
            line.waiting.retain(|(waits, _)| *waits != call);
        }
    }

    /// Has something changed since the last [`Ahead::next`] that found nothing?
    pub(crate) fn is_new(&self) -> bool {
        self.taken.is_new.load(SeqCst)
    }

    /// The next body that may be read.
    pub(crate) fn next(&mut self) -> Option<(u64, Place)> {
        let Self { lines, taken, awaits_readers } = self;
        loop {
            taken.is_new.store(false, SeqCst);
            lines.retain(|_, line| !line.waiting.is_empty() || line.ahead_bytes.load(SeqCst) > 0);
            let is_waiting = lines.values().any(|line| !line.waiting.is_empty());
            taken.is_awaited.store(is_waiting || *awaits_readers, SeqCst);
            let next = lines.values_mut().find_map(|line| line.next(taken));
            if next.is_some() || !taken.is_new.load(SeqCst) {
                return next;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_ahead_by_so_much_and_in_order_and_a_longer_body_goes_alone() {
        let (mut ahead, line) = (Ahead::default(), (Rank(0), 5));
        let half = AHEAD_BYTES / 2;
        for (call, bytes) in [(1, half), (2, half), (3, 1), (4, 2 * AHEAD_BYTES), (5, 1)] {
            ahead.wait(line, call, bytes);
        }
        let first = ahead.next().unwrap();
        let second = ahead.next().unwrap();
        assert_eq!((first.0, second.0), (1, 2));
        assert!(ahead.next().is_none() && !ahead.is_new());
        ahead.wait((Rank(1), 5), 9, 3);
        assert_eq!(ahead.next().map(|(call, _)| call), Some(9), "another worker's");
        drop(second);
        assert!(ahead.is_new());
        let third = ahead.next().unwrap();
        assert_eq!(third.0, 3);
        assert!(ahead.next().is_none(), "the long one waits until it is alone");
        drop((first, third));
        let long = ahead.next().unwrap();
        assert_eq!(long.0, 4);
        assert!(ahead.next().is_none(), "and none goes beside it");
        ahead.wait(line, 6, 1);
        ahead.forget(line, 5);
        drop(long);
        assert_eq!(ahead.next().map(|(call, _)| call), Some(6));
        assert!(ahead.next().is_none() && !ahead.taken.is_awaited.load(SeqCst) && ahead.lines.is_empty());
    }
}
