//! Bounds of what members report: about themselves, which is stored and shown, and about the cluster before, to a restarted scheduler. It
//! must not store any of it.

use daemon::passed::BARRIERS_KEPT_MAX;
use proto_common::ids::Rank;
use proto_common::limits::{
    METRIC_NAME_BYTES_MAX, METRICS_MAX, NAME_BYTES_MAX, PORT_COUNTERS_MAX, RANKS_LISTED_MAX, WORKERS_MAX,
};
use proto_common::message::{LinkReport, Member, MemberReport, NodeGroup};

/// No member can make it large, and numbers are such that JSON has them.
pub(super) fn bounded(mut report: MemberReport, servers: u32) -> MemberReport {
    report.links.truncate(servers as usize);
    let cut = |link: &mut LinkReport| cut_text(&mut link.why);
    report.links.iter_mut().for_each(cut);
    report.waits.truncate(RANKS_LISTED_MAX);
    for wait in &mut report.waits {
        cut_text(&mut wait.what);
        wait.on.truncate(RANKS_LISTED_MAX);
    }
    report.metrics.retain(|(_, value)| value.is_finite());
    report.metrics.truncate(METRICS_MAX);
    report.metrics.iter_mut().for_each(|(name, _)| cut_to(name, METRIC_NAME_BYTES_MAX));
    if let Some(port) = &mut report.port {
        cut_text(&mut port.device);
        port.trouble.truncate(PORT_COUNTERS_MAX);
        port.trouble.iter_mut().for_each(|(name, _)| cut_to(name, METRIC_NAME_BYTES_MAX));
    }
    report
}

/// Shortens to [`NAME_BYTES_MAX`].
fn cut_text(text: &mut String) {
    cut_to(text, NAME_BYTES_MAX);
}

/// Shortens at a character's border.
pub(super) fn cut_to(text: &mut String, bytes_max: usize) {
    let mut end = text.len().min(bytes_max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
}

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
