//! What an update rule is: [`UpdateRule`]. It must not know any rule; the registry lists them.

use super::bounds::Range;
use super::elements::{Block, Steps, Whole};
use super::real::Real;
use serde::{Deserialize, Serialize};

/// The most constants of a rule.
pub const CONSTANTS_MAX: usize = 8;

/// The constants of a rule in the order of its parameters, and zeros behind them.
pub type Values = [f32; CONSTANTS_MAX];

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

/// The numbers of one round. They are rounded to the type of the tensor's sums.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Factors {
    /// The round's step size.
    pub rate: f64,
    /// Weight decay.
    pub decay: f64,
    /// Factor of the contributions' sum.
    pub scale: f64,
    /// The rule's form.
    pub form: Form,
    /// Of [`UpdateRule::bias`] in this round.
    pub bias: [f64; 2],
}

/// A constant of a rule, as users see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Its name in declarations.
    pub name: &'static str,
    /// What it means, as Markdown.
    pub about: &'static str,
    /// The allowed values.
    pub range: Range,
    /// Whether it is a switch, which is 0 or 1 among [`Values`].
    pub is_switch: bool,
}

impl Parameter {
    /// The allowed values in words.
    #[must_use]
    pub const fn words(&self) -> &'static str {
        if self.is_switch { "0 or 1" } else { self.range.words() }
    }
}

/// The constants of a rule. `rule!` implements it.
pub trait Constants: Copy + Default {
    /// What the rule is, as Markdown.
    const ABOUT: &'static str;
    /// Each constant.
    const PARAMETERS: &'static [Parameter];
    /// The constants as numbers.
    fn values(&self) -> Values;
    /// The rule with these constants.
    fn of(values: &Values) -> Self;
}

/// An update that a server applies when a round is complete. The rule says what becomes of one element; [`Block`] and its
/// siblings run it over a chunk. It is computed in the order that its source gives, and never fused, so that every machine
/// computes the same bits.
///
/// Mark the methods with loops `#[inline(always)]`: they become part of a function that is compiled for a vector unit.
pub trait UpdateRule: Constants {
    /// The name of its class in Python.
    const CLASS: &'static str;
    /// Whether it has a step size and weight decay. By default, such a rule takes the mean of the contributions, and others
    /// the sum.
    const STEPS: bool = true;
    /// The allowed step sizes. The default is the same for all rules (`LEARNING_RATE`).
    const RATE: Range = Range::NotNegative;
    /// Whether the step size may change by a schedule.
    const TAKES_SCHEDULE: bool = true;
    /// Whether it only adds, and so also supports integers.
    const IS_EXACT: bool = false;
    /// Whether a step depends on all of the tensor's weights. The chunks of such a tensor are on one lane of one server, and
    /// complete a round together: [`UpdateRule::direction`] runs over all of them, then [`UpdateRule::update`] with the rate
    /// times norm of weights / norm of steps.
    const NEEDS_NORMS: bool = false;
    /// Whether users do not see it.
    const IS_INTERNAL: bool = false;

    /// The names of the arrays that it keeps, at most two, and by default none. A rule continues with the state of a rule whose arrays
    /// have the same names; otherwise its state begins with zeros. Arrays with the same name must hold the same.
    #[inline]
    fn arrays(&self, _form: Form) -> &'static [&'static str] {
        &[]
    }

    /// Bias corrections of means, `rounds` rounds after their state began with zeros; [`Factors::bias`] passes them to the loops.
    /// Compute powers with `schedule::power`, which has the same bits on every machine.
    #[inline]
    fn bias(&self, _rounds: u64) -> [f64; 2] {
        [1.0, 1.0]
    }

    /// Whether weight decay is part of the gradient, as by default with all rules that have it. If not, the rule does it itself.
    #[inline(always)]
    fn decays_gradient(&self, _form: Form) -> bool {
        Self::STEPS
    }

    /// The rule over a whole chunk without copies between, for rules that need no state and are short. By default, or with
    /// constants for which there is no such loop, the chunk is returned and [`UpdateRule::update`] follows.
    #[inline(always)]
    fn at_once<T: Real, W: Whole<T>>(&self, _factors: &Factors, chunk: W) -> Option<W> {
        Some(chunk)
    }

    /// The rule over part of a chunk. `gradient` is that of a weight, from the weight and the contributions' sum: it includes
    /// [`Factors::scale`], and weight decay if [`UpdateRule::decays_gradient`].
    fn update<T: Real>(&self, factors: &Factors, block: Block<'_, T>, gradient: impl Fn(T, T) -> T + Copy);

    /// Of rules that need norms: the steps of a chunk before they are scaled.
    #[inline(always)]
    fn direction<T: Real>(&self, _factors: &Factors, _chunk: Steps<'_, T>) {}

    /// An example of the rule, its bytes in messages as hexadecimal digits, and its JSON in declarations. They never change:
    /// checkpoints have the JSON, and all builds of one protocol version must write the same bytes. A test fails for a rule
    /// without them.
    #[cfg(test)]
    fn frozen() -> Option<(Self, &'static str, &'static str)> {
        None
    }
}

/// A type of constants.
pub trait Constant: Copy {
    /// Whether it is 0 or 1.
    const IS_SWITCH: bool = false;
    /// The constant as a number.
    fn number(self) -> f32;
    /// The constant that is nearest to a number.
    fn from_number(number: f32) -> Self;
}

impl Constant for f32 {
    fn number(self) -> f32 {
        self
    }
    fn from_number(number: f32) -> Self {
        number
    }
}

impl Constant for bool {
    const IS_SWITCH: bool = true;
    fn number(self) -> f32 {
        f32::from(u8::from(self))
    }
    fn from_number(number: f32) -> Self {
        number != 0.0
    }
}

impl Constant for u8 {
    fn number(self) -> f32 {
        f32::from(self)
    }
    fn from_number(number: f32) -> Self {
        number as Self
    }
}

/// Declares a rule's constants: documentation, type, default and range of each in one place. `NAME(OTHER)` is a rule with the
/// constants of another structure.
macro_rules! rule {
    ($(#[doc = $about:literal])+ $name:ident {
        $($(#[doc = $text:literal])+ $constant:ident: $type:ty = $default:expr, $range:ident;)*
    }) => {
        $(#[doc = $about])+
        #[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            $($(#[doc = $text])+ pub $constant: $type,)*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($constant: $default,)* }
            }
        }

        impl $crate::optimizer::rule::Constants for $name {
            const ABOUT: &'static str = concat!($($about),+).trim_ascii_start();
            const PARAMETERS: &'static [$crate::optimizer::rule::Parameter] = &[
                $($crate::optimizer::rule::Parameter {
                    name: stringify!($constant),
                    about: concat!($($text),+).trim_ascii_start(),
                    range: $crate::optimizer::bounds::Range::$range,
                    is_switch: <$type as $crate::optimizer::rule::Constant>::IS_SWITCH,
                },)*
            ];
            fn values(&self) -> $crate::optimizer::rule::Values {
                let mut values = $crate::optimizer::rule::Values::default();
                let [$($constant,)* ..] = &mut values;
                $(*$constant = $crate::optimizer::rule::Constant::number(self.$constant);)*
                values
            }
            fn of(values: &$crate::optimizer::rule::Values) -> Self {
                let [$($constant,)* ..] = *values;
                Self { $($constant: $crate::optimizer::rule::Constant::from_number($constant),)* }
            }
        }
    };
    ($(#[doc = $about:literal])+ $name:ident($constants:ident)) => {
        $(#[doc = $about])+
        #[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
        pub struct $name(pub $constants);

        impl $crate::optimizer::rule::Constants for $name {
            const ABOUT: &'static str = concat!($($about),+).trim_ascii_start();
            const PARAMETERS: &'static [$crate::optimizer::rule::Parameter] = $constants::PARAMETERS;
            fn values(&self) -> $crate::optimizer::rule::Values {
                self.0.values()
            }
            fn of(values: &$crate::optimizer::rule::Values) -> Self {
                Self($constants::of(values))
            }
        }
    };
}
pub(super) use rule;
