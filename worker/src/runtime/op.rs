//! One operation, shared by its caller and the data threads: which lanes still work on it, how it ended, and its buffers.

use super::line::Place;
use super::shown::{Busy, Shown};
use super::spares::Spare;
use crate::client::{LentMemory, Piece};
use crate::engine::{PartSpec, Submit};
use crate::error::OpError;
use fabric::{Exclusive, Fenced, PeerWritable, Span, UserBuffer, View, lock};
use proto_common::ids::Version;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Spins before a waiting caller sleeps: long enough for a small operation on shared memory.
const SPINS: u32 = 200;

/// The callback for the end of an operation.
pub(crate) type Callback = Box<dyn FnOnce(Result<Version, OpError>) + Send>;

/// The buffers that an operation owns until it has ended.
#[derive(Debug, Default)]
pub(crate) struct OpBuffers {
    /// The gradient, or the copy of a gradient in the trainer's own memory. For a call, its frame.
    pub(crate) source: Option<Exclusive>,
    /// The gradient in the trainer's own memory. It is sent in place if there is no copy.
    pub(crate) user: Option<UserBuffer>,
    /// What is sent in the gradient's place: the encoded gradient, if the tensor has a codec, or the sum of this host's contributions.
    pub(crate) encoded: Option<Spare>,
    /// The memory where weights or a reply land.
    pub(crate) target: Option<PeerWritable>,
    /// The same, once no server can write it any more.
    pub(crate) landed: Option<Exclusive>,
    /// Owners of a gradient and weights in memory that the caller shares.
    pub(crate) shared: [Option<Arc<PeerWritable>>; 2],
    /// Counts the operation as in flight at its tensor.
    pub(crate) busy: Option<Busy>,
    /// For an operation that reads weights as a view.
    pub(crate) shown: Option<Shown>,
    /// If the caller requested the version of each chunk: the bytes before the chunk, and its version.
    pub(crate) versions: Option<Vec<(u64, Version)>>,
    /// The newest version of the tensor that this worker knows, if rounds can end without this worker.
    pub(crate) seen: Option<Arc<AtomicU64>>,
    /// For a call.
    pub(crate) call: Option<Box<CallParts>>,
    /// Notified with the operation's number when all lanes are done. The thread of the workers of this host counts as one more lane: the
    /// operation ends only after both.
    pub(crate) gate: Option<(Answering, u64)>,
}

/// Hears that all lanes are done with an operation, and whether it has succeeded.
#[derive(Clone)]
pub(crate) struct Answering(pub(crate) Arc<dyn Fn(u64, bool) + Send + Sync>);

impl std::fmt::Debug for Answering {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Answering")
    }
}

/// What a call owns beside its frame and the room for its reply.
#[derive(Debug, Default)]
pub(crate) struct CallParts {
    /// The caller's pieces of the body.
    pub(crate) pieces: Vec<Piece>,
    /// Copies of those that are not in the pool.
    pub(crate) copies: Vec<Exclusive>,
    /// What the server reads in place.
    pub(crate) lent: Vec<Span>,
    /// What came back.
    pub(crate) reply: Option<RawReply>,
    /// Bytes of the reply that was announced, while there is no room for it.
    pub(crate) roomless: Option<u64>,
    /// Its place among the calls that may be sent.
    pub(crate) place: Option<Place>,
    /// Where its reply lands, if that is not the call's own.
    pub(crate) into: Option<LentMemory>,
}

impl OpBuffers {
    /// A call's server has read the request: its frame and what was copied for it are free. The caller's own pieces stay.
    fn forget_request(&mut self) {
        let Some(call) = &mut self.call else { return };
        call.copies.clear();
        call.lent.clear();
        self.source = None;
        call.pieces.retain(|piece| !matches!(piece, Piece::Lent(_)));
    }
}

impl CallParts {
    /// Does the caller share some of its memory?
    fn shares(&self) -> bool {
        self.into.is_some() || self.pieces.iter().any(|piece| matches!(piece, Piece::Lent(_)))
    }
}

/// A reply as it came.
#[derive(Debug, Default)]
pub(crate) struct RawReply {
    /// The result's payload.
    pub(crate) inline: Vec<u8>,
    /// Bytes of the body, where that landed.
    pub(crate) landed_bytes: Option<u64>,
}

#[derive(Default)]
struct Progress {
    version: Option<u64>,
    error: Option<OpError>,
    ended: bool,
    buffers: OpBuffers,
    callback: Option<Callback>,
    /// Callers that sleep in `wait`. Without any, the end of the operation costs no system call.
    waiters: u32,
}

impl Progress {
    /// Does the caller share some of the operation's memory?
    fn shares(&self) -> bool {
        let OpBuffers { user, source, encoded, .. } = &self.buffers;
        // What was copied or encoded is read no more.
        let is_user_sent = user.is_some() && source.is_none() && encoded.is_none();
        is_user_sent
            || self.buffers.shared.iter().any(Option::is_some)
            || self.buffers.call.as_ref().is_some_and(|call| call.shares())
    }
}

impl std::fmt::Debug for Progress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Progress")
            .field("error", &self.error)
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}

/// See the module.
#[derive(Debug)]
pub struct OpState {
    lanes_left: AtomicU32,
    /// The caller can get the result: the operation has ended or failed.
    told: AtomicBool,
    /// A lane has reported a failure.
    failed: AtomicBool,
    /// Bytes that landed, as servers report them for dynamic tensors.
    landed_bytes: AtomicU64,
    /// The newest version among those.
    newest: AtomicU64,
    /// Chunks whose contribution came too late for their round.
    late_chunks: AtomicU32,
    progress: Mutex<Progress>,
    changed: Condvar,
}

impl OpState {
    /// An operation that this many lanes work on.
    #[must_use]
    pub fn new(lanes: u32) -> Arc<Self> {
        Arc::new(Self::fresh(lanes, OpBuffers::default()))
    }

    /// Its buffers are the operation's until it has ended.
    pub(super) fn fresh(lanes: u32, buffers: OpBuffers) -> Self {
        let progress = Progress { buffers, ..Progress::default() };
        let told = AtomicBool::new(lanes == 0);
        Self {
            lanes_left: AtomicU32::new(lanes),
            told,
            failed: AtomicBool::new(false),
            landed_bytes: AtomicU64::new(0),
            newest: AtomicU64::new(0),
            late_chunks: AtomicU32::new(0),
            progress: Mutex::new(progress),
            changed: Condvar::new(),
        }
    }

    /// The state of an operation whose end was seen and whose buffers were taken becomes that of a new one.
    pub(super) fn renew(&mut self, lanes: u32) {
        let Self { lanes_left, told, failed, landed_bytes, newest, late_chunks, progress, changed: _ } = self;
        (*lanes_left.get_mut(), *late_chunks.get_mut()) = (lanes, 0);
        (*told.get_mut(), *failed.get_mut()) = (lanes == 0, false);
        (*landed_bytes.get_mut(), *newest.get_mut()) = (0, 0);
        let Progress { version, error, ended, buffers, callback, waiters } =
            progress.get_mut().unwrap_or_else(PoisonError::into_inner);
        debug_assert!(buffers.source.is_none() && buffers.landed.is_none() && buffers.busy.is_none());
        (*version, *error, *ended, *callback, *waiters) = (None, None, false, None, 0);
    }

    /// The buffers of an operation that no lane has yet.
    pub(super) fn own_buffers(&mut self) -> &mut OpBuffers {
        &mut self.progress.get_mut().unwrap_or_else(PoisonError::into_inner).buffers
    }

    fn tell(&self, mut progress: MutexGuard<'_, Progress>) {
        let (waiters, result) = (progress.waiters > 0, outcome(&progress));
        let callback = progress.callback.take();
        self.told.store(true, Ordering::Release);
        drop(progress);
        if waiters {
            self.changed.notify_all();
        }
        if let Some(callback) = callback {
            callback(result);
        }
    }

    /// A lane reports a failure. The operation keeps its buffers until all lanes have ended. If the buffers are the operation's
    /// own, the caller hears of the failure at once. If the caller shares the memory, it hears of the failure when all lanes have
    /// ended. Scenario: one of two servers answers that the deadline has passed. The caller writes the next gradient into the
    /// array, while the other server still adds up the last one. Returns false if the caller has not heard of the failure yet.
    pub(crate) fn fail(&self, error: OpError) -> bool {
        let mut progress = lock(&self.progress);
        self.failed.store(true, Ordering::Release);
        progress.error.get_or_insert(error);
        let is_told = progress.ended || !progress.shares();
        if is_told {
            self.tell(progress);
        }
        is_told
    }

    /// Servers have kept the memory for too long: the caller gets an error now, unless it already has one. `error` makes it from
    /// the first failure.
    pub(crate) fn fail_now(&self, error: impl FnOnce(Option<OpError>) -> OpError) {
        let mut progress = lock(&self.progress);
        if !self.told.load(Ordering::Acquire) {
            self.failed.store(true, Ordering::Release);
            progress.error = Some(error(progress.error.take()));
            self.tell(progress);
        }
    }

    /// A lane reports where a part's weights can be read, before it ends its part.
    pub(crate) fn shown(&self, offset: u64, view: View) {
        if let Some(shown) = &mut lock(&self.progress).buffers.shown {
            shown.pieces.push((offset, view));
        }
    }

    /// A lane reports a chunk's version, before it ends its part.
    pub(crate) fn chunk_version(&self, offset: u64, version: Version) {
        if let Some(versions) = &mut lock(&self.progress).buffers.versions {
            versions.push((offset, version));
        }
    }

    /// A lane reports how many chunks came too late for their round, before it ends its part.
    pub(crate) fn late(&self, chunks: u32) {
        self.late_chunks.fetch_add(chunks, Ordering::AcqRel);
    }

    /// Chunks that came too late for their round, on all lanes; to be asked once the operation has ended.
    #[must_use]
    pub fn late_chunks(&self) -> u32 {
        self.late_chunks.load(Ordering::Acquire)
    }

    /// A call's reply has come, before its lane ends its part.
    pub(crate) fn replied(&self, inline: &[u8], landed_bytes: Option<u64>) {
        if let Some(call) = &mut lock(&self.progress).buffers.call {
            call.reply = Some(RawReply { inline: inline.to_vec(), landed_bytes });
        }
    }

    /// A call's server has read the request.
    pub(crate) fn forget_request(&self) {
        lock(&self.progress).buffers.forget_request();
    }

    /// A call's reply of so many bytes was announced, and has no room yet.
    pub(crate) fn announced(&self, bytes: u64) {
        if let Some(call) = &mut lock(&self.progress).buffers.call {
            call.roomless = Some(bytes);
        }
    }

    /// Room for a call's reply that had too little.
    pub(crate) fn make_room(&self, room: PeerWritable) {
        let mut progress = lock(&self.progress);
        progress.buffers.target = Some(room);
        if let Some(call) = &mut progress.buffers.call {
            call.roomless = None;
        }
    }

    /// Bytes of a call's reply that waits for room.
    pub(crate) fn roomless_bytes(&self) -> Option<u64> {
        lock(&self.progress).buffers.call.as_ref().and_then(|call| call.roomless)
    }

    /// What the server of a call reads in place.
    pub(crate) fn lent(&self) -> Vec<Span> {
        lock(&self.progress).buffers.call.as_ref().map_or_else(Vec::new, |call| call.lent.clone())
    }

    /// A lane reports how many bytes of a dynamic tensor landed, before it ends its part.
    pub(crate) fn landed(&self, bytes: u64, newest: u64) {
        self.newest.fetch_max(newest, Ordering::AcqRel);
        self.landed_bytes.fetch_add(bytes, Ordering::AcqRel);
    }

    /// Bytes that landed on all lanes, of a dynamic tensor; to be asked once the operation has ended.
    #[must_use]
    pub fn landed_bytes(&self) -> u64 {
        self.landed_bytes.load(Ordering::Acquire)
    }

    /// The newest version among what landed of a dynamic tensor: all of it is of one round if that is its version.
    pub(crate) fn newest(&self) -> Version {
        Version(self.newest.load(Ordering::Acquire))
    }

    /// A lane has ended its part, with a version or a failure, and no server reaches the operation's memory by it any more.
    pub(crate) fn lane_done(&self, ended: Result<u64, OpError>, fenced: Fenced) {
        let mut progress = lock(&self.progress);
        match ended {
            Ok(version) => {
                progress.version = Some(progress.version.map_or(version, |v| v.min(version)));
            }
            Err(error) => {
                self.failed.store(true, Ordering::Release);
                progress.error.get_or_insert(error);
            }
        }
        let left = self.lanes_left.fetch_sub(1, Ordering::AcqRel) - 1;
        if left == 1
            && let Some((Answering(answering), op)) = progress.buffers.gate.take()
        {
            answering(op, progress.error.is_none());
        }
        progress.ended = left == 0;
        if progress.ended {
            let target = progress.buffers.target.take();
            progress.buffers.landed = target.map(|target| target.take_back(fenced));
            // Other calls may wait for this memory, and the caller may take the reply much later.
            progress.buffers.forget_request();
            if let Some(call) = &mut progress.buffers.call {
                drop(call.place.take());
            }
        }
        let result = outcome(&progress);
        if let (true, Some(seen), Ok(version)) = (progress.ended, &progress.buffers.seen, &result) {
            seen.fetch_max(version.0, Ordering::AcqRel);
        }
        if progress.ended || (result.is_err() && !progress.shares()) {
            self.tell(progress);
        }
    }

    /// How the operation ended, if the caller can get the result already.
    #[must_use]
    pub fn poll(&self) -> Option<Result<Version, OpError>> {
        self.is_told().then(|| outcome(&lock(&self.progress)))
    }

    /// Can the caller get the result?
    pub(crate) fn is_told(&self) -> bool {
        self.told.load(Ordering::Acquire)
    }

    /// Has a lane reported a failure?
    pub(super) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Calls back when the operation has ended, on the thread that ends it, or at once if it has.
    pub(crate) fn on_end(&self, callback: Callback) {
        let mut progress = lock(&self.progress);
        if self.is_told() {
            let result = outcome(&progress);
            drop(progress);
            callback(result);
        } else {
            progress.callback = Some(callback);
        }
    }

    /// Works on the operation's buffers while no lane does.
    pub(crate) fn with_buffers<T>(&self, work: impl FnOnce(&mut OpBuffers) -> T) -> T {
        work(&mut lock(&self.progress).buffers)
    }

    /// Waits until the caller can get the result, at most until `deadline`. Returns whether it can.
    pub(crate) fn wait(&self, deadline: Instant) -> bool {
        for _ in 0..SPINS {
            if self.is_told() {
                return true;
            }
            std::hint::spin_loop();
        }
        let mut progress = lock(&self.progress);
        loop {
            if self.is_told() {
                return true;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left == Duration::ZERO {
                return false;
            }
            progress.waiters += 1;
            progress = self.changed.wait_timeout(progress, left).unwrap_or_else(PoisonError::into_inner).0;
            progress.waiters -= 1;
        }
    }

    /// The buffers, once no lane uses them any more.
    pub(crate) fn take_buffers(&self) -> Option<OpBuffers> {
        let mut progress = lock(&self.progress);
        progress.ended.then(|| std::mem::take(&mut progress.buffers))
    }
}

fn outcome(progress: &Progress) -> Result<Version, OpError> {
    match &progress.error {
        Some(error) => Err(error.clone()),
        None => Ok(Version(progress.version.unwrap_or(0))),
    }
}

/// An operation's share of one lane, as the caller hands it over.
#[derive(Debug)]
pub struct Submission {
    /// Shared with the caller.
    pub state: Arc<OpState>,
    /// What it is.
    pub submit: Submit,
    /// The chunks of the tensor on this lane.
    pub parts: Arc<[PartSpec]>,
    /// The payload, all of the tensor; encoded where its chunks are.
    pub source: Option<Span>,
    /// Where weights are to land, all of the tensor.
    pub target: Option<Span>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subject::Subject;
    use proto_common::ids::{Key, Rank};

    fn error() -> OpError {
        OpError::NoAnswer { subject: Subject::default(), key: Key(1), servers: vec![Rank(0)], waited_ms: 5 }
    }

    #[test]
    fn the_last_lane_ends_it_with_the_least_version() {
        let state = OpState::new(2);
        state.lane_done(Ok(7), fabric::Fenced::answered());
        assert_eq!(state.poll(), None);
        assert!(state.take_buffers().is_none());
        state.lane_done(Ok(5), fabric::Fenced::answered());
        assert_eq!(state.poll(), Some(Ok(Version(5))));
        assert!(state.take_buffers().is_some());
    }

    #[test]
    fn what_landed_adds_up_over_lanes() {
        let state = OpState::new(2);
        for (bytes, version) in [(8, 3), (4, 4)] {
            state.landed(bytes, version);
            state.lane_done(Ok(version), fabric::Fenced::answered());
        }
        assert_eq!(
            (state.landed_bytes(), state.newest(), state.poll()),
            (12, Version(4), Some(Ok(Version(3))))
        );
    }

    #[test]
    fn what_chunks_tell_is_kept_until_the_end_and_what_is_seen_then() {
        let seen = Arc::new(AtomicU64::new(4));
        let buffers =
            OpBuffers { versions: Some(Vec::new()), seen: Some(seen.clone()), ..OpBuffers::default() };
        let state = OpState::fresh(2, buffers);
        for (offset, version) in [(8, 7), (0, 6)] {
            state.chunk_version(offset, Version(version));
            state.late(1);
            assert_eq!(seen.load(Ordering::Acquire), 4, "not before all lanes have ended");
            state.lane_done(Ok(version), fabric::Fenced::answered());
        }
        assert_eq!((seen.load(Ordering::Acquire), state.late_chunks()), (6, 2));
        let versions = state.take_buffers().and_then(|buffers| buffers.versions);
        assert_eq!(versions, Some(vec![(8, Version(7)), (0, Version(6))]));
    }

    #[test]
    fn a_failure_is_told_at_once_but_buffers_stay() {
        let state = OpState::new(1);
        state.fail(error());
        assert_eq!(state.poll(), Some(Err(error())));
        assert!(state.take_buffers().is_none());
        state.lane_done(Ok(0), fabric::Fenced::answered());
        assert_eq!(state.poll(), Some(Err(error())), "the first word stands");
        assert!(state.take_buffers().is_some());
    }

    /// One of two lanes fails, and the other one continues.
    #[test]
    fn a_failure_is_told_when_no_lane_uses_shared_memory_any_more() {
        let failing: [fn(&OpState); 2] = [
            |state| assert!(!state.fail(error())),
            |state| state.lane_done(Err(error()), Fenced::answered()),
        ];
        for fail in failing {
            let lent = Arc::new(PeerWritable::allocate(64, "shared").unwrap());
            let buffers = OpBuffers { shared: [Some(lent), None], ..OpBuffers::default() };
            let state = OpState::fresh(2, buffers);
            let told = Arc::new(AtomicU32::new(0));
            let count = told.clone();
            state.on_end(Box::new(move |result| {
                assert_eq!(result, Err(error()));
                count.fetch_add(1, Ordering::AcqRel);
            }));
            fail(&state);
            assert!(state.has_failed() && !state.is_told(), "the other lane's server adds it up");
            assert!(!state.wait(Instant::now()));
            state.lane_done(Ok(3), Fenced::answered());
            if !state.is_told() {
                state.lane_done(Ok(3), Fenced::answered());
            }
            assert_eq!((state.poll(), told.load(Ordering::Acquire)), (Some(Err(error())), 1));
        }
    }

    #[test]
    fn callbacks_run_once_before_or_after() {
        let (sender, receiver) = std::sync::mpsc::channel();
        let state = OpState::new(1);
        let early = sender.clone();
        state.on_end(Box::new(move |result| early.send(result).unwrap()));
        state.lane_done(Ok(3), fabric::Fenced::answered());
        state.on_end(Box::new(move |result| sender.send(result).unwrap()));
        assert_eq!(receiver.iter().collect::<Vec<_>>(), [Ok(Version(3)), Ok(Version(3))]);
    }

    #[test]
    fn waiting_ends_at_the_deadline() {
        let state = OpState::new(1);
        assert!(!state.wait(Instant::now() + Duration::from_millis(5)));
    }
}
