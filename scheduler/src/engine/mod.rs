//! The scheduler's decisions: which processes are members, which have failed, where tensors are placed, when a barrier opens, and when the
//! job is over. The engine takes a message, a lost connection or a tick, with the time, and returns commands. It owns the machines that
//! decide, each with state of its own; `job` brings each input to them, and no machine imports the engine. It must not do I/O, read a
//! clock, log, or store anything but plain data. Commands carry ids, never senders or sockets.
//!
//! ```text
//!   register ──▶ Rebuild (waits for a majority) ──▶ Members ──┬─▶ Barriers, Comings
//!   closed, silent ─────────────────────────────────────────▶ ┼─▶ Declarations (Waiters, Shards) ──▶ Quorum ──▶ Roster, Remap
//!   declare, assigned, seeded ────────────────────────────────┘        │
//!   news of parts, requests ──▶ Checkpoints ◀── servers come and go ───┘
//!   post, reply ──▶ Posts
//! ```
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

mod barriers;
mod checkpoints;
mod comings;
mod command;
mod declarations;
mod job;
mod member;
mod members;
mod own_rules;
mod pace;
mod posts;
mod quorum;
mod rebuild;
mod report;
mod shards;
mod stragglers;
mod waiters;

use barriers::Barriers;
use checkpoints::Checkpoints;
pub use checkpoints::{CheckpointConfig, Clearing, Completed, Stopped, Unusable};
use comings::Comings;
pub use command::{Command, Note, Outcome};
use command::{let_go, refuse, send, send_to};
use declarations::Declarations;
pub use job::Standing;
pub use member::{ConnectionId, LOCAL};
use members::Members;
use posts::Posts;
use proto_common::config::Settings;
use proto_common::error::Death;
use proto_common::ids::{Epoch, Incarnation, JobId, MemberId, Role};
use proto_common::message::{ClusterShape, FromScheduler, ToScheduler};
use quorum::Quorum;
pub use quorum::named;
use rebuild::Rebuild;

/// What the engine must know about its job. All durations in milliseconds.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// The job; members of others are refused.
    pub job: JobId,
    /// The cluster's shape, as members are told.
    pub shape: ClusterShape,
    /// Which scheduler life this is, from 1.
    pub term: u32,
    /// Random id of this life.
    pub scheduler: Incarnation,
    /// How long members may take to come.
    pub assemble_ms: u64,
    /// How long members may take to leave.
    pub drain_ms: u64,
    /// How long a worker that died may take to come again, where it is waited for.
    pub rejoin_ms: u64,
    /// Shards move so that bytes balance.
    pub rebalance: bool,
    /// A job goes on whose scheduler is gone: nothing begins before its members have come.
    pub resume: bool,
    /// An operator says that members of that job that do not come have exited: no majority of them is needed.
    pub force: bool,
    /// Operating system process id, for people.
    pub pid: u32,
    /// What there is of checkpoints.
    pub checkpoints: CheckpointConfig,
}

impl EngineConfig {
    /// From validated settings.
    #[must_use]
    pub fn new(settings: &Settings, scheduler: Incarnation) -> Self {
        Self {
            job: settings.job,
            shape: settings.shape(),
            term: 1,
            scheduler,
            assemble_ms: settings.deadlines.assemble_ms,
            drain_ms: settings.deadlines.drain_ms,
            checkpoints: CheckpointConfig::default(),
            rejoin_ms: settings.deadlines.rejoin_ms,
            rebalance: settings.cluster.rebalance,
            resume: false,
            force: false,
            pid: 0,
        }
    }
}

/// What happened.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "lives for one call")]
#[expect(missing_docs, reason = "a name that says it all needs no sentence")]
pub enum Input {
    /// A connection said something.
    Message { from: ConnectionId, message: ToScheduler },
    /// A connection is gone. `fault` is what the peer did wrong, where it did not just close.
    Closed { connection: ConnectionId, fault: Option<String> },
    /// A message of a member was not sent to a receiver: too much waits for it.
    NotPosted { ticket: u64, to: ConnectionId },
    /// The manifest of a checkpoint is written, under this name, or why not.
    ManifestWritten { round: u64, result: Result<String, String> },
    /// What came of a checkpoint that was given up is removed, or why not.
    ClearedAway { clearing: Clearing, result: Result<(), String> },
    /// Another scheduler of this job owns its checkpoints.
    Deposed { why: Unusable },
    /// Time has passed.
    Tick,
    /// The scheduler is asked to stop.
    Stop { reason: String },
}

#[derive(Clone, Debug, PartialEq)]
enum Phase {
    Assembling,
    /// The scheduler before this one has exited, and the members report what they know.
    Rebuilding,
    Running,
    Ending {
        outcome: Outcome,
        deadline_ms: u64,
    },
    Ended {
        outcome: Outcome,
    },
}

/// What the end of a job waits for: checkpoints in progress, then those of which only the manifest is missing.
#[derive(Clone, Debug, PartialEq)]
struct Saving {
    until_ms: u64,
    only_manifests: bool,
    /// Servers that have failed meanwhile: they are needed only if a worker joins yet.
    unheeded: Vec<Death>,
}

/// The scheduler's state.
#[derive(Debug)]
pub struct Engine {
    config: EngineConfig,
    started_ms: u64,
    phase: Phase,
    epoch: Epoch,
    members: Members,
    declarations: Declarations,
    barriers: Barriers,
    posts: Posts,
    checkpoints: Checkpoints,
    /// While rebuilding: what members have said.
    rebuild: Rebuild,
    comings: Comings,
    quorum: Quorum,
    /// The newest complete checkpoint, for errors.
    last_checkpoint: Option<String>,
    /// All workers are done, and a checkpoint under way is waited for.
    saving: Option<Saving>,
    /// What people are to hear of the last step.
    notes: Vec<Note>,
    /// When something last happened: a scheduler that was not running cannot judge silence.
    awake_ms: u64,
    /// When anything but a heartbeat or the time last came.
    stirred_ms: u64,
    /// No member counts as silent before.
    silence_due_ms: u64,
}

impl Engine {
    /// An empty cluster at `now_ms`.
    #[must_use]
    pub fn new(config: EngineConfig, now_ms: u64) -> Self {
        Self {
            started_ms: now_ms,
            phase: if config.resume { Phase::Rebuilding } else { Phase::Assembling },
            epoch: Epoch { term: config.term, counter: 0 },
            members: Members::new(config.shape.servers),
            declarations: Declarations::new(&config.shape),
            barriers: Barriers::new(&config.shape),
            posts: Posts::default(),
            checkpoints: Checkpoints::new(config.checkpoints.has_place),
            rebuild: Rebuild::default(),
            comings: Comings::default(),
            quorum: Quorum::default(),
            last_checkpoint: config.checkpoints.last.clone(),
            saving: None,
            notes: Vec::new(),
            awake_ms: now_ms,
            stirred_ms: now_ms,
            silence_due_ms: now_ms,
            config,
        }
    }

    /// Takes what happened at `now_ms`, which never goes back.
    pub fn handle(&mut self, now_ms: u64, input: Input) -> Vec<Command> {
        let mut out = Vec::new();
        self.notes.clear();
        if !matches!(self.phase, Phase::Ended { .. }) {
            self.take(now_ms, input, &mut out);
        }
        out
    }

    /// When the next `Tick` is due at the latest. Silence is checked once a heartbeat period, and more rarely where only heartbeats have
    /// come for a while. A later call must not put off a tick that an earlier one asked for.
    #[must_use]
    pub fn next_tick_ms(&self, now_ms: u64) -> u64 {
        let shape = &self.config.shape;
        let rare_ms = shape.rare_heartbeat_ms();
        let [soon, rare] = [shape.heartbeat_ms.max(1), rare_ms].map(|ms| now_ms + ms);
        let is_calm = self.phase == Phase::Running && now_ms >= self.stirred_ms + 2 * rare_ms;
        let periodic = if is_calm { self.silence_due_ms.clamp(soon, rare.max(soon)) } else { soon };
        let phase = match &self.phase {
            Phase::Assembling => self.started_ms + self.config.assemble_ms,
            Phase::Rebuilding | Phase::Running | Phase::Ended { .. } => periodic,
            Phase::Ending { deadline_ms, .. } => *deadline_ms,
        };
        let waits = [
            self.members.next_deadline_ms(),
            self.rebuild_deadline_ms(),
            self.comings.next_deadline_ms(),
            self.barriers.next_deadline_ms(),
            self.declarations.next_deadline_ms(),
            self.posts.next_deadline_ms(),
            self.checkpoints.next_deadline_ms(),
            self.saving.as_ref().map(|saving| saving.until_ms),
        ];
        waits.into_iter().flatten().fold(periodic.min(phase), u64::min)
    }

    /// What has happened in the last step.
    pub fn take_notes(&mut self) -> Vec<Note> {
        std::mem::take(&mut self.notes)
    }

    fn note(&mut self, note: Note) {
        self.notes.push(note);
    }

    /// The epoch in force.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Are there decisions that are not in force yet? Until they are, the majority is that of the roster before them.
    #[must_use]
    pub fn has_undecided(&self) -> bool {
        self.quorum.has_undecided()
    }

    /// Whose connection this is.
    #[must_use]
    pub fn member_of(&self, connection: ConnectionId) -> Option<MemberId> {
        self.members.on(connection)
    }

    /// Is the goodbye of this connection still to be answered?
    #[must_use]
    pub fn is_leaving(&self, connection: ConnectionId) -> bool {
        self.quorum.is_leaving(connection)
    }

    /// This scheduler is run by a program, which comes to barriers of groups that hold it.
    #[must_use]
    pub fn with_program(mut self) -> Self {
        self.barriers.count_program();
        self
    }

    /// A message to all members of a role that are there.
    fn to_all(&self, role: Role, message: FromScheduler) -> Command {
        send_to(self.members.connections(|id| id.role == role), message)
    }

    /// A message to all members that are there.
    fn to_everyone(&self, message: FromScheduler) -> Command {
        send_to(self.members.connections(|_| true), message)
    }

    /// All places of the cluster, servers first.
    fn places(&self) -> impl Iterator<Item = MemberId> + use<> {
        member::places(&self.config.shape)
    }
}

#[cfg(test)]
mod tests;
