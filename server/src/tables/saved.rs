//! Tables in checkpoints: rows are copied some at a time while pushes go on, each row whole; and a new table begins with the
//! rows that a checkpoint has for its lane. It must not touch files.

use super::{Rows, Tables, Told};
use checkpoint::RowsPiece;
use proto_common::table::{RowStatus, TableSpec};
use std::collections::VecDeque;

/// Bytes of the numbers that are copied at once.
const PIECE_BYTES: usize = 1 << 20;

/// What is to be copied of a lane's tables: those that were there when it began.
#[derive(Debug, Default)]
pub(crate) struct RowsToSave {
    /// Table, next place, and the one behind the last.
    left: VecDeque<(u32, usize, usize)>,
}

/// Puts the rows of a table that a checkpoint has into it; says why not.
pub(crate) type Refill<'a> = &'a dyn Fn(&mut Rows, usize) -> Result<(), String>;

impl RowsToSave {
    pub(crate) fn is_empty(&self) -> bool {
        self.left.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.left.clear();
    }
}

fn rows_at_once(rows: &Rows) -> usize {
    (PIECE_BYTES / (rows.row_numbers() * size_of::<f32>())).max(1)
}

impl Tables {
    /// All rows that there are now are to be copied; tables with how many pieces they come in.
    pub(crate) fn to_save(&self) -> (RowsToSave, Vec<(TableSpec, u64)>) {
        let mut tables: Vec<&Rows> = self.tables.values().collect();
        tables.sort_unstable_by_key(|rows| rows.spec().key);
        let left = tables.iter().filter(|rows| rows.places() > 0);
        let left = left.map(|rows| (rows.spec().key, 0, rows.places())).collect();
        let pieces = |rows: &&Rows| rows.places().div_ceil(rows_at_once(rows)) as u64;
        (RowsToSave { left }, tables.iter().map(|rows| (rows.spec().clone(), pieces(rows))).collect())
    }

    /// Bytes of the piece that is copied next.
    pub(crate) fn next_piece_bytes(&self, save: &RowsToSave) -> Option<u64> {
        let (key, next, end) = save.left.front()?;
        let rows = self.tables.get(key)?;
        let count = rows_at_once(rows).min(end - next);
        Some((count * (rows.row_numbers() * size_of::<f32>() + 2 * size_of::<u64>())) as u64)
    }

    /// Copies it.
    pub(crate) fn next_piece(&self, save: &mut RowsToSave) -> Option<RowsPiece> {
        let (key, next, end) = save.left.front_mut()?;
        let (key, rows) = (*key, self.tables.get(key)?);
        let places = *next..(*next + rows_at_once(rows)).min(*end);
        *next = places.end;
        if next == end {
            save.left.pop_front();
        }
        let mut piece = RowsPiece { key, ids: Vec::new(), pushes: Vec::new(), numbers: Vec::new() };
        piece.numbers.reserve_exact(places.len() * rows.row_numbers());
        for (id, pushes, numbers) in places.filter_map(|place| rows.at(place)) {
            piece.ids.push(id);
            piece.pushes.push(pushes);
            piece.numbers.extend_from_slice(numbers);
        }
        Some(piece)
    }

    /// A table that has just been made begins with what a checkpoint has of it.
    pub(super) fn refill(&mut self, key: u32, parts: usize, refill: Refill<'_>) -> Result<(), Told> {
        let Some(rows) = self.tables.get_mut(&key) else { return Ok(()) };
        let before = rows.bytes();
        rows.limit(before.saturating_add(self.most_bytes.saturating_sub(self.bytes)));
        let refilled = refill(rows, parts);
        self.bytes += rows.bytes() - before;
        refilled.map_err(|why| {
            if let Some(rows) = self.tables.remove(&key) {
                self.bytes -= rows.bytes();
            }
            Told::Status(RowStatus::Conflict, why)
        })
    }
}
