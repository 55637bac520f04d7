//! A lane's doorbell with its system calls: sleeping on the word, waking a peer, waking ourselves from
//! another thread. The order of the steps is `doorbell`'s business, what is waited for the queue's.

use super::doorbell::{self, ON_SOCKETS, ON_WORD};
use super::link;
use super::shared::BellPage;
use super::word::Native;
use crate::error::FabricError;
use crate::memory::Region;
use rustix::event::{EventfdFlags, eventfd};
use rustix::thread::futex;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Our doorbell. Peers ring the page; threads of this process call `wake`.
#[derive(Debug)]
pub(crate) struct Bell {
    page: BellPage,
    file: Region,
    /// A wake that no sleep has taken yet.
    pending: AtomicBool,
    /// Readable after a wake of a sleeper on sockets.
    event: OwnedFd,
}

impl Bell {
    pub(super) fn new() -> Result<Self, FabricError> {
        let (page, file) = BellPage::create()?;
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| FabricError::os("opening an eventfd", e))?;
        Ok(Self { page, file, pending: AtomicBool::new(false), event })
    }

    /// What peers ring.
    pub(super) fn memfd(&self) -> Option<BorrowedFd<'_>> {
        self.file.memfd()
    }

    pub(super) fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// From any thread of this process.
    pub(crate) fn wake(&self) {
        self.pending.store(true, Ordering::Release);
        match doorbell::ring::<Native>(self.page.word()) {
            ON_WORD => wake_word(&self.page),
            // Fails only when the counter is full, and then the descriptor is readable anyway.
            ON_SOCKETS => drop(rustix::io::write(&self.event, &1u64.to_ne_bytes())),
            _ => {}
        }
    }

    /// Was `wake` called since the last time this was asked?
    pub(crate) fn take_wake(&self) -> bool {
        self.pending.load(Ordering::Relaxed) && self.pending.swap(false, Ordering::Acquire)
    }

    /// Would `take_wake` say yes?
    pub(super) fn has_wake(&self) -> bool {
        self.pending.load(Ordering::Acquire)
    }

    /// Makes the event unreadable until the next wake.
    pub(super) fn clear_event(&self) {
        let mut count = [0; 8];
        // Fails only when there is nothing to read.
        let _ = rustix::io::read(&self.event, &mut count);
    }

    pub(crate) fn lie_down(&self, how: u32) {
        doorbell::lie_down::<Native>(self.page.word(), how);
    }

    /// True: somebody rang since `lie_down`.
    pub(crate) fn get_up(&self) -> bool {
        doorbell::get_up::<Native>(self.page.word())
    }

    /// After `lie_down(ON_WORD)`: until rung or the time is over, or for no reason at all.
    pub(crate) fn sleep_on_word(&self, timeout: Duration) {
        let timeout = link::timespec(timeout);
        // Interrupted, over, or rung before: the caller looks for itself in each case.
        let _ = futex::wait(self.page.word(), futex::Flags::empty(), ON_WORD, Some(&timeout));
    }
}

/// Rings a peer after something was published to it.
#[inline]
pub(super) fn ring_peer(page: &BellPage, link: BorrowedFd<'_>) {
    match doorbell::ring::<Native>(page.word()) {
        ON_WORD => wake_word(page),
        // A full socket makes the sleeper's end readable too, and a broken one is noticed elsewhere.
        ON_SOCKETS => drop(link::send_bell(link)),
        _ => {}
    }
}

#[cold]
fn wake_word(page: &BellPage) {
    // Cannot fail on a mapped word. Everybody, because two may sleep on it: a lane's thread through its `Sleeper`, and
    // whoever took the queue meanwhile and waits.
    let _ = futex::wake(page.word(), futex::Flags::empty(), i32::MAX as u32);
}

/// What a peer needs of a lane to ring it, and how much it may have under way.
#[derive(Clone, Debug)]
pub(crate) struct ShmHandle {
    pub(super) bell: Arc<Bell>,
    pub(super) ring_capacity: u32,
}
