//! Sleeping for a lane without holding its queue, so that another thread can poll the queue meanwhile. Only
//! the sleep itself: what has to be looked at before and after is the queue's business.

use crate::error::FabricError;
use crate::shm::{Bell, ON_SOCKETS, ON_WORD};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// How a lane's thread sleeps, as [`LaneQueue::arm`](crate::LaneQueue::arm) said. Until it wakes, whoever
/// takes the queue disarms it and rearms it like this: the sleep then lasts, and costs nobody a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Rest {
    /// On the doorbell's word: peers and wakers that find it disarmed leave the sleeper alone.
    Word = ON_WORD,
    /// On sockets: what arrives wakes the sleeper, whoever holds the queue.
    Sockets = ON_SOCKETS,
}

/// Sleeps for a queue that others may hold.
#[derive(Debug)]
pub struct Sleeper {
    bell: Arc<Bell>,
    sockets: OwnedFd,
}

impl Sleeper {
    pub(crate) fn new(bell: Arc<Bell>, sockets: BorrowedFd<'_>) -> Result<Self, FabricError> {
        let sockets = sockets
            .try_clone_to_owned()
            .map_err(|e| FabricError::os("duplicating a descriptor (raise the limit of open files)", e))?;
        Ok(Self { bell, sockets })
    }

    /// Sleeps until the armed queue has something, a waker calls, or the time is over; or for no reason, and
    /// at once where the queue has been disarmed on the word.
    pub fn sleep(&self, rest: Rest, timeout: Duration) {
        match rest {
            Rest::Word => self.bell.sleep_on_word(timeout),
            Rest::Sockets => {
                // Asked, not taken: the events are for whoever holds the queue then.
                let mut fds = [PollFd::new(&self.sockets, PollFlags::IN)];
                let timeout = Timespec::try_from(timeout).ok();
                // Fails only by a signal: a wake for no reason.
                let _ = poll(&mut fds, timeout.as_ref());
            }
        }
    }
}
