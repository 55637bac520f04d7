//! Classes of errors by their origin, and the exit codes of processes. Libraries return errors; only `main` turns one into
//! an exit code.

use crate::ids::{MemberId, Role};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The origin of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Blame {
    /// The caller passed an invalid argument or setting: fix the call or the settings.
    Caller,
    /// A peer violated the protocol: its connection is closed.
    Peer,
    /// The environment: network, memory, a port in use.
    Environment,
    /// A member failed or did not answer in time.
    Membership,
    /// A bug in Gradwire.
    Internal,
}

/// Documented exit codes, the same for every program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ExitCode {
    /// Success.
    Ok = 0,
    /// An error without a specific code.
    Failure = 1,
    /// Invalid command line.
    Usage = 2,
    /// A data, model or checkpoint file is missing or damaged.
    BadData = 65,
    /// The scheduler is unreachable.
    SchedulerUnreachable = 69,
    /// A bug in Gradwire.
    Internal = 70,
    /// A member of the cluster failed.
    MemberDied = 71,
    /// An operation timed out.
    Deadline = 72,
    /// The cluster refused this process (wrong job, too many workers, another version).
    Refused = 73,
    /// An I/O error, such as a port that is in use.
    Io = 74,
    /// A required transport is unavailable, or memory cannot be registered with the device in use, or `ulimit -v` is too low.
    Transport = 75,
    /// Invalid settings.
    Config = 78,
}

impl ExitCode {
    /// Every code with the text that `--help` and the documentation show.
    pub const TABLE: [(Self, &'static str); 12] = [
        (Self::Ok, "done"),
        (Self::Failure, "an error without a specific code"),
        (Self::Usage, "invalid command line"),
        (Self::BadData, "a data, model or checkpoint file is missing or damaged"),
        (Self::SchedulerUnreachable, "the scheduler is unreachable"),
        (Self::Internal, "a bug in Gradwire"),
        (Self::MemberDied, "a member of the cluster failed"),
        (Self::Deadline, "an operation timed out"),
        (Self::Refused, "the cluster refused this process"),
        (Self::Io, "an I/O error, such as a port that is in use"),
        (
            Self::Transport,
            "a required transport is unavailable, or memory cannot be registered or mapped for it",
        ),
        (Self::Config, "invalid settings"),
    ];
}

/// Why a member failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeathCause {
    /// Its control connection closed before it had left the job.
    ConnectionLost,
    /// It sent nothing for longer than `deadlines.silence_ms`.
    Silent {
        /// Milliseconds since its last message.
        silent_ms: u64,
    },
    /// The cluster cannot continue without it: its state is lost, or the wait for it ended.
    Beyond {
        /// How it failed.
        cause: Box<DeathCause>,
        /// The consequence, and what to do.
        what: String,
    },
    /// It reported a failure.
    Failed {
        /// The reason that it reported.
        reason: String,
    },
}

impl DeathCause {
    /// Is it only known that the member sent nothing? Then its process may still run.
    #[must_use]
    pub fn is_silence(&self) -> bool {
        match self {
            Self::Silent { .. } => true,
            Self::Beyond { cause, .. } => cause.is_silence(),
            Self::ConnectionLost | Self::Failed { .. } => false,
        }
    }
}

impl fmt::Display for DeathCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ConnectionLost => f.write_str("its control connection closed unexpectedly"),
            Self::Silent { silent_ms } => write!(f, "no heartbeat for {silent_ms} ms"),
            Self::Beyond { cause, what } => write!(f, "{cause}; {what}"),
            Self::Failed { reason } => write!(f, "it reported: {reason}"),
        }
    }
}

/// A failed member, as every other process reports it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Death {
    /// Who.
    pub member: MemberId,
    /// Why.
    pub cause: DeathCause,
}

impl Death {
    /// What a process that ends because of it exits with. Losing the scheduler has a code of its own.
    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        match self.member.role {
            Role::Scheduler => ExitCode::SchedulerUnreachable,
            Role::Server | Role::Worker => ExitCode::MemberDied,
        }
    }
}

impl fmt::Display for Death {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cause {
            // What a member's own link to it says is a whole sentence.
            DeathCause::Failed { reason } if self.member.role == Role::Scheduler => f.write_str(reason),
            cause => write!(f, "{} failed: {cause}", self.member),
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
        assert_eq!(death(Role::Worker, failed()), "worker 1 failed: it reported: the scheduler is lost");
        assert!(death(Role::Server, DeathCause::ConnectionLost).starts_with("server 1 failed: its control"));
    }
}
