//! A channel to a peer from the user's side: passes copies to the polling thread.

use super::CopyError;
use super::copy::{Copying, Direction, Job, OnDone, RemoteRegion};
use super::poller::{Attached, Order};
use crate::error::FabricError;
use crate::mailbox::Mailbox;
use crate::memory::Span;
use crate::oneshot;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// A channel to a peer. Clones share it. It ends when it breaks or the machine is closed.
#[derive(Clone, Debug)]
pub struct Channel {
    endpoint: SocketAddr,
    orders: Mailbox<Order>,
    attached: Attached,
    within: Duration,
}

impl Channel {
    pub(super) fn new(
        endpoint: SocketAddr,
        orders: Mailbox<Order>,
        attached: Attached,
        within: Duration,
    ) -> Self {
        Self { endpoint, orders, attached, within }
    }

    /// The peer's address.
    #[must_use]
    pub fn endpoint(&self) -> SocketAddr {
        self.endpoint
    }

    /// Why it has ended, if it has. The machine then gives a new one.
    #[must_use]
    pub fn ended(&self) -> Option<&str> {
        self.attached.ended.get().map(String::as_str)
    }

    /// Copies `local` to or from the peer's region, at `offset` there, and calls `on_done` at the end; then the memory
    /// may be used again. Copies of a channel take effect in order: a copy from the peer after a copy to the peer
    /// returns the new bytes. One exception: if a copy sends bytes that an earlier copy still receives, wait for the
    /// earlier one first. `on_done` runs exactly once, on the polling thread, and must not block. If it panics, the
    /// panic is logged and has no other effect.
    pub fn copy(
        &self,
        local: &Span,
        remote: &RemoteRegion,
        offset: u64,
        direction: Direction,
        on_done: impl FnOnce(Result<(), CopyError>) + Send + 'static,
    ) -> Result<(), FabricError> {
        if remote.endpoint() != self.endpoint {
            let text = format!("a region of machine {} on a channel to {}", remote.endpoint(), self.endpoint);
            return Err(FabricError::Misuse(text));
        }
        if local.is_empty() {
            return Err(FabricError::Misuse("a copy of zero bytes".into()));
        }
        let stretch = remote.stretch(offset, local.len());
        let stretch = stretch.map_err(|error| FabricError::Misuse(error.to_string()))?;
        let begun = Instant::now();
        let job = Job {
            local: local.clone(),
            remote: stretch,
            direction,
            begun,
            deadline: begun + self.within,
            on_done: OnDone::new(on_done, &self.attached.pending)?,
        };
        // Where the thread has ended the copy is dropped, and says so itself.
        self.orders.send(Order::Copy(self.attached.id, job));
        Ok(())
    }

    /// As [`Channel::copy`], with a handle to wait for.
    pub fn start_copy(
        &self,
        local: &Span,
        remote: &RemoteRegion,
        offset: u64,
        direction: Direction,
    ) -> Result<Copying, FabricError> {
        let (tell, ended) = oneshot::channel();
        // Nobody may be waiting any more.
        self.copy(local, remote, offset, direction, move |result| tell.send(result))?;
        Ok(Copying { ended, within: self.within })
    }
}
