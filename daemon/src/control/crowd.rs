//! What connections of peers that nobody knows yet may cost a listener: how many it keeps, and for how long each may say nothing.
//! It must not know who they are.

use std::time::Duration;

/// Connections of strangers that a listener keeps at once. More wait in its backlog, so that a flood of strangers delays a member
/// and does not turn it away.
pub const STRANGERS_MAX: usize = 256;
/// How long a new connection may say nothing while many do.
const CROWDED_HANDSHAKE_MS: u64 = 500;

/// How long a new connection may take to say who it is. With more than half of the places taken, whoever says nothing makes room
/// soon: members speak at once.
#[must_use]
pub fn patience(handshake: Duration, (taken, places): (usize, usize)) -> Duration {
    let short = Duration::from_millis(CROWDED_HANDSHAKE_MS);
    if 2 * taken > places { handshake.min(short) } else { handshake }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_says_nothing_has_less_time_where_more_than_half_of_the_places_are_taken() {
        let (long, short) = (Duration::from_secs(5), Duration::from_millis(CROWDED_HANDSHAKE_MS));
        assert_eq!(patience(long, (STRANGERS_MAX / 2, STRANGERS_MAX)), long);
        assert_eq!(patience(long, (STRANGERS_MAX / 2 + 1, STRANGERS_MAX)), short);
        let shorter = Duration::from_millis(200);
        assert_eq!(patience(shorter, (STRANGERS_MAX, STRANGERS_MAX)), shorter, "what is set may be less");
    }

    #[test]
    fn the_page_says_the_numbers() {
        let page = include_str!("../../../docs/security.md").replace('\n', " ");
        let words = format!(
            "The scheduler keeps {STRANGERS_MAX} such connections beside its members', a server {STRANGERS_MAX} connections"
        );
        assert!(page.contains(&words), "docs/security.md does not say: {words}");
    }
}
