//! Checkpoints: requests of members and operators, and reports of servers, combined with what the job knows about tensors and servers. It
//! must not know how parts become a checkpoint: the machine `checkpoints` does.

use super::super::checkpoints::{Wanted, order};
use super::super::declarations::Declarations;
use super::super::members::Members;
use super::super::{Command, ConnectionId, Engine, EngineConfig, Phase, refuse, send};
use proto_common::ids::{MemberId, Rank, Role};
use proto_common::limits::PROTOCOL_VERSION;
use proto_common::message::{
    Build, CheckpointNews, CheckpointOrder, FromScheduler, RefusalReason, SaveError,
};

/// What a checkpoint is to have now.
fn wanted<'a>(declarations: &'a Declarations, members: &Members, config: &'a EngineConfig) -> Wanted<'a> {
    Wanted {
        tensors: declarations.placed().collect(),
        servers: members.connections(|id| id.role == Role::Server),
        lanes: config.shape.lanes,
        chunk_bytes: config.shape.chunk_bytes,
        restore: config.checkpoints.restore.as_deref(),
    }
}

impl Engine {
    /// What a server says of a checkpoint; of nobody else it means anything.
    pub(super) fn checkpoint_news(&mut self, from: MemberId, news: CheckpointNews, out: &mut Vec<Command>) {
        if from.role == Role::Server {
            let wanted = wanted(&self.declarations, &self.members, &self.config);
            self.checkpoints.news(from.rank, news, self.epoch, &wanted, out);
        }
    }

    /// A member asks for a checkpoint of this round.
    pub(super) fn save_checkpoint(
        &mut self,
        now_ms: u64,
        (from, id, request): (ConnectionId, MemberId, u64),
        (round, timeout_ms): (u64, u64),
        out: &mut Vec<Command>,
    ) {
        if self.phase != Phase::Running || id.role != Role::Worker {
            let what = "checkpoints are written only while the job runs; retry then";
            let result = Err(SaveError::NotNow(what.into()));
            return out.push(send(from, FromScheduler::CheckpointSaved { request, result }));
        }
        let wanted = wanted(&self.declarations, &self.members, &self.config);
        self.checkpoints.ask((from, request), round, (now_ms, timeout_ms, self.epoch), &wanted, out);
    }

    /// An operator asks for a checkpoint.
    pub(super) fn order_checkpoint(
        &mut self,
        now_ms: u64,
        from: ConnectionId,
        (protocol, timeout_ms): (u32, u64),
        out: &mut Vec<Command>,
    ) {
        if protocol != PROTOCOL_VERSION {
            let theirs = Build { protocol, version: String::new() };
            return refuse(from, RefusalReason::Protocol { theirs, ours: Build::own() }, out);
        }
        let not_now = match self.phase {
            Phase::Running if self.saving.is_some() => Some("the job is ending"),
            Phase::Running => None,
            Phase::Assembling => Some("the cluster is not complete yet; retry when training runs"),
            Phase::Rebuilding => Some("the scheduler is waiting for the members of its job; retry soon"),
            Phase::Ending { .. } | Phase::Ended { .. } => Some("the job is ending"),
        };
        self.checkpoints.order(from, (now_ms, timeout_ms), not_now, out);
        self.begin_checkpoints(out);
    }

    /// What is waited for is begun as soon as it can be.
    pub(super) fn begin_checkpoints(&mut self, out: &mut Vec<Command>) {
        if self.phase == Phase::Running {
            let wanted = wanted(&self.declarations, &self.members, &self.config);
            self.checkpoints.go_on(self.epoch, &wanted, out);
        }
    }

    /// Deadlines, progress, and what is to be begun.
    pub(super) fn tick_checkpoints(&mut self, now_ms: u64, out: &mut Vec<Command>) {
        let (parts, servers) = (self.checkpoint_parts(), self.server_connections());
        self.checkpoints.expire(now_ms, &parts, out);
        let asks = self.checkpoints.give_up_stalled(now_ms, &parts, &servers, out);
        self.begin_checkpoints(out);
        self.checkpoints.tell_progress(parts.len() as u64, out);
        if asks {
            order(&servers, CheckpointOrder::Where, out);
        }
    }

    /// Who serves what has changed: what is being written lacks something.
    pub(super) fn fail_checkpoints(&mut self, reason: &str, out: &mut Vec<Command>) {
        let servers = self.server_connections();
        self.checkpoints.fail_all(reason, &servers, out);
    }

    pub(super) fn server_connections(&self) -> Vec<ConnectionId> {
        self.members.connections(|id| id.role == Role::Server)
    }

    pub(super) fn checkpoint_parts(&self) -> Vec<(Rank, u16)> {
        let servers = self.members.there_as(Role::Server);
        servers.flat_map(|(rank, _)| (0..self.config.shape.lanes).map(move |lane| (rank, lane))).collect()
    }
}
