//! The settings of `gradwire launch` itself. Its flags are in the `cli` crate.

use serde::{Deserialize, Serialize};

/// What `gradwire launch` does with the processes that it has started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct LaunchSettings {
    /// End a server of the launcher's host with SIGKILL if the scheduler has declared it failed but the process has not exited
    /// after `--grace-ms`: it may have been stopped by a signal. Never ends a worker, a program of `--every-role`, or a process
    /// that somebody else has started.
    pub end_failed: bool,
}
