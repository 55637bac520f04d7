//! Errors sorted by whose fault it was, and the exit codes that processes end with. Libraries return
//! errors; only `main` turns one into an exit code.

use crate::ids::{MemberId, Role};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Whose fault an error is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Blame {
    /// The caller passed something that cannot be served: fix the call or the settings.
    Caller,
    /// A peer broke the protocol: it is refused and its connection closed.
    Peer,
    /// The environment: network, memory, a port in use.
    Environment,
    /// A member died or did not answer in time.
    Membership,
    /// A bug of ours.
    Internal,
}

/// Documented exit codes. One table for every process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ExitCode {
    /// Done.
    Ok = 0,
    /// Anything without a code of its own.
    Failure = 1,
    /// Bad command line.
    Usage = 2,
    /// A data, model or checkpoint file that cannot be used.
    BadData = 65,
    /// The scheduler cannot be reached, or was lost.
    SchedulerUnreachable = 69,
    /// A bug of ours.
    Internal = 70,
    /// A member of the cluster died.
    MemberDied = 71,
    /// A deadline passed.
    Deadline = 72,
    /// The cluster refused this process (wrong job, a worker too many, a version of its own).
    Refused = 73,
    /// Bind or other I/O failed.
    Io = 74,
    /// A transport that is required cannot be had, or memory cannot be registered for the one in use.
    Transport = 75,
    /// Bad settings.
    Config = 78,
}

impl ExitCode {
    /// Every code with the text that `--help` and the docs show.
    pub const TABLE: [(Self, &'static str); 12] = [
        (Self::Ok, "done"),
        (Self::Failure, "an error without a code of its own"),
        (Self::Usage, "bad command line"),
        (Self::BadData, "a data, model or checkpoint file that cannot be used"),
        (Self::SchedulerUnreachable, "the scheduler cannot be reached, or was lost"),
        (Self::Internal, "a bug of Gradwire"),
        (Self::MemberDied, "a member of the cluster died"),
        (Self::Deadline, "a deadline passed"),
        (Self::Refused, "the cluster refused this process"),
        (Self::Io, "bind or other I/O failed"),
        (Self::Transport, "a required transport, or memory for the one in use, cannot be had"),
        (Self::Config, "bad settings"),
    ];
}

/// Why a member is gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeathCause {
    /// Its control connection closed without a goodbye.
    ConnectionLost,
    /// It sent nothing for this long.
    Silent {
        /// Milliseconds since its last sign of life.
        silent_ms: u64,
    },
    /// With it went what nobody else has, or could be waited for no longer.
    Beyond {
        /// How it died.
        cause: Box<DeathCause>,
        /// What that means, and what to do.
        what: String,
    },
    /// It said that it failed.
    Failed {
        /// Its own words.
        reason: String,
    },
}

impl fmt::Display for DeathCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ConnectionLost => f.write_str("its control connection closed without a goodbye"),
            Self::Silent { silent_ms } => write!(f, "no sign of life for {silent_ms} ms"),
            Self::Beyond { cause, what } => write!(f, "{cause}; {what}"),
            Self::Failed { reason } => write!(f, "it failed: {reason}"),
        }
    }
}

/// A member that died, as every other process reports it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Death {
    /// Who.
    pub member: MemberId,
    /// Why.
    pub cause: DeathCause,
}

impl fmt::Display for Death {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cause {
            // What a member's own link to it says is a whole sentence.
            DeathCause::Failed { reason } if self.member.role == Role::Scheduler => f.write_str(reason),
            cause => write!(f, "{} died: {cause}", self.member),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Rank;

    #[test]
    fn a_lost_scheduler_is_said_in_the_words_of_its_link() {
        let death = |role, cause| Death { member: MemberId { role, rank: Rank(1) }, cause }.to_string();
        let failed = || DeathCause::Failed { reason: "the scheduler is lost".into() };
        assert_eq!(death(Role::Scheduler, failed()), "the scheduler is lost");
        assert_eq!(death(Role::Worker, failed()), "worker 1 died: it failed: the scheduler is lost");
        assert!(death(Role::Server, DeathCause::ConnectionLost).starts_with("server 1 died: its control"));
    }
}
