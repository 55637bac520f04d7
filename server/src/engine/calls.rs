//! Calls of workers to handlers: which are taken, in which order handlers get them, what is answered and how long that is
//! kept. Per worker and handler they are first in, first out, and each is handed over once: a replay after a broken channel
//! is told what the call was told. Bytes and handlers' threads are the runtime's business.

use super::answers::push_result;
use super::command::{CallTaken, Command, Commands, ResultBlock, Source};
use super::lane::{BatchContext, LaneEngine};
use super::lines::{CallAnswer, Entry, Stage};
use super::waiting::{CallWaits, Waiting};
use proto_common::batch::{Block, BlockData, Landing, OpKind, Status};
use proto_common::call::{CALLS_IN_FLIGHT_MAX, called};
use proto_common::element::Dtype;
use proto_common::ids::{Incarnation, Operation, Rank};
use proto_common::message::WaitCause;
use proto_common::table::table_of;

/// A worker whose reply waits for room asks again at once, or says that it gives up. Where it does neither, its reply is kept
/// so long.
const ROOM_WITHIN_MS: u64 = 30_000;

/// The runtime is to take the call that this block is of.
fn take(call: u64, peer: Rank, app: u32, from: Source, block: &Block) -> Command {
    let region = block.landing.map_or(0, |landing| landing.region);
    Command::CallTake(CallTaken {
        call,
        peer,
        app,
        from,
        frame_bytes: block.bytes,
        region,
        bytes: block.round,
    })
}

impl LaneEngine {
    /// Bytes of requests and replies that this lane keeps at most.
    pub fn limit_calls(&mut self, bytes: u64) {
        self.calls.most_bytes = bytes;
    }

    /// Calls in progress or kept.
    #[must_use]
    pub fn calls(&self) -> usize {
        self.calls.by_id.len()
    }

    /// Bytes of calls that are kept.
    #[must_use]
    pub fn call_bytes(&self) -> u64 {
        self.calls.bytes
    }

    /// A handler came or went: calls whose deadline passes are told so.
    pub fn set_handler(&mut self, app: u32, is_there: bool) {
        if is_there {
            self.calls.handlers.insert(app);
        } else {
            self.calls.handlers.remove(&app);
        }
    }

    /// A call in a batch. False when the worker is to be expelled for it.
    pub(super) fn call(
        &mut self,
        batch: &BatchContext<'_>,
        block: &Block,
        now_ms: u64,
        out: &mut Commands,
    ) -> bool {
        let peer = batch.peer;
        let mut expel = |reason: &str| {
            out.expel(peer, reason);
            false
        };
        let (Some((app, _)), BlockData::Inline { offset }) = (called(block.id), block.data) else {
            return expel("its call names no handler, or is not in its batch");
        };
        let operation = block.operation.0;
        if block.view || operation == 0 || !matches!(block.status, Status::None | Status::Corrupt) {
            return expel("its call has invalid fields");
        }
        if self.calls.line(peer, app).is_none() {
            self.send_back(peer, block, Status::Refused, Vec::new());
            return true;
        }
        if !self.calls.acknowledge(peer, app, block.first_open.0) {
            return expel("it acknowledged a call that was not answered");
        }
        let Some(line) = self.calls.line(peer, app) else { return true };
        if operation < line.acked || operation >= line.acked.saturating_add(CALLS_IN_FLIGHT_MAX) {
            return expel("it has more calls in flight than allowed");
        }
        let slot = batch.slot.slot;
        let from = Source::Slot { slot, offset: batch.header.payload_offset.saturating_add(offset) };
        if operation < line.next {
            self.repeated_call(peer, app, block, from, now_ms, out);
        } else if operation > line.next {
            self.retry(peer, block, Vec::new());
        } else {
            self.fresh_call(peer, app, block, from, now_ms, out);
        }
        true
    }

    fn fresh_call(
        &mut self,
        peer: Rank,
        app: u32,
        block: &Block,
        from: Source,
        now_ms: u64,
        out: &mut Commands,
    ) {
        let total = block.round;
        let refused = match block.status {
            // Given up by its worker, whose number it uses up.
            Status::Corrupt => Some(Status::Refused),
            _ if total > self.calls.most_bytes => Some(Status::WrongShape),
            _ => None,
        };
        let bytes = self.calls.needed(block);
        if refused.is_none() && !self.has_room(bytes, peer, block) {
            return;
        }
        let id = self.calls.next_id;
        self.calls.next_id += 1;
        let entry = Entry {
            id,
            named: block.id,
            operation: block.operation.0,
            stage: Stage::Fetching,
            bytes: if refused.is_none() { bytes } else { 0 },
            token: block.token,
            landing: block.landing,
            since_ms: now_ms,
            deadline_ms: now_ms.saturating_add(u64::from(block.timeout_ms)),
            is_landing: false,
            awaits_room: false,
            room_until_ms: None,
            runs_again: false,
        };
        let Some(line) = self.calls.line(peer, app) else { return };
        line.next += 1;
        line.entries.push_back(entry);
        self.calls.bytes += entry.bytes;
        self.calls.by_id.insert(id, (peer, app, entry.operation));
        match refused {
            Some(status) => self.end_call(id, CallAnswer::failed(status), out),
            None => {
                self.stats.calls += 1;
                out.push(take(id, peer, app, from, block));
            }
        }
    }

    /// Is there room for a call, or was it sent back to come again?
    fn has_room(&mut self, bytes: u64, peer: Rank, block: &Block) -> bool {
        let fits = block.round <= self.calls.most_bytes && self.calls.make_room(bytes, &self.peers);
        if !fits {
            self.stats.retries += 1;
            self.send_back(peer, block, Status::CallRoom, Vec::new());
        }
        fits
    }

    /// The same call again: over a new channel, with room for its reply, or because its worker has given it up.
    fn repeated_call(
        &mut self,
        peer: Rank,
        app: u32,
        block: &Block,
        from: Source,
        now_ms: u64,
        out: &mut Commands,
    ) {
        self.stats.duplicates += 1;
        let entry = self.calls.lines.get_mut(&(peer, app)).and_then(|line| line.find(block.operation.0));
        let Some(entry) = entry else {
            self.send_back(peer, block, Status::NoReply, Vec::new());
            return;
        };
        (entry.token, entry.landing) = (block.token, block.landing);
        entry.deadline_ms = now_ms.saturating_add(u64::from(block.timeout_ms));
        let (id, stage, is_landing) = (entry.id, entry.stage, entry.is_landing);
        match stage {
            Stage::Answered(_) if is_landing => self.one_less_unanswered(peer),
            Stage::Answered(_) if block.status == Status::Corrupt => {
                self.let_go(id, Status::Refused, out);
                self.tell_call(id, out);
            }
            Stage::Answered(_) if entry.runs_again => self.run_again(id, peer, app, block, from, out),
            Stage::Answered(_) => self.tell_call(id, out),
            // It replaces itself.
            _ => self.one_less_unanswered(peer),
        }
    }

    /// A call whose reply was not kept comes again. It needs its room as a new one does.
    fn run_again(&mut self, id: u64, peer: Rank, app: u32, block: &Block, from: Source, out: &mut Commands) {
        let bytes = self.calls.needed(block);
        let Some((_, _, entry)) = self.calls.entry(id) else { return };
        let before = std::mem::take(&mut entry.bytes);
        self.calls.bytes = self.calls.bytes.saturating_sub(before);
        if !self.has_room(bytes, peer, block) {
            return;
        }
        self.calls.bytes += bytes;
        if let Some((_, _, entry)) = self.calls.entry(id) {
            (entry.stage, entry.bytes) = (Stage::Fetching, bytes);
        }
        out.push(take(id, peer, app, from, block));
    }

    fn one_less_unanswered(&mut self, peer: Rank) {
        if let Some(Some(state)) = self.peers.get_mut(peer.0 as usize) {
            state.unanswered = state.unanswered.saturating_sub(1);
        }
    }

    /// A call's body is whole: the answer to `Command::CallTake`.
    pub fn call_arrived(&mut self, id: u64, out: &mut Commands) {
        let Some((rank, app, entry)) = self.calls.entry(id) else { return };
        if entry.stage == Stage::Fetching {
            entry.stage = Stage::Ready;
        }
        self.calls.deliver(rank, app, out);
    }

    /// A handler has answered a call, or let go of it.
    pub fn call_answered(&mut self, id: u64, answer: CallAnswer, out: &mut Commands) {
        self.end_delivered(id, answer, false, out);
    }

    /// As [`LaneEngine::call_answered`], of a reply whose body was written to its landing already. It is not kept, and the
    /// call changes nothing: a replay runs it again, and then sees what later calls have changed.
    pub fn call_placed(&mut self, id: u64, answer: CallAnswer, out: &mut Commands) {
        self.end_delivered(id, answer, true, out);
    }

    fn end_delivered(&mut self, id: u64, answer: CallAnswer, is_placed: bool, out: &mut Commands) {
        match self.calls.entry(id) {
            Some((_, _, entry)) if entry.stage == Stage::Delivered => {
                let has_place = entry.landing.is_some_and(|landing| landing.bytes >= answer.body_bytes);
                entry.runs_again = is_placed && has_place;
                self.end_call(id, answer, out);
            }
            // Too late: its worker was told something else, or has gone.
            _ => out.push(Command::CallDrop { call: id }),
        }
    }

    /// Where a delivered call's reply may be written.
    pub(crate) fn call_landing(&mut self, id: u64) -> Option<Landing> {
        let (_, _, entry) = self.calls.entry(id)?;
        entry.landing.filter(|_| entry.stage == Stage::Delivered)
    }

    /// A delivered call's body can be read no more, because its channel has ended, and nothing was done: the worker sends it
    /// again, with those after it.
    pub fn call_returned(&mut self, id: u64) {
        let Some((rank, app, entry)) = self.calls.entry(id) else { return };
        if entry.stage != Stage::Delivered || entry.put_back() {
            return;
        }
        let operation = entry.operation;
        let Some(line) = self.calls.lines.get_mut(&(rank, app)) else { return };
        let at = line.entries.partition_point(|entry| entry.operation < operation);
        line.next = operation;
        let returned: Vec<Entry> = line.entries.drain(at..).collect();
        returned.iter().for_each(|entry| self.calls.forget(entry));
    }

    fn end_call(&mut self, id: u64, answer: CallAnswer, out: &mut Commands) {
        let Some((_, _, entry)) = self.calls.entry(id) else { return };
        let (before, is_kept) = (std::mem::take(&mut entry.bytes), !entry.runs_again);
        self.calls.bytes = self.calls.bytes.saturating_sub(before);
        let kept = if is_kept { answer.kept_bytes() } else { 0 };
        // Short ones are never refused: there are no more of them than calls that were taken.
        let has_room = kept == 0 || self.calls.make_room(kept, &self.peers) || answer.is_inline();
        let answer = if has_room { answer } else { CallAnswer::failed(Status::NoMemory) };
        if !has_room {
            out.push(Command::CallDrop { call: id });
        }
        let kept = kept.min(answer.kept_bytes());
        let Some((_, _, entry)) = self.calls.entry(id) else { return };
        (entry.stage, entry.bytes) = (Stage::Answered(answer), kept);
        self.calls.bytes = self.calls.bytes.saturating_add(kept);
        if kept > 0 {
            self.calls.keep(id);
        }
        self.stats.answers += 1;
        self.tell_call(id, out);
    }

    /// A reply that nobody will take any more: its call is answered with this from now on.
    fn let_go(&mut self, id: u64, status: Status, out: &mut Commands) {
        let Some((_, _, entry)) = self.calls.entry(id) else { return };
        let bytes = std::mem::take(&mut entry.bytes);
        entry.stage = Stage::Answered(CallAnswer::failed(status));
        (entry.is_landing, entry.awaits_room) = (false, false);
        self.calls.bytes = self.calls.bytes.saturating_sub(bytes);
        out.push(Command::CallDrop { call: id });
    }

    /// Says how a call ended, when its reply is where it has a place.
    fn tell_call(&mut self, id: u64, out: &mut Commands) {
        let Some((peer, _, entry)) = self.calls.entry(id) else { return };
        let Stage::Answered(answer) = entry.stage else { return };
        let room = entry.landing.filter(|landing| landing.bytes >= answer.body_bytes);
        let is_placed = entry.runs_again;
        let landing = if answer.is_inline() && !is_placed { None } else { room };
        entry.awaits_room = answer.status == Status::Done && !answer.is_inline() && landing.is_none();
        match landing {
            Some(landing) if !is_placed => {
                entry.is_landing = true;
                let landing = Landing { bytes: answer.body_bytes, ..landing };
                out.push(Command::CallLand { peer, call: id, landing });
            }
            landing => self.push_call(id, landing),
        }
    }

    /// All of a reply is on its way to where it has room, or cannot be sent: the answer to `Command::CallLand`.
    pub fn call_landed(&mut self, id: u64, is_sent: bool, out: &mut Commands) {
        let Some((_, _, entry)) = self.calls.entry(id).filter(|(.., entry)| entry.is_landing) else { return };
        entry.is_landing = false;
        let landing = entry.landing;
        match is_sent {
            true => self.push_call(id, landing),
            false => {
                self.let_go(id, Status::NoMemory, out);
                self.push_call(id, None);
            }
        }
    }

    /// A call's body cannot be had, because there is no memory for it here.
    pub fn call_failed(&mut self, id: u64, out: &mut Commands) {
        let Some((rank, app, entry)) = self.calls.entry(id) else { return };
        if entry.stage == Stage::Fetching {
            self.end_call(id, CallAnswer::failed(Status::NoMemory), out);
            out.push(Command::CallDrop { call: id });
            self.calls.deliver(rank, app, out);
        }
    }

    fn push_call(&mut self, id: u64, landing: Option<Landing>) {
        let Some((peer, _, entry)) = self.calls.entry(id) else { return };
        let Stage::Answered(answer) = entry.stage else { return };
        let status = if entry.awaits_room { Status::ReplyRoom } else { answer.status };
        let bytes = match (status, landing) {
            (Status::Done, None) => answer.prefix_bytes() + answer.body_bytes,
            (Status::Done, Some(_)) => answer.prefix_bytes(),
            _ => 0,
        };
        let block = Block {
            status,
            round: answer.body_bytes,
            bytes,
            landing: landing.map(|_| Landing { region: 0, offset: 0, bytes: answer.body_bytes }),
            token: entry.token,
            ..Block::bare(entry.named, OpKind::Call, Dtype::F32, Operation(entry.operation))
        };
        let result = ResultBlock { block, missing: Vec::new(), call: (bytes > 0).then_some(id) };
        push_result(&mut self.peers, &mut self.dirty, peer, result);
    }

    /// Calls that were taken and are not answered, with whose they are and for which handler.
    fn unanswered(&self) -> impl Iterator<Item = (Rank, u32, &Entry)> {
        let lines = self.calls.lines.iter();
        let all = lines.flat_map(|((rank, app), line)| line.entries.iter().map(|entry| (*rank, *app, entry)));
        all.filter(|(.., entry)| !matches!(entry.stage, Stage::Answered(_)))
    }

    /// How many those are.
    pub(super) fn open_calls(&self) -> usize {
        self.unanswered().count()
    }

    /// The call that waits longest, for people.
    pub(super) fn oldest_call(&self, now_ms: u64) -> Option<Waiting> {
        let (rank, app, entry) = self.unanswered().min_by_key(|(.., entry)| entry.since_ms)?;
        let call = match entry.stage {
            Stage::Fetching => CallWaits::Body,
            Stage::Ready => CallWaits::Turn,
            _ if self.calls.handlers.contains(&app) || table_of(app).is_some() => CallWaits::Answer,
            _ => CallWaits::Handler,
        };
        let waited_ms = now_ms.saturating_sub(entry.since_ms);
        Some(Waiting {
            chunk: entry.named,
            rank,
            round: 0,
            waited_ms,
            cause: WaitCause::Handler,
            on: Vec::new(),
            call: Some(call),
        })
    }

    /// Calls whose deadline is over are answered.
    pub(super) fn tick_calls(&mut self, now_ms: u64, out: &mut Commands) {
        let lines =
            self.calls.lines.iter().flat_map(|((_, app), line)| line.entries.iter().map(|e| (*app, e)));
        let late = lines
            .filter(|(_, entry)| entry.deadline_ms <= now_ms && !matches!(entry.stage, Stage::Answered(_)));
        let late: Vec<_> = late.map(|(app, entry)| (app, entry.id, entry.stage)).collect();
        let mut ended = Vec::new();
        for (app, id, stage) in late {
            self.stats.deadlines += 1;
            let has_handler = self.calls.handlers.contains(&app) || table_of(app).is_some();
            let status = if has_handler { Status::DeadlineWaiting } else { Status::NoHandler };
            match stage {
                Stage::Delivered => out.push(Command::CallCancel { call: id }),
                // Its body is counted no more, so it is let go of.
                _ => out.push(Command::CallDrop { call: id }),
            }
            if let Some((_, _, entry)) = self.calls.entry(id) {
                entry.runs_again = false;
            }
            self.end_call(id, CallAnswer::failed(status), out);
            ended.extend(self.calls.by_id.get(&id).map(|(rank, app, _)| (*rank, *app)));
        }
        // They may be what others waited for, whose deadline is not over.
        ended.into_iter().for_each(|(rank, app)| self.calls.deliver(rank, app, out));
        self.tick_rooms(now_ms, out);
    }

    /// Replies that their workers should have asked for long ago are kept no longer.
    fn tick_rooms(&mut self, now_ms: u64, out: &mut Commands) {
        let mut late = Vec::new();
        let entries = self.calls.lines.values_mut().flat_map(|line| &mut line.entries);
        for entry in entries.filter(|entry| entry.awaits_room) {
            if *entry.room_until_ms.get_or_insert(now_ms.saturating_add(ROOM_WITHIN_MS)) <= now_ms {
                late.push(entry.id);
            }
        }
        late.into_iter().for_each(|id| self.let_go(id, Status::NoReply, out));
    }

    /// A worker's channel is closed: calls that no handler has will come again.
    pub(super) fn calls_peer_down(&mut self, rank: Rank) {
        let calls = &mut self.calls;
        let mut dropped = Vec::new();
        for (_, line) in calls.lines.iter_mut().filter(|((of, _), _)| *of == rank) {
            line.entries.iter_mut().for_each(|entry| _ = entry.put_back());
            let undelivered = |entry: &Entry| matches!(entry.stage, Stage::Fetching | Stage::Ready);
            // Handlers get them in order: these are the last ones, but for some that a deadline ended.
            let Some(at) = line.entries.iter().position(undelivered) else { continue };
            line.next = line.entries[at].operation;
            dropped.extend(line.entries.drain(at..));
        }
        let lines = calls.lines.iter_mut().filter(|((of, _), _)| *of == rank);
        lines.for_each(|(_, line)| line.entries.iter_mut().for_each(|entry| entry.is_landing = false));
        dropped.iter().for_each(|entry| calls.forget(entry));
    }

    /// A worker's channel is up. Of another life of it nothing is kept.
    pub(super) fn calls_peer_up(&mut self, rank: Rank, incarnation: Incarnation) {
        let calls = &mut self.calls;
        let (life, _) = calls.lives.entry(rank).or_default();
        if *life == incarnation {
            return;
        }
        calls.lives.insert(rank, (incarnation, 0));
        let mut dropped = Vec::new();
        calls.lines.retain(|(of, _), line| {
            if *of == rank {
                dropped.extend(line.entries.drain(..));
            }
            *of != rank
        });
        dropped.iter().for_each(|entry| calls.forget(entry));
    }

    /// The runtime hears which calls are over.
    pub(super) fn drop_calls(&mut self, out: &mut Commands) {
        out.list.extend(self.calls.gone.drain(..).map(|call| Command::CallDrop { call }));
    }
}
