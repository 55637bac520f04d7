//! What people are to hear of the engine's last step, beside the messages that it sends: for the log and for counters. Nothing is
//! decided by it.

use super::Stopped;
use proto_common::error::Death;
use proto_common::ids::{MemberId, Rank};

/// Something that has happened.
#[derive(Clone, Debug, PartialEq)]
pub enum Note {
    /// A member died, whether the job goes on or not.
    Lost(Death),
    /// A member left in good order.
    Left(MemberId),
    /// These servers serve now what a dead one did.
    TakenOver {
        /// The dead one.
        from: Rank,
        /// Those that had copies.
        by: Vec<Rank>,
    },
    /// A server could not do what a decision asked of it.
    Refused {
        /// Its rank.
        server: Rank,
        /// In its words.
        reason: String,
        /// Copies that were being made and are given up for it.
        given_up: usize,
        /// How many of them are to be made elsewhere, or tried again.
        tried: usize,
    },
    /// A restarted scheduler waits for a majority of the members.
    NoQuorum {
        /// Those that have not come.
        missing: Vec<MemberId>,
    },
    /// No majority of the members is heard of: nothing is decided.
    Minority {
        /// Those that are silent.
        silent: Vec<MemberId>,
        /// The job ends on this side after so long.
        ends_ms: u64,
    },
    /// A checkpoint was given up, and why.
    CheckpointFailed(String),
    /// A checkpoint was not begun, because what is left of earlier ones cannot be removed.
    CheckpointsStopped {
        /// Its round.
        round: u64,
        /// What is left, and why.
        stopped: Stopped,
    },
}
