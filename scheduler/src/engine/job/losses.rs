//! What the failure of a member means. The chunks of a failed server go to their backups. For a failed worker,
//! `cluster.worker_loss` decides whether the job waits for it, continues without it, or ends. While the job is assembling, any failure
//! ends it. This file must not decide who has failed: `ending` does.

use super::super::barriers::release;
use super::super::declarations::declared;
use super::super::{Command, Engine, Note, Outcome, Phase};
use proto_common::config::WorkerLoss;
use proto_common::error::{Death, DeathCause};
use proto_common::ids::{Epoch, Key, MemberId, Role};
use proto_common::message::NotTaken;
use proto_common::shard_map::MapChange;
use proto_common::table::home_of;
use std::collections::BTreeSet;

/// Tensors that an error names.
const TENSORS_NAMED_MAX: usize = 5;

impl Engine {
    /// Decides what follows from a failure. While the job is ending, nothing does.
    pub(in super::super) fn death(&mut self, now_ms: u64, death: Death, out: &mut Vec<Command>) {
        if matches!(self.phase, Phase::Assembling | Phase::Running) {
            self.note(Note::Lost(death.clone()));
        }
        match (&self.phase, death.member.role) {
            (Phase::Assembling, _) => self.end(now_ms, Outcome::Died(death), out),
            (Phase::Running, Role::Server) => match &mut self.saving {
                // All workers have finished, so nobody needs the server, unless another worker joins. A checkpoint that needed it fails.
                Some(saving) => saving.unheeded.push(death),
                None => self.lose_server(now_ms, death, out),
            },
            (Phase::Running, Role::Worker) => self.lose_worker(now_ms, death, out),
            (Phase::Running, Role::Scheduler)
            | (Phase::Rebuilding | Phase::Ending { .. } | Phase::Ended { .. }, _) => {}
        }
    }

    pub(super) fn lose_server(&mut self, now_ms: u64, death: Death, out: &mut Vec<Command>) {
        let id = death.member;
        if !self.members.fail(id, now_ms) {
            return;
        }
        let epoch = self.epoch.next();
        let is_last = self.members.there_as(Role::Server).next().is_none();
        let shards = &mut self.declarations.shards;
        let has_any = !shards.is_empty_at(id.rank);
        let by = shards.successors(id.rank);
        let mut lost = shards.gone(epoch, id.rank);
        if is_last {
            // The backups have failed, too; the scheduler only has not decided it yet.
            lost = shards.map().tensors().map(|(spec, _)| spec.key).collect();
        }
        lost.retain(|key| self.declarations.is_kept(*key));
        // Without replicas, servers may have state of programs (handlers) that is in no map. It is lost with them.
        let alone = self.config.shape.replicas == 0 && id.rank.0 < self.config.shape.servers;
        if lost.is_empty() && (alone && !has_any || is_last) {
            return self.end(now_ms, Outcome::Died(death), out);
        }
        if alone || !lost.is_empty() {
            let what = self.loss(&lost);
            let cause = DeathCause::Beyond { cause: Box::new(death.cause), what };
            return self.end(now_ms, Outcome::Died(Death { member: id, cause }), out);
        }
        self.epoch = epoch;
        self.note(Note::TakenOver { from: id.rank, by });
        self.tell_changes(vec![(epoch, MapChange::ServerGone(id.rank))], out);
        self.tell_roster(out);
        self.go_on_without(id, out);
    }

    /// A server answers a decision. If it cannot apply a decision about new tensors, their declaration fails.
    pub(super) fn assigned(
        &mut self,
        now_ms: u64,
        (id, epoch): (MemberId, Epoch),
        error: Option<NotTaken>,
        out: &mut Vec<Command>,
    ) {
        let is_of_declaration = self.declarations.is_new(epoch) || id.role != Role::Server;
        declared(self.declarations.assigned(id, epoch, error.clone()), out);
        match error.filter(|_| !is_of_declaration) {
            None => self.settle(out),
            Some(why) if why.is_checkpoint => self.lose_takeover(now_ms, id, why.reason, out),
            Some(why) => self.roles_refused(id, epoch, why.reason, out),
        }
    }

    /// A server took over chunks before its replicas of them had arrived, and cannot read them from the checkpoint that the job began from.
    /// No process has them. If the job continued, workers would train on zeros in their place, and save them.
    fn lose_takeover(&mut self, now_ms: u64, id: MemberId, reason: String, out: &mut Vec<Command>) {
        if self.phase != Phase::Running {
            return;
        }
        let ranges = self.declarations.shards.map().ranges().filter(|range| range.server == id.rank);
        let lost: BTreeSet<Key> = ranges.map(|range| range.first.key).collect();
        let what = self.loss(&lost.into_iter().collect::<Vec<_>>());
        let reason = format!(
            "it took over shards that it had no copy of yet, and could not read the checkpoint: {reason}"
        );
        let cause = DeathCause::Beyond { cause: Box::new(DeathCause::Failed { reason }), what };
        self.end(now_ms, Outcome::Died(Death { member: id, cause }), out);
    }

    /// Ends everything that waits for an answer of this server.
    fn go_on_without(&mut self, id: MemberId, out: &mut Vec<Command>) {
        declared(self.declarations.without(id.rank), out);
        release(self.barriers.without(id), out);
        self.comings.without(id.rank).into_iter().for_each(|rank| self.count_from(rank, out));
        self.declarations.unsettle();
        self.settle(out);
    }

    /// The text of an error: what was lost with a server, and what to do.
    pub(in super::super) fn loss(&self, lost: &[Key]) -> String {
        let map = self.declarations.shards.map();
        let name = |key: &Key| match map.tensor(*key).map(|spec| spec.name.as_str()) {
            None | Some("") => key.to_string(),
            Some(name) => format!("{key} ({name})"),
        };
        let (homes, lost): (Vec<Key>, Vec<Key>) = lost.iter().partition(|key| home_of(**key).is_some());
        let mut named: Vec<String> = lost.iter().take(TENSORS_NAMED_MAX).map(name).collect();
        if lost.len() > TENSORS_NAMED_MAX {
            named.push(format!("{} more", lost.len() - TENSORS_NAMED_MAX));
        }
        let from = match &self.last_checkpoint {
            Some(checkpoint) => format!("restart the job with checkpoint.restore = {checkpoint:?}"),
            None => {
                let fix = "restart the job with checkpoint.directory and checkpoint.every_rounds set";
                format!("there is no checkpoint: {fix}")
            }
        };
        let fix = match self.config.shape.replicas {
            0 => "; with cluster.replicas = 1 another server holds a replica",
            _ => "",
        };
        let what = match (named.is_empty(), !homes.is_empty()) {
            (true, false) => "the state that programs keep in it".to_owned(),
            (true, true) => "its rows of sparse tables".to_owned(),
            (false, false) => format!("its part of tensors {}", named.join(", ")),
            (false, true) => {
                format!("its rows of sparse tables, nor its part of tensors {}", named.join(", "))
            }
        };
        format!("no other server has {what}; {from}{fix}")
    }

    fn lose_worker(&mut self, now_ms: u64, death: Death, out: &mut Vec<Command>) {
        let id = death.member;
        let policy = self.config.shape.worker_loss;
        if policy == WorkerLoss::Stop {
            return self.end(now_ms, Outcome::Died(death), out);
        }
        if !self.members.fail(id, now_ms) {
            return;
        }
        self.comings.forget(id.rank);
        if policy == WorkerLoss::Wait {
            self.members.await_again(now_ms.saturating_add(self.config.rejoin_ms), death.clone());
        }
        let counted = (self.members.there_as(Role::Worker).count() + self.members.awaited().len()) as u32;
        let finished = self.members.left().len() as u32;
        if counted == 0 || counted + finished < self.config.shape.workers_min {
            let what = format!(
                "{counted} workers are left, but the job needs {} (cluster.workers_min)",
                self.config.shape.workers_min
            );
            let cause = DeathCause::Beyond { cause: Box::new(death.cause), what };
            return self.end(now_ms, Outcome::Died(Death { member: id, cause }), out);
        }
        self.tell_roster(out);
        if policy == WorkerLoss::Continue {
            release(self.barriers.without(id), out);
        }
    }

    /// Ends the job if a failed worker has not rejoined in time.
    pub(super) fn give_up(&mut self, now_ms: u64, out: &mut Vec<Command>) {
        if let Some(Death { member, cause }) = self.members.late(now_ms) {
            let waited_ms = self.config.rejoin_ms;
            let what = format!("it did not rejoin within {waited_ms} ms (deadlines.rejoin_ms)");
            let cause = DeathCause::Beyond { cause: Box::new(cause), what };
            self.end(now_ms, Outcome::Died(Death { member, cause }), out);
        }
    }

    /// A server without chunks leaves, and all others are notified. False if it must not leave.
    pub(super) fn server_leaves(&mut self, id: MemberId, out: &mut Vec<Command>) -> bool {
        let others = self.members.there_as(Role::Server).any(|(rank, _)| rank != id.rank);
        if !others || !self.declarations.shards.is_empty_at(id.rank) {
            return false;
        }
        self.forget(id, out);
        self.members.dismiss(id);
        self.tell_roster(out);
        self.go_on_without(id, out);
        true
    }
}
