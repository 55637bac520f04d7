//! Calls of workers to handlers: which are taken, in which order handlers get them, what is answered and how long that is
//! kept. Per worker and handler they are first in, first out, and each is handed over once: a replay after a broken channel
//! is told what the call was told. Bytes and handlers' threads are the runtime's business.

use super::answers::push_result;
use super::command::{Command, Commands, ResultBlock, Source};
use super::lane::{BatchContext, LaneEngine};
use proto_common::batch::{Block, BlockData, Landing, OpKind, Reading, Status};
use proto_common::call::{CALL_APPS_MAX, CALLS_IN_FLIGHT_MAX, REPLY_INLINE_BYTES_MAX, called};
use proto_common::element::Dtype;
use proto_common::ids::{ChunkId, Incarnation, Operation, Rank};
use proto_common::table::table_of;
use std::collections::hash_map::Entry as Slot;
use std::collections::{HashMap, HashSet, VecDeque};

/// Bytes of requests and replies that a lane keeps unless it is told otherwise.
const BYTES_DEFAULT: u64 = 1 << 30;
/// The length of a reply's head, in a result's payload.
const HEAD_LENGTH_BYTES: u64 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Its body is being read.
    Fetching,
    /// Whole; calls before it are not.
    Ready,
    /// The handler has it.
    Delivered,
    /// Kept until the worker says that it knows.
    Answered(CallAnswer),
}

/// How a call ended, without its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallAnswer {
    /// [`Status::Done`], or why not.
    pub status: Status,
    /// Bytes of the reply's head.
    pub head_bytes: u32,
    /// Bytes of its body.
    pub body_bytes: u64,
}

impl CallAnswer {
    /// An answer without a reply.
    const fn failed(status: Status) -> Self {
        Self { status, head_bytes: 0, body_bytes: 0 }
    }

    fn prefix_bytes(&self) -> u64 {
        HEAD_LENGTH_BYTES + u64::from(self.head_bytes)
    }

    /// Does all of it travel with the result?
    pub(crate) fn is_inline(&self) -> bool {
        self.prefix_bytes().saturating_add(self.body_bytes) <= REPLY_INLINE_BYTES_MAX
    }

    /// Bytes that are counted while it is kept.
    fn kept_bytes(&self) -> u64 {
        if self.is_inline() { 0 } else { self.body_bytes }
    }
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    id: u64,
    /// As the worker names handler and server.
    named: ChunkId,
    operation: u64,
    stage: Stage,
    /// Bytes that it is counted with.
    bytes: u64,
    /// As its newest block says.
    token: u64,
    landing: Option<Landing>,
    deadline_ms: u64,
    /// The worker was told to ask again with room: until then its reply is not given up for others.
    awaits_room: bool,
    /// Its reply was written where it is to lie, and is not kept: a replay runs it again, which changes nothing.
    runs_again: bool,
}

impl Entry {
    /// Of a call that is under way a second time: it is answered as before, since those after it are. True where that was so.
    fn put_back(&mut self) -> bool {
        let is_repeated = self.runs_again && !matches!(self.stage, Stage::Answered(_));
        if is_repeated {
            self.stage = Stage::Answered(CallAnswer::failed(Status::NoReply));
        }
        is_repeated
    }
}

/// The calls of one worker to one handler.
#[derive(Debug, Default)]
struct Line {
    /// The operation that is next.
    next: u64,
    /// Operations before this are known to be answered.
    acked: u64,
    /// In order of their operations; some that are answered may be gone.
    entries: VecDeque<Entry>,
}

impl Line {
    fn find(&mut self, operation: u64) -> Option<&mut Entry> {
        let at = self.entries.binary_search_by_key(&operation, |entry| entry.operation).ok()?;
        self.entries.get_mut(at)
    }
}

/// What the lane knows of calls.
#[derive(Debug)]
pub(super) struct Calls {
    lines: HashMap<(Rank, u32), Line>,
    /// The life of each worker that its lines are of.
    lives: HashMap<Rank, (Incarnation, usize)>,
    /// Whose call an id is.
    by_id: HashMap<u64, (Rank, u32, u64)>,
    next_id: u64,
    /// Handlers that are there.
    handlers: HashSet<u32>,
    /// Bytes of bodies, and of replies that are kept.
    bytes: u64,
    most_bytes: u64,
    /// Answered calls whose replies are kept beyond their result, oldest first.
    kept: VecDeque<u64>,
    /// Calls that are over: the runtime lets go of them with the next commands.
    gone: Vec<u64>,
}

impl Default for Calls {
    fn default() -> Self {
        Self {
            lines: HashMap::new(),
            lives: HashMap::new(),
            by_id: HashMap::new(),
            next_id: 1,
            handlers: HashSet::new(),
            bytes: 0,
            most_bytes: BYTES_DEFAULT,
            kept: VecDeque::new(),
            gone: Vec::new(),
        }
    }
}

impl Calls {
    fn entry(&mut self, id: u64) -> Option<(Rank, u32, &mut Entry)> {
        let (rank, app, operation) = *self.by_id.get(&id)?;
        let entry = self.lines.get_mut(&(rank, app))?.find(operation)?;
        (entry.id == id).then_some((rank, app, entry))
    }

    /// Nothing is kept of this call any more.
    fn forget(&mut self, entry: &Entry) {
        self.bytes = self.bytes.saturating_sub(entry.bytes);
        self.by_id.remove(&entry.id);
        if matches!(entry.stage, Stage::Answered(answer) if answer.kept_bytes() > 0 && !entry.runs_again)
            && let Some(at) = self.kept.iter().position(|kept| *kept == entry.id)
        {
            self.kept.remove(at);
        }
        self.gone.push(entry.id);
    }

    /// Makes room for so many bytes, by replies that workers most likely have. False where there is none.
    fn make_room(&mut self, bytes: u64) -> bool {
        let mut looked_at = self.kept.len();
        while self.bytes.saturating_add(bytes) > self.most_bytes && looked_at > 0 {
            looked_at -= 1;
            let Some(id) = self.kept.pop_front() else { break };
            let Some((rank, app, entry)) = self.entry(id) else { continue };
            if entry.awaits_room {
                self.kept.push_back(id);
                continue;
            }
            let entry = *entry;
            if let Some(line) = self.lines.get_mut(&(rank, app)) {
                line.entries.retain(|other| other.id != id);
            }
            self.forget(&entry);
        }
        self.bytes.saturating_add(bytes) <= self.most_bytes
    }

    /// The worker knows the answers of all calls before `from`. False where one of them is not answered.
    fn acknowledge(&mut self, rank: Rank, app: u32, from: u64) -> bool {
        let Some(line) = self.lines.get_mut(&(rank, app)) else { return true };
        line.acked = line.acked.max(from);
        // A deadline may have ended calls behind one that was still to come whole when the channel broke: those do not
        // come again.
        line.next = line.next.max(from);
        let known = line.entries.partition_point(|entry| entry.operation < from);
        let known: Vec<Entry> = line.entries.drain(..known).collect();
        known.iter().for_each(|entry| self.forget(entry));
        known.iter().all(|entry| matches!(entry.stage, Stage::Answered(_)))
    }

    /// A worker's line to a handler; `None` where it would be one too many.
    fn line(&mut self, rank: Rank, app: u32) -> Option<&mut Line> {
        let Self { lines, lives, .. } = self;
        let (_, count) = lives.entry(rank).or_default();
        match lines.entry((rank, app)) {
            Slot::Occupied(line) => Some(line.into_mut()),
            Slot::Vacant(_) if *count >= CALL_APPS_MAX => None,
            Slot::Vacant(place) => {
                *count += 1;
                Some(place.insert(Line { next: 1, acked: 1, entries: VecDeque::new() }))
            }
        }
    }

    /// The next calls of a line whose bodies are whole go to their handler.
    fn deliver(&mut self, rank: Rank, app: u32, out: &mut Commands) {
        let Some(line) = self.lines.get_mut(&(rank, app)) else { return };
        for entry in &mut line.entries {
            match entry.stage {
                Stage::Fetching => break,
                Stage::Ready => {
                    entry.stage = Stage::Delivered;
                    out.push(Command::CallDeliver { call: entry.id });
                }
                Stage::Delivered | Stage::Answered(_) => {}
            }
        }
    }
}

/// The runtime is to take the call that this block is of.
fn take(call: u64, peer: Rank, app: u32, from: Source, block: &Block) -> Command {
    let region = block.landing.map_or(0, |landing| landing.region);
    Command::CallTake { call, peer, app, from, frame_bytes: block.bytes, region, bytes: block.round }
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
            out.push(Command::Expel { peer, reason: reason.to_owned() });
            false
        };
        let (Some((app, _)), BlockData::Inline { offset }) = (called(block.id), block.data) else {
            return expel("its call names no handler, or is not in its batch");
        };
        let operation = block.operation.0;
        if block.view || operation == 0 || !matches!(block.status, Status::None | Status::Corrupt) {
            return expel("its call asks for what no call can");
        }
        if self.calls.line(peer, app).is_none() {
            self.send_back(peer, block, Status::Refused, Vec::new());
            return true;
        }
        if !self.calls.acknowledge(peer, app, block.reading.from.0) {
            return expel("it acknowledged a call that was not answered");
        }
        let Some(line) = self.calls.line(peer, app) else { return true };
        if operation < line.acked || operation >= line.acked.saturating_add(CALLS_IN_FLIGHT_MAX) {
            return expel("it has more calls under way than it may");
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
        if refused.is_none() && !self.calls.make_room(total) {
            self.retry(peer, block, Vec::new());
            return;
        }
        let id = self.calls.next_id;
        self.calls.next_id += 1;
        let entry = Entry {
            id,
            named: block.id,
            operation: block.operation.0,
            stage: Stage::Fetching,
            bytes: if refused.is_none() { total } else { 0 },
            token: block.token,
            landing: block.landing,
            deadline_ms: now_ms.saturating_add(u64::from(block.timeout_ms)),
            awaits_room: false,
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

    /// The same call again: over a new channel, or with room for its reply.
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
        let (id, stage) = (entry.id, entry.stage);
        match stage {
            Stage::Answered(_) if entry.runs_again => {
                let before = std::mem::replace(&mut entry.bytes, block.round);
                entry.stage = Stage::Fetching;
                self.calls.bytes = self.calls.bytes.saturating_sub(before).saturating_add(block.round);
                out.push(take(id, peer, app, from, block));
            }
            Stage::Answered(_) => self.tell_call(id, out),
            // It replaces itself.
            _ => {
                if let Some(Some(state)) = self.peers.get_mut(peer.0 as usize) {
                    state.unanswered = state.unanswered.saturating_sub(1);
                }
            }
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
        let (before, kept) = (entry.bytes, if entry.runs_again { 0 } else { answer.kept_bytes() });
        (entry.stage, entry.bytes) = (Stage::Answered(answer), kept);
        self.calls.bytes = self.calls.bytes.saturating_sub(before).saturating_add(kept);
        if kept > 0 {
            self.calls.kept.retain(|other| *other != id);
            self.calls.kept.push_back(id);
        }
        self.stats.answers += 1;
        self.tell_call(id, out);
    }

    /// Says how a call ended, with its reply where that has a place.
    fn tell_call(&mut self, id: u64, out: &mut Commands) {
        let Some((peer, _, entry)) = self.calls.entry(id) else { return };
        let Stage::Answered(answer) = entry.stage else { return };
        let room = entry.landing.filter(|landing| landing.bytes >= answer.body_bytes);
        let is_placed = entry.runs_again;
        let landing = if answer.is_inline() && !is_placed { None } else { room };
        let has_place = answer.is_inline() || landing.is_some();
        entry.awaits_room = answer.status == Status::Done && !has_place;
        let status = if entry.awaits_room { Status::ReplyRoom } else { answer.status };
        let bytes = match (status, landing) {
            (Status::Done, None) => answer.prefix_bytes() + answer.body_bytes,
            (Status::Done, Some(_)) => answer.prefix_bytes(),
            _ => 0,
        };
        let (named, operation, token) = (entry.named, entry.operation, entry.token);
        let landing = landing.map(|landing| Landing { bytes: answer.body_bytes, ..landing });
        if let Some(landing) = landing.filter(|_| !is_placed) {
            out.push(Command::CallLand { peer, call: id, landing });
        }
        let block = Block {
            id: named,
            op: OpKind::Call,
            dtype: Dtype::F32,
            codec: 0,
            status,
            operation: Operation(operation),
            round: answer.body_bytes,
            bytes,
            data: BlockData::Inline { offset: 0 },
            landing: landing.map(|landing| Landing { region: 0, offset: 0, ..landing }),
            view: false,
            reading: Reading::default(),
            timeout_ms: 0,
            token,
        };
        let result = ResultBlock { block, missing: Vec::new(), call: (bytes > 0).then_some(id) };
        push_result(&mut self.peers, &mut self.dirty, peer, result);
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
            if stage == Stage::Delivered {
                out.push(Command::CallCancel { call: id });
            }
            if let Some((_, _, entry)) = self.calls.entry(id) {
                entry.runs_again = false;
            }
            self.end_call(id, CallAnswer::failed(status), out);
            ended.extend(self.calls.by_id.get(&id).map(|(rank, app, _)| (*rank, *app)));
        }
        // They may be what others waited for, whose deadline is not over.
        ended.into_iter().for_each(|(rank, app)| self.calls.deliver(rank, app, out));
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
