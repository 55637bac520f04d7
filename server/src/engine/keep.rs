//! Copies of one chunk that others have, or are to have: where each stands, and what waits for it. It must not know how records
//! travel: that is `streams`.

use proto_common::ids::{Epoch, Rank};

/// Where a copy of a chunk stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum At {
    /// Nothing of the chunk is in the stream: it is down, or has not begun with it.
    Out,
    /// The other side was asked which version it has.
    Checking,
    /// It is to be asked again when it says so.
    Later,
    /// It needs a `State`.
    Wanted,
    /// The `State` is on its way, and updates behind it.
    Sent,
    /// Every update follows.
    In,
}

/// A copy of a chunk that another server has, or is to have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Keep {
    pub(super) to: Rank,
    /// Counted, so that what was sent for an earlier one of the same server is told apart.
    pub(super) id: u64,
    /// The decision that it is to be one. What a server that has not heard of it says is of a copy that it had before, and is
    /// to give up.
    pub(super) since: Epoch,
    pub(super) is_backup: bool,
    pub(super) at: At,
    /// The version that the other side was asked about or sent, and whether the chunk had its initial value then.
    pub(super) asked: (u64, bool),
    /// Changes of the rule that a `State` under way has, and those that were confirmed.
    pub(super) rules: (u64, u64),
    /// The last version that it has confirmed.
    pub(super) confirmed: u64,
    /// It has the initial value, or had none when there was none here.
    pub(super) has_initial: bool,
    /// It had a whole copy once: from then on the scheduler may make it the server, so nothing ends without it.
    pub(super) kept: bool,
    /// What it has may be of a round that was thrown away here: only a `State` makes it a copy again.
    pub(super) whole_only: bool,
    /// Its records that wait to be written: only those that have some are looked for in the queue, which all chunks share.
    pub(super) queued: u32,
}

impl Keep {
    pub(super) fn new(to: Rank, id: u64, is_backup: bool, since: Epoch) -> Self {
        let (at, asked, rules) = (At::Out, (0, false), (0, 0));
        let (has_initial, kept, whole_only) = (false, false, false);
        let (confirmed, queued) = (0, 0);
        Self { to, id, since, is_backup, at, asked, rules, confirmed, has_initial, kept, whole_only, queued }
    }

    /// Does a round wait for it?
    pub(super) fn blocks(&self) -> bool {
        self.is_backup || self.kept || self.at == At::Sent
    }

    pub(super) fn is_in_stream(&self) -> bool {
        matches!(self.at, At::Sent | At::In)
    }

    pub(super) fn is_kept_up(&self) -> bool {
        self.kept && self.at == At::In
    }
}
