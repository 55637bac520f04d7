//! Messages to the one thread that owns a lane, which sleeps in [`LaneQueue::wait`](crate::LaneQueue::wait)
//! and is woken by them. Not for the payload, which never passes between threads.

use crate::lane::Waker;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::time::Duration;

/// The senders' end. Clones share it.
#[derive(Debug)]
pub struct Mailbox<T> {
    sender: Sender<T>,
    waker: Waker,
}

impl<T> Clone for Mailbox<T> {
    fn clone(&self) -> Self {
        Self { sender: self.sender.clone(), waker: self.waker.clone() }
    }
}

impl<T> Mailbox<T> {
    /// A mailbox for the thread that `waker` wakes, and that thread's end of it.
    #[must_use]
    pub fn new(waker: Waker) -> (Self, Receiver<T>) {
        let (sender, receiver) = channel();
        (Self { sender, waker }, receiver)
    }

    /// Hands a message over; false when the thread has ended.
    pub fn send(&self, message: T) -> bool {
        let sent = self.sender.send(message).is_ok();
        self.waker.wake();
        sent
    }

    /// Hands a message over without waking anybody: [`Mailbox::wake`] is to follow, unless the sender itself
    /// sees to the message.
    pub fn post(&self, message: T) -> bool {
        self.sender.send(message).is_ok()
    }

    /// Wakes the thread.
    pub fn wake(&self) {
        self.waker.wake();
    }

    /// Asks and waits for the answer, at most this long; `None` when the thread has ended or is stuck.
    pub fn ask<R>(&self, within: Duration, message: impl FnOnce(SyncSender<R>) -> T) -> Option<R> {
        let (reply, answer) = sync_channel(1);
        if !self.send(message(reply)) {
            return None;
        }
        answer.recv_timeout(within).ok()
    }
}
