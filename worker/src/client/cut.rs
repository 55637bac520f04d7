//! The bytes of a request on their way: what of its body is in the frame, what is copied into registered memory, and what servers
//! read in place. It must not wait for memory, or start anything.

use super::buffer::Piece;
use crate::error::ClientError;
use crate::runtime::CallParts;
use fabric::Exclusive;
use proto_common::call::{CALL_HEAD_BYTES_MAX, FrameShape, REPLY_INLINE_BYTES_MAX};

/// A piece of at most so many bytes goes into the frame of a long body, too.
const SHORT_PIECE_BYTES: u64 = 4 << 10;

/// How a piece of a body travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    InFrame,
    /// Copied into registered memory, where the server reads it.
    Copied,
    /// It is in registered memory.
    InPlace,
}

/// A request's body before there is memory for it.
#[derive(Debug)]
pub(super) struct Cut {
    pieces: Vec<(Piece, Way)>,
    shape: FrameShape,
    total_bytes: u64,
}

/// A request with its memory.
#[derive(Debug)]
pub(super) struct Filled {
    pub(super) frame: Exclusive,
    pub(super) parts: CallParts,
    pub(super) total_bytes: u64,
}

/// Bytes of room for a reply of this size. None where it travels with the result, even beside the longest head.
pub(super) fn room_bytes(expected: u64) -> u64 {
    let is_short = expected.saturating_add(CALL_HEAD_BYTES_MAX as u64 + 2) <= REPLY_INLINE_BYTES_MAX;
    if is_short { 0 } else { expected }
}

impl Cut {
    /// Short bodies, and short pieces, go into the frame, as far as `inline_max` bytes reach.
    pub(super) fn new(head: &[u8], body: Vec<Piece>, inline_max: u64) -> Self {
        let total_bytes: u64 = body.iter().map(|piece| piece.len() as u64).sum();
        let (is_short, mut inline_bytes) = (total_bytes <= inline_max, 0);
        let way = |piece: &Piece| {
            let bytes = piece.len() as u64;
            let fits = inline_bytes + bytes <= inline_max;
            if is_short || (bytes <= SHORT_PIECE_BYTES && fits) {
                inline_bytes += bytes;
                return Way::InFrame;
            }
            if matches!(piece, Piece::Buffer(_) | Piece::Lent(_)) { Way::InPlace } else { Way::Copied }
        };
        let ways: Vec<Way> = body.iter().map(way).collect();
        let shape =
            FrameShape { head_bytes: head.len(), pieces: body.len(), inline_bytes: inline_bytes as usize };
        Self { pieces: body.into_iter().zip(ways).collect(), shape, total_bytes }
    }

    /// Bytes of registered memory that it needs: of each piece that is copied, and of the frame.
    pub(super) fn sizes(&self) -> impl Iterator<Item = u64> {
        let copied = self.pieces.iter().filter(|(_, way)| *way == Way::Copied);
        copied.map(|(piece, _)| piece.len() as u64).chain([self.shape.bytes() as u64])
    }

    /// Copies what is copied, into memory of these sizes. Pieces of other owners are released.
    pub(super) fn fill(self, head: &[u8], memory: Vec<Exclusive>) -> Result<Filled, ClientError> {
        let broken = || ClientError::Internal("a request was given too little memory".into());
        let mut memory = memory.into_iter();
        let (mut parts, mut table) = (CallParts::default(), Vec::with_capacity(self.pieces.len()));
        for (piece, way) in &self.pieces {
            let span = match (way, piece) {
                (Way::InFrame, _) => None,
                (Way::InPlace, Piece::Buffer(buffer)) => Some(buffer.span()),
                (Way::InPlace, Piece::Lent(memory)) => Some(memory.span()),
                (Way::InPlace | Way::Copied, piece) => {
                    let mut copy = memory.next().ok_or_else(broken)?;
                    match piece {
                        Piece::Adopted(region) => copy.copy_in_region(region),
                        Piece::Bytes(bytes) => copy.copy_in(bytes),
                        Piece::Buffer(buffer) => copy.copy_in(buffer),
                        Piece::Lent(lent) => copy.copy_in_region(lent.memory()),
                    }
                    let span = copy.span();
                    parts.copies.push(copy);
                    Some(span)
                }
            };
            table.push((span.as_ref().map(fabric::Span::offset), piece.len() as u64));
            parts.lent.extend(span);
        }
        let mut frame = memory.next().ok_or_else(broken)?;
        let written = self.shape.write(&mut frame, head, table.into_iter());
        let mut rest = written.map_err(|error| ClientError::Internal(error.to_string()))?;
        for (piece, _) in self.pieces.iter().filter(|(_, way)| *way == Way::InFrame) {
            let (to, after) = rest.split_at_mut_checked(piece.len()).ok_or_else(broken)?;
            piece.copy_to(to);
            rest = after;
        }
        let is_kept = |(piece, way): &(Piece, Way)| match piece {
            Piece::Buffer(_) | Piece::Bytes(_) => true,
            Piece::Lent(_) => *way == Way::InPlace,
            Piece::Adopted(_) => false,
        };
        parts.pieces = self.pieces.into_iter().filter(is_kept).map(|(piece, _)| piece).collect();
        Ok(Filled { frame, parts, total_bytes: self.total_bytes })
    }
}

impl Piece {
    fn copy_to(&self, to: &mut [u8]) {
        match self {
            Self::Buffer(buffer) => to.copy_from_slice(buffer),
            Self::Bytes(bytes) => to.copy_from_slice(bytes),
            Self::Adopted(region) => to.copy_from_slice(&region.contents()),
            Self::Lent(lent) => to.copy_from_slice(&lent.memory().contents()),
        }
    }
}
