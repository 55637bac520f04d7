//! The ranges of a rule's numbers, and the errors about them. It must not know rules.

use serde::{Deserialize, Serialize};
use thiserror::Error;

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

/// The values that a number of a rule may have. All are finite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Range {
    /// Every finite number.
    Any,
    /// At least 0.
    NotNegative,
    /// Above 0.
    Positive,
    /// From 0 to below 1.
    Share,
    /// From 0 to 1.
    UpToOne,
}

impl Range {
    /// The range in words.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Any => "a number",
            Self::NotNegative => "at least 0",
            Self::Positive => "above 0",
            Self::Share => "from 0 to below 1",
            Self::UpToOne => "from 0 to 1",
        }
    }

    /// Whether a number may have this value.
    #[must_use]
    pub fn holds(self, value: f32) -> bool {
        let is_inside = match self {
            Self::Any => true,
            Self::NotNegative => value >= 0.0,
            // A subnormal one, as a divisor, makes infinity of a small number.
            Self::Positive => value > 0.0 && value.is_normal(),
            Self::Share => (0.0..1.0).contains(&value),
            Self::UpToOne => (0.0..=1.0).contains(&value),
        };
        is_inside && value.is_finite()
    }

    pub(super) fn check(self, name: &'static str, value: f32) -> Result<(), OptimizerError> {
        if self.holds(value) {
            return Ok(());
        }
        Err(OptimizerError::OutOfRange { name, value, range: self.words() })
    }
}
