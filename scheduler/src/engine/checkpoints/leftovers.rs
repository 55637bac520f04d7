//! Files of abandoned checkpoints that could not be removed. Each further checkpoint could leave as many files and fill the disk. So
//! after a few, no checkpoint is begun before the files are removed. It must not touch files itself.
//!
//! ```text
//!   (nothing) ──cleared: an error──▶ left ──retry──▶ tried ──cleared──▶ (nothing)
//!                                     ▲               │
//!                                     └── an error ───┘
//! ```

use super::Clearing;
use std::collections::BTreeMap;
use std::fmt;

/// Rounds of which something is left: with so many no checkpoint is begun. One alone may be a disk's bad moment.
pub(in super::super) const LEFT_MAX: usize = 3;

/// See the module. By round.
#[derive(Debug, Default)]
pub(super) struct Leftovers(BTreeMap<u64, Leftover>);

#[derive(Debug)]
struct Leftover {
    files: Vec<String>,
    restore: Option<String>,
    /// Why it cannot be removed.
    reason: String,
    /// It is being tried again.
    is_tried: bool,
}

impl Leftovers {
    /// What was to be cleared away is gone, or is not, and why.
    pub(super) fn cleared(&mut self, clearing: Clearing, result: Result<(), String>) {
        let Clearing::GivenUp { round, files, restore } = clearing else { return };
        match result {
            Ok(()) => {
                let Some(left) = self.0.get_mut(&round) else { return };
                left.files.retain(|file| !files.contains(file));
                left.is_tried = false;
                if left.files.is_empty() {
                    self.0.remove(&round);
                }
            }
            // Of one without parts nothing is left.
            Err(_) if files.is_empty() => {}
            Err(reason) => {
                let none = || Leftover { files: Vec::new(), restore, reason: String::new(), is_tried: false };
                let left = self.0.entry(round).or_insert_with(none);
                left.files.extend(files);
                left.files.sort_unstable();
                left.files.dedup();
                (left.reason, left.is_tried) = (reason, false);
            }
        }
    }

    /// What is to be tried again. Beside a checkpoint of the same round that is being written nothing is touched.
    pub(super) fn retry(&mut self, is_written: impl Fn(u64) -> bool) -> impl Iterator<Item = Clearing> {
        self.0.iter_mut().filter_map(move |(round, left)| {
            let is_new = !is_written(*round) && !std::mem::replace(&mut left.is_tried, true);
            let (files, restore) = (left.files.clone(), left.restore.clone());
            is_new.then_some(Clearing::GivenUp { round: *round, files, restore })
        })
    }

    /// Why none is begun, where that is so.
    pub(super) fn stopped(&self) -> Option<Stopped> {
        let first = self.0.values().next().filter(|_| self.0.len() >= LEFT_MAX)?;
        Some(Stopped { left: self.0.keys().copied().collect(), reason: first.reason.clone() })
    }
}

/// Why a checkpoint was not begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stopped {
    /// Rounds of earlier ones, of which something is left.
    pub left: Vec<u64>,
    /// Why that of the first of them cannot be removed.
    pub reason: String,
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { left, reason } = self;
        write!(
            f,
            "it was not started, to keep the disk from filling up: parts of the abandoned rounds {left:?} cannot be removed \
             ({reason}); the scheduler and all servers are to run as one user. Removing them is tried again now, and before each \
             checkpoint"
        )
    }
}
