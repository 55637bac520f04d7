//! Checkpoints under way: which parts have arrived, when a checkpoint is complete, and who waits for it. A complete checkpoint has every
//! chunk exactly once, and each synchronous tensor at one version. A checkpoint may be missing, but is never torn. It must not touch files.
//!
//! ```text
//!   order ──▶ ordered ──all lanes have said how far they are──┐
//!   ask ──▶ queued, while another one is written ─────────────┤
//!   news: Begun, by its period ───────────────────────────────┴──▶ pending ──all parts──▶ complete ──written──▶ over
//!                                                                    └──fail: a server came, went or failed──▶ over, cleared away
//! ```

use super::command::{Command, Note, deadline_ms, send, send_to};
use super::member::ConnectionId;
use daemon::status::CheckpointStatus;
use leftovers::Leftovers;
use pending::{Finished, Ordered, complete};
use proto_common::ids::{Epoch, Rank};
use proto_common::message::{
    CheckpointNews, CheckpointOrder, FromScheduler, PartWritten, SaveError, Waiting,
};
use proto_common::tensor::TensorSpec;
use std::collections::{BTreeMap, VecDeque};

mod leftovers;
mod ordered;
mod pending;
mod queued;

#[cfg(test)]
pub(super) use leftovers::LEFT_MAX;
pub use leftovers::Stopped;
#[cfg(test)]
pub(super) use ordered::OPERATORS_MAX;
pub(super) use pending::Wanted;
use pending::{Asker, Pending};
pub use pending::{CheckpointConfig, Clearing, Completed, Unusable};

/// Members that wait for one.
pub(super) const ASKERS_MAX: usize = 8192;
/// One of which nothing has come for so long, no part and no chunk copied, is given up: a part may have to be sent to an object
/// store as a whole before anything is heard of it.
pub(super) const STALLED_MS_MAX: u64 = 60 * 60 * 1000;
/// Rounds that are remembered when their checkpoints have ended: as many as can be on their way to us.
pub(super) const ENDED_KEPT: usize = 16;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Checkpoints {
    has_place: bool,
    pending: BTreeMap<u64, Pending>,
    /// Those that operators asked for, and that are not begun.
    ordered: Ordered,
    /// Workers that wait for another one to be over, with the rounds that they have finished.
    queued: Vec<(u64, Asker)>,
    finished: Option<Finished>,
    /// Rounds whose checkpoints have ended, one way or the other, the newest last.
    ended: VecDeque<u64>,
    /// Why the one that failed last did.
    failure: Option<String>,
    /// What people have not heard of.
    news: Option<Note>,
    completed: u64,
    failed: u64,
    skipped: u64,
    /// The round of the last one that was not begun: all servers say it.
    skipped_round: u64,
    /// What of those that failed cannot be removed.
    left: Leftovers,
    /// The round of the last one that was not begun for that: all servers say it.
    stopped_round: Option<u64>,
}

impl Checkpoints {
    pub(super) fn new(has_place: bool) -> Self {
        Self { has_place, ..Self::default() }
    }

    /// Why the last one failed, or was not begun, once.
    pub(super) fn take_news(&mut self) -> Option<Note> {
        self.news.take()
    }

    /// After a sleep: what there was counts, what was under way does not.
    pub(super) fn woken(&mut self) -> Self {
        let Self { has_place, completed, failed, skipped, skipped_round, .. } = *self;
        Self {
            has_place,
            completed,
            failed,
            skipped,
            skipped_round,
            left: std::mem::take(&mut self.left),
            failure: self.failure.take(),
            ended: std::mem::take(&mut self.ended),
            ..Self::default()
        }
    }

    /// For people; `all` is what each is to have.
    pub(super) fn status(
        &self,
        newest: Option<String>,
        all: &[(Rank, u16)],
        now_ms: u64,
    ) -> CheckpointStatus {
        let last = self.pending.last_key_value();
        let missing = |pending: &Pending| {
            all.iter().copied().filter(|part| !pending.parts.contains_key(part)).collect::<Vec<_>>()
        };
        let since_ms = last.and_then(|(_, pending)| pending.stalled_since_ms);
        CheckpointStatus {
            newest,
            writing: last.map(|(round, _)| *round),
            stalled_ms: now_ms.saturating_sub(since_ms.unwrap_or(now_ms)),
            parts: last.map_or(0, |(_, pending)| pending.parts.len() as u64),
            parts_expected: all.len() as u64,
            missing: last.map(|(_, pending)| missing(pending)).unwrap_or_default(),
            completed: self.completed,
            failed: self.failed,
            skipped: self.skipped,
            failure: self.failure.clone(),
            stopped: self.left.stopped().map(|stopped| stopped.to_string()),
        }
    }

    /// A worker asks for one of the round that it has finished.
    pub(super) fn ask(
        &mut self,
        (connection, request): (ConnectionId, u64),
        round: u64,
        (now_ms, timeout_ms, epoch): (u64, u64, Epoch),
        wanted: &Wanted<'_>,
        out: &mut Vec<Command>,
    ) {
        let refused = if !self.has_place {
            Some(SaveError::NoPlace)
        } else if self.askers() >= ASKERS_MAX {
            Some(SaveError::NotNow("too many members wait for checkpoints; ask from one of them".into()))
        } else {
            None
        };
        if let Some(error) = refused {
            let result = Err(error);
            return out.push(send(connection, FromScheduler::CheckpointSaved { request, result }));
        }
        let deadline_ms = deadline_ms(now_ms, timeout_ms);
        let asker = Asker { connection, is_operator: false, request, since_ms: now_ms, deadline_ms };
        if let Some(name) = self.has_already(round, epoch) {
            return answer(&[asker], &Ok(name.to_owned()), out);
        }
        if self.is_to_wait(round, wanted) {
            return self.queued.push((round, asker));
        }
        self.take_up(asker, round, epoch, wanted, out);
    }

    /// A worker's turn has come.
    fn take_up(
        &mut self,
        asker: Asker,
        round: u64,
        epoch: Epoch,
        wanted: &Wanted<'_>,
        out: &mut Vec<Command>,
    ) {
        if !self.pending.contains_key(&round) {
            if self.is_stopped(round, &[asker], out) {
                return;
            }
            self.begin(round, true, epoch, wanted, out);
            self.pending.entry(round).or_default().is_now = true;
        }
        let pending = self.pending.entry(round).or_default();
        pending.askers.push(asker);
        // It had begun by itself, and training does not go on before this one is answered: what takes no part in it is not
        // waited for.
        if !std::mem::replace(&mut pending.is_now, true) && !pending.is_complete {
            order(&wanted.servers, CheckpointOrder::Passed { round }, out);
        }
    }

    /// What was to be cleared away is gone, or is not, and why.
    pub(super) fn cleared(&mut self, clearing: Clearing, result: Result<(), String>) {
        self.left.cleared(clearing, result);
    }

    /// Before one of this round is begun: what is left of others is tried again. True where there is too much of it: who waits for
    /// it hears why, and people do, once a round, which all servers name.
    fn is_stopped(&mut self, round: u64, askers: &[Asker], out: &mut Vec<Command>) -> bool {
        // All servers begin it: what the first was told holds for all.
        if askers.is_empty() && self.stopped_round >= Some(round) {
            return true;
        }
        let pending = &self.pending;
        out.extend(self.left.retry(|other| pending.contains_key(&other)).map(Command::ClearAway));
        let Some(stopped) = self.left.stopped() else { return false };
        let error = SaveError::Failed { round, reason: stopped.to_string() };
        if self.stopped_round.replace(round) != Some(round) {
            self.failed += 1;
            self.failure = Some(error.to_string());
            self.news = Some(Note::CheckpointsStopped { round, stopped });
        }
        answer(askers, &Err(error), out);
        true
    }

    /// A checkpoint is over.
    fn end(&mut self, round: u64) -> Option<Pending> {
        let pending = self.pending.remove(&round)?;
        self.ended.push_back(round);
        self.ended.drain(..self.ended.len().saturating_sub(ENDED_KEPT));
        Some(pending)
    }

    /// A checkpoint is over, and was not written: who waits for it hears why, and people do.
    fn end_failed(&mut self, round: u64, reason: &str, out: &mut Vec<Command>) -> Option<Pending> {
        let pending = self.end(round)?;
        let error = SaveError::Failed { round, reason: reason.to_owned() };
        self.failed += 1;
        self.failure = Some(error.to_string());
        self.news = self.failure.clone().map(Note::CheckpointFailed);
        answer(&pending.askers, &Err(error), out);
        Some(pending)
    }

    pub(super) fn askers(&self) -> usize {
        let waiting = self.ordered.askers.len() + self.queued.len();
        waiting + self.pending.values().map(|pending| pending.askers.len()).sum::<usize>()
    }

    fn begin(&mut self, round: u64, now: bool, epoch: Epoch, wanted: &Wanted<'_>, out: &mut Vec<Command>) {
        // A lane copies for one at a time. What an operator asked for is begun anew.
        for pending in self.pending.values_mut().filter(|pending| pending.is_ordered && !pending.is_complete)
        {
            self.ordered.askers.append(&mut pending.askers);
        }
        self.fail_all("a worker asked for another one before it was complete", &wanted.servers, out);
        let restore = wanted.restore.map(str::to_owned);
        let pending = Pending { begun: epoch, restore: restore.clone(), ..Pending::default() };
        self.pending.insert(round, pending);
        let writing = self.pending.keys().copied().collect();
        // Servers have been told to give up what is not among them, and no file's name is used twice.
        out.push(Command::ClearAway(Clearing::Before { round, writing, restore }));
        order(&wanted.servers, CheckpointOrder::Save { round, now }, out);
    }

    /// What a server says.
    pub(super) fn news(
        &mut self,
        from: Rank,
        news: CheckpointNews,
        epoch: Epoch,
        wanted: &Wanted<'_>,
        out: &mut Vec<Command>,
    ) {
        match news {
            CheckpointNews::Begun { round } => {
                // Beside one that is only to be given its manifest the next one may begin. An earlier one may not: it would be
                // taken for a leftover.
                let is_other = |(other, pending): (&u64, &Pending)| {
                    *other != round && (!pending.is_complete || *other > round)
                };
                // Said before its lane had heard of the end: the others do not begin it once more.
                let is_over = !self.pending.contains_key(&round) && self.ended.contains(&round);
                let is_busy = self.pending.iter().any(is_other);
                if is_busy && !is_over && round > self.skipped_round {
                    (self.skipped, self.skipped_round) = (self.skipped + 1, round);
                }
                if !self.has_place || is_over || is_busy {
                    // One at a time: while the disk is slow there are fewer.
                    order(&wanted.servers, CheckpointOrder::Drop { round }, out);
                } else if !self.pending.contains_key(&round) {
                    match self.is_stopped(round, &[], out) {
                        true => order(&wanted.servers, CheckpointOrder::Drop { round }, out),
                        false => self.begin(round, false, epoch, wanted, out),
                    }
                }
            }
            CheckpointNews::Passed { round } => {
                let pending = self.pending.get_mut(&round);
                if pending.is_some_and(|pending| !std::mem::replace(&mut pending.is_passed, true)) {
                    order(&wanted.servers, CheckpointOrder::Passed { round }, out);
                }
            }
            // All parts are there: what a lane has given up was its part of an earlier try.
            CheckpointNews::Failed { round, .. } | CheckpointNews::Past { round, .. }
                if self.pending.get(&round).is_some_and(|pending| pending.is_complete) => {}
            CheckpointNews::Failed { round, reason } => {
                self.fail(round, &format!("server {from}: {reason}"), &wanted.servers, out);
            }
            CheckpointNews::Part(part) => self.part(from, part, wanted, out),
            CheckpointNews::Past { round, newest } => self.past(from, (round, newest), wanted, out),
            CheckpointNews::At { lane, newest, waits } => {
                self.at(from, (lane, newest, waits), epoch, wanted, out);
            }
        }
    }

    fn part(&mut self, from: Rank, part: PartWritten, wanted: &Wanted<'_>, out: &mut Vec<Command>) {
        let round = part.round;
        let Some(pending) = self.pending.get_mut(&round) else {
            // It was given up before this was heard of.
            let (files, restore) = (vec![part.file], wanted.restore.map(str::to_owned));
            return out.push(Command::ClearAway(Clearing::GivenUp { round, files, restore }));
        };
        if part.lane >= wanted.lanes || pending.is_complete {
            return;
        }
        pending.waits.remove(&(from, part.lane));
        pending.stalled_since_ms = None;
        pending.parts.insert((from, part.lane), part);
        if pending.parts.len() < wanted.servers.len() * usize::from(wanted.lanes) {
            return;
        }
        match complete(round, pending, wanted) {
            Ok(completed) => {
                pending.is_complete = true;
                let at_round = |(spec, least, newest): &(TensorSpec, u64, u64)| {
                    spec.settled_mode().has_rounds() && (*least, *newest) == (round, round)
                };
                pending.is_exact = completed.tensors.len() == wanted.tensors.len()
                    && !completed.tensors.is_empty()
                    && completed.tables.is_empty()
                    && completed.tensors.iter().all(at_round);
                // What it covers is known now, and takes room.
                pending.parts.values_mut().for_each(|part| part.covers = Vec::new());
                out.push(Command::WriteManifest(Box::new(completed)));
            }
            Err(reason) => self.fail(round, &reason, &wanted.servers, out),
        }
    }

    /// A manifest is written, or not. Returns the name of what is complete now.
    pub(super) fn written(
        &mut self,
        round: u64,
        result: Result<String, String>,
        out: &mut Vec<Command>,
    ) -> Option<String> {
        match result {
            Ok(name) => {
                if let Some(pending) = self.end(round) {
                    answer(&pending.askers, &Ok(name.clone()), out);
                    let finished = Finished { round, begun: pending.begun, name: name.clone() };
                    self.finished = Some(finished).filter(|_| pending.is_exact);
                }
                self.completed += 1;
                return Some(name);
            }
            Err(reason) => self.fail(round, &reason, &[], out),
        }
        None
    }

    fn fail(&mut self, round: u64, reason: &str, servers: &[ConnectionId], out: &mut Vec<Command>) {
        let Some(pending) = self.end_failed(round, reason, out) else { return };
        order(servers, CheckpointOrder::Drop { round }, out);
        // What is whole is of no use without the others, and would keep a disk full for ever.
        let files = pending.parts.into_values().map(|part| part.file).collect();
        out.push(Command::ClearAway(Clearing::GivenUp { round, files, restore: pending.restore }));
    }

    /// Who serves what has changed: parts that were to come will not, or lack something. `servers` are those that are left.
    pub(super) fn fail_all(&mut self, reason: &str, servers: &[ConnectionId], out: &mut Vec<Command>) {
        let rounds: Vec<u64> = self.pending.iter().filter(|(_, p)| !p.is_complete).map(|(r, _)| *r).collect();
        for round in rounds {
            self.fail(round, reason, servers, out);
        }
        self.ordered.ask_anew();
    }

    /// The job ends, and manifests of those that are whole are not written yet. Their parts stay: a manifest may come still.
    pub(super) fn lose_unwritten(&mut self, when: &str, out: &mut Vec<Command>) {
        let reason = format!(
            "all parts are there, and its manifest was not written {when}; look at the place that checkpoint.directory names"
        );
        let rounds: Vec<u64> = self.pending.keys().copied().collect();
        for round in rounds {
            self.end_failed(round, &reason, out);
        }
    }

    /// A connection is gone: what it waited for is not answered.
    pub(super) fn forget(&mut self, connection: ConnectionId) {
        for pending in self.pending.values_mut() {
            pending.askers.retain(|asker| asker.connection != connection);
        }
        self.ordered.askers.retain(|asker| asker.connection != connection);
        self.queued.retain(|(_, asker)| asker.connection != connection);
    }

    /// Answers those whose deadline has passed; what they asked for goes on. `all` are the parts that each is to have.
    pub(super) fn expire(&mut self, now_ms: u64, all: &[(Rank, u16)], out: &mut Vec<Command>) {
        self.expire_ordered(now_ms, all, out);
        self.expire_queued(now_ms, out);
        for (round, pending) in &mut self.pending {
            let is_late = |asker: &Asker| asker.deadline_ms <= now_ms;
            if !pending.askers.iter().any(is_late) {
                continue;
            }
            let (missing, waiting) = pending.missing(all);
            pending.askers.retain(|asker| {
                let (round, waited_ms) = (*round, now_ms.saturating_sub(asker.since_ms));
                let (parts, waiting) = (all.len() as u64, waiting.clone());
                if is_late(asker) {
                    let error = SaveError::Deadline { round, waited_ms, missing, parts, waiting };
                    answer(&[*asker], &Err(error), out);
                }
                !is_late(asker)
            });
        }
    }

    /// Gives up what nothing has come of for too long, and says for whom it waited: the next one goes on. True where servers are
    /// to say what one waits for.
    pub(super) fn give_up_stalled(
        &mut self,
        now_ms: u64,
        all: &[(Rank, u16)],
        servers: &[ConnectionId],
        out: &mut Vec<Command>,
    ) -> bool {
        let mut stalled = Vec::new();
        let mut asks = false;
        for (round, pending) in &mut self.pending {
            let stalled_ms = pending.stalled_ms(now_ms);
            if stalled_ms < STALLED_MS_MAX {
                let is_slow = stalled_ms >= STALLED_MS_MAX / 2;
                asks |= !pending.is_complete && (!pending.askers.is_empty() || is_slow);
            } else {
                let ((missing, waiting), parts) = (pending.missing(all), all.len());
                let what = Waiting::list(&waiting, missing);
                let why = format!(
                    "nothing has come of it for {stalled_ms} ms: {missing} of {parts} parts are missing: {what}"
                );
                stalled.push((*round, why));
            }
        }
        for (round, why) in stalled {
            self.fail(round, &why, servers, out);
        }
        asks
    }

    /// As if all parts of what is under way had come.
    #[cfg(test)]
    pub(super) fn complete_all(&mut self) {
        self.pending.values_mut().for_each(|pending| pending.is_complete = true);
    }

    /// As if nobody had time to wait for what is under way.
    #[cfg(test)]
    pub(super) fn hurry(&mut self) {
        let askers = self.pending.values_mut().flat_map(|pending| &mut pending.askers);
        askers.for_each(|asker| asker.deadline_ms = 0);
    }

    #[cfg(test)]
    pub(super) fn remembers(&self) -> usize {
        self.ended.len()
    }

    pub(super) fn next_deadline_ms(&self) -> Option<u64> {
        let askers = self.pending.values().flat_map(|pending| &pending.askers).chain(&self.ordered.askers);
        let askers = askers.chain(self.queued.iter().map(|(_, asker)| asker));
        askers.map(|asker| asker.deadline_ms).min()
    }
}

pub(super) fn order(servers: &[ConnectionId], order: CheckpointOrder, out: &mut Vec<Command>) {
    if !servers.is_empty() {
        out.push(send_to(servers.to_vec(), FromScheduler::Checkpoint(order)));
    }
}

fn answer(askers: &[Asker], result: &Result<String, SaveError>, out: &mut Vec<Command>) {
    for Asker { connection, is_operator, request, .. } in askers {
        let (request, result) = (*request, result.clone());
        out.push(send(*connection, FromScheduler::CheckpointSaved { request, result }));
        if *is_operator {
            out.push(Command::Close { connection: *connection });
        }
    }
}
