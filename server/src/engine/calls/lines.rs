//! What a lane knows of calls: the lines of workers to handlers, and how many bytes of them are kept. What is done with a
//! call is in `calls`.

use crate::engine::command::{CallTaken, Command, Commands, Source};
use crate::engine::peers::Peers;
use proto_common::batch::{Block, Landing, Status};
use proto_common::call::{CALL_APPS_MAX, REPLY_INLINE_BYTES_MAX};
use proto_common::ids::{ChunkId, Incarnation, Rank};
use std::collections::hash_map::Entry as Slot;
use std::collections::{HashMap, HashSet, VecDeque};

/// Bytes of requests and replies that a lane keeps by default.
const BYTES_DEFAULT: u64 = 1 << 30;
/// Calls that are over may be as many among those with kept replies, beside one for each that is not.
const KEPT_SLACK: usize = 64;
/// The length of a reply's head, in a result's payload.
const HEAD_LENGTH_BYTES: u64 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
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
    pub(super) const fn failed(status: Status) -> Self {
        Self { status, head_bytes: 0, body_bytes: 0 }
    }

    pub(super) fn prefix_bytes(&self) -> u64 {
        HEAD_LENGTH_BYTES + u64::from(self.head_bytes)
    }

    /// Does all of it travel with the result?
    pub(crate) fn is_inline(&self) -> bool {
        self.prefix_bytes().saturating_add(self.body_bytes) <= REPLY_INLINE_BYTES_MAX
    }

    /// Bytes that are counted while it is kept.
    pub(super) fn kept_bytes(&self) -> u64 {
        if self.status == Status::Done { self.prefix_bytes().saturating_add(self.body_bytes) } else { 0 }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) id: u64,
    /// As the worker names handler and server.
    pub(super) named: ChunkId,
    pub(super) operation: u64,
    pub(super) stage: Stage,
    /// Bytes that it is counted with.
    pub(super) bytes: u64,
    /// As its newest block says.
    pub(super) token: u64,
    pub(super) landing: Option<Landing>,
    pub(super) since_ms: u64,
    pub(super) deadline_ms: u64,
    /// Its reply is being written to where it was granted room; its result follows.
    pub(super) is_landing: bool,
    /// The worker was told to ask again with room: until then its reply is not given up for others,
    pub(super) awaits_room: bool,
    /// or until this time, once a tick has seen it wait.
    pub(super) room_until_ms: Option<u64>,
    /// Its reply was written where it is to lie, and is not kept: a replay runs it again, which changes nothing.
    pub(super) runs_again: bool,
    /// This process has received it from its worker. False for a call that only the journal has, until the worker sends it again.
    pub(super) is_asked: bool,
}

impl Entry {
    /// Of a call that is under way a second time: it is answered as before, since those after it are. True where that was so.
    pub(super) fn put_back(&mut self) -> bool {
        let is_repeated = self.runs_again && !matches!(self.stage, Stage::Answered(_));
        if is_repeated {
            self.stage = Stage::Answered(CallAnswer::failed(Status::NoReply));
        }
        is_repeated
    }
}

/// The calls of one worker to one handler.
#[derive(Debug, Default)]
pub(super) struct Line {
    /// The operation that is next.
    pub(super) next: u64,
    /// Operations before this are known to be answered.
    pub(super) acked: u64,
    /// In order of their operations; some that are answered may be gone.
    pub(super) entries: VecDeque<Entry>,
}

impl Line {
    pub(super) fn find(&mut self, operation: u64) -> Option<&mut Entry> {
        let at = self.entries.binary_search_by_key(&operation, |entry| entry.operation).ok()?;
        self.entries.get_mut(at)
    }
}

/// What becomes of calls to a handler, in a process that has taken the place of a failed one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// The handler continues with its journal.
    Restored,
    /// Its state is lost.
    Lost,
}

/// The handlers of such a process, as far as their fate is known.
#[derive(Debug, Default)]
pub(super) struct TakenOver(pub(super) HashMap<u32, Fate>);

/// What the lane knows of calls.
#[derive(Debug)]
pub(in crate::engine) struct Calls {
    pub(super) lines: HashMap<(Rank, u32), Line>,
    /// The incarnation of each worker to which its lines belong.
    pub(super) lives: HashMap<Rank, (Incarnation, usize)>,
    /// Whose call an id is.
    pub(super) by_id: HashMap<u64, (Rank, u32, u64)>,
    pub(super) next_id: u64,
    pub(super) handlers: HashSet<u32>,
    /// What is different in a process that has taken the place of a failed one; else none.
    pub(super) taken_over: Option<TakenOver>,
    /// Bytes of bodies, and of replies that are kept.
    pub(super) bytes: u64,
    pub(super) most_bytes: u64,
    /// Answered calls whose replies are kept beyond their result, oldest first; some may be over.
    pub(super) kept: VecDeque<u64>,
    /// Calls that are over: the runtime lets go of them with the next commands.
    pub(super) gone: Vec<u64>,
}

impl Default for Calls {
    fn default() -> Self {
        Self {
            lines: HashMap::new(),
            lives: HashMap::new(),
            by_id: HashMap::new(),
            next_id: 1,
            handlers: HashSet::new(),
            taken_over: None,
            bytes: 0,
            most_bytes: BYTES_DEFAULT,
            kept: VecDeque::new(),
            gone: Vec::new(),
        }
    }
}

impl Calls {
    pub(super) fn entry(&mut self, id: u64) -> Option<(Rank, u32, &mut Entry)> {
        let (rank, app, operation) = *self.by_id.get(&id)?;
        let entry = self.lines.get_mut(&(rank, app))?.find(operation)?;
        (entry.id == id).then_some((rank, app, entry))
    }

    /// Nothing is kept of this call any more.
    pub(super) fn forget(&mut self, entry: &Entry) {
        self.bytes = self.bytes.saturating_sub(entry.bytes);
        self.by_id.remove(&entry.id);
        self.gone.push(entry.id);
    }

    /// Bytes that a call is counted with: the room that it has for its reply says how long that will be.
    pub(super) fn needed(&self, block: &Block) -> u64 {
        let expected = block.landing.map_or(0, |landing| landing.bytes);
        block.count.body_bytes().saturating_add(expected).min(self.most_bytes)
    }

    /// A reply is kept until its worker knows it, or others need the room.
    pub(super) fn keep(&mut self, id: u64) {
        // Most are over before anybody looks here: those make way now and then.
        if self.kept.len() >= 2 * self.by_id.len() + KEPT_SLACK {
            let Self { kept, by_id, .. } = self;
            kept.retain(|id| by_id.contains_key(id));
        }
        self.kept.push_back(id);
    }

    /// Bytes of replies whose workers were told to ask again with room. They keep no request out. Otherwise a worker whose pool is
    /// full of requests could make no room for a reply, and the reply would keep the requests in that pool.
    fn roomless_bytes(&self) -> u64 {
        let entries = self.lines.values().flat_map(|line| &line.entries);
        entries.filter(|entry| entry.awaits_room).fold(0, |sum, entry| sum.saturating_add(entry.bytes))
    }

    /// Makes room for so many bytes, by replies that workers most likely have. False where there is none.
    pub(super) fn make_room(&mut self, bytes: u64, peers: &Peers) -> bool {
        let mut looked_at = self.kept.len();
        while self.bytes.saturating_add(bytes) > self.most_bytes && looked_at > 0 {
            looked_at -= 1;
            let Some(id) = self.kept.pop_front() else { break };
            let Some((rank, app, entry)) = self.entry(id) else { continue };
            let entry = *entry;
            // What its worker cannot have yet is kept.
            if entry.awaits_room || entry.is_landing || peers.has_unsent(rank, id) {
                self.kept.push_back(id);
                continue;
            }
            if let Some(line) = self.lines.get_mut(&(rank, app)) {
                line.entries.retain(|other| other.id != id);
            }
            self.forget(&entry);
        }
        let fits = |used: u64| used.saturating_add(bytes) <= self.most_bytes;
        fits(self.bytes) || fits(self.bytes.saturating_sub(self.roomless_bytes()))
    }

    /// The worker knows the answers of all calls before `from`. False where one of them is not answered.
    pub(super) fn acknowledge(&mut self, rank: Rank, app: u32, from: u64) -> bool {
        let Some(line) = self.lines.get_mut(&(rank, app)) else { return true };
        line.acked = line.acked.max(from);
        // A deadline may have ended calls behind one that was still to come whole when the channel broke: those do not
        // come again.
        line.next = line.next.max(from);
        let known = line.entries.partition_point(|entry| entry.operation < from);
        let known: Vec<Entry> = line.entries.drain(..known).collect();
        known.iter().for_each(|entry| self.forget(entry));
        // The worker may know the end of a call that an earlier process has answered, and this one is handling again.
        let is_over = |entry: &Entry| matches!(entry.stage, Stage::Answered(_)) && !entry.is_landing;
        known.iter().all(|entry| is_over(entry) || !entry.is_asked)
    }

    /// A worker's line to a handler; `None` where it would be one too many.
    pub(super) fn line(&mut self, rank: Rank, app: u32) -> Option<&mut Line> {
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

    /// The runtime is to take the call that this block is of.
    pub(super) fn taken(&self, call: u64, peer: Rank, app: u32, from: Source, block: &Block) -> Command {
        Command::CallTake(CallTaken {
            call,
            peer,
            life: self.lives.get(&peer).map_or(Incarnation::default(), |(life, _)| *life),
            app,
            operation: block.operation.0,
            first_open: block.first_open.0,
            from,
            frame_bytes: block.bytes,
            region: block.landing.map_or(0, |landing| landing.region),
            bytes: block.count.body_bytes(),
        })
    }

    /// The next calls of a line whose bodies are whole go to their handler.
    pub(super) fn deliver(&mut self, rank: Rank, app: u32, out: &mut Commands) {
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
