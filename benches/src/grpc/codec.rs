//! The gRPC baseline's message: a fixed head and raw payload, without protobuf and with as few copies as
//! tonic's codec allows (one into its send buffer, none out of its receive buffer).
//!
//! It must not know what messages mean.

use crate::store::{Frame, Head, Kind};
use bytes::{Buf as _, BufMut as _};
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

/// Bytes of a message before its payload.
const HEAD_BYTES: usize = 12;

/// Bytes that gRPC itself puts before each message.
const GRPC_PREFIX_BYTES: usize = 5;

/// Encodes and decodes [`Frame`]s.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FrameCodec {
    settings: BufferSettings,
}

impl FrameCodec {
    /// A codec whose buffers fit a chunk, and which collects messages up to `yield_bytes`.
    pub(crate) fn new(chunk_bytes: u32, yield_bytes: u32) -> Self {
        let buffer = chunk_bytes as usize + HEAD_BYTES + GRPC_PREFIX_BYTES;
        Self { settings: BufferSettings::new(buffer, yield_bytes as usize) }
    }
}

impl Codec for FrameCodec {
    type Encode = Frame;
    type Decode = Frame;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for FrameCodec {
    type Item = Frame;
    type Error = Status;

    fn encode(&mut self, frame: Frame, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        out.reserve(HEAD_BYTES + frame.payload.len());
        out.put_u32_le(frame.head.kind.code());
        out.put_u32_le(frame.head.key);
        out.put_u32_le(frame.head.chunk);
        out.put_slice(&frame.payload);
        Ok(())
    }

    fn buffer_settings(&self) -> BufferSettings {
        self.settings
    }
}

impl Decoder for FrameCodec {
    type Item = Frame;
    type Error = Status;

    fn decode(&mut self, input: &mut DecodeBuf<'_>) -> Result<Option<Frame>, Status> {
        if input.remaining() < HEAD_BYTES {
            return Err(Status::invalid_argument("a message shorter than its head"));
        }
        let code = input.get_u32_le();
        let kind = Kind::from_code(code)
            .ok_or_else(|| Status::invalid_argument(format!("unknown kind of message {code}")))?;
        let key = input.get_u32_le();
        let chunk = input.get_u32_le();
        // A view of the receive buffer, not a copy.
        let payload = input.copy_to_bytes(input.remaining());
        Ok(Some(Frame { head: Head { kind, key, chunk }, payload }))
    }

    fn buffer_settings(&self) -> BufferSettings {
        self.settings
    }
}
