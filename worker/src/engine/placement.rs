//! How a part's payload travels, and the table of the buffers that servers granted for it: by server and chunk,
//! for as long as the channel lives. Which placement a tensor is to have is decided elsewhere.

use super::lane::LaneEngine;
use super::link::KeyBuffer;
use super::part::{Op, Part, PartSpec};
use proto_common::batch::{BlockData, Landing, Status};
use proto_common::ids::{ChunkId, Rank};
use proto_common::plan::Placement;

/// A chunk that got no buffer does not ask again for so long.
const ASK_AGAIN_MS: u64 = 1_000;

impl LaneEngine {
    /// From now on payloads to this server travel in slots only, as long as its channel lives.
    pub fn use_slots_only(&mut self, server: Rank) {
        if let Some(link) = self.links.get_mut(server.0 as usize) {
            link.slots_only = true;
        }
    }

    /// Where a part's payload is to be when it is sent now.
    pub(super) fn way(&self, op: &Op, spec: &PartSpec) -> BlockData {
        let slot = BlockData::Inline { offset: 0 };
        let Some(link) = self.links.get(spec.server.0 as usize) else { return slot };
        // Servers check what is encoded in slots only.
        if !op.submit.payload || spec.bytes == 0 || spec.coded.is_some() || link.slots_only {
            return slot;
        }
        let keep = match (op.submit.placement, link.buffers.get(&spec.id)) {
            // Placed anew: the buffer is asked for once more, for one landing, and is the server's again after that.
            (placement, Some(KeyBuffer::Granted { keep: true, .. })) if placement != Placement::Static => {
                false
            }
            (_, Some(KeyBuffer::Granted { .. })) => return BlockData::Placed,
            (Placement::Slot, _) => return slot,
            (_, Some(KeyBuffer::Refused { until_ms })) if self.now_ms < *until_ms => return slot,
            (Placement::RendezvousRead, _) => {
                return BlockData::ByReference { region: 0, offset: spec.offset };
            }
            (_, Some(KeyBuffer::Occupied { .. })) => return slot,
            (placement, Some(KeyBuffer::Refused { .. }) | None) => placement == Placement::Static,
        };
        BlockData::Announced { keep }
    }

    /// No buffer that was granted is written any more: all are asked for again.
    pub fn forget_grants(&mut self) {
        self.links.iter_mut().for_each(|link| link.buffers.clear());
        self.chunks.values_mut().for_each(|chunk| chunk.asked_before |= chunk.asked);
    }

    /// A granted buffer is about to be written; where it is.
    pub(super) fn occupy(&mut self, id: ChunkId, server: Rank) -> Option<Landing> {
        let buffer = self.links.get_mut(server.0 as usize)?.buffers.get_mut(&id)?;
        let KeyBuffer::Granted { landing, keep } = *buffer else { return None };
        *buffer = KeyBuffer::Occupied { landing, keep };
        Some(landing)
    }

    /// A part is answered: an announcement holds its chunk up no more, and a buffer is free again where the server
    /// has done with what lies in it. Where a deadline ended the operation it may still lie there: such a buffer is
    /// not ours any more.
    pub(super) fn settle_buffer(&mut self, part: &Part, data: BlockData, status: Status) {
        let (id, server) = (part.spec.id, part.spec.server);
        match data {
            BlockData::Inline { .. } | BlockData::ByReference { .. } => {}
            BlockData::Announced { .. } => {
                if let Some(chunk) = self.chunks.get_mut(&id) {
                    chunk.asked = false;
                    chunk.asked_before &= status == Status::Granted;
                }
            }
            BlockData::Placed => {
                let Some(link) = self.links.get_mut(server.0 as usize) else { return };
                let Some(KeyBuffer::Occupied { landing, keep }) = link.buffers.remove(&id) else { return };
                if status == Status::Retry || (matches!(status, Status::Done | Status::Late) && keep) {
                    link.buffers.insert(id, KeyBuffer::Granted { landing, keep });
                }
            }
        }
    }

    /// The server answers an announcement, or says that it has no room for what a reference names. The error is what
    /// it did wrong.
    pub(super) fn granted(
        &mut self,
        part: &Part,
        data: BlockData,
        landing: Option<Landing>,
    ) -> Result<(), &'static str> {
        let spec = part.spec;
        let buffer = match (data, landing) {
            (BlockData::Announced { .. }, Some(landing)) if landing.bytes < spec.bytes => {
                return Err("it granted a buffer that is too short");
            }
            (BlockData::Announced { keep }, Some(landing)) => KeyBuffer::Granted { landing, keep },
            (BlockData::Announced { .. } | BlockData::ByReference { .. }, None) => {
                KeyBuffer::Refused { until_ms: self.now_ms + ASK_AGAIN_MS }
            }
            _ => return Err("it granted a buffer that was not requested"),
        };
        // Of a server that has given the chunk up meanwhile it is worth nothing, also where the chunk is there again.
        let stays = self.chunks.get_mut(&spec.id).is_some_and(|chunk| {
            !std::mem::take(&mut chunk.asked_before) && chunk.server(spec.server) == spec.server
        });
        if let Some(link) = self.links.get_mut(spec.server.0 as usize).filter(|_| stays) {
            link.buffers.insert(spec.id, buffer);
        }
        Ok(())
    }
}
