//! The bytes of the calls that a lane has: requests until handlers take them, and replies until they are written. Which of that
//! happens, and when, is the engine's to decide.

use crate::app::{Ahead, Answer, Body, Handling, Origin, Place, Reader, ReplyMemory};
use crate::engine::CallTaken;
use crate::space::Space;
use fabric::{Borrowed, FabricError, OutOfBounds, Pages, Pool, RemoteSpan, Span};
use proto_common::ids::Rank;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};

/// Address space for so many times what is kept, so that holes between bodies do no harm; memory is taken at first touch.
const TIMES_KEPT: u64 = 4;

/// A handler that has answered a call, and reads it in the worker's memory for longer than this, continues with a copy.
const RELEASE_WITHIN_MS: u64 = 2;

/// An event for a handler's thread.
#[derive(Debug)]
pub(super) enum CallEvent {
    Deliver {
        call: u64,
        app: u32,
        from: Rank,
        origin: Origin,
        head: Vec<u8>,
        body: Body,
        place: Option<Place>,
    },
    /// One that it need not begin.
    Cancel { call: u64, app: u32, from: Rank },
}

#[derive(Debug)]
struct Held {
    peer: Rank,
    app: u32,
    origin: Origin,
    head: Vec<u8>,
    body: Option<Body>,
    /// The frame of a call whose body waits until it may be read.
    frame: Option<(Vec<u8>, CallTaken)>,
    /// Its place ahead of the handler, once its body is read.
    place: Option<Place>,
    /// Where the worker has it, of a request that is executed from there.
    lies: Option<(RemoteSpan, u64)>,
    /// Bytes of the body that are still to come.
    unread_bytes: u64,
    /// Reads into it that are posted and not completed.
    reads: usize,
    is_delivered: bool,
    /// What its handler reads in the worker's memory, for as long as it does.
    borrowed: Option<Weak<Borrowed>>,
    /// Of a handler that may read in place: there for as long as it reads the body, wherever that is.
    reader: Option<Weak<Reader>>,
    reply: Option<Answer>,
    /// Writes of the reply that are not completed.
    landings: usize,
    /// Kept only for what is under way.
    is_over: bool,
}

impl Held {
    fn of((peer, app): (Rank, u32), origin: Origin) -> Self {
        Self {
            peer,
            app,
            origin,
            head: Vec::new(),
            body: None,
            frame: None,
            place: None,
            lies: None,
            unread_bytes: 0,
            reads: 0,
            is_delivered: false,
            borrowed: None,
            reader: None,
            reply: None,
            landings: 0,
            is_over: false,
        }
    }

    /// The worker is about to hear that the call has ended, or its channel ends, and then it may write its memory. A handler that
    /// still reads there continues with pages of ours: otherwise it would add up part of the next gradient.
    /// True if it does.
    fn keep(&mut self, lent: &mut Lent) -> Result<bool, FabricError> {
        let Some(borrowed) = self.borrowed.take().and_then(|borrowed| borrowed.upgrade()) else {
            return Ok(false);
        };
        lent.kept += 1;
        borrowed.keep().map(|()| true)
    }
}

/// A body with a piece that its handler reads in the worker's memory, between two others.
#[derive(Debug)]
pub(super) struct BorrowedBody {
    pub(super) before: Vec<u8>,
    pub(super) piece: Arc<Borrowed>,
    pub(super) after: Vec<u8>,
}

/// The calls of a lane whose bytes it has.
#[derive(Debug)]
pub(super) struct CallMemory {
    pub(super) memory: ReplyMemory,
    pub(super) ahead: Ahead,
    held: HashMap<u64, Held>,
    events: VecDeque<CallEvent>,
    /// Handlers that may read bodies in place.
    in_place: HashMap<u32, Trial>,
    lent: Lent,
    /// Answered calls whose handlers still read in workers' memory, and since when.
    unreleased: Vec<(u64, Option<Answer>, Option<u64>)>,
}

/// Whether a handler is lent bodies. At first it gets copies: if it keeps arrays of many requests, as some do of the first push of each
/// key, these arrays must not be in a worker's memory, which would then stay in use when the worker has exited.
#[derive(Debug)]
struct Trial {
    /// So many calls in a row need to end after their handler has released them.
    needed: u32,
    released: u32,
}

impl Trial {
    const FIRST: u32 = 8;
    const MOST: u32 = 1 << 8;

    fn passed(&self) -> bool {
        self.released >= self.needed
    }

    /// A call has ended.
    fn ended(&mut self, is_kept: bool) {
        self.released = self.released.saturating_add(1);
        if is_kept {
            *self = Self { needed: (self.needed * 2).min(Self::MOST), released: 0 };
        }
    }
}

/// Requests since the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Lent {
    /// Their handlers could read them in the workers' memory.
    pub(super) requests: u64,
    /// Those of them that the handlers still read when they ended, so that they were copied.
    pub(super) kept: u64,
}

impl CallMemory {
    pub(super) fn new(most_bytes: u64, space: Space) -> Result<Self, FabricError> {
        let pool_bytes = space.calls_bytes(most_bytes.saturating_mul(TIMES_KEPT));
        // Handlers read it, and no peer maps it.
        let pool = Pool::with_pages(Pages::Private, pool_bytes, "gradwire-calls")?;
        let memory = ReplyMemory { pool, most_bytes, is_registered: false };
        Ok(Self {
            memory,
            ahead: Ahead::default(),
            held: HashMap::new(),
            events: VecDeque::new(),
            in_place: HashMap::new(),
            lent: Lent::default(),
            unreleased: Vec::new(),
        })
    }

    /// A handler came or went.
    pub(super) fn set_handler(&mut self, app: u32, handling: Handling) {
        match handling {
            Handling::InPlace => self.in_place.insert(app, Trial { needed: Trial::FIRST, released: 0 }),
            Handling::Copied | Handling::Nobody => self.in_place.remove(&app),
        };
    }

    /// Its trial is over.
    #[cfg(test)]
    pub(super) fn trust(&mut self, app: u32) {
        self.in_place.insert(app, Trial { needed: 0, released: 0 });
    }

    /// May bodies be lent to the handler?
    pub(super) fn lends_to(&self, app: u32) -> bool {
        self.in_place.get(&app).is_some_and(Trial::passed)
    }

    pub(super) fn lent(&self) -> Lent {
        self.lent
    }

    /// A call whose frame was read, with its body if that was in it.
    pub(super) fn hold(
        &mut self,
        &CallTaken { call, peer, life, app, operation, first_open, .. }: &CallTaken,
        head: Vec<u8>,
        (body, lies): (Option<Body>, Option<(RemoteSpan, u64)>),
    ) {
        let origin = Origin { lane: 0, life, operation, first_open };
        let held = Held { head, body, lies, ..Held::of((peer, app), origin) };
        self.held.insert(call, held);
    }

    /// A call that the journal of its handler has: answered, or to be handled again.
    pub(super) fn hold_restored(&mut self, call: u64, of: (Rank, u32), reply: Option<Answer>) {
        let held = Held { is_delivered: true, reply, ..Held::of(of, Origin::default()) };
        self.held.insert(call, held);
    }

    /// The body of a call that is held waits until it may be read.
    pub(super) fn wait(&mut self, frame: Vec<u8>, taken: &CallTaken) {
        let Some(held) = self.held.get_mut(&taken.call) else { return };
        held.frame = Some((frame, *taken));
        self.ahead.wait((taken.peer, taken.app), taken.call, taken.bytes);
    }

    /// The next call whose body may be read, with its frame.
    pub(super) fn next_to_read(&mut self) -> Option<(Vec<u8>, CallTaken)> {
        while let Some((call, place)) = self.ahead.next() {
            // One that is over gives its place back.
            let Some(held) = self.held.get_mut(&call) else { continue };
            let Some(frame) = held.frame.take() else { continue };
            held.place = Some(place);
            return Some(frame);
        }
        None
    }

    /// Memory for the body of a call that was waiting, of which so much is to be read.
    pub(super) fn begin(&mut self, call: u64, body: Body, unread_bytes: u64) {
        let Some(held) = self.held.get_mut(&call) else { return };
        let reader = self.in_place.contains_key(&held.app).then(|| self.ahead.reader());
        held.reader = reader.as_ref().map(Arc::downgrade);
        let body = reader.into_iter().fold(body, Body::with_reader);
        (held.body, held.unread_bytes) = (Some(body), unread_bytes);
    }

    /// As [`CallMemory::begin`], of a body that the handler reads in place.
    pub(super) fn lend(&mut self, call: u64, BorrowedBody { before, piece, after }: BorrowedBody) {
        let Some(held) = self.held.get_mut(&call) else { return };
        self.lent.requests += 1;
        let reader = self.ahead.reader();
        (held.borrowed, held.reader) = (Some(Arc::downgrade(&piece)), Some(Arc::downgrade(&reader)));
        let body = Body::in_place((before, after), piece, self.memory.pool.clone());
        held.body = Some(body.with_reader(reader));
    }

    /// The lane ends, and its channels with it.
    pub(super) fn keep_all(&mut self) -> Result<(), FabricError> {
        let Self { held, lent, .. } = self;
        keep_each(held.values_mut(), lent)
    }

    /// Does its handler still read a call in the worker's memory?
    pub(super) fn is_lent(&self, call: u64) -> bool {
        let borrowed = self.held.get(&call).and_then(|held| held.borrowed.as_ref());
        borrowed.is_some_and(|borrowed| borrowed.strong_count() > 0)
    }

    /// A call is answered whose handler still reads it in the worker's memory, for a moment: many handlers answer as the last thing
    /// that they do.
    pub(super) fn wait_for_release(&mut self, call: u64, reply: Option<Answer>) {
        self.ahead.await_readers(true);
        self.unreleased.push((call, reply, None));
    }

    /// Is there such a call?
    pub(super) fn has_unreleased(&self) -> bool {
        !self.unreleased.is_empty()
    }

    /// The next of these calls that does not wait any more.
    pub(super) fn next_released(&mut self, now_ms: u64) -> Option<(u64, Option<Answer>)> {
        let mut all = std::mem::take(&mut self.unreleased);
        let at = all.iter_mut().position(|(call, _, since_ms)| {
            let since_ms = *since_ms.get_or_insert(now_ms);
            !self.is_lent(*call) || now_ms.saturating_sub(since_ms) >= RELEASE_WITHIN_MS
        });
        let next = at.map(|at| all.swap_remove(at));
        self.unreleased = all;
        if self.unreleased.is_empty() {
            self.ahead.await_readers(false);
        }
        next.map(|(call, reply, _)| (call, reply))
    }

    /// A call is answered, or (none) its handler has let go of it. False where it is over.
    pub(super) fn answered(&mut self, call: u64, reply: Option<Answer>) -> Result<bool, FabricError> {
        let Some(held) = self.held.get_mut(&call).filter(|held| !held.is_over) else { return Ok(false) };
        held.reply = reply;
        let (was_lent, is_kept) = (held.borrowed.is_some(), held.keep(&mut self.lent)?);
        if was_lent && let Some(trial) = self.in_place.get_mut(&held.app) {
            held.reader = None;
            trial.ended(is_kept);
        }
        Ok(true)
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
        Some(self.held.get(&call)?.reply.as_ref()?.prefix())
    }

    /// Reads of a worker's memory that its channel's end has ended.
    pub(super) fn end_reads(&mut self, peer: Rank) -> Result<(), FabricError> {
        for held in self.held.values_mut().filter(|held| held.peer == peer) {
            // What was not begun is read over no other channel.
            (held.reads, held.frame) = (0, None);
        }
        let ended = keep_each(self.held.values_mut().filter(|held| held.peer == peer), &mut self.lent);
        self.held.retain(|_, held| !held.is_over || held.reads + held.landings > 0);
        ended
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
    pub(super) fn drop_call(&mut self, call: u64) -> Result<(), FabricError> {
        let Some(held) = self.held.get_mut(&call) else { return Ok(()) };
        held.is_over = true;
        held.place = None;
        // No handler has it, so nobody reads it.
        held.body = None;
        held.keep(&mut self.lent)?;
        // By now its handler has released a copy, too, if it does not keep it.
        if let (Some(reader), true, Some(trial)) =
            (held.reader.take(), held.is_delivered, self.in_place.get_mut(&held.app))
        {
            trial.ended(reader.strong_count() > 0);
        }
        if held.frame.take().is_some() {
            self.ahead.forget((held.peer, held.app), call);
        }
        let waits = held.is_delivered && held.reply.is_none();
        let (app, from) = (held.app, held.peer);
        if waits {
            self.events.push_back(CallEvent::Cancel { call, app, from });
        }
        self.sweep(call);
        Ok(())
    }

    pub(super) fn cancel(&mut self, call: u64) -> Result<(), FabricError> {
        let Some(held) = self.held.get_mut(&call) else { return Ok(()) };
        held.keep(&mut self.lent)?;
        self.events.push_back(CallEvent::Cancel { call, app: held.app, from: held.peer });
        Ok(())
    }

    pub(super) fn deliver(&mut self, call: u64) {
        let Some(held) = self.held.get_mut(&call) else { return };
        held.is_delivered = true;
        let (Some(body), head) = (held.body.take(), std::mem::take(&mut held.head)) else { return };
        let (app, from, place, origin) = (held.app, held.peer, held.place.take(), held.origin);
        self.events.push_back(CallEvent::Deliver { call, app, from, origin, head, body, place });
    }

    /// The handler of a call.
    pub(super) fn app_of(&self, call: u64) -> Option<u32> {
        self.held.get(&call).map(|held| held.app)
    }

    /// A call that is answered here.
    pub(super) fn take_request(&mut self, call: u64) -> Option<Request> {
        let held = self.held.get_mut(&call)?;
        let (head, body, lies) = (std::mem::take(&mut held.head), held.body.take(), held.lies.take());
        held.place = None;
        Some(Request { peer: held.peer, head, body, lies })
    }

    /// What handlers are to hear, in order.
    pub(super) fn next_event(&mut self) -> Option<CallEvent> {
        self.events.pop_front()
    }
}

/// As [`Held::keep`], of each of them, whichever fails. The error is the first one.
fn keep_each<'a>(all: impl Iterator<Item = &'a mut Held>, lent: &mut Lent) -> Result<(), FabricError> {
    let mut first = Ok(());
    for held in all {
        let kept = held.keep(lent).map(drop);
        first = first.and(kept);
    }
    first
}

/// A request that is answered here: its body was read, or lies with its worker.
pub(super) struct Request {
    pub(super) peer: Rank,
    pub(super) head: Vec<u8>,
    pub(super) body: Option<Body>,
    pub(super) lies: Option<(RemoteSpan, u64)>,
}
