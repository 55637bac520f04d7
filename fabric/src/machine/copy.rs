//! One asynchronous copy: its definition, its completion, and its errors.

use super::words::NAME_BYTES_MAX;
use crate::error::{FabricError, PostError};
use crate::memory::{OutOfBounds, Span};
use crate::oneshot;
use crate::work::{RemoteKey, RemoteSpan};
use std::fmt;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};
use thiserror::Error;

/// The direction of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From our memory into the peer's.
    LocalToRemote,
    /// From the peer's memory into ours.
    RemoteToLocal,
}

/// A failed copy, or one with an unknown result.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CopyError {
    /// Its channel ended: the peer failed, closed it or violated the protocol, or an earlier copy was late.
    #[error("the channel ended: {0}")]
    Ended(String),
    /// It did not complete in time. Its channel is closed, so that its bytes do not move any more.
    #[error("the copy has not ended within {waited_ms} ms; its channel is closed")]
    Late {
        /// Its time limit.
        waited_ms: u64,
    },
    /// The driver rejected it.
    #[error(transparent)]
    Refused(#[from] PostError),
    /// This machine is closed.
    #[error("this machine is closed")]
    Closed,
}

/// A peer's region, found by its name: source or destination of copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteRegion {
    pub(super) endpoint: SocketAddr,
    pub(super) key: RemoteKey,
    pub(super) bytes: u64,
}

impl RemoteRegion {
    /// The peer.
    #[must_use]
    pub fn endpoint(&self) -> SocketAddr {
        self.endpoint
    }

    /// Its size in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.bytes
    }

    /// Regions are never empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    pub(super) fn stretch(&self, offset: u64, bytes: u64) -> Result<RemoteSpan, OutOfBounds> {
        OutOfBounds::unless_within(offset, bytes, self.bytes)?;
        Ok(RemoteSpan { key: self.key, offset })
    }
}

type Callback = Box<dyn FnOnce(Result<(), CopyError>) + Send>;

/// Copies of one channel that have not ended; the caller waits for some of them before there are more.
const COPIES_MAX: usize = 1 << 16;

/// Called once, by the polling thread, or where the copy is dropped because that thread has ended.
pub(super) struct OnDone {
    callback: Option<Callback>,
    /// Copies of its channel, this one included.
    pending: Arc<AtomicUsize>,
}

impl OnDone {
    /// Counts it among its channel's, unless there are too many.
    pub(super) fn new(
        callback: impl FnOnce(Result<(), CopyError>) + Send + 'static,
        pending: &Arc<AtomicUsize>,
    ) -> Result<Self, FabricError> {
        if pending.fetch_add(1, Ordering::Relaxed) >= COPIES_MAX {
            pending.fetch_sub(1, Ordering::Relaxed);
            return Err(FabricError::Misuse(format!(
                "{COPIES_MAX} copies of this channel are in flight, the maximum: wait for some"
            )));
        }
        Ok(Self { callback: Some(Box::new(callback)), pending: Arc::clone(pending) })
    }

    pub(super) fn call(mut self, result: Result<(), CopyError>) {
        self.end(result);
    }

    fn end(&mut self, result: Result<(), CopyError>) {
        let Some(callback) = self.callback.take() else { return };
        self.pending.fetch_sub(1, Ordering::Relaxed);
        if catch_unwind(AssertUnwindSafe(|| callback(result))).is_err() {
            // Its polling thread serves others, too.
            tracing::error!("the completion callback of a copy panicked");
        }
    }
}

impl Drop for OnDone {
    fn drop(&mut self) {
        self.end(Err(CopyError::Closed));
    }
}

/// A copy on its way to and through a polling thread. Owns its memory until it ends.
pub(super) struct Job {
    pub(super) local: Span,
    pub(super) remote: RemoteSpan,
    pub(super) direction: Direction,
    pub(super) begun: Instant,
    pub(super) deadline: Instant,
    pub(super) on_done: OnDone,
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job").field("remote", &self.remote).field("direction", &self.direction).finish()
    }
}

impl Job {
    pub(super) fn late(&self) -> CopyError {
        CopyError::Late { waited_ms: self.begun.elapsed().as_millis() as u64 }
    }
}

/// A copy to wait for.
#[derive(Debug)]
pub struct Copying {
    pub(super) ended: oneshot::Receiver<Result<(), CopyError>>,
    pub(super) within: Duration,
}

impl Copying {
    /// Waits until it has ended, which happens within the copy's own deadline.
    pub fn wait(self) -> Result<(), CopyError> {
        // Twice: the polling thread keeps the deadline, and tells.
        match self.ended.recv_timeout(2 * self.within) {
            Ok(result) => result,
            Err(RecvTimeoutError::Disconnected) => Err(CopyError::Closed),
            Err(RecvTimeoutError::Timeout) => {
                Err(CopyError::Late { waited_ms: 2 * self.within.as_millis() as u64 })
            }
        }
    }

    /// Its result, if it has ended.
    #[must_use]
    pub fn poll(&self) -> Option<Result<(), CopyError>> {
        self.ended.try_recv().ok()
    }
}

/// A name under which regions are published and looked up.
pub(super) fn check_name(name: &str) -> Result<(), FabricError> {
    if (1..=NAME_BYTES_MAX).contains(&name.len()) {
        return Ok(());
    }
    let bytes = name.len();
    Err(FabricError::Misuse(format!("a region's name has 1 to {NAME_BYTES_MAX} bytes, not {bytes}")))
}
