//! Calls to handlers of a server whose process has failed, in a job with replicas: they wait for the next process of the server. Another
//! server has a journal of each handler with a state. The next process handles the requests of that journal again before it takes new
//! ones, so each call is executed once.
//!
//! ```text
//!            server_gone                       server_up
//!  sent ───────────────────▶ waits, again ───────────────▶ sent, marked `Again`
//!  waiting ────────────────▶ waits ──────────────────────▶ sent
//!                              │
//!                              └─ deadline ─▶ its caller hears of it; a number is left ─▶ sent, marked `Corrupt`
//! ```
//!
//! **Numbers.** When a call fails while its server has no process, the operation ends at once: no server uses its memory. Its number is
//! kept, and the next process receives it without the request. If the number were dropped, two things could go wrong:
//!
//! - If a process has received the call, its request may be in the journal. The lowest open number acknowledges all answers before it.
//!   If the worker dropped the number, it would acknowledge a request that the next process is still handling again, and the server
//!   closes the channel of a worker that acknowledges a call without an answer.
//! - If an older call is open, the server returns all calls after a missing number until the older one has its answer. If the handler
//!   answers the older call only after a later one, both would wait until their deadlines.
//!
//! A number that was never sent, and is behind no call that a caller waits for, does neither, so it is dropped. That bounds the numbers
//! that are kept: those that were sent lie within one window ([`CALLS_IN_FLIGHT_MAX`](proto_common::call::CALLS_IN_FLIGHT_MAX)), and
//! those behind an open call lie within the window of that call.
//!
//! Calls to tables are not kept. Other servers have replicas of a table's rows, so they fail at once, and the client asks the server
//! that has the rows now.

use super::LaneEngine;
use crate::engine::command::Commands;
use crate::engine::link::Link;
use crate::engine::op::Op;
use crate::engine::part::{At, Part};
use proto_common::call::called;
use proto_common::ids::Rank;
use proto_common::table::table_of;

impl LaneEngine {
    /// Does this part wait for the next process if its server fails?
    pub(super) fn is_kept(&self, part: &Part) -> bool {
        let is_handler = |(app, _)| table_of(app).is_none();
        self.config.keeps_calls
            && self.ops.get(part.op).is_some_and(Op::is_call)
            && called(part.spec.id).is_some_and(is_handler)
    }

    /// Handler and server of a part that waits for the next process.
    pub(super) fn next_process(&self, part: &Part) -> Option<(u32, Rank)> {
        let link = self.links.get(part.spec.server.0 as usize)?;
        called(part.spec.id).filter(|_| link.has_exited() && self.is_kept(part))
    }

    /// The process of a part's server has failed.
    pub(super) fn keep(&mut self, index: u32, out: &mut Commands) {
        let Some(part) = self.parts.get_mut(index) else { return };
        part.outlive();
        if self.ops.get(part.op).is_some_and(Op::has_failed) {
            self.leave_number(index, out);
        }
    }

    /// An operation has failed at its deadline. If it is a call and its server has no channel, no server uses its memory, and the next
    /// process must not execute it.
    pub(super) fn end_unreachable(&mut self, op: u32, out: &mut Commands) {
        let is_up = |part: &Part| self.links.get(part.spec.server.0 as usize).is_some_and(Link::is_up);
        let part = self.parts.iter().find(|(_, part)| part.op == op);
        let part = part.filter(|(_, part)| self.is_kept(part) && !is_up(part));
        if let Some((index, _)) = part {
            self.leave_number(index, out);
        }
    }

    /// A failed call whose server has no channel ends, and its number is kept. See the module.
    fn leave_number(&mut self, index: u32, out: &mut Commands) {
        let Some(part) = self.parts.get_mut(index) else { return };
        part.give_up();
        let (at, server) = (part.chunk, part.spec.server);
        if let Some(op) = self.ops.get_mut(part.op) {
            op.end_early(self.now_ms, &mut self.stats, out);
        }
        self.forget_numbers(at, server);
    }

    /// Drops numbers that no process has received, as far as no open call is before them. No part of the chunk is in flight.
    fn forget_numbers(&mut self, at: At, server: Rank) {
        let Self { chunks, parts, links, ops, .. } = self;
        let numbers = chunks[at].waiting().map_while(|index| {
            let part = parts.get(index).filter(|part| part.is_given_up());
            part.map(|part| (index, part.was_sent()))
        });
        let unknown: Vec<u32> = numbers.filter(|(_, was_sent)| !was_sent).map(|(index, _)| index).collect();
        if unknown.is_empty() {
            return;
        }
        // If a place in the queue outlived its part, another part with the same index would be sent in its place.
        if let Some(link) = links.get_mut(server.0 as usize) {
            link.retain(|index| parts.get(index).is_some_and(|part| part.chunk != at));
        }
        for index in unknown {
            let op = parts.remove(index).and_then(|part| ops.remove(part.op));
            if let Some(op) = op {
                chunks[at].forget(index, op.submit.operation);
            }
        }
        chunks[at].dequeue();
        self.enqueue(at);
    }
}
