//! How a member's link to the scheduler can fail, with the exit code each failure ends a process with.

use super::connect::ConnectError;
use super::frame::FrameError;
use crate::security::Fault;
use proto_common::error::ExitCode;
use proto_common::ids::JobId;
use proto_common::message::{CodecError, RefusalReason};
use std::sync::Arc;
use thiserror::Error;

/// The link to the scheduler could not be made, or is of no more use. Cheap to clone: every waiting caller
/// gets the same one.
#[derive(Clone, Debug, Error)]
#[expect(missing_docs, reason = "a name that says it all needs no sentence")]
pub enum LinkError {
    /// It cannot be reached.
    #[error("the scheduler is unreachable: {0}")]
    Unreachable(Arc<ConnectError>),
    /// It was reached and did not answer the registration.
    #[error("the scheduler at {address} did not answer the registration: {cause}{}", asked_of(cause))]
    NoAnswer { address: String, cause: Arc<FrameError> },
    /// One of the two does not trust the other.
    #[error("no trusted connection to the scheduler at {address}: {fault}")]
    Untrusted { address: String, fault: Fault },
    /// It refused this process.
    #[error("the scheduler refused this process: {0}")]
    Refused(RefusalReason),
    /// It closed the connection without a word: it died.
    #[error("lost the scheduler: its control connection closed; check its log")]
    Closed,
    /// It says nothing any more.
    #[error("lost the scheduler: no heartbeat for {silent_ms} ms; check its host and the network")]
    Silent { silent_ms: u64 },
    /// It sends decisions and does not say that they are in force.
    #[error(
        "lost the scheduler: too many of its decisions wait for a majority of the members; check the network"
    )]
    Undecided,
    /// The connection failed.
    #[error("lost the scheduler: {0}")]
    Broken(Arc<FrameError>),
    /// It is lost, and none came in its place.
    #[error("{lost}; no scheduler answered within {waited_ms} ms (deadlines.scheduler_ms): {last}")]
    NotBack { waited_ms: u64, lost: Box<LinkError>, last: Box<LinkError> },
    /// Another scheduler is in its place: an older one, or one of another job.
    #[error(
        "two schedulers are running: the scheduler at {address} has job {job} and term {term}, but this process already follows term {known}; stop the scheduler at {address}"
    )]
    Deposed { address: String, job: JobId, term: u32, known: u32 },
    /// The next scheduler has confirmed the goodbye that the one before had heard.
    #[error("the scheduler has confirmed that this member left")]
    MayGo,
    /// The message to send is too large.
    #[error(transparent)]
    Message(#[from] CodecError),
}

/// What to look at, where the cause does not say it.
fn asked_of(cause: &FrameError) -> &'static str {
    match cause {
        FrameError::TooLong { .. } | FrameError::HttpService | FrameError::HttpClient => "",
        _ => "; is a Gradwire scheduler listening there?",
    }
}

impl LinkError {
    /// Did the connection end before it was answered? Then its scheduler may have died, and the next one may come.
    pub(super) fn is_cut(&self) -> bool {
        let Self::NoAnswer { cause, .. } = self else { return false };
        match &**cause {
            FrameError::Cut { .. } => true,
            FrameError::Io(error) => {
                use std::io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
                matches!(error.kind(), ConnectionReset | ConnectionAborted | BrokenPipe | UnexpectedEof)
            }
            _ => false,
        }
    }

    /// The exit code of a process that ends because of this.
    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Refused(reason) => code_of_refusal(reason),
            Self::Untrusted { .. } => ExitCode::Refused,
            Self::Message(_) => ExitCode::Failure,
            Self::Unreachable(_) | Self::NoAnswer { .. } => ExitCode::SchedulerUnreachable,
            Self::NotBack { .. } | Self::Deposed { .. } => ExitCode::SchedulerUnreachable,
            Self::Closed | Self::Silent { .. } | Self::Undecided | Self::Broken(_) | Self::MayGo => {
                ExitCode::SchedulerUnreachable
            }
        }
    }
}

/// The exit code of a process that the scheduler refused.
#[must_use]
pub fn code_of_refusal(reason: &RefusalReason) -> ExitCode {
    match reason {
        RefusalReason::Incomplete { .. } => ExitCode::Deadline,
        // Whoever starts processes may start it again.
        RefusalReason::Later(_) => ExitCode::SchedulerUnreachable,
        RefusalReason::Protocol { .. }
        | RefusalReason::Job { .. }
        | RefusalReason::Full { .. }
        | RefusalReason::RankTaken { .. }
        | RefusalReason::Occupied { .. }
        | RefusalReason::Certificate(_)
        | RefusalReason::Misplaced(_) => ExitCode::Refused,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_behind_a_wrong_port_is_asked_once_at_most() {
        let told = |cause| LinkError::NoAnswer { address: "a:1".into(), cause: Arc::new(cause) }.to_string();
        let http = told(FrameError::HttpService);
        assert!(http.contains("not a control port") && !http.contains('?'), "{http}");
        let other = told(FrameError::TooLong { announced: 1 << 30, limit: 1 });
        assert_eq!(other.matches('?').count(), 1, "{other}");
        let silent = told(FrameError::Deadline { waited_ms: 1 });
        assert!(silent.ends_with("; is a Gradwire scheduler listening there?"), "{silent}");
    }
}
