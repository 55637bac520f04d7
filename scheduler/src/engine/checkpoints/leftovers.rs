//! What came of checkpoints that were given up and that cannot be removed. Each further one would leave as much, and a disk fills
//! without bound: beyond a few none is begun before what is left has gone. It must not touch files.

use super::super::Command;
use super::{Asker, Checkpoints, Clearing, answer};
use crate::engine::Note;
use proto_common::message::SaveError;
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

impl Checkpoints {
    /// What was to be cleared away is gone, or is not, and why.
    pub(in super::super) fn cleared(&mut self, clearing: Clearing, result: Result<(), String>) {
        let Clearing::GivenUp { round, files, restore } = clearing else { return };
        match result {
            Ok(()) => {
                let Some(left) = self.left.0.get_mut(&round) else { return };
                left.files.retain(|file| !files.contains(file));
                left.is_tried = false;
                if left.files.is_empty() {
                    self.left.0.remove(&round);
                }
            }
            // Of one without parts nothing is left.
            Err(_) if files.is_empty() => {}
            Err(reason) => {
                let none = || Leftover { files: Vec::new(), restore, reason: String::new(), is_tried: false };
                let left = self.left.0.entry(round).or_insert_with(none);
                left.files.extend(files);
                left.files.sort_unstable();
                left.files.dedup();
                (left.reason, left.is_tried) = (reason, false);
            }
        }
    }

    /// Why none is begun, where that is so.
    pub(super) fn stopped(&self) -> Option<Stopped> {
        let left = &self.left.0;
        let first = left.values().next().filter(|_| left.len() >= LEFT_MAX)?;
        Some(Stopped { left: left.keys().copied().collect(), reason: first.reason.clone() })
    }

    /// Before one of this round is begun: what is left is tried again. True where there is too much of it: who waits for it
    /// hears why, and people do, once a round, which all servers name.
    pub(in super::super) fn is_stopped(
        &mut self,
        round: u64,
        askers: &[Asker],
        out: &mut Vec<Command>,
    ) -> bool {
        // All servers begin it: what the first was told holds for all.
        if askers.is_empty() && self.stopped_round >= Some(round) {
            return true;
        }
        for (other, left) in &mut self.left.0 {
            // Beside one of the same round that is being written nothing is touched.
            if !self.pending.contains_key(other) && !std::mem::replace(&mut left.is_tried, true) {
                let (files, restore) = (left.files.clone(), left.restore.clone());
                out.push(Command::ClearAway(Clearing::GivenUp { round: *other, files, restore }));
            }
        }
        let Some(stopped) = self.stopped() else { return false };
        let error = SaveError::Failed { round, reason: stopped.to_string() };
        if self.stopped_round.replace(round) != Some(round) {
            self.failed += 1;
            self.failure = Some(error.to_string());
            self.news = Some(Note::CheckpointsStopped { round, stopped });
        }
        answer(askers, &Err(error), out);
        true
    }
}
