//! A chunk's rule: the one in force, and those of rounds to come. It must not compute.

use super::error::StorageError;
use super::typed::{Round, Typed};
use proto_common::element::Dtype;
use proto_common::optimizer::{Optimizer, Rule, Step};
use serde::{Deserialize, Serialize};

/// Changes that may wait for their round. Workers name rounds that they have not contributed to, which are few ahead.
const CHANGES_MAX: usize = 16;

/// See the module.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct CurrentRule {
    optimizer: Optimizer,
    /// Whose arrays there are: another one's only while they are exchanged.
    kept: Optimizer,
    /// The round after which what the rule keeps began.
    begun: u64,
    /// By their first round.
    changes: Vec<(u64, Optimizer)>,
}

impl CurrentRule {
    pub(super) fn new(optimizer: Optimizer) -> Self {
        Self { optimizer, kept: optimizer, begun: 0, changes: Vec::new() }
    }

    pub(super) fn needs_norms(&self) -> bool {
        self.optimizer.needs_norms()
    }

    /// Would a change from this round on be taken?
    pub(super) fn has_room(&self, from_round: u64) -> Result<(), StorageError> {
        let replaces = self.changes.iter().any(|(round, _)| *round == from_round);
        if replaces || self.changes.len() < CHANGES_MAX {
            Ok(())
        } else {
            Err(StorageError::TooManyChanges(CHANGES_MAX))
        }
    }

    /// From a round on, another rule; the last one said of a round counts.
    pub(super) fn change(&mut self, from_round: u64, to: Optimizer) -> Result<(), StorageError> {
        self.has_room(from_round)?;
        match self.changes.binary_search_by_key(&from_round, |(round, _)| *round) {
            Ok(at) => self.changes[at].1 = to,
            Err(at) => self.changes.insert(at, (from_round, to)),
        }
        Ok(())
    }

    /// Is it one that a chunk can have? An image comes from outside.
    pub(super) fn is_sound(&self, dtype: Dtype) -> bool {
        let sound = |rule: &Optimizer| {
            let computes = match rule.rule {
                Rule::Own(_) => dtype.of_sums() == Dtype::F32,
                _ => !dtype.is_integer() || rule.is_exact(),
            };
            computes && rule.validate().is_ok()
        };
        let ordered = self.changes.is_sorted_by(|a, b| a.0 < b.0);
        // A rule that needs norms has its tensor on one lane from the start: no change makes or ends one.
        let mut norms = self.changes.iter().map(|(_, rule)| rule).chain([&self.kept]);
        let alike = norms.all(|rule| rule.is_exchange() || rule.needs_norms() == self.kept.needs_norms());
        self.rules().all(sound) && ordered && alike && self.changes.len() <= CHANGES_MAX
    }

    /// All that the chunk has, or will have.
    pub(super) fn rules(&self) -> impl Iterator<Item = &Optimizer> {
        [&self.optimizer, &self.kept].into_iter().chain(self.changes.iter().map(|(_, rule)| rule))
    }

    /// Those of rounds to come.
    pub(super) fn changes(&self) -> &[(u64, Optimizer)] {
        &self.changes
    }

    /// Arrays that the rule keeps.
    pub(super) fn arrays(&self) -> usize {
        self.kept.state_arrays()
    }

    /// What holds in a round. What a new rule cannot continue with begins anew in `numbers`.
    pub(super) fn step(&mut self, round: &Round, numbers: &mut dyn Typed) -> Step {
        while self.changes.first().is_some_and(|(from, _)| *from <= round.number) {
            let (from, optimizer) = self.changes.remove(0);
            if !optimizer.is_exchange() {
                if !optimizer.continues(&self.kept) {
                    numbers.begin(optimizer.state_arrays());
                    self.begun = from.saturating_sub(1);
                }
                self.kept = optimizer;
            }
            self.optimizer = optimizer;
        }
        // It is no round of the rule before, which continues where it was.
        self.begun += u64::from(self.optimizer.is_exchange());
        self.optimizer.step_since(self.begun, round.number, round.contributors)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::numbers::zeros;
    use proto_common::optimizer::{Adam, Exchange};

    fn round(number: u64) -> Round {
        Round { number, last: None, old: 0, into: 0, contributors: 1 }
    }

    #[test]
    fn a_change_waits_for_its_round_and_the_last_one_counts() {
        let (mut rule, mut numbers) =
            (CurrentRule::new(Optimizer::sgd(1.0, 0.0, 0.0)), zeros(Dtype::F32, 4, 0));
        rule.change(3, Optimizer::sgd(9.0, 0.0, 0.0)).unwrap();
        rule.change(5, Optimizer::mean(Adam::default(), 4.0)).unwrap();
        rule.change(3, Optimizer::sgd(2.0, 0.5, 0.0)).unwrap();
        let mut step = |number| rule.step(&round(number), &mut *numbers);
        assert_eq!([1, 2, 3, 4].map(|number| step(number).factors.rate), [1.0, 1.0, 2.0, 2.0]);
        let adam = step(5);
        assert_eq!(adam, Optimizer::mean(adam.rule, 4.0).step(1, 1));
        assert_eq!(numbers.bytes(), 3 * 16, "a sum, and what adam keeps");
    }

    #[test]
    fn an_exchange_keeps_arrays_and_is_no_round_of_the_rule_before() {
        let adam = Optimizer::mean(Adam::default(), 4.0);
        let exchange = |array| Optimizer { rule: Exchange { array }.into(), ..Optimizer::sum() };
        let (mut rule, mut numbers) = (CurrentRule::new(adam), zeros(Dtype::F32, 4, 2));
        rule.change(3, exchange(0)).unwrap();
        rule.change(5, adam).unwrap();
        let steps = [1, 2, 3, 4, 5].map(|number| rule.step(&round(number), &mut *numbers));
        assert_eq!(steps[2].rule, Exchange { array: 0 }.into());
        assert_eq!(steps[4], adam.step(3, 1), "its third round");
        assert_eq!(numbers.bytes(), 3 * 16, "a sum, and what adam keeps");
        rule.change(6, exchange(1)).unwrap();
        rule.change(7, Optimizer::sgd(1.0, 0.0, 0.0)).unwrap();
        assert_eq!([6, 7].map(|number| rule.step(&round(number), &mut *numbers).factors.rate), [0.0, 1.0]);
        assert_eq!(numbers.bytes(), 16, "another rule's arrays are gone");
    }

    #[test]
    fn changes_that_wait_are_bounded() {
        let mut rule = CurrentRule::new(Optimizer::sum());
        for round in 0..CHANGES_MAX as u64 {
            rule.change(round, Optimizer::assign()).unwrap();
        }
        assert!(rule.change(0, Optimizer::sum()).is_ok(), "it replaces one");
        let refused = rule.change(99, Optimizer::sum());
        assert!(matches!(refused, Err(StorageError::TooManyChanges(CHANGES_MAX))));
    }
}
