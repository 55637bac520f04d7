//! The only place that knows how control messages become bytes (bincode 2, fixed integers, little-endian, with a
//! limit). To replace the codec, replace this file.

use crate::limits::CONTROL_FRAME_BYTES_MAX;
use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

/// A control message that cannot be encoded or decoded.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum CodecError {
    /// Our message is larger than a frame.
    #[error(
        "control message too large: {bytes} bytes, the limit is {CONTROL_FRAME_BYTES_MAX}; declare fewer tensors at once"
    )]
    TooLarge { bytes: usize },
    /// Our message cannot be encoded: a bug.
    #[error("control message cannot be encoded: {0}")]
    Encode(String),
    /// The peer's message is malformed.
    #[error("malformed control message: {0}")]
    Malformed(String),
    /// The peer's message has trailing bytes.
    #[error("malformed control message: {extra} extra bytes after {used} bytes")]
    Trailing { used: usize, extra: usize },
}

fn settings() -> impl bincode::config::Config {
    bincode::config::standard()
        .with_little_endian()
        .with_fixed_int_encoding()
        .with_limit::<CONTROL_FRAME_BYTES_MAX>()
}

/// What the codec turns into bytes: a control message, or a record that is copied or kept in the same bytes.
/// [`control_messages`](crate::control_messages) implements it, so that serde's code for a type is compiled in the type's own crate,
/// once. Every role would compile generic functions again.
pub trait Message: Sized {
    /// Message to bytes, at most [`CONTROL_FRAME_BYTES_MAX`].
    fn encoded(&self) -> Result<Vec<u8>, CodecError>;

    /// Bytes to message. All bytes must be used.
    fn decoded(bytes: &[u8]) -> Result<Self, CodecError>;
}

/// Makes these types [messages](crate::message::Message). They have serde's two traits.
#[macro_export]
macro_rules! control_messages {
    ($($message:ty),+ $(,)?) => {$(
        impl $crate::message::Message for $message {
            fn encoded(&self) -> Result<Vec<u8>, $crate::message::CodecError> {
                $crate::message::to_bytes(self)
            }

            fn decoded(bytes: &[u8]) -> Result<Self, $crate::message::CodecError> {
                $crate::message::from_bytes(bytes)
            }
        }
    )+};
}

/// As [`Message::encoded`].
pub fn encode<T: Message>(message: &T) -> Result<Vec<u8>, CodecError> {
    message.encoded()
}

/// As [`Message::decoded`].
pub fn decode<T: Message>(bytes: &[u8]) -> Result<T, CodecError> {
    T::decoded(bytes)
}

/// What [`Message::encoded`] does, for the macro.
#[doc(hidden)]
pub fn to_bytes<T: Serialize>(message: &T) -> Result<Vec<u8>, CodecError> {
    let bytes =
        bincode::serde::encode_to_vec(message, settings()).map_err(|e| CodecError::Encode(e.to_string()))?;
    if bytes.len() > CONTROL_FRAME_BYTES_MAX {
        return Err(CodecError::TooLarge { bytes: bytes.len() });
    }
    Ok(bytes)
}

/// What [`Message::decoded`] does, for the macro.
#[doc(hidden)]
pub fn from_bytes<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, CodecError> {
    let (message, used) = bincode::serde::decode_from_slice(bytes, settings())
        .map_err(|e| CodecError::Malformed(e.to_string()))?;
    match bytes.len() - used {
        0 => Ok(message),
        extra => Err(CodecError::Trailing { used, extra }),
    }
}
