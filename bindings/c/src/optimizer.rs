//! Update rules as C structures. The library's typed rules check them. What each rule is called, and has as constants, is
//! written to the header from their registry (`examples/header.rs`).

use crate::border::{put, slice};
use crate::error::{Failure, GradwireCode, guard};
use crate::own::GradwireOwn;
use proto_common::optimizer::{Decay, Form, KINDS, Kind, Optimizer, Rule, Schedule, Values};
use std::mem::MaybeUninit;
use std::ptr;

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

/// The constants of a rule. The header has a union of the structures of all rules.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GradwireConstants {
    values: Values,
}

/// An update rule with its constants. Fill it with `gradwire_optimizer_default` and change single fields.
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
    /// The rule's own constants, such as `constants.sgd.momentum`. Those of other rules are not set.
    pub constants: GradwireConstants,
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
    /// A rule that the servers' program has registered; null for none. `rule` and `constants` are not used with it. It
    /// must exist until the declaration has returned.
    pub own: *const GradwireOwn,
}

impl GradwireOptimizer {
    fn usual(rule: i32) -> Result<Self, Failure> {
        let usual = Optimizer::usual(kind(rule)?.usual());
        Ok(Self {
            rule,
            average: i32::from(usual.average),
            rescale: usual.rescale,
            learning_rate: usual.learning_rate,
            weight_decay: usual.weight_decay,
            constants: GradwireConstants { values: usual.rule.values() },
            warmup_rounds: 0,
            decay_kind: GradwireDecay::Constant as i32,
            decay_rounds: 0,
            decay_factor: 1.0,
            form: GradwireForm::Published as i32,
            own: ptr::null(),
        })
    }

    /// The rule for the servers. The declaration checks the ranges of its constants.
    pub(crate) fn typed(&self) -> Result<Optimizer, Failure> {
        Ok(Optimizer {
            rule: self.typed_rule()?,
            learning_rate: self.learning_rate,
            schedule: Schedule { warmup_rounds: self.warmup_rounds, decay: self.typed_decay()? },
            weight_decay: self.weight_decay,
            average: self.average != 0,
            rescale: self.rescale,
            form: self.typed_form()?,
        })
    }

    fn typed_rule(&self) -> Result<Rule, Failure> {
        if self.own.is_null() {
            return Ok(kind(self.rule)?.with(&self.constants.values));
        }
        let own = slice(self.own, 1, "own")?;
        Ok(Rule::Own(own[0].typed()?))
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

/// The rule of a number: its place in the registry.
fn kind(rule: i32) -> Result<&'static Kind, Failure> {
    let kind = usize::try_from(rule).ok().and_then(|at| KINDS.get(at)).filter(|kind| !kind.is_internal);
    kind.ok_or_else(|| Failure::argument(format!("invalid rule {rule}; use a GRADWIRE_RULE_ constant")))
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
        for (rule, kind) in KINDS.iter().enumerate() {
            let usual = GradwireOptimizer::usual(rule as i32);
            assert_eq!(usual.is_ok(), !kind.is_internal, "{kind:?}");
            if let Ok(usual) = usual {
                let typed = usual.typed().expect("a rule");
                assert_eq!(typed, Optimizer::usual(kind.usual()));
                typed.validate().unwrap_or_else(|error| panic!("{kind:?}: {error}"));
            }
        }
        assert!(GradwireOptimizer::usual(-1).is_err() && GradwireOptimizer::usual(i32::MAX).is_err());
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
