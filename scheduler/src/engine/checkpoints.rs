//! Checkpoints under way: which parts have come, when one is complete, who waits for it. What is complete covers every chunk
//! exactly, and each synchronous tensor at one version: a checkpoint may be missing, and never torn. It must not touch files.

use super::ordered::Ordered;
use super::{Command, ConnectionId, Engine, Phase, deadline_ms, send};
use daemon::status::CheckpointStatus;
use proto_common::ids::{Epoch, Key, MemberId, Rank, Role};
use proto_common::message::{
    CheckpointNews, CheckpointOrder, Cover, FromScheduler, PartWritten, SaveError, ToScheduler,
    WAITING_LISTED_MAX, Waiting, Waits,
};
use proto_common::table::TableSpec;
use proto_common::tensor::TensorSpec;
use std::collections::{BTreeMap, VecDeque};

/// Members that wait for one.
pub(super) const ASKERS_MAX: usize = 8192;
/// One of which nothing has come for so long, no part and no chunk copied, is given up: a part may have to be sent to an object
/// store as a whole before anything is heard of it.
pub(super) const STALLED_MS_MAX: u64 = 60 * 60 * 1000;
/// Rounds that are remembered when their checkpoints have ended: as many as can be on their way to us.
pub(super) const ENDED_KEPT: usize = 16;

/// A checkpoint whose parts are all there.
#[derive(Clone, Debug, PartialEq)]
pub struct Completed {
    /// Its round.
    pub round: u64,
    /// Its tensors, with the least and the newest version of their chunks.
    pub tensors: Vec<(TensorSpec, u64, u64)>,
    /// Its tables, with their rows.
    pub tables: Vec<(TableSpec, u64)>,
    /// Its parts, without what they cover.
    pub parts: Vec<PartWritten>,
}

/// What a checkpoint is to have.
pub(super) struct Wanted<'a> {
    /// Tensors that servers hold, each with the epoch that it was placed in.
    pub(super) tensors: Vec<(&'a TensorSpec, Epoch)>,
    /// Servers that are there.
    pub(super) servers: Vec<ConnectionId>,
    pub(super) lanes: u16,
    pub(super) chunk_bytes: u64,
}

/// Somebody who waits for one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asker {
    pub(super) connection: ConnectionId,
    pub(super) request: u64,
    pub(super) since_ms: u64,
    pub(super) deadline_ms: u64,
}

/// One under way.
#[derive(Debug, Default)]
pub(super) struct Pending {
    begun: Epoch,
    pub(super) parts: BTreeMap<(Rank, u16), PartWritten>,
    pub(super) askers: Vec<Asker>,
    /// An operator asked for it.
    pub(super) is_ordered: bool,
    /// A worker asked for it, as of the moment.
    is_now: bool,
    is_passed: bool,
    /// What lanes said that it waits for.
    pub(super) waits: BTreeMap<(Rank, u16), Waits>,
    /// Its manifest is being written.
    pub(super) is_complete: bool,
    /// Since when nothing has come of it; none where something has since the last tick.
    stalled_since_ms: Option<u64>,
}

impl Pending {
    /// A lane says what it waits for: nothing where all its chunks are copied.
    pub(super) fn hear(&mut self, from: (Rank, u16), waits: Option<Waits>) {
        if self.parts.contains_key(&from) {
            return;
        }
        let before = match waits {
            Some(waits) => self.waits.insert(from, waits),
            None => self.waits.remove(&from),
        };
        if before.is_some_and(|before| waits.is_none_or(|now| now.left < before.left)) {
            self.stalled_since_ms = None;
        }
    }

    /// Parts that have not come, and what is known of the first of them.
    fn missing(&self, all: &[(Rank, u16)]) -> (u64, Vec<Waiting>) {
        let missing = || all.iter().filter(|part| !self.parts.contains_key(part));
        let waits = |part: &(Rank, u16)| self.waits.get(part).copied();
        let waiting = missing().take(WAITING_LISTED_MAX);
        let waiting = waiting.map(|part| Waiting { server: part.0, lane: part.1, waits: waits(part) });
        (missing().count() as u64, waiting.collect())
    }

    /// How long nothing has come of it.
    fn stalled_ms(&mut self, now_ms: u64) -> u64 {
        now_ms.saturating_sub(*self.stalled_since_ms.get_or_insert(now_ms))
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Checkpoints {
    pub(super) has_place: bool,
    pub(super) pending: BTreeMap<u64, Pending>,
    /// Those that operators asked for, and that are not begun.
    pub(super) ordered: Ordered,
    /// Rounds whose checkpoints have ended, one way or the other, the newest last.
    pub(super) ended: VecDeque<u64>,
    /// Why the one that failed last did.
    failure: Option<String>,
    /// People have not heard of it.
    is_failure_new: bool,
    completed: u64,
    failed: u64,
}

impl Checkpoints {
    pub(super) fn new(has_place: bool) -> Self {
        Self { has_place, ..Self::default() }
    }

    /// Why the last one failed, once.
    pub(super) fn new_failure(&mut self) -> Option<String> {
        self.failure.clone().filter(|_| std::mem::take(&mut self.is_failure_new))
    }

    /// After a sleep: what there was counts, what was under way does not.
    pub(super) fn woken(&mut self) -> Self {
        let Self { has_place, completed, failed, .. } = *self;
        Self {
            has_place,
            completed,
            failed,
            failure: self.failure.take(),
            ended: std::mem::take(&mut self.ended),
            ..Self::default()
        }
    }

    /// For people; `all` is what each is to have.
    pub(super) fn status(&self, newest: Option<String>, all: &[(Rank, u16)]) -> CheckpointStatus {
        let last = self.pending.last_key_value();
        let missing = |pending: &Pending| {
            all.iter().copied().filter(|part| !pending.parts.contains_key(part)).collect::<Vec<_>>()
        };
        CheckpointStatus {
            newest,
            writing: last.map(|(round, _)| *round),
            parts: last.map_or(0, |(_, pending)| pending.parts.len() as u64),
            parts_expected: all.len() as u64,
            missing: last.map(|(_, pending)| missing(pending)).unwrap_or_default(),
            completed: self.completed,
            failed: self.failed,
            failure: self.failure.clone(),
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
        if !self.pending.contains_key(&round) {
            self.begin(round, true, epoch, wanted, out);
            self.pending.entry(round).or_default().is_now = true;
        }
        let pending = self.pending.entry(round).or_default();
        pending.askers.push(Asker { connection, request, since_ms: now_ms, deadline_ms });
        // It had begun by itself, and training does not go on before this one is answered: what takes no part in it is not
        // waited for.
        if !std::mem::replace(&mut pending.is_now, true) && !pending.is_complete {
            order(&wanted.servers, CheckpointOrder::Passed { round }, out);
        }
    }

    /// A checkpoint is over.
    fn end(&mut self, round: u64) -> Option<Pending> {
        let pending = self.pending.remove(&round)?;
        self.ended.push_back(round);
        self.ended.drain(..self.ended.len().saturating_sub(ENDED_KEPT));
        Some(pending)
    }

    pub(super) fn askers(&self) -> usize {
        self.ordered.askers.len() + self.pending.values().map(|pending| pending.askers.len()).sum::<usize>()
    }

    /// Is one under way whose parts are not all there?
    pub(super) fn is_collecting(&self) -> bool {
        self.pending.values().any(|pending| !pending.is_complete)
    }

    pub(super) fn begin(
        &mut self,
        round: u64,
        now: bool,
        epoch: Epoch,
        wanted: &Wanted<'_>,
        out: &mut Vec<Command>,
    ) {
        // A lane copies for one at a time. What an operator asked for is begun anew.
        for pending in self.pending.values_mut().filter(|pending| pending.is_ordered && !pending.is_complete)
        {
            self.ordered.askers.append(&mut pending.askers);
        }
        self.fail_all("a worker asked for another one before it was complete", &wanted.servers, out);
        self.pending.insert(round, Pending { begun: epoch, ..Pending::default() });
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
                let is_other = |(other, pending): (&u64, &Pending)| *other != round && !pending.is_complete;
                // Said before its lane had heard of the end: the others do not begin it once more.
                let is_over = !self.pending.contains_key(&round) && self.ended.contains(&round);
                if !self.has_place || is_over || self.pending.iter().any(is_other) {
                    // One at a time: while the disk is slow there are fewer.
                    order(&wanted.servers, CheckpointOrder::Drop { round }, out);
                } else if !self.pending.contains_key(&round) {
                    self.begin(round, false, epoch, wanted, out);
                }
            }
            CheckpointNews::Passed { round } => {
                let pending = self.pending.get_mut(&round);
                if pending.is_some_and(|pending| !std::mem::replace(&mut pending.is_passed, true)) {
                    order(&wanted.servers, CheckpointOrder::Passed { round }, out);
                }
            }
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
        let Some(pending) = self.pending.get_mut(&round) else { return };
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
                }
                self.completed += 1;
                return Some(name);
            }
            Err(reason) => self.fail(round, &reason, &[], out),
        }
        None
    }

    pub(super) fn fail(
        &mut self,
        round: u64,
        reason: &str,
        servers: &[ConnectionId],
        out: &mut Vec<Command>,
    ) {
        let Some(pending) = self.end(round) else { return };
        let error = SaveError::Failed { round, reason: reason.to_owned() };
        self.failed += 1;
        self.failure = Some(error.to_string());
        self.is_failure_new = true;
        answer(&pending.askers, &Err(error), out);
        order(servers, CheckpointOrder::Drop { round }, out);
    }

    /// Who serves what has changed: parts that were to come will not, or lack something. `servers` are those that are left.
    pub(super) fn fail_all(&mut self, reason: &str, servers: &[ConnectionId], out: &mut Vec<Command>) {
        let rounds: Vec<u64> = self.pending.iter().filter(|(_, p)| !p.is_complete).map(|(r, _)| *r).collect();
        for round in rounds {
            self.fail(round, reason, servers, out);
        }
        self.ordered.ask_anew();
    }

    /// A connection is gone: what it waited for is not answered.
    pub(super) fn forget(&mut self, connection: ConnectionId) {
        for pending in self.pending.values_mut() {
            pending.askers.retain(|asker| asker.connection != connection);
        }
        self.ordered.askers.retain(|asker| asker.connection != connection);
    }

    /// Answers those whose deadline has passed; what they asked for goes on. `all` are the parts that each is to have.
    pub(super) fn expire(&mut self, now_ms: u64, all: &[(Rank, u16)], out: &mut Vec<Command>) {
        self.expire_ordered(now_ms, all, out);
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

    pub(super) fn next_deadline_ms(&self) -> Option<u64> {
        let askers = self.pending.values().flat_map(|pending| &pending.askers).chain(&self.ordered.askers);
        askers.map(|asker| asker.deadline_ms).min()
    }
}

pub(super) fn order(servers: &[ConnectionId], order: CheckpointOrder, out: &mut Vec<Command>) {
    if !servers.is_empty() {
        out.push(Command::Send { to: servers.to_vec(), message: Box::new(FromScheduler::Checkpoint(order)) });
    }
}

pub(super) fn answer(askers: &[Asker], result: &Result<String, SaveError>, out: &mut Vec<Command>) {
    for Asker { connection, request, .. } in askers {
        let (request, result) = (*request, result.clone());
        out.push(send(*connection, FromScheduler::CheckpointSaved { request, result }));
    }
}

/// Puts the parts together; an error where a chunk is missing or stands twice, or a synchronous tensor has several versions.
/// Tensors that were declared since it was begun are left out.
fn complete(round: u64, pending: &Pending, wanted: &Wanted<'_>) -> Result<Completed, String> {
    let mut covers: BTreeMap<Key, Vec<Cover>> = BTreeMap::new();
    let mut rows: BTreeMap<u32, (TableSpec, u64)> = BTreeMap::new();
    for part in pending.parts.values() {
        for cover in &part.covers {
            covers.entry(cover.first.key).or_default().push(*cover);
        }
        for (spec, count) in &part.tables {
            let sum = &mut rows.entry(spec.key).or_insert_with(|| (spec.clone(), 0)).1;
            *sum = sum.saturating_add(*count);
        }
    }
    let mut tensors = Vec::new();
    for (spec, epoch) in &wanted.tensors {
        let mut own = covers.remove(&spec.key).unwrap_or_default();
        if own.is_empty() && *epoch > pending.begun {
            continue;
        }
        own.sort_unstable_by_key(|cover| cover.first.chunk);
        let end = own.iter().try_fold(0u64, |end, cover| {
            (u64::from(cover.first.chunk.0) == end).then_some(end + u64::from(cover.chunks))
        });
        let chunks = spec.chunk_count(wanted.chunk_bytes);
        if end != Some(chunks) {
            let what = "shards were moved while it was written";
            return Err(format!(
                "its parts do not have the {chunks} chunks of tensor {} once each: {what}",
                spec.key
            ));
        }
        let versions = || own.iter().map(|cover| cover.version);
        let (least, newest) = (versions().min().unwrap_or(0), versions().max().unwrap_or(0));
        if spec.settled_mode().has_rounds() && (least != newest || newest > round) {
            let key = spec.key;
            return Err(format!("tensor {key} was at rounds {least} to {newest}: ask for it between rounds"));
        }
        tensors.push(((*spec).clone(), least, newest));
    }
    let with_rounds = tensors.iter().filter(|(spec, ..)| spec.settled_mode().has_rounds());
    if !pending.is_now && with_rounds.map(|(_, _, newest)| *newest).max().is_some_and(|newest| newest < round)
    {
        return Err("training ended before any tensor came to that round".into());
    }
    let without_covers =
        |part: &PartWritten| PartWritten { covers: Vec::new(), tables: Vec::new(), ..part.clone() };
    let parts = pending.parts.values().map(without_covers).collect();
    Ok(Completed { round, tensors, tables: rows.into_values().collect(), parts })
}

impl Engine {
    pub(super) fn wanted(&self) -> Wanted<'_> {
        Wanted {
            tensors: self.declarations.placed().collect(),
            servers: self.present(|id| id.role == Role::Server),
            lanes: self.config.shape.lanes,
            chunk_bytes: self.config.shape.chunk_bytes,
        }
    }

    /// A member speaks of checkpoints.
    pub(super) fn about_checkpoint(
        &mut self,
        now_ms: u64,
        (from, id): (ConnectionId, MemberId),
        message: ToScheduler,
        out: &mut Vec<Command>,
    ) {
        match message {
            ToScheduler::Checkpoint(news) if id.role == Role::Server => self.checkpoint_news(id, news, out),
            ToScheduler::SaveCheckpoint { request, round, timeout_ms } => {
                self.save_checkpoint(now_ms, (from, id, request), (round, timeout_ms), out);
            }
            _ => {}
        }
    }

    /// What a server says of a checkpoint.
    fn checkpoint_news(&mut self, from: MemberId, news: CheckpointNews, out: &mut Vec<Command>) {
        let mut checkpoints = std::mem::take(&mut self.checkpoints);
        checkpoints.news(from.rank, news, self.epoch, &self.wanted(), out);
        self.checkpoints = checkpoints;
    }

    /// A member asks for a checkpoint of this round.
    fn save_checkpoint(
        &mut self,
        now_ms: u64,
        (from, id, request): (ConnectionId, MemberId, u64),
        (round, timeout_ms): (u64, u64),
        out: &mut Vec<Command>,
    ) {
        if self.phase != Phase::Running || id.role != Role::Worker {
            let what = "checkpoints are written while the job runs, when a worker asks; ask then";
            let result = Err(SaveError::NotNow(what.into()));
            return out.push(send(from, FromScheduler::CheckpointSaved { request, result }));
        }
        let mut checkpoints = std::mem::take(&mut self.checkpoints);
        checkpoints.ask((from, request), round, (now_ms, timeout_ms, self.epoch), &self.wanted(), out);
        self.checkpoints = checkpoints;
    }

    /// Who serves what has changed: what is being written lacks something.
    pub(super) fn fail_checkpoints(&mut self, reason: &str, out: &mut Vec<Command>) {
        let servers = self.present(|id| id.role == Role::Server);
        self.checkpoints.fail_all(reason, &servers, out);
    }

    /// Parts that a checkpoint has.
    pub(super) fn checkpoint_parts(&self) -> Vec<(Rank, u16)> {
        let servers = self.members.iter().filter(|(id, member)| id.role == Role::Server && !member.gone);
        let lanes = self.config.shape.lanes;
        servers.flat_map(|(id, _)| (0..lanes).map(|lane| (id.rank, lane))).collect()
    }
}
