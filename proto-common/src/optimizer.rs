//! Server-side update rules: configuration, values in each round, and arithmetic on one element. The registry lists them all
//! (`rules.rs`). The loops over elements are in `elements.rs`; the server runs them over its chunks.

use self::elements::{Block, Steps, Whole};
use serde::{Deserialize, Serialize};

mod bounds;
pub mod elements;
mod name;
mod own;
mod real;
mod rule;
pub mod rules;
mod schedule;
#[cfg(test)]
mod tests;

pub use bounds::{OptimizerError, Range};
pub use name::{NameError, ShortName};
pub use own::{OWN_ARRAYS_MAX, OWN_RULES_MAX, OwnError, OwnKind, OwnKindError, OwnParameter};
pub use real::Real;
pub use rule::{CONSTANTS_MAX, Constant, Constants, Factors, Form, Parameter, UpdateRule, Values};
pub use rules::*;
pub use schedule::{Decay, Schedule};

/// The learning rate of a rule for which none is given.
pub const LEARNING_RATE: f32 = 0.01;

/// An update rule with its constants, and what all rules have.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Optimizer {
    /// The rule.
    pub rule: Rule,
    /// Step size; not used by `sum` and `assign`.
    pub learning_rate: f32,
    /// How the step size changes with the rounds.
    pub schedule: Schedule,
    /// Share of the weight that is added to its gradient; for `adam_w` and `lamb`, to its step.
    pub weight_decay: f32,
    /// Whether to divide the sum by the number of contributors before the rule is applied.
    pub average: bool,
    /// Factor of the sum; not 0. Trainers whose gradients are sums over a batch set 1 / batch.
    #[serde(default = "one")]
    pub rescale: f32,
    /// The form of the rule.
    #[serde(default)]
    pub form: Form,
}

const fn one() -> f32 {
    1.0
}

impl Optimizer {
    const fn new(rule: Rule, learning_rate: f32, average: bool) -> Self {
        let (schedule, form) = (Schedule::CONSTANT, Form::Published);
        Self { rule, learning_rate, schedule, weight_decay: 0.0, average, rescale: one(), form }
    }

    /// value += sum.
    #[must_use]
    pub const fn sum() -> Self {
        Self::new(Rule::Sum, 0.0, false)
    }

    /// value = sum.
    #[must_use]
    pub const fn assign() -> Self {
        Self::new(Rule::Assign, 0.0, false)
    }

    /// SGD over the mean of the contributions.
    #[must_use]
    pub const fn sgd(learning_rate: f32, momentum: f32, weight_decay: f32) -> Self {
        let rule = Rule::Sgd(Sgd { momentum, nesterov: false });
        Self { weight_decay, ..Self::new(rule, learning_rate, true) }
    }

    /// A rule over the mean of the contributions, with a constant step and no weight decay.
    #[must_use]
    pub fn mean(rule: impl Into<Rule>, learning_rate: f32) -> Self {
        Self::new(rule.into(), learning_rate, true)
    }

    /// A rule as it is if nothing else is said: over the mean of the contributions with [`LEARNING_RATE`], or their plain sum.
    #[must_use]
    pub fn usual(rule: impl Into<Rule>) -> Self {
        let rule = rule.into();
        let steps = rule.kind().steps;
        Self::new(rule, if steps { LEARNING_RATE } else { 0.0 }, steps)
    }

    /// Whether it only adds. Such rules also support integers.
    #[must_use]
    #[inline]
    pub fn is_exact(&self) -> bool {
        self.rule.kind().is_exact && !self.average && self.rescale == 1.0
    }

    /// Whether it only reads the state of the rule before it.
    #[must_use]
    #[inline]
    pub const fn is_exchange(&self) -> bool {
        matches!(self.rule, Rule::Exchange(_))
    }

    /// Whether a step depends on all of the tensor's weights.
    #[must_use]
    #[inline]
    pub fn needs_norms(&self) -> bool {
        self.rule.kind().needs_norms
    }

    /// The number of arrays of the tensor's length in its state.
    #[must_use]
    #[inline]
    pub fn state_arrays(&self) -> usize {
        self.rule.arrays(self.form).len()
    }

    /// Whether a rule can continue with the state of another one. Of a program's own rule only the same one can.
    #[must_use]
    pub fn continues(&self, before: &Self) -> bool {
        let has_its_names = match (&self.rule, &before.rule) {
            (Rule::Own(own), Rule::Own(other)) => own.name == other.name,
            _ => true,
        };
        has_its_names && self.rule.arrays(self.form) == before.rule.arrays(before.form)
    }

    /// The same with what the scheduler adds to a rule of a server's program: see [`Own::settled`].
    pub fn settled(&self, kinds: &[OwnKind]) -> Result<Self, OwnError> {
        Ok(match &self.rule {
            Rule::Own(own) => Self { rule: own.settled(kinds)?.into(), ..*self },
            _ => *self,
        })
    }

    /// The values for one round, counted from 1, with this number of contributors.
    #[must_use]
    #[inline]
    pub fn step(&self, round: u64, contributors: u32) -> Step {
        self.step_since(0, round, contributors)
    }

    /// As [`Optimizer::step`], with state that began after round `begun`: bias corrections count the rounds since
    /// then, schedules count all.
    #[must_use]
    #[inline]
    pub fn step_since(&self, begun: u64, round: u64, contributors: u32) -> Step {
        let factors = Factors {
            rate: f64::from(self.learning_rate) * self.schedule.factor(round),
            decay: f64::from(self.weight_decay),
            scale: if self.average { 1.0 / f64::from(contributors) } else { 1.0 } * f64::from(self.rescale),
            form: self.form,
            bias: self.rule.bias(round.saturating_sub(begun)),
        };
        Step { rule: self.rule, factors }
    }

    /// Rejects constants that are out of range.
    pub fn validate(&self) -> Result<(), OptimizerError> {
        Range::NotNegative.check("learning_rate", self.learning_rate)?;
        Range::NotNegative.check("weight_decay", self.weight_decay)?;
        Range::Positive.check("rescale", self.rescale.abs())?;
        self.schedule.validate()?;
        let has_schedule = self.schedule != Schedule::CONSTANT;
        self.rule.kind().check(self.learning_rate, has_schedule, &self.rule.values())
    }
}

/// An update rule in one round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// The rule.
    pub rule: Rule,
    /// The round's numbers.
    pub factors: Factors,
}

impl Step {
    /// The rule over a whole chunk without copies between; the chunk, if the rule has no such loop: see
    /// [`UpdateRule::at_once`].
    #[inline]
    pub fn at_once<T: Real, W: Whole<T>>(&self, chunk: W) -> Option<W> {
        self.rule.at_once(&self.factors, chunk)
    }

    /// The rule over part of a chunk: see [`UpdateRule::update`].
    #[inline(always)]
    pub fn update<T: Real>(&self, block: Block<'_, T>) {
        self.rule.update(&self.factors, block);
    }

    /// The first half of a rule that needs norms: see [`UpdateRule::direction`].
    #[inline(always)]
    pub fn direction<T: Real>(&self, chunk: Steps<'_, T>) {
        self.rule.direction(&self.factors, chunk);
    }

    /// The second half of a rule that needs norms: along the steps that the first half computed, with its rate times `trust`.
    #[must_use]
    #[inline]
    pub fn along(&self, trust: f64) -> Self {
        let factors = Factors { rate: self.factors.rate * trust, decay: 0.0, scale: 1.0, ..self.factors };
        Self { factors, ..*self }
    }
}
