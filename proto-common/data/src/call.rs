//! Calls: the bytes of a worker's request to a server's handler, and their bounds. A request travels as the payload of
//! one block. Large pieces of its body stay in the worker's memory, and the frame says where.
//!
//! Nothing is executed or stored here: bytes in, a checked description out.

use crate::ids::{ChunkId, ChunkIndex, Key, Rank};
use crate::limits::SERVERS_MAX;
use thiserror::Error;

/// Bytes of a head of a request or a reply, at most.
pub const CALL_HEAD_BYTES_MAX: usize = 512;
/// Pieces of one body.
pub const CALL_PIECES_MAX: usize = 16;
/// Calls of one worker to one handler of one server that may be in flight; further ones wait at the worker.
pub const CALLS_IN_FLIGHT_MAX: u64 = 128;
/// Handlers of one server that one worker may call.
pub const CALL_APPS_MAX: usize = 1024;
/// A body of at most this many bytes travels in the slot; a larger one is read from the worker's memory.
pub const CALL_INLINE_BYTES_MAX: u64 = 32 << 10;
/// Bytes of head and body of a reply that travels with the result, at most.
pub const REPLY_INLINE_BYTES_MAX: u64 = 8 << 10;

/// Chunk numbers from here on identify a server in the identity of a call, and not a chunk.
const FIRST_CALL_CHUNK: u32 = u32::MAX - SERVERS_MAX;

const FRAME_BYTES: usize = 8;
const PIECE_BYTES: usize = 16;
/// Instead of an offset: the piece is in the frame.
const IN_FRAME: u64 = u64::MAX;

/// Bytes of the largest frame without the pieces in it.
pub const FRAME_BYTES_MAX: usize = FRAME_BYTES + CALL_HEAD_BYTES_MAX + CALL_PIECES_MAX * PIECE_BYTES;

/// Heads are padded, so that a body in the frame has the frame's alignment.
const fn padded(head_bytes: usize) -> usize {
    head_bytes.next_multiple_of(8)
}

/// The identity of a call: handler and server, as a chunk number that no chunk has.
#[must_use]
pub fn call_id(app: u32, server: Rank) -> ChunkId {
    ChunkId { key: Key(u64::from(app)), chunk: ChunkIndex(FIRST_CALL_CHUNK.saturating_add(server.0)) }
}

/// Handler and server of a call's identity; `None` for a chunk.
#[must_use]
pub fn called(id: ChunkId) -> Option<(u32, Rank)> {
    let server = id.chunk.0.checked_sub(FIRST_CALL_CHUNK).filter(|server| *server < SERVERS_MAX)?;
    Some((u32::try_from(id.key.0).ok()?, Rank(server)))
}

/// Bytes of a body that may travel in a slot for chunks of this size, together with the largest frame.
#[must_use]
pub fn inline_bytes_max(chunk_bytes: u64) -> u64 {
    CALL_INLINE_BYTES_MAX.min(chunk_bytes.saturating_sub(FRAME_BYTES_MAX as u64))
}

/// Where a piece of a body is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PieceAt {
    /// At this offset in the payload.
    Frame {
        /// Bytes from the payload's start.
        offset: usize,
        /// Its bytes.
        bytes: usize,
    },
    /// In the worker's region.
    Worker {
        /// Bytes from the region's start.
        offset: u64,
        /// Its bytes.
        bytes: u64,
    },
}

impl PieceAt {
    /// Its bytes.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        match self {
            Self::Frame { bytes, .. } => *bytes as u64,
            Self::Worker { bytes, .. } => *bytes,
        }
    }
}

/// An invalid frame. Its sender is to blame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("malformed call frame: it is truncated, or longer than its header allows")]
pub struct BadFrame;

/// Writes frames.
#[derive(Clone, Copy, Debug)]
pub struct FrameShape {
    /// Bytes of the head.
    pub head_bytes: usize,
    /// Pieces of the body.
    pub pieces: usize,
    /// Bytes of the pieces in the frame.
    pub inline_bytes: usize,
}

impl FrameShape {
    /// Bytes of the frame.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        FRAME_BYTES + padded(self.head_bytes) + self.pieces * PIECE_BYTES + self.inline_bytes
    }

    /// Writes head and table into `frame`, which has room for [`FrameShape::bytes`]. Returns the rest, for the pieces
    /// in the frame. Each piece has its place in the worker's region (`None`: in the frame), and its bytes.
    pub fn write<'a>(
        &self,
        frame: &'a mut [u8],
        head: &[u8],
        pieces: impl Iterator<Item = (Option<u64>, u64)>,
    ) -> Result<&'a mut [u8], BadFrame> {
        let (fixed, rest) = frame.split_at_mut_checked(FRAME_BYTES).ok_or(BadFrame)?;
        let counts = (u16::try_from(head.len()), u16::try_from(self.pieces));
        let (Ok(head_bytes), Ok(count)) = counts else { return Err(BadFrame) };
        fixed.fill(0);
        fixed[..2].copy_from_slice(&head_bytes.to_le_bytes());
        fixed[2..4].copy_from_slice(&count.to_le_bytes());
        let (to, rest) = rest.split_at_mut_checked(padded(head.len())).ok_or(BadFrame)?;
        to.fill(0);
        to[..head.len()].copy_from_slice(head);
        let (table, rest) = rest.split_at_mut_checked(self.pieces * PIECE_BYTES).ok_or(BadFrame)?;
        for (entry, (offset, bytes)) in table.chunks_exact_mut(PIECE_BYTES).zip(pieces) {
            entry[..8].copy_from_slice(&offset.unwrap_or(IN_FRAME).to_le_bytes());
            entry[8..].copy_from_slice(&bytes.to_le_bytes());
        }
        Ok(rest)
    }
}

/// A decoded frame: head and pieces, all within their bounds.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// The head.
    pub head: &'a [u8],
    table: &'a [u8],
    body_at: usize,
}

impl<'a> Frame<'a> {
    /// Decodes a frame whose body has `body_bytes` in total.
    pub fn read(payload: &'a [u8], body_bytes: u64) -> Result<Self, BadFrame> {
        let (fixed, rest) = payload.split_at_checked(FRAME_BYTES).ok_or(BadFrame)?;
        let head_bytes = usize::from(u16::from_le_bytes([fixed[0], fixed[1]]));
        let pieces = usize::from(u16::from_le_bytes([fixed[2], fixed[3]]));
        if head_bytes > CALL_HEAD_BYTES_MAX || pieces > CALL_PIECES_MAX || fixed[4..] != [0; 4] {
            return Err(BadFrame);
        }
        let (head, rest) = rest.split_at_checked(padded(head_bytes)).ok_or(BadFrame)?;
        let head = &head[..head_bytes];
        let (table, inline) = rest.split_at_checked(pieces * PIECE_BYTES).ok_or(BadFrame)?;
        let frame = Self { head, table, body_at: payload.len() - inline.len() };
        let (mut total, mut in_frame) = (0u64, 0u64);
        for (offset, bytes) in frame.entries() {
            total = total.checked_add(bytes).ok_or(BadFrame)?;
            if offset == IN_FRAME {
                in_frame += bytes;
            } else if offset.checked_add(bytes).is_none() {
                return Err(BadFrame);
            }
        }
        if total != body_bytes || in_frame != inline.len() as u64 {
            return Err(BadFrame);
        }
        Ok(frame)
    }

    fn entries(&self) -> impl Iterator<Item = (u64, u64)> + use<'a> {
        let word = |bytes: &[u8]| {
            let mut word = [0; 8];
            word.copy_from_slice(bytes);
            u64::from_le_bytes(word)
        };
        self.table.chunks_exact(PIECE_BYTES).map(move |entry| (word(&entry[..8]), word(&entry[8..])))
    }

    /// The body's pieces, in order.
    pub fn pieces(&self) -> impl Iterator<Item = PieceAt> + use<'a> {
        let mut at = self.body_at;
        self.entries().map(move |(offset, bytes)| {
            if offset != IN_FRAME {
                return PieceAt::Worker { offset, bytes };
            }
            let piece = PieceAt::Frame { offset: at, bytes: bytes as usize };
            at += bytes as usize;
            piece
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_call_s_identity_is_no_chunk_s() {
        for (app, server) in [(0, 0), (7, 3), (u32::MAX, SERVERS_MAX - 1)] {
            assert_eq!(called(call_id(app, Rank(server))), Some((app, Rank(server))));
        }
        assert_eq!(called(ChunkId::new(7, 0)), None);
        assert_eq!(called(ChunkId::new(7, FIRST_CALL_CHUNK - 1)), None);
        assert_eq!(called(ChunkId::new(1 << 32, FIRST_CALL_CHUNK)), None);
    }

    #[test]
    fn the_frame_s_bytes_are_frozen() {
        let shape = FrameShape { head_bytes: 2, pieces: 2, inline_bytes: 3 };
        let mut bytes = vec![0; shape.bytes()];
        let rest = shape.write(&mut bytes, b"hi", [(None, 3), (Some(64), 9)].into_iter()).unwrap();
        rest.copy_from_slice(b"abc");
        let mut want = vec![2, 0, 2, 0, 0, 0, 0, 0, b'h', b'i', 0, 0, 0, 0, 0, 0];
        want.extend([0xff; 8].iter().chain(&[3, 0, 0, 0, 0, 0, 0, 0]));
        want.extend([64, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0]);
        want.extend(b"abc");
        assert_eq!(bytes, want, "the wire format changed: raise BATCH_VERSION and this test together");
        let frame = Frame::read(&bytes, 12).unwrap();
        assert_eq!(frame.head, b"hi");
        let pieces: Vec<_> = frame.pieces().collect();
        let first = PieceAt::Frame { offset: bytes.len() - 3, bytes: 3 };
        assert_eq!(pieces, [first, PieceAt::Worker { offset: 64, bytes: 9 }]);
        assert_eq!(Frame::read(&bytes, 11).err(), Some(BadFrame), "the body's length is said twice");
        assert_eq!(Frame::read(&bytes[..bytes.len() - 1], 12).err(), Some(BadFrame));
    }

    proptest! {
        #[test]
        fn garbage_is_refused_or_within_bounds(bytes in prop::collection::vec(any::<u8>(), 0..700), total: u64) {
            if let Ok(frame) = Frame::read(&bytes, total) {
                let mut sum = 0;
                for piece in frame.pieces() {
                    sum += piece.bytes();
                    if let PieceAt::Frame { offset, bytes: length } = piece {
                        prop_assert!(bytes.get(offset..offset + length).is_some());
                    }
                }
                prop_assert_eq!(sum, total);
            }
        }

        #[test]
        fn every_cut_of_a_frame_is_refused(head in 0usize..=CALL_HEAD_BYTES_MAX, inline in 0u64..100, cut in 1usize..100) {
            let shape = FrameShape { head_bytes: head, pieces: 1, inline_bytes: inline as usize };
            let mut bytes = vec![0; shape.bytes()];
            shape.write(&mut bytes, &vec![7; head], std::iter::once((None, inline))).unwrap();
            prop_assert!(Frame::read(&bytes, inline).is_ok());
            let left = bytes.len().saturating_sub(cut);
            prop_assert!(Frame::read(&bytes[..left], inline).is_err());
        }
    }
}
