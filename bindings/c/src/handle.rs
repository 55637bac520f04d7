//! Handles of operations in flight: wait, query, callback.

use crate::border::{lock, object, put_if_wanted, slice_mut};
use crate::buffer::Cell;
use crate::error::{Failure, GradwireCode, free, guard, guard_or, remember};
use gradwire_worker::{Ended, Handle, OpError};
use proto_common::ids::Version;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Time limit for waits: the operation's own deadline (`deadlines.operation_ms`, or `deadlines.busy_ms` for other workers).
pub const GRADWIRE_UNTIL_DEADLINE: u64 = u64::MAX;

/// An operation in flight. It completes or fails by itself, even if the program does not wait. Free it with
/// `gradwire_handle_free`.
#[derive(Debug)]
pub struct GradwireHandle {
    state: Mutex<Option<Running>>,
    notice: Arc<Notice>,
    /// Written once, by the wait.
    chunk_versions: OnceLock<Vec<u64>>,
}

/// The result of a successful operation.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct GradwireEnded {
    /// The version that was published or returned.
    pub version: u64,
    /// Bytes that were returned; for a dynamic tensor possibly fewer than its maximum.
    pub landed_bytes: u64,
    /// Chunks of the contribution that were late: their round had ended without them, and they were dropped. Only for
    /// tensors with backup workers. The returned weights of these chunks are newer than the round's.
    pub late_chunks: u32,
}

/// Called once when an operation has ended, with the context given at registration. `code` is the result, and
/// `gradwire_last_error` returns the reason. The library calls it on one of its threads, or at once if the operation
/// has already ended. Return quickly, and call no function of the library except `gradwire_last_error`: wake another
/// thread instead.
pub type GradwireOnEnd = Option<extern "C" fn(context: *mut c_void, code: GradwireCode, version: u64)>;

/// Where weights go when they are there.
#[derive(Debug)]
pub(crate) enum Landing {
    Nowhere,
    Buffer(Arc<Cell>),
    Plain(Plain),
}

/// Memory of the program's, to be written by the wait.
#[derive(Debug)]
pub(crate) struct Plain(pub(crate) *mut u8);

// SAFETY: the memory is written by one wait only, on the thread that calls it, and the caller keeps it for that (see
// gradwire_pull). Needed because a handle may be waited for on another thread than the one that got it.
unsafe impl Send for Plain {}

#[derive(Debug)]
struct Running {
    handle: Handle,
    source: Option<Arc<Cell>>,
    landing: Landing,
}

/// Says that the operation has ended, to waits with a time of their own and to callbacks.
#[derive(Debug, Default)]
struct Notice {
    told: Mutex<Told>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Told {
    /// The operation tells this notice.
    expected: bool,
    ended: Option<Result<Version, OpError>>,
    callbacks: Vec<Callback>,
}

#[derive(Clone, Copy, Debug)]
struct Callback {
    call: extern "C" fn(*mut c_void, GradwireCode, u64),
    context: *mut c_void,
}

// SAFETY: the context is the program's, which is told that a thread of the library calls back with it. Needed to keep it
// until then.
unsafe impl Send for Callback {}

impl Callback {
    fn call(self, result: &Result<Version, OpError>) {
        let (code, version) = match result {
            Ok(version) => (GradwireCode::Ok, version.0),
            Err(error) => {
                let failure = Failure::from(error.clone());
                remember(&failure);
                (failure.code, 0)
            }
        };
        (self.call)(self.context, code, version);
    }
}

impl Notice {
    fn end(&self, result: Result<Version, OpError>) {
        let callbacks = {
            let mut told = lock(&self.told);
            told.ended = Some(result.clone());
            std::mem::take(&mut told.callbacks)
        };
        self.changed.notify_all();
        callbacks.into_iter().for_each(|callback| callback.call(&result));
    }

    /// False where the time is over before.
    fn wait(&self, within: Duration) -> bool {
        let deadline = Instant::now().checked_add(within);
        let mut told = lock(&self.told);
        while told.ended.is_none() {
            let left = deadline.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return false;
            }
            let (guard, _) = self.changed.wait_timeout(told, left).unwrap_or_else(PoisonError::into_inner);
            told = guard;
        }
        true
    }
}

impl GradwireHandle {
    pub(crate) fn new(handle: Handle, source: Option<Arc<Cell>>, landing: Landing) -> Self {
        let running = Running { handle, source, landing };
        Self { state: Mutex::new(Some(running)), notice: Arc::default(), chunk_versions: OnceLock::new() }
    }

    /// Lets the operation tell its notice, once.
    fn listen(&self, running: &Running) {
        if !std::mem::replace(&mut lock(&self.notice.told).expected, true) {
            let notice = self.notice.clone();
            running.handle.on_end(move |result| notice.end(result));
        }
    }

    fn wait(&self, timeout_ms: u64) -> Result<GradwireEnded, Failure> {
        if timeout_ms != GRADWIRE_UNTIL_DEADLINE {
            let done = match &*lock(&self.state) {
                Some(running) if running.handle.is_done() => true,
                Some(running) => {
                    self.listen(running);
                    false
                }
                None => return Err(waited()),
            };
            if !done && !self.notice.wait(Duration::from_millis(timeout_ms)) {
                let text =
                    format!("the wait timed out after {timeout_ms} ms; the operation continues, wait again");
                return Err(Failure::new(GradwireCode::NotDone, text));
            }
        }
        let Running { handle, source, landing } = lock(&self.state).take().ok_or_else(waited)?;
        let mut ended = handle.wait()?;
        if let Some(versions) = ended.chunk_versions.take() {
            // There is one wait.
            let _ = self.chunk_versions.set(versions.into_iter().map(|version| version.0).collect());
        }
        land(ended, source, landing)
    }
}

fn waited() -> Failure {
    let text =
        "the handle has already been waited for, or another thread waits for it; wait once per operation";
    Failure::new(GradwireCode::AlreadyWaited, text)
}

/// Buffers go back to their owners, and weights to where they are wanted.
fn land(ended: Ended, source: Option<Arc<Cell>>, landing: Landing) -> Result<GradwireEnded, Failure> {
    if let Some(source) = source {
        source.give_back();
    }
    let landed_bytes = match landing {
        Landing::Nowhere => 0,
        Landing::Buffer(cell) => {
            cell.give_back();
            ended.landed_bytes
        }
        Landing::Plain(Plain(start)) => match &ended.weights {
            Some(weights) => {
                weights.copy_bytes_to(slice_mut(start, weights.bytes(), "the memory of a pull")?)?;
                weights.bytes()
            }
            None => 0,
        },
    };
    Ok(GradwireEnded { version: ended.version.0, landed_bytes, late_chunks: ended.late_chunks })
}

/// Waits until the operation has ended, at most `timeout_ms` milliseconds. `GRADWIRE_UNTIL_DEADLINE`: until its own
/// deadline; this is fastest, because the waiting thread then does the library's work. `ended` may be null.
///
/// With `GRADWIRE_CODE_NOT_DONE` the operation continues, and may be waited for again. Every other code is its end:
/// after success the buffers belong to the program again, and a second wait returns `GRADWIRE_CODE_ALREADY_WAITED`.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_wait(
    handle: Option<&GradwireHandle>,
    timeout_ms: u64,
    ended: Option<&mut MaybeUninit<GradwireEnded>>,
) -> GradwireCode {
    guard(|| {
        let result = object(handle, "handle")?.wait(timeout_ms)?;
        put_if_wanted(ended, result);
        Ok(())
    })
}

/// The version of each chunk of the operation, in the tensor's order, and their number in `count`. Only for a tensor
/// from `gradwire_tensor_with_chunk_versions`, after a successful wait; otherwise null and 0. Valid until the handle
/// is freed.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_chunk_versions(
    handle: Option<&GradwireHandle>,
    count: Option<&mut MaybeUninit<u64>>,
) -> *const u64 {
    guard_or(std::ptr::null(), || {
        let versions = object(handle, "handle")?.chunk_versions.get();
        put_if_wanted(count, versions.map_or(0, |versions| versions.len() as u64));
        Ok(versions.map_or(std::ptr::null(), |versions| versions.as_ptr()))
    })
}

/// 1 if the operation has ended, successfully or not, so that a wait returns at once; otherwise 0. 1 for null and
/// after a wait.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_is_done(handle: Option<&GradwireHandle>) -> i32 {
    let done = guard_or(true, || {
        Ok(lock(&object(handle, "handle")?.state).as_ref().is_none_or(|running| running.handle.is_done()))
    });
    i32::from(done)
}

/// Registers a callback for the end of the operation: see `GradwireOnEnd`. Several callbacks of one operation are
/// called in the order of registration. The handle may be freed before; the context must exist until the call. After a
/// wait this is an error.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_on_end(
    handle: Option<&GradwireHandle>,
    callback: GradwireOnEnd,
    context: *mut c_void,
) -> GradwireCode {
    guard(|| {
        let handle = object(handle, "handle")?;
        let call = callback.ok_or_else(|| Failure::null("callback"))?;
        let state = lock(&handle.state);
        let running = state.as_ref().ok_or_else(waited)?;
        let callback = Callback { call, context };
        let ended = {
            let mut told = lock(&handle.notice.told);
            if told.ended.is_none() {
                told.callbacks.push(callback);
            }
            told.ended.clone()
        };
        match ended {
            Some(result) => {
                drop(state);
                callback.call(&result);
            }
            None => handle.listen(running),
        }
        Ok(())
    })
}

/// Frees a handle. Null is allowed. The operation continues and keeps its buffers. The target memory of a pull is then
/// not written any more.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_handle_free(handle: Option<Box<GradwireHandle>>) {
    free(handle);
}
