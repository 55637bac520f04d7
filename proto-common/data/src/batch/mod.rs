//! The batch: one message with a header, a block table, slot grants and the payload of all blocks. Nothing else is
//! written into a slot. It generalises Li et al., table 1 (block count, N sizes, meta, data).
//!
//! Layout, little-endian, without other padding:
//!
//! ```text
//! 0                header, 96 bytes            (checksum covers header, table and grants)
//! 96               block table, 112 bytes each
//! 96 + 112 n       slot grants, 4 bytes each
//! payload_offset   payload, 64-byte aligned    (inline blocks one after the other)
//! ```
//!
//! Decoding copies no payload. It takes the private copy of the prefix that its caller made, and fills a reused
//! vector. A batch is valid or refused, as a whole.

mod block;
mod decode;
mod encode;
mod header;
mod notice;

pub use block::{
    Block, BlockData, Count, Kept, Landing, OpKind, RECORD_INITIALISED, RECORD_LEFT, Reading, Status,
};
pub use decode::{BatchError, BatchReader, prefix_bytes};
pub use encode::{BatchRoom, BatchWriter, EncodeError, prefix_bytes_padded};
pub use header::{BatchHeader, BatchKind};
pub use notice::{Judgement, Notice, SlotGrant};

/// CRC32C of a payload whose bytes come piece by piece, in order: begin with 0 and pass on what is returned.
#[must_use]
pub fn payload_checksum(so_far: u32, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(so_far, bytes)
}

#[cfg(test)]
mod tests;
