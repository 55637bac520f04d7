//! Server-side update rules: wire ids and typed configuration. The arithmetic lives in the server.

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Which update a server applies when a round is complete. The number is the wire id and never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum OptimizerKind {
    /// value += sum of the round's contributions (ps-lite's default handle).
    Sum = 1,
    /// value = sum of the round's contributions (an all-reduce).
    Assign = 2,
    /// Stochastic gradient descent, with momentum where it is not zero.
    Sgd = 3,
    /// SGD with Nesterov momentum.
    Nesterov = 4,
    /// AdaGrad.
    AdaGrad = 5,
    /// RMSProp.
    RmsProp = 6,
    /// Adam.
    Adam = 7,
    /// Adam with decoupled weight decay.
    AdamW = 8,
    /// LAMB.
    Lamb = 9,
    /// FTRL-proximal.
    Ftrl = 10,
}

/// An update rule with its constants. Everything is f32, multiplied and added in the order the docs of the
/// server's kernel give, never fused, so that every machine computes the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Optimizer {
    /// The rule.
    pub kind: OptimizerKind,
    /// Step size; used by every rule but `sum` and `assign`.
    pub learning_rate: f32,
    /// Share of the last step that is kept, 0 to below 1.
    pub momentum: f32,
    /// Share of the weight added to its gradient.
    pub weight_decay: f32,
    /// Divide the sum by the number of contributors before the rule is applied.
    pub average: bool,
}

/// Why an update rule cannot be used.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum OptimizerError {
    /// The wire id is reserved, the kernel is not there yet.
    #[error("optimizer {0:?} is not implemented by this server; use sum, assign or sgd")]
    NotImplemented(OptimizerKind),
    /// A constant is out of range.
    #[error("optimizer constant {name} = {value} is out of range; it must be finite and {range}")]
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
    /// value += sum.
    #[must_use]
    pub const fn sum() -> Self {
        Self {
            kind: OptimizerKind::Sum,
            learning_rate: 0.0,
            momentum: 0.0,
            weight_decay: 0.0,
            average: false,
        }
    }

    /// value = sum.
    #[must_use]
    pub const fn assign() -> Self {
        Self { kind: OptimizerKind::Assign, ..Self::sum() }
    }

    /// SGD over the mean of the contributions.
    #[must_use]
    pub const fn sgd(learning_rate: f32, momentum: f32, weight_decay: f32) -> Self {
        Self { kind: OptimizerKind::Sgd, learning_rate, momentum, weight_decay, average: true }
    }

    /// Does the rule keep a second array (momentum) per tensor?
    #[must_use]
    pub fn has_momentum(&self) -> bool {
        self.kind == OptimizerKind::Sgd && self.momentum != 0.0
    }

    /// Refuses rules without a kernel and constants out of range.
    pub fn validate(&self) -> Result<(), OptimizerError> {
        use OptimizerKind as K;
        if !matches!(self.kind, K::Sum | K::Assign | K::Sgd) {
            return Err(OptimizerError::NotImplemented(self.kind));
        }
        let checks = [
            ("learning_rate", self.learning_rate, "at least 0", self.learning_rate >= 0.0),
            ("momentum", self.momentum, "in 0..1", (0.0..1.0).contains(&self.momentum)),
            ("weight_decay", self.weight_decay, "at least 0", self.weight_decay >= 0.0),
        ];
        for (name, value, range, ok) in checks {
            if !ok || !value.is_finite() {
                return Err(OptimizerError::OutOfRange { name, value, range });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_rules_and_bad_constants_are_refused() {
        assert!(Optimizer::sgd(0.1, 0.9, 0.0).validate().is_ok());
        let adam = Optimizer { kind: OptimizerKind::Adam, ..Optimizer::sum() };
        assert_eq!(adam.validate(), Err(OptimizerError::NotImplemented(OptimizerKind::Adam)));
        for bad in [
            Optimizer::sgd(f32::NAN, 0.0, 0.0),
            Optimizer::sgd(0.1, 1.0, 0.0),
            Optimizer::sgd(0.1, 0.0, -1.0),
        ] {
            assert!(matches!(bad.validate(), Err(OptimizerError::OutOfRange { .. })), "{bad:?}");
        }
    }
}
