//! How long an operation waits for other workers. It must not know whether they are alive: the scheduler does.
//!
//! A server answers at an operation's own time (`deadlines.operation_ms`) and names whom it waits for. What follows depends on whom:
//!
//! | it waits for | then |
//! | --- | --- |
//! | servers, a checkpoint, this worker itself, or it does not answer | the operation fails |
//! | other workers | a warning names them, and the operation is sent again with new time, until it has waited for `busy_ms` |
//!
//! An operation that is sent again counts once. If a worker that is waited for is silent or fails, the scheduler decides: the job ends,
//! rounds continue without it, or it may rejoin within `deadlines.rejoin_ms` (`cluster.worker_loss`). So `busy_ms` is a bound for workers
//! that are alive. Without this rule, a worker that evaluates for a minute would end the training of all others.
//!
//! Operations that wait in this lane behind such an operation, on the same chunk, get the new time, too. No server has received them, so
//! none can answer at their deadline.

use super::LaneEngine;
use crate::engine::command::{Command, Commands};
use crate::engine::op::Op;
use crate::engine::part::{At, Part};
use proto_common::batch::Status;
use proto_common::ids::Rank;
use proto_common::message::WaitCause;

impl LaneEngine {
    /// A server has answered at the deadline of an operation that it took. True if the part is sent again.
    pub(super) fn asks_again(
        &mut self,
        (index, part): (u32, Part),
        status: Status,
        on: Vec<Rank>,
        out: &mut Commands,
    ) -> bool {
        let cause = match status {
            Status::DeadlineWaiting => WaitCause::Contributions,
            Status::DeadlineReading => WaitCause::Readers,
            Status::DeadlineBehind => WaitCause::Bound,
            _ => return false,
        };
        let waits = self.wait_on(part.op, (cause, on), out);
        if waits {
            self.requeue(index, part);
            self.enqueue(part.chunk);
            self.extend_behind(part.chunk);
        }
        waits
    }

    /// A server could not take an operation within its time. True if the operation has more time, because the servers of all of its parts
    /// wait for other workers.
    pub(super) fn keeps_asking(&mut self, index: u32, out: &mut Commands) -> bool {
        let Some(on) = self.ops.get(index).and_then(Op::awaited) else { return false };
        let waits = self.wait_on(index, (WaitCause::Contributions, on), out);
        if waits {
            let parts = self.parts.iter().filter(|(_, part)| part.op == index);
            let chunks: Vec<At> = parts.map(|(_, part)| part.chunk).collect();
            chunks.into_iter().for_each(|at| self.extend_behind(at));
        }
        waits
    }

    /// Operations with parts that wait on this chunk get new time.
    fn extend_behind(&mut self, at: At) {
        let Self { chunks, parts, ops, now_ms, .. } = self;
        for part in chunks[at].waiting() {
            if let Some(op) = parts.get(part).and_then(|part| ops.get_mut(part.op)) {
                op.extend(*now_ms);
            }
        }
    }

    /// The time of an operation is over, and it waits for these workers. True if it has more.
    fn wait_on(&mut self, index: u32, (cause, on): (WaitCause, Vec<Rank>), out: &mut Commands) -> bool {
        let (rank, now_ms) = (self.config.rank, self.now_ms);
        let Some(op) = self.ops.get_mut(index) else { return false };
        let waits = on.iter().any(|other| *other != rank) && op.extend(now_ms);
        if waits {
            let (op, waited_ms) = (op.submit.op, op.waited_ms(now_ms));
            out.list.push(Command::Waits { op, waited_ms, cause, on });
        }
        waits
    }
}
