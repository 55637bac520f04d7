//! Decodes a batch's prefix. The caller copies it out of the slot first, because a peer on shared memory can change a
//! slot at any time. Nothing here is read twice from memory that a peer can write.

use super::block::{Block, BlockData, RawBlock};
use super::encode::prefix_bytes_padded;
use super::header::{BATCH_VERSION, BatchHeader, MAGIC, RawHeader};
use super::notice::SlotGrant;
use crate::limits::{BLOCK_BYTES, BLOCKS_PER_BATCH_MAX, GRANTS_PER_BATCH_MAX, HEADER_BYTES};
use thiserror::Error;
use zerocopy::FromBytes;
use zerocopy::little_endian::U32;

/// Why a batch was refused. The sender is always to blame: the fault is counted and its channel closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[expect(missing_docs, reason = "a name that says it all needs no sentence")]
pub enum BatchError {
    /// Fewer bytes than the header, or than header and table announce.
    #[error("batch is truncated: {have} bytes, {need} needed")]
    Truncated { have: usize, need: usize },
    /// Not a batch.
    #[error("batch does not start with the magic bytes")]
    BadMagic,
    /// Another version of the format.
    #[error("batch has format version {0}, this build uses {BATCH_VERSION}; upgrade the older peer")]
    Version(u16),
    /// Header or table changed on the way.
    #[error("batch checksum mismatch: computed {computed:08x}, header has {stated:08x}")]
    Checksum { computed: u32, stated: u32 },
    /// More blocks or grants than allowed.
    #[error(
        "batch has {blocks} blocks and {grants} grants, the limits are {BLOCKS_PER_BATCH_MAX} and {GRANTS_PER_BATCH_MAX}"
    )]
    TooMany { blocks: usize, grants: usize },
    /// Unknown kind or flag, or a reserved field that is not zero.
    #[error("batch header has an unknown kind or flag")]
    BadHeader,
    /// The payload is not within the slot.
    #[error("payload of {bytes} bytes at {offset} does not fit the {total} bytes of the slot")]
    PayloadOutOfBounds { offset: u64, bytes: u64, total: u64 },
    /// A table entry with an unknown id, flag or status.
    #[error("block {index} has an unknown operation, dtype, status or flag")]
    BadBlock { index: usize },
    /// An inline block that exceeds the payload.
    #[error("block {index} extends beyond the payload")]
    BlockOutOfBounds { index: usize },
    /// A grant whose index is no slot.
    #[error("grant {index} has an invalid slot")]
    BadGrant { index: usize },
}

/// Bytes of the prefix that a header announces: how much to copy out before [`BatchReader::read`]. Needs the first
/// [`HEADER_BYTES`] bytes.
pub fn prefix_bytes(header: &[u8]) -> Result<usize, BatchError> {
    let (_, blocks, grants) = raw_header(header)?;
    Ok(HEADER_BYTES + blocks * BLOCK_BYTES + grants * 4)
}

fn raw_header(bytes: &[u8]) -> Result<(RawHeader, usize, usize), BatchError> {
    let truncated = BatchError::Truncated { have: bytes.len(), need: HEADER_BYTES };
    let (raw, _) = RawHeader::read_from_prefix(bytes).map_err(|_| truncated)?;
    if raw.magic != MAGIC {
        return Err(BatchError::BadMagic);
    }
    if raw.version.get() != BATCH_VERSION {
        return Err(BatchError::Version(raw.version.get()));
    }
    let (blocks, grants) = (usize::from(raw.block_count.get()), usize::from(raw.grant_count.get()));
    if blocks > BLOCKS_PER_BATCH_MAX || grants > GRANTS_PER_BATCH_MAX {
        return Err(BatchError::TooMany { blocks, grants });
    }
    Ok((raw, blocks, grants))
}

/// Decoded batches. Its vectors are reused, so that reading allocates nothing after the first batches.
#[derive(Debug, Default)]
pub struct BatchReader {
    /// The blocks of the last batch read.
    pub blocks: Vec<Block>,
    /// The slot grants of the last batch read.
    pub grants: Vec<SlotGrant>,
}

impl BatchReader {
    /// Decodes the prefix of a batch in a slot with `total_bytes`. On error the vectors are empty.
    pub fn read(&mut self, prefix: &[u8], total_bytes: u64) -> Result<BatchHeader, BatchError> {
        self.blocks.clear();
        self.grants.clear();
        let header = self.read_into(prefix, total_bytes);
        if header.is_err() {
            self.blocks.clear();
            self.grants.clear();
        }
        header
    }

    fn read_into(&mut self, prefix: &[u8], total_bytes: u64) -> Result<BatchHeader, BatchError> {
        let (raw, blocks, grants) = raw_header(prefix)?;
        let need = HEADER_BYTES + blocks * BLOCK_BYTES + grants * 4;
        let have = prefix.len();
        let prefix = prefix.get(..need).ok_or(BatchError::Truncated { have, need })?;
        check_sum(prefix, raw.checksum.get())?;
        let header = BatchHeader::from_raw(&raw).ok_or(BatchError::BadHeader)?;
        check_payload(&header, prefix_bytes_padded(blocks, grants) as u64, total_bytes)?;

        let (table, grant_bytes) = prefix[HEADER_BYTES..].split_at(blocks * BLOCK_BYTES);
        for (index, bytes) in table.chunks_exact(BLOCK_BYTES).enumerate() {
            let raw = RawBlock::ref_from_bytes(bytes).map_err(|_| BatchError::BadBlock { index })?;
            let block = Block::from_raw(raw).ok_or(BatchError::BadBlock { index })?;
            if let BlockData::Inline { offset } = block.data {
                let end = offset.checked_add(block.bytes);
                if end.is_none_or(|end| end > header.payload_bytes) {
                    return Err(BatchError::BlockOutOfBounds { index });
                }
            }
            self.blocks.push(block);
        }
        for (index, bytes) in grant_bytes.chunks_exact(4).enumerate() {
            let wire = U32::read_from_bytes(bytes).map_err(|_| BatchError::BadGrant { index })?;
            self.grants.push(SlotGrant::from_wire(wire.get()).ok_or(BatchError::BadGrant { index })?);
        }
        Ok(header)
    }
}

/// The checksum is computed with zero in its own field.
fn check_sum(prefix: &[u8], stated: u32) -> Result<(), BatchError> {
    const AT: usize = 8;
    let computed = crc32c::crc32c(&prefix[..AT]);
    let computed = crc32c::crc32c_append(computed, &[0; 4]);
    let computed = crc32c::crc32c_append(computed, &prefix[AT + 4..]);
    if computed == stated { Ok(()) } else { Err(BatchError::Checksum { computed, stated }) }
}

fn check_payload(header: &BatchHeader, prefix: u64, total: u64) -> Result<(), BatchError> {
    let (offset, bytes) = (header.payload_offset, header.payload_bytes);
    let end = offset.checked_add(bytes);
    if offset != prefix || end.is_none_or(|end| end > total) {
        return Err(BatchError::PayloadOutOfBounds { offset, bytes, total });
    }
    Ok(())
}
