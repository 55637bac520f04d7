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
//! rounds go on without it, or it may rejoin within `deadlines.rejoin_ms` (`cluster.worker_loss`). So `busy_ms` is a bound for workers
//! that are alive. Without this rule, a worker that evaluates for a minute would end the training of all others.

use super::LaneEngine;
use crate::engine::command::{Command, Commands};
use crate::engine::part::Part;
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
            self.enqueue(part.spec.id);
        }
        waits
    }

    /// The time of an operation is over, and it waits for these workers. True if it has more.
    pub(super) fn wait_on(
        &mut self,
        index: u32,
        (cause, on): (WaitCause, Vec<Rank>),
        out: &mut Commands,
    ) -> bool {
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
