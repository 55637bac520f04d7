//! Server-side update rules: typed configuration, and what of it changes from round to round. The arithmetic on
//! weights lives in the server.

use serde::{Deserialize, Serialize};
use thiserror::Error;

mod schedule;
#[cfg(test)]
mod tests;

pub use schedule::{Decay, Schedule};

/// Which update a server applies when a round is complete, with the constants that only it has. A rule's place in this
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
        /// Share of the last step that is kept, 0 to below 1.
        momentum: f32,
        /// Look ahead by the momentum (Nesterov, in the form of Sutskever et al. 2013). Without momentum it is plain.
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
    /// LAMB (You et al. 2020, algorithm 2, with the norms as they are). They are the whole tensor's, so its chunks stay on
    /// one lane of one server and finish a round together.
    Lamb(Moments),
    /// FTRL-proximal (McMahan et al. 2013).
    Ftrl {
        /// Added to the root of the squares' sum.
        beta: f32,
        /// Weight of the absolute values.
        l1: f32,
        /// Weight of the squares.
        l2: f32,
    },
    /// Weights change places with one of the arrays that the rule before keeps, and contributions count for nothing: what a
    /// rule keeps can so be pulled. Done twice, with that rule given back, it leaves all as it was.
    Exchange {
        /// Which array, from 0; with one that is not there weights stay.
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

/// Which of the forms that frameworks give a rule is meant. They differ by rounding where nothing else is said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Form {
    /// As published.
    #[default]
    Published,
    /// As MXNet's optimizers have it, for the same training as with them: momentum holds steps, with the rate they had;
    /// epsilon of `ada_grad` and `rms_prop` is under the root, and `ada_grad`'s weight decay beside the gradient, as in its
    /// version 1; epsilon of `adam` and `adam_w` is added before the bias is corrected, which `adam_w`'s decay is, too.
    Mxnet,
}

/// An update rule with its constants. It is computed in the order that the docs of the server's kernel give, never
/// fused, so that every machine computes the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Optimizer {
    /// The rule.
    pub rule: Rule,
    /// Step size; used by every rule but `sum` and `assign`.
    pub learning_rate: f32,
    /// How the step size changes with the rounds.
    pub schedule: Schedule,
    /// Share of the weight added to its gradient; of `adam_w` and `lamb`, to its step.
    pub weight_decay: f32,
    /// Divide the sum by the number of contributors before the rule is applied.
    pub average: bool,
    /// What the sum is multiplied by, too: not 0. Trainers whose gradients are a batch's sum give 1 / batch.
    #[serde(default = "one")]
    pub rescale: f32,
    /// Which form of the rule.
    #[serde(default)]
    pub form: Form,
}

const fn one() -> f32 {
    1.0
}

/// Why an update rule cannot be used.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum OptimizerError {
    /// A rule that has a step size of its own for each weight, and would divide by one that ends at 0.
    #[error(
        "optimizer {0} takes no learning-rate schedule, because it adapts its step per weight: use a constant rate"
    )]
    Scheduled(&'static str),
    /// A constant is out of range.
    #[error("optimizer parameter {name} = {value} is out of range: it must be finite and {range}")]
    OutOfRange {
        /// Which constant.
        name: &'static str,
        /// What was given.
        value: f32,
        /// What is allowed.
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

    /// Does it only add? Then integers can be served, too.
    #[must_use]
    pub const fn is_exact(&self) -> bool {
        matches!(self.rule, Rule::Sum | Rule::Assign) && !self.average && self.rescale == 1.0
    }

    /// Does it only look at what the rule before it keeps?
    #[must_use]
    pub const fn is_exchange(&self) -> bool {
        matches!(self.rule, Rule::Exchange { .. })
    }

    /// Does a step depend on all of the tensor's weights?
    #[must_use]
    pub const fn needs_norms(&self) -> bool {
        matches!(self.rule, Rule::Lamb(_))
    }

    /// How many arrays of the tensor's length the rule keeps beside the weights.
    #[must_use]
    pub fn state_arrays(&self) -> usize {
        match self.rule {
            Rule::Sum | Rule::Assign | Rule::Exchange { .. } => 0,
            Rule::Sgd { momentum, .. } => usize::from(momentum != 0.0),
            Rule::AdaGrad { .. } | Rule::RmsProp { .. } => 1,
            Rule::Adam(_) | Rule::AdamW(_) | Rule::Lamb(_) | Rule::Ftrl { .. } => 2,
        }
    }

    /// Can a rule go on with the arrays that another one kept?
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

    /// What holds for one round, counted from 1, with so many contributors.
    #[must_use]
    pub fn step(&self, round: u64, contributors: u32) -> Step {
        self.step_since(0, round, contributors)
    }

    /// As [`Optimizer::step`], with what the rule keeps begun anew after round `begun`: biases are of the rounds since
    /// then, schedules of all.
    #[must_use]
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

    /// Refuses constants out of range.
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

/// An update rule in one round; numbers are rounded to the type that the tensor's sums have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// The rule.
    pub rule: Rule,
    /// The round's step size.
    pub rate: f64,
    /// Weight decay.
    pub decay: f64,
    /// What the contributions' sum is multiplied by.
    pub scale: f64,
    /// The rule's form.
    pub form: Form,
    /// 1 - beta1^round, of rules that have it.
    pub bias1: f64,
    /// 1 - beta2^round, of rules that have it.
    pub bias2: f64,
}

impl Step {
    /// The rate with the biases of Adam's moments taken out of it, as MXNet has it.
    #[must_use]
    pub fn corrected_rate(&self) -> f64 {
        self.rate * self.bias2.sqrt() / self.bias1
    }

    /// The second half of a rule that needs norms: a plain step along what the first half made of the contributions,
    /// with its rate times `trust`.
    #[must_use]
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
