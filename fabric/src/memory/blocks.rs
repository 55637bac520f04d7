//! Fixed blocks of one region, for the prefixes of outgoing batches: taken and given back without a lock
//! or an allocation. The block used last is taken next, because it is still in cache.

use super::region::{OutOfBounds, Region, Span};
use crate::error::FabricError;

/// See the module. Owned by one thread.
#[derive(Debug)]
pub struct Blocks {
    region: Region,
    block_bytes: u64,
    free: Vec<u32>,
}

impl Blocks {
    /// `count` blocks of `block_bytes`.
    pub fn new(count: u32, block_bytes: u64, name: &str) -> Result<Self, FabricError> {
        let bytes = u64::from(count) * block_bytes;
        let region = Region::allocate(bytes as usize, name)?;
        Ok(Self { region, block_bytes, free: (0..count).rev().collect() })
    }

    /// Blocks that are free.
    #[must_use]
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Takes a block.
    pub fn take(&mut self) -> Option<u32> {
        self.free.pop()
    }

    /// Gives a block back that [`Blocks::take`] returned.
    pub fn give(&mut self, block: u32) {
        debug_assert!(!self.free.contains(&block), "a block is given back once");
        self.free.push(block);
    }

    /// Fills a block's start.
    pub fn write(&self, block: u32, offset: u64, bytes: &[u8]) -> Result<(), OutOfBounds> {
        OutOfBounds::unless_within(offset, bytes.len() as u64, self.block_bytes)?;
        self.region.write(u64::from(block) * self.block_bytes + offset, bytes)
    }

    /// Copies a span into a block.
    pub fn copy(&self, block: u32, offset: u64, from: &Span) -> Result<(), OutOfBounds> {
        OutOfBounds::unless_within(offset, from.len(), self.block_bytes)?;
        self.region.copy(
            u64::from(block) * self.block_bytes + offset,
            from.region(),
            from.offset(),
            from.len(),
        )
    }

    /// The first `bytes` of a block.
    pub fn span(&self, block: u32, bytes: u64) -> Result<Span, OutOfBounds> {
        OutOfBounds::unless_within(0, bytes, self.block_bytes)?;
        self.region.span(u64::from(block) * self.block_bytes, bytes)
    }
}
