//! Decisions about shards after members have joined, left or failed, and the messages about them to all members: the roster, and changes
//! of the map. It must not choose servers: `declarations` does.

use super::super::{Command, Engine, Note, Phase, send};
use proto_common::ids::{ChunkId, Epoch, MemberId, Rank, Role};
use proto_common::message::FromScheduler;
use proto_common::shard_map::MapChange;

impl Engine {
    /// Sends the roster to all members, under a new epoch.
    pub(super) fn tell_roster(&mut self, out: &mut Vec<Command>) {
        self.epoch = self.epoch.next();
        let (members, left) = (self.members.roster(), self.members.left());
        out.push(self.to_everyone(FromScheduler::Roster { epoch: self.epoch, members, left }));
    }

    pub(super) fn tell_changes(&self, changes: Vec<(Epoch, MapChange)>, out: &mut Vec<Command>) {
        for (epoch, change) in changes {
            out.push(self.to_everyone(FromScheduler::Remap { epoch, change }));
        }
    }

    /// Decides about copies and moves, as far as they can be decided now.
    pub(super) fn settle(&mut self, out: &mut Vec<Command>) {
        if self.phase == Phase::Running && !self.declarations.is_settled() {
            let (servers, balance) = (self.members.servers(), self.config.rebalance);
            let changes = self.declarations.settle(&servers, balance, &mut self.epoch);
            self.tell_changes(changes, out);
        }
    }

    /// A server reports that its replicas at another server are complete.
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
        let (changes, given_up) = self.declarations.refused(id.rank, epoch, &mut self.epoch);
        self.tell_changes(changes, out);
        self.settle(out);
        let is_tried = |first: &ChunkId| {
            !self.declarations.is_level() || self.declarations.shards.seeds().contains_key(first)
        };
        let tried = given_up.iter().filter(|first| is_tried(first)).count();
        self.note(Note::Refused { server: id.rank, reason, given_up: given_up.len(), tried });
    }

    /// A server wishes to go.
    pub(super) fn drain(&mut self, id: MemberId, out: &mut Vec<Command>) {
        if self.phase != Phase::Running || id.role != Role::Server {
            return;
        }
        let Some(connection) = self.members.get(id).map(|member| member.connection) else { return };
        self.members.drain(id);
        self.declarations.unsettle();
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
