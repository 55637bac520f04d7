//! Connections of processes that are not members: which messages are accepted on them, and the state of each connection. Every answer
//! closes the connection. It must not decide which process becomes a member: `registration` does.

use super::super::{Command, ConnectionId, Engine, refuse, send};
use super::name_of;

/// What a process hears that others have gone on without.
const DECLARED_DEAD: &str = "this process was declared failed (no heartbeat for deadlines.silence_ms, or its connection broke): start it as a new process";
use proto_common::ids::Incarnation;
use proto_common::message::{FromScheduler, RefusalReason, ToScheduler};

/// How far a connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// It is nobody's.
    Stranger,
    /// It has registered, or asked for a checkpoint, and is answered when a deadline of the engine has passed, at the latest.
    Waiting,
    /// It is a member's, or one's that says what it knows as a member of before.
    Member,
}

impl Engine {
    /// How far a connection has come.
    #[must_use]
    pub fn standing(&self, connection: ConnectionId) -> Standing {
        if self.member_of(connection).is_some()
            || self.rebuild.was_let_in(connection)
            || self.is_leaving(connection)
            || self.quorum.has_refused(connection)
        {
            Standing::Member
        } else if self.rebuild.knows(connection) || self.checkpoints.is_awaited_by(connection) {
            Standing::Waiting
        } else {
            Standing::Stranger
        }
    }

    /// Refuses a process that was declared failed. It says goodbye, because until it has exited it counts for majorities. Scenario: so many
    /// of a roster are refused that the others are no majority of it, and nothing would be decided any more.
    pub(super) fn refuse_dead(
        &mut self,
        now_ms: u64,
        connection: ConnectionId,
        life: Incarnation,
        out: &mut Vec<Command>,
    ) {
        out.push(send(connection, FromScheduler::Refused(RefusalReason::Misplaced(DECLARED_DEAD.into()))));
        self.quorum.refuse(connection, life, now_ms.saturating_add(self.config.shape.silence_ms));
    }

    /// Does this connection wait for the scheduler, although it is no member's?
    fn is_heard(&self, connection: ConnectionId) -> bool {
        self.rebuild.knows(connection) || self.is_leaving(connection)
    }

    /// Somebody who is no member says something.
    pub(super) fn stranger(
        &mut self,
        now_ms: u64,
        from: ConnectionId,
        message: ToScheduler,
        out: &mut Vec<Command>,
    ) {
        if self.quorum.has_refused(from) {
            if matches!(message, ToScheduler::Goodbye) {
                self.quorum.refused_exits(from);
                out.push(Command::Close { connection: from });
            }
            // What it knows as a member may have been on its way.
            return;
        }
        if self.checkpoints.is_awaited_by(from) {
            self.checkpoints.forget(from);
            let name = name_of(&message);
            let reason =
                format!("received {name} while a checkpoint was requested; use one connection for each");
            return refuse(from, RefusalReason::Misplaced(reason), out);
        }
        match message {
            ToScheduler::Register(register) if !self.rebuild.knows(from) => {
                self.register(now_ms, from, register, out);
            }
            ToScheduler::Resuming { part, last } => self.resuming(now_ms, from, part, last, out),
            ToScheduler::Heard { epoch } if self.rebuild.knows(from) => self.voted(now_ms, from, epoch, out),
            // A process that was let in before it was known that there is a cluster, and a member whose goodbye is not answered yet, take
            // silence for a failure of this scheduler.
            ToScheduler::Heartbeat(_) if self.is_heard(from) => {
                out.push(send(from, FromScheduler::HeartbeatAck));
            }
            // Nothing else counts before a process is let in, or after a goodbye.
            _ if self.is_heard(from) => {}
            ToScheduler::OrderCheckpoint { protocol, timeout_ms } => {
                self.order_checkpoint(now_ms, from, (protocol, timeout_ms), out);
            }
            ToScheduler::Identify => {
                let (job, term, pid) = (self.config.job, self.epoch.term, self.config.pid);
                let age_ms = now_ms.saturating_sub(self.started_ms);
                refuse(from, RefusalReason::Occupied { job, term, pid, age_ms }, out);
            }
            other => {
                let reason = format!("received {} before a registration; register first", name_of(&other));
                refuse(from, RefusalReason::Misplaced(reason), out);
            }
        }
    }
}
