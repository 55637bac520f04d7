//! A scheduler that was suspended. Its members may have abandoned it, so it continues as its own successor, and the members report again.
//! It must not decide which members have failed.

use super::super::quorum::Quorum;
use super::super::rebuild::Rebuild;
use super::super::{Command, Engine, Phase, let_go};
use proto_common::message::Resume;

impl Engine {
    /// A scheduler that has not run for so long that members have given it up follows itself: they come again.
    pub(super) fn wake(&mut self, now_ms: u64, out: &mut Vec<Command>) {
        let slept_ms = now_ms.saturating_sub(self.awake_ms);
        self.awake_ms = now_ms;
        let shape = &self.config.shape;
        if self.phase == Phase::Rebuilding && slept_ms > 2 * shape.heartbeat_ms {
            // Messages that arrived meanwhile are still unread, and members that abandoned this scheduler register again.
            self.rebuild.woke(now_ms);
        }
        // The last sign of life that they had may be a heartbeat older than the sleep.
        let unheard_ms = slept_ms.saturating_add(shape.rare_heartbeat_ms());
        let given_up = slept_ms.saturating_mul(4) >= shape.silence_ms.saturating_mul(3)
            || unheard_ms.saturating_mul(10) >= shape.silence_ms.saturating_mul(9);
        if given_up && shape.scheduler_ms > 0 && self.phase == Phase::Running {
            self.follow_itself(now_ms, out);
        }
    }

    /// Members have given this scheduler up, or may have: they come again, and it begins with what it knows itself.
    pub(in super::super) fn follow_itself(&mut self, now_ms: u64, out: &mut Vec<Command>) {
        let members = self.members.there().map(|(id, member)| member.entry(id)).collect();
        let own = Resume {
            epoch: self.epoch,
            members,
            left: self.members.left(),
            barriers: self.barriers.all_opened(),
            rosters: self.quorum.rosters(),
            ..Resume::default()
        };
        let declarations = &self.declarations;
        let tensors = || {
            let all = declarations.shards.map().tensors();
            all.filter(move |(spec, _)| declarations.is_kept(spec.key))
        };
        let answered =
            tensors().map(|(spec, _)| spec.key).filter(|key| declarations.is_ready(*key)).collect();
        let tensors = tensors().map(|(spec, ranges)| (spec.clone(), ranges.to_vec()));
        let rebuild = Rebuild::begin_with(now_ms, own, tensors, answered);
        // What it tells itself names those that have said goodbye. If their answers were forgotten here, their heartbeats would be refused.
        for connection in self.quorum.may_go(true) {
            out.extend(let_go(connection));
        }
        for connection in self.quorum.expire(u64::MAX) {
            out.push(Command::Close { connection });
        }
        for connection in self.members.connections(|_| true) {
            out.push(Command::Close { connection });
            self.posts.forget(connection, &mut Vec::new());
        }
        // Members ask again when they have come; an operator is no member.
        let why = "the scheduler was suspended and is waiting for its members; retry";
        self.checkpoints.refuse_all(|asker| self.members.on(asker).is_none(), why, out);
        let fresh = Self::new(self.config.clone(), self.started_ms);
        let fresh = if self.barriers.has_program() { fresh.with_program() } else { fresh };
        let quorum = Quorum::of(Vec::new(), self.quorum.exited().clone());
        *self = Self {
            phase: Phase::Rebuilding,
            epoch: self.epoch,
            members: self.members.begin_again(),
            checkpoints: self.checkpoints.woken(),
            last_checkpoint: self.last_checkpoint.take(),
            rebuild,
            quorum,
            awake_ms: now_ms,
            ..fresh
        };
    }
}
