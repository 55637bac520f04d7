//! The sparse tables of one lane: requests about rows, executed where the rows are, on the lane's data thread. How requests
//! come, and that each is executed once, is the business of calls.

mod rows;

pub use rows::{Rows, TableStats};

use fabric::{Buffer, FabricError};
use proto_common::message;
use proto_common::table::{ROW_BYTES_PER_REQUEST_MAX, ROWS_PER_REQUEST_MAX, RowOp, RowStatus, TableSpec};
use std::collections::HashMap;
use zerocopy::{FromBytes, IntoBytes};

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
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Tables {
    tables: HashMap<u32, Rows>,
    /// Bytes of all of them, and how many there may be before no more rows are made.
    bytes: u64,
    most_bytes: u64,
    /// Used again by each push.
    found: Vec<u32>,
    /// Values that do not lie where numbers may.
    aligned: Vec<f32>,
}

impl Default for Tables {
    fn default() -> Self {
        Self {
            tables: HashMap::new(),
            bytes: 0,
            most_bytes: u64::MAX,
            found: Vec::new(),
            aligned: Vec::new(),
        }
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

    /// Bytes of rows that are kept at most, but for what one request adds.
    pub(crate) fn limit(&mut self, bytes: u64) {
        self.most_bytes = bytes;
    }

    /// Executes a request. Without memory for more rows pulls bring what rows would begin with, and pushes to rows that are
    /// not there are left out and told. `allocate` gives memory for rows that are to be sent.
    pub(crate) fn request(
        &mut self,
        key: u32,
        head: &[u8],
        body: &mut [u8],
        allocate: impl FnOnce(u64) -> Result<Buffer, FabricError>,
    ) -> Told {
        let Some([op, _, _, _, count @ ..]) = head.first_chunk::<HEAD_BYTES>() else {
            return malformed();
        };
        let count = u32::from_le_bytes(*count) as usize;
        let op = RowOp::from_wire(*op);
        if op == Some(RowOp::Declare) {
            return self.declare(key, count, body);
        }
        let Some(rows) = self.tables.get_mut(&key) else {
            return Told::Status(RowStatus::Undeclared, String::new());
        };
        rows.set_full(self.bytes >= self.most_bytes);
        let before = rows.bytes();
        let told = Self::execute(rows, (op, count), body, (&mut self.found, &mut self.aligned), allocate);
        self.bytes += rows.bytes() - before;
        told
    }

    fn execute(
        rows: &mut Rows,
        (op, count): (Option<RowOp>, usize),
        body: &mut [u8],
        (found, aligned): (&mut Vec<u32>, &mut Vec<f32>),
        allocate: impl FnOnce(u64) -> Result<Buffer, FabricError>,
    ) -> Told {
        let row_bytes = rows.spec().row_bytes();
        let Some((ids, values)) = body.split_at_mut_checked(count.saturating_mul(ID_BYTES)) else {
            return malformed();
        };
        let (ids, _) = ids.as_chunks::<ID_BYTES>();
        let ids = ids.iter().map(|id| u64::from_le_bytes(*id));
        match op {
            _ if count == 0 || count > ROWS_PER_REQUEST_MAX => malformed(),
            _ if count * row_bytes > ROW_BYTES_PER_REQUEST_MAX => malformed(),
            Some(RowOp::Push) if values.len() == count * row_bytes => {
                let left_out = rows.stats().left_out;
                match <[f32]>::mut_from_bytes(values) {
                    Ok(values) => rows.push(ids, values, found),
                    Err(_) => {
                        aligned.resize(count * row_bytes / size_of::<f32>(), 0.0);
                        aligned.as_mut_bytes().copy_from_slice(values);
                        rows.push(ids, aligned, found);
                    }
                }
                let is_short = rows.is_full() && rows.stats().left_out > left_out;
                let status = if is_short { RowStatus::Full } else { RowStatus::Done };
                Told::Status(status, String::new())
            }
            Some(RowOp::Pull) if values.is_empty() => {
                let mut buffer = match allocate((count * row_bytes) as u64) {
                    Ok(buffer) => buffer,
                    Err(error) => return Told::Status(RowStatus::Full, error.to_string()),
                };
                // Buffers lie where numbers may.
                if let Ok(out) = <[f32]>::mut_from_bytes(&mut buffer) {
                    rows.pull(ids, out, found);
                }
                Told::Rows(buffer)
            }
            _ => malformed(),
        }
    }

    /// Every worker declares a table; the first one makes it.
    fn declare(&mut self, key: u32, parts: usize, body: &[u8]) -> Told {
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
            None => drop(self.tables.insert(key, Rows::new(spec, parts))),
        }
        Told::Status(RowStatus::Done, String::new())
    }
}
