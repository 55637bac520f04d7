//! Forged batches: a well-formed prefix with some bytes changed, its checksum made right again or not. The
//! places of the fields are frozen in `proto_common::batch`'s own tests.

use proto_common::limits::{BLOCK_BYTES, HEADER_BYTES};

/// A field of the header: its first byte and its bytes.
#[derive(Clone, Copy, Debug)]
pub struct Field(usize, usize);

/// Header: magic bytes.
pub const MAGIC: Field = Field(0, 4);
/// Header: version of the format.
pub const VERSION: Field = Field(4, 2);
/// Header: request or result.
pub const KIND: Field = Field(6, 1);
/// Header: flags.
pub const FLAGS: Field = Field(7, 1);
/// Header: CRC of header, table and grants.
pub const CHECKSUM: Field = Field(8, 4);
/// Header: the lane.
pub const LANE: Field = Field(12, 2);
/// Header: how many blocks.
pub const BLOCK_COUNT: Field = Field(14, 2);
/// Header: how many grants.
pub const GRANT_COUNT: Field = Field(16, 2);
/// Header: the sender's rank.
pub const SENDER: Field = Field(20, 4);
/// Header: the job.
pub const JOB: Field = Field(24, 8);
/// Header: the sender's life.
pub const SENDER_INCARNATION: Field = Field(40, 8);
/// Header: the receiver's life.
pub const RECEIVER_INCARNATION: Field = Field(48, 8);
/// Header: where the payload is.
pub const PAYLOAD_OFFSET: Field = Field(64, 8);
/// Header: its bytes.
pub const PAYLOAD_BYTES: Field = Field(72, 8);
/// Header: bytes that must be zero.
pub const RESERVED: Field = Field(84, 8);
/// First block: what is done.
pub const OP: Field = Field(HEADER_BYTES + 12, 1);
/// First block: type of the elements.
pub const DTYPE: Field = Field(HEADER_BYTES + 13, 1);
/// First block: flags.
pub const BLOCK_FLAGS: Field = Field(HEADER_BYTES + 15, 1);
/// First block: payload bytes.
pub const BYTES: Field = Field(HEADER_BYTES + 32, 8);
/// First block: where in the payload.
pub const OFFSET: Field = Field(HEADER_BYTES + 40, 8);
/// First block: status.
pub const STATUS: Field = Field(HEADER_BYTES + 108, 1);

/// Changes a field; the checksum stays as it was.
pub fn set(prefix: &mut [u8], field: Field, value: u64) {
    let Field(at, bytes) = field;
    prefix[at..at + bytes].copy_from_slice(&value.to_le_bytes()[..bytes]);
}

/// What a field says.
#[must_use]
pub fn get(prefix: &[u8], field: Field) -> u64 {
    let Field(at, bytes) = field;
    let mut value = [0; 8];
    value[..bytes].copy_from_slice(&prefix[at..at + bytes]);
    u64::from_le_bytes(value)
}

/// Makes the checksum right for what the header says, as far as the bytes reach.
pub fn reseal(prefix: &mut [u8]) {
    let (blocks, grants) = (get(prefix, BLOCK_COUNT) as usize, get(prefix, GRANT_COUNT) as usize);
    let used = (HEADER_BYTES + blocks * BLOCK_BYTES + grants * 4).min(prefix.len());
    set(prefix, CHECKSUM, 0);
    let sum = crc32c::crc32c(&prefix[..used]);
    set(prefix, CHECKSUM, u64::from(sum));
}
