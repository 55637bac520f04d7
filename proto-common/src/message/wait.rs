//! What a member's operations wait for: for people, and for those who look for the cause. Plain data.

use crate::ids::{Rank, Role};
use serde::{Deserialize, Serialize};

/// An operation that waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wait {
    /// What it is, for people.
    pub what: String,
    /// At a server: whose it is.
    #[serde(default)]
    pub of: Option<Rank>,
    /// Milliseconds it waits.
    pub waited_ms: u64,
    /// Why.
    pub cause: WaitCause,
    /// For whom (the first few), in the role that the cause says.
    pub on: Vec<Rank>,
}

/// Why an operation waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitCause {
    /// Nobody else is missing; at a server, its own lane has it to do. Of no worker: a lane that does not answer.
    Lane,
    /// At a server: these workers have not contributed.
    Contributions,
    /// At a server: these workers read the weights that are to be replaced.
    Readers,
    /// At a server: these workers are too far behind, in a bounded mode.
    Bound,
    /// At a server: these servers have not confirmed their copies.
    Copies,
    /// At a server: what it is to change is copied for a checkpoint first.
    Checkpoint,
    /// At a server: its program's handler, or one that it does not have.
    Handler,
    /// At a worker: these servers have not answered what they were sent.
    Answers,
    /// At a worker: these servers have granted no slot to send it in.
    Credits,
    /// At a worker: there is no connection to these servers.
    Links,
}

impl WaitCause {
    /// The role of those who are waited for.
    #[must_use]
    pub fn role(self) -> Option<Role> {
        match self {
            Self::Contributions | Self::Readers | Self::Bound => Some(Role::Worker),
            Self::Copies | Self::Answers | Self::Credits | Self::Links => Some(Role::Server),
            Self::Lane | Self::Checkpoint | Self::Handler => None,
        }
    }
}
