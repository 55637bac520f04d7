//! The batch: one message, a header, a block table, slot grants and the payload of all blocks. It is the
//! only thing written into a slot. Generalises Li et al., table 1 (block count, N sizes, meta, data).
//!
//! Layout, little-endian, no padding beyond what is named:
//!
//! ```text
//! 0                header, 96 bytes            (checksum covers header, table and grants)
//! 96               block table, 112 bytes each
//! 96 + 112 n       slot grants, 4 bytes each
//! payload_offset   payload, 64-byte aligned    (inline blocks one after the other)
//! ```
//!
//! Decoding copies nothing: it takes the private copy of the prefix that its caller made, and fills a
//! reused vector. What it returns is valid or refused, never "check later".

mod block;
mod checksum;
mod decode;
mod encode;
mod header;
mod notice;

pub use block::{Block, BlockData, Kept, Landing, OpKind, RECORD_INITIALISED, RECORD_LEFT, Reading, Status};
pub use checksum::payload_checksum;
pub use decode::{BatchError, BatchReader, prefix_bytes};
pub use encode::{BatchRoom, BatchWriter, EncodeError, prefix_bytes_padded};
pub use header::{BatchHeader, BatchKind};
pub use notice::{Judgement, Notice, SlotGrant};

#[cfg(test)]
mod tests;
