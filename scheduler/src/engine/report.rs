//! What members report, within bounds: it is kept and shown.

use proto_common::limits::{
    METRIC_NAME_BYTES_MAX, METRICS_MAX, NAME_BYTES_MAX, PORT_COUNTERS_MAX, RANKS_LISTED_MAX,
};
use proto_common::message::{LinkReport, MemberReport};

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
