//! The sparse tables of one lane: requests about rows, executed where the rows are, on the lane's data thread. How requests
//! come, and that each is executed once, is the business of calls.

mod index;
mod places;
mod rows;
mod saved;

pub use places::{Asked, RowsHere, Sink, Values};
pub use rows::{Rows, Scratch, TableStats};
pub(crate) use saved::{Refill, RowsToSave};

use fabric::{Buffer, FabricError, View};
use proto_common::message;
use proto_common::table::{ROW_BYTES_PER_REQUEST_MAX, ROWS_PER_REQUEST_MAX, RowOp, RowStatus, TableSpec};
use std::collections::HashMap;

/// Tables of one server.
const TABLES_MAX: usize = 1024;
/// Bytes of a request's head: operation, three of nothing, and how many rows (of a declaration: how many parts).
const HEAD_BYTES: usize = 8;
const ID_BYTES: usize = 8;

/// What a request is answered.
#[derive(Debug)]
pub(crate) enum Told {
    /// Only how it ended, and words for people.
    Status(RowStatus, String),
    /// Rows.
    Rows(Buffer),
    /// Rows, so many bytes of them, which were written where they are to lie.
    Placed(u64),
}

/// Where rows that are pulled go.
pub(crate) struct Room<'a> {
    /// The place that the worker granted for them, where it can be written to.
    pub(crate) there: Option<View>,
    /// Memory to send them from, else.
    pub(crate) allocate: &'a dyn Fn(u64) -> Result<Buffer, FabricError>,
    /// What a new table begins with.
    pub(crate) refill: Refill<'a>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Tables {
    tables: HashMap<u32, Rows>,
    /// It was told that there are some.
    is_told: bool,
    /// Bytes of all of them, and how many there may be.
    bytes: u64,
    most_bytes: u64,
    /// Used again by each request.
    ids: Vec<u64>,
    scratch: Scratch,
}

impl Default for Tables {
    fn default() -> Self {
        let (tables, ids, scratch) = Default::default();
        Self { tables, is_told: false, bytes: 0, most_bytes: u64::MAX, ids, scratch }
    }
}

fn malformed() -> Told {
    Told::Status(RowStatus::Malformed, String::new())
}

impl Tables {
    /// Counts of all tables.
    pub(crate) fn stats(&self) -> TableStats {
        self.tables.values().map(Rows::stats).fold(TableStats::default(), |sum, table| sum.plus(&table))
    }

    /// True once, when the first table is there.
    pub(crate) fn has_first(&mut self) -> bool {
        !self.tables.is_empty() && !std::mem::replace(&mut self.is_told, true)
    }

    /// Bytes that tables take at most, all told.
    pub(crate) fn limit(&mut self, bytes: u64) {
        self.most_bytes = bytes;
    }

    /// Executes a request. Without memory for more rows pulls bring what rows would begin with, and pushes to rows that are
    /// not there are left out and told; a table with a limit of its own gives older rows up instead.
    pub(crate) fn request(&mut self, key: u32, head: &[u8], body: &Asked<'_>, room: &Room<'_>) -> Told {
        let Some([op, _, _, _, count @ ..]) = head.first_chunk::<HEAD_BYTES>() else {
            return malformed();
        };
        let count = u32::from_le_bytes(*count) as usize;
        let op = RowOp::from_wire(*op);
        if op == Some(RowOp::Declare) {
            return match body {
                Asked::Here(body) => self.declare(key, count, body, room.refill),
                Asked::There(_) => malformed(),
            };
        }
        let Some(rows) = self.tables.get_mut(&key) else {
            return Told::Status(RowStatus::Undeclared, String::new());
        };
        let row_bytes = rows.spec().row_bytes();
        if count == 0
            || count > ROWS_PER_REQUEST_MAX
            || count * row_bytes > ROW_BYTES_PER_REQUEST_MAX
            || !body.ids(count, &mut self.ids)
        {
            return malformed();
        }
        let before = rows.bytes();
        rows.limit(before.saturating_add(self.most_bytes.saturating_sub(self.bytes)));
        let rest = body.len() - (count * ID_BYTES) as u64;
        let (ids, scratch) = (&self.ids, &mut self.scratch);
        let told = match op {
            Some(RowOp::Push) if rest == (count * row_bytes) as u64 => push(rows, ids, body, scratch),
            Some(RowOp::Pull) if rest == 0 => pull(rows, ids, room, scratch),
            _ => malformed(),
        };
        self.bytes += rows.bytes() - before;
        told
    }

    /// Every worker declares a table; the first one makes it.
    fn declare(&mut self, key: u32, parts: usize, body: &[u8], refill: Refill<'_>) -> Told {
        let spec = match message::decode::<TableSpec>(body) {
            Ok(spec) if spec.key == key => spec,
            _ => return malformed(),
        };
        let conflict = |why: String| Told::Status(RowStatus::Conflict, why);
        if let Err(error) = spec.validate() {
            return conflict(error.to_string());
        }
        match self.tables.get(&key).map(Rows::spec) {
            Some(before) if *before == spec => {}
            Some(before) => return conflict(format!("it was declared before as {before:?}")),
            None if self.tables.len() >= TABLES_MAX => {
                return conflict(format!("a server has at most {TABLES_MAX} tables"));
            }
            None => {
                let rows = Rows::new(spec, parts);
                let bytes = rows.bytes();
                if bytes > self.most_bytes.saturating_sub(self.bytes) {
                    let why =
                        format!("the table takes {bytes} bytes before it has rows; raise memory.table_bytes");
                    return Told::Status(RowStatus::Full, why);
                }
                self.bytes += bytes;
                self.tables.insert(key, rows);
                if let Err(told) = self.refill(key, parts, refill) {
                    return told;
                }
            }
        }
        Told::Status(RowStatus::Done, String::new())
    }
}

fn push(rows: &mut Rows, ids: &[u64], body: &Asked<'_>, scratch: &mut Scratch) -> Told {
    let without_room = rows.without_room();
    let from = size_of_val(ids);
    match body {
        Asked::Here(body) => rows.push(ids, &body.get(from..).unwrap_or_default(), scratch),
        Asked::There(view) => match view.slice(from as u64, view.len() - from as u64) {
            Ok(values) => rows.push(ids, &values, scratch),
            Err(_) => return malformed(),
        },
    }
    let is_short = rows.without_room() > without_room;
    Told::Status(if is_short { RowStatus::Full } else { RowStatus::Done }, String::new())
}

fn pull(rows: &mut Rows, ids: &[u64], room: &Room<'_>, scratch: &mut Scratch) -> Told {
    let width = rows.spec().width as usize;
    let bytes = (ids.len() * rows.spec().row_bytes()) as u64;
    if let Some(mut there) = room.there.clone().filter(|there| there.is_writable() && there.len() >= bytes) {
        rows.pull(ids, &mut there, scratch);
        return Told::Placed(bytes);
    }
    match (room.allocate)(bytes) {
        Ok(mut buffer) => {
            rows.pull(ids, &mut RowsHere::of_bytes(&mut buffer, width), scratch);
            Told::Rows(buffer)
        }
        Err(error) => Told::Status(RowStatus::Full, error.to_string()),
    }
}

#[cfg(test)]
mod tests;
