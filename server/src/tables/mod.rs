//! The sparse tables of one lane, home by home. Pushes to rows and requests about rows are executed on the lane's data thread, where the
//! rows are. The server of the home plans each contribution first, and writes into it for how many rows there is room. Then this
//! server and the replicas apply it in the same way. The homes' chunks receive pushes, copy them and count them once; `calls` receives
//! the requests.

mod image;
mod index;
mod places;
mod planned;
mod rows;
mod saved;
mod steps;

pub use places::{Asked, RowsHere, Sink, Values};
pub use planned::Applied;
pub use rows::{Rows, Scratch, TableStats};
pub use saved::Refill;
pub(crate) use saved::RowsToSave;

use fabric::{Exclusive, FabricError, View};
use proto_common::ids::ChunkId;
use proto_common::message;
use proto_common::table::{ROW_BYTES_PER_REQUEST_MAX, ROWS_PER_REQUEST_MAX, RowOp, RowStatus, TableSpec};
use std::collections::HashMap;

/// Tables of one server.
const TABLES_MAX: usize = 1024;
/// Bytes of a request's head: operation, three of nothing, how many rows (of a declaration: how many parts), and the home's key.
const HEAD_BYTES: usize = 16;
const ID_BYTES: usize = 8;

/// What a request is answered.
#[derive(Debug)]
pub enum Told {
    /// Only how it ended, and words for people.
    Status(RowStatus, String),
    /// Rows.
    Rows(Exclusive),
    /// Rows, so many bytes of them, which were written where they are to lie.
    Placed(u64),
}

/// Where rows that are pulled go.
pub struct Room<'a> {
    /// The place that the worker granted for them, where it can be written to.
    pub there: Option<View>,
    /// Memory to send them from, else.
    pub allocate: &'a dyn Fn(u64) -> Result<Exclusive, FabricError>,
}

/// The key of the home that a request's head names.
pub(crate) fn home_key_of(head: &[u8]) -> Option<u64> {
    let head = head.first_chunk::<HEAD_BYTES>()?;
    head.last_chunk().map(|key| u64::from_le_bytes(*key))
}

/// What a contribution to a home needs that is not in force yet.
#[derive(Debug, Default)]
struct Planned {
    /// Bytes kept for rows.
    kept_bytes: u64,
    /// The table that it declares.
    table: Option<Rows>,
}

impl Planned {
    fn bytes(&self) -> u64 {
        self.kept_bytes + self.table.as_ref().map_or(0, Rows::bytes)
    }
}

/// See the module.
#[derive(Debug)]
pub struct Tables {
    tables: HashMap<(ChunkId, u32), Rows>,
    /// What homes that are served here need for what is contributed, and not in force yet.
    planned: HashMap<ChunkId, Planned>,
    /// Why the last table that could not begin did not, for whoever asks.
    refused: Option<(ChunkId, u32, String)>,
    /// Bytes of all of that, and how many there may be. Copies count, and are not refused: whoever serves their rows has said
    /// that there is room.
    bytes: u64,
    most_bytes: u64,
    /// Used again by each request.
    ids: Vec<u64>,
    scratch: Scratch,
}

impl Default for Tables {
    fn default() -> Self {
        let (tables, planned, refused, ids, scratch) = Default::default();
        Self { tables, planned, refused, bytes: 0, most_bytes: u64::MAX, ids, scratch }
    }
}

fn malformed() -> Told {
    Told::Status(RowStatus::Malformed, String::new())
}

impl Tables {
    /// Counts of the rows that are served here.
    pub(crate) fn stats(&self, serves: impl Fn(ChunkId) -> bool) -> TableStats {
        let served = self.tables.iter().filter(|((home, _), _)| serves(*home));
        served.map(|(_, rows)| rows.stats()).fold(TableStats::default(), |sum, table| sum.plus(&table))
    }

    /// Bytes that tables take at most, all told.
    pub fn limit(&mut self, bytes: u64) {
        self.most_bytes = bytes;
    }

    /// Homes that this lane has no part in any more: their rows are let go.
    pub fn keep(&mut self, is_here: impl Fn(ChunkId) -> bool) {
        self.tables.retain(|(home, _), _| is_here(*home));
        self.planned.retain(|home, _| is_here(*home));
        self.count_bytes();
    }

    /// Bytes of all tables, and of what is planned.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    fn count_bytes(&mut self) {
        let planned: u64 = self.planned.values().map(Planned::bytes).sum();
        self.bytes = planned + self.tables.values().map(Rows::bytes).sum::<u64>();
    }

    /// Executes a request, which changes nothing: what rows there are is a matter of pushes.
    pub fn request(
        &mut self,
        home: ChunkId,
        key: u32,
        head: &[u8],
        body: &Asked<'_>,
        room: &Room<'_>,
    ) -> Told {
        let Some([op, _, _, _, a, b, c, d, ..]) = head.first_chunk::<HEAD_BYTES>() else {
            return malformed();
        };
        let count = u32::from_le_bytes([*a, *b, *c, *d]) as usize;
        let op = RowOp::from_wire(*op);
        if op == Some(RowOp::Declare) {
            return match body {
                Asked::Here(body) => self.is_declared(home, key, count, body),
                Asked::There(_) => malformed(),
            };
        }
        let Some(rows) = self.tables.get_mut(&(home, key)) else {
            return Told::Status(RowStatus::Undeclared, String::new());
        };
        let row_bytes = rows.spec().row_bytes();
        if op != Some(RowOp::Pull)
            || count == 0
            || count > ROWS_PER_REQUEST_MAX
            || count * row_bytes > ROW_BYTES_PER_REQUEST_MAX
            || !body.ids(count, &mut self.ids)
            || body.len() != (count * ID_BYTES) as u64
        {
            return malformed();
        }
        pull(rows, &self.ids, room, &mut self.scratch)
    }

    /// Is a table declared, and as this says? Where it is not, whether it can be.
    fn is_declared(&self, home: ChunkId, key: u32, parts: usize, body: &[u8]) -> Told {
        let spec = match message::decode::<TableSpec>(body) {
            Ok(spec) if spec.key == key => spec,
            _ => return malformed(),
        };
        let conflict = |why: String| Told::Status(RowStatus::Conflict, why);
        if let Err(error) = spec.validate() {
            return conflict(error.to_string());
        }
        if let Some((.., why)) = self.refused.as_ref().filter(|(at, of, _)| (*at, *of) == (home, key)) {
            return conflict(why.clone());
        }
        match self.tables.get(&(home, key)).map(Rows::spec) {
            Some(before) if *before == spec => Told::Status(RowStatus::Done, String::new()),
            Some(before) => conflict(format!("it was declared before as {before:?}")),
            None if self.tables.len() >= TABLES_MAX => {
                conflict(format!("a server has at most {TABLES_MAX} tables on a lane"))
            }
            None => {
                let bytes = Rows::new(spec, parts).bytes_of(1);
                if bytes > self.free_bytes() {
                    let why =
                        format!("the table needs {bytes} bytes with its first row; raise memory.table_bytes");
                    return Told::Status(RowStatus::Full, why);
                }
                Told::Status(RowStatus::Undeclared, String::new())
            }
        }
    }
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
