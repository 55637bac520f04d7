//! Writes the prefix of a batch (header, table, grants) into a caller's buffer. The transport gathers the payload from
//! its own memory; this writer only assigns its offsets.

use super::block::{Block, BlockData};
use super::header::BatchHeader;
use super::notice::SlotGrant;
use crate::limits::{
    BLOCK_BYTES, BLOCKS_PER_BATCH_MAX, GRANTS_PER_BATCH_MAX, HEADER_BYTES, PAYLOAD_ALIGN_BYTES,
    TABLE_BYTES_MAX,
};
use thiserror::Error;
use zerocopy::IntoBytes;

/// A batch that cannot be written. Always a mistake of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum EncodeError {
    /// The buffer is too small for the largest prefix.
    #[error("the prefix buffer is too small: it has {have} bytes, {TABLE_BYTES_MAX} are needed")]
    BufferTooSmall {
        /// Bytes of the buffer.
        have: usize,
    },
}

/// The free room in a slot. This is the only place that knows what fits: engines plan with it, and the writer follows
/// it.
#[derive(Clone, Copy, Debug)]
pub struct BatchRoom {
    slot_bytes: u64,
    blocks: usize,
    payload_bytes: u64,
}

impl BatchRoom {
    /// An empty slot of `slot_bytes`.
    #[must_use]
    pub fn new(slot_bytes: u64) -> Self {
        Self { slot_bytes, blocks: 0, payload_bytes: 0 }
    }

    /// Whether a block with this much inline payload fits.
    #[must_use]
    pub fn fits(&self, inline_bytes: u64) -> bool {
        let prefix = prefix_bytes_padded(self.blocks + 1, GRANTS_PER_BATCH_MAX) as u64;
        let end =
            self.payload_bytes.checked_add(inline_bytes).and_then(|payload| payload.checked_add(prefix));
        self.blocks < BLOCKS_PER_BATCH_MAX && end.is_some_and(|end| end <= self.slot_bytes)
    }

    /// Takes the room for a block. If it does not fit, returns false and changes nothing.
    #[must_use]
    pub fn take(&mut self, inline_bytes: u64) -> bool {
        let fits = self.fits(inline_bytes);
        if fits {
            self.blocks += 1;
            self.payload_bytes += inline_bytes;
        }
        fits
    }

    /// Blocks so far.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.blocks
    }
}

/// Fills one batch's prefix. `push` and `grant` return whether there was room, so a caller packs until something does
/// not fit and sends the rest in the next batch.
pub struct BatchWriter<'a> {
    prefix: &'a mut [u8],
    room: BatchRoom,
    grants: usize,
    pending_grants: [u32; GRANTS_PER_BATCH_MAX],
}

impl<'a> BatchWriter<'a> {
    /// Begins a batch for a slot of `slot_bytes`. The prefix is written into `prefix` (at least [`TABLE_BYTES_MAX`]
    /// bytes).
    pub fn new(prefix: &'a mut [u8], slot_bytes: u64) -> Result<Self, EncodeError> {
        if prefix.len() < TABLE_BYTES_MAX {
            return Err(EncodeError::BufferTooSmall { have: prefix.len() });
        }
        let (room, pending_grants) = (BatchRoom::new(slot_bytes), [0; GRANTS_PER_BATCH_MAX]);
        Ok(Self { prefix, room, grants: 0, pending_grants })
    }

    /// Adds a block, and assigns the payload offset of an inline block. If there is no room, returns false and changes
    /// nothing.
    #[must_use]
    pub fn push(&mut self, mut block: Block) -> bool {
        let (index, payload_bytes) = (self.room.blocks, self.room.payload_bytes);
        let inline_bytes = block.data.inline_bytes(block.bytes);
        if let BlockData::Inline { offset } = &mut block.data {
            *offset = payload_bytes;
        }
        if !self.room.take(inline_bytes) {
            return false;
        }
        let at = HEADER_BYTES + index * BLOCK_BYTES;
        self.prefix[at..at + BLOCK_BYTES].copy_from_slice(block.to_raw().as_bytes());
        true
    }

    /// Adds a slot grant. If there is no room, returns false and changes nothing.
    #[must_use]
    pub fn grant(&mut self, grant: SlotGrant) -> bool {
        if self.grants == GRANTS_PER_BATCH_MAX {
            return false;
        }
        self.pending_grants[self.grants] = grant.to_wire();
        self.grants += 1;
        true
    }

    /// Writes grants, header and checksum. Returns the prefix's bytes, which is also where the payload begins. Counts,
    /// payload offset and bytes in `header` are filled in here.
    pub fn finish(self, mut header: BatchHeader) -> usize {
        let grants_at = HEADER_BYTES + self.room.blocks * BLOCK_BYTES;
        for (i, grant) in self.pending_grants[..self.grants].iter().enumerate() {
            self.prefix[grants_at + 4 * i..][..4].copy_from_slice(&grant.to_le_bytes());
        }
        let used = grants_at + 4 * self.grants;
        let padded = prefix_bytes_padded(self.room.blocks, self.grants);
        self.prefix[used..padded].fill(0);
        header.payload_offset = padded as u64;
        header.payload_bytes = self.room.payload_bytes;
        // Both counts are bounded by constants below 2^16.
        let mut raw = header.to_raw(self.room.blocks as u16, self.grants as u16);
        self.prefix[..HEADER_BYTES].copy_from_slice(raw.as_bytes());
        raw.checksum.set(crc32c::crc32c(&self.prefix[..used]));
        self.prefix[..HEADER_BYTES].copy_from_slice(raw.as_bytes());
        padded
    }
}

/// Bytes of header, table and grants, rounded up to the beginning of the payload.
#[must_use]
pub fn prefix_bytes_padded(blocks: usize, grants: usize) -> usize {
    (HEADER_BYTES + blocks * BLOCK_BYTES + grants * 4).next_multiple_of(PAYLOAD_ALIGN_BYTES)
}
