//! Where contributions lie: in cells of memory that peers write, decoded, or in a worker's memory. It must not know what they mean.

use super::error::StorageError;
use crate::engine::Source;
use fabric::{Exclusive, FabricError, Number, Numbers, OutOfBounds, PeerWritable, Span, View};
use proto_common::ids::Rank;
use std::sync::Arc;

/// Memory that peers write, cut into cells of one size: the inbox's slots, or the spill area's blocks.
#[derive(Clone, Debug)]
pub struct Cells {
    memory: Arc<PeerWritable>,
    cell_bytes: u64,
}

impl Cells {
    /// `count` cells; memory is taken from the system at first touch.
    pub fn allocate(count: u32, cell_bytes: u64, name: &str) -> Result<Self, FabricError> {
        let bytes = usize::try_from(u64::from(count).saturating_mul(cell_bytes)).unwrap_or(usize::MAX);
        let memory = PeerWritable::allocate(bytes, name)?;
        Ok(Self { memory: Arc::new(memory), cell_bytes })
    }

    /// The memory of all of them.
    #[must_use]
    pub fn memory(&self) -> &Arc<PeerWritable> {
        &self.memory
    }

    /// Where a cell starts.
    #[must_use]
    pub fn start(&self, cell: u32) -> u64 {
        u64::from(cell) * self.cell_bytes
    }

    /// All of a cell.
    pub fn span(&self, cell: u32) -> Result<Span, OutOfBounds> {
        self.memory.span(self.start(cell), self.cell_bytes)
    }

    /// Bytes of a cell.
    #[must_use]
    pub fn cell_bytes(&self) -> u64 {
        self.cell_bytes
    }
}

/// Where a contribution lies. A peer can write most of it at any time.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place<'a> {
    /// So many bytes into memory of ours.
    Memory { memory: &'a PeerWritable, at: u64 },
    /// Decoded, in memory that nobody else has.
    Decoded(&'a Exclusive),
    /// In a worker's memory.
    View(&'a View),
}

impl<'a> Place<'a> {
    /// Copies the first bytes out.
    pub(super) fn read(self, into: &mut [u8]) -> Result<(), OutOfBounds> {
        match self {
            Self::Memory { memory, at } => memory.read(at, into),
            Self::Decoded(numbers) => {
                OutOfBounds::unless_within(0, into.len() as u64, numbers.len() as u64)?;
                into.copy_from_slice(&numbers[..into.len()]);
                Ok(())
            }
            Self::View(view) => view.read(0, into),
        }
    }

    /// Copies the first bytes into memory that peers write.
    pub(super) fn copy_to(self, to: &PeerWritable, offset: u64, bytes: u64) -> Result<(), OutOfBounds> {
        match self {
            Self::Memory { memory, at } => to.copy(offset, memory, at, bytes),
            Self::Decoded(numbers) => {
                OutOfBounds::unless_within(0, bytes, numbers.len() as u64)?;
                to.write(offset, &numbers[..bytes as usize])
            }
            Self::View(view) => view.slice(0, bytes)?.copy_to(to, offset),
        }
    }

    /// The first numbers, where they lie.
    pub(super) fn numbers<N: Number>(self, count: usize) -> Result<Numbers<'a, N>, OutOfBounds> {
        match self {
            Self::Memory { memory, at } => memory.numbers(at, count),
            Self::Decoded(numbers) => numbers.numbers(0, count),
            Self::View(view) => view.numbers(0, count),
        }
    }
}

/// All memory of a lane that contributions may lie in.
#[derive(Debug)]
pub(super) struct Areas {
    pub(super) inbox: Cells,
    pub(super) spill: Cells,
    /// Slots of streams from other servers.
    pub(super) records: Vec<(Rank, Cells)>,
}

impl Areas {
    /// Where a contribution lies; `view` where that is in a worker's memory.
    pub(super) fn find<'a>(
        &'a self,
        from: Source,
        view: Option<&'a View>,
    ) -> Result<Place<'a>, StorageError> {
        let within = |cells: &'a Cells, cell, offset| Place::Memory {
            memory: &cells.memory,
            at: cells.start(cell) + offset,
        };
        Ok(match from {
            Source::Slot { slot, offset } => within(&self.inbox, slot, offset),
            Source::Spill(block) => within(&self.spill, block, 0),
            Source::Record { from, slot, offset } => {
                let of_it = self.records.iter().find(|(rank, _)| *rank == from);
                within(&of_it.ok_or(StorageError::NotMapped)?.1, slot, offset)
            }
            Source::Worker { .. } => Place::View(view.ok_or(StorageError::NotMapped)?),
        })
    }
}
