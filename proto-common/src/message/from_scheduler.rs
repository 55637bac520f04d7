//! Messages of the scheduler to members.

use super::checkpoint::{CheckpointOrder, SaveError, SaveProgress};
use super::codec::{CodecError, encode};
use super::post::{PostError, PostMessage, PostReply};
use super::rounds::RoundsPart;
use super::version::{Build, older};
use crate::config::ClusterShape;
use crate::error::Death;
use crate::ids::{Epoch, Incarnation, JobId, Key, MemberId, Rank};
use crate::limits::RANKS_LISTED_MAX;
use crate::shard_map::{MapChange, MapUpdate, SharedUpdate};
use crate::tensor::{RuleChange, TensorError, TensorSpec, label, with_labels};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Answer to a registration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// The member's rank.
    pub rank: Rank,
    /// The job.
    pub job: JobId,
    /// Epoch in force.
    pub epoch: Epoch,
    /// The scheduler's incarnation.
    pub scheduler: Incarnation,
    /// The cluster's shape.
    pub shape: ClusterShape,
    /// The checkpoint that tensors begin from.
    pub restore: Option<String>,
    /// How a member joins.
    pub coming: Coming,
}

/// How a member joins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Coming {
    /// A new job, or a member that continues with the same incarnation: rounds need this worker.
    #[default]
    Start,
    /// It takes the place of an earlier process with its rank. Rounds wait for a worker, which continues with the round after the
    /// last one that all workers have completed. A server continues the handlers whose journals other servers keep.
    Again,
    /// Rounds continue without this worker. [`FromScheduler::CountFrom`] says from which rounds it counts; it
    /// contributes to no earlier ones.
    Between,
}

/// The setting with the largest number of processes of a role.
fn places_of(role: &str) -> String {
    // Beyond `cluster.servers` they are spare ones.
    let beyond = if role == "server" { "_max" } else { "" };
    format!("cluster.{role}s{beyond}")
}

/// Why a registration was refused.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[expect(missing_docs, reason = "a name that says it all needs no sentence")]
pub enum RefusalReason {
    /// Another protocol version. The bytes of this refusal are the same in every version: see `version.rs`.
    #[error(
        "{theirs} cannot join a job whose scheduler is {ours}: all processes of a job must run the same release; upgrade {} and \
         restart the job, see docs/upgrading.md",
        older(theirs, ours, ("this process", "the scheduler"))
    )]
    Protocol { theirs: Build, ours: Build },
    /// Another job.
    #[error(
        "job {theirs} is not this scheduler's job {ours}: set job to the same value for all processes, or start another scheduler"
    )]
    Job { theirs: JobId, ours: JobId },
    /// All places are taken.
    #[error(
        "the job already has {places} {role}s, the maximum: start no more than {places}, or restart the job with a larger {} (it cannot be changed while the job runs)",
        places_of(role)
    )]
    Full { role: String, places: u32 },
    /// The requested rank is taken or does not exist.
    #[error(
        "rank {rank} is taken or out of range: leave node.rank unset, or give each process its own rank below {places}"
    )]
    RankTaken { rank: Rank, places: u32 },
    /// The sender is another scheduler.
    #[error(
        "a scheduler of job {job} is already running there (pid {pid}, term {term}, since {} s): stop it first, or set \
         scheduler.port to a free port and job to an unused number",
        age_ms / 1000
    )]
    Occupied { job: JobId, term: u32, pid: u32, age_ms: u64 },
    /// Its certificate is valid, but not for the claimed role or job.
    #[error("{0}")]
    Certificate(String),
    /// An unexpected message: what was received, and what was expected.
    #[error("{0}")]
    Misplaced(String),
    /// Other members did not register; this process made no mistake.
    #[error(
        "the job is incomplete after {waited_ms} ms, missing: {}; start them, or raise deadlines.assemble_ms",
        list(missing)
    )]
    Incomplete { waited_ms: u64, missing: Vec<MemberId> },
    /// Temporary: the same process may be admitted when it is started again. The reason, and when.
    #[error("{0}")]
    Later(String),
}

/// One member of the roster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// The member.
    pub id: MemberId,
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// Servers: the address for workers.
    pub data_address: Option<String>,
    /// Its HTTP address.
    pub http_address: Option<String>,
}

/// Why a declaration was refused.
#[derive(Clone, Debug, PartialEq, Error, Serialize, Deserialize)]
#[expect(missing_docs, reason = "a name that says it all needs no sentence")]
pub enum DeclareError {
    /// The tensor itself is invalid.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// It was declared before with another shape or rule.
    #[error("{} was declared before as {before}, now as {now}; all workers must declare the same", label(*key, name))]
    Conflict {
        key: Key,
        /// Its name. It is not sent: see [`DeclareError::with_names`].
        #[serde(skip)]
        name: String,
        before: String,
        now: String,
    },
    /// The same key twice in one call.
    #[error("{} is listed twice in one declaration; declare it once", label(*key, name))]
    Duplicate {
        key: Key,
        /// Its name, which is not sent.
        #[serde(skip)]
        name: String,
    },
    /// Too many tensors.
    #[error("more than {limit} tensors; merge small ones")]
    TooMany { limit: u64 },
    /// A server could not allocate its part, or change a rule.
    #[error("server {server} refused: {reason}")]
    Server { server: Rank, reason: String },
    /// A server cannot use its part of the checkpoint that the job began from.
    #[error("server {server} could not restore the checkpoint: {reason}")]
    Checkpoint { server: Rank, reason: String },
    /// The cluster is not complete or is ending.
    #[error("{0}")]
    NotNow(String),
    /// Some servers did not confirm in time. The declaration remains in force.
    #[error(
        "the declaration timed out after {waited_ms} ms, waiting for server {}: these servers send heartbeats but have not allocated their part; check their logs, then declare the same again, or raise deadlines.operation_ms",
        list(servers)
    )]
    Deadline { waited_ms: u64, servers: Vec<Rank> },
}

impl DeclareError {
    /// With the names of the tensors that were to be declared: they do not travel with errors.
    #[must_use]
    pub fn with_names(mut self, specs: &[TensorSpec]) -> Self {
        let name_of = |key: Key| specs.iter().find(|spec| spec.key == key).map(|spec| spec.name.clone());
        match &mut self {
            Self::Tensor(error) => error.name_by(name_of),
            Self::Conflict { key, name, .. } | Self::Duplicate { key, name } if name.is_empty() => {
                *name = name_of(*key).unwrap_or_default();
            }
            Self::Server { reason, .. } | Self::Checkpoint { reason, .. } | Self::NotNow(reason) => {
                *reason = with_labels(reason, name_of);
            }
            _ => {}
        }
        self
    }
}

/// Why a barrier was not released.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[expect(missing_docs, reason = "a name that says it all needs no sentence")]
pub enum WaitError {
    /// Some members did not arrive in time.
    #[error(
        "barrier {name:?} timed out after {waited_ms} ms, missing: {}; check their logs and `gradwire status`, or raise deadlines.busy_ms",
        list(missing)
    )]
    Deadline { name: String, waited_ms: u64, missing: Vec<MemberId> },
    /// The barrier is invalid.
    #[error("barrier {name:?} refused: {reason}")]
    Refused { name: String, reason: String },
}

/// Names the first [`RANKS_LISTED_MAX`] and counts the others.
fn list<T: ToString>(all: &[T]) -> String {
    let named: Vec<String> = all.iter().take(RANKS_LISTED_MAX).map(T::to_string).collect();
    match all.len() - named.len() {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

/// All messages of the scheduler. An answer repeats the number of its request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "a name that says it all needs no sentence")]
pub enum FromScheduler {
    /// Registered.
    Welcome(Welcome),
    /// Refused; the connection is closed.
    Refused(RefusalReason),
    /// The membership: sent when all members have registered, and again whenever one joins or leaves. A rank may have
    /// another incarnation than before.
    Roster {
        epoch: Epoch,
        /// Servers and workers by rank.
        members: Vec<Member>,
        /// Workers that have left in good order: rounds continue without them after the last round that each
        /// completed. Other workers that are not among the members have failed; `cluster.worker_loss` decides what
        /// happens to rounds.
        left: Vec<Rank>,
    },
    /// Server: new ranges to allocate. Answered by `Assigned`.
    Assign(MapUpdate),
    /// Answer to `Declare`.
    Declared { request: u64, result: Result<SharedUpdate, DeclareError> },
    /// Answer to `Barrier`.
    Released { request: u64, result: Result<(), WaitError> },
    /// Heartbeat.
    HeartbeatAck,
    /// Shards or replicas have moved. Every member applies these messages in the order of epochs.
    Remap { epoch: Epoch, change: MapChange },
    /// A member has failed, and the job cannot continue without it: report this and exit.
    MemberDied(Death),
    /// The job is over: exit in good order.
    Shutdown { reason: String },
    /// Answer to `Goodbye`: the member is recorded as having left; the connection is closed.
    GoodbyeAck,
    /// Server: change the rule of a tensor. Every server applies changes in the order of epochs. Answered by `Assigned`.
    ChangeRule { epoch: Epoch, change: RuleChange },
    /// A message for this member's program. Answered by `PostReply`.
    Posted {
        /// Identifies it in the answer.
        ticket: u64,
        from: MemberId,
        message: PostMessage,
        /// How long its sender waits.
        timeout_ms: u64,
    },
    /// Answer to `Post`, from one receiver.
    PostAnswered {
        request: u64,
        from: MemberId,
        /// The number of receivers.
        of: u32,
        result: Result<PostReply, PostError>,
    },
    /// Server: a worker joins between two rounds. From which round of each tensor could it count? The server does not
    /// begin these rounds before `CountFrom`, or before a roster without this incarnation. Answered by `Rounds`, once
    /// for each time it is asked.
    AskRounds { rank: Rank, incarnation: Incarnation },
    /// A worker counts from these rounds on, one per tensor; for tensors that are not listed, from the first. Sent to
    /// servers, including those that join later, and to the worker itself.
    CountFrom {
        rank: Rank,
        incarnation: Incarnation,
        /// For each tensor the highest round that a server named. Outside mode sync the worker's first contribution
        /// gets this count.
        rounds: RoundsPart,
    },
    /// Server: an order about a checkpoint. Answered by `Checkpoint`.
    Checkpoint(CheckpointOrder),
    /// Answer to `SaveCheckpoint`.
    CheckpointSaved { request: u64, result: Result<String, SaveError> },
    /// To an operator: progress of the ordered checkpoint. Sent when it has changed.
    CheckpointGoes(SaveProgress),
    /// To a member that has reported the digest of its shard map: no member has sent this map yet. Answered by `Resuming`,
    /// with the map in parts.
    SendMap,
    /// A restarted scheduler asks for this member's vote, before `Welcome`. A member that has obeyed only lower terms obeys no other
    /// scheduler of this term from now on, and answers `Heard` with this term and counter 0.
    Candidate { term: u32 },
    /// The decisions up to this epoch have been sent. The member stores them, answers `Heard`, and applies them when they
    /// are `Decided`.
    Proposed {
        epoch: Epoch,
        /// The rosters that may be in force until then. Each needs a majority that has heard of the decisions.
        rosters: Vec<Vec<Incarnation>>,
    },
    /// Enough members have heard of the decisions up to this epoch: they are in force.
    Decided { epoch: Epoch },
}

impl FromScheduler {
    /// The first bytes of every `Declared`: all that differs between two answers with the same result.
    pub const DECLARED_HEAD_BYTES: usize = 12;

    /// These bytes of the answer to a request.
    pub fn declared_head(request: u64) -> Result<Vec<u8>, CodecError> {
        let mut bytes = encode(&Self::Declared { request, result: Ok(SharedUpdate::default()) })?;
        bytes.truncate(Self::DECLARED_HEAD_BYTES);
        Ok(bytes)
    }
}
