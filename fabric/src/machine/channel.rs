//! A channel to a peer from the user's side: passes copies to the polling thread.

use super::CopyError;
use super::copy::{COPIES_MAX, Copying, Direction, Job, OnDone, RemoteRegion};
use super::poller::{Attached, Order};
use crate::error::FabricError;
use crate::mailbox::Mailbox;
use crate::memory::Span;
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
        self.hand_over(local, remote, offset, direction, OnDone::new(on_done))
    }

    /// As [`Channel::copy`], with a handle to wait for.
    pub fn start_copy(
        &self,
        local: &Span,
        remote: &RemoteRegion,
        offset: u64,
        direction: Direction,
    ) -> Result<Copying, FabricError> {
        let (copying, on_done) = Copying::new(self.within);
        self.hand_over(local, remote, offset, direction, on_done)?;
        Ok(copying)
    }

    fn hand_over(
        &self,
        local: &Span,
        remote: &RemoteRegion,
        offset: u64,
        direction: Direction,
        mut on_done: OnDone,
    ) -> Result<(), FabricError> {
        let refuse = |on_done: OnDone, text: String| {
            on_done.forget();
            Err(FabricError::Misuse(text))
        };
        if remote.endpoint() != self.endpoint {
            let text = format!("a region of machine {} on a channel to {}", remote.endpoint(), self.endpoint);
            return refuse(on_done, text);
        }
        if local.is_empty() {
            return refuse(on_done, "a copy of zero bytes".into());
        }
        let stretch = match remote.stretch(offset, local.len()) {
            Ok(stretch) => stretch,
            Err(error) => return refuse(on_done, error.to_string()),
        };
        if !on_done.count(&self.attached.pending) {
            return refuse(
                on_done,
                format!("{COPIES_MAX} copies of this channel are in flight, the maximum: wait for some"),
            );
        }
        let begun = Instant::now();
        let job = Job {
            local: local.clone(),
            remote: stretch,
            direction,
            begun,
            deadline: begun + self.within,
            on_done,
        };
        // Where the thread has ended the copy is dropped, and says so itself.
        self.orders.send(Order::Copy(self.attached.id, job));
        Ok(())
    }
}
