//! Bounds of what a member may say of the cluster that was, to a scheduler that knows nothing. It must not keep any of it.

use daemon::passed::BARRIERS_KEPT_MAX;
use proto_common::ids::Rank;
use proto_common::limits::{NAME_BYTES_MAX, WORKERS_MAX};
use proto_common::message::{Member, NodeGroup};

/// A member's lists are no longer than a cluster is large, however many parts they come in.
pub(super) fn check_lists(
    (had_members, had_left, had_barriers): (usize, usize, usize),
    members: &[Member],
    left: &[Rank],
    barriers: &[(String, NodeGroup, u64)],
    server_places: u32,
) -> Result<(), String> {
    let places = WORKERS_MAX.saturating_add(server_places) as usize;
    let is_long = |text: &Option<String>| text.as_ref().is_some_and(|text| text.len() > NAME_BYTES_MAX);
    let too_many = if had_members + members.len() > places {
        "members"
    } else if had_left + left.len() > WORKERS_MAX as usize {
        "workers that left"
    } else if had_barriers + barriers.len() > BARRIERS_KEPT_MAX {
        "barriers"
    } else if members.iter().any(|one| is_long(&one.data_address) || is_long(&one.http_address)) {
        "bytes of an address"
    } else if barriers.iter().any(|(name, ..)| name.len() > NAME_BYTES_MAX) {
        "bytes of a barrier's name"
    } else {
        return Ok(());
    };
    Err(format!("it knows of more {too_many} than there can be"))
}
