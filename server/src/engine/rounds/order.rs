//! Which operations on one chunk were taken, of each worker: its contributions count once, and in order. Owns the numbers of
//! operations. It must not know what an operation brings.
//!
//! ```text
//!  a number:  beyond the next: Early        the next one: Fresh ──mark_taken──▶ taken: Repeated
//!                                              ▲                                  │
//!                                              └── reopen: it was lost ───────────┘
//! ```
//!
//! If an operation were taken before those that are before it, a worker's contributions to two rounds could change places.

use super::held::Held;
use crate::engine::numbers::Numbers;
use proto_common::ids::{Operation, Rank};
use std::cmp::Ordering;

/// How an operation's number stands to those that its worker sent before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Number {
    /// It is the next one.
    Fresh,
    /// It came before, and was taken.
    Repeated,
    /// One before it has not come.
    Early,
}

/// An operation that was taken, and then lost with the channel that its payload was read over, or that came without the initial
/// value that its worker was asked for since: when it is sent again it is new.
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
    /// Last operation taken, by worker.
    taken: Numbers,
    /// Operations up to those that must be sent again. Never more than workers have under way.
    reopened: Vec<Reopened>,
}

impl Order {
    pub(super) fn new(workers: u32) -> Self {
        Self { taken: Numbers::new(workers), reopened: Vec::new() }
    }

    /// Is this operation its worker's next one? One that was lost goes before all behind it, taken or not. Those before
    /// `first_open` have been answered, here or by a server that had the chunk before.
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

    /// An operation is taken, or refused for good: it is not awaited any more.
    pub(in crate::engine) fn mark_taken(&mut self, rank: Rank, operation: Operation) {
        self.taken.raise(rank, operation.0);
        self.reopened.retain(|open| open.rank != rank || open.operation != operation);
    }

    /// A contribution was lost: its operation must be sent again.
    pub(super) fn reopen(&mut self, held: &Held) {
        let Held { rank, round, operation, .. } = *held;
        self.reopened.push(Reopened { rank, operation, round });
    }

    /// A worker is asked for its initial value, which it did not send with this operation: the operation must be sent again. Nothing is
    /// reduced before, or a round could be made of zeros.
    pub(in crate::engine) fn ask_initial(&mut self, rank: Rank, operation: Operation) {
        let asked = Reopened { rank, operation, round: 0 };
        if !self.reopened.contains(&asked) {
            self.reopened.push(asked);
        }
    }

    /// Is the initial value to come, or to be sent again?
    pub(super) fn awaits_initial(&self) -> bool {
        self.reopened.iter().any(|open| open.round == 0)
    }

    /// Is an operation of the same worker to be sent again that is before this contribution's?
    pub(super) fn awaits_before(&self, held: &Held) -> bool {
        self.reopened.iter().any(|open| open.rank == held.rank && open.operation < held.operation)
    }

    /// A worker's numbers begin anew, and what it was to send again is not awaited.
    pub(super) fn forget(&mut self, rank: Rank) {
        self.taken.forget(rank);
        self.reopened.retain(|open| open.rank != rank);
    }

    /// What is sent again is new: a worker says how far its operations are.
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
