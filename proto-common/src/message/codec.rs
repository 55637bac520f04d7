//! The only place that knows how control messages become bytes (bincode 2, fixed integers, little-endian, with a
//! limit). To replace the codec, replace this file.

use crate::limits::CONTROL_FRAME_BYTES_MAX;
use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

/// A control message that cannot be encoded or decoded.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CodecError {
    /// Our message is larger than a frame.
    #[error(
        "control message too large: {bytes} bytes, the limit is {CONTROL_FRAME_BYTES_MAX}; declare fewer tensors at once"
    )]
    TooLarge {
        /// Its bytes.
        bytes: usize,
    },
    /// Our message cannot be encoded: a bug.
    #[error("control message cannot be encoded: {0}")]
    Encode(String),
    /// The peer's message is malformed.
    #[error("malformed control message: {0}")]
    Malformed(String),
    /// The peer's message has trailing bytes.
    #[error("malformed control message: {extra} extra bytes after {used} bytes")]
    Trailing {
        /// Bytes of the message.
        used: usize,
        /// Trailing bytes.
        extra: usize,
    },
}

fn settings() -> impl bincode::config::Config {
    bincode::config::standard()
        .with_little_endian()
        .with_fixed_int_encoding()
        .with_limit::<CONTROL_FRAME_BYTES_MAX>()
}

/// Message to bytes, at most [`CONTROL_FRAME_BYTES_MAX`].
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, CodecError> {
    let bytes =
        bincode::serde::encode_to_vec(message, settings()).map_err(|e| CodecError::Encode(e.to_string()))?;
    if bytes.len() > CONTROL_FRAME_BYTES_MAX {
        return Err(CodecError::TooLarge { bytes: bytes.len() });
    }
    Ok(bytes)
}

/// Bytes to message. All bytes must be used.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, CodecError> {
    let (message, used) = bincode::serde::decode_from_slice(bytes, settings())
        .map_err(|e| CodecError::Malformed(e.to_string()))?;
    match bytes.len() - used {
        0 => Ok(message),
        extra => Err(CodecError::Trailing { used, extra }),
    }
}
