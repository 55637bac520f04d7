//! What members say to the scheduler.

use super::checkpoint::CheckpointNews;
use super::post::{PostError, PostMessage, PostReply, PostTo};
use super::resume::Resume;
use super::rounds::RoundsPart;
use super::wait::Wait;
use crate::ids::{Epoch, Incarnation, JobId, Rank, Role};
use crate::tensor::{RuleChange, TensorSpec};
use crate::transport::{Driver, Offer};
use serde::{Deserialize, Serialize};

/// Why a server cannot have what it was assigned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotTaken {
    /// Its words.
    pub reason: String,
    /// Whether it is the checkpoint that the job begins from; else it is what this server lacks.
    pub is_checkpoint: bool,
}

impl From<String> for NotTaken {
    fn from(reason: String) -> Self {
        Self { reason, is_checkpoint: false }
    }
}

impl From<&str> for NotTaken {
    fn from(reason: &str) -> Self {
        reason.to_owned().into()
    }
}

/// A member's first message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Register {
    /// [`crate::limits::PROTOCOL_VERSION`] of the sender.
    pub protocol: u32,
    /// Build of the sender, for people.
    pub build: String,
    /// The job it belongs to.
    pub job: JobId,
    /// Its role.
    pub role: Role,
    /// Its life.
    pub incarnation: Incarnation,
    /// The rank it would like; the scheduler decides. [`Register::LAST`]: the highest that is free, for those who must not
    /// take one that somebody else would like.
    pub wanted_rank: Option<Rank>,
    /// Where its peers reach it (servers): host and port of the data-plane bootstrap.
    pub data_address: Option<String>,
    /// Where its HTTP endpoints are, if any.
    pub http_address: Option<String>,
    /// What its host calls itself, for people.
    pub host: Option<String>,
    /// Operating system process id, for people.
    pub pid: u32,
    /// The drivers it can offer.
    pub offer: Offer,
    /// It was a member before, in this very life, and its scheduler is gone: what it knows. Rank and epoch are here; the
    /// rest follows as `Resuming`, because a stranger's first message is short.
    pub resume: Option<Resume>,
}

impl Register {
    /// In place of a wanted rank.
    pub const LAST: Rank = Rank(u32::MAX);
}

/// Whom a barrier waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NodeGroup {
    /// Count the scheduler, where a program runs it; nobody waits for a scheduler of its own.
    pub scheduler: bool,
    /// Count the servers.
    pub servers: bool,
    /// Count the workers.
    pub workers: bool,
}

impl NodeGroup {
    /// All workers.
    pub const WORKERS: Self = Self { scheduler: false, servers: false, workers: true };
    /// All servers.
    pub const SERVERS: Self = Self { scheduler: false, servers: true, workers: false };
    /// Everyone but the scheduler.
    pub const ALL: Self = Self { scheduler: false, servers: true, workers: true };
}

/// One data-plane link as its worker sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkReport {
    /// The server at the other end.
    pub server: Rank,
    /// The driver in use.
    pub driver: Driver,
    /// Why this driver.
    pub why: String,
    /// Payload bytes sent so far.
    pub sent_bytes: u64,
    /// Payload bytes received so far.
    pub received_bytes: u64,
}

/// What a member tells about itself with each heartbeat.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MemberReport {
    /// Highest round finished (worker: completed operations' round; server: published round).
    pub round: u64,
    /// Operations in flight.
    pub in_flight: u64,
    /// What waits, the longest first: a worker's oldest operation; at a server, the oldest of each of a few workers. And lanes
    /// that do not answer.
    pub waits: Vec<Wait>,
    /// Worker: its links.
    pub links: Vec<LinkReport>,
    /// Resident memory of its process.
    pub resident_bytes: u64,
    /// Server: what it has, and what it has room for.
    pub load: Option<ServerLoad>,
    /// Worker: numbers that its trainer reports, such as its loss, by name.
    pub metrics: Vec<(String, f64)>,
    /// What went wrong lately at the port of its RDMA device; none where nothing did.
    pub port: Option<PortReport>,
}

/// What a port of a RDMA device has counted over the last minute, at most, that should not happen: for all that use it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortReport {
    /// The device.
    pub device: String,
    /// Its port.
    pub port: u8,
    /// Packets or events, by the kernel's names for them, at most [`PORT_COUNTERS_MAX`](crate::limits::PORT_COUNTERS_MAX).
    pub trouble: Vec<(String, u64)>,
}

/// What a server has, and what it has room for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerLoad {
    /// Bytes of weights, accumulators and optimizer state.
    pub stored_bytes: u64,
    /// Inbox slots granted to nobody.
    pub credits_free: u64,
    /// Inbox slots.
    pub credits: u64,
    /// Spill blocks in use.
    pub spill_blocks_used: u64,
    /// Spill blocks.
    pub spill_blocks: u64,
}

/// Everything a member says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToScheduler {
    /// First message on the connection.
    Register(Register),
    /// Sign of life.
    Heartbeat(MemberReport),
    /// Worker: its links to all servers are up.
    LinksReady,
    /// Worker: these tensors exist. Answered by `Declared`.
    Declare {
        /// Echoed in the answer.
        request: u64,
        /// The tensors.
        tensors: Vec<TensorSpec>,
        /// How long to wait for servers before the answer names those that have not allocated.
        timeout_ms: u64,
    },
    /// Server: its part of the shard map of this epoch is allocated, or why not.
    Assigned {
        /// The epoch.
        epoch: Epoch,
        /// What went wrong.
        error: Option<NotTaken>,
    },
    /// Wait for everyone in the group. Answered by `Released`.
    Barrier {
        /// Echoed in the answer.
        request: u64,
        /// Barriers with different names do not meet.
        name: String,
        /// Who takes part.
        group: NodeGroup,
        /// How often this member has come through it before.
        passed: u64,
        /// How long to wait before the answer names who is missing.
        timeout_ms: u64,
    },
    /// The member leaves in good order.
    Goodbye,
    /// The member fails and leaves.
    Failing {
        /// Why.
        reason: String,
    },
    /// Worker: a declared tensor gets another rule. The first round of it is one that this worker has not contributed to,
    /// so that no chunk anywhere is past it. Answered by `Declared`, with nothing declared.
    ChangeRule {
        /// Echoed in the answer.
        request: u64,
        /// The change.
        change: RuleChange,
        /// How long to wait before the answer names the servers that did not take it.
        timeout_ms: u64,
    },
    /// Pass this on. Answered by one `PostAnswered` for each receiver.
    Post {
        /// Echoed in the answers.
        request: u64,
        /// For whom.
        to: PostTo,
        /// What.
        message: PostMessage,
        /// How long receivers have.
        timeout_ms: u64,
    },
    /// The answer to a `Posted`.
    PostReply {
        /// Its ticket.
        ticket: u64,
        /// The answer, or that there is none.
        result: Result<PostReply, PostError>,
    },
    /// Server: every chunk that it holds and that was being copied to `to`, as of this epoch, is there, and kept up.
    Seeded {
        /// The newest epoch this server knew when that was so.
        epoch: Epoch,
        /// Who has the copies.
        to: Rank,
    },
    /// What follows a registration with `resume`: the lists of it, in parts. `Welcome` comes after the last one.
    Resuming {
        /// A part.
        part: Resume,
        /// Nothing follows.
        last: bool,
    },
    /// Who is there? Asked instead of a registration, by a scheduler that finds its port taken. Answered by `Refused`.
    Identify,
    /// Server: it is to go, once others hold what it holds. It goes when a `Remap` has left it nothing, with a goodbye.
    Drain,
    /// Server: the answer to `AskRounds`. It has begun none of these rounds, nor will it before it hears of the decision.
    Rounds {
        /// The worker that is to count.
        rank: Rank,
        /// Its life.
        incarnation: Incarnation,
        /// The first round of each tensor that the worker can count in; tensors that nothing of is here are not named.
        rounds: RoundsPart,
    },
    /// Server: how a checkpoint goes.
    Checkpoint(CheckpointNews),
    /// Worker: write a checkpoint of the round that it has finished, before it contributes to the next. Answered by
    /// `CheckpointSaved`, when it is complete.
    SaveCheckpoint {
        /// Echoed in the answer.
        request: u64,
        /// The round.
        round: u64,
        /// How long to wait.
        timeout_ms: u64,
    },
    /// Operator, instead of a registration: write a checkpoint of a round that no server has reached. Answered by
    /// `CheckpointGoes` now and then, and by `CheckpointSaved` at the end.
    OrderCheckpoint {
        /// [`crate::limits::PROTOCOL_VERSION`] of the sender.
        protocol: u32,
        /// How long to wait.
        timeout_ms: u64,
    },
}
