//! What head and follower want done, and the operations that it is done with. It must not know who decides or who executes.

use super::letter::{Letter, Part};
use proto_common::ids::Rank;

/// An operation waits this long at its gate for the others' contributions.
pub(super) const GATE_MS: u64 = 1_000;
/// Operations of one follower that its head knows and that have not ended. More wait at their gate.
pub(super) const OFFERED_MAX: usize = 100;

/// What is to be done, in this order. An operation is named by its number at this worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Command {
    /// Tell another worker.
    Send { to: Rank, letter: Letter },
    /// The operation goes as it would without this module.
    OpenAlone { op: u64 },
    /// The head has its contribution: the operation goes without a payload.
    OpenMerged { op: u64 },
    /// The sum of its contribution and of those at these places, in this order, goes instead of its own.
    OpenSum { op: u64, from: Vec<(Rank, u64)> },
    /// Copy what the servers returned, from this place in the head's memory.
    Land { op: u64, from: Rank, offset: u64 },
    /// Nothing more is to be done here for the operation.
    End { op: u64 },
    /// The head cannot return what the operation is for.
    Fail { op: u64 },
}

/// What an operation is, at its gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) op: u64,
    pub(super) part: Part,
    /// Bytes of the gradient, and of what returns.
    pub(super) bytes: u64,
    /// Where the gradient is in the worker's memory, if others can read it there.
    pub(super) offset: u64,
    /// Where the weights return to, if it returns some.
    pub(super) weights: u64,
    /// Does it?
    pub(super) lands: bool,
    /// Is there memory for a sum?
    pub(super) sums: bool,
}
