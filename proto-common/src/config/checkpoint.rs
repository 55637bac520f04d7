//! The settings of checkpoints.

use super::error::{SettingError, wrong};
use serde::{Deserialize, Serialize};

/// Where checkpoints are, when they are written, and which one is restored at the start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct CheckpointSettings {
    /// Directory on a file system that all servers share, or the URL of an object store (`s3://bucket/path`). Empty: no
    /// checkpoints.
    pub directory: String,
    /// Write a checkpoint of every round whose number is a multiple of this. 0: only when a worker or an operator requests one.
    pub every_rounds: u64,
    /// How many complete checkpoints of a job to keep; older ones are deleted. 0: keep all.
    pub keep: u32,
    /// Checkpoint that the job starts from: `none`, `latest` (the job's own, or that of any job in the directory; none if there is no
    /// checkpoint yet), or a checkpoint's name.
    pub restore: String,
    /// Bytes of copied but unwritten chunks that a server buffers. When the buffer is full, rounds wait for the disk.
    pub memory_bytes: u64,
}

impl Default for CheckpointSettings {
    fn default() -> Self {
        Self {
            directory: String::new(),
            every_rounds: 0,
            keep: 3,
            restore: "none".into(),
            memory_bytes: 256 << 20,
        }
    }
}

impl CheckpointSettings {
    pub(super) fn validate(&self) -> Result<(), SettingError> {
        if self.directory.is_empty() && self.every_rounds > 0 {
            let fix = "it requires checkpoint.directory";
            return wrong("checkpoint.every_rounds", self.every_rounds, fix);
        }
        if self.directory.is_empty() && self.restore != "none" {
            return wrong("checkpoint.restore", &self.restore, "it requires checkpoint.directory");
        }
        if self.restore.is_empty() {
            return wrong("checkpoint.restore", "\"\"", "use none, latest, or the name of a checkpoint");
        }
        Ok(())
    }
}
