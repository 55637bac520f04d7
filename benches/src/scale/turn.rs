//! One turn of a simulated process on a core: what it costs and what it sends, when.

use super::loggp::{LogGp, Worked, whole};
use super::message::{Message, Payload};
use fabric::sim::Rng;
use proto_common::ids::Rank;
use thiserror::Error;

/// Bytes that one turn takes from its channels, and messages: the tcp driver's bounds of one poll.
const TURN_BYTES_MAX: u64 = 1 << 20;
const TURN_MESSAGES_MAX: usize = 256;

/// The model cannot go on.
#[derive(Debug, Error)]
pub(crate) enum ModelError {
    /// The start-up failed.
    #[error("the scheduler refused the cluster: {reason}; take a smaller one")]
    Scheduler {
        /// What it said.
        reason: String,
    },
    /// A server took a worker for hostile.
    #[error("server {server} expelled worker {worker}: {reason}; an engine is broken, or the model is")]
    Expelled {
        /// The server that closed the channel.
        server: Rank,
        /// The worker at the other end.
        worker: Rank,
        /// The reason.
        reason: String,
    },
    /// A worker took a server for hostile.
    #[error("worker {worker} left server {server}: {reason}; an engine is broken, or the model is")]
    Closed {
        /// The worker that closed the channel.
        worker: Rank,
        /// The server at the other end.
        server: Rank,
        /// The reason.
        reason: String,
    },
    /// An operation failed.
    #[error("an operation of worker {worker} failed: {reason}")]
    Failed {
        /// Whose.
        worker: Rank,
        /// Why.
        reason: String,
    },
    /// What the engines asked for has no cost in the model.
    #[error("the model has no {what}; simulate the placement `slot`")]
    NotModelled {
        /// What.
        what: &'static str,
    },
    /// Nothing is to happen any more, and rounds are not over.
    #[error("all {waiting} workers that have not ended wait for ever: the engines are stuck")]
    Stuck {
        /// How many.
        waiting: usize,
    },
}

/// A turn in progress. Time passes by work only.
pub(super) struct Turn<'a> {
    model: &'a LogGp,
    rng: &'a mut Rng,
    process: u32,
    start_ns: u64,
    used_ns: f64,
    worked: Worked,
    taken: usize,
    /// Messages with the time at which they leave.
    pub(super) sent: &'a mut Vec<(u64, Message)>,
}

impl<'a> Turn<'a> {
    pub(super) fn new(
        model: &'a LogGp,
        rng: &'a mut Rng,
        process: u32,
        start_ns: u64,
        sent: &'a mut Vec<(u64, Message)>,
    ) -> Self {
        Self { model, rng, process, start_ns, used_ns: 0.0, worked: Worked::default(), taken: 0, sent }
    }

    fn work(&mut self, worked: Worked) {
        self.used_ns += worked.cost_ns(&self.model.prices);
        self.worked.add(&worked);
    }

    /// It slept before.
    pub(super) fn wake(&mut self) {
        self.work(Worked { wakes: 1, ..Worked::default() });
    }

    /// May it take another message?
    pub(super) fn may_take(&self) -> bool {
        self.taken < TURN_MESSAGES_MAX && self.worked.taken_bytes < TURN_BYTES_MAX
    }

    /// A message is taken in.
    pub(super) fn take(&mut self, bytes: u64) {
        self.taken += 1;
        self.draw();
        self.work(Worked { messages: 1, taken_bytes: bytes, ..Worked::default() });
    }

    /// The engine goes through so many blocks of a batch.
    pub(super) fn blocks(&mut self, count: usize) {
        self.work(Worked { blocks: count as u64, ..Worked::default() });
    }

    /// The data thread goes once over so many bytes.
    pub(super) fn reduce(&mut self, bytes: u64) {
        self.work(Worked { reduced_bytes: bytes, ..Worked::default() });
    }

    /// The data thread copies so many bytes aside.
    pub(super) fn spill(&mut self, bytes: u64) {
        self.work(Worked { spilled_bytes: bytes, ..Worked::default() });
    }

    /// A message leaves when the CPU is through with it.
    pub(super) fn send(&mut self, to: u32, bytes: u64, payload: Payload) {
        self.draw();
        self.work(Worked { messages: 1, sent_bytes: bytes, ..Worked::default() });
        let message = Message { from: self.process, to, bytes, payload };
        self.sent.push((self.now_ns(), message));
    }

    /// What this message takes beyond its overhead.
    fn draw(&mut self) {
        if self.model.jitter > 0.0 {
            let share = self.rng.below(1 << 20) as f64 / f64::from(1 << 20);
            self.used_ns += self.model.prices.message * self.model.jitter * share;
        }
    }

    /// What was done so far.
    pub(super) fn worked(&self) -> Worked {
        self.worked
    }

    pub(super) fn now_ns(&self) -> u64 {
        self.start_ns + whole(self.used_ns)
    }

    /// The engines' clock.
    pub(super) fn now_ms(&self) -> u64 {
        self.now_ns() / 1_000_000
    }
}
