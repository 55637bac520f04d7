//! What callers and data threads share of operations that have ended, kept for those to come: a steady round allocates
//! none.

use super::op::{OpBuffers, OpState};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

/// As many are kept; more operations than these in flight allocate.
const KEPT_MAX: usize = 4096;

/// States of operations that their callers have seen end. Nobody waits for its lock: who meets another one there
/// allocates, or lets go.
#[derive(Debug, Default)]
pub(crate) struct OpStates(Mutex<VecDeque<Arc<OpState>>>);

/// A state that nobody else has yet. Its buffers are filled in place, because moving them takes longer than the rest of what happens here.
#[derive(Debug)]
pub(crate) struct NewState(Arc<OpState>);

impl NewState {
    pub(crate) fn buffers(&mut self) -> &mut OpBuffers {
        match Arc::get_mut(&mut self.0) {
            Some(state) => state.own_buffers(),
            // Invariant: it was made or found without another owner, and `share` consumes it.
            None => unreachable!("a new state has one owner"),
        }
    }

    /// From now on lanes may have it, too.
    pub(crate) fn share(self) -> Arc<OpState> {
        self.0
    }
}

impl OpStates {
    /// One for an operation that this many lanes work on.
    pub(crate) fn take(&self, lanes: u32) -> NewState {
        // The one that was given back first: a lane may still be about to let go of the last one.
        let kept = self.0.try_lock().ok().and_then(|mut kept| kept.pop_front());
        if let Some(mut kept) = kept
            && let Some(state) = Arc::get_mut(&mut kept)
        {
            state.renew(lanes);
            return NewState(kept);
        }
        NewState(OpState::new(lanes))
    }

    /// Takes one back whose operation has ended, and whose buffers were taken.
    pub(crate) fn give_back(&self, state: Arc<OpState>) {
        if let Ok(mut kept) = self.0.try_lock()
            && kept.len() < KEPT_MAX
        {
            kept.push_back(state);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_comes_again_as_new_once_nobody_else_has_it() {
        let states = OpStates::default();
        let first = states.take(1).share();
        let place = Arc::as_ptr(&first);
        first.lane_done(Ok(7), fabric::Fenced::answered());
        assert!(first.poll().is_some());
        states.give_back(first);
        let again = states.take(2).share();
        assert_eq!(Arc::as_ptr(&again), place);
        assert!(again.poll().is_none(), "nothing of the operation before is left");
        again.lane_done(Ok(1), fabric::Fenced::answered());
        assert!(again.poll().is_none(), "it has two lanes");
    }

    #[test]
    fn a_state_that_a_lane_still_has_is_not_used_again() {
        let states = OpStates::default();
        let first = states.take(1).share();
        let of_lane = Arc::clone(&first);
        states.give_back(first);
        let other = states.take(1).share();
        assert!(!Arc::ptr_eq(&of_lane, &other));
        assert!(states.0.lock().unwrap().is_empty(), "it goes with the lane's");
    }

    #[test]
    fn no_more_are_kept_than_the_bound_says() {
        let states = OpStates::default();
        for _ in 0..=KEPT_MAX {
            states.give_back(OpState::new(1));
        }
        assert_eq!(states.0.lock().unwrap().len(), KEPT_MAX);
    }
}
