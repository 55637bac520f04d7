//! Where a call comes from, for the journal of its handler.

use proto_common::ids::Incarnation;

/// See the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Origin {
    /// The lane that it came over.
    pub(crate) lane: u16,
    /// The worker's process.
    pub(crate) life: Incarnation,
    /// Its number among this worker's calls to the handler.
    pub(crate) operation: u64,
    /// Calls before this one are known to be answered.
    pub(crate) first_open: u64,
}
