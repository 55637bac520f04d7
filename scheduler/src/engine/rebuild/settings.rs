//! A scheduler that is started with other settings than the one before it: members show what they were told, and what data
//! depends on must be the same. It tells no member to end: they wait for one with the right settings.

use super::super::{Command, ConnectionId, Engine, Outcome, refuse};
use proto_common::config::SettingError;
use proto_common::message::{ClusterShape, RefusalReason};

/// What those hear who came anew to a scheduler that cannot go on.
pub(in super::super) fn later(error: &SettingError) -> RefusalReason {
    RefusalReason::Later(format!(
        "the scheduler is ending ({error}); restart this process when the next scheduler is running"
    ))
}

impl Engine {
    /// What is wrong in this scheduler's settings, for members that were told this shape.
    pub(super) fn conflict(&self, told: &ClusterShape) -> Option<SettingError> {
        let (key, value, theirs) = self.config.shape.conflict(told)?;
        let fix = format!(
            "members of the running job were started with {theirs}: restart the scheduler with the same value within their \
             deadlines.scheduler_ms, or stop these members first to start another job"
        );
        Some(SettingError { key, value, fix })
    }

    /// A member has come that was told other settings.
    pub(super) fn end_misconfigured(
        &mut self,
        now_ms: u64,
        from: ConnectionId,
        wrong: SettingError,
        out: &mut Vec<Command>,
    ) {
        // One that slept has told its members its settings itself: whoever shows others is none of them.
        if self.changes.rosters > 0 {
            let reason = format!("it has the settings of another job: {wrong}");
            return refuse(from, RefusalReason::Misplaced(reason), out);
        }
        self.rebuild.arrivals.clear();
        for (_, member) in std::mem::take(&mut self.rebuild.early) {
            refuse(member.connection, later(&wrong), out);
        }
        self.end(now_ms, Outcome::Misconfigured(wrong), out);
    }
}
