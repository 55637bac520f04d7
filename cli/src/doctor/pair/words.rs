//! What two doctors say to each other over a control connection. The visitor leads: for each trial it asks, and both
//! open one channel, tell its key, and use it. Bounded by the frames that carry them.

use proto_common::transport::{Driver, Offer};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Characters of a peer's own words that are shown.
const SHOWN_MAX: usize = 500;

/// A way between two processes that is tried by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Trial {
    Shm,
    Verbs,
    /// The tcp driver over a unix socket.
    Unix,
    /// The tcp driver over TCP.
    Tcp,
}

impl Trial {
    /// In the order in which they are tried.
    pub(super) const ALL: [Self; 4] = [Self::Shm, Self::Verbs, Self::Unix, Self::Tcp];

    pub(super) fn driver(self) -> Driver {
        match self {
            Self::Shm => Driver::Shm,
            Self::Verbs => Driver::Verbs,
            Self::Unix | Self::Tcp => Driver::Tcp,
        }
    }
}

impl fmt::Display for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Shm => "shm",
            Self::Verbs => "verbs",
            Self::Unix => "tcp (unix)",
            Self::Tcp => "tcp",
        })
    }
}

/// From the visitor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum ToListener {
    /// First message.
    Hello { protocol: u32, offer: Offer },
    /// Offer a channel for this.
    Try(Trial),
    /// Our end of it, by the key of the memory that the listener may write to; or why there is none.
    End(Result<u64, String>),
}

/// From the listener, each to one message of the visitor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum FromListener {
    Hello {
        protocol: u32,
        offer: Offer,
    },
    /// Driver bytes to connect to, or why there are none.
    Offer(Result<Vec<u8>, String>),
    /// As [`ToListener::End`].
    End(Result<u64, String>),
    /// The trial is over: what the listener saw of it.
    Done(Result<(), String>),
    /// Not this visitor.
    Refused(String),
}

/// A peer's words, fit for a terminal: one line of bounded length.
pub(in crate::doctor) fn tame(text: &str) -> String {
    text.chars().take(SHOWN_MAX).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

proto_common::control_messages!(FromListener, ToListener);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_s_words_cannot_move_the_cursor_or_flood_the_screen() {
        assert_eq!(tame("a\x1b[2Jb\nc"), "a [2Jb c");
        assert_eq!(tame(&"x".repeat(10_000)).len(), SHOWN_MAX);
    }
}
