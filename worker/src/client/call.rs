//! Calls: requests to the handlers that a server's program registered, and their replies. What a request holds, and what
//! comes back; how it travels is the engine's.

use super::buffer::{LentMemory, Piece, ReplyInto, TensorBuffer};
use super::cut::{Cut, Filled, room_bytes};
use super::state::Client;
use crate::call_fault::CallFault;
use crate::engine::{Coded, PartSpec, Submit};
use crate::error::{ClientError, OpError};
use crate::runtime::{
    Blocked, LaneHandle, LaneMessage, Line, OpBuffers, OpState, OpStates, RawReply, Submission, drive_until,
};
use crate::subject::Subject;
use fabric::{Exclusive, PeerWritable, PoolError, Span};
use proto_common::batch::{Count, OpKind, Reading, Status};
use proto_common::call::{CALL_HEAD_BYTES_MAX, CALL_PIECES_MAX, call_id, inline_bytes_max};
use proto_common::element::Dtype;
use proto_common::ids::{Key, Operation, Rank, Version};
use proto_common::plan::Placement;
use proto_common::table::{TABLE_APPS, table_of};
use std::ops::Deref;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// A wait for memory that takes so long is logged.
const LONG_WAIT: Duration = Duration::from_secs(1);

/// A request to a server's handler.
#[derive(Debug, Default)]
pub struct CallRequest {
    /// The head: a few bytes for the handler, at most [`proto_common::call::CALL_HEAD_BYTES_MAX`].
    pub head: Vec<u8>,
    /// The body, in pieces that the handler receives as one; at most [`proto_common::call::CALL_PIECES_MAX`].
    pub body: Vec<Piece>,
    /// Calls with higher priority go first; calls to one handler of one server are never reordered.
    pub priority: i32,
    /// The expected size of the reply's body. This much room is granted with the request, so that the server can write
    /// the reply at once; a longer reply costs one more round trip, in which the server says its size. 0: unknown.
    pub reply_bytes: u64,
    /// The destination of the reply's body, unless it travels with the result. A buffer must have `reply_bytes` bytes, and is returned
    /// in [`CallReply::body`]. A body that is longer than lent memory lands elsewhere.
    pub reply_into: Option<ReplyInto>,
    /// Its time limit; `deadlines.operation_ms` if `None`. If the pool is full, the call waits before that, as long as memory comes
    /// back to the pool within this time.
    pub timeout: Option<Duration>,
}

/// A handler's reply.
#[derive(Debug)]
pub struct CallReply {
    /// Its head.
    pub head: Vec<u8>,
    /// Its body.
    pub body: ReplyBody,
    /// The request's body, returned; without pieces of other owners, which are released when they have been copied.
    pub request: Vec<Piece>,
}

/// The body of a reply: dereferences to its bytes.
#[derive(Debug, Default)]
pub struct ReplyBody(Body);

#[derive(Debug)]
enum Body {
    Inline { bytes: Vec<u8>, from: usize },
    Landed { buffer: TensorBuffer, bytes: usize },
    InPlace { bytes: usize },
}

impl Default for Body {
    fn default() -> Self {
        Self::Inline { bytes: Vec::new(), from: 0 }
    }
}

impl Deref for ReplyBody {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Body::Inline { bytes, from } => bytes.get(*from..).unwrap_or_default(),
            Body::Landed { buffer, bytes } => buffer.get(..*bytes).unwrap_or_default(),
            Body::InPlace { .. } => &[],
        }
    }
}

impl ReplyBody {
    /// The buffer of the body, for reuse; its other contents are unchanged. `None` for a short reply, which travels
    /// with the result.
    #[must_use]
    pub fn into_buffer(self) -> Option<TensorBuffer> {
        match self.0 {
            Body::Inline { .. } | Body::InPlace { .. } => None,
            Body::Landed { buffer, .. } => Some(buffer),
        }
    }

    /// The size of a body that landed in memory of another owner ([`ReplyInto::Lent`]), which this does not dereference to.
    #[must_use]
    pub fn in_place_bytes(&self) -> Option<usize> {
        match self.0 {
            Body::InPlace { bytes } => Some(bytes),
            Body::Inline { .. } | Body::Landed { .. } => None,
        }
    }
}

/// A call in flight. Dropping it does not cancel the call; its buffers return to the pool when it has ended.
#[derive(Debug)]
pub struct CallHandle {
    state: Arc<OpState>,
    /// Where the state goes when the call has ended.
    states: Arc<OpStates>,
    lane: LaneHandle,
    of: Of,
    /// Past it the wait ends by itself, even if the data thread were stuck.
    deadline: Instant,
}

impl Client {
    /// Calls a handler of a server's program. Calls to one handler of one server are handled in the order in which
    /// they are made, each of them once, even if the channel breaks. If the server fails in a job with replicas
    /// (`cluster.replicas`), calls wait for the next process of the server; otherwise they fail at once. The handle ends with the
    /// reply, or with an error that names handler and server, at the call's deadline at the latest. This function waits if
    /// [`CALLS_IN_FLIGHT_MAX`](proto_common::call::CALLS_IN_FLIGHT_MAX) earlier calls to the handler are in flight, and if the pool
    /// has no room for the request and its reply; so callbacks of operations must not call it.
    pub fn call(&self, app: u32, server: u32, request: CallRequest) -> Result<CallHandle, ClientError> {
        if app >= TABLE_APPS {
            let reason = format!(
                "handler numbers from {TABLE_APPS} on are reserved for tables; register the handler with a smaller number"
            );
            return Err(ClientError::BadCall { app, server: Rank(server), reason });
        }
        if server >= self.0.shape.servers {
            let reason = format!(
                "the job has {} servers; use a rank from 0 to {}",
                self.0.shape.servers,
                self.0.shape.servers - 1
            );
            return Err(ClientError::BadCall { app, server: Rank(server), reason });
        }
        self.call_any(app, server, request)
    }

    /// As [`Client::call`], also to a table, and to servers that came later.
    pub(super) fn call_any(
        &self,
        app: u32,
        server: u32,
        request: CallRequest,
    ) -> Result<CallHandle, ClientError> {
        let server = Rank(server);
        self.check_call(app, server, &request)?;
        if let Some(error) = self.dead() {
            return Err(error.into());
        }
        let CallRequest { head, body, priority, reply_bytes, reply_into, timeout } = request;
        let timeout = timeout.unwrap_or(Duration::from_millis(self.0.settings.deadlines.operation_ms));
        let cut = Cut::new(&head, body, inline_bytes_max(self.0.shape.chunk_bytes));
        let (target, into) = reply_into.map_or((None, None), |into| into.split(reply_bytes));
        let has_room = target.is_some() || into.is_some();
        let room_bytes = if has_room { 0 } else { room_bytes(reply_bytes) };
        let line = self.line(app, server);
        let mut next = line.turn();
        self.wait_for_turn(&line, *next, timeout, (app, server))?;
        let (memory, room) = self.memory_of(&cut, room_bytes, timeout, (app, server))?;
        let Filled { frame, mut parts, total_bytes } = cut.fill(&head, memory)?;
        parts.place = Some(line.enter());
        let (source, frame_bytes) = (Some(frame.span()), frame.len() as u64);
        let target = target.or(room).map(Exclusive::lend);
        let target_span = target.as_ref().map(PeerWritable::all).or(into.as_ref().map(LentMemory::span));
        let room_bytes = target_span.as_ref().map_or(0, Span::len);
        parts.into = into;
        let part = PartSpec {
            id: call_id(app, server),
            server,
            offset: 0,
            bytes: room_bytes,
            coded: Some(Coded { codec: 0, offset: 0, bytes: frame_bytes }),
        };
        let call = Some(Box::new(parts));
        let mut state = self.0.states.take(1);
        let buffers = state.buffers();
        (buffers.source, buffers.target, buffers.call) = (Some(frame), target, call);
        let state = state.share();
        let timeout_ms = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX);
        let timeout = Duration::from_millis(u64::from(timeout_ms));
        let lane = self.call_lane(app);
        let submit = Submit {
            op: self.0.next_op.fetch_add(1, Ordering::Relaxed),
            kind: OpKind::Call,
            dtype: Dtype::F32,
            payload: source.is_some(),
            placement: Placement::Slot,
            operation: Operation(*next),
            view: false,
            exact: false,
            reading: Reading::default(),
            count: Count::Body(total_bytes),
            priority,
            timeout_ms,
            busy_ms: 0,
            by_chunk: false,
        };
        *next += 1;
        let (parts, target) = (Arc::new([part]), target_span);
        lane.submit(Submission { state: state.clone(), submit, parts, source, target });
        // The order is settled; starting takes no lock of the line's.
        drop(next);
        let started = lane.kick()?;
        let (states, lane) = (self.0.states.clone(), lane.clone());
        // The lane answers at the deadline plus its grace; this is the net under it.
        let deadline = started + timeout + Duration::from_secs(3);
        let of = Of { app, server, started, bytes: total_bytes };
        Ok(CallHandle { state, states, lane, of, deadline })
    }

    /// The calls to this handler of this server.
    fn line(&self, app: u32, server: Rank) -> Arc<Line> {
        let known = self.0.calls.read().unwrap_or_else(PoisonError::into_inner).get(&(app, server)).cloned();
        known.unwrap_or_else(|| {
            let mut lines = self.0.calls.write().unwrap_or_else(PoisonError::into_inner);
            lines.entry((app, server)).or_default().clone()
        })
    }

    /// Calls of one worker to one handler stay on one lane, which keeps their order; handlers are spread over lanes.
    fn call_lane(&self, app: u32) -> &LaneHandle {
        let lanes = &self.0.lanes;
        let lane = match table_of(app) {
            // Its rows are there.
            Some((_, lane)) => usize::from(lane.0),
            None => (app as usize).wrapping_add(self.0.rank.0 as usize),
        };
        &lanes[lane % lanes.len().max(1)]
    }

    fn check_call(&self, app: u32, server: Rank, request: &CallRequest) -> Result<(), ClientError> {
        let bad = |reason: String| Err(ClientError::BadCall { app, server, reason });
        if request.head.len() > CALL_HEAD_BYTES_MAX {
            let bytes = request.head.len();
            return bad(format!(
                "its head has {bytes} bytes, but at most {CALL_HEAD_BYTES_MAX} are allowed; put the rest into the body"
            ));
        }
        if request.body.len() > CALL_PIECES_MAX {
            let pieces = request.body.len();
            return bad(format!(
                "its body has {pieces} pieces, but at most {CALL_PIECES_MAX} are allowed; join some"
            ));
        }
        let foreign = |buffer: &TensorBuffer| !buffer.is_of(self.0.pool.region());
        let pieces = request.body.iter().any(|piece| match piece {
            Piece::Buffer(buffer) => foreign(buffer),
            Piece::Lent(memory) => !memory.is_of(self.0.pool.region()),
            Piece::Bytes(_) | Piece::Adopted(_) => false,
        });
        let foreign_room = |into: &ReplyInto| !into.is_of(self.0.pool.region());
        if pieces || request.reply_into.as_ref().is_some_and(foreign_room) {
            return bad(
                "a buffer belongs to another client; pass one that `allocate` of this client returned".into(),
            );
        }
        Ok(())
    }

    /// Waits until the lane may send the call with this number.
    fn wait_for_turn(
        &self,
        line: &Arc<Line>,
        number: u64,
        patience: Duration,
        (app, server): (u32, Rank),
    ) -> Result<(), ClientError> {
        if line.wait(number, Duration::ZERO) {
            return Ok(());
        }
        let started = Instant::now();
        let blocked = Blocked::new(self.0.lanes.iter());
        let has_place = line.wait(number, patience);
        drop(blocked);
        let waited_ms = started.elapsed().as_millis() as u64;
        let full = || ClientError::Op(OpError::Call { app, server, waited_ms, fault: CallFault::LineFull });
        has_place.then_some(()).ok_or_else(full)
    }

    /// Registered memory for a call: for its copies and its frame, and room for its reply. All of it is taken at once. Otherwise two
    /// calls could each wait for what the other one has.
    fn memory_of(
        &self,
        cut: &Cut,
        room_bytes: u64,
        patience: Duration,
        (app, server): (u32, Rank),
    ) -> Result<(Vec<Exclusive>, Option<Exclusive>), ClientError> {
        let sizes: Vec<u64> = cut.sizes().chain((room_bytes > 0).then_some(room_bytes)).collect();
        let taken = self.0.pool.allocate_all(&sizes, Duration::ZERO);
        let waited = || {
            let started = Instant::now();
            let blocked = Blocked::new(self.0.lanes.iter());
            let taken = self.0.pool.allocate_all(&sizes, patience);
            drop(blocked);
            let waited = started.elapsed();
            if waited >= LONG_WAIT {
                tracing::warn!(
                    app,
                    server = server.0,
                    waited_ms = waited.as_millis() as u64,
                    "a call has waited for memory: have fewer calls in flight, drop buffers, or raise memory.pool_bytes"
                );
            }
            taken.map_err(|pool| match pool {
                PoolError::Exhausted { wanted, capacity, .. } if wanted <= capacity => {
                    let fault = CallFault::PoolFull { pool, servers: self.owing_servers() };
                    let waited_ms = waited.as_millis() as u64;
                    ClientError::Op(OpError::Call { app, server, waited_ms, fault })
                }
                never => never.into(),
            })
        };
        let mut memory = taken.or_else(|_| waited())?;
        memory.iter().try_for_each(|buffer| self.prepare(&buffer.span()))?;
        let room = (room_bytes > 0).then(|| memory.pop()).flatten();
        Ok((memory, room))
    }

    /// Servers that owe an answer to the oldest operation of a lane.
    fn owing_servers(&self) -> Vec<Rank> {
        let ask = |lane: &LaneHandle, reply| lane.send_beside(LaneMessage::Report(reply));
        let lanes = self.0.reports.of(&self.0.lanes, ask).into_iter().filter_map(|lane| lane.told?.oldest);
        let mut servers: Vec<Rank> = lanes.flat_map(|oldest| oldest.servers).collect();
        servers.sort_unstable();
        servers.dedup();
        servers
    }
}

/// Which call a handle is of.
#[derive(Debug)]
struct Of {
    app: u32,
    server: Rank,
    started: Instant,
    bytes: u64,
}

impl Of {
    /// `roomless`: bytes of the reply, if that waited for room at the end.
    fn error(&self, error: OpError, roomless: Option<u64>) -> OpError {
        let Self { app, server, started, bytes, .. } = self;
        let waited_ms = started.elapsed().as_millis() as u64;
        let fault = match error {
            OpError::Held { servers, waited_ms, cause: Some(cause) } => {
                let cause = Some(Box::new(self.error(*cause, roomless)));
                return OpError::Held { servers, waited_ms, cause };
            }
            OpError::NoAnswer { .. } | OpError::Deadline { .. } => {
                roomless.map_or(CallFault::NoAnswer, |bytes| CallFault::NoRoom { bytes })
            }
            OpError::Refused { status, .. } => match status {
                Status::DeadlineWaiting => CallFault::Deadline,
                Status::NoHandler => CallFault::NoHandler,
                Status::NoReply => CallFault::NoReply,
                Status::NoMemory => CallFault::NoMemory,
                Status::WrongShape => CallFault::TooLong { bytes: *bytes },
                status => CallFault::Refused(status),
            },
            other => return other,
        };
        OpError::Call { app: *app, server: *server, waited_ms, fault }
    }

    /// The reply, once the call has ended.
    fn reply(&self, state: &OpState, result: Result<Version, OpError>) -> Result<CallReply, OpError> {
        result.map_err(|error| self.error(error, state.roomless_bytes()))?;
        let OpBuffers { landed: target, call, .. } = state.take_buffers().unwrap_or_default();
        let mut parts = call.map(|call| *call).unwrap_or_default();
        let RawReply { mut inline, landed_bytes } = parts.reply.take().unwrap_or_default();
        let malformed = || OpError::Call {
            app: self.app,
            server: self.server,
            waited_ms: 0,
            fault: CallFault::Refused(Status::Malformed),
        };
        let (length, rest) = inline.split_first_chunk().ok_or_else(malformed)?;
        let from = 2 + usize::from(u16::from_le_bytes(*length));
        let head = rest.get(..from - 2).ok_or_else(malformed)?.to_vec();
        let body = match (landed_bytes, target) {
            (Some(bytes), Some(buffer)) => {
                let bytes = usize::try_from(bytes).unwrap_or(usize::MAX).min(buffer.len());
                Body::Landed { buffer: TensorBuffer::new(buffer), bytes }
            }
            (Some(bytes), None) if parts.into.is_some() => {
                Body::InPlace { bytes: usize::try_from(bytes).unwrap_or(usize::MAX) }
            }
            _ => Body::Inline { bytes: std::mem::take(&mut inline), from },
        };
        Ok(CallReply { head, body: ReplyBody(body), request: parts.pieces })
    }
}

/// A lane that knows of a call's callback, until it has run.
struct Expected(LaneHandle);

impl Drop for Expected {
    fn drop(&mut self) {
        self.0.forget_callback();
    }
}

impl CallHandle {
    /// Whether it has ended, successfully or not.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.state.is_told()
    }

    /// Registers a callback for its end. It is called on a data thread or in another thread's wait, or at once if the
    /// call has ended. The callback must return quickly and must not wait for an operation.
    pub fn on_end(self, callback: impl FnOnce(Result<CallReply, OpError>) + Send + 'static) {
        self.lane.expect_callback();
        let Self { state, of, lane, .. } = self;
        let (ended, expected) = (state.clone(), Expected(lane));
        state.on_end(Box::new(move |result| {
            callback(of.reply(&ended, result));
            drop(expected);
        }));
    }

    /// As [`CallHandle::on_end`], and the reply stays in the handle.
    pub(super) fn notify(&self, callback: impl FnOnce() + Send + 'static) {
        self.lane.expect_callback();
        let expected = Expected(self.lane.clone());
        self.state.on_end(Box::new(move |_| {
            callback();
            drop(expected);
        }));
    }

    /// Waits until it has ended, at its deadline at the latest. The error names handler and server.
    pub fn wait(self) -> Result<CallReply, ClientError> {
        let told = || self.state.is_told();
        let lanes = || std::iter::once(&self.lane);
        self.lane.visit();
        if !told() {
            drive_until(lanes(), self.deadline, told);
        }
        let blocked = (!told()).then(|| Blocked::new(lanes()));
        let result = self.state.wait(self.deadline).then(|| self.state.poll()).flatten();
        drop(blocked);
        let Self { state, states, of, .. } = self;
        // `of` makes a fault of the call of it.
        let (subject, key) = (Subject::default(), Key(u64::from(of.app)));
        let nothing = || Err(OpError::NoAnswer { subject, key, servers: Vec::new(), waited_ms: 0 });
        let reply = of.reply(&state, result.unwrap_or_else(nothing))?;
        states.give_back(state);
        Ok(reply)
    }
}
