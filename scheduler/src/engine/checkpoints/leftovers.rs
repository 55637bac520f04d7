//! What came of checkpoints that were given up and that cannot be removed. Each further one would leave as much, and a disk fills
//! without bound: beyond a few none is begun before what is left has gone. It must not touch files.

use std::collections::BTreeMap;
use std::fmt;

/// Rounds of which something is left: with so many no checkpoint is begun. One alone may be a disk's bad moment.
pub(in super::super) const LEFT_MAX: usize = 3;

/// See the module. By round.
#[derive(Debug, Default)]
pub(super) struct Leftovers(pub(super) BTreeMap<u64, Leftover>);

#[derive(Debug)]
pub(super) struct Leftover {
    pub(super) files: Vec<String>,
    pub(super) restore: Option<String>,
    /// Why it cannot be removed.
    pub(super) reason: String,
    /// It is being tried again.
    pub(super) is_tried: bool,
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
