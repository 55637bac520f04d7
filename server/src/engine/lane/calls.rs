//! Calls, as the runtime and workers' batches bring them. What is done with each is decided in [`Calls`].

use super::LaneEngine;
use crate::engine::calls::{CallAnswer, Calls, Desk, RestoredLine};
use crate::engine::command::Commands;
use proto_common::batch::Landing;

impl LaneEngine {
    /// What decides about calls, and what it needs for one input.
    pub(super) fn calls_at_desk<'a>(&'a mut self, out: &'a mut Commands) -> (&'a mut Calls, Desk<'a>) {
        let Self { calls, peers, stats, .. } = self;
        (calls, Desk { peers, stats, out })
    }

    /// Bytes of requests and replies that this lane keeps at most.
    pub fn limit_calls(&mut self, bytes: u64) {
        self.calls.limit(bytes);
    }

    /// Calls in progress or kept.
    #[must_use]
    pub fn calls(&self) -> usize {
        self.calls.len()
    }

    /// Bytes of calls that are kept.
    #[must_use]
    pub fn call_bytes(&self) -> u64 {
        self.calls.bytes()
    }

    /// A handler came or went: the error of calls whose deadline passes says so.
    pub fn set_handler(&mut self, app: u32, is_there: bool) {
        self.calls.set_handler(app, is_there);
    }

    /// This process has taken the place of a failed one: calls to a handler wait at their workers until it is there.
    pub fn take_over(&mut self) {
        self.calls.take_over();
    }

    /// The state of a handler is lost: calls to it are refused.
    pub fn lose_calls(&mut self, app: u32, out: &mut Commands) {
        let (calls, mut desk) = self.calls_at_desk(out);
        calls.lose(app, &mut desk);
    }

    /// What a handler's journal has of its calls; returns the numbers of each line's calls here, in their order.
    pub fn restore_calls(&mut self, app: u32, lines: &[RestoredLine], now_ms: u64) -> Vec<Vec<u64>> {
        self.calls.restore(app, lines, now_ms)
    }

    /// A call's body is whole: the answer to `Command::CallTake`.
    pub fn call_arrived(&mut self, id: u64, out: &mut Commands) {
        let (calls, mut desk) = self.calls_at_desk(out);
        calls.arrived(id, &mut desk);
    }

    /// A handler has answered a call, or let go of it.
    pub fn call_answered(&mut self, id: u64, answer: CallAnswer, out: &mut Commands) {
        let (calls, mut desk) = self.calls_at_desk(out);
        calls.answered(id, answer, &mut desk);
    }

    /// As [`LaneEngine::call_answered`], of a reply whose body was written to its landing already. It is not kept, and the
    /// call changes nothing: a replay runs it again, and then sees what later calls have changed.
    pub fn call_placed(&mut self, id: u64, answer: CallAnswer, out: &mut Commands) {
        let (calls, mut desk) = self.calls_at_desk(out);
        calls.placed(id, answer, &mut desk);
    }

    /// Where a delivered call's reply may be written.
    pub(crate) fn call_landing(&mut self, id: u64) -> Option<Landing> {
        self.calls.landing(id)
    }

    /// A delivered call's body can be read no more, because its channel has ended, and nothing was done: the worker sends it
    /// again, with those after it.
    pub fn call_returned(&mut self, id: u64) {
        self.calls.returned(id);
    }

    /// All of a reply is on its way to where it has room, or cannot be sent: the answer to `Command::CallLand`.
    pub fn call_landed(&mut self, id: u64, is_sent: bool, out: &mut Commands) {
        let (calls, mut desk) = self.calls_at_desk(out);
        calls.landed(id, is_sent, &mut desk);
    }

    /// A call's body cannot be had, because there is no memory for it here.
    pub fn call_failed(&mut self, id: u64, out: &mut Commands) {
        let (calls, mut desk) = self.calls_at_desk(out);
        calls.failed(id, &mut desk);
    }
}
