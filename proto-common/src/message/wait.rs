//! What a member's operations wait for, for display and for the search for a cause. Plain data.

use crate::ids::{Rank, Role};
use serde::{Deserialize, Serialize};

/// An operation that waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wait {
    /// Its description.
    pub what: String,
    /// At a server: the worker of the operation.
    #[serde(default)]
    pub of: Option<Rank>,
    /// How many milliseconds it has waited.
    pub waited_ms: u64,
    /// The cause.
    pub cause: WaitCause,
    /// The first few members that it waits for, in the role that the cause implies.
    pub on: Vec<Rank>,
}

/// Why an operation waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitCause {
    /// It waits for no other member. At a server, its own lane must work on it; without a worker, a lane does not
    /// respond.
    Lane,
    /// At a server: these workers have not contributed.
    Contributions,
    /// At a server: these workers read the weights that must be replaced.
    Readers,
    /// At a server: these workers are too far behind, in mode bounded.
    Bound,
    /// At a server: these servers have not confirmed their replicas.
    Copies,
    /// At a server: the chunk must first be copied for a checkpoint.
    Checkpoint,
    /// At a server: a handler of its program is running or missing.
    Handler,
    /// At a worker: these servers have not answered.
    Answers,
    /// At a worker: these servers have granted no slot.
    Credits,
    /// At a worker: there is no connection to these servers.
    Links,
}

impl WaitCause {
    /// The role of the members that are waited for.
    #[must_use]
    pub fn role(self) -> Option<Role> {
        match self {
            Self::Contributions | Self::Readers | Self::Bound => Some(Role::Worker),
            Self::Copies | Self::Answers | Self::Credits | Self::Links => Some(Role::Server),
            Self::Lane | Self::Checkpoint | Self::Handler => None,
        }
    }
}
