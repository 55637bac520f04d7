//! Weights that a trainer reads in place, and which of a tensor's it still reads. Servers keep what they showed
//! as it is until a message says that it is not read any more; each operation on the tensor says what is.

use fabric::{View, lock};
use proto_common::batch::{Kept, Reading};
use proto_common::ids::{Operation, Version};
use std::sync::{Arc, Mutex};

/// Lists of pieces kept for the next operations, so that those allocate none.
const SPARE_MAX: usize = 4;

/// A piece of a tensor's weights, with the bytes before it in the tensor.
pub(crate) type Piece = (u64, View);

#[derive(Debug, Default)]
struct State {
    /// Operations whose weights are, or will be, read, with the version they were shown. Bounded by the operations and
    /// views that the trainer holds.
    operations: Vec<(Operation, Option<Version>)>,
    spare: Vec<Vec<Piece>>,
    /// Operations on the tensor whose buffers nobody has taken back.
    under_way: usize,
}

/// What of one tensor's weights is shown.
#[derive(Clone, Debug, Default)]
pub(crate) struct Viewing(Arc<Mutex<State>>);

impl Viewing {
    /// What is read while this operation begins.
    pub(crate) fn reading(&self, next: Operation) -> Reading {
        let state = lock(&self.0);
        let unanswered = state.operations.iter().filter(|(_, version)| version.is_none());
        let from = unanswered.map(|(operation, _)| *operation).min().unwrap_or(next);
        let kept =
            state.operations.iter().filter_map(|(_, version)| *version).fold(Kept::None, |kept, version| {
                match kept {
                    Kept::None => Kept::Version(version),
                    Kept::Version(other) if other == version => kept,
                    _ => Kept::All,
                }
            });
        Reading { from, kept }
    }

    /// An operation on the tensor begins.
    pub(crate) fn busy(&self) -> Busy {
        lock(&self.0).under_way += 1;
        Busy(self.clone())
    }

    /// May an operation be under way?
    pub(crate) fn is_busy(&self) -> bool {
        lock(&self.0).under_way > 0
    }

    /// An operation is about to ask for weights in so many pieces.
    pub(crate) fn begin(&self, operation: Operation, pieces: usize) -> Shown {
        let mut state = lock(&self.0);
        state.operations.push((operation, None));
        let mut list = state.spare.pop().unwrap_or_default();
        drop(state);
        list.reserve(pieces);
        Shown { viewing: self.clone(), operation, pieces: list }
    }
}

/// An operation on a tensor, until its buffers are taken back.
#[derive(Debug)]
pub(crate) struct Busy(Viewing);

impl Drop for Busy {
    fn drop(&mut self) {
        let mut state = lock(&self.0.0);
        state.under_way = state.under_way.saturating_sub(1);
    }
}

/// What one operation is shown. Dropped, it is not read any more.
#[derive(Debug)]
pub(crate) struct Shown {
    viewing: Viewing,
    operation: Operation,
    /// In the order in which they came.
    pub(crate) pieces: Vec<Piece>,
}

impl Shown {
    /// All of it has come, and is of this version.
    pub(crate) fn is_of(&self, version: Version) {
        let mut state = lock(&self.viewing.0);
        let mine = state.operations.iter_mut().find(|(operation, _)| *operation == self.operation);
        if let Some((_, shown)) = mine {
            *shown = Some(version);
        }
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        let mut pieces = std::mem::take(&mut self.pieces);
        pieces.clear();
        let mut state = lock(&self.viewing.0);
        if let Some(at) = state.operations.iter().position(|(operation, _)| *operation == self.operation) {
            state.operations.swap_remove(at);
        }
        if state.spare.len() < SPARE_MAX {
            state.spare.push(pieces);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fabric::PeerWritable;

    #[test]
    fn what_is_read_is_said_by_version_and_what_is_to_come_by_operation() {
        let viewing = Viewing::default();
        let reading = |next, from, kept| {
            let expected = Reading { from: Operation(from), kept };
            assert_eq!(viewing.reading(Operation(next)), expected);
        };
        reading(1, 1, Kept::None);
        let (first, second) = (viewing.begin(Operation(3), 1), viewing.begin(Operation(5), 1));
        reading(6, 3, Kept::None);
        first.is_of(Version(7));
        reading(6, 5, Kept::Version(Version(7)));
        second.is_of(Version(7));
        reading(6, 6, Kept::Version(Version(7)));
        let third = viewing.begin(Operation(6), 1);
        third.is_of(Version(8));
        reading(7, 7, Kept::All);
        drop((first, second));
        reading(8, 8, Kept::Version(Version(8)));
        drop(third);
        reading(9, 9, Kept::None);
    }

    #[test]
    fn a_tensor_is_busy_as_long_as_an_operation_has_its_buffers() {
        let viewing = Viewing::default();
        let (first, second) = (viewing.busy(), viewing.busy());
        drop(first);
        assert!(viewing.is_busy());
        drop(second);
        assert!(!viewing.is_busy());
    }

    #[test]
    fn the_next_operation_allocates_no_list() {
        let viewing = Viewing::default();
        let lent = Arc::new(PeerWritable::allocate(64, "weights").unwrap());
        let mut first = viewing.begin(Operation(1), 3);
        first.pieces.push((0, lent.into()));
        let list = first.pieces.as_ptr();
        drop(first);
        let second = viewing.begin(Operation(2), 3);
        assert!(second.pieces.is_empty() && second.pieces.as_ptr() == list);
    }
}
