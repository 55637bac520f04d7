//! What goes to copies of chunks, and what copies take: sums, images, and changes of rules. When, and whether, is the engine's.

use super::array::{Array, Plain};
use super::image::ImageError;
use super::integers::Integers;
use super::numbers::{Master, Place, Sums, Typed};
use super::{Cells, Made, Storage, StorageError, Stored, find, stored_of};
use crate::engine::{Source, element_sum_bytes};
use fabric::{Exclusive, OutOfBounds, Pool, PoolError, Span};
use proto_common::ids::Rank;
use proto_common::optimizer::Optimizer;
use zerocopy::IntoBytes;

/// Runs something on the sum, whatever its type.
macro_rules! on_sum {
    ($typed:expr, $sum:ident => $work:expr) => {
        match $typed {
            Typed::F32(Sums { sum: $sum, .. }) => $work,
            Typed::F64(Sums { sum: $sum, .. }) => $work,
            Typed::F16(Master { sums: Sums { sum: $sum, .. }, .. }) => $work,
            Typed::Bf16(Master { sums: Sums { sum: $sum, .. }, .. }) => $work,
            Typed::I8(Integers { sum: $sum, .. }) => $work,
            Typed::U8(Integers { sum: $sum, .. }) => $work,
            Typed::I32(Integers { sum: $sum, .. }) => $work,
            Typed::I64(Integers { sum: $sum, .. }) => $work,
        }
    };
}

impl Typed {
    /// Bytes of the sum, and of what is kept.
    pub(super) fn bytes(&self) -> u64 {
        let kept: usize = self.kept().into_iter().map(<[u8]>::len).sum();
        (on_sum!(self, sum => size_of_val(&sum[..])) + kept) as u64
    }

    fn lend_sum(&mut self, pool: &Pool) -> Result<bool, PoolError> {
        on_sum!(self, sum => sum.lend(pool))
    }

    fn sum_part(&self, at: u64, bytes: u64) -> Result<Option<Span>, OutOfBounds> {
        on_sum!(self, sum => sum.part(at, bytes))
    }

    fn take_sum(&mut self, from: Place<'_>, at: u64, bytes: u64) -> Result<(), OutOfBounds> {
        on_sum!(self, sum => fill(sum, from, at, bytes))
    }

    fn sum_bytes_now(&mut self) -> &mut [u8] {
        on_sum!(self, sum => sum.as_mut_bytes())
    }

    fn left(&mut self) -> Option<&mut bool> {
        match self {
            Self::I8(integers) => Some(&mut integers.left),
            Self::U8(integers) => Some(&mut integers.left),
            Self::I32(integers) => Some(&mut integers.left),
            Self::I64(integers) => Some(&mut integers.left),
            Self::F32(_) | Self::F64(_) | Self::F16(_) | Self::Bf16(_) => None,
        }
    }
}

fn fill<T: Plain>(sum: &mut Array<T>, from: Place<'_>, at: u64, bytes: u64) -> Result<(), OutOfBounds> {
    let all = sum.as_mut_bytes();
    let region_bytes = all.len() as u64;
    OutOfBounds::unless_within(at, bytes, region_bytes)?;
    from.read(&mut all[at as usize..(at + bytes) as usize])
}

fn lend(stored: &mut Stored, sent: &Pool) -> Result<Option<Span>, StorageError> {
    if !stored.numbers.lend_sum(sent)? {
        return Ok(None);
    }
    let elements = (stored.bytes / stored.dtype.bytes()) as u64;
    Ok(stored.numbers.sum_part(0, elements * element_sum_bytes(stored.dtype))?)
}

impl Storage {
    /// The slots that another server's stream is written into; none any more, where there are none.
    pub fn set_records(&mut self, from: Rank, cells: Option<Cells>) {
        self.records.retain(|(rank, _)| *rank != from);
        self.records.extend(cells.map(|cells| (from, cells)));
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
        Ok(stored.numbers.sum_bytes_now().get_mut(..now).unwrap_or_default())
    }

    /// Part of a chunk's sum, to be sent: it was lent.
    pub fn sum_part(&self, chunk: u32, at: u64, bytes: u64) -> Result<Span, StorageError> {
        self.stored(chunk)?.numbers.sum_part(at, bytes)?.ok_or(StorageError::NotLent(chunk))
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
        let Self { chunks, inbox, spill, records, .. } = self;
        let stored = stored_of(chunks, chunk)?;
        let from = find((inbox, spill, records), from, None)?;
        stored.numbers.take_sum(from, at, bytes)?;
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
        let stored = self.stored_mut(chunk)?;
        let mut rule = stored.rule.clone();
        for (from_round, optimizer) in changes.iter().filter(|(from_round, _)| *from_round > after) {
            rule.change(*from_round, *optimizer)?;
        }
        if !rule.is_sound(stored.dtype.is_integer()) {
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
        Ok(find((&self.inbox, &self.spill, &self.records), from, None)?.read(into)?)
    }
}
