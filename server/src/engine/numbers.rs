//! One counter for each worker, for one chunk. Workers continue together as a rule, so a byte each says how far it is beyond a base that
//! they share: a lane has such counters for every chunk, of up to a thousand workers. Those of a chunk that nobody has used take no
//! memory.
//!
//! ```text
//! Zero ──first raise──► Near: base, a byte for each ──two lie too far apart──► Far: a number for each
//!  ▲                                                                            │
//!  └─────────────────────────────────── clear ──────────────────────────────────┘
//! ```

use proto_common::ids::Rank;

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    Zero,
    /// A byte of 0 says 0, any other one is added to the base.
    Near {
        base: u64,
        steps: Box<[u8]>,
    },
    Far(Box<[u64]>),
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Numbers {
    workers: u32,
    state: State,
}

impl Numbers {
    /// All zero.
    pub(super) fn new(workers: u32) -> Self {
        Self { workers, state: State::Zero }
    }

    pub(super) fn workers(&self) -> u32 {
        self.workers
    }

    #[inline]
    pub(super) fn of(&self, rank: Rank) -> u64 {
        let at = rank.0 as usize;
        match &self.state {
            State::Zero => 0,
            State::Near { base, steps } => match steps.get(at).copied().unwrap_or(0) {
                0 => 0,
                step => base + u64::from(step),
            },
            State::Far(numbers) => numbers.get(at).copied().unwrap_or(0),
        }
    }

    /// A worker's number becomes at least this.
    #[inline]
    pub(super) fn raise(&mut self, rank: Rank, to: u64) {
        if let State::Near { base, steps } = &mut self.state
            && let Some(step) = steps.get_mut(rank.0 as usize)
            && let Some(new) = to.checked_sub(*base)
            && new <= u64::from(u8::MAX)
            && new > 0
        {
            *step = (*step).max(new as u8);
            return;
        }
        if to <= self.of(rank) || rank.0 >= self.workers {
            return;
        }
        self.set_far_off(rank, to);
    }

    /// Sets a number that no byte beyond the base says.
    fn set_far_off(&mut self, rank: Rank, to: u64) {
        if let State::Far(numbers) = &mut self.state {
            numbers[rank.0 as usize] = to;
            return;
        }
        let others =
            || self.all().filter(|(other, number)| *other != rank && *number > 0).map(|(_, number)| number);
        let (least, most) =
            others().fold((to, to), |(least, most), number| (least.min(number), most.max(number)));
        let number = |other: Rank| if other == rank { to } else { self.of(other) };
        let ranks = (0..self.workers).map(Rank);
        let base = least - 1;
        let step = |number: u64| if number == 0 { 0 } else { (number - base) as u8 };
        self.state = if most - base > u64::from(u8::MAX) {
            State::Far(ranks.map(number).collect())
        } else {
            State::Near { base, steps: ranks.map(|rank| step(number(rank))).collect() }
        };
    }

    /// A worker's number is 0 again.
    pub(super) fn forget(&mut self, rank: Rank) {
        let at = rank.0 as usize;
        match &mut self.state {
            State::Zero => {}
            State::Near { steps, .. } => steps.get_mut(at).into_iter().for_each(|step| *step = 0),
            State::Far(numbers) => numbers.get_mut(at).into_iter().for_each(|number| *number = 0),
        }
    }

    pub(super) fn clear(&mut self) {
        self.state = State::Zero;
    }

    /// Of each worker.
    pub(super) fn all(&self) -> impl Iterator<Item = (Rank, u64)> + '_ {
        (0..self.workers).map(Rank).map(|rank| (rank, self.of(rank)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn workers_that_go_on_together_need_a_byte_each() {
        let mut numbers = Numbers::new(3);
        assert_eq!(numbers.state, State::Zero);
        for round in 1..1000 {
            (0..3).for_each(|rank| numbers.raise(Rank(rank), round));
            assert!(matches!(numbers.state, State::Near { .. }), "round {round}");
        }
        // A worker rejoins and begins anew, beside others that are far ahead.
        numbers.forget(Rank(1));
        assert!(matches!(numbers.state, State::Near { .. }) && numbers.of(Rank(1)) == 0);
        numbers.raise(Rank(1), 1);
        assert_eq!(numbers.all().map(|(_, number)| number).collect::<Vec<_>>(), [999, 1, 999]);
    }

    proptest! {
        /// Whatever the steps, they are what a plain list of numbers would be.
        #[test]
        fn they_are_what_a_plain_list_would_be(
            steps in proptest::collection::vec((0u32..5, prop_oneof![0u64..4, 0u64..300, 0u64..5000, Just(u64::MAX)], 0u8..20), 0..200)
        ) {
            let (mut numbers, mut plain) = (Numbers::new(4), [0u64; 4]);
            for (rank, to, what) in steps {
                match (what, plain.get_mut(rank as usize)) {
                    (0, _) => (numbers.clear(), plain = [0; 4]).0,
                    (1, Some(number)) => (numbers.forget(Rank(rank)), *number = 0).0,
                    (_, Some(number)) => (numbers.raise(Rank(rank), to), *number = to.max(*number)).0,
                    (_, None) => numbers.raise(Rank(rank), to),
                }
                prop_assert_eq!(numbers.all().map(|(_, number)| number).collect::<Vec<_>>(), plain);
                prop_assert_eq!(numbers.of(Rank(4)), 0);
            }
        }
    }
}
