//! Why a call to a server's handler failed.

use crate::subject::ranks;
use proto_common::batch::Status;
use proto_common::call::CALLS_IN_FLIGHT_MAX;
use proto_common::error::ExitCode;
use proto_common::ids::Rank;
use thiserror::Error;

/// What went wrong with a call.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CallFault {
    /// Nobody registered the handler.
    #[error(
        "the server has no such handler. Register it at the server before the call's deadline, or check the server's log for a panic in it."
    )]
    NoHandler,
    /// The handler did not answer in time.
    #[error(
        "the handler did not answer before the call's deadline. Check what the handler does, or give the call more time."
    )]
    Deadline,
    /// The server's data path did not say anything.
    #[error(
        "the server has not answered. It is alive according to the scheduler, so its data path is stuck or slow: check its log, or raise deadlines.operation_ms."
    )]
    NoAnswer,
    /// The server failed, and the request or its answer was lost. In a job with replicas (`cluster.replicas`), calls wait for the next
    /// process of the server. They fail with this if none came before their deadline, or if an earlier process may have handled
    /// the request and no journal of the handler is kept.
    #[error(
        "the server crashed or left before it answered, and its handler may or may not have received the request. Call another server, or retry after the server has restarted."
    )]
    ServerDied,
    /// The server failed, and the server with the journal of its handler failed, too.
    #[error(
        "the state of the handler is lost: its server failed, and the server with the handler's journal failed, too, before another server had a copy of the journal. Start the job again."
    )]
    StateLost,
    /// The handler dropped the request without an answer.
    #[error(
        "the handler dropped the request without an answer, or the answer was lost with a broken channel. Check the server's log."
    )]
    NoReply,
    /// The body is longer than the server keeps.
    #[error(
        "the body has {bytes} bytes, which is more than the server accepts. Send it in parts, or raise memory.call_bytes of the server."
    )]
    TooLong {
        /// Its bytes.
        bytes: u64,
    },
    /// The server has not taken it, because requests and replies of other calls occupy its memory.
    #[error(
        "the server has no room for it, because requests and replies of other calls occupy memory.call_bytes. Check whether a handler holds them (`gradwire status`), or raise memory.call_bytes of the server."
    )]
    Crowded,
    /// The server has no memory for the body or the reply.
    #[error(
        "the server has no memory for the body or the reply, or cannot register it; its log says which. Raise memory.call_bytes or the memlock limit of the server, or answer in parts."
    )]
    NoMemory,
    /// This client has no memory for the reply.
    #[error(
        "the reply has {bytes} bytes, and this client has no memory for it. Drop buffers, or raise memory.pool_bytes."
    )]
    NoRoom {
        /// Its bytes.
        bytes: u64,
    },
    /// Too many earlier calls to the handler are in flight.
    #[error(
        "{CALLS_IN_FLIGHT_MAX} earlier calls to this handler are in flight, and the oldest one did not end within the call's time limit. Check what the handler does, or give the call more time."
    )]
    LineFull,
    /// This client has no memory for the request and its reply, and none came back within the call's time limit.
    #[error(
        "no memory came back to the pool: {pool}. The call waits for earlier operations of this client: {}.",
        ranks("server", servers, "none is in flight, so the program holds its buffers or replies")
    )]
    PoolFull {
        /// What is in use.
        pool: fabric::PoolError,
        /// Servers that have not answered earlier operations.
        servers: Vec<Rank>,
    },
    /// The server refused it.
    #[error("the server refused the call ({0:?})")]
    Refused(Status),
}

impl CallFault {
    /// The exit code of a program that this ends.
    pub(crate) fn exit_code(&self) -> ExitCode {
        match self {
            Self::NoHandler
            | Self::Deadline
            | Self::NoAnswer
            | Self::Crowded
            | Self::LineFull
            | Self::PoolFull { .. } => ExitCode::Deadline,
            Self::ServerDied | Self::StateLost => ExitCode::MemberDied,
            _ => ExitCode::Failure,
        }
    }
}
