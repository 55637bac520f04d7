//! What comes out of the engine: commands for the runtime, notes for people, and how the job ends. It must not know the engine's state.

use super::checkpoints::{Clearing, Completed, Stopped, Unusable};
use super::member::ConnectionId;
use proto_common::config::SettingError;
use proto_common::error::Death;
use proto_common::ids::{MemberId, Rank};
use proto_common::message::{FromScheduler, RefusalReason};
use std::fmt;

/// What the runtime is to do.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "a name that says it all needs no sentence")]
pub enum Command {
    /// Send one message to some connections.
    Send { to: Vec<ConnectionId>, message: Box<FromScheduler> },
    /// Close a connection when everything sent to it is written. Whatever it still says does not count, and
    /// no `Closed` follows.
    Close { connection: ConnectionId },
    /// All parts of a checkpoint are there: write its manifest. Answered by `Input::ManifestWritten`.
    WriteManifest(Box<Completed>),
    /// Remove what was left of incomplete checkpoints, in the order of these and of manifests. Answered by `Input::ClearedAway`
    /// where it is of one that was given up.
    ClearAway(Clearing),
    /// The job is over; nothing follows.
    End(Outcome),
}

/// How the job ended.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "a name that says it all needs no sentence")]
pub enum Outcome {
    /// In good order.
    Done { reason: String },
    /// A member died.
    Died(Death),
    /// Members did not come in time.
    Incomplete { waited_ms: u64, missing: Vec<MemberId> },
    /// Members of a job that runs were started with another setting, which its data depends on. Nobody was told to end.
    Misconfigured(SettingError),
    /// The checkpoint to begin from cannot be used.
    Unusable(Unusable),
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done { reason } => f.write_str(reason),
            Self::Died(death) => death.fmt(f),
            Self::Misconfigured(error) => error.fmt(f),
            Self::Unusable(unusable) => f.write_str(&unusable.reason),
            Self::Incomplete { waited_ms, missing } => {
                let (waited_ms, missing) = (*waited_ms, missing.clone());
                RefusalReason::Incomplete { waited_ms, missing }.fmt(f)
            }
        }
    }
}

/// Confirms a goodbye; nothing follows.
pub(super) fn let_go(connection: ConnectionId) -> [Command; 2] {
    [send(connection, FromScheduler::GoodbyeAck), Command::Close { connection }]
}

pub(super) fn send(to: ConnectionId, message: FromScheduler) -> Command {
    send_to(vec![to], message)
}

pub(super) fn send_to(to: Vec<ConnectionId>, message: FromScheduler) -> Command {
    Command::Send { to, message: Box::new(message) }
}

pub(super) fn refuse(connection: ConnectionId, reason: RefusalReason, out: &mut Vec<Command>) {
    out.push(send(connection, FromScheduler::Refused(reason)));
    out.push(Command::Close { connection });
}

/// The longest that a barrier or a declaration waits, in milliseconds: a day.
pub(super) const TIMEOUT_MS_MAX: u64 = 24 * 3600 * 1000;

/// When a wait that begins now is over, as far as its asker may choose.
pub(super) fn deadline_ms(now_ms: u64, timeout_ms: u64) -> u64 {
    now_ms + timeout_ms.clamp(1, TIMEOUT_MS_MAX)
}

/// What people are to hear of a step, beside the messages that the engine sends: for the log and for counters. Nothing is decided
/// by it.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "a name that says it all needs no sentence")]
pub enum Note {
    /// A member died, whether the job goes on or not.
    Lost(Death),
    /// A member left in good order.
    Left(MemberId),
    /// Servers that had copies serve now what a dead one did.
    TakenOver { from: Rank, by: Vec<Rank> },
    /// A server could not do what a decision asked of it.
    Refused {
        server: Rank,
        reason: String,
        /// Copies that were being made and are given up for it.
        given_up: usize,
        /// How many of them are to be made elsewhere, or tried again.
        tried: usize,
    },
    /// A restarted scheduler waits for a majority of the members.
    NoQuorum { missing: Vec<MemberId> },
    /// No majority of the members is heard of: nothing is decided, and the job ends on this side after `ends_ms`.
    Minority { silent: Vec<MemberId>, ends_ms: u64 },
    /// A checkpoint was given up, and why.
    CheckpointFailed(String),
    /// A checkpoint was not begun, because what is left of earlier ones cannot be removed.
    CheckpointsStopped { round: u64, stopped: Stopped },
}
