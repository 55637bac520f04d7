//! What two doctors say to each other over a control connection. The visitor leads: for each trial it asks, and both
//! open one channel, tell its key, and use it. Bounded by the frames that carry them.

use proto_common::transport::{Driver, Offer};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Characters of a peer's own words that are shown.
const SHOWN_MAX: usize = 500;

/// A way between two processes that is tried by itself: a driver, which over sockets is tried with both kinds of them. In messages
/// it is a place among [`Trial::all`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub(super) struct Trial {
    pub(super) driver: Driver,
    /// Over a unix socket.
    pub(super) is_unix: bool,
}

impl Trial {
    /// In the order in which they are tried.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        Driver::ALL.into_iter().flat_map(|driver| {
            let unix = driver.uses_sockets().then_some(Self { driver, is_unix: true });
            unix.into_iter().chain([Self { driver, is_unix: false }])
        })
    }

    /// Packets pass a network, with its firewalls.
    pub(super) fn is_over_network(self) -> bool {
        !self.driver.shares_memory() && !self.is_unix
    }
}

impl From<Trial> for u32 {
    fn from(trial: Trial) -> Self {
        // Invariant: `all` has each trial, and there are few.
        Trial::all().position(|each| each == trial).unwrap_or_default() as Self
    }
}

impl TryFrom<u32> for Trial {
    type Error = String;

    fn try_from(place: u32) -> Result<Self, String> {
        Self::all().nth(place as usize).ok_or_else(|| format!("there is no trial {place}"))
    }
}

impl fmt::Display for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_unix { " (unix)" } else { "" };
        f.pad(&format!("{}{kind}", self.driver))
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
    fn the_numbers_of_trials_are_frozen() {
        let names: Vec<_> = Trial::all().map(|trial| trial.to_string()).collect();
        assert_eq!(names[..4], ["shm", "verbs", "tcp (unix)", "tcp"]);
        for (place, trial) in (0..).zip(Trial::all()) {
            assert_eq!((u32::from(trial), Trial::try_from(place)), (place, Ok(trial)));
        }
        assert!(Trial::try_from(names.len() as u32).is_err());
    }

    #[test]
    fn a_peer_s_words_cannot_move_the_cursor_or_flood_the_screen() {
        assert_eq!(tame("a\x1b[2Jb\nc"), "a [2Jb c");
        assert_eq!(tame(&"x".repeat(10_000)).len(), SHOWN_MAX);
    }
}
