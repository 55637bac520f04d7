//! How a tensor's contributions travel: the words for it.

use serde::{Deserialize, Serialize};

/// How a tensor's contributions travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// In batches, through the slots of the server's inbox.
    #[default]
    Slot,
    /// Straight into a key buffer that the server keeps for this worker and chunk.
    Static,
    /// Announced by a reference; the server reads it out of the worker's memory.
    RendezvousRead,
    /// Announced; the server grants a buffer for one landing, and the worker writes it.
    RendezvousWrite,
}
