//! What the program that embeds a server adds to it. It must not know what a server does with that.

use crate::app::Apps;
use crate::own::Rules;

/// What the program adds to a server.
#[derive(Clone, Debug, Default)]
pub struct Program {
    /// Handlers for workers' calls.
    pub apps: Apps,
    /// Update rules. All servers of a job must have the same ones.
    pub rules: Rules,
}

impl From<Apps> for Program {
    fn from(apps: Apps) -> Self {
        Self { apps, ..Self::default() }
    }
}

impl From<Rules> for Program {
    fn from(rules: Rules) -> Self {
        Self { rules, ..Self::default() }
    }
}
