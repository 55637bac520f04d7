//! Learning-rate schedules: a factor of the learning rate for each round, with the same bits on every machine.

use super::bounds::{OptimizerError, Range};
use serde::{Deserialize, Serialize};

/// How the step size changes with the rounds: it grows linearly during `warmup_rounds`, then decays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Schedule {
    /// Rounds in which the factor grows from 1 / `warmup_rounds` to 1.
    pub warmup_rounds: u32,
    /// The decay after that.
    pub decay: Decay,
}

/// The decay after the warm-up. Rounds are counted from its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Decay {
    /// Constant.
    #[default]
    Constant,
    /// Multiplied by a factor at regular intervals.
    Step {
        /// Rounds between two changes.
        every_rounds: u32,
        /// The factor, from 0 to 1.
        factor: f32,
    },
    /// Multiplied by a factor in every round.
    Exponential {
        /// The factor, 0 to 1.
        factor: f32,
    },
    /// Decays linearly to a share of itself, and stays there.
    Linear {
        /// Rounds until then.
        rounds: u32,
        /// The share, 0 to 1.
        last: f32,
    },
    /// Decays along half a cosine wave to a share of itself (Loshchilov and Hutter 2017), and stays there.
    Cosine {
        /// Rounds until then.
        rounds: u32,
        /// The share, 0 to 1.
        last: f32,
    },
}

impl Schedule {
    /// A constant step size.
    pub const CONSTANT: Self = Self { warmup_rounds: 0, decay: Decay::Constant };

    /// The factor of the learning rate in a round, counted from 1.
    #[must_use]
    #[inline]
    pub fn factor(&self, round: u64) -> f64 {
        let warmup_rounds = u64::from(self.warmup_rounds);
        if round <= warmup_rounds {
            return round as f64 / warmup_rounds as f64;
        }
        let past = round - warmup_rounds - 1;
        let share = |rounds: u32| past.min(u64::from(rounds)) as f64 / f64::from(rounds);
        match self.decay {
            Decay::Constant => 1.0,
            Decay::Step { every_rounds, factor } => power(f64::from(factor), past / u64::from(every_rounds)),
            Decay::Exponential { factor } => power(f64::from(factor), past),
            Decay::Linear { rounds, last } => 1.0 - (1.0 - f64::from(last)) * share(rounds),
            Decay::Cosine { rounds, last } => {
                let last = f64::from(last);
                last + (1.0 - last) * half_wave(share(rounds))
            }
        }
    }

    pub(super) fn validate(&self) -> Result<(), OptimizerError> {
        let some = |name, rounds: u32| Range::Positive.check(name, rounds as f32);
        match self.decay {
            Decay::Constant => Ok(()),
            Decay::Step { every_rounds, factor } => {
                some("every_rounds", every_rounds)?;
                Range::UpToOne.check("factor", factor)
            }
            Decay::Exponential { factor } => Range::UpToOne.check("factor", factor),
            Decay::Linear { rounds, last } | Decay::Cosine { rounds, last } => {
                some("rounds", rounds)?;
                Range::UpToOne.check("last", last)
            }
        }
    }
}

/// Half of 1 + cos(pi * share), computed by our own library, because the system's may round differently.
#[inline]
fn half_wave(share: f64) -> f64 {
    0.5 * (1.0 + libm::cos(std::f64::consts::PI * share))
}

/// By repeated squaring, in one order everywhere.
#[inline]
pub(super) fn power(base: f64, exponent: u64) -> f64 {
    let (mut result, mut square, mut left) = (1.0, base, exponent);
    while left > 0 {
        if left & 1 == 1 {
            result *= square;
        }
        square *= square;
        left >>= 1;
    }
    result
}
