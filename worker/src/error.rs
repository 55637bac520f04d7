//! The errors of the client library, by blame: the caller, the cluster's state, the environment.

use crate::call_fault::CallFault;
use crate::subject::{Subject, are, have, ranks, unanswered, waited};
use daemon::security::SecurityError;
use fabric::FabricError;
use proto_common::batch::{OpKind, Status};
use proto_common::config::SettingError;
use proto_common::error::{Blame, Death, ExitCode};
use proto_common::ids::{ChunkId, Key, Rank, Version};
use proto_common::message::{DeclareError, SaveError, WaitError};
use proto_common::tensor::label;
use thiserror::Error;

/// An operation that failed.
///
/// Fields of one name are the same in all of them: `subject` is the operation, `key` the tensor, `chunk` a chunk of it, `round` the
/// round, `server` the server that this is about, and `waited_ms` is how long the operation waited.
#[derive(Clone, Debug, PartialEq, Error)]
#[expect(missing_docs, reason = "what is the same in all is said above")]
pub enum OpError {
    /// The round did not complete in time.
    #[error("{} timed out after {}: {} {} not contributed to round {round}. Raise deadlines.busy_ms, or check {}.", subject.of(chunk.key), waited(*waited_ms), ranks("worker", missing, "some workers"), have(missing), ranks("worker", missing, "them with `gradwire status`"))]
    Deadline {
        subject: Subject,
        chunk: ChunkId,
        /// The round that was being collected.
        round: u64,
        waited_ms: u64,
        /// Workers that did not contribute (the first few).
        missing: Vec<Rank>,
    },
    /// The round is complete, but its weights could not be published in time.
    #[error("{} timed out after {}: round {round} is complete, but {} {} still reading older weights. Raise deadlines.busy_ms, or check {}.", subject.of(chunk.key), waited(*waited_ms), ranks("worker", readers, "some workers"), are(readers), ranks("worker", readers, "them with `gradwire status`"))]
    StillRead {
        subject: Subject,
        chunk: ChunkId,
        round: u64,
        waited_ms: u64,
        /// Workers that are still reading (the first few).
        readers: Vec<Rank>,
    },
    /// The round is complete, but a server did not confirm its copy in time.
    #[error("{} timed out after {}: round {round} is complete, but {} {} not confirmed the copy of it. Raise deadlines.operation_ms, or check {}.", subject.of(chunk.key), waited(*waited_ms), ranks("server", servers, "some servers"), have(servers), ranks("server", servers, "them with `gradwire status`"))]
    Uncopied {
        subject: Subject,
        chunk: ChunkId,
        round: u64,
        waited_ms: u64,
        /// Servers whose copies are not confirmed (the first few).
        servers: Vec<Rank>,
    },
    /// The round is complete, but the one before it was not copied for a checkpoint in time.
    #[error("{} timed out after {}: round {round} is complete, but the server has not copied the round before it for a checkpoint. Check the disk under checkpoint.directory (`gradwire why`), raise checkpoint.memory_bytes, write checkpoints less often (checkpoint.every_rounds), or raise deadlines.operation_ms.", subject.of(chunk.key), waited(*waited_ms))]
    Unsaved { subject: Subject, chunk: ChunkId, round: u64, waited_ms: u64 },
    /// In mode `bounded:N` the slowest workers did not catch up in time.
    #[error("{} timed out after {}: {} {} further behind this worker, which has made {made} contributions, than the mode of the tensor allows. Raise N of mode bounded:N or deadlines.busy_ms, or check {}.", subject.of(chunk.key), waited(*waited_ms), ranks("worker", behind, "some workers"), are(behind), ranks("worker", behind, "them with `gradwire status`"))]
    Behind {
        subject: Subject,
        chunk: ChunkId,
        /// The contributions that this worker had made to the tensor.
        made: u64,
        waited_ms: u64,
        /// Workers that are too far behind (the first few).
        behind: Vec<Rank>,
    },
    /// Servers did not answer at all.
    #[error("{} timed out after {}: {} not answered. {} alive according to the scheduler, so the data path is stuck or slow: check the server's log and the network path (`gradwire doctor`), or raise deadlines.operation_ms.", subject.of(*key), waited(*waited_ms), unanswered(servers), if servers.len() == 1 { "It is" } else { "They are" })]
    NoAnswer {
        subject: Subject,
        key: Key,
        /// Servers that have not answered.
        servers: Vec<Rank>,
        waited_ms: u64,
    },
    /// The server that the shard map names does not serve the chunk.
    #[error("{} timed out after {}: server {server} has not taken over chunk {}, although the shard map assigns it. Check the logs of server {server} and of the scheduler, or raise deadlines.operation_ms.", subject.of(chunk.key), waited(*waited_ms), chunk.chunk)]
    Elsewhere {
        subject: Subject,
        chunk: ChunkId,
        /// The server that the shard map names.
        server: Rank,
        waited_ms: u64,
    },
    /// There is no channel to the servers that the operation waits for.
    #[error("{} timed out after {}: no data channel to {}, and no other server has taken over. Check the server's log and the network path (`gradwire doctor`), or raise deadlines.operation_ms.", subject.of(*key), waited(*waited_ms), ranks("server", servers, "the servers"))]
    Unconnected {
        subject: Subject,
        key: Key,
        /// The servers.
        servers: Vec<Rank>,
        waited_ms: u64,
    },
    /// A member failed, and the job cannot continue without it.
    #[error("{0}")]
    Died(Death),
    /// The scheduler has declared this worker failed although it runs.
    #[error(
        "the scheduler has declared this worker dead (epoch {epoch}): it was silent for deadlines.silence_ms, or its control connection broke. Check whether its host was stopped or overloaded, then restart the worker."
    )]
    Deposed {
        /// Since when.
        epoch: proto_common::ids::Epoch,
    },
    /// The data channel to a server broke, and the scheduler has not reported a failure yet.
    #[error(
        "the data channel to server {server} broke: {reason}. Check the log of server {server} and the network path (`gradwire doctor`)."
    )]
    Broken {
        server: Rank,
        /// What the channel reported.
        reason: String,
    },
    /// Another worker of this host receives the weights for this worker, and has not received them.
    #[error("{} failed: worker {head}, which receives the weights for all workers of its host, has not received them. Check the log of worker {head}, or set transport.merge = false.", subject.of(*key))]
    Unshared {
        subject: Subject,
        key: Key,
        /// That worker.
        head: Rank,
    },
    /// The operation has failed, and a server that does not answer, or was stopped in the middle of a copy, may still use its
    /// buffers.
    #[error("the operation's buffers may still be in use by {}, which has not answered for {}. They are free again when it continues or ends; do not write to arrays that the operation shares. Check {}.{}", ranks("server", servers, "a server"), waited(*waited_ms), ranks("server", servers, "the servers with `gradwire status`"), cause.as_ref().map_or_else(String::new, |cause| format!(" The operation failed because: {cause}")))]
    Held {
        /// The servers, as far as the lane that reports this knows them.
        servers: Vec<Rank>,
        /// For how long the operation's end has waited for them.
        waited_ms: u64,
        /// Why the operation failed, if not because of them.
        cause: Option<Box<OpError>>,
    },
    /// Memory that is to be sent or received cannot be registered with the RDMA device.
    #[error("{0}")]
    Unregistered(String),
    /// The round's value does not fit the tensor's type. All contributors get this error; the next round works.
    #[error("{} failed: the sum of round {round}, or the weights with it, do not fit {dtype} (chunk {}), so the weights of the round before stay. Contribute smaller values, or declare the tensor with a wider type.", subject.of(chunk.key), chunk.chunk)]
    BadValue {
        subject: Subject,
        chunk: ChunkId,
        round: u64,
        /// The tensor's type.
        dtype: proto_common::element::Dtype,
    },
    /// One exact version was requested, and newer ones have replaced it.
    #[error("{} failed: version {wanted} no longer exists (chunk {} is at version {version}). Servers keep the previous version only with cluster.worker_loss = \"wait\", and none before it: pull the newest version.", subject.of(chunk.key), chunk.chunk)]
    VersionGone {
        subject: Subject,
        chunk: ChunkId,
        /// The requested version.
        wanted: u64,
        /// The current version.
        version: u64,
    },
    /// Two servers failed while a copy was being made.
    #[error("{} failed: server {server} took over before its copy was complete, so chunk {} is at round {version} and other chunks are not; the updates between are lost. Restart the job from its last checkpoint (checkpoint.restore = \"latest\").", subject.of(chunk.key), chunk.chunk)]
    Torn {
        subject: Subject,
        chunk: ChunkId,
        server: Rank,
        /// The round that it has.
        version: u64,
    },
    /// The server refused the operation.
    #[error("{} was refused by server {server} ({status:?}, chunk {}); the log of server {server} has the reason. Run the same release everywhere, and declare the tensor identically on all workers.", subject.of(chunk.key), chunk.chunk)]
    Refused {
        subject: Subject,
        chunk: ChunkId,
        server: Rank,
        /// Its reason.
        status: Status,
    },
    /// A call failed.
    #[error("call to handler {app} at server {server} failed after {}: {fault}", waited(*waited_ms))]
    Call {
        /// The handler.
        app: u32,
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

impl OpError {
    /// The same error, with the operation and the tensor's name.
    #[must_use]
    pub fn about(mut self, kind: OpKind, tensor_name: &str) -> Self {
        match &mut self {
            Self::Deadline { subject, .. }
            | Self::StillRead { subject, .. }
            | Self::Uncopied { subject, .. }
            | Self::Unsaved { subject, .. }
            | Self::Behind { subject, .. }
            | Self::NoAnswer { subject, .. }
            | Self::Elsewhere { subject, .. }
            | Self::Unconnected { subject, .. }
            | Self::Unshared { subject, .. }
            | Self::BadValue { subject, .. }
            | Self::VersionGone { subject, .. }
            | Self::Torn { subject, .. }
            | Self::Refused { subject, .. } => {
                *subject = Subject { kind: Some(kind), name: tensor_name.to_owned() };
            }
            Self::Held { cause: Some(cause), .. } => **cause = (**cause).clone().about(kind, tensor_name),
            Self::Died(_)
            | Self::Deposed { .. }
            | Self::Broken { .. }
            | Self::Held { .. }
            | Self::Unregistered(_)
            | Self::Call { .. }
            | Self::Closed(_) => {}
        }
        self
    }
}

/// A call that failed.
///
/// `key` and `name` are the tensor; the name is empty for a tensor that was declared by number.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "what is the same in all is said above")]
pub enum ClientError {
    /// Certificates or a key cannot be used.
    #[error(transparent)]
    Security(#[from] SecurityError),
    /// Settings are wrong.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// Settings cannot be read.
    #[error(transparent)]
    Settings(Box<daemon::settings::SettingsError>),
    /// The scheduler cannot be reached, refused us, or was lost.
    #[error("{0}")]
    Scheduler(String, ExitCode),
    /// A server cannot be connected.
    #[error("cannot connect to server {server} at {address}: {reason}")]
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
    /// Members did not join in time.
    #[error("the cluster did not assemble within {}: {reason}", waited(*waited_ms))]
    Assemble {
        /// How long it took.
        waited_ms: u64,
        /// Who is missing, if that is known.
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
        "{} has {want} bytes of {dtype}, but the buffer has {have} bytes. Pass a buffer of exactly {want} bytes.", label(*key, name)
    )]
    WrongLength {
        key: Key,
        name: String,
        /// Its element type.
        dtype: proto_common::element::Dtype,
        /// Its bytes.
        want: u64,
        /// Bytes of the buffer.
        have: u64,
    },
    /// The buffer's elements are of another type.
    #[error(
        "{} has elements of type {want}, but the buffer has {have}. Convert the buffer, or declare the tensor as {have}.", label(*key, name)
    )]
    WrongDtype {
        key: Key,
        name: String,
        /// Its type.
        want: proto_common::element::Dtype,
        /// The buffer's type.
        have: proto_common::element::Dtype,
    },
    /// `push_pull` and `init` have one length only.
    #[error(
        "{} is dynamic: the length that is pushed and the length that is pulled may differ. Use push and pull.", label(*key, name)
    )]
    Dynamic { key: Key, name: String },
    /// Parts of a dynamic tensor came from rounds of different lengths.
    #[error(
        "pull of dynamic {} returned chunks of rounds {oldest} to {newest}, whose lengths may differ. Wait for each pull before the next push.", label(*key, name)
    )]
    Torn {
        key: Key,
        name: String,
        /// The oldest round.
        oldest: Version,
        /// The newest round.
        newest: Version,
    },
    /// Tensors are more than one round apart, so there is no common round to resume at.
    #[error(
        "cannot resume: {} is at round {least} and {} at round {greatest}, so there is no common round. Resume only tensors together that get a contribution in every step.", label(*behind, behind_name), label(*ahead, ahead_name)
    )]
    Uneven {
        /// The older tensor.
        behind: Key,
        behind_name: String,
        /// Its round.
        least: u64,
        /// The newer tensor.
        ahead: Key,
        ahead_name: String,
        /// Its round.
        greatest: u64,
    },
    /// The key was never declared here.
    #[error("tensor {0} is not declared. Declare it first, on every worker.")]
    Undeclared(Key),
    /// The tensor or buffer belongs to another client of this process.
    #[error(
        "the {what} passed for {} belongs to another client. Pass one that {source_of} of this client returned.", label(*key, name)
    )]
    Foreign {
        key: Key,
        name: String,
        /// Tensor or buffer.
        what: &'static str,
        /// The calls that return one.
        source_of: &'static str,
    },
    /// A key list is not sorted, or has duplicates.
    #[error(
        "key {key} at position {position} is not greater than the key before it. Pass sorted keys without duplicates."
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
    /// A member has failed.
    #[error("{0}")]
    Died(Death),
    /// A bug of ours.
    #[error("internal error: {0}")]
    Internal(String),
}

impl From<daemon::settings::SettingsError> for ClientError {
    fn from(error: daemon::settings::SettingsError) -> Self {
        Self::Settings(Box::new(error))
    }
}

impl ClientError {
    /// Whose fault it is.
    #[must_use]
    pub fn blame(&self) -> Blame {
        match self {
            Self::Declare(DeclareError::Deadline { .. }) => Blame::Membership,
            Self::Setting(_)
            | Self::Settings(_)
            | Self::Security(_)
            | Self::Declare(_)
            | Self::WrongLength { .. }
            | Self::WrongDtype { .. }
            | Self::Dynamic { .. }
            | Self::Uneven { .. }
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
            Self::Setting(_) | Self::Settings(_) | Self::Security(_) => ExitCode::Config,
            Self::Scheduler(_, code) | Self::Server { code, .. } => *code,
            Self::Assemble { .. }
            | Self::Wait(WaitError::Deadline { .. })
            | Self::Save(SaveError::Deadline { .. })
            | Self::Declare(DeclareError::Deadline { .. }) => ExitCode::Deadline,
            Self::Op(OpError::Held { cause: Some(cause), .. }) => Self::Op((**cause).clone()).exit_code(),
            Self::Op(error) => match error {
                OpError::Deadline { .. }
                | OpError::Behind { .. }
                | OpError::StillRead { .. }
                | OpError::Uncopied { .. }
                | OpError::Unsaved { .. }
                | OpError::Elsewhere { .. }
                | OpError::Unconnected { .. }
                | OpError::NoAnswer { .. } => ExitCode::Deadline,
                OpError::Call { fault, .. } => fault.exit_code(),
                OpError::Died(death) => death.exit_code(),
                OpError::Broken { .. }
                | OpError::Unshared { .. }
                | OpError::Held { .. }
                | OpError::Deposed { .. }
                | OpError::Torn { .. } => ExitCode::MemberDied,
                OpError::Unregistered(_) => ExitCode::Transport,
                OpError::BadValue { .. }
                | OpError::VersionGone { .. }
                | OpError::Refused { .. }
                | OpError::Closed(_) => ExitCode::Failure,
            },
            Self::Died(death) => death.exit_code(),
            Self::Fabric(FabricError::Unregistered { .. } | FabricError::AddressSpace { .. })
            | Self::Lacking(_) => ExitCode::Transport,
            // What a server lacks for its part is memory, of which registered memory is the scarce kind.
            Self::Declare(DeclareError::Server { .. }) => ExitCode::Transport,
            Self::Declare(DeclareError::Checkpoint { .. }) => ExitCode::BadData,
            Self::Fabric(_) => ExitCode::Io,
            Self::Internal(_) => ExitCode::Internal,
            _ => ExitCode::Failure,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_names_operation_tensor_worker_and_setting() {
        let (subject, missing) = (Subject::default(), vec![Rank(0)]);
        let chunk = ChunkId::new(9_241_106_733_741_500_240, 0);
        let error = OpError::Deadline { subject, chunk, round: 1, waited_ms: 30_012, missing };
        let text = error.about(OpKind::PushPull, "fc1.weight").to_string();
        assert_eq!(
            text,
            "push_pull of tensor \"fc1.weight\" timed out after 30 s: worker 0 has not contributed to round 1. \
             Raise deadlines.busy_ms, or check worker 0."
        );
    }

    #[test]
    fn a_timeout_names_who_was_waited_for_and_what_to_do() {
        let subject = Subject::default;
        let (chunk, round, waited_ms) = (ChunkId::new(7, 0), 3, 60_000);
        let ranks = vec![Rank(2), Rank(5)];
        let errors = [
            OpError::Deadline { subject: subject(), chunk, round, waited_ms, missing: ranks.clone() },
            OpError::Behind { subject: subject(), chunk, made: round, waited_ms, behind: ranks.clone() },
            OpError::StillRead { subject: subject(), chunk, round, waited_ms, readers: ranks.clone() },
            OpError::Uncopied { subject: subject(), chunk, round, waited_ms, servers: ranks.clone() },
            OpError::NoAnswer { subject: subject(), key: chunk.key, servers: ranks, waited_ms },
        ];
        for text in errors.map(|error| error.to_string()) {
            assert!(text.starts_with("operation of tensor 7 timed out after 60 s: "), "{text}");
            assert!(text.contains("s 2, 5 ") && text.contains("check "), "{text}");
            assert!(
                text.to_lowercase().contains("raise ")
                    && (text.contains("deadlines.busy_ms") == text.contains("worker")),
                "{text}"
            );
            assert!(text.contains("deadlines.operation_ms") != text.contains("deadlines.busy_ms"), "{text}");
        }
        let unsaved = OpError::Unsaved { subject: subject(), chunk, round, waited_ms }.to_string();
        assert!(unsaved.contains("for a checkpoint. Check the disk"), "{unsaved}");
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
