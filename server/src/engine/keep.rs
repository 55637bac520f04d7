//! A replica of one of this server's chunks on another server, as its primary sees it: whether it is up to date, and what waits for it.
//! (`copies` is the other direction: replicas that this server has of other servers' chunks.) It must not know how records travel: that is
//! `streams`, which draws the states.

use proto_common::ids::{Epoch, Rank};

/// The state of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum At {
    /// Nothing of the chunk is in the stream: it is down, or has not begun with it.
    Out,
    /// The other side was asked which version it has.
    Checking,
    /// It could not answer yet. It is asked again when it sends `Ready`.
    Later,
    /// It needs a `State`.
    Wanted,
    /// The `State` has been sent, and updates follow it.
    Sent,
    /// It has confirmed the `State`; every update follows.
    In,
}

/// A replica of a chunk that another server keeps, or is to keep.
#[derive(Clone, Copy, Debug)]
pub(super) struct Keep {
    pub(super) to: Rank,
    /// Unique, to distinguish it from an earlier replica on the same server.
    pub(super) id: u64,
    /// The decision that gave this server the replica. A server that has not received it would answer for an older replica.
    pub(super) since: Epoch,
    pub(super) is_backup: bool,
    pub(super) at: At,
    /// The version that the other side was asked about or sent, and whether the chunk had its initial value then.
    pub(super) asked: (u64, bool),
    /// Changes of the rule that a `State` in flight contains, and those that were confirmed.
    pub(super) rules: (u64, u64),
    /// The last version that it has confirmed.
    pub(super) confirmed: u64,
    /// It has the initial value, or had none when there was none here.
    pub(super) has_initial: bool,
    /// It has been complete once. From then on the scheduler may make it the primary, so no round ends without it.
    pub(super) kept: bool,
    /// It may have part of a round that was discarded here. Only a `State` makes it a replica again.
    pub(super) whole_only: bool,
    /// How many of its records wait in the stream's queue. If none do, the queue, which all chunks share, need not be searched.
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
