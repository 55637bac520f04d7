//! Placement: how a tensor travels. The words are fixed here; what chooses between them comes with the
//! placements themselves.

use serde::{Deserialize, Serialize};

/// How a tensor's bytes travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// Batched through the receiver's circular inbox.
    Slot,
    /// Straight into a key buffer at its final address.
    Static,
    /// Metadata first, then the receiver reads the body.
    RendezvousRead,
    /// Metadata first, then the sender writes the body.
    RendezvousWrite,
}
