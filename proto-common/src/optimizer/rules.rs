//! The registry of update rules. A new rule is a file here, its three lines below, and what three commands write from them
//! (CONTRIBUTING.md lists them): its class in Python, its number and constants in C, and its entry in the Python reference.

use super::bounds::OptimizerError;
use super::elements::{Block, Steps, Whole};
use super::real::Real;
use super::rule::{Constants, Factors, Form, Parameter, UpdateRule, Values};
use serde::{Deserialize, Serialize};

mod ada_grad;
mod adam;
mod adam_w;
mod assign;
mod exchange;
mod ftrl;
mod lamb;
mod moments;
mod own;
mod rms_prop;
mod sgd;
mod sum;

pub use ada_grad::AdaGrad;
pub use adam::Adam;
pub use adam_w::AdamW;
pub use assign::Assign;
pub use exchange::Exchange;
pub use ftrl::Ftrl;
pub use lamb::Lamb;
pub use moments::Moments;
pub use own::{Given, Own, ParameterName, RuleName};
pub use rms_prop::RmsProp;
pub use sgd::Sgd;
pub use sum::Sum;

/// The place of a rule in the list is its number on the wire and in C, and never changes: new ones go to the end.
macro_rules! registry {
    ($($wire:literal => $name:ident $(($constants:ident))?,)*) => {
        /// The update that a server applies when a round is complete, with the rule's own constants.
        #[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub enum Rule {
            $(
                #[doc = concat!("See the structure [`", stringify!($name), "`](struct@", stringify!($name), ").")]
                #[serde(rename = $wire)]
                $name $(($constants))?,
            )*
        }

        /// All rules.
        pub const KINDS: &[Kind] = &[$(Kind::of::<$name>($wire)),*];

        $(impl From<$name> for Rule {
            fn from(rule: $name) -> Self {
                variant!(rule $name $($constants)?)
            }
        })*

        impl Rule {
            /// What is the same of all rules of its kind.
            #[must_use]
            #[inline]
            pub fn kind(&self) -> &'static Kind {
                match self {
                    $(Self::$name { .. } => const { &Kind::of::<$name>($wire) },)*
                }
            }

            /// Its constants, as numbers.
            #[must_use]
            pub fn values(&self) -> Values {
                match self {
                    $(Self::$name $((rule @ $constants { .. }))? => value!(rule $name $($constants)?).values(),)*
                }
            }

            /// See [`UpdateRule::arrays`].
            #[must_use]
            #[inline]
            pub fn arrays(&self, form: Form) -> &'static [&'static str] {
                match self {
                    $(Self::$name $((rule @ $constants { .. }))? => value!(rule $name $($constants)?).arrays(form),)*
                }
            }

            /// See [`UpdateRule::bias`].
            #[inline]
            pub(super) fn bias(&self, rounds: u64) -> [f64; 2] {
                match self {
                    $(Self::$name $((rule @ $constants { .. }))? => value!(rule $name $($constants)?).bias(rounds),)*
                }
            }

            /// See [`UpdateRule::at_once`].
            #[inline]
            pub(super) fn at_once<T: Real, W: Whole<T>>(&self, factors: &Factors, chunk: W) -> Option<W> {
                match self {
                    $(Self::$name $((rule @ $constants { .. }))? => {
                        value!(rule $name $($constants)?).at_once(factors, chunk)
                    })*
                }
            }

            /// See [`UpdateRule::update`].
            #[inline(always)]
            pub(super) fn update<T: Real>(&self, factors: &Factors, block: Block<'_, T>) {
                match self {
                    $(Self::$name $((rule @ $constants { .. }))? => {
                        update(value!(rule $name $($constants)?), factors, block);
                    })*
                }
            }

            /// See [`UpdateRule::direction`].
            #[inline(always)]
            pub(super) fn direction<T: Real>(&self, factors: &Factors, chunk: Steps<'_, T>) {
                match self {
                    $(Self::$name $((rule @ $constants { .. }))? => {
                        value!(rule $name $($constants)?).direction(factors, chunk);
                    })*
                }
            }
        }
    };
}

/// A rule as the variant that has it, and the rule of a variant: those without constants have none in it.
macro_rules! variant {
    ($rule:ident $name:ident) => {{
        let $name {} = $rule;
        Rule::$name
    }};
    ($rule:ident $name:ident $constants:ident) => {
        Rule::$name($rule)
    };
}
macro_rules! value {
    ($rule:ident $name:ident) => {
        &$name {}
    };
    ($rule:ident $name:ident $constants:ident) => {
        $rule
    };
}

registry! {
    "sum" => Sum,
    "assign" => Assign,
    "sgd" => Sgd(Sgd),
    "ada_grad" => AdaGrad(AdaGrad),
    "rms_prop" => RmsProp(RmsProp),
    "adam" => Adam(Adam),
    "adam_w" => AdamW(AdamW),
    "lamb" => Lamb(Lamb),
    "ftrl" => Ftrl(Ftrl),
    "exchange" => Exchange(Exchange),
    "own" => Own(Own),
}

/// What is the same of all rules of one kind: see [`UpdateRule`] and [`Constants`].
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// Its name in declarations, checkpoints and errors.
    pub name: &'static str,
    /// See [`UpdateRule::CLASS`].
    pub class: &'static str,
    /// See [`Constants::ABOUT`].
    pub about: &'static str,
    /// See [`Constants::PARAMETERS`].
    pub parameters: &'static [Parameter],
    /// See [`UpdateRule::STEPS`].
    pub steps: bool,
    /// See [`UpdateRule::IS_EXACT`].
    pub is_exact: bool,
    /// See [`UpdateRule::NEEDS_NORMS`].
    pub needs_norms: bool,
    /// See [`UpdateRule::IS_INTERNAL`].
    pub is_internal: bool,
    /// See [`UpdateRule::TAKES_SCHEDULE`].
    pub takes_schedule: bool,
    rate: super::bounds::Range,
    with: fn(&Values) -> Rule,
    usual: fn() -> Rule,
    /// See [`UpdateRule::frozen`].
    #[cfg(test)]
    pub(super) frozen: fn() -> Option<(Rule, &'static str, &'static str)>,
}

impl Kind {
    const fn of<R: UpdateRule + Into<Rule>>(name: &'static str) -> Self {
        Self {
            name,
            class: R::CLASS,
            about: R::ABOUT,
            parameters: R::PARAMETERS,
            steps: R::STEPS,
            is_exact: R::IS_EXACT,
            needs_norms: R::NEEDS_NORMS,
            is_internal: R::IS_INTERNAL,
            takes_schedule: R::TAKES_SCHEDULE,
            rate: R::RATE,
            with: |values| R::of(values).into(),
            usual: || R::default().into(),
            #[cfg(test)]
            frozen: || R::frozen().map(|(rule, bytes, json)| (rule.into(), bytes, json)),
        }
    }

    /// The rule with these constants.
    #[must_use]
    pub fn with(&self, values: &Values) -> Rule {
        (self.with)(values)
    }

    /// The rule with its usual constants.
    #[must_use]
    pub fn usual(&self) -> Rule {
        (self.usual)()
    }

    /// Rejects a rate and constants that are out of range.
    pub(super) fn check(&self, rate: f32, has_schedule: bool, values: &Values) -> Result<(), OptimizerError> {
        if has_schedule && !self.takes_schedule {
            return Err(OptimizerError::Scheduled(self.name));
        }
        self.rate.check("learning_rate", rate)?;
        let mut constants = self.parameters.iter().zip(values);
        constants.try_for_each(|(parameter, value)| parameter.range.check(parameter.name, *value))
    }
}

#[inline(always)]
fn update<R: UpdateRule, T: Real>(rule: &R, factors: &Factors, block: Block<'_, T>) {
    let [scale, decay] = [factors.scale, factors.decay].map(T::of);
    // Weight decay of zero must not change bits (0 * inf), so it is a case of its own.
    if factors.decay == 0.0 || !rule.decays_gradient(factors.form) {
        rule.update(factors, block, move |_, s| s * scale);
    } else {
        rule.update(factors, block, move |w, s| s * scale + decay * w);
    }
}
