//! Who is blamed for the end of a job.

use proto_common::error::ExitCode;
use proto_common::ids::MemberId;

/// A failure that may be the first one.
#[derive(Debug)]
pub(super) struct Blame {
    pub(super) id: MemberId,
    /// Its host in a message, if it is another one.
    pub(super) on: String,
    pub(super) code: u8,
    pub(super) words: String,
    /// Its last lines of output.
    pub(super) tail: Vec<String>,
    /// False for a member that fell silent: its code is that of the processes that ended because of it.
    pub(super) has_ended: bool,
}

impl Blame {
    pub(super) fn new(id: MemberId, on: String, code: u8, words: String, tail: Vec<String>) -> Self {
        Self { id, on, code, words, tail, has_ended: true }
    }

    /// These codes report the failure of another process. Failures within a few milliseconds are observed in any order, so such a
    /// process is blamed only if no other failure is found.
    pub(super) fn is_echo(&self) -> bool {
        self.has_ended
            && [ExitCode::MemberDied as u8, ExitCode::SchedulerUnreachable as u8].contains(&self.code)
    }
}
