//! Messages to the one thread that owns a lane, which sleeps in [`LaneQueue::wait`](crate::LaneQueue::wait)
//! and is woken by them. Not for the payload, which never passes between threads.

use crate::lane::Waker;
use crate::lock::lock;
use crate::oneshot;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::TryRecvError;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What both ends share. A list that grows to what is needed and is used again: in steady state none is allocated.
#[derive(Debug)]
struct Shared<T> {
    list: Mutex<List<T>>,
    /// As many as are in the list, so that looking into an empty one takes no lock.
    waiting: AtomicUsize,
    senders: AtomicUsize,
}

#[derive(Debug)]
struct List<T> {
    messages: VecDeque<T>,
    /// The thread has ended.
    is_closed: bool,
}

impl<T> Shared<T> {
    fn post(&self, message: T) -> bool {
        let mut list = lock(&self.list);
        if list.is_closed {
            return false;
        }
        list.messages.push_back(message);
        // In one order with whatever else says that a thread sleeps or looks.
        self.waiting.store(list.messages.len(), Ordering::SeqCst);
        true
    }
}

/// The thread's end of its mailbox.
#[derive(Debug)]
pub struct Letters<T>(Arc<Shared<T>>);

impl<T> Letters<T> {
    /// The oldest message, if there is one; whether somebody can still send one is told where there is none.
    pub fn try_recv(&self) -> Result<T, TryRecvError> {
        if self.0.waiting.load(Ordering::SeqCst) == 0 {
            // Looked at in this order: whoever has sent and gone has raised the number before.
            let is_over =
                self.0.senders.load(Ordering::SeqCst) == 0 && self.0.waiting.load(Ordering::SeqCst) == 0;
            return Err(if is_over { TryRecvError::Disconnected } else { TryRecvError::Empty });
        }
        let mut list = lock(&self.0.list);
        let message = list.messages.pop_front().ok_or(TryRecvError::Empty);
        self.0.waiting.store(list.messages.len(), Ordering::SeqCst);
        message
    }

    /// Refuses all messages from here on. Returns those that were accepted before.
    pub fn close(&self) -> VecDeque<T> {
        let mut list = lock(&self.0.list);
        list.is_closed = true;
        self.0.waiting.store(0, Ordering::SeqCst);
        std::mem::take(&mut list.messages)
    }
}

impl<T> Drop for Letters<T> {
    fn drop(&mut self) {
        // Whoever asked in one of them hears that there is no answer.
        drop(self.close());
    }
}

/// The senders' end. Clones share it.
#[derive(Debug)]
pub struct Mailbox<T> {
    shared: Arc<Shared<T>>,
    waker: Waker,
}

impl<T> Clone for Mailbox<T> {
    fn clone(&self) -> Self {
        self.shared.senders.fetch_add(1, Ordering::SeqCst);
        Self { shared: self.shared.clone(), waker: self.waker.clone() }
    }
}

impl<T> Drop for Mailbox<T> {
    fn drop(&mut self) {
        self.shared.senders.fetch_sub(1, Ordering::SeqCst);
    }
}

impl<T> Mailbox<T> {
    /// A mailbox for the thread that `waker` wakes, and that thread's end of it.
    #[must_use]
    pub fn new(waker: Waker) -> (Self, Letters<T>) {
        let list = Mutex::new(List { messages: VecDeque::new(), is_closed: false });
        let shared = Arc::new(Shared { list, waiting: AtomicUsize::new(0), senders: AtomicUsize::new(1) });
        (Self { shared: shared.clone(), waker }, Letters(shared))
    }

    /// Hands a message over; false when the thread has ended.
    pub fn send(&self, message: T) -> bool {
        let sent = self.shared.post(message);
        self.waker.wake();
        sent
    }

    /// Hands a message over without waking anybody: [`Mailbox::wake`] is to follow, unless the sender itself
    /// sees to the message.
    pub fn post(&self, message: T) -> bool {
        self.shared.post(message)
    }

    /// How many messages wait.
    pub fn waiting(&self) -> usize {
        self.shared.waiting.load(Ordering::SeqCst)
    }

    /// Wakes the thread.
    pub fn wake(&self) {
        self.waker.wake();
    }

    /// Asks and waits for the answer, at most this long; `None` when the thread has ended or is stuck.
    pub fn ask<R>(&self, within: Duration, message: impl FnOnce(oneshot::Sender<R>) -> T) -> Option<R> {
        let (reply, answer) = oneshot::channel();
        if !self.send(message(reply)) {
            return None;
        }
        answer.recv_timeout(within).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LaneQueue;

    #[allow(clippy::unwrap_used, reason = "test code: a panic is a failed test")]
    fn mailbox<T>() -> (Mailbox<T>, Letters<T>) {
        Mailbox::new(LaneQueue::new(4).unwrap().waker())
    }

    #[test]
    fn messages_come_in_order_and_from_all_senders() {
        let (first, letters) = mailbox();
        let second = first.clone();
        assert_eq!(letters.try_recv(), Err(TryRecvError::Empty));
        assert!(first.send(1) && second.post(2) && first.post(3));
        let got: Vec<u32> = std::iter::from_fn(|| letters.try_recv().ok()).collect();
        assert_eq!(got, [1, 2, 3]);
    }

    #[test]
    fn the_thread_hears_that_nobody_is_left_behind_the_last_message() {
        let (first, letters) = mailbox();
        let second = first.clone();
        drop(first);
        assert_eq!(letters.try_recv(), Err(TryRecvError::Empty));
        second.post(1);
        drop(second);
        assert_eq!(letters.try_recv(), Ok(1));
        assert_eq!(letters.try_recv(), Err(TryRecvError::Disconnected));
    }

    #[test]
    fn senders_hear_that_the_thread_has_ended_and_so_does_who_waits_for_an_answer() {
        let (mailbox, letters) = mailbox::<oneshot::Sender<u32>>();
        let (reply, answer) = oneshot::channel();
        mailbox.post(reply);
        drop(letters);
        assert!(answer.recv().is_err(), "the question went with the thread");
        assert_eq!(mailbox.ask(Duration::from_secs(60), |reply| reply), None);
        assert!(!mailbox.post(oneshot::channel().0));
    }

    #[test]
    fn a_mailbox_that_closes_returns_what_it_accepted() {
        let (mailbox, letters) = mailbox();
        assert!(mailbox.post(1) && mailbox.post(2));
        assert_eq!(letters.close(), [1, 2]);
        assert!(!mailbox.post(3));
        assert_eq!(letters.try_recv(), Err(TryRecvError::Empty));
    }

    #[test]
    fn a_list_that_is_emptied_keeps_its_memory() {
        let (mailbox, letters) = mailbox();
        let capacity = |mailbox: &Mailbox<u32>| lock(&mailbox.shared.list).messages.capacity();
        (0..40).for_each(|message| assert!(mailbox.post(message)));
        let grown = capacity(&mailbox);
        for _ in 0..1000 {
            while letters.try_recv().is_ok() {}
            (0..40).for_each(|message| assert!(mailbox.post(message)));
        }
        assert_eq!(capacity(&mailbox), grown);
    }

    #[test]
    fn none_is_lost_between_threads() {
        const EACH: u64 = 20_000;
        let (first, letters) = mailbox();
        let senders: Vec<_> = [first.clone(), first]
            .into_iter()
            .map(|mailbox| std::thread::spawn(move || (0..EACH).for_each(|n| assert!(mailbox.post(n)))))
            .collect();
        let mut sum = 0;
        loop {
            match letters.try_recv() {
                Ok(n) => sum += n,
                Err(TryRecvError::Empty) => std::thread::yield_now(),
                Err(TryRecvError::Disconnected) => break,
            }
        }
        senders.into_iter().for_each(|sender| sender.join().unwrap());
        assert_eq!(sum, EACH * (EACH - 1));
    }
}
