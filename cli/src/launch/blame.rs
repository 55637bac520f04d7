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
    /// The scheduler had ended the job before, or because of another member whose process has not ended yet.
    pub(super) is_effect: bool,
}

/// The member that failed first, where its process still runs.
#[derive(Debug)]
pub(super) enum First {
    /// It is only known to be silent.
    Silent(Blame),
    /// It is about to end.
    Ends,
}

impl Blame {
    pub(super) fn new(id: MemberId, on: String, code: u8, words: String, tail: Vec<String>) -> Self {
        Self { id, on, code, words, tail, has_ended: true, is_effect: false }
    }

    /// Its failure is the effect of another one, by its code or by what the scheduler says. Failures within a few milliseconds are
    /// observed in any order, so such a process is blamed only if no other failure is found.
    pub(super) fn is_echo(&self) -> bool {
        self.is_effect || self.reports_another()
    }

    /// Its code reports the failure of another process.
    pub(super) fn reports_another(&self) -> bool {
        self.has_ended && reports_another(self.code)
    }
}

/// Does a process with this exit code report the failure of another one?
pub(super) fn reports_another(code: u8) -> bool {
    [ExitCode::MemberDied as u8, ExitCode::SchedulerUnreachable as u8].contains(&code)
}

/// What the scheduler says of the member that ended the job, in its last lines. Its log may repeat other texts with errors.
fn named(scheduler_said: &[String]) -> Option<&str> {
    let mut errors =
        scheduler_said.iter().filter_map(|line| line.strip_prefix("gradwire-scheduler: error: "));
    errors.find(|error| error.contains(" failed: "))
}

/// The failure of the member that the scheduler names.
fn named_in(blames: &[Blame], scheduler_said: &[String]) -> Option<usize> {
    let error = named(scheduler_said)?;
    blames.iter().position(|blame| error.starts_with(&format!("{} failed: ", blame.id)))
}

/// The failure that certainly came first: that of the member that the scheduler names in its last lines, or, if it names no member,
/// a failure that is not the effect of another one.
pub(super) fn first_of(suspects: &[Blame], scheduler_said: &[String]) -> Option<usize> {
    match named(scheduler_said) {
        Some(_) => named_in(suspects, scheduler_said),
        None => suspects.iter().position(|blame| !blame.is_echo()),
    }
}

/// The failure to blame at the end, if there is any. `lost`: failures that the job had survived at first.
pub(super) fn most_likely(
    mut suspects: Vec<Blame>,
    lost: &mut Vec<Blame>,
    scheduler_said: &[String],
) -> Option<Blame> {
    if suspects.is_empty() {
        return None;
    }
    let named = named_in(lost, scheduler_said);
    let of_own = || suspects.iter().position(|blame| !blame.reports_another()).filter(|_| named.is_none());
    let first = first_of(&suspects, scheduler_said);
    let first = first.or_else(|| suspects.iter().position(|blame| !blame.is_echo())).or_else(of_own);
    Some(match first {
        Some(at) => suspects.swap_remove(at),
        // If only echoes are left, the cause is a failure that the job had survived at first.
        None if !lost.is_empty() => lost.remove(named.unwrap_or(0)),
        None => suspects.swap_remove(0),
    })
}
