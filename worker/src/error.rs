//! What a trainer can be told went wrong, by blame: its own call, the cluster's state, the environment.

use daemon::security::SecurityError;
use fabric::FabricError;
use proto_common::batch::Status;
use proto_common::config::SettingError;
use proto_common::error::{Blame, Death, ExitCode};
use proto_common::ids::{ChunkId, Key, MemberId, Rank, Version};
use proto_common::message::{DeclareError, SaveError, WaitError};
use thiserror::Error;

/// An operation that did not end well.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum OpError {
    /// The round did not complete in time.
    #[error("tensor {}: round {round} did not complete within {waited_ms} ms, workers that did not contribute: {}; look at their logs and at `gradwire status` (stuck, slower than the others, or not pushing to this tensor), or raise deadlines.operation_ms", chunk.key, ranks(missing))]
    Deadline {
        /// A chunk of the tensor.
        chunk: ChunkId,
        /// The round that was being collected.
        round: u64,
        /// How long the operation waited.
        waited_ms: u64,
        /// Workers that did not contribute (the first few).
        missing: Vec<Rank>,
    },
    /// The round is complete, but its weights found no place in time.
    #[error("tensor {}: round {round} is complete, but could not be published within {waited_ms} ms, because workers {} still read older weights; look whether they are stopped or their network is stuck (`gradwire status`), or raise deadlines.operation_ms", chunk.key, ranks(readers))]
    StillRead {
        /// A chunk of the tensor.
        chunk: ChunkId,
        /// The round.
        round: u64,
        /// How long the operation waited.
        waited_ms: u64,
        /// Workers whose landings are under way (the first few).
        readers: Vec<Rank>,
    },
    /// The round is complete, but a server did not confirm its copy in time.
    #[error("tensor {}: round {round} is complete, but servers {} did not confirm their copies of it within {waited_ms} ms; look at their logs and at `gradwire status` (stopped, stuck, or cut off from the server that serves it), or raise deadlines.operation_ms", chunk.key, ranks(servers))]
    Uncopied {
        /// A chunk of the tensor.
        chunk: ChunkId,
        /// The round.
        round: u64,
        /// How long the operation waited.
        waited_ms: u64,
        /// Servers with copies that are waited for (the first few).
        servers: Vec<Rank>,
    },
    /// The round is complete, but the one before it was not copied for a checkpoint in time.
    #[error("tensor {}: round {round} is complete, but the server could not copy the one before it for a checkpoint within {waited_ms} ms; look at the disk under checkpoint.directory and at `gradwire why`, raise checkpoint.memory_bytes, write checkpoints less often (checkpoint.every_rounds), or raise deadlines.operation_ms", chunk.key)]
    Unsaved {
        /// A chunk of the tensor.
        chunk: ChunkId,
        /// The round.
        round: u64,
        /// How long the operation waited.
        waited_ms: u64,
    },
    /// A bounded tensor's slowest workers did not catch up in time.
    #[error("tensor {}: this worker has made {made} contributions, and workers {} did not come within the tensor's bound of that in {waited_ms} ms; look at their logs and at `gradwire status` (stuck, slower than the others, or ended before them), raise the bound, or raise deadlines.operation_ms", chunk.key, ranks(behind))]
    Behind {
        /// A chunk of the tensor.
        chunk: ChunkId,
        /// This worker's contributions to the tensor when it asked.
        made: u64,
        /// How long the operation waited.
        waited_ms: u64,
        /// Workers that are too far behind (the first few).
        behind: Vec<Rank>,
    },
    /// Servers did not answer at all.
    #[error(
        "tensor {key}: no answer from server {} within {waited_ms} ms; it is alive for the scheduler but its data path is stuck or slow: look at its log, try the way to it with `gradwire doctor`, or raise deadlines.operation_ms",
        ranks(servers)
    )]
    NoAnswer {
        /// The tensor.
        key: Key,
        /// Servers that owe an answer.
        servers: Vec<Rank>,
        /// How long the operation waited.
        waited_ms: u64,
    },
    /// The server that the shard map names does not serve the chunk.
    #[error("tensor {} chunk {}: server {server} did not take the chunk over within {waited_ms} ms, though the shard map names it; look at its log and at the scheduler's, or raise deadlines.operation_ms", chunk.key, chunk.chunk)]
    Elsewhere {
        /// The chunk.
        chunk: ChunkId,
        /// Who was to have it.
        server: Rank,
        /// How long the operation waited.
        waited_ms: u64,
    },
    /// There is no channel to the servers that the operation waits for.
    #[error(
        "tensor {key}: no channel to server {} within {waited_ms} ms, and no other server had taken over what it serves; look at its log and at the scheduler's, try the way to it with `gradwire doctor`, or raise deadlines.operation_ms",
        ranks(servers)
    )]
    Unconnected {
        /// The tensor.
        key: Key,
        /// The servers.
        servers: Vec<Rank>,
        /// How long the operation waited.
        waited_ms: u64,
    },
    /// A member died; nobody can go on without it.
    #[error("{0}")]
    Died(Death),
    /// The scheduler decided that this worker is dead, and it lives.
    #[error(
        "the scheduler has declared this worker dead (epoch {epoch}): it was silent for deadlines.silence_ms, or its control connection broke; look whether its host was stopped or overloaded, and start it again"
    )]
    Deposed {
        /// Since when.
        epoch: proto_common::ids::Epoch,
    },
    /// The data channel to a server broke, and the scheduler does not know of a death yet.
    #[error(
        "the data channel to server {server} broke: {reason}; look at that server's log, and try the way to it with `gradwire doctor`"
    )]
    Broken {
        /// The server.
        server: Rank,
        /// What the channel said.
        reason: String,
    },
    /// What it sends, or is to be sent, cannot be registered with the RDMA device.
    #[error("{0}")]
    Unregistered(String),
    /// The round's value does not fit the tensor's type. All who contributed are told; the next round works.
    #[error(
        "tensor {} chunk {}: the sum of round {round}, or the weights with it, do not fit {dtype}, and this chunk keeps the weights of the round before; contribute smaller values, or declare the tensor with a wider type", chunk.key, chunk.chunk
    )]
    BadValue {
        /// The chunk.
        chunk: ChunkId,
        /// The round.
        round: u64,
        /// The tensor's type.
        dtype: proto_common::element::Dtype,
    },
    /// One version exactly was asked for, and newer ones have taken its place.
    #[error("tensor {} chunk {}: version {wanted} is not there any more, {version} is in force; servers keep the version before only where workers are waited for (cluster.worker_loss = \"wait\"), and no older one: pull the newest", chunk.key, chunk.chunk)]
    VersionGone {
        /// The chunk.
        chunk: ChunkId,
        /// The version asked for.
        wanted: u64,
        /// The one in force.
        version: u64,
    },
    /// Two servers were lost in the time in which a copy was made.
    #[error(
        "tensor {}: server {server} took over while its copy was being made: it has chunk {} at round {version} and others at another one, and what is between them is lost; start the job again from its last checkpoint (checkpoint.restore = \"latest\")",
        chunk.key, chunk.chunk
    )]
    Torn {
        /// The chunk.
        chunk: ChunkId,
        /// The server.
        server: Rank,
        /// The round that it has.
        version: u64,
    },
    /// The server refused the operation.
    #[error("tensor {} chunk {}: server {server} refused the operation ({status:?}); its log names the reason: run the same release everywhere, and declare the tensor alike on all workers", chunk.key, chunk.chunk)]
    Refused {
        /// The chunk.
        chunk: ChunkId,
        /// The server.
        server: Rank,
        /// Its reason.
        status: Status,
    },
    /// A call did not end well.
    #[error("call to handler {app} at server {server}, after {waited_ms} ms: {fault}")]
    Call {
        /// The handler.
        app: u32,
        /// The server.
        server: Rank,
        /// How long the call waited.
        waited_ms: u64,
        /// What went wrong.
        fault: CallFault,
    },
    /// The client was closed.
    #[error("the client is closed: {0}")]
    Closed(String),
}

/// What went wrong with a call.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CallFault {
    /// Nobody registered the handler.
    #[error(
        "no such handler was registered before the call's deadline; register it with the server, or look whether it panicked (the server's log)"
    )]
    NoHandler,
    /// The handler did not answer in time.
    #[error(
        "the handler did not answer before the call's deadline; look what it does, or give the call more time"
    )]
    Deadline,
    /// The server's data path did not say anything.
    #[error(
        "no answer from the server, which is alive for the scheduler: its data path is stuck or slow; look at its log, or raise deadlines.operation_ms"
    )]
    NoAnswer,
    /// The server died, and the request or its answer with it.
    #[error(
        "the server died before it answered; whether its handler had the request is not known: call another server, or this one again when it is back"
    )]
    ServerDied,
    /// It was let go without an answer.
    #[error(
        "the handler let it go without an answer, or the answer was lost with a broken channel; look at the server's log"
    )]
    NoReply,
    /// The body is longer than the server keeps.
    #[error(
        "the body has {bytes} bytes, more than the server takes; send it in parts, or raise the server's memory.call_bytes"
    )]
    TooLong {
        /// Its bytes.
        bytes: u64,
    },
    /// The server has not taken it, because it keeps too much of others.
    #[error(
        "the server had no room for it beside the requests and replies that it keeps of other calls: look whether a handler holds them (`gradwire status`), or raise the server's memory.call_bytes"
    )]
    Crowded,
    /// The server has no memory for the body or the reply.
    #[error(
        "the server has no memory for its body or its reply beside those of other calls, or cannot register it (its log says which); raise the server's memory.call_bytes or its memlock limit, or answer in parts"
    )]
    NoMemory,
    /// There is no memory here for the reply.
    #[error(
        "the reply has {bytes} bytes, for which this client has no memory; drop buffers, or raise memory.pool_bytes"
    )]
    NoRoom {
        /// Its bytes.
        bytes: u64,
    },
    /// The server refused it.
    #[error("the server refused it ({0:?})")]
    Refused(Status),
}

fn ranks(ranks: &[Rank]) -> String {
    ranks.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// A call that failed.
#[derive(Debug, Error)]
pub enum ClientError {
    /// Certificates or a key cannot be used.
    #[error(transparent)]
    Security(#[from] SecurityError),
    /// Settings are wrong.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// The scheduler cannot be reached, refused us, or was lost.
    #[error("{0}")]
    Scheduler(String, ExitCode),
    /// A server cannot be connected.
    #[error("server {server} at {address}: {reason}")]
    Server {
        /// Which server.
        server: Rank,
        /// Where.
        address: String,
        /// Why not.
        reason: String,
        /// What the process should exit with.
        code: ExitCode,
    },
    /// Members did not come in time.
    #[error("the cluster did not assemble within {waited_ms} ms: {reason}")]
    Assemble {
        /// How long it took.
        waited_ms: u64,
        /// Who is missing, as far as is known.
        reason: String,
    },
    /// A declaration was refused.
    #[error(transparent)]
    Declare(#[from] DeclareError),
    /// A barrier was not released.
    #[error(transparent)]
    Wait(#[from] WaitError),
    /// A checkpoint was not written.
    #[error(transparent)]
    Save(#[from] SaveError),
    /// An operation failed.
    #[error(transparent)]
    Op(#[from] OpError),
    /// The buffer does not fit the tensor.
    #[error(
        "tensor {key} has {want} bytes of {dtype}, the buffer has {have} bytes; pass a buffer of exactly that size"
    )]
    WrongLength {
        /// The tensor.
        key: Key,
        /// Its element type.
        dtype: proto_common::element::Dtype,
        /// Its bytes.
        want: u64,
        /// Bytes of the buffer.
        have: u64,
    },
    /// The buffer's elements are of another type.
    #[error(
        "tensor {key} holds {want}, the buffer holds {have}; convert it, or declare the tensor with that type"
    )]
    WrongDtype {
        /// The tensor.
        key: Key,
        /// Its type.
        want: proto_common::element::Dtype,
        /// The buffer's type.
        have: proto_common::element::Dtype,
    },
    /// What contributes and lands at once, or sets an initial value, knows one length only.
    #[error(
        "tensor {key} is dynamic, so what is pushed and what is pulled may differ in length: use push and pull"
    )]
    Dynamic {
        /// The tensor.
        key: Key,
    },
    /// A gradient that is to be encoded has an element that would be fed back for ever. Nothing was sent.
    #[error(
        "element {position} of the gradient for tensor {key} is infinite or no number, which its codec cannot encode; lower the learning rate, or leave such a step out on every worker"
    )]
    NotFinite {
        /// The tensor.
        key: Key,
        /// The first such element.
        position: usize,
    },
    /// Parts of a dynamic tensor came from rounds of different lengths.
    #[error(
        "what was pulled of dynamic tensor {key} is of rounds {oldest} to {newest}, so it has no one length: wait for a pull before the next push"
    )]
    Torn {
        /// The tensor.
        key: Key,
        /// The oldest round.
        oldest: Version,
        /// The newest round.
        newest: Version,
    },
    /// Tensors are at rounds so far from each other that there is none that they all have been left at.
    #[error(
        "tensor {behind} is at round {least} and tensor {ahead} at {greatest}: they were not contributed to in step, so no one round is where training is; resume those together that are"
    )]
    Uneven {
        /// The one that is behind.
        behind: Key,
        /// Its round.
        least: u64,
        /// The one that is ahead.
        ahead: Key,
        /// Its round.
        greatest: u64,
    },
    /// The key was never declared here.
    #[error("key {0} is not declared; call declare with it first, on every worker")]
    Undeclared(Key),
    /// What was passed came from another client of this process, whose memory and operation numbers it has.
    #[error(
        "the {what} for key {key} belongs to another client; pass one that this client's own {source_of} returned"
    )]
    Foreign {
        /// The tensor.
        key: Key,
        /// Tensor or buffer.
        what: &'static str,
        /// The calls that return one.
        source_of: &'static str,
    },
    /// A key list is not sorted, or has duplicates.
    #[error(
        "key {key} at position {position} is not greater than the one before it; pass sorted keys without duplicates"
    )]
    Unsorted {
        /// Where.
        position: usize,
        /// The key there.
        key: Key,
    },
    /// A call that cannot be made as it is.
    #[error("call to handler {app} at server {server}: {reason}")]
    BadCall {
        /// The handler.
        app: u32,
        /// The server.
        server: Rank,
        /// What is wrong with it, and what to do.
        reason: String,
    },
    /// A table that cannot be used so.
    #[error("table {key}: {reason}")]
    Table {
        /// The table.
        key: u32,
        /// What is wrong, and what to do.
        reason: String,
    },
    /// A number that cannot be reported so.
    #[error("metric {name:?}: {reason}")]
    Metric {
        /// Its name, the beginning of it where it is too long.
        name: String,
        /// What is wrong with it, and what to do.
        reason: String,
    },
    /// No registered memory.
    #[error(transparent)]
    Memory(#[from] fabric::PoolError),
    /// A required driver cannot be had here.
    #[error(transparent)]
    Lacking(#[from] daemon::devices::Lacking),
    /// The fabric failed.
    #[error(transparent)]
    Fabric(#[from] fabric::FabricError),
    /// A member died.
    #[error("{0}")]
    Died(Death),
    /// A bug of ours.
    #[error("internal error: {0}")]
    Internal(String),
}

impl ClientError {
    /// Whose fault it is.
    #[must_use]
    pub fn blame(&self) -> Blame {
        match self {
            Self::Declare(DeclareError::Deadline { .. }) => Blame::Membership,
            Self::Setting(_)
            | Self::Security(_)
            | Self::Declare(_)
            | Self::WrongLength { .. }
            | Self::WrongDtype { .. }
            | Self::Dynamic { .. }
            | Self::Uneven { .. }
            | Self::NotFinite { .. }
            | Self::BadCall { .. }
            | Self::Table { .. }
            | Self::Metric { .. }
            | Self::Torn { .. } => Blame::Caller,
            Self::Undeclared(_) | Self::Unsorted { .. } | Self::Foreign { .. } => Blame::Caller,
            Self::Save(_) | Self::Memory(_) | Self::Fabric(_) | Self::Lacking(_) | Self::Server { .. } => {
                Blame::Environment
            }
            Self::Scheduler(..) | Self::Assemble { .. } | Self::Wait(_) | Self::Op(_) | Self::Died(_) => {
                Blame::Membership
            }
            Self::Internal(_) => Blame::Internal,
        }
    }

    /// What a process that ends because of it exits with.
    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Setting(_) | Self::Security(_) => ExitCode::Config,
            Self::Scheduler(_, code) | Self::Server { code, .. } => *code,
            Self::Assemble { .. }
            | Self::Wait(WaitError::Deadline { .. })
            | Self::Save(SaveError::Deadline { .. })
            | Self::Declare(DeclareError::Deadline { .. }) => ExitCode::Deadline,
            Self::Op(error) => match error {
                OpError::Deadline { .. }
                | OpError::Behind { .. }
                | OpError::StillRead { .. }
                | OpError::Uncopied { .. }
                | OpError::Unsaved { .. }
                | OpError::Elsewhere { .. }
                | OpError::Unconnected { .. }
                | OpError::NoAnswer { .. } => ExitCode::Deadline,
                OpError::Call { fault, .. } => match fault {
                    CallFault::NoHandler | CallFault::Deadline | CallFault::NoAnswer | CallFault::Crowded => {
                        ExitCode::Deadline
                    }
                    CallFault::ServerDied => ExitCode::MemberDied,
                    _ => ExitCode::Failure,
                },
                OpError::Died(death) => death_code(death),
                OpError::Broken { .. } | OpError::Deposed { .. } | OpError::Torn { .. } => {
                    ExitCode::MemberDied
                }
                OpError::Unregistered(_) => ExitCode::Transport,
                OpError::BadValue { .. }
                | OpError::VersionGone { .. }
                | OpError::Refused { .. }
                | OpError::Closed(_) => ExitCode::Failure,
            },
            Self::Died(death) => death_code(death),
            Self::Fabric(FabricError::Unregistered { .. }) | Self::Lacking(_) => ExitCode::Transport,
            // What a server lacks for its part is memory, of which registered memory is the scarce kind.
            Self::Declare(DeclareError::Server { .. }) => ExitCode::Transport,
            Self::Declare(DeclareError::Checkpoint { .. }) => ExitCode::BadData,
            Self::Fabric(_) => ExitCode::Io,
            Self::Internal(_) => ExitCode::Internal,
            _ => ExitCode::Failure,
        }
    }
}

/// Losing the scheduler has a code of its own.
#[must_use]
pub fn death_code(death: &Death) -> ExitCode {
    let scheduler = MemberId { role: proto_common::ids::Role::Scheduler, rank: Rank(0) };
    if death.member == scheduler { ExitCode::SchedulerUnreachable } else { ExitCode::MemberDied }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_waited_in_vain_is_told_for_whom_and_what_to_do() {
        let (chunk, round, waited_ms) = (ChunkId::new(7, 0), 3, 60_000);
        let ranks = vec![Rank(2), Rank(5)];
        let errors = [
            OpError::Deadline { chunk, round, waited_ms, missing: ranks.clone() },
            OpError::Behind { chunk, made: round, waited_ms, behind: ranks.clone() },
            OpError::StillRead { chunk, round, waited_ms, readers: ranks.clone() },
            OpError::Uncopied { chunk, round, waited_ms, servers: ranks.clone() },
            OpError::NoAnswer { key: chunk.key, servers: ranks, waited_ms },
        ];
        for text in errors.map(|error| error.to_string()) {
            assert!(text.contains("2, 5") && text.contains("60000 ms"), "{text}");
            assert!(text.contains("look ") && text.contains("raise deadlines.operation_ms"), "{text}");
        }
        let unsaved = OpError::Unsaved { chunk, round, waited_ms }.to_string();
        assert!(unsaved.contains("checkpoint within 60000 ms; look at the disk"), "{unsaved}");
    }

    #[test]
    fn a_checkpoint_that_a_server_cannot_use_is_bad_data() {
        let error = DeclareError::Checkpoint { server: Rank(0), reason: "a part is damaged".into() };
        assert_eq!(ClientError::from(error).exit_code(), ExitCode::BadData);
    }

    #[test]
    fn memory_that_cannot_be_registered_is_a_transport_s_failure_here_and_at_a_server() {
        let error = || FabricError::Unregistered { what: "too much".into(), fix: "raise the limit" };
        let reason = error().to_string();
        assert!(reason.contains("raise the limit, or set transport.verbs = \"off\""), "{reason}");
        let server = DeclareError::Server { server: Rank(0), reason: reason.clone() };
        let errors: [ClientError; 3] = [error().into(), server.into(), OpError::Unregistered(reason).into()];
        for error in errors {
            assert_eq!(error.exit_code(), ExitCode::Transport, "{error}");
        }
    }
}
