//! A scheduler that was suspended: its members may have given it up, so it follows itself, and they report again. It must not
//! decide who is failed.

use super::super::checkpoints::Asker;
use super::super::quorum::Quorum;
use super::super::{Command, Engine, LOCAL, Phase, roster};
use super::{Rebuild, Told, lives_of, maps};
use proto_common::ids::Key;
use proto_common::message;
use std::collections::BTreeMap;

impl Engine {
    /// A scheduler that has not run for so long that members have given it up follows itself: they come again.
    pub(in super::super) fn wake(&mut self, now_ms: u64, out: &mut Vec<Command>) {
        let slept_ms = now_ms.saturating_sub(self.awake_ms);
        self.awake_ms = now_ms;
        let shape = &self.config.shape;
        if self.phase == Phase::Rebuilding && slept_ms > 2 * shape.heartbeat_ms {
            // What came meanwhile is unread yet, and who gave this one up comes again: they have their time once more.
            self.rebuild.woke(now_ms);
            match &mut self.rebuild.since_ms {
                Some(since_ms) => *since_ms = now_ms,
                None => self.rebuild.woke_ms = Some(now_ms),
            }
        }
        // The last sign of life that they had may be a heartbeat older than the sleep.
        let unheard_ms = slept_ms.saturating_add(shape.heartbeat_ms);
        let given_up = slept_ms.saturating_mul(4) >= shape.silence_ms.saturating_mul(3)
            || unheard_ms.saturating_mul(10) >= shape.silence_ms.saturating_mul(9);
        if given_up && shape.scheduler_ms > 0 && self.phase == Phase::Running {
            self.follow_itself(now_ms, out);
        }
    }

    /// Members have given this scheduler up, or may have: they come again, and it begins with what it knows itself.
    pub(in super::super) fn follow_itself(&mut self, now_ms: u64, out: &mut Vec<Command>) {
        let there = self.members.iter().filter(|(_, member)| !member.gone);
        let members: Vec<message::Member> = there.map(|(id, member)| roster::entry(*id, member)).collect();
        let left = self.left();
        let tensors =
            self.declarations.shards.map.tensors().filter(|(spec, _)| self.declarations.is_kept(spec.key));
        let tensors = tensors.map(|(spec, ranges)| {
            let told = Told { epoch: self.epoch, by: LOCAL, spec: spec.clone(), ranges: ranges.to_vec() };
            (spec.key, told)
        });
        let tensors: BTreeMap<Key, Told> = tensors.collect();
        let answered = tensors.keys().copied().filter(|key| self.declarations.is_ready(*key)).collect();
        let opened = self.barriers.all_opened().into_iter();
        let barriers = opened.map(|(name, group, times)| ((name, group), times));
        let rebuild = Rebuild {
            since_ms: Some(now_ms),
            epoch: self.epoch,
            lives: BTreeMap::from([(LOCAL, lives_of(&members))]),
            members,
            left,
            maps: maps::Maps::of_own(&tensors, self.epoch),
            tensors,
            answered,
            barriers: barriers.collect(),
            ..Rebuild::default()
        };
        for connection in self.present(|_| true) {
            out.push(Command::Close { connection });
            self.posts.forget(connection, &mut Vec::new());
        }
        // Members ask again when they have come; an operator is no member.
        let connections = std::mem::take(&mut self.connections);
        let is_stranger = |asker: &Asker| !connections.contains_key(&asker.connection);
        self.checkpoints.refuse_all(
            is_stranger,
            "the scheduler was suspended and is waiting for its members; retry",
            out,
        );
        let fresh = Self::new(self.config.clone(), self.started_ms);
        let fresh = if self.barriers.has_program() { fresh.with_program() } else { fresh };
        let epoch = self.epoch;
        let (changes, dead) = (self.changes.clone(), std::mem::take(&mut self.dead));
        let (checkpoints, last_checkpoint) = (self.checkpoints.woken(), self.last_checkpoint.take());
        let quorum = std::mem::take(&mut self.quorum);
        let rebuild = Rebuild { rosters: quorum.rosters(), ..rebuild };
        let quorum = Quorum::of(Vec::new(), quorum.exited().clone());
        let known = Self { changes, dead, checkpoints, last_checkpoint, quorum, ..fresh };
        *self = Self { phase: Phase::Rebuilding, epoch, rebuild, awake_ms: now_ms, ..known };
    }
}
