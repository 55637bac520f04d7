//! The frame header of the TCP driver: 40 little-endian bytes, pure encode and strict decode. It knows
//! nothing of sockets or regions; whoever decodes a frame checks key and bounds.
//!
//! | bytes | field | used by |
//! | --- | --- | --- |
//! | 0..2 | magic `0x5747` | all |
//! | 2 | operation: 1 write, 2 read request, 3 read response | all |
//! | 3 | flags: bit 0, the immediate counts | write |
//! | 4..8 | immediate | write |
//! | 8..16 | key of the receiver's region | write, read request |
//! | 16..24 | offset in it | write, read request |
//! | 24..32 | length: payload bytes that follow, or bytes wanted | all |
//! | 32..40 | id: pairs a response with its request | read request and response |
//!
//! Fields an operation does not use are zero, so that each frame has one encoding only.

/// Bytes of a header.
pub const HEADER_BYTES: usize = 40;

const MAGIC: u16 = 0x5747;
const OP_WRITE: u8 = 1;
const OP_READ_REQUEST: u8 = 2;
const OP_READ_RESPONSE: u8 = 3;
const FLAG_IMMEDIATE: u8 = 1;

/// A decoded header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// `length` payload bytes follow, for the receiver's region.
    Write {
        /// The region.
        key: u64,
        /// Where in it.
        offset: u64,
        /// Payload bytes.
        length: u64,
        /// To be reported once the payload is in place.
        immediate: Option<u32>,
    },
    /// Asks for bytes of the receiver's region; no payload.
    ReadRequest {
        /// The region.
        key: u64,
        /// Where in it.
        offset: u64,
        /// Bytes wanted.
        length: u64,
        /// Comes back in the response.
        id: u64,
    },
    /// `length` payload bytes follow: the answer to a request.
    ReadResponse {
        /// Payload bytes.
        length: u64,
        /// The request's id.
        id: u64,
    },
}

impl Frame {
    /// The header's bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let (op, flags, immediate, key, offset, length, id) = match *self {
            Self::Write { key, offset, length, immediate } => {
                let flags = if immediate.is_some() { FLAG_IMMEDIATE } else { 0 };
                (OP_WRITE, flags, immediate.unwrap_or(0), key, offset, length, 0)
            }
            Self::ReadRequest { key, offset, length, id } => (OP_READ_REQUEST, 0, 0, key, offset, length, id),
            Self::ReadResponse { length, id } => (OP_READ_RESPONSE, 0, 0, 0, 0, length, id),
        };
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..2].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[2] = op;
        bytes[3] = flags;
        bytes[4..8].copy_from_slice(&immediate.to_le_bytes());
        bytes[8..16].copy_from_slice(&key.to_le_bytes());
        bytes[16..24].copy_from_slice(&offset.to_le_bytes());
        bytes[24..32].copy_from_slice(&length.to_le_bytes());
        bytes[32..40].copy_from_slice(&id.to_le_bytes());
        bytes
    }

    /// Reads a header; refuses whatever [`Frame::encode`] would not have written, and says why.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, String> {
        let magic = u16::from_le_bytes([bytes[0], bytes[1]]);
        if magic != MAGIC {
            // Another protocol, or a stream out of step.
            return Err(format!("no frame begins with {magic:#06x}"));
        }
        let (op, flags) = (bytes[2], bytes[3]);
        let immediate = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
        let (key, offset) = (word(bytes, 8), word(bytes, 16));
        let (length, id) = (word(bytes, 24), word(bytes, 32));
        let allowed = if op == OP_WRITE { FLAG_IMMEDIATE } else { 0 };
        if flags & !allowed != 0 {
            return Err(format!("unknown flags {flags:#04x}"));
        }
        let has_immediate = flags & FLAG_IMMEDIATE != 0;
        let clean =
            |zero: bool, frame| if zero { Ok(frame) } else { Err("an unused field is not zero".into()) };
        match op {
            OP_WRITE => {
                let frame =
                    Self::Write { key, offset, length, immediate: has_immediate.then_some(immediate) };
                clean(id == 0 && (has_immediate || immediate == 0), frame)
            }
            OP_READ_REQUEST => clean(immediate == 0, Self::ReadRequest { key, offset, length, id }),
            OP_READ_RESPONSE => {
                clean(immediate == 0 && key == 0 && offset == 0, Self::ReadResponse { length, id })
            }
            other => Err(format!("unknown operation {other}")),
        }
    }
}

fn word(bytes: &[u8; HEADER_BYTES], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}
