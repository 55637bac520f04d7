//! Numbers as people read them, and names. Text from values; no I/O.

use daemon::status::{JobPhase, MemberStatus};
use proto_common::ids::{MemberId, Role};

/// Decimal units, as links are sold.
pub(crate) fn bytes(count: u64) -> String {
    const UNITS: [&str; 6] = ["B", "kB", "MB", "GB", "TB", "PB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 999.95 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    match unit {
        0 => format!("{count} B"),
        _ => format!("{value:.1} {}", UNITS[unit]),
    }
}

pub(crate) fn duration(ms: u64) -> String {
    match ms {
        0..1_000 => format!("{ms} ms"),
        1_000..60_000 => format!("{:.1} s", ms as f64 / 1e3),
        60_000..3_600_000 => format!("{} min {} s", ms / 60_000, ms % 60_000 / 1_000),
        _ => format!("{} h {} min", ms / 3_600_000, ms % 3_600_000 / 60_000),
    }
}

/// A text of a peer's without what moves a terminal's cursor, colours it, or turns its writing round.
pub(crate) fn clean(text: &str) -> String {
    let turns =
        |c: char| matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    text.chars().filter(|c| !c.is_control() && !turns(*c)).collect()
}

/// Rounds per second, and the like.
pub(crate) fn rate(value: f64) -> String {
    match value {
        0.0 => "0".into(),
        v if v < 1.0 => format!("{v:.2}"),
        v if v < 100.0 => format!("{v:.1}"),
        v => format!("{v:.0}"),
    }
}

/// A number of somebody else's, of any size.
#[cfg_attr(not(feature = "top"), allow(dead_code, reason = "only the live page shows such numbers"))]
pub(crate) fn number(value: f64) -> String {
    let size = value.abs();
    if size != 0.0 && !(1e-3..1e7).contains(&size) {
        return format!("{value:.2e}");
    }
    // Four digits that say something, as many as there are before the point at least.
    let before = if size < 1.0 { 0 } else { size.log10() as usize + 1 };
    let text = format!("{value:.*}", 4usize.saturating_sub(before));
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// Where the job stands.
pub(crate) fn phase(phase: JobPhase) -> &'static str {
    match phase {
        JobPhase::Assembling => "assembling",
        JobPhase::Rebuilding => "rebuilding",
        JobPhase::Running => "running",
        JobPhase::Ending => "ending",
        JobPhase::Ended => "ended",
    }
}

pub(crate) fn state(member: &MemberStatus, silence_ms: u64) -> &'static str {
    match member {
        _ if member.left => "left",
        // Half of the way to being declared dead.
        _ if member.silent_ms > silence_ms / 2 => "SILENT",
        _ if member.role == Role::Worker && !member.links_ready => "linking",
        _ => "up",
    }
}

/// Role and rank.
pub(crate) fn id(member: &MemberStatus) -> MemberId {
    MemberId { role: member.role, rank: member.rank }
}

pub(crate) fn names(ids: &[MemberId]) -> String {
    ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        assert_eq!((bytes(999_949), bytes(999_950)), ("999.9 kB".into(), "1.0 MB".into()));
        assert_eq!([0.0, 0.5, 3.21, 99.96, 812.4].map(rate), ["0", "0.50", "3.2", "100.0", "812"]);
        let numbers = [0.0, 2.303_21, 0.012_345, 12_345.678, -0.5, 1e-9, 3.0e12, 100.0];
        assert_eq!(
            numbers.map(number),
            ["0", "2.303", "0.0123", "12346", "-0.5", "1.00e-9", "3.00e12", "100"]
        );
    }

    #[test]
    fn a_peer_cannot_colour_or_turn_the_terminal() {
        assert_eq!(clean("a\x1b[31mb\r\n\u{202e}c\u{9b}d"), "a[31mbcd");
    }
}
