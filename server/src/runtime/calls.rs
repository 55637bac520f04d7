//! The bytes of calls: copied out of slots or read out of workers' memory, handed to handlers' threads, and replies written
//! back. Which of that happens, and when, is the engine's to decide.

use super::lane::{DataLane, LaneError};
use super::thread::LaneMessage;
use crate::app::{Body, ReplyBody, ReplyMemory};
use crate::engine::{CallAnswer, CallTaken, Source};
use crate::space::Space;
use fabric::{
    CompletionQueue, Exclusive, FabricError, Mailbox, OutOfBounds, Pages, Pool, Region, RemoteKey,
    RemoteSpan, Span,
};
use proto_common::batch::Status;
use proto_common::call::{Frame, PieceAt};
use proto_common::ids::Rank;
use proto_common::table::table_of;
use std::collections::{HashMap, VecDeque};

/// Address space for so many times what is kept, so that holes between bodies do no harm; memory is taken at first touch.
const TIMES_KEPT: u64 = 4;

/// What a handler's thread is to hear.
#[derive(Debug)]
pub(super) enum CallEvent {
    /// A call for it.
    Deliver { call: u64, app: u32, from: Rank, head: Vec<u8>, body: Body },
    /// One that it need not begin.
    Cancel { call: u64, app: u32, from: Rank },
}

/// The way back to a lane, for answers.
#[derive(Clone)]
pub(crate) struct Answers(pub(super) Mailbox<LaneMessage>);

impl std::fmt::Debug for Answers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Answers")
    }
}

impl Answers {
    /// False when the lane has ended.
    pub(crate) fn send(&self, call: u64, answer: Option<AnswerBody>) -> bool {
        self.0.send(LaneMessage::Answer { call, answer })
    }
}

/// Where a lane hears of handlers.
pub(crate) struct HandlerNews(pub(super) Mailbox<LaneMessage>);

impl HandlerNews {
    pub(crate) fn tell(&self, app: u32, is_there: bool) {
        // A lane that has ended need not know.
        let _ = self.0.send(LaneMessage::Handler { app, is_there });
    }
}

/// A reply on its way: short, or to be written from where it lies.
#[derive(Debug)]
pub(crate) struct AnswerBody {
    head: Vec<u8>,
    body: Sent,
}

#[derive(Debug)]
enum Sent {
    Inline(Vec<u8>),
    Pool(Exclusive),
    Elsewhere(Region),
}

impl AnswerBody {
    pub(crate) fn new(head: &[u8], body: ReplyBody) -> Self {
        // As the engine decides it: what does not travel with its result is kept as it is to be written.
        let is_short = answer_of(head, body.len() as u64).is_inline();
        let body = match body {
            ReplyBody::Bytes(bytes) if is_short => Sent::Inline(bytes),
            ReplyBody::Bytes(bytes) => Sent::Elsewhere(Region::of_bytes(bytes)),
            ReplyBody::Buffer(buffer) if is_short => Sent::Inline(buffer.to_vec()),
            ReplyBody::Buffer(buffer) => Sent::Pool(buffer.into_inner()),
            ReplyBody::Adopted(region) if is_short => Sent::Inline(region.contents().into_owned()),
            ReplyBody::Adopted(region) => Sent::Elsewhere(region),
        };
        Self { head: head.to_vec(), body }
    }

    fn bytes(&self) -> u64 {
        match &self.body {
            Sent::Inline(bytes) => bytes.len() as u64,
            Sent::Pool(buffer) => buffer.len() as u64,
            Sent::Elsewhere(region) => region.len() as u64,
        }
    }

    fn answer(&self) -> CallAnswer {
        answer_of(&self.head, self.bytes())
    }

    fn span(&self) -> Option<Span> {
        match &self.body {
            Sent::Inline(_) => None,
            Sent::Pool(buffer) => Some(buffer.span()),
            Sent::Elsewhere(region) => Some(region.all()),
        }
    }
}

fn answer_of(head: &[u8], body_bytes: u64) -> CallAnswer {
    // A head's length is checked where it is sent.
    CallAnswer { status: Status::Done, head_bytes: head.len() as u32, body_bytes }
}

#[derive(Debug)]
struct Held {
    peer: Rank,
    app: u32,
    head: Vec<u8>,
    body: Option<Body>,
    /// Where the worker has it, of a request that is executed from there.
    lies: Option<(RemoteSpan, u64)>,
    /// Bytes of the body that are still to come.
    unread_bytes: u64,
    /// Reads into it that are posted and not completed.
    reads: usize,
    is_delivered: bool,
    reply: Option<AnswerBody>,
    /// Writes of the reply that are not completed.
    landings: usize,
    /// Kept only for what is under way.
    is_over: bool,
}

/// The calls of a lane whose bytes it has.
#[derive(Debug)]
pub(super) struct CallMemory {
    memory: ReplyMemory,
    held: HashMap<u64, Held>,
    events: VecDeque<CallEvent>,
}

impl CallMemory {
    pub(super) fn new(most_bytes: u64, space: Space) -> Result<Self, FabricError> {
        let pool_bytes = space.calls_bytes(most_bytes.saturating_mul(TIMES_KEPT));
        // Handlers read it, and no peer maps it.
        let pool = Pool::with_pages(Pages::Private, pool_bytes, "gradwire-calls")?;
        let memory = ReplyMemory { pool, most_bytes, is_registered: false };
        Ok(Self { memory, held: HashMap::new(), events: VecDeque::new() })
    }

    /// Memory for a body. The engine has counted it; where no hole is long enough it gets pages of its own.
    pub(super) fn allocate(&self, bytes: u64) -> Result<Exclusive, FabricError> {
        let own = || {
            let pool = Pool::with_pages(Pages::Private, bytes, "gradwire-call")?;
            pool.allocate(bytes).map_err(|error| FabricError::Internal(error.to_string()))
        };
        self.memory.pool.allocate(bytes).or_else(|_| own())
    }

    /// A stretch of a body that is being read.
    pub(super) fn body_span(&self, call: u64, at: u64, bytes: u64) -> Option<Result<Span, OutOfBounds>> {
        let body = self.held.get(&call)?.body.as_ref()?;
        Some(body.buffer()?.slice(at, bytes))
    }

    /// A reply that is to land.
    pub(super) fn reply_span(&self, call: u64) -> Option<Span> {
        self.held.get(&call)?.reply.as_ref()?.span()
    }

    /// What of a reply travels with its result.
    pub(super) fn reply_prefix(&self, call: u64) -> Option<(&[u8], &[u8])> {
        let reply = self.held.get(&call)?.reply.as_ref()?;
        let body = match &reply.body {
            Sent::Inline(bytes) => bytes.as_slice(),
            Sent::Pool(_) | Sent::Elsewhere(_) => &[],
        };
        Some((&reply.head, body))
    }

    /// Reads of a worker's memory that its channel's end has ended.
    pub(super) fn end_reads(&mut self, peer: Rank) {
        self.held.values_mut().filter(|held| held.peer == peer).for_each(|held| held.reads = 0);
        self.held.retain(|_, held| !held.is_over || held.reads + held.landings > 0);
    }

    /// A read that will not be: its channel has ended.
    pub(super) fn unread(&mut self, call: u64) {
        let Some(held) = self.held.get_mut(&call) else { return };
        held.reads = held.reads.saturating_sub(1);
        self.sweep(call);
    }

    /// A read into its body is posted.
    pub(super) fn reading(&mut self, call: u64) {
        self.held.get_mut(&call).into_iter().for_each(|held| held.reads += 1);
    }

    /// Is its body still to be read?
    pub(super) fn is_reading(&self, call: u64) -> bool {
        self.held.get(&call).is_some_and(|held| !held.is_over && held.body.is_some())
    }

    /// Part of its body is there. True when all of it is.
    pub(super) fn read(&mut self, call: u64, bytes: u64) -> bool {
        let Some(held) = self.held.get_mut(&call) else { return false };
        held.reads = held.reads.saturating_sub(1);
        held.unread_bytes = held.unread_bytes.saturating_sub(bytes);
        let is_whole = held.unread_bytes == 0 && !held.is_over;
        self.sweep(call);
        is_whole
    }

    /// Is its reply to be written?
    pub(super) fn is_sending(&self, call: u64) -> bool {
        self.held.get(&call).is_some_and(|held| !held.is_over) && self.reply_span(call).is_some()
    }

    /// A write of its reply is posted.
    pub(super) fn landing(&mut self, call: u64) {
        self.held.get_mut(&call).into_iter().for_each(|held| held.landings += 1);
    }

    pub(super) fn landed(&mut self, call: u64) {
        let Some(held) = self.held.get_mut(&call) else { return };
        held.landings = held.landings.saturating_sub(1);
        self.sweep(call);
    }

    fn sweep(&mut self, call: u64) {
        if self.held.get(&call).is_some_and(|held| held.is_over && held.reads + held.landings == 0) {
            self.held.remove(&call);
        }
    }

    /// Nothing of the call is kept but for what is under way; a handler that has not begun with it need not.
    pub(super) fn drop_call(&mut self, call: u64) {
        let Some(held) = self.held.get_mut(&call) else { return };
        held.is_over = true;
        let waits = held.is_delivered && held.reply.is_none();
        let (app, from) = (held.app, held.peer);
        if waits {
            self.events.push_back(CallEvent::Cancel { call, app, from });
        }
        self.sweep(call);
    }

    pub(super) fn cancel(&mut self, call: u64) {
        let Some(held) = self.held.get(&call) else { return };
        self.events.push_back(CallEvent::Cancel { call, app: held.app, from: held.peer });
    }

    pub(super) fn deliver(&mut self, call: u64) {
        let Some(held) = self.held.get_mut(&call) else { return };
        held.is_delivered = true;
        let (Some(body), head) = (held.body.take(), std::mem::take(&mut held.head)) else { return };
        self.events.push_back(CallEvent::Deliver { call, app: held.app, from: held.peer, head, body });
    }

    /// The handler of a call.
    pub(super) fn app_of(&self, call: u64) -> Option<u32> {
        self.held.get(&call).map(|held| held.app)
    }

    /// A call that is answered here.
    pub(super) fn take_request(&mut self, call: u64) -> Option<Request> {
        let held = self.held.get_mut(&call)?;
        let (head, body, lies) = (std::mem::take(&mut held.head), held.body.take(), held.lies.take());
        Some(Request { peer: held.peer, head, body, lies })
    }

    /// What handlers are to hear, in order.
    pub(super) fn next_event(&mut self) -> Option<CallEvent> {
        self.events.pop_front()
    }
}

/// A request that is answered here: its body was read, or lies with its worker.
pub(super) struct Request {
    pub(super) peer: Rank,
    pub(super) head: Vec<u8>,
    pub(super) body: Option<Body>,
    pub(super) lies: Option<(RemoteSpan, u64)>,
}

impl<Q: CompletionQueue> DataLane<Q> {
    /// Bytes of requests and replies that this lane keeps at most.
    pub fn limit_calls(&mut self, bytes: u64) -> Result<(), LaneError> {
        self.engine.limit_calls(bytes);
        self.calls = CallMemory::new(bytes, self.config.space)?;
        Ok(())
    }

    /// Where bodies and replies lie.
    pub(super) fn reply_memory(&self) -> &ReplyMemory {
        &self.calls.memory
    }

    /// Replies are sent from memory that is registered once, because a device would register other memory for each.
    pub fn register_replies(&mut self) {
        self.calls.memory.is_registered = true;
    }

    /// Bytes of rows that this lane's tables keep at most.
    pub fn limit_tables(&mut self, bytes: u64) {
        self.tables.limit(bytes);
    }

    /// A handler came or went.
    pub(super) fn set_handler(&mut self, app: u32, is_there: bool) {
        self.engine.set_handler(app, is_there);
    }

    /// A handler has answered a call, or let go of it.
    pub(super) fn answer_call(&mut self, call: u64, answer: Option<AnswerBody>) {
        self.note_answer(call, answer);
        self.execute();
    }

    /// As [`DataLane::note_answer`], of a reply whose body, so many bytes, is where the worker wants it.
    pub(super) fn note_placed(&mut self, call: u64, head: &[u8], body_bytes: u64) {
        let Some(held) = self.calls.held.get_mut(&call).filter(|held| !held.is_over) else { return };
        held.reply = Some(AnswerBody { head: head.to_vec(), body: Sent::Inline(Vec::new()) });
        self.engine.call_placed(call, answer_of(head, body_bytes), &mut self.commands);
    }

    /// As [`DataLane::answer_call`], and what follows is executed by the caller.
    pub(super) fn note_answer(&mut self, call: u64, answer: Option<AnswerBody>) {
        let told = answer.as_ref().map(AnswerBody::answer);
        let none = CallAnswer { status: Status::NoReply, head_bytes: 0, body_bytes: 0 };
        let Some(held) = self.calls.held.get_mut(&call).filter(|held| !held.is_over) else { return };
        held.reply = answer;
        self.engine.call_answered(call, told.unwrap_or(none), &mut self.commands);
    }

    /// Copies a call's frame out of its slot, and starts reading what is not in it.
    pub(super) fn take_call(&mut self, taken: &CallTaken) -> Result<(), LaneError> {
        let Source::Slot { slot, offset } = taken.from else { return Ok(()) };
        let mut bytes = vec![0; taken.frame_bytes as usize];
        self.inbox.memory().read(self.inbox.start(slot) + offset, &mut bytes)?;
        let Ok(frame) = Frame::read(&bytes, taken.bytes) else {
            self.expel(taken.peer, "the frame of its call is cut short, or says more than it may");
            return Ok(());
        };
        let CallTaken { call, peer, app, .. } = *taken;
        let (head, mut unread_bytes) = (frame.head.to_vec(), 0);
        let is_whole = frame.pieces().all(|piece| matches!(piece, PieceAt::Frame { .. }));
        let lies = self.lies(taken, &frame);
        let body = if is_whole || taken.bytes == 0 {
            let from = bytes.len() - taken.bytes as usize;
            Some(Body::plain(bytes, from))
        } else if lies.is_some() {
            None
        } else {
            let mut buffer = match self.calls.allocate(taken.bytes) {
                Ok(buffer) => buffer,
                Err(error) => {
                    tracing::error!(worker = peer.0, app, %error, "no memory for the body of a call");
                    self.engine.call_failed(call, &mut self.commands);
                    return Ok(());
                }
            };
            let mut at = 0;
            for piece in frame.pieces() {
                match piece {
                    PieceAt::Frame { offset, bytes: length } => {
                        let to = at as usize;
                        buffer[to..to + length].copy_from_slice(&bytes[offset..offset + length]);
                    }
                    PieceAt::Worker { offset, bytes } => {
                        let from = RemoteSpan { key: RemoteKey(taken.region), offset };
                        self.queue_read(peer, (call, at), from, bytes);
                        unread_bytes += bytes;
                    }
                }
                at += piece.bytes();
            }
            Some(Body::of_pool(buffer))
        };
        let held = Held {
            peer,
            app,
            head,
            body,
            lies,
            unread_bytes,
            reads: 0,
            is_delivered: false,
            reply: None,
            landings: 0,
            is_over: false,
        };
        self.calls.held.insert(call, held);
        if unread_bytes == 0 {
            self.engine.call_arrived(call, &mut self.commands);
        }
        self.read_on(peer)
    }

    /// Where a request about rows lies that is read there: over a channel whose peer's memory can be, as one piece.
    fn lies(&self, taken: &CallTaken, frame: &Frame<'_>) -> Option<(RemoteSpan, u64)> {
        let link = self.links.get(taken.peer.0 as usize)?.as_ref()?;
        let mut pieces = frame.pieces();
        match (pieces.next(), pieces.next()) {
            (Some(PieceAt::Worker { offset, bytes }), None)
                if link.in_place && table_of(taken.app).is_some() =>
            {
                Some((RemoteSpan { key: RemoteKey(taken.region), offset }, bytes))
            }
            _ => None,
        }
    }
}
