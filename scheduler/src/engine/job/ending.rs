//! How members leave and how the job ends: goodbyes, silence, deadlines, the drain. `losses` decides what a failure means. All
//! members report the same failure as the end of the job.

use super::super::barriers::release;
use super::super::declarations::declared;
use super::super::member::Member;
use super::super::report::cut_to;
use super::super::{
    Command, ConnectionId, Engine, Note, Outcome, Phase, Saving, Unusable, refuse, send, send_to,
};
use super::rebuild::later;
use proto_common::config::WorkerLoss;
use proto_common::error::{Death, DeathCause};
use proto_common::ids::{MemberId, Rank, Role};
use proto_common::limits::MANIFEST_MS_MAX;
use proto_common::message::{FromScheduler, RefusalReason};

/// The largest reason that a member may report for its failure, in bytes.
const REASON_BYTES_MAX: usize = 2048;

impl Engine {
    /// A member's connection is gone, or it broke the protocol.
    pub(super) fn closed(
        &mut self,
        now_ms: u64,
        connection: ConnectionId,
        fault: Option<String>,
        out: &mut Vec<Command>,
    ) {
        self.rebuild.forget(connection);
        self.checkpoints.forget(connection);
        self.quorum.forget(connection);
        let Some(id) = self.member_of(connection) else { return };
        let Some(member) = self.members.get(id).filter(|member| !member.is_away) else { return };
        if fault.is_none() {
            if now_ms.saturating_sub(member.heard_ms) > self.config.shape.silence_ms {
                // If the network was cut, the kernel may close the connection of a process that still runs: the process has abandoned this
                // scheduler, and its notice was lost.
                return self.members.abandon(id);
            }
            self.exited(id);
        }
        self.forget(id, out);
        let cause = fault.map_or(DeathCause::ConnectionLost, |reason| DeathCause::Failed { reason });
        self.death(now_ms, Death { member: id, cause }, out);
    }

    /// A member's process has exited, or is about to: it is on no other side of a divided network.
    fn exited(&mut self, id: MemberId) {
        if let Some(member) = self.members.get(id) {
            self.quorum.exits(member.incarnation);
        }
    }

    /// A member violated the protocol: its connection is closed, and it counts as failed.
    pub(super) fn fault(&mut self, now_ms: u64, id: MemberId, reason: String, out: &mut Vec<Command>) {
        self.disconnect(id, out);
        self.death(now_ms, Death { member: id, cause: DeathCause::Failed { reason } }, out);
    }

    /// A member reports its own failure.
    pub(super) fn failing(&mut self, now_ms: u64, id: MemberId, mut reason: String, out: &mut Vec<Command>) {
        cut_to(&mut reason, REASON_BYTES_MAX);
        self.exited(id);
        self.fault(now_ms, id, reason, out);
    }

    /// A member says goodbye: a worker when it is done, a server after SIGTERM.
    pub(super) fn goodbye(&mut self, now_ms: u64, id: MemberId, out: &mut Vec<Command>) {
        let Some(connection) = self.members.get(id).map(|member| member.connection) else { return };
        // While the job runs, a goodbye is answered after the other members have been notified. If only this scheduler knew of it and
        // failed, the next scheduler would wait for this member; the notified members report it.
        let ack = send(connection, FromScheduler::GoodbyeAck);
        // The process exits in every case, and answers nothing more.
        self.exited(id);
        if (&self.phase, id.role) == (&Phase::Running, Role::Server) && self.server_leaves(id, out) {
            return self.quorum.let_go(self.epoch, connection);
        }
        match (&self.phase, id.role) {
            (Phase::Assembling, _) => {
                out.push(ack);
                return self.fault(now_ms, id, "it left before the cluster was complete".into(), out);
            }
            (Phase::Running, Role::Server) => {
                out.push(ack);
                return self.fault(now_ms, id, "it left while workers still needed it".into(), out);
            }
            (Phase::Running, Role::Worker | Role::Scheduler)
            | (Phase::Rebuilding | Phase::Ending { .. } | Phase::Ended { .. }, _) => {}
        }
        self.members.leave(id);
        self.note(Note::Left(id));
        self.forget(id, out);
        self.go_on_after(now_ms, id, out);
        self.quorum.let_go(self.epoch, connection);
    }

    /// After a member has left in good order: nothing waits for it any more, and all members are notified. If it was the last worker, the
    /// job ends.
    fn go_on_after(&mut self, now_ms: u64, id: MemberId, out: &mut Vec<Command>) {
        let goes_on = self.config.shape.worker_loss == WorkerLoss::Continue;
        release(if goes_on { self.barriers.without(id) } else { self.barriers.leave(id) }, out);
        if self.phase != Phase::Running {
            return;
        }
        if self.members.workers_left() {
            let servers = self.server_connections();
            if !self.checkpoints.pass(&servers, out) {
                return self.end_done(now_ms, out);
            }
            let until_ms = now_ms.saturating_add(self.config.drain_ms);
            self.saving = Some(Saving { until_ms, only_manifests: false, unheeded: Vec::new() });
        }
        self.tell_roster(out);
    }

    /// All workers are done: the job ends when no checkpoint is in progress any more, or when the drain time is over.
    pub(super) fn end_if_saved(&mut self, now_ms: u64, out: &mut Vec<Command>) {
        let Some(saving) = &self.saving else { return };
        if self.phase != Phase::Running || !self.members.workers_left() {
            // A worker has joined that needs the data of servers whose failure was ignored.
            for death in self.saving.take().into_iter().flat_map(|saving| saving.unheeded) {
                let is_gone = self.members.get(death.member).is_some_and(|member| member.gone);
                if is_gone && self.phase == Phase::Running {
                    self.lose_server(now_ms, death, out);
                }
            }
            return;
        }
        if self.checkpoints.is_writing() && now_ms < saving.until_ms {
            return;
        }
        self.fail_checkpoints(
            "the job ended, and the checkpoint was not complete within deadlines.drain_ms; raise it",
            out,
        );
        // A checkpoint of which only the manifest is missing gets more time: the disk may be slow.
        if let Some(saving) = self.saving.as_mut().filter(|saving| !saving.only_manifests)
            && self.checkpoints.is_writing()
        {
            saving.only_manifests = true;
            saving.until_ms = saving.until_ms.saturating_add(MANIFEST_MS_MAX);
            return;
        }
        self.saving = None;
        let when = format!("within {} s of the job's end", MANIFEST_MS_MAX / 1000);
        self.checkpoints.lose_unwritten(&when, out);
        self.end_done(now_ms, out);
    }

    /// Ends a job that a restarted scheduler finds to be over: the previous scheduler waited only for the last checkpoint, which is
    /// abandoned, or had already confirmed goodbyes. No worker would say goodbye to this scheduler.
    pub(super) fn end_if_left(&mut self, now_ms: u64, out: &mut Vec<Command>) -> bool {
        let is_over =
            self.phase == Phase::Running && !self.members.left().is_empty() && self.members.workers_left();
        if is_over {
            self.end_done(now_ms, out);
        }
        is_over
    }

    fn end_done(&mut self, now_ms: u64, out: &mut Vec<Command>) {
        self.end(now_ms, Outcome::Done { reason: "all workers are done".into() }, out);
    }

    pub(super) fn stop(&mut self, now_ms: u64, reason: &str, out: &mut Vec<Command>) {
        if matches!(self.phase, Phase::Assembling | Phase::Running | Phase::Rebuilding) {
            self.turn_away("the job is ending; start it again", out);
            let reason = format!("the scheduler was stopped: {reason}");
            self.fail_checkpoints(&reason, out);
            self.checkpoints.lose_unwritten("when the scheduler was told to stop", out);
            self.end(now_ms, Outcome::Done { reason }, out);
        }
    }

    /// Another scheduler has taken over the job's checkpoints, and perhaps its members: the job ends at this scheduler.
    pub(super) fn deposed(&mut self, now_ms: u64, why: Unusable, out: &mut Vec<Command>) {
        if matches!(self.phase, Phase::Assembling | Phase::Running | Phase::Rebuilding) {
            self.turn_away("the job is ending: another scheduler has taken it over", out);
            self.fail_checkpoints(&why.reason, out);
            self.end(now_ms, Outcome::Unusable(why), out);
        }
    }

    pub(super) fn tick(&mut self, now_ms: u64, out: &mut Vec<Command>) {
        release(self.barriers.expire(now_ms), out);
        declared(self.declarations.expire(now_ms), out);
        self.posts.expire(now_ms, out);
        out.extend(self.quorum.expire(now_ms).into_iter().map(|connection| Command::Close { connection }));
        self.tick_checkpoints(now_ms, out);
        let waited_ms = now_ms.saturating_sub(self.started_ms);
        self.give_up(now_ms, out);
        self.expire_comings(now_ms, out);
        self.rebuild_if_whole(now_ms, out);
        self.let_in(now_ms, out);
        if self.phase == Phase::Assembling && waited_ms >= self.config.assemble_ms {
            let missing = self.missing();
            return self.end(now_ms, Outcome::Incomplete { waited_ms, missing }, out);
        }
        if matches!(self.phase, Phase::Assembling | Phase::Running) {
            self.find_silent(now_ms, out);
        }
        self.settle(out);
    }

    fn find_silent(&mut self, now_ms: u64, out: &mut Vec<Command>) {
        let bound = self.config.shape.silence_ms;
        // Members are heard again, and never unheard. Those that are away are looked at again soon.
        let heard_ms = |member: &Member| if member.is_away { 0 } else { member.heard_ms };
        let first_heard_ms = self.members.there().map(|(_, member)| heard_ms(member)).min();
        self.silence_due_ms = first_heard_ms.unwrap_or(now_ms).saturating_add(bound + 1);
        let silent = self.members.there().filter_map(|(id, member)| {
            let silent_ms = now_ms.saturating_sub(member.heard_ms);
            (silent_ms > bound || member.is_away).then_some((id, silent_ms))
        });
        let silent: Vec<(MemberId, u64)> = silent.collect();
        let ids: Vec<MemberId> = silent.iter().map(|(id, _)| *id).collect();
        if !self.keeps_majority(now_ms, &ids, out) {
            return;
        }
        // All are disconnected before the first failure is decided, so no decision waits for another silent member.
        for (member, _) in &silent {
            self.disconnect(*member, out);
        }
        for (member, silent_ms) in silent {
            self.death(now_ms, Death { member, cause: DeathCause::Silent { silent_ms } }, out);
        }
    }

    /// Notifies all connected members why the job ends, and gives them the drain time to leave.
    pub(super) fn end(&mut self, now_ms: u64, outcome: Outcome, out: &mut Vec<Command>) {
        let to = self.members.connections(|_| true);
        match &outcome {
            Outcome::Done { reason } => {
                out.push(send_to(to, FromScheduler::Shutdown { reason: reason.clone() }));
            }
            Outcome::Died(death) => out.push(send_to(to, FromScheduler::MemberDied(death.clone()))),
            Outcome::Unusable(unusable) => {
                let cause = DeathCause::Failed { reason: unusable.reason.clone() };
                let member = MemberId { role: Role::Scheduler, rank: Rank(0) };
                out.push(send_to(to, FromScheduler::MemberDied(Death { member, cause })));
            }
            // Members continue to wait for a scheduler with the right settings.
            Outcome::Misconfigured(_) => {}
            Outcome::Incomplete { waited_ms, missing } => {
                let (waited_ms, missing) = (*waited_ms, missing.clone());
                let reason = RefusalReason::Incomplete { waited_ms, missing };
                for connection in to {
                    refuse(connection, reason.clone(), out);
                }
                let members: Vec<MemberId> = self.members.iter().map(|(id, _)| id).collect();
                for id in members {
                    self.forget(id, out);
                }
            }
        }
        // No worker is waited for any more. Otherwise an expired deadline would end the job again at each tick, and restart the drain.
        self.members.await_none();
        for (connection, _) in self.rebuild.take_waiting() {
            let reason = match &outcome {
                Outcome::Incomplete { waited_ms, missing } => {
                    RefusalReason::Incomplete { waited_ms: *waited_ms, missing: missing.clone() }
                }
                Outcome::Misconfigured(error) => later(error),
                other => RefusalReason::Misplaced(format!("the job is over: {other}")),
            };
            refuse(connection, reason, out);
        }
        self.checkpoints.refuse_orders("the job is ending", out);
        out.retain(|command| !matches!(command, Command::Send { to, .. } if to.is_empty()));
        self.phase = Phase::Ending { outcome, deadline_ms: now_ms + self.config.drain_ms };
    }

    pub(super) fn disconnect(&mut self, id: MemberId, out: &mut Vec<Command>) {
        let connection = self.forget(id, out);
        out.extend(connection.map(|connection| Command::Close { connection }));
    }

    /// Forgets a member's connection and its open requests, which are not answered any more.
    pub(super) fn forget(&mut self, id: MemberId, out: &mut Vec<Command>) -> Option<ConnectionId> {
        let connection = self.members.close(id)?;
        self.barriers.forget(id);
        self.declarations.forget(connection);
        self.checkpoints.forget(connection);
        if id.role == Role::Server {
            self.fail_checkpoints(&format!("{id} left while the checkpoint was written"), out);
        }
        self.posts.forget(connection, out);
        Some(connection)
    }

    /// The job is over when all members have gone, or the drain time is over.
    pub(super) fn end_if_empty(&mut self, now_ms: u64, out: &mut Vec<Command>) {
        let Phase::Ending { outcome, deadline_ms } = &self.phase else { return };
        if now_ms >= *deadline_ms || self.members.there().next().is_none() {
            let outcome = outcome.clone();
            out.push(Command::End(outcome.clone()));
            self.phase = Phase::Ended { outcome };
        }
    }
}
