//! What members say of checkpoints, and ask for.

use super::super::{Command, ConnectionId, Engine, Phase, send};
use super::leftovers::{LEFT_MAX, Leftover, Stopped};
use super::{Asker, Checkpoints, Clearing, Wanted, answer};
use crate::engine::Note;
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

impl Checkpoints {
    /// What was to be cleared away is gone, or is not, and why.
    pub(in super::super) fn cleared(&mut self, clearing: Clearing, result: Result<(), String>) {
        let Clearing::GivenUp { round, files, restore } = clearing else { return };
        match result {
            Ok(()) => {
                let Some(left) = self.left.0.get_mut(&round) else { return };
                left.files.retain(|file| !files.contains(file));
                left.is_tried = false;
                if left.files.is_empty() {
                    self.left.0.remove(&round);
                }
            }
            // Of one without parts nothing is left.
            Err(_) if files.is_empty() => {}
            Err(reason) => {
                let none = || Leftover { files: Vec::new(), restore, reason: String::new(), is_tried: false };
                let left = self.left.0.entry(round).or_insert_with(none);
                left.files.extend(files);
                left.files.sort_unstable();
                left.files.dedup();
                (left.reason, left.is_tried) = (reason, false);
            }
        }
    }

    /// Why none is begun, where that is so.
    pub(super) fn stopped(&self) -> Option<Stopped> {
        let left = &self.left.0;
        let first = left.values().next().filter(|_| left.len() >= LEFT_MAX)?;
        Some(Stopped { left: left.keys().copied().collect(), reason: first.reason.clone() })
    }

    /// Before one of this round is begun: what is left is tried again. True where there is too much of it: who waits for it
    /// hears why, and people do, once a round, which all servers name.
    pub(in super::super) fn is_stopped(
        &mut self,
        round: u64,
        askers: &[Asker],
        out: &mut Vec<Command>,
    ) -> bool {
        // All servers begin it: what the first was told holds for all.
        if askers.is_empty() && self.stopped_round >= Some(round) {
            return true;
        }
        for (other, left) in &mut self.left.0 {
            // Beside one of the same round that is being written nothing is touched.
            if !self.pending.contains_key(other) && !std::mem::replace(&mut left.is_tried, true) {
                let (files, restore) = (left.files.clone(), left.restore.clone());
                out.push(Command::ClearAway(Clearing::GivenUp { round: *other, files, restore }));
            }
        }
        let Some(stopped) = self.stopped() else { return false };
        let error = SaveError::Failed { round, reason: stopped.to_string() };
        if self.stopped_round.replace(round) != Some(round) {
            self.failed += 1;
            self.failure = Some(error.to_string());
            self.news = Some(Note::CheckpointsStopped { round, stopped });
        }
        answer(askers, &Err(error), out);
        true
    }
}
