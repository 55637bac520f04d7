//! The scheduler's decisions: who is a member, who is dead, where tensors go, when a barrier opens, when the
//! job is over. Takes a message, a loss or a tick with the time, returns commands. It must not do I/O, read
//! a clock, log, or hold anything but plain data; commands carry ids, never senders or sockets.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

mod barriers;
mod checkpoints;
mod coming;
mod command;
mod copies;
mod declarations;
mod ending;
mod losses;
mod member;
mod moves;
mod ordered;
mod own_rules;
mod pace;
mod posts;
mod queued;
mod quorum;
mod rebuild;
mod registration;
mod report;
mod roster;
mod shards;
mod status;
mod stragglers;
mod strangers;

use barriers::{Barriers, release};
use checkpoints::Checkpoints;
pub use checkpoints::{CheckpointConfig, Clearing, Completed, Stopped, Unusable};
pub use command::{Command, Note, Outcome};
use command::{deadline_ms, let_go, refuse, send, send_to};
use declarations::{Asker, Declarations, Step, declared};
use member::{Changes, Comings, Dead, Member};
pub use member::{ConnectionId, LOCAL};
use posts::Posts;
use proto_common::config::Settings;
use proto_common::error::Death;
use proto_common::ids::{Epoch, Incarnation, JobId, MemberId, Rank, Role};
use proto_common::message::{ClusterShape, DeclareError, FromScheduler, NodeGroup, ToScheduler};
use quorum::Quorum;
pub use quorum::named;
use rebuild::Rebuild;
use report::bounded;
use shards::Servers;
use std::collections::BTreeMap;
pub use strangers::Standing;

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
pub enum Input {
    /// A connection said something.
    Message {
        /// Which.
        from: ConnectionId,
        /// What.
        message: ToScheduler,
    },
    /// A connection is gone.
    Closed {
        /// Which.
        connection: ConnectionId,
        /// What the peer did wrong, where it did not just close.
        fault: Option<String>,
    },
    /// A message of a member was not sent to a receiver: too much waits for it.
    NotPosted {
        /// The message's number.
        ticket: u64,
        /// Who did not get it.
        to: ConnectionId,
    },
    /// The manifest of a checkpoint is written, under this name, or why not.
    ManifestWritten {
        /// The checkpoint.
        round: u64,
        /// Its name, or what went wrong.
        result: Result<String, String>,
    },
    /// What came of a checkpoint that was given up is removed, or why not.
    ClearedAway {
        /// What was to go.
        clearing: Clearing,
        /// What went wrong.
        result: Result<(), String>,
    },
    /// Another scheduler of this job owns its checkpoints.
    Deposed {
        /// Which.
        why: Unusable,
    },
    /// Time has passed.
    Tick,
    /// The scheduler is asked to stop.
    Stop {
        /// Why.
        reason: String,
    },
}

#[derive(Clone, Debug, PartialEq)]
enum Phase {
    Assembling,
    /// A scheduler before this one is gone, and its members say what they know.
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

/// A worker that died and may come again.
#[derive(Clone, Debug)]
struct Awaited {
    deadline_ms: u64,
    death: Death,
}

/// What the end of a job waits for: checkpoints in progress, then those of which only the manifest is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Saving {
    until_ms: u64,
    only_manifests: bool,
}

/// The scheduler's state.
#[derive(Debug)]
pub struct Engine {
    config: EngineConfig,
    started_ms: u64,
    phase: Phase,
    epoch: Epoch,
    members: BTreeMap<MemberId, Member>,
    /// Connections of members that have not closed.
    connections: BTreeMap<ConnectionId, MemberId>,
    declarations: Declarations,
    barriers: Barriers,
    posts: Posts,
    checkpoints: Checkpoints,
    dead: Dead,
    /// Workers that died and are waited for, by rank.
    awaited: BTreeMap<Rank, Awaited>,
    /// Copies are missing, or bytes are not level, as far as is known.
    unsettled: bool,
    /// For what nothing was to be decided: the epoch, the decisions that servers have not answered, and the servers.
    planned_for: Option<(Epoch, usize, Servers)>,
    /// While rebuilding: what members have said.
    rebuild: Rebuild,
    comings: Comings,
    quorum: Quorum,
    changes: Changes,
    /// The newest complete checkpoint, for errors.
    last_checkpoint: Option<String>,
    /// All workers are done, and a checkpoint under way is waited for.
    saving: Option<Saving>,
    /// Servers that died since then.
    unheeded: Vec<Death>,
    /// What people are to hear of the last step.
    notes: Vec<Note>,
    /// When something last happened: a scheduler that was not running cannot judge silence.
    awake_ms: u64,
}

impl Engine {
    /// An empty cluster at `now_ms`.
    #[must_use]
    pub fn new(config: EngineConfig, now_ms: u64) -> Self {
        Self {
            started_ms: now_ms,
            phase: if config.resume { Phase::Rebuilding } else { Phase::Assembling },
            epoch: Epoch { term: config.term, counter: 0 },
            members: BTreeMap::new(),
            connections: BTreeMap::new(),
            declarations: Declarations::new(&config.shape),
            barriers: Barriers::new(&config.shape),
            posts: Posts::default(),
            checkpoints: Checkpoints::new(config.checkpoints.has_place),
            dead: Dead::default(),
            awaited: BTreeMap::new(),
            unsettled: false,
            planned_for: None,
            rebuild: Rebuild::default(),
            comings: Comings::default(),
            quorum: Quorum::default(),
            changes: Changes { servers: config.shape.servers, ..Changes::default() },
            last_checkpoint: config.checkpoints.last.clone(),
            saving: None,
            unheeded: Vec::new(),
            notes: Vec::new(),
            awake_ms: now_ms,
            config,
        }
    }

    /// Takes what happened at `now_ms`, which never goes back.
    pub fn handle(&mut self, now_ms: u64, input: Input) -> Vec<Command> {
        let mut out = Vec::new();
        self.notes.clear();
        if matches!(self.phase, Phase::Ended { .. }) {
            return out;
        }
        self.wake(now_ms, &mut out);
        match input {
            Input::Message { from, message } => self.message(now_ms, from, message, &mut out),
            Input::Closed { connection, fault } => self.closed(now_ms, connection, fault, &mut out),
            Input::NotPosted { ticket, to } => self.posts.refuse((ticket, to), &mut out),
            Input::ManifestWritten { round, result } => {
                let newest = self.checkpoints.written(round, result, &mut out);
                self.last_checkpoint = newest.or(self.last_checkpoint.take());
                self.ask_servers(&mut out);
            }
            Input::ClearedAway { clearing, result } => self.checkpoints.cleared(clearing, result),
            Input::Deposed { why } => self.deposed(now_ms, why, &mut out),
            Input::Tick => self.tick(now_ms, &mut out),
            Input::Stop { reason } => self.stop(now_ms, &reason, &mut out),
        }
        self.end_if_saved(now_ms, &mut out);
        self.propose(&mut out);
        self.end_if_empty(now_ms, &mut out);
        self.notes.extend(self.checkpoints.take_news());
        out
    }

    /// When the next `Tick` is due at the latest. Silence is checked once a heartbeat period: a later call
    /// must not put off a tick that an earlier one asked for.
    #[must_use]
    pub fn next_tick_ms(&self, now_ms: u64) -> u64 {
        let periodic = now_ms + self.config.shape.heartbeat_ms.max(1);
        let phase = match &self.phase {
            Phase::Assembling => self.started_ms + self.config.assemble_ms,
            Phase::Rebuilding | Phase::Running | Phase::Ended { .. } => periodic,
            Phase::Ending { deadline_ms, .. } => *deadline_ms,
        };
        let waits = [
            self.awaited.values().map(|awaited| awaited.deadline_ms).min(),
            self.rebuild_deadline_ms(),
            self.comings.next_deadline_ms(),
            self.barriers.next_deadline_ms(),
            self.declarations.next_deadline_ms(),
            self.posts.next_deadline_ms(),
            self.checkpoints.next_deadline_ms(),
            self.saving.map(|saving| saving.until_ms),
        ];
        waits.into_iter().flatten().fold(periodic.min(phase), u64::min)
    }

    /// What has happened in the last step.
    pub fn take_notes(&mut self) -> Vec<Note> {
        std::mem::take(&mut self.notes)
    }

    pub(super) fn note(&mut self, note: Note) {
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
        self.connections.get(&connection).copied()
    }

    /// Is the goodbye of this connection still to be answered?
    #[must_use]
    pub fn is_leaving(&self, connection: ConnectionId) -> bool {
        self.quorum.is_leaving(connection)
    }

    fn message(&mut self, now_ms: u64, from: ConnectionId, message: ToScheduler, out: &mut Vec<Command>) {
        if from == LOCAL {
            return self.local(now_ms, message, out);
        }
        let Some(id) = self.member_of(from) else { return self.stranger(now_ms, from, message, out) };
        let Some(member) = self.members.get_mut(&id) else { return };
        member.heard_ms = now_ms;
        match message {
            ToScheduler::Register(_) => {
                self.fault(now_ms, id, "it registered twice on one connection".into(), out);
            }
            ToScheduler::Heartbeat(report) => {
                member.take_report(now_ms, bounded(report, self.config.shape.server_places));
                out.push(send(from, FromScheduler::HeartbeatAck));
            }
            ToScheduler::LinksReady => member.links_ready = true,
            ToScheduler::Declare { request, mut tensors, timeout_ms } => {
                let step = match self.may_declare(id).and_then(|()| self.settle_rules(&mut tensors)) {
                    Ok(()) => {
                        let who = Asker::new(from, request, now_ms, timeout_ms);
                        self.declarations.declare(who, tensors, &self.servers(), &mut self.epoch)
                    }
                    Err(error) => Step::Answer(Err(error)),
                };
                self.follow(from, request, step, out);
            }
            ToScheduler::ChangeRule { request, change, timeout_ms } => {
                let step = match self.may_declare(id).and_then(|()| self.settle_change(change)) {
                    Ok(change) => {
                        let who = Asker::new(from, request, now_ms, timeout_ms);
                        self.declarations.change(who, change, &self.servers(), &mut self.epoch)
                    }
                    Err(error) => Step::Answer(Err(error)),
                };
                self.follow(from, request, step, out);
            }
            ToScheduler::Assigned { epoch, error } => self.assigned(now_ms, (id, epoch), error, out),
            ToScheduler::Barrier { request, name, group, passed, timeout_ms } => {
                let who = barriers::Arrival::new(id, from, (request, passed), now_ms, timeout_ms);
                self.arrive(who, name, group, out);
            }
            ToScheduler::Post { request, to, message, timeout_ms } => {
                self.post(now_ms, (from, id, request), to, message, timeout_ms, out);
            }
            ToScheduler::PostReply { ticket, result } => self.post_reply(from, ticket, result, out),
            ToScheduler::Checkpoint(news) => self.checkpoint_news(id, news, out),
            ToScheduler::SaveCheckpoint { request, round, timeout_ms } => {
                self.save_checkpoint(now_ms, (from, id, request), (round, timeout_ms), out);
            }
            ToScheduler::Seeded { epoch, to } => self.seeded(id, epoch, to, out),
            ToScheduler::Drain => self.drain(id, out),
            ToScheduler::Resuming { .. } | ToScheduler::Identify | ToScheduler::OrderCheckpoint { .. } => {
                self.fault(now_ms, id, "it sent a message that belongs before the registration".into(), out);
            }
            ToScheduler::Rounds { rank, incarnation, rounds } => {
                self.rounds(id, rank, incarnation, rounds, out);
            }
            ToScheduler::Goodbye => self.goodbye(now_ms, id, out),
            ToScheduler::Heard { epoch } => self.heard(id, epoch),
            ToScheduler::Abandons => self.abandoned(id),
            ToScheduler::Failing { reason } => self.failing(now_ms, id, reason, out),
        }
    }

    fn arrive(&mut self, who: barriers::Arrival, name: String, group: NodeGroup, out: &mut Vec<Command>) {
        let answers = match self.phase {
            Phase::Assembling | Phase::Rebuilding | Phase::Running => self.barriers.enter(who, name, group),
            Phase::Ending { .. } | Phase::Ended { .. } => vec![who.refused(name, "the job is ending")],
        };
        release(answers, out);
    }

    /// This scheduler is run by a program, which comes to barriers of groups that hold it.
    #[must_use]
    pub fn with_program(mut self) -> Self {
        self.barriers.count_program();
        self
    }

    fn may_declare(&self, id: MemberId) -> Result<(), DeclareError> {
        let why = match (&self.phase, id.role) {
            (Phase::Running, Role::Worker) => return Ok(()),
            (Phase::Running, _) => "only workers declare tensors",
            (Phase::Assembling, _) => "the cluster is not complete yet; wait for the roster before declaring",
            (Phase::Rebuilding, _) => "the scheduler is waiting for the members of its job; declare again",
            (Phase::Ending { .. } | Phase::Ended { .. }, _) => "the job is ending",
        };
        Err(DeclareError::NotNow(why.into()))
    }

    fn follow(&mut self, from: ConnectionId, request: u64, step: Step, out: &mut Vec<Command>) {
        match step {
            Step::Answer(result) => out.push(send(from, FromScheduler::Declared { request, result })),
            Step::Wait => {}
            // Every server gets it, also one that holds none of it: no worker may know an epoch that a server does not.
            Step::Assign(update) => out.push(self.to_all(Role::Server, FromScheduler::Assign(update))),
            Step::Change(epoch, change) => {
                out.push(self.to_all(Role::Server, FromScheduler::ChangeRule { epoch, change }));
            }
        }
    }

    /// Connections of the members that are there and that `wanted` picks, by role and rank.
    fn present(&self, wanted: impl Fn(MemberId) -> bool) -> Vec<ConnectionId> {
        let there =
            |(id, member): (&MemberId, &Member)| (!member.gone && wanted(*id)).then_some(member.connection);
        self.members.iter().filter_map(there).collect()
    }

    /// A message to all members of a role that are there.
    fn to_all(&self, role: Role, message: FromScheduler) -> Command {
        send_to(self.present(|id| id.role == role), message)
    }

    /// All places of the cluster, servers first.
    fn places(&self) -> impl Iterator<Item = MemberId> + use<> {
        member::places(&self.config.shape)
    }

    /// Places of the job's shape, and those that somebody has taken beside them.
    fn known_places(&self) -> std::collections::BTreeSet<MemberId> {
        self.places().chain(self.members.keys().copied()).collect()
    }
}

fn name_of(message: &ToScheduler) -> &'static str {
    match message {
        ToScheduler::Register(_) => "a registration",
        ToScheduler::Heartbeat(_) => "a heartbeat",
        ToScheduler::LinksReady => "a links-ready message",
        ToScheduler::Declare { .. } => "a declaration",
        ToScheduler::ChangeRule { .. } => "a change of a rule",
        ToScheduler::Assigned { .. } => "an assignment's answer",
        ToScheduler::Barrier { .. } => "a barrier",
        ToScheduler::Seeded { .. } => "a word about copies",
        ToScheduler::Resuming { .. } => "a member's knowledge",
        ToScheduler::Identify => "a question who is there",
        ToScheduler::OrderCheckpoint { .. } => "an operator's wish for a checkpoint",
        ToScheduler::Drain => "a server's wish to go",
        ToScheduler::Rounds { .. } => "the rounds that a worker can count in",
        ToScheduler::Post { .. } => "a message for others",
        ToScheduler::PostReply { .. } => "an answer to a message",
        ToScheduler::Checkpoint(_) => "a word about a checkpoint",
        ToScheduler::SaveCheckpoint { .. } => "a wish for a checkpoint",
        ToScheduler::Goodbye => "a goodbye",
        ToScheduler::Heard { .. } => "an answer to a proposal",
        ToScheduler::Abandons => "a notice that it looks for another scheduler",
        ToScheduler::Failing { .. } => "a failure report",
    }
}

#[cfg(test)]
mod tests;
