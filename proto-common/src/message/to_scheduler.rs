//! Messages of members to the scheduler.

use super::checkpoint::CheckpointNews;
use super::post::{NodeGroup, PostError, PostMessage, PostReply, PostTo};
use super::resume::Resume;
use super::rounds::RoundsPart;
use super::wait::Wait;
use crate::ids::{Epoch, Incarnation, JobId, Rank, Role};
use crate::optimizer::OwnKind;
use crate::tensor::{RuleChange, TensorSpec};
use crate::transport::{Driver, Offer};
use serde::{Deserialize, Serialize};

/// Why a server cannot apply its assignment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotTaken {
    /// The reason, as text.
    pub reason: String,
    /// Whether the cause is the checkpoint that the job began from, and not a lack of resources on this server.
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
    /// Build of the sender, for display.
    pub build: String,
    /// The job it belongs to.
    pub job: JobId,
    /// Its role.
    pub role: Role,
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// The rank that it requests; the scheduler decides. [`Register::LAST`]: the highest free rank, for processes that
    /// must not take a rank that another one may request.
    pub wanted_rank: Option<Rank>,
    /// Servers: host and port of the data-plane bootstrap.
    pub data_address: Option<String>,
    /// Its HTTP address, if any.
    pub http_address: Option<String>,
    /// Its host's name, for display.
    pub host: Option<String>,
    /// Its process id, for display.
    pub pid: u32,
    /// The drivers that it offers.
    pub offer: Offer,
    /// Servers: update rules that their program has registered.
    pub rules: Vec<OwnKind>,
    /// It was a member before, with the same incarnation, and its scheduler has failed: its knowledge. Rank and epoch
    /// are here; the rest follows as `Resuming`, because the first message of an unknown peer is short.
    pub resume: Option<Resume>,
}

impl Register {
    /// Instead of a requested rank.
    pub const LAST: Rank = Rank(u32::MAX);
}

/// One data-plane link as its worker sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkReport {
    /// The server at the other end.
    pub server: Rank,
    /// The driver in use.
    pub driver: Driver,
    /// The reason for this driver.
    pub why: String,
    /// Payload bytes sent so far.
    pub sent_bytes: u64,
    /// Payload bytes received so far.
    pub received_bytes: u64,
}

/// A member's report with each heartbeat.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MemberReport {
    /// Highest completed round (worker: of completed operations; server: published).
    pub round: u64,
    /// Operations in flight.
    pub in_flight: u64,
    /// Waiting operations, the longest wait first. Worker: its oldest operation. Server: the oldest operation of each
    /// of a few workers. Also lanes that do not respond.
    pub waits: Vec<Wait>,
    /// Worker: its links.
    pub links: Vec<LinkReport>,
    /// Resident memory of its process.
    pub resident_bytes: u64,
    /// Server: its use of memory, and its capacity.
    pub load: Option<ServerLoad>,
    /// Worker: values that its trainer reports by name, such as its loss.
    pub metrics: Vec<(String, f64)>,
    /// Recent faults at the port of its RDMA device, if any.
    pub port: Option<PortReport>,
}

/// Error counters of an RDMA device's port over at most the last minute, for all processes that use it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortReport {
    /// The device.
    pub device: String,
    /// Its port.
    pub port: u8,
    /// Packets or events, with the kernel's names, at most [`PORT_COUNTERS_MAX`](crate::limits::PORT_COUNTERS_MAX).
    pub trouble: Vec<(String, u64)>,
}

/// A server's use of memory, and its capacity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerLoad {
    /// Bytes of weights, accumulators and optimizer state.
    pub stored_bytes: u64,
    /// Free inbox slots.
    pub credits_free: u64,
    /// Inbox slots.
    pub credits: u64,
    /// Spill blocks in use.
    pub spill_blocks_used: u64,
    /// Spill blocks.
    pub spill_blocks: u64,
    /// Bytes in quarantine: a peer whose channel has ended may be in the middle of a copy into them.
    pub quarantined_bytes: u64,
    /// The first worker that this waits for.
    pub quarantined_for: Option<Rank>,
}

/// All messages of members. The answer repeats the number of a `request`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(clippy::large_enum_variant, reason = "few are in memory at once")]
#[expect(missing_docs, reason = "a name that says it all needs no sentence")]
pub enum ToScheduler {
    /// First message on the connection.
    Register(Register),
    /// Heartbeat.
    Heartbeat(MemberReport),
    /// Worker: its links to all servers are connected.
    LinksReady,
    /// Worker: declare these tensors. Answered by `Declared`.
    Declare {
        request: u64,
        tensors: Vec<TensorSpec>,
        /// How long to wait for servers before the answer names those that have not allocated.
        timeout_ms: u64,
    },
    /// Server: the result of allocating its part of the shard map of this epoch.
    Assigned { epoch: Epoch, error: Option<NotTaken> },
    /// Wait for all members of the group. Answered by `Released`.
    Barrier {
        request: u64,
        /// Barriers with different names are independent.
        name: String,
        group: NodeGroup,
        /// How many times this member has passed this barrier before.
        passed: u64,
        /// How long to wait before the answer names the missing members.
        timeout_ms: u64,
    },
    /// The member leaves in good order.
    Goodbye,
    /// The member has failed and leaves.
    Failing { reason: String },
    /// Worker: change the rule of a declared tensor. The first round of the new rule is one that this worker has not
    /// contributed to, so no chunk has passed it. Answered by `Declared`, without declarations.
    ChangeRule {
        request: u64,
        change: RuleChange,
        /// How long to wait before the answer names the servers that did not confirm it.
        timeout_ms: u64,
    },
    /// Forward this message. Answered by one `PostAnswered` for each receiver.
    Post { request: u64, to: PostTo, message: PostMessage, timeout_ms: u64 },
    /// The answer to a `Posted`.
    PostReply { ticket: u64, result: Result<PostReply, PostError> },
    /// Server: replicas of all its chunks that were being made on `to`, as of this epoch, are up to date.
    Seeded { epoch: Epoch, to: Rank },
    /// The lists that follow a registration with `resume`, in parts. `Welcome` comes after the last one.
    Resuming { part: Resume, last: bool },
    /// Instead of a registration: a scheduler whose port is taken asks which process has it. Answered by `Refused`.
    Identify,
    /// Server: it wants to leave when other servers have its data. It leaves with a goodbye when a `Remap` has left it
    /// nothing.
    Drain,
    /// Server: the answer to `AskRounds`. It has begun none of these rounds, and begins none before it receives the
    /// decision.
    Rounds {
        rank: Rank,
        incarnation: Incarnation,
        /// The first round of each tensor in which the worker can count. Tensors without a chunk here are not listed.
        rounds: RoundsPart,
    },
    /// Server: progress of a checkpoint.
    Checkpoint(CheckpointNews),
    /// Worker: write a checkpoint of the round that it has completed, before it contributes to the next one. Answered
    /// by `CheckpointSaved` when the checkpoint is complete.
    SaveCheckpoint { request: u64, round: u64, timeout_ms: u64 },
    /// Operator, instead of a registration: write a checkpoint of a round that no server has reached. Answered by
    /// `CheckpointGoes` from time to time, and by `CheckpointSaved` at the end.
    OrderCheckpoint {
        /// [`crate::limits::PROTOCOL_VERSION`] of the sender.
        protocol: u32,
        timeout_ms: u64,
    },
    /// It votes for the scheduler (counter 0), or has stored the decisions up to this epoch.
    Heard { epoch: Epoch },
    /// It looks for another scheduler, because this one was silent. The connection closes, though the process continues.
    Abandons,
}
