//! What members say of checkpoints, and ask for.

use super::super::{Command, ConnectionId, Engine, Phase, send};
use super::Wanted;
use proto_common::ids::{MemberId, Rank, Role};
use proto_common::message::{CheckpointNews, FromScheduler, SaveError};

impl Engine {
    pub(in super::super) fn wanted(&self) -> Wanted<'_> {
        Wanted {
            tensors: self.declarations.placed().collect(),
            servers: self.present(|id| id.role == Role::Server),
            lanes: self.config.shape.lanes,
            chunk_bytes: self.config.shape.chunk_bytes,
            restore: self.config.checkpoints.restore.as_deref(),
        }
    }

    /// What a server says of a checkpoint; of nobody else it means anything.
    pub(in super::super) fn checkpoint_news(
        &mut self,
        from: MemberId,
        news: CheckpointNews,
        out: &mut Vec<Command>,
    ) {
        if from.role != Role::Server {
            return;
        }
        let mut checkpoints = std::mem::take(&mut self.checkpoints);
        checkpoints.news(from.rank, news, self.epoch, &self.wanted(), out);
        self.checkpoints = checkpoints;
    }

    /// A member asks for a checkpoint of this round.
    pub(in super::super) fn save_checkpoint(
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
        let mut checkpoints = std::mem::take(&mut self.checkpoints);
        checkpoints.ask((from, request), round, (now_ms, timeout_ms, self.epoch), &self.wanted(), out);
        self.checkpoints = checkpoints;
    }

    /// Who serves what has changed: what is being written lacks something.
    pub(in super::super) fn fail_checkpoints(&mut self, reason: &str, out: &mut Vec<Command>) {
        let servers = self.present(|id| id.role == Role::Server);
        self.checkpoints.fail_all(reason, &servers, out);
    }

    /// Parts that a checkpoint has.
    pub(in super::super) fn checkpoint_parts(&self) -> Vec<(Rank, u16)> {
        let servers = self.members.iter().filter(|(id, member)| id.role == Role::Server && !member.gone);
        let lanes = self.config.shape.lanes;
        servers.flat_map(|(id, _)| (0..lanes).map(|lane| (id.rank, lane))).collect()
    }
}
