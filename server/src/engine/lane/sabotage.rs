//! Rules that tests break on purpose, at the lane: see [`BrokenRule`].

use super::LaneEngine;
use crate::engine::sabotage::BrokenRule;

impl LaneEngine {
    /// Breaks a rule from now on.
    #[cfg(feature = "sabotage")]
    pub fn sabotage(&mut self, rule: BrokenRule) {
        self.broken = Some(rule);
    }

    /// Is this rule broken?
    #[cfg(feature = "sabotage")]
    pub(crate) fn breaks(&self, rule: BrokenRule) -> bool {
        self.broken == Some(rule)
    }

    /// Is this rule broken? Never, but in tests.
    #[cfg(not(feature = "sabotage"))]
    #[allow(clippy::unused_self, reason = "as with the feature")]
    pub(crate) const fn breaks(&self, _: BrokenRule) -> bool {
        false
    }
}
