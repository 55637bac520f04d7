//! What each input does to the job: it is brought to the machines that it concerns, and what one of them returns is another one's
//! input. The files below `job/` do so for one kind of input each. They must not keep state: the engine owns the machines.

mod checkpoints;
mod coming;
mod deciding;
mod ending;
mod losses;
mod rebuild;
mod registration;
mod seats;
mod shards;
mod status;
mod strangers;
mod wake;

use super::barriers::{self, release};
use super::command::{Command, send};
use super::declarations::{Step, declared};
use super::member::{ConnectionId, LOCAL, SCHEDULER};
use super::posts::Post;
use super::report::bounded;
use super::waiters::Asker;
use super::{Engine, Input, Phase, own_rules};
use proto_common::ids::{MemberId, Role};
use proto_common::message::{DeclareError, FromScheduler, NodeGroup, PostTo, ToScheduler};
use proto_common::optimizer::OwnKind;
use proto_common::tensor::{RuleChange, TensorSpec};
use std::collections::BTreeSet;
pub use strangers::Standing;

impl Engine {
    /// Takes what happened at `now_ms`.
    pub(super) fn take(&mut self, now_ms: u64, input: Input, out: &mut Vec<Command>) {
        self.wake(now_ms, out);
        if !matches!(input, Input::Tick | Input::Message { message: ToScheduler::Heartbeat(_), .. }) {
            self.stirred_ms = now_ms;
        }
        match input {
            Input::Message { from, message } => self.message(now_ms, from, message, out),
            Input::Closed { connection, fault } => self.closed(now_ms, connection, fault, out),
            Input::NotPosted { ticket, to } => self.posts.refuse((ticket, to), out),
            Input::ManifestWritten { round, result } => {
                let newest = self.checkpoints.written(round, result, out);
                self.last_checkpoint = newest.or(self.last_checkpoint.take());
                self.begin_checkpoints(out);
            }
            Input::ClearedAway { clearing, result } => self.checkpoints.cleared(clearing, result),
            Input::Deposed { why } => self.deposed(now_ms, why, out),
            Input::Tick => self.tick(now_ms, out),
            Input::Stop { reason } => self.stop(now_ms, &reason, out),
        }
        self.end_if_saved(now_ms, out);
        self.propose(out);
        self.end_if_empty(now_ms, out);
        self.notes.extend(self.checkpoints.take_news());
    }

    fn message(&mut self, now_ms: u64, from: ConnectionId, message: ToScheduler, out: &mut Vec<Command>) {
        if from == LOCAL {
            return self.local(now_ms, message, out);
        }
        let Some(id) = self.member_of(from) else { return self.stranger(now_ms, from, message, out) };
        if !self.members.heard(id, now_ms) {
            return;
        }
        match message {
            ToScheduler::Register(_) => {
                self.fault(now_ms, id, "it registered twice on one connection".into(), out);
            }
            ToScheduler::Heartbeat(report) => {
                let report = bounded(report, self.config.shape.server_places);
                self.members.take_report(id, now_ms, report);
                out.push(send(from, FromScheduler::HeartbeatAck));
            }
            ToScheduler::LinksReady => self.members.links_ready(id),
            ToScheduler::Declare { request, tensors, timeout_ms } => {
                self.declare(id, Asker::new(from, request, now_ms, timeout_ms), tensors, out);
            }
            ToScheduler::ChangeRule { request, change, timeout_ms } => {
                self.change_rule(id, Asker::new(from, request, now_ms, timeout_ms), change, out);
            }
            ToScheduler::Assigned { epoch, error } => self.assigned(now_ms, (id, epoch), error, out),
            ToScheduler::Barrier { request, name, group, passed, timeout_ms } => {
                let who = barriers::Arrival::new(id, from, (request, passed), now_ms, timeout_ms);
                self.arrive(who, name, group, out);
            }
            ToScheduler::Post { request, to, message, timeout_ms } => {
                let post = Post { asker: from, sender: id, request, message, timeout_ms };
                self.post(now_ms, to, post, out);
            }
            ToScheduler::PostReply { ticket, result } => self.posts.reply((ticket, from), result, out),
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
                self.rounds(id, (rank, incarnation), rounds, out);
            }
            ToScheduler::Goodbye => self.goodbye(now_ms, id, out),
            ToScheduler::Heard { epoch } => self.heard(id, epoch),
            ToScheduler::Abandons => self.members.abandon(id),
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

    /// The rules of the servers that are there, or wait for a rank; `None` if there is no server.
    fn own_rules(&self) -> Option<&[OwnKind]> {
        let mut waiting = self.rebuild.waiting().filter(|register| register.role == Role::Server);
        let of_member = self.members.there_as(Role::Server).next().map(|(_, member)| &member.rules[..]);
        of_member.or_else(|| waiting.next().map(|register| &register.rules[..]))
    }

    fn declare(&mut self, id: MemberId, who: Asker, mut tensors: Vec<TensorSpec>, out: &mut Vec<Command>) {
        let settled = self.may_declare(id).and_then(|()| own_rules::settle(self.own_rules(), &mut tensors));
        let step = match settled {
            Ok(()) => self.declarations.declare(who, tensors, &self.members.servers(), &mut self.epoch),
            Err(error) => Step::Answer(Err(error)),
        };
        self.follow(who, step, out);
    }

    fn change_rule(&mut self, id: MemberId, who: Asker, change: RuleChange, out: &mut Vec<Command>) {
        let settled = self.may_declare(id).and_then(|()| own_rules::settle_change(self.own_rules(), change));
        let step = match settled {
            Ok(change) => self.declarations.change(who, change, &self.members.servers(), &mut self.epoch),
            Err(error) => Step::Answer(Err(error)),
        };
        self.follow(who, step, out);
    }

    fn follow(&mut self, who: Asker, step: Step, out: &mut Vec<Command>) {
        match step {
            Step::Answer(result) => declared([who.answer(result)], out),
            Step::Wait => {}
            // Every server gets it, also one that holds none of it: no worker may know an epoch that a server does not.
            Step::Assign(update) => out.push(self.to_all(Role::Server, FromScheduler::Assign(update))),
            Step::Change(epoch, change) => {
                out.push(self.to_all(Role::Server, FromScheduler::ChangeRule { epoch, change }));
            }
        }
    }

    /// What the scheduler's own program says.
    fn local(&mut self, now_ms: u64, message: ToScheduler, out: &mut Vec<Command>) {
        match message {
            ToScheduler::Post { request, to, message, timeout_ms } => {
                let post = Post { asker: LOCAL, sender: SCHEDULER, request, message, timeout_ms };
                self.post(now_ms, to, post, out);
            }
            ToScheduler::PostReply { ticket, result } => self.posts.reply((ticket, LOCAL), result, out),
            ToScheduler::Barrier { request, name, group, passed, timeout_ms } => {
                let who = barriers::Arrival::new(SCHEDULER, LOCAL, (request, passed), now_ms, timeout_ms);
                self.arrive(who, name, group, out);
            }
            // Only messages and barriers come from there.
            _ => {}
        }
    }

    /// A message is passed on to all that it is for: places of the job's shape, and those that somebody has taken beside them.
    fn post(&mut self, now_ms: u64, to: PostTo, post: Post, out: &mut Vec<Command>) {
        let taken = self.members.iter().map(|(id, _)| id);
        let places: BTreeSet<MemberId> = self.places().chain(taken).collect();
        let receivers = places.into_iter().chain([SCHEDULER]).filter(|id| to.holds(*id));
        let receivers: Vec<_> = receivers.map(|id| (id, self.connection_of(id))).collect();
        let not_now = match self.phase {
            Phase::Assembling | Phase::Rebuilding => Some("the cluster is not complete yet"),
            Phase::Ending { .. } | Phase::Ended { .. } => Some("the job is ending"),
            Phase::Running => None,
        };
        self.posts.post(now_ms, post, &receivers, not_now, out);
    }

    /// On which connection somebody can be reached now.
    fn connection_of(&self, id: MemberId) -> Option<ConnectionId> {
        let member = || self.members.get(id).filter(|member| !member.gone);
        if id == SCHEDULER { Some(LOCAL) } else { member().map(|member| member.connection) }
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
