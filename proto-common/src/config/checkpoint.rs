//! The settings of checkpoints.

use super::{SettingError, wrong};
use serde::{Deserialize, Serialize};

/// Where checkpoints are, when they are written, and which one is read at the start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct CheckpointSettings {
    /// Directory that all servers see, or the URL of an object store (`s3://bucket/path`); an empty string: no checkpoints.
    pub directory: String,
    /// A checkpoint is written of every round whose number is a multiple of this; 0: only when a worker or an operator asks.
    pub every_rounds: u64,
    /// So many complete checkpoints are kept, the newest; 0 keeps all.
    pub keep: u32,
    /// What the job starts from: `none`, `latest` (nothing where there is none), or a checkpoint's name.
    pub restore: String,
    /// Bytes that a server keeps at once of what is copied and not written yet. With no room left rounds wait for the disk.
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
            let fix = "set checkpoint.directory with it, or nothing is written";
            return wrong("checkpoint.every_rounds", self.every_rounds, fix);
        }
        if self.directory.is_empty() && self.restore != "none" {
            return wrong("checkpoint.restore", &self.restore, "set checkpoint.directory with it");
        }
        if self.restore.is_empty() {
            return wrong("checkpoint.restore", "\"\"", "use none, latest, or a checkpoint's name");
        }
        Ok(())
    }
}
