//! What a process says, line by line, as it says it: for waiting on a line and for telling a failed test's
//! story. Bounded, so that a chatty process cannot fill the memory of its test.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Lines kept; the oldest go first.
const LINES_MAX: usize = 20_000;

/// A process's output. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Log(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    lines: Mutex<Lines>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Lines {
    kept: VecDeque<String>,
    dropped: usize,
    ended: bool,
}

impl Log {
    /// Collects what comes out of `output`, on a thread that ends with it.
    pub fn collect(output: impl Read + Send + 'static) -> Self {
        let log = Self::default();
        let shared = log.clone();
        std::thread::spawn(move || {
            let mut reader = BufReader::new(output);
            let mut bytes = Vec::new();
            while reader.read_until(b'\n', &mut bytes).is_ok_and(|read| read > 0) {
                shared.push(String::from_utf8_lossy(&bytes).trim_end().to_owned());
                bytes.clear();
            }
            shared.lock().ended = true;
            shared.0.changed.notify_all();
        });
        log
    }

    fn lock(&self) -> MutexGuard<'_, Lines> {
        self.0.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, line: String) {
        let mut lines = self.lock();
        lines.kept.push_back(line);
        if lines.kept.len() > LINES_MAX {
            lines.kept.pop_front();
            lines.dropped += 1;
        }
        drop(lines);
        self.0.changed.notify_all();
    }

    /// Waits for a line that holds `words`; `None` when the process ended, or the time passed, without one.
    #[must_use]
    pub fn wait(&self, words: &str, within: Duration) -> Option<String> {
        self.wait_for(|line| line.contains(words), within)
    }

    /// As [`Log::wait`], for a line that is as asked for.
    #[must_use]
    pub fn wait_for(&self, is_it: impl Fn(&str) -> bool, within: Duration) -> Option<String> {
        let deadline = Instant::now() + within;
        let (mut lines, mut seen) = (self.lock(), 0);
        loop {
            let skip = seen.max(lines.dropped) - lines.dropped;
            if let Some(line) = lines.kept.iter().skip(skip).find(|line| is_it(line)) {
                return Some(line.clone());
            }
            seen = lines.dropped + lines.kept.len();
            let left = deadline.saturating_duration_since(Instant::now());
            if lines.ended || left.is_zero() {
                return None;
            }
            lines = self.0.changed.wait_timeout(lines, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits until everything was read: the process, and whoever else held its output, has ended.
    #[must_use]
    pub fn wait_end(&self, within: Duration) -> bool {
        let result = self.0.changed.wait_timeout_while(self.lock(), within, |lines| !lines.ended);
        result.unwrap_or_else(PoisonError::into_inner).0.ended
    }

    /// Everything so far.
    #[must_use]
    pub fn text(&self) -> String {
        let lines = self.lock();
        lines.kept.iter().flat_map(|line| [line.as_str(), "\n"]).collect()
    }

    /// The last lines so far, each indented.
    #[must_use]
    pub fn tail(&self, count: usize) -> String {
        let lines = self.lock();
        let skip = lines.kept.len().saturating_sub(count);
        lines.kept.iter().skip(skip).flat_map(|line| ["    ", line.as_str(), "\n"]).collect()
    }
}
