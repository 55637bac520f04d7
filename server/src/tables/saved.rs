//! Tables in checkpoints: rows are copied some at a time while pushes continue, each row whole. It must not touch files.

use super::{Rows, Tables};
use checkpoint::RowsPiece;
use proto_common::ids::ChunkId;
use proto_common::table::TableSpec;
use std::collections::{BTreeMap, VecDeque};

/// Bytes of the numbers that are copied at once.
const PIECE_BYTES: usize = 1 << 20;

/// What is to be copied of a lane's tables: those that were there when it began.
#[derive(Debug, Default)]
pub(crate) struct RowsToSave {
    /// Home and table, next place, and the one behind the last.
    left: VecDeque<((ChunkId, u32), usize, usize)>,
}

/// Puts the rows that a checkpoint has of a part of a table into it; says why not.
pub type Refill<'a> = &'a dyn Fn(&mut Rows, usize) -> Result<(), String>;

impl RowsToSave {
    pub(crate) fn is_empty(&self) -> bool {
        self.left.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.left.clear();
    }

    /// Are there rows among them of homes that are served elsewhere by now?
    pub(crate) fn is_torn(&self, serves: impl Fn(ChunkId) -> bool) -> bool {
        self.left.iter().any(|((home, _), ..)| !serves(*home))
    }
}

fn rows_at_once(rows: &Rows) -> usize {
    (PIECE_BYTES / (rows.row_numbers() * size_of::<f32>())).max(1)
}

impl Tables {
    /// All rows that are served here now are to be copied; tables with how many pieces they come in.
    pub(crate) fn to_save(&self, serves: impl Fn(ChunkId) -> bool) -> (RowsToSave, Vec<(TableSpec, u64)>) {
        let served: BTreeMap<(u32, ChunkId), &Rows> = self
            .tables
            .iter()
            .filter(|((home, _), _)| serves(*home))
            .map(|((home, key), rows)| ((*key, *home), rows))
            .collect();
        let left = served.iter().filter(|(_, rows)| rows.places() > 0);
        let left = left.map(|((key, home), rows)| ((*home, *key), 0, rows.places())).collect();
        let mut tables: BTreeMap<u32, (TableSpec, u64)> = BTreeMap::new();
        for ((key, _), rows) in &served {
            let table = tables.entry(*key).or_insert_with(|| (rows.spec().clone(), 0));
            table.1 += rows.places().div_ceil(rows_at_once(rows)) as u64;
        }
        (RowsToSave { left }, tables.into_values().collect())
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
        let (key, rows) = (key.1, self.tables.get(key)?);
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
}
