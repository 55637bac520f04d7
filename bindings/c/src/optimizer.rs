//! Update rules as C structures. The library's typed rules check them.

use crate::border::put;
use crate::error::{Failure, GradwireCode, guard};
use proto_common::optimizer::{Decay, Form, Moments, Optimizer, Rule, Schedule};
use std::mem::MaybeUninit;

/// The update rule on the servers.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GradwireRule {
    /// value += sum of contributions.
    Sum = 0,
    /// value = sum of contributions (an all-reduce).
    Assign = 1,
    /// Gradient descent; `momentum`, `nesterov`.
    Sgd = 2,
    /// AdaGrad; `epsilon`.
    AdaGrad = 3,
    /// RMSProp; `decay`, `epsilon`.
    RmsProp = 4,
    /// Adam; `beta1`, `beta2`, `epsilon`.
    Adam = 5,
    /// Adam with decoupled weight decay; as Adam.
    AdamW = 6,
    /// LAMB; as Adam.
    Lamb = 7,
    /// FTRL-proximal; `beta1` stands for its beta, `l1`, `l2`.
    Ftrl = 8,
}

/// The decay of the learning rate after the warm-up.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GradwireDecay {
    /// Constant.
    Constant = 0,
    /// Multiplied by `decay_factor` every `decay_rounds` rounds.
    Step = 1,
    /// Multiplied by `decay_factor` every round.
    Exponential = 2,
    /// Decays linearly to `decay_factor` of itself within `decay_rounds` rounds.
    Linear = 3,
    /// The same along half a cosine wave.
    Cosine = 4,
}

/// The form of a rule, because frameworks differ. Unless noted, the forms differ in rounding only.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GradwireForm {
    /// As published.
    Published = 0,
    /// As MXNet's optimizers: momentum stores steps, with the rate they had; epsilon of AdaGrad and RMSProp is under
    /// the root, and AdaGrad's weight decay is separate from the gradient; epsilon of Adam and AdamW is added before
    /// the bias correction.
    Mxnet = 1,
}

/// An update rule with its constants. Fill it with `gradwire_optimizer_default` and change single fields. Constants
/// that a rule does not use are ignored.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GradwireOptimizer {
    /// A `GradwireRule`.
    pub rule: i32,
    /// Not 0: divide the sum by the number of contributors first.
    pub average: i32,
    /// Factor of the sum; not 0.
    pub rescale: f32,
    /// Step size; not used by sum and assign.
    pub learning_rate: f32,
    /// Share of the weight that is added to its gradient; for AdamW and LAMB to its step.
    pub weight_decay: f32,
    /// SGD: share of the last step that is kept, from 0 to below 1.
    pub momentum: f32,
    /// SGD, not 0: Nesterov momentum.
    pub nesterov: i32,
    /// Share of the mean that is kept; for FTRL its beta.
    pub beta1: f32,
    /// Share of the mean square that is kept.
    pub beta2: f32,
    /// Added to denominators.
    pub epsilon: f32,
    /// RMSProp: share of the mean square that is kept.
    pub decay: f32,
    /// FTRL: L1 weight.
    pub l1: f32,
    /// FTRL: L2 weight.
    pub l2: f32,
    /// Warm-up: rounds in which the learning rate grows to its value.
    pub warmup_rounds: u32,
    /// A `GradwireDecay`.
    pub decay_kind: i32,
    /// See `GradwireDecay`.
    pub decay_rounds: u32,
    /// See `GradwireDecay`.
    pub decay_factor: f32,
    /// A `GradwireForm`.
    pub form: i32,
}

impl GradwireOptimizer {
    fn usual(rule: i32) -> Result<Self, Failure> {
        if !(GradwireRule::Sum as i32..=GradwireRule::Ftrl as i32).contains(&rule) {
            return Err(Failure::argument(format!("invalid rule {rule}; use a GRADWIRE_RULE_ constant")));
        }
        let adds = rule <= GradwireRule::Assign as i32;
        let is_ftrl = rule == GradwireRule::Ftrl as i32;
        Ok(Self {
            rule,
            average: i32::from(!adds),
            rescale: 1.0,
            learning_rate: if adds { 0.0 } else { 0.01 },
            weight_decay: 0.0,
            momentum: 0.0,
            nesterov: 0,
            beta1: if is_ftrl { 1.0 } else { 0.9 },
            beta2: 0.999,
            epsilon: 1e-8,
            decay: 0.9,
            l1: 0.0,
            l2: 0.0,
            warmup_rounds: 0,
            decay_kind: GradwireDecay::Constant as i32,
            decay_rounds: 0,
            decay_factor: 1.0,
            form: GradwireForm::Published as i32,
        })
    }

    /// The rule for the servers. The declaration checks the ranges of its constants.
    pub(crate) fn typed(&self) -> Result<Optimizer, Failure> {
        const RULES: [fn(&GradwireOptimizer) -> Rule; 9] = [
            |_| Rule::Sum,
            |_| Rule::Assign,
            |it| Rule::Sgd { momentum: it.momentum, nesterov: it.nesterov != 0 },
            |it| Rule::AdaGrad { epsilon: it.epsilon },
            |it| Rule::RmsProp { decay: it.decay, epsilon: it.epsilon },
            |it| Rule::Adam(it.moments()),
            |it| Rule::AdamW(it.moments()),
            |it| Rule::Lamb(it.moments()),
            |it| Rule::Ftrl { beta: it.beta1, l1: it.l1, l2: it.l2 },
        ];
        let none = || Failure::argument(format!("invalid rule {}; use a GRADWIRE_RULE_ constant", self.rule));
        let rule = usize::try_from(self.rule).ok().and_then(|at| RULES.get(at)).ok_or_else(none)?;
        Ok(Optimizer {
            rule: rule(self),
            learning_rate: self.learning_rate,
            schedule: Schedule { warmup_rounds: self.warmup_rounds, decay: self.typed_decay()? },
            weight_decay: self.weight_decay,
            average: self.average != 0,
            rescale: self.rescale,
            form: self.typed_form()?,
        })
    }

    fn moments(&self) -> Moments {
        Moments { beta1: self.beta1, beta2: self.beta2, epsilon: self.epsilon }
    }

    fn typed_form(&self) -> Result<Form, Failure> {
        match self.form {
            0 => Ok(Form::Published),
            1 => Ok(Form::Mxnet),
            form => Err(Failure::argument(format!("invalid form {form}; use a GRADWIRE_FORM_ constant"))),
        }
    }

    fn typed_decay(&self) -> Result<Decay, Failure> {
        let (rounds, factor) = (self.decay_rounds, self.decay_factor);
        Ok(match self.decay_kind {
            0 => Decay::Constant,
            1 => Decay::Step { every_rounds: rounds, factor },
            2 => Decay::Exponential { factor },
            3 => Decay::Linear { rounds, last: factor },
            4 => Decay::Cosine { rounds, last: factor },
            kind => {
                return Err(Failure::argument(format!(
                    "invalid decay_kind {kind}; use a GRADWIRE_DECAY_ constant"
                )));
            }
        })
    }
}

/// Fills an update rule (a `GradwireRule`) with its usual constants: the mean of contributions with learning rate
/// 0.01; for the rules sum and assign plain sums.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_optimizer_default(
    rule: i32,
    optimizer: Option<&mut MaybeUninit<GradwireOptimizer>>,
) -> GradwireCode {
    guard(|| put(optimizer, "optimizer", GradwireOptimizer::usual(rule)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_is_what_its_number_says_and_valid_with_its_usual_constants() {
        let names = ["Sum", "Assign", "Sgd", "AdaGrad", "RmsProp", "Adam(", "AdamW(", "Lamb(", "Ftrl"];
        for (rule, name) in names.iter().enumerate() {
            let typed = GradwireOptimizer::usual(rule as i32).and_then(|it| it.typed()).expect("a rule");
            assert!(format!("{:?}", typed.rule).starts_with(name), "{rule}: {typed:?}");
            typed.validate().unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        assert!(GradwireOptimizer::usual(-1).is_err() && GradwireOptimizer::usual(9).is_err());
    }

    #[test]
    fn numbers_that_stand_for_nothing_are_refused() {
        let usual = GradwireOptimizer::usual(2).expect("a rule");
        let rule = GradwireOptimizer { rule: i32::MIN, ..usual }.typed().expect_err("no rule");
        assert!(rule.text.contains("GRADWIRE_RULE_"), "{}", rule.text);
        let decay = GradwireOptimizer { decay_kind: 5, ..usual }.typed().expect_err("no decay");
        assert!(decay.text.contains("GRADWIRE_DECAY_"), "{}", decay.text);
        let form = GradwireOptimizer { form: 2, ..usual }.typed().expect_err("no form");
        assert!(form.text.contains("GRADWIRE_FORM_"), "{}", form.text);
    }
}
