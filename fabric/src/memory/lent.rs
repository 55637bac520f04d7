//! Memory that peers may write, and the proof that they no longer do. There are two types: [`Exclusive`] memory is sliced, and
//! only this process writes it. [`PeerWritable`] memory is copied from and to, and never sliced: a peer may write it at any
//! time, and a Rust reference promises that nobody does.
//!
//! ```text
//!            lend                          the fence is done, or the peer has answered
//! Exclusive ──────▶ PeerWritable ─────────────────────────────────────────────────────▶ Exclusive
//! ```
//!
//! Without the proof it does not compile:
//! ```compile_fail,E0061
//! # let pool = fabric::Pool::new(4096, "doc").unwrap();
//! let lent = pool.allocate(64).unwrap().lend();
//! let mine = lent.take_back();
//! ```
//! Nor do a slice of lent memory, a write under a slice, and a copy of memory into itself:
//! ```compile_fail,E0608
//! # let pool = fabric::Pool::new(4096, "doc").unwrap();
//! let lent = pool.allocate(64).unwrap().lend();
//! let first = lent[0];
//! ```
//! ```compile_fail,E0624
//! # let pool = fabric::Pool::new(4096, "doc").unwrap();
//! let mine = pool.allocate(64).unwrap();
//! let slice = &mine[..];
//! mine.region().write(0, b"under it").unwrap();
//! ```
//! ```compile_fail,E0277
//! # let pool = fabric::Pool::new(4096, "doc").unwrap();
//! let mut mine = pool.allocate(64).unwrap();
//! let view = fabric::View::from(mine.span());
//! view.read(0, &mut mine).unwrap();
//! ```

use super::elements::{Number, Numbers};
use super::pool::{Exclusive, Pool};
use super::region::{OutOfBounds, Region, Span};
use crate::error::FabricError;
use std::ops::Deref;

/// Nobody else reaches the memory any more. It is made by [`CompletionQueue::fence`](crate::CompletionQueue::fence), where a
/// channel has ended. While a channel is open, the peer's answer takes its place.
#[derive(Debug)]
#[must_use]
pub struct Fenced(());

impl Fenced {
    /// For memory that was granted over open channels, or not at all: each peer that was granted it has answered that it is
    /// done. Over tcp the caller must have taken the grants back, so that the driver refuses a peer that goes on. Over shared
    /// memory and verbs peers are trusted; `docs/security.md` says what that means.
    pub fn answered() -> Self {
        Self(())
    }

    /// For drivers.
    pub(crate) fn proved() -> Self {
        Self(())
    }
}

/// See the module.
#[derive(Debug)]
pub struct PeerWritable(pub(super) Exclusive);

impl Exclusive {
    /// From now on peers may write it, and nobody slices it, until [`PeerWritable::take_back`].
    #[must_use]
    pub fn lend(self) -> PeerWritable {
        PeerWritable(self)
    }
}

impl PeerWritable {
    /// So many bytes of their own region, which is never exclusive. They are taken from the system at first touch.
    pub fn allocate(bytes: usize, name: &str) -> Result<Self, FabricError> {
        let allocated = Pool::new(bytes as u64, name)?.allocate(bytes as u64);
        allocated.map(Exclusive::lend).map_err(|error| FabricError::Internal(format!("{name}: {error}")))
    }

    /// It is exclusive again.
    #[must_use]
    pub fn take_back(self, _proof: Fenced) -> Exclusive {
        self.0
    }

    /// Its bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Has it no bytes? A pool gives out no such memory.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All of it, for work requests.
    #[must_use]
    pub fn all(&self) -> Span {
        self.0.span()
    }

    /// A stretch of it.
    pub fn span(&self, offset: u64, bytes: u64) -> Result<Span, OutOfBounds> {
        self.0.slice(offset, bytes)
    }

    /// Copies bytes out. A peer that writes meanwhile can tear them: validate the copy.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), OutOfBounds> {
        OutOfBounds::unless_within(offset, into.len() as u64, self.len() as u64)?;
        self.0.region().read(self.0.offset() + offset, into)
    }

    /// Copies bytes in.
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<(), OutOfBounds> {
        OutOfBounds::unless_within(offset, from.len() as u64, self.len() as u64)?;
        self.0.region().write(self.0.offset() + offset, from)
    }

    /// Copies bytes from a place in any such memory.
    pub fn copy(&self, offset: u64, from: &Self, from_offset: u64, bytes: u64) -> Result<(), OutOfBounds> {
        let (to, from) = (self.span(offset, bytes)?, from.span(from_offset, bytes)?);
        to.region().copy(to.offset(), from.region(), from.offset(), bytes)
    }

    /// The `count` numbers from `offset` bytes on, read one by one.
    pub fn numbers<N: Number>(&self, offset: u64, count: usize) -> Result<Numbers<'_, N>, OutOfBounds> {
        self.0.numbers(offset, count)
    }
}

/// The region that it lies in, to be exposed.
impl Deref for PeerWritable {
    type Target = Region;

    fn deref(&self) -> &Region {
        self.0.region()
    }
}

/// Copies spans out piece by piece, into memory of its own.
#[derive(Debug)]
pub struct SpanReader(Box<[u8]>);

impl SpanReader {
    /// Pieces have at most so many bytes.
    #[must_use]
    pub fn new(piece_bytes: usize) -> Self {
        Self(vec![0; piece_bytes.max(1)].into())
    }

    /// The span's bytes, in order. If somebody writes them meanwhile, they are a mixture.
    pub fn read(&mut self, span: &Span, mut each: impl FnMut(&[u8])) -> Result<(), OutOfBounds> {
        let (mut at, end) = (span.offset(), span.offset() + span.len());
        while at < end {
            let piece_bytes = (end - at).min(self.0.len() as u64);
            let piece = &mut self.0[..piece_bytes as usize];
            span.region().read(at, piece)?;
            each(piece);
            at += piece_bytes;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lent_memory_is_copied_and_comes_back_with_a_proof() {
        let pool = Pool::new(8192, "test").unwrap();
        let lent = pool.allocate(100).unwrap().lend();
        lent.write(96, b"tail").unwrap();
        assert!(
            lent.write(97, b"tail").is_err() && lent.span(0, 101).is_err() && lent.span(u64::MAX, 1).is_err()
        );
        let other = PeerWritable::allocate(8, "other").unwrap();
        other.copy(4, &lent, 96, 4).unwrap();
        assert!(other.copy(5, &lent, 96, 4).is_err() && other.copy(0, &lent, 97, 4).is_err());
        let mut found = [0; 8];
        other.read(0, &mut found).unwrap();
        assert_eq!((&found, other.len()), (b"\0\0\0\0tail", 8));
        let mine = lent.take_back(Fenced::answered());
        assert_eq!((&mine[96..], mine.len()), (&b"tail"[..], 100));
        let (mut pieces, mut reader) = (Vec::new(), SpanReader::new(3));
        reader.read(&other.all(), |piece| pieces.push(piece.to_vec())).unwrap();
        assert_eq!(pieces, [&b"\0\0\0"[..], b"\0ta", b"il"]);
    }
}
