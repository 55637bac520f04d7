//! What goes to copies of chunks, and what copies take: sums, images, and changes of rules. When, and whether, is the engine's.

use super::cells::Cells;
use super::error::{ImageError, StorageError};
use super::{Made, Storage, Stored, stored_of};
use crate::engine::Source;
use fabric::{Exclusive, OutOfBounds, Pool, Span};
use proto_common::ids::Rank;
use proto_common::optimizer::Optimizer;

fn lend(stored: &mut Stored, sent: &Pool) -> Result<Option<Span>, StorageError> {
    if !stored.numbers.sum_mut().lend(sent)? {
        return Ok(None);
    }
    let elements = (stored.bytes / stored.dtype.bytes()) as u64;
    Ok(stored.numbers.sum().part(0, elements * stored.dtype.of_sums().bytes() as u64)?)
}

impl Storage {
    /// The slots that another server's stream is written into; none any more, where there are none.
    pub fn set_records(&mut self, from: Rank, cells: Option<Cells>) {
        let records = &mut self.areas.records;
        records.retain(|(rank, _)| *rank != from);
        records.extend(cells.map(|cells| (from, cells)));
    }

    /// A chunk's sums will be sent to another server: from where they are moved to now, if they were not there.
    pub fn lend_sum(&mut self, chunk: u32) -> Result<Option<Span>, StorageError> {
        let sent = self.sent.clone();
        lend(self.stored_mut(chunk)?, &sent)
    }

    /// As [`Storage::lend_sum`], of a chunk without an index.
    pub fn lend_made(&self, made: &mut Made) -> Result<Option<Span>, StorageError> {
        lend(&mut made.0, &self.sent)
    }

    /// The sum of the round that ends now, of a chunk whose elements are summed as they are.
    pub fn sum_of_round(&mut self, chunk: u32) -> Result<&mut [u8], StorageError> {
        let stored = self.stored_mut(chunk)?;
        let now = stored.now;
        Ok(stored.numbers.sum_mut().bytes_mut().get_mut(..now).unwrap_or_default())
    }

    /// Part of a chunk's sum, to be sent: it was lent.
    pub fn sum_part(&self, chunk: u32, at: u64, bytes: u64) -> Result<Span, StorageError> {
        self.stored(chunk)?.numbers.sum().part(at, bytes)?.ok_or(StorageError::NotLent(chunk))
    }

    /// Did a sum of the round that is being collected leave its integers?
    pub fn sum_left(&mut self, chunk: u32) -> Result<bool, StorageError> {
        Ok(self.stored_mut(chunk)?.numbers.left().is_some_and(|left| *left))
    }

    /// Part of a copy's sum has come.
    pub fn take_sum(
        &mut self,
        chunk: u32,
        from: Source,
        (at, bytes): (u64, u64),
        is_left: bool,
    ) -> Result<(), StorageError> {
        let Self { chunks, areas, .. } = self;
        let stored = stored_of(chunks, chunk)?;
        let from = areas.find(from, None)?;
        let sum = stored.numbers.sum_mut().bytes_mut();
        OutOfBounds::unless_within(at, bytes, sum.len() as u64)?;
        from.read(&mut sum[at as usize..(at + bytes) as usize])?;
        if let Some(left) = stored.numbers.left() {
            *left = is_left;
        }
        Ok(())
    }

    /// The changes that a chunk's rule has to come.
    pub fn rule_changes(&self, chunk: u32) -> Result<&[(u64, Optimizer)], StorageError> {
        Ok(self.stored(chunk)?.rule.changes())
    }

    /// Changes that a copy's rule is to have, too, of rounds after one that it has. Those that it has are the same. Nothing changes
    /// where no chunk like this can have them.
    pub fn take_rule_changes(
        &mut self,
        chunk: u32,
        changes: &[(u64, Optimizer)],
        after: u64,
    ) -> Result<(), StorageError> {
        changes.iter().try_for_each(|(_, optimizer)| self.check_rule(optimizer))?;
        let stored = self.stored_mut(chunk)?;
        let mut rule = stored.rule.clone();
        for (from_round, optimizer) in changes.iter().filter(|(from_round, _)| *from_round > after) {
            rule.change(*from_round, *optimizer)?;
        }
        if !rule.is_sound(stored.dtype) {
            return Err(ImageError::Rule.into());
        }
        stored.rule = rule;
        Ok(())
    }

    /// Memory that can be sent to other servers.
    pub fn sent_buffer(&self, bytes: u64) -> Result<Exclusive, StorageError> {
        Ok(self.sent.allocate(bytes)?)
    }

    /// Copies out of a slot.
    pub fn read_record(&self, from: Source, into: &mut [u8]) -> Result<(), StorageError> {
        Ok(self.areas.find(from, None)?.read(into)?)
    }
}
