//! What the scheduler says to members.

use super::checkpoint::{CheckpointOrder, SaveError, SaveProgress};
use super::post::{PostError, PostMessage, PostReply};
use super::rounds::RoundsPart;
use super::version::{Build, older};
use crate::config::WorkerLoss;
use crate::error::Death;
use crate::ids::{Epoch, Incarnation, JobId, Key, MemberId, Rank};
use crate::limits::RANKS_LISTED_MAX;
use crate::mode::Mode;
use crate::shard_map::{MapChange, MapUpdate};
use crate::tensor::{RuleChange, TensorError};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The cluster's shape: set once at the scheduler, so that members cannot disagree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterShape {
    /// How many workers.
    pub workers: u32,
    /// How many servers.
    pub servers: u32,
    /// Bytes of a chunk.
    pub chunk_bytes: u64,
    /// Lanes.
    pub lanes: u16,
    /// Reduce in rank order.
    pub deterministic: bool,
    /// The mode of tensors that do not say theirs.
    pub mode: Mode,
    /// Workers whose contribution a round does not wait for, of tensors that do not say it.
    pub backup_workers: u32,
    /// Members send a heartbeat this often.
    pub heartbeat_ms: u64,
    /// A member silent for this long is dead.
    pub silence_ms: u64,
    /// Copies of every shard on other servers.
    pub replicas: u32,
    /// Places for servers, of which `servers` are there at the start.
    pub server_places: u32,
    /// What a worker's death means for the others.
    pub worker_loss: WorkerLoss,
    /// With fewer workers the job ends.
    pub workers_min: u32,
    /// Members go on without a scheduler for so long.
    pub scheduler_ms: u64,
}

impl ClusterShape {
    /// The first setting, with its value here and there, in which two shapes differ that cannot be of one job: members are built
    /// with what they were told at their start, and data lies, is reduced and survives by it. Deadlines and `workers_min` are
    /// the scheduler's own, so that the next one may have others.
    #[must_use]
    pub fn conflict(&self, other: &Self) -> Option<(&'static str, String, String)> {
        let texts = |shape: &Self| {
            let loss = format!("{:?}", shape.worker_loss).to_lowercase();
            [
                ("cluster.workers", shape.workers.to_string()),
                ("cluster.servers", shape.servers.to_string()),
                ("cluster.chunk_bytes", shape.chunk_bytes.to_string()),
                ("cluster.lanes", shape.lanes.to_string()),
                ("cluster.replicas", shape.replicas.to_string()),
                ("cluster.servers_max", shape.server_places.to_string()),
                ("cluster.mode", shape.mode.to_string()),
                ("cluster.deterministic", shape.deterministic.to_string()),
                ("cluster.backup_workers", shape.backup_workers.to_string()),
                ("cluster.worker_loss", loss),
            ]
        };
        let mut pairs = texts(self).into_iter().zip(texts(other));
        pairs.find(|(own, theirs)| own != theirs).map(|((key, own), (_, theirs))| (key, own, theirs))
    }
}

/// Answer to a registration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// The member's rank.
    pub rank: Rank,
    /// The job.
    pub job: JobId,
    /// Epoch in force.
    pub epoch: Epoch,
    /// The scheduler's life.
    pub scheduler: Incarnation,
    /// The cluster's shape.
    pub shape: ClusterShape,
    /// The checkpoint that tensors begin from.
    pub restore: Option<String>,
    /// What a worker comes into; of servers, always the start.
    pub coming: Coming,
}

/// What a worker comes into.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Coming {
    /// A job that begins, or goes on in this very life: rounds need it.
    #[default]
    Start,
    /// Rounds wait for it, because an earlier life of this rank died: it goes on with the round after the last that everybody
    /// finished.
    Again,
    /// Rounds go on without it. [`FromScheduler::CountFrom`] says from which of them it counts; it contributes to none before.
    Between,
}

/// The setting that says how many processes of a role there may be.
fn places_of(role: &str) -> String {
    // Beyond `cluster.servers` they are spare ones.
    let beyond = if role == "server" { "_max" } else { "" };
    format!("cluster.{role}s{beyond}")
}

/// Why a registration was refused.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
pub enum RefusalReason {
    /// Another protocol version. Its bytes are the same in every version: see `version.rs`.
    #[error(
        "{theirs} cannot join a job whose scheduler is {ours}: all processes of a job must run the same release; upgrade {} and \
         restart the job, see docs/upgrading.md",
        older(theirs, ours, ("this process", "the scheduler"))
    )]
    Protocol {
        /// The member's.
        theirs: Build,
        /// The scheduler's.
        ours: Build,
    },
    /// Another job.
    #[error(
        "job {theirs} is not this scheduler's job {ours}: set job to the same value for all processes, or start another scheduler"
    )]
    Job {
        /// The member's.
        theirs: JobId,
        /// The scheduler's.
        ours: JobId,
    },
    /// All places are taken.
    #[error(
        "the job already has {places} {role}s, the maximum: start no more than {places}, or restart the job with a larger {} (it cannot be changed while the job runs)",
        places_of(role)
    )]
    Full {
        /// The role.
        role: String,
        /// How many there are.
        places: u32,
    },
    /// The rank asked for is taken or does not exist.
    #[error(
        "rank {rank} is taken or out of range: leave node.rank unset, or give each process its own rank below {places}"
    )]
    RankTaken {
        /// The rank.
        rank: Rank,
        /// How many places there are.
        places: u32,
    },
    /// It is another scheduler that asks.
    #[error(
        "a scheduler of job {job} is already running there (pid {pid}, term {term}, since {} s): stop it first, or set \
         scheduler.port to a free port and job to an unused number",
        age_ms / 1000
    )]
    Occupied {
        /// Its job.
        job: JobId,
        /// Its term.
        term: u32,
        /// Its process.
        pid: u32,
        /// How long it has been running.
        age_ms: u64,
    },
    /// Its certificate is good, and is not for what it claims to be.
    #[error("{0}")]
    Certificate(String),
    /// The message makes no sense here: what it was, and what was expected.
    #[error("{0}")]
    Misplaced(String),
    /// Others did not come; this process did nothing wrong.
    #[error(
        "the job is incomplete after {waited_ms} ms, missing: {}; start them, or raise deadlines.assemble_ms",
        list(missing)
    )]
    Incomplete {
        /// How long the scheduler waited.
        waited_ms: u64,
        /// Who did not come.
        missing: Vec<MemberId>,
    },
    /// Not now: the same process may be let in when it is started again. Why, and when.
    #[error("{0}")]
    Later(String),
}

/// One member of the roster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Who.
    pub id: MemberId,
    /// Its life.
    pub incarnation: Incarnation,
    /// Servers: where workers reach it.
    pub data_address: Option<String>,
    /// Its HTTP endpoints.
    pub http_address: Option<String>,
}

/// Why a declaration was refused.
#[derive(Clone, Debug, PartialEq, Error, Serialize, Deserialize)]
pub enum DeclareError {
    /// The tensor itself is wrong.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// Declared before with another shape or rule.
    #[error("tensor {key} was declared before as {before}, now as {now}; all workers must declare the same")]
    Conflict {
        /// The tensor.
        key: Key,
        /// The first declaration.
        before: String,
        /// This one.
        now: String,
    },
    /// The same key twice in one call.
    #[error("tensor {key} stands twice in one declaration")]
    Duplicate {
        /// The tensor.
        key: Key,
    },
    /// Too many tensors.
    #[error("more than {limit} tensors; merge small ones")]
    TooMany {
        /// The bound.
        limit: u64,
    },
    /// A server could not allocate its part.
    #[error("server {server} could not allocate its part: {reason}")]
    Server {
        /// Which server.
        server: Rank,
        /// Its words.
        reason: String,
    },
    /// A server cannot use its part of the checkpoint that the job begins from.
    #[error("server {server} could not restore the checkpoint: {reason}")]
    Checkpoint {
        /// Which server.
        server: Rank,
        /// Its words.
        reason: String,
    },
    /// The cluster is not complete or is ending.
    #[error("{0}")]
    NotNow(String),
    /// Some servers did not say in time that they have allocated. What was declared stays declared.
    #[error(
        "the declaration timed out after {waited_ms} ms, waiting for server {}: these servers send heartbeats but have not allocated their part; check their logs, then declare the same again, or raise deadlines.operation_ms",
        list_ranks(servers)
    )]
    Deadline {
        /// How long the declaration waited.
        waited_ms: u64,
        /// Servers that have not answered.
        servers: Vec<Rank>,
    },
}

/// Why a barrier was not released.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
pub enum WaitError {
    /// Some members did not come in time.
    #[error(
        "barrier {name:?} timed out after {waited_ms} ms, missing: {}; check their logs and `gradwire status`, or raise deadlines.barrier_ms",
        list(missing)
    )]
    Deadline {
        /// The barrier.
        name: String,
        /// How long this member waited.
        waited_ms: u64,
        /// Who did not come.
        missing: Vec<MemberId>,
    },
    /// The barrier makes no sense.
    #[error("barrier {name:?} refused: {reason}")]
    Refused {
        /// The barrier.
        name: String,
        /// Why.
        reason: String,
    },
}

/// Names the first [`RANKS_LISTED_MAX`] and counts the others.
fn list(members: &[MemberId]) -> String {
    join(members.iter())
}

/// As [`list`], for ranks of one role.
fn list_ranks(ranks: &[Rank]) -> String {
    join(ranks.iter())
}

fn join<T: ToString>(all: impl ExactSizeIterator<Item = T>) -> String {
    let count = all.len();
    let named: Vec<String> = all.take(RANKS_LISTED_MAX).map(|one| one.to_string()).collect();
    match count - named.len() {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

/// Everything the scheduler says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum FromScheduler {
    /// Registered.
    Welcome(Welcome),
    /// Refused; the connection closes.
    Refused(RefusalReason),
    /// Who is there: told when all members are, and again whenever one came or went. A rank may have another life than before.
    Roster {
        /// Epoch of the roster.
        epoch: Epoch,
        /// Servers and workers by rank.
        members: Vec<Member>,
        /// Workers that have left in good order: rounds go on without them from the one that each of them finished last. Others
        /// that are not among the members died: `cluster.worker_loss` says what becomes of rounds.
        left: Vec<Rank>,
    },
    /// Server: new ranges to hold. Answered by `Assigned`.
    Assign(MapUpdate),
    /// Answer to `Declare`.
    Declared {
        /// Echo.
        request: u64,
        /// Where the tensors are, or why not.
        result: Result<MapUpdate, DeclareError>,
    },
    /// Answer to `Barrier`.
    Released {
        /// Echo.
        request: u64,
        /// Released, or why not.
        result: Result<(), WaitError>,
    },
    /// Sign of life.
    HeartbeatAck,
    /// Shards have moved, or their copies have. Every member applies these in the order of their epochs.
    Remap {
        /// The epoch that this makes.
        epoch: Epoch,
        /// What has changed.
        change: MapChange,
    },
    /// A member died, and the job cannot go on without it: report it and exit.
    MemberDied(Death),
    /// The job is over: exit in good order.
    Shutdown {
        /// Why.
        reason: String,
    },
    /// Answer to `Goodbye`: who goes is remembered as somebody that went; the connection closes.
    GoodbyeAck,
    /// Server: a tensor gets another rule. Answered by `Assigned`.
    ChangeRule {
        /// Its number: every server takes changes in this order.
        epoch: Epoch,
        /// The change.
        change: RuleChange,
    },
    /// A message for this member's program. Answered by `PostReply`.
    Posted {
        /// Names it in the answer.
        ticket: u64,
        /// Who sent it.
        from: MemberId,
        /// What.
        message: PostMessage,
        /// How long its sender waits.
        timeout_ms: u64,
    },
    /// Answer to `Post`, of one receiver.
    PostAnswered {
        /// Echo.
        request: u64,
        /// Whose answer it is.
        from: MemberId,
        /// How many receivers there are.
        of: u32,
        /// The answer, or why there is none.
        result: Result<PostReply, PostError>,
    },
    /// Server: a worker is to count between two rounds. From which round of each tensor on could it? Rounds from then on are not
    /// begun before `CountFrom` says so, or a roster without this life. Answered by `Rounds`, once, and once more for each
    /// time that it is asked.
    AskRounds {
        /// The worker's rank.
        rank: Rank,
        /// Its life.
        incarnation: Incarnation,
    },
    /// A worker counts from these rounds on, one a tensor; of tensors that are not named from the first. To servers, also to
    /// those that come later, and to the worker itself.
    CountFrom {
        /// The worker's rank.
        rank: Rank,
        /// Its life.
        incarnation: Incarnation,
        /// By tensor the highest that a server named; outside mode sync the worker's first contribution gets this count.
        rounds: RoundsPart,
    },
    /// Server: what to do about a checkpoint. Answered by `Checkpoint`.
    Checkpoint(CheckpointOrder),
    /// Answer to `SaveCheckpoint`.
    CheckpointSaved {
        /// Echo.
        request: u64,
        /// Its name, or why there is none.
        result: Result<String, SaveError>,
    },
    /// To an operator: how the checkpoint that was asked for goes. Said when it has gone on.
    CheckpointGoes(SaveProgress),
}
