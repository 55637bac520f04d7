//! Who is there, as members are told; and the decisions about shards that follow from who came and went.

use super::member::Member;
use super::shards::Servers;
use super::{Command, Engine, Note, Phase, send, send_to};
use proto_common::ids::{ChunkId, Epoch, MemberId, Rank, Role};
use proto_common::message::{self, FromScheduler};
use proto_common::shard_map::MapChange;
use std::collections::BTreeMap;

/// Decisions that follow from one another without an event in between; each makes progress, so this is never reached.
const PLANS_MAX: usize = 64;

impl Engine {
    /// Tells everyone who is there, under a new epoch.
    pub(super) fn tell_roster(&mut self, out: &mut Vec<Command>) {
        self.epoch = self.epoch.next();
        self.changes.rosters += 1;
        let there = self.members.iter().filter(|(_, member)| !member.gone);
        let members = there.map(|(id, member)| entry(*id, member)).collect();
        let roster = FromScheduler::Roster { epoch: self.epoch, members, left: self.left() };
        out.push(send_to(self.present(|_| true), roster));
    }

    /// Workers that have left in good order.
    pub(super) fn left(&self) -> Vec<Rank> {
        let left = self.members.iter().filter(|(id, member)| id.role == Role::Worker && member.left);
        left.map(|(id, _)| id.rank).collect()
    }

    /// The servers that are there.
    pub(super) fn servers(&self) -> Servers {
        let there = |(id, member): &(&MemberId, &Member)| id.role == Role::Server && !member.gone;
        let there: BTreeMap<Rank, bool> =
            self.members.iter().filter(there).map(|(id, member)| (id.rank, member.draining)).collect();
        let draining = there.iter().filter(|(_, drains)| **drains).map(|(rank, _)| *rank).collect();
        Servers { there: there.into_keys().collect(), draining }
    }

    pub(super) fn tell_changes(&self, changes: Vec<(Epoch, MapChange)>, out: &mut Vec<Command>) {
        for (epoch, change) in changes {
            out.push(send_to(self.present(|_| true), FromScheduler::Remap { epoch, change }));
        }
    }

    /// Decides about copies and moves, as far as they can be decided now.
    pub(super) fn settle(&mut self, out: &mut Vec<Command>) {
        if self.phase != Phase::Running {
            return;
        }
        if let Some(dropped) = self.declarations.drop_failed(&mut self.epoch) {
            self.tell_changes(vec![dropped], out);
        }
        if !self.unsettled {
            return;
        }
        let servers = self.servers();
        for _ in 0..PLANS_MAX {
            // Every answer and every tick comes here, and a plan looks at all ranges.
            let planned_for = (self.epoch, self.declarations.pending(), servers.clone());
            if self.planned_for.as_ref() == Some(&planned_for) {
                return;
            }
            let (changes, is_quiet) =
                self.declarations.plan(&servers, self.config.rebalance, &mut self.epoch);
            self.unsettled = !is_quiet;
            if changes.is_empty() {
                self.planned_for = Some(planned_for);
                return;
            }
            self.tell_changes(changes, out);
        }
    }

    /// A server has copies that are kept up at another one.
    pub(super) fn seeded(&mut self, id: MemberId, said: Epoch, to: Rank, out: &mut Vec<Command>) {
        if self.phase != Phase::Running || id.role != Role::Server {
            return;
        }
        let changes = self.declarations.shards.seeded((id.rank, to), said, &mut self.epoch);
        self.tell_changes(changes, out);
        self.settle(out);
    }

    /// A server could not do what a decision about copies asked of it: it is given up, and another one is asked.
    pub(super) fn roles_refused(
        &mut self,
        id: MemberId,
        epoch: Epoch,
        reason: String,
        out: &mut Vec<Command>,
    ) {
        if self.phase != Phase::Running {
            return;
        }
        let (changes, given_up) = self.declarations.shards.refused(id.rank, epoch, &mut self.epoch);
        self.unsettled |= !changes.is_empty();
        self.tell_changes(changes, out);
        self.settle(out);
        let is_tried = |first: &ChunkId| self.unsettled || self.declarations.shards.seeds.contains_key(first);
        let tried = given_up.iter().filter(|first| is_tried(first)).count();
        self.note(Note::Refused { server: id.rank, reason, given_up: given_up.len(), tried });
    }

    /// A server wishes to go.
    pub(super) fn drain(&mut self, id: MemberId, out: &mut Vec<Command>) {
        if self.phase != Phase::Running || id.role != Role::Server {
            return;
        }
        let Some(member) = self.members.get_mut(&id) else { return };
        let connection = member.connection;
        member.draining = true;
        self.unsettled = true;
        let before = self.epoch;
        self.settle(out);
        if self.epoch == before {
            // It goes when a decision has left it nothing: it hears one, also where there is nothing to decide.
            self.epoch = self.epoch.next();
            let change = MapChange::Ranges(Vec::new());
            out.push(send(connection, FromScheduler::Remap { epoch: self.epoch, change }));
        }
    }
}

pub(super) fn entry(id: MemberId, member: &Member) -> message::Member {
    message::Member {
        id,
        incarnation: member.incarnation,
        data_address: member.data_address.clone(),
        http_address: member.http_address.clone(),
    }
}
