//! Server-side update rules: typed configuration, and its values in each round. The arithmetic on weights is in the
//! server.

use serde::{Deserialize, Serialize};
use thiserror::Error;

mod schedule;
#[cfg(test)]
mod tests;

pub use schedule::{Decay, Schedule};

/// The update that a server applies when a round is complete, with the rule's own constants. A rule's position in this
/// list is its wire id and never changes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Rule {
    /// value += sum of the round's contributions (ps-lite's default handle).
    Sum,
    /// value = sum of the round's contributions (an all-reduce).
    Assign,
    /// Stochastic gradient descent.
    Sgd {
        /// Share of the last step that is kept, from 0 to below 1.
        momentum: f32,
        /// Nesterov momentum, in the form of Sutskever et al. 2013. Without momentum it has no effect.
        nesterov: bool,
    },
    /// AdaGrad (Duchi et al. 2011).
    AdaGrad {
        /// Added to the denominator.
        epsilon: f32,
    },
    /// RMSProp (Hinton's lecture 6e), not centred.
    RmsProp {
        /// Share of the mean square that is kept.
        decay: f32,
        /// Added to the denominator.
        epsilon: f32,
    },
    /// Adam (Kingma and Ba 2015), with bias correction.
    Adam(Moments),
    /// Adam with decoupled weight decay (Loshchilov and Hutter 2019).
    AdamW(Moments),
    /// LAMB (You et al. 2020, algorithm 2, without bounds on the norms). Norms are over the whole tensor, so its
    /// chunks are on one lane of one server and complete a round together.
    Lamb(Moments),
    /// FTRL-proximal (McMahan et al. 2013).
    Ftrl {
        /// Added to the root of the sum of squares.
        beta: f32,
        /// L1 weight.
        l1: f32,
        /// L2 weight.
        l2: f32,
    },
    /// Swaps weights with one array of the preceding rule's state, and ignores contributions. In this way optimizer
    /// state can be pulled. Applied twice, and with the old rule restored, it changes nothing.
    Exchange {
        /// The array, from 0. If it does not exist, weights are unchanged.
        array: u8,
    },
}

/// The constants of Adam and its relatives.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Moments {
    /// Share of the mean that is kept.
    pub beta1: f32,
    /// Share of the mean square that is kept.
    pub beta2: f32,
    /// Added to the denominator.
    pub epsilon: f32,
}

impl Default for Moments {
    fn default() -> Self {
        Self { beta1: 0.9, beta2: 0.999, epsilon: 1e-8 }
    }
}

/// The form of a rule, because frameworks differ. Unless noted, the forms differ in rounding only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Form {
    /// As published.
    #[default]
    Published,
    /// As MXNet's optimizers, to train identically: momentum stores steps, with the rate they had; epsilon of
    /// `ada_grad` and `rms_prop` is under the root; `ada_grad`'s weight decay is separate from the gradient, as in
    /// MXNet's version 1; epsilon of `adam` and `adam_w` is added before the bias correction, which includes
    /// `adam_w`'s decay.
    Mxnet,
}

/// An update rule with its constants. It is computed in the order that the docs of the server's kernel give, and never
/// fused, so that every machine computes the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Optimizer {
    /// The rule.
    pub rule: Rule,
    /// Step size; used by every rule except `sum` and `assign`.
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

/// Why an update rule cannot be used.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum OptimizerError {
    /// A rule with a separate step size for each weight, which would divide by a rate that decays to 0.
    #[error(
        "optimizer {0} takes no learning-rate schedule, because it adapts its step per weight: use a constant rate"
    )]
    Scheduled(&'static str),
    /// A constant is out of range.
    #[error("optimizer parameter {name} = {value} is out of range: it must be finite and {range}")]
    OutOfRange {
        /// The constant.
        name: &'static str,
        /// The given value.
        value: f32,
        /// The allowed values.
        range: &'static str,
    },
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
        let rule = Rule::Sgd { momentum, nesterov: false };
        Self { weight_decay, ..Self::new(rule, learning_rate, true) }
    }

    /// A rule over the mean of the contributions, with a constant step and no weight decay.
    #[must_use]
    pub const fn mean(rule: Rule, learning_rate: f32) -> Self {
        Self::new(rule, learning_rate, true)
    }

    /// Whether it only adds. Such rules also support integers.
    #[must_use]
    #[inline]
    pub const fn is_exact(&self) -> bool {
        matches!(self.rule, Rule::Sum | Rule::Assign) && !self.average && self.rescale == 1.0
    }

    /// Whether it only reads the state of the rule before it.
    #[must_use]
    #[inline]
    pub const fn is_exchange(&self) -> bool {
        matches!(self.rule, Rule::Exchange { .. })
    }

    /// Whether a step depends on all of the tensor's weights.
    #[must_use]
    #[inline]
    pub const fn needs_norms(&self) -> bool {
        matches!(self.rule, Rule::Lamb(_))
    }

    /// The number of arrays of the tensor's length in its state.
    #[must_use]
    #[inline]
    pub fn state_arrays(&self) -> usize {
        match self.rule {
            Rule::Sum | Rule::Assign | Rule::Exchange { .. } => 0,
            Rule::Sgd { momentum, .. } => usize::from(momentum != 0.0),
            Rule::AdaGrad { .. } | Rule::RmsProp { .. } => 1,
            Rule::Adam(_) | Rule::AdamW(_) | Rule::Lamb(_) | Rule::Ftrl { .. } => 2,
        }
    }

    /// Whether a rule can continue with the state of another one.
    #[must_use]
    pub fn continues(&self, before: &Self) -> bool {
        let kind = |optimizer: &Self| match optimizer.rule {
            Rule::Sum | Rule::Assign | Rule::Exchange { .. } | Rule::Sgd { momentum: 0.0, .. } => 0,
            Rule::Sgd { .. } => 1,
            Rule::AdaGrad { .. } => 2,
            Rule::RmsProp { .. } => 3,
            Rule::Adam(_) | Rule::AdamW(_) | Rule::Lamb(_) => 4,
            Rule::Ftrl { .. } => 5,
        };
        let same_momentum = self.form == before.form || kind(self) != 1;
        kind(self) == kind(before) && same_momentum
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
        let bias = |beta: f32| 1.0 - schedule::power(f64::from(beta), round.saturating_sub(begun));
        let (bias1, bias2) = match self.rule {
            Rule::Adam(moments) | Rule::AdamW(moments) | Rule::Lamb(moments) => {
                (bias(moments.beta1), bias(moments.beta2))
            }
            _ => (1.0, 1.0),
        };
        Step {
            rule: self.rule,
            rate: f64::from(self.learning_rate) * self.schedule.factor(round),
            decay: f64::from(self.weight_decay),
            scale: if self.average { 1.0 / f64::from(contributors) } else { 1.0 } * f64::from(self.rescale),
            form: self.form,
            bias1,
            bias2,
        }
    }

    /// Rejects constants that are out of range.
    pub fn validate(&self) -> Result<(), OptimizerError> {
        within("learning_rate", self.learning_rate, Range::NotNegative)?;
        within("weight_decay", self.weight_decay, Range::NotNegative)?;
        within("rescale", self.rescale.abs(), Range::Positive)?;
        self.schedule.validate()?;
        match self.rule {
            Rule::Sum | Rule::Assign | Rule::Exchange { .. } => Ok(()),
            Rule::Sgd { momentum, .. } => within("momentum", momentum, Range::Share),
            Rule::AdaGrad { epsilon } => within("epsilon", epsilon, Range::Positive),
            Rule::RmsProp { decay, epsilon } => {
                within("decay", decay, Range::Share)?;
                within("epsilon", epsilon, Range::Positive)
            }
            Rule::Adam(moments) | Rule::AdamW(moments) | Rule::Lamb(moments) => {
                within("beta1", moments.beta1, Range::Share)?;
                within("beta2", moments.beta2, Range::Share)?;
                within("epsilon", moments.epsilon, Range::Positive)
            }
            Rule::Ftrl { beta, l1, l2 } => {
                if self.schedule != Schedule::CONSTANT {
                    return Err(OptimizerError::Scheduled("ftrl"));
                }
                within("learning_rate", self.learning_rate, Range::Positive)?;
                within("beta", beta, Range::NotNegative)?;
                within("l1", l1, Range::NotNegative)?;
                within("l2", l2, Range::NotNegative)
            }
        }
    }
}

/// An update rule in one round. Values are rounded to the type of the tensor's sums.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// The rule.
    pub rule: Rule,
    /// The round's step size.
    pub rate: f64,
    /// Weight decay.
    pub decay: f64,
    /// Factor of the contributions' sum.
    pub scale: f64,
    /// The rule's form.
    pub form: Form,
    /// 1 - beta1^round, for rules that have it.
    pub bias1: f64,
    /// 1 - beta2^round, for rules that have it.
    pub bias2: f64,
}

impl Step {
    /// The rate with the bias correction of Adam's moments included, as in MXNet.
    #[must_use]
    #[inline]
    pub fn corrected_rate(&self) -> f64 {
        self.rate * self.bias2.sqrt() / self.bias1
    }

    /// The second half of a rule with norms: a plain step in the direction that the first half computed, with its rate
    /// times `trust`.
    #[must_use]
    #[inline]
    pub fn along(&self, trust: f64) -> Self {
        let rule = Rule::Sgd { momentum: 0.0, nesterov: false };
        Self { rule, rate: self.rate * trust, decay: 0.0, scale: 1.0, form: Form::Published, ..*self }
    }
}

#[derive(Clone, Copy)]
enum Range {
    NotNegative,
    Positive,
    Share,
    UpToOne,
}

fn within(name: &'static str, value: f32, range: Range) -> Result<(), OptimizerError> {
    let (ok, range) = match range {
        Range::NotNegative => (value >= 0.0, "at least 0"),
        // A subnormal one, as a divisor, makes infinity of a small number.
        Range::Positive => (value > 0.0 && value.is_normal(), "above 0"),
        Range::Share => ((0.0..1.0).contains(&value), "from 0 to below 1"),
        Range::UpToOne => ((0.0..=1.0).contains(&value), "from 0 to 1"),
    };
    if ok && value.is_finite() { Ok(()) } else { Err(OptimizerError::OutOfRange { name, value, range }) }
}
