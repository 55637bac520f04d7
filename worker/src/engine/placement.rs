//! How a part's payload travels, and the key buffers that one server granted: by chunk, until the channel ends. A tensor's placement is
//! chosen when it is declared (`client/placing.rs`, by the rules of `proto_common::plan`); this file decides for each part whether it
//! can travel in this way now, or takes a slot.
//!
//! ```text
//!         granted: with a buffer           occupy: a payload is written
//!  None ─────────────────────────▶ Granted ────────────────────────────▶ Occupied
//!   │ ▲                               ▲                                     │ │
//!   │ │                               └─ settle: to be sent again, or kept ─┘ │
//!   │ └──────────── settle: otherwise ────────────────────────────────────────┘
//!   │     granted: without one               the time has passed, and it is asked for again
//!   └──────────────────────────────▶ Refused ──────────────────────────────────────────────▶ None
//! ```
//!
//! If a deadline has ended an operation, its payload may still lie in the buffer, and what is written over it would be reduced in its
//! place. So such a buffer is not used again.

use super::part::{PartSpec, Submit};
use proto_common::batch::{BlockData, Landing, Status};
use proto_common::ids::ChunkId;
use proto_common::plan::Placement;
use rustc_hash::FxHashMap;

/// A chunk that got no buffer does not ask again for so long.
const ASK_AGAIN_MS: u64 = 1_000;

/// What a server gave for a chunk.
#[derive(Clone, Copy, Debug)]
pub(super) enum KeyBuffer {
    /// A buffer that may be written: once, or (`keep`) again and again.
    Granted { landing: Landing, keep: bool },
    /// It holds a part's payload until that is answered.
    Occupied { landing: Landing, keep: bool },
    /// None; payloads travel in slots until then.
    Refused { until_ms: u64 },
}

impl KeyBuffer {
    /// What the answer to an announcement means, or a server's word that it has no room for what a reference names. The error is what
    /// the server did wrong.
    pub(super) fn answered(
        bytes: u64,
        data: BlockData,
        landing: Option<Landing>,
        now_ms: u64,
    ) -> Result<Self, &'static str> {
        match (data, landing) {
            (BlockData::Announced { .. }, Some(landing)) if landing.bytes < bytes => {
                Err("it granted a buffer that is too short")
            }
            (BlockData::Announced { keep }, Some(landing)) => Ok(Self::Granted { landing, keep }),
            (BlockData::Announced { .. } | BlockData::ByReference { .. }, None) => {
                Ok(Self::Refused { until_ms: now_ms + ASK_AGAIN_MS })
            }
            _ => Err("it granted a buffer that was not requested"),
        }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct KeyBuffers {
    of: FxHashMap<ChunkId, KeyBuffer>,
    /// All payloads travel in slots: only those have a checksum.
    slots_only: bool,
}

impl KeyBuffers {
    /// From now on payloads travel in slots only.
    pub(super) fn use_slots_only(&mut self) {
        self.slots_only = true;
    }

    /// How a part's payload travels if it is sent now.
    pub(super) fn way(&self, submit: &Submit, spec: &PartSpec, now_ms: u64) -> BlockData {
        let slot = BlockData::Inline { offset: 0 };
        // Servers check what is encoded in slots only.
        if !submit.payload || spec.bytes == 0 || spec.coded.is_some() || self.slots_only {
            return slot;
        }
        let keep = match (submit.placement, self.of.get(&spec.id)) {
            // The tensor's placement has changed. Another announcement, for one write, returns the kept buffer to the server.
            (placement, Some(KeyBuffer::Granted { keep: true, .. })) if placement != Placement::Static => {
                false
            }
            (_, Some(KeyBuffer::Granted { .. })) => return BlockData::Placed,
            (Placement::Slot, _) => return slot,
            (_, Some(KeyBuffer::Refused { until_ms })) if now_ms < *until_ms => return slot,
            (Placement::RendezvousRead, _) => {
                return BlockData::ByReference { region: 0, offset: spec.offset };
            }
            (_, Some(KeyBuffer::Occupied { .. })) => return slot,
            (placement, Some(KeyBuffer::Refused { .. }) | None) => placement == Placement::Static,
        };
        BlockData::Announced { keep }
    }

    /// The server has answered for a chunk.
    pub(super) fn granted(&mut self, id: ChunkId, buffer: KeyBuffer) {
        self.of.insert(id, buffer);
    }

    /// A granted buffer is about to be written; where it is.
    pub(super) fn occupy(&mut self, id: ChunkId) -> Option<Landing> {
        let buffer = self.of.get_mut(&id)?;
        let KeyBuffer::Granted { landing, keep } = *buffer else { return None };
        *buffer = KeyBuffer::Occupied { landing, keep };
        Some(landing)
    }

    /// The part whose payload lies in a buffer is answered.
    pub(super) fn settle(&mut self, id: ChunkId, status: Status) {
        let Some(KeyBuffer::Occupied { landing, keep }) = self.of.remove(&id) else { return };
        if status == Status::Retry || (matches!(status, Status::Done | Status::Late) && keep) {
            self.of.insert(id, KeyBuffer::Granted { landing, keep });
        }
    }

    /// What was granted for these chunks only is still ours.
    pub(super) fn retain(&mut self, stays: impl Fn(ChunkId) -> bool) {
        self.of.retain(|id, _| stays(*id));
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{part, submit};
    use super::*;
    use proto_common::batch::OpKind;

    const SLOT: BlockData = BlockData::Inline { offset: 0 };

    fn way(buffers: &KeyBuffers, placement: Placement, now_ms: u64) -> BlockData {
        buffers.way(&Submit { placement, ..submit(OpKind::Push, 1) }, &part(1, 0), now_ms)
    }

    /// What the server answers to an announcement, with room for so many bytes or none.
    fn answered(keep: bool, bytes: Option<u64>) -> Result<KeyBuffer, &'static str> {
        let landing = bytes.map(|bytes| Landing { region: 1, offset: 0, bytes });
        KeyBuffer::answered(part(1, 0).bytes, BlockData::Announced { keep }, landing, 0)
    }

    #[test]
    fn a_kept_buffer_is_used_again_unless_its_payload_may_still_lie_there() {
        let (mut buffers, part) = (KeyBuffers::default(), part(1, 0));
        assert_eq!(way(&buffers, Placement::Static, 0), BlockData::Announced { keep: true });
        buffers.granted(part.id, answered(true, Some(part.bytes)).unwrap());
        for status in [Status::Done, Status::Late, Status::Retry] {
            assert_eq!(way(&buffers, Placement::Static, 0), BlockData::Placed);
            assert!(buffers.occupy(part.id).is_some() && buffers.occupy(part.id).is_none());
            assert_eq!(way(&buffers, Placement::Static, 0), SLOT);
            buffers.settle(part.id, status);
        }
        assert!(buffers.occupy(part.id).is_some());
        buffers.settle(part.id, Status::DeadlineWaiting);
        assert_eq!(way(&buffers, Placement::Static, 0), BlockData::Announced { keep: true });
    }

    #[test]
    fn a_buffer_for_once_is_the_servers_again() {
        let (mut buffers, part) = (KeyBuffers::default(), part(1, 0));
        buffers.granted(part.id, answered(false, Some(part.bytes)).unwrap());
        assert!(buffers.occupy(part.id).is_some());
        buffers.settle(part.id, Status::Done);
        assert_eq!(way(&buffers, Placement::RendezvousWrite, 0), BlockData::Announced { keep: false });
    }

    #[test]
    fn a_refusal_counts_for_a_time() {
        let (mut buffers, id) = (KeyBuffers::default(), part(1, 0).id);
        buffers.granted(id, answered(true, None).unwrap());
        assert_eq!(way(&buffers, Placement::Static, ASK_AGAIN_MS - 1), SLOT);
        assert_eq!(way(&buffers, Placement::Static, ASK_AGAIN_MS), BlockData::Announced { keep: true });
        buffers.use_slots_only();
        assert_eq!(way(&buffers, Placement::Static, ASK_AGAIN_MS), SLOT);
    }

    #[test]
    fn a_grant_is_long_enough_and_was_asked_for() {
        let bytes = part(1, 0).bytes;
        answered(true, Some(bytes)).unwrap();
        answered(true, Some(bytes - 1)).unwrap_err();
        let landing = Some(Landing { region: 1, offset: 0, bytes });
        KeyBuffer::answered(bytes, SLOT, landing, 0).unwrap_err();
        KeyBuffer::answered(bytes, BlockData::ByReference { region: 0, offset: 0 }, landing, 0).unwrap_err();
    }
}
