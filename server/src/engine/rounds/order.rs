//! Which operations of each worker on one chunk were taken, so that each contribution counts once, and in order. Owns the numbers of
//! operations. It must not know the payload of an operation.
//!
//! ```text
//!  a number:  beyond the next: Early        the next one: Fresh ──mark_taken──▶ taken: Repeated
//!                                              ▲                                  │
//!                                              └── reopen: it was lost ───────────┘
//! ```
//!
//! If an operation were taken before an earlier one, a worker's contributions to two rounds could be exchanged.

use super::held::Held;
use crate::engine::numbers::Numbers;
use proto_common::ids::{Operation, Rank};
use std::cmp::Ordering;

/// An operation's number, compared with those that its worker sent before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Number {
    /// It is the next one.
    Fresh,
    /// It was taken before.
    Repeated,
    /// An earlier one has not arrived.
    Early,
}

/// An operation that counts as new when it is sent again: its payload was lost with the channel over which it was read, or it had no
/// initial value, for which its worker was asked since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reopened {
    rank: Rank,
    operation: Operation,
    /// As of [`Held`].
    round: u64,
}

/// See the module.
#[derive(Debug)]
pub(in crate::engine) struct Order {
    /// The last operation that was taken, by worker.
    taken: Numbers,
    /// Operations that must be sent again. Never more than workers have in flight.
    reopened: Vec<Reopened>,
}

impl Order {
    pub(super) fn new(workers: u32) -> Self {
        Self { taken: Numbers::new(workers), reopened: Vec::new() }
    }

    /// Is this operation its worker's next one? A lost operation precedes all later ones, whether these were taken or not. Operations
    /// before `first_open` have been answered, here or by the server that had the chunk before.
    pub(in crate::engine) fn number(
        &mut self,
        rank: Rank,
        operation: Operation,
        first_open: Operation,
    ) -> Number {
        self.taken.raise(rank, first_open.0.saturating_sub(1));
        self.reopened.retain(|open| open.rank != rank || open.operation >= first_open);
        let lost = self.reopened.iter().filter(|open| open.rank == rank).map(|open| open.operation).min();
        let next = lost.unwrap_or(Operation(self.taken.of(rank).saturating_add(1)));
        match operation.cmp(&next) {
            Ordering::Less => Number::Repeated,
            Ordering::Equal => Number::Fresh,
            Ordering::Greater => Number::Early,
        }
    }

    /// An operation is taken, or refused finally. It is not awaited any more.
    pub(in crate::engine) fn mark_taken(&mut self, rank: Rank, operation: Operation) {
        self.taken.raise(rank, operation.0);
        self.reopened.retain(|open| open.rank != rank || open.operation != operation);
    }

    /// A contribution was lost: its operation must be sent again.
    pub(super) fn reopen(&mut self, held: &Held) {
        let Held { rank, round, operation, .. } = *held;
        self.reopened.push(Reopened { rank, operation, round });
    }

    /// A worker is asked for its initial value, which it did not send with this operation. It must send the operation again. Nothing is
    /// reduced before; otherwise a round could start from zeros.
    pub(in crate::engine) fn ask_initial(&mut self, rank: Rank, operation: Operation) {
        let asked = Reopened { rank, operation, round: 0 };
        if !self.reopened.contains(&asked) {
            self.reopened.push(asked);
        }
    }

    /// Must the initial value be sent, or sent again?
    pub(super) fn awaits_initial(&self) -> bool {
        self.reopened.iter().any(|open| open.round == 0)
    }

    /// Must the worker send an operation again that precedes this contribution's?
    pub(super) fn awaits_before(&self, held: &Held) -> bool {
        self.reopened.iter().any(|open| open.rank == held.rank && open.operation < held.operation)
    }

    /// A worker's numbers begin anew. Operations that it had to send again are not awaited any more.
    pub(super) fn forget(&mut self, rank: Rank) {
        self.taken.forget(rank);
        self.reopened.retain(|open| open.rank != rank);
    }

    /// Operations that are sent again count as new: each worker reports which of its operations were answered.
    pub(super) fn clear(&mut self) {
        self.reopened.clear();
        self.taken.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::command::Source;

    #[test]
    fn an_operation_is_taken_in_order_and_once_and_again_only_if_it_was_lost() {
        let (mut order, rank) = (Order::new(2), Rank(1));
        let number = |order: &mut Order, operation| order.number(rank, Operation(operation), Operation(1));
        assert_eq!((number(&mut order, 2), number(&mut order, 1)), (Number::Early, Number::Fresh));
        (1..4).for_each(|operation| order.mark_taken(rank, Operation(operation)));
        assert_eq!((number(&mut order, 3), number(&mut order, 4)), (Number::Repeated, Number::Fresh));
        let (round, operation, from) = (0, Operation(2), Source::Spill(0));
        let lost = Held { rank, round, operation, bytes: 4, from, arrived: false };
        order.reopen(&lost);
        assert!(order.awaits_initial() && order.awaits_before(&Held { operation: Operation(3), ..lost }));
        assert!(!order.awaits_before(&lost));
        assert_eq!((number(&mut order, 2), number(&mut order, 4)), (Number::Fresh, Number::Early));
        order.mark_taken(rank, operation);
        assert_eq!((number(&mut order, 2), number(&mut order, 4)), (Number::Repeated, Number::Fresh));
        assert_eq!(
            order.number(rank, Operation(9), Operation(9)),
            Number::Fresh,
            "those before are answered"
        );
        order.forget(rank);
        assert_eq!(number(&mut order, 1), Number::Fresh);
    }
}
