//! A door to tables for the fuzz target only: what bytes of workers and of other servers reach. It must not do more than pass
//! them on, and nothing of the server may use it.

use super::{Applied, Asked, Room, RowOp, Tables, Told};
use fabric::{FabricError, Pool};
use proto_common::ids::ChunkId;
use proto_common::table::RowStatus;

/// Most bytes of rows that one request is answered with.
const ANSWER_BYTES: u64 = 1 << 20;

/// See the module.
#[derive(Debug)]
pub struct TablesReached {
    tables: Tables,
    pool: Pool,
}

impl TablesReached {
    /// Tables of so many bytes.
    pub fn new(most_bytes: u64) -> Result<Self, FabricError> {
        let pool =
            Pool::new(ANSWER_BYTES, "fuzz").map_err(|error| FabricError::Internal(error.to_string()))?;
        let mut tables = Tables::default();
        tables.limit(most_bytes);
        Ok(Self { tables, pool })
    }

    /// A contribution comes into force, at its server or at a copy; is all of it done?
    pub fn contribute(&mut self, home: ChunkId, serves: bool, bytes: &mut [u8]) -> bool {
        if serves {
            self.tables.plan(home, bytes, &|_, _| Ok(()));
        }
        self.tables.apply(home, bytes, &|_, _| Ok(())) == Applied::Done
    }

    /// A request, as it comes: how it ended, and the rows.
    pub fn request(&mut self, home: ChunkId, key: u32, head: &[u8], body: &[u8]) -> (RowStatus, Vec<u8>) {
        let Self { tables, pool } = self;
        let allocate = |bytes| pool.allocate(bytes).map_err(|error| FabricError::Internal(error.to_string()));
        let room = Room { there: None, allocate: &allocate };
        match tables.request(home, key, head, &Asked::Here(body), &room) {
            Told::Status(status, _) => (status, Vec::new()),
            Told::Rows(rows) => (RowStatus::Done, rows.to_vec()),
            Told::Placed(_) => (RowStatus::Done, Vec::new()),
        }
    }

    /// The head of a request.
    #[must_use]
    pub fn head(op: RowOp, count: u32, home: ChunkId) -> Vec<u8> {
        [&[op as u8, 0, 0, 0][..], &count.to_le_bytes(), &home.key.0.to_le_bytes()].concat()
    }

    /// A home's image.
    pub fn save(&self, home: ChunkId) -> Result<Vec<u8>, String> {
        let mut image = Vec::new();
        self.tables.save_home(home, &mut image).map(|()| image)
    }

    /// A home becomes what an image says.
    pub fn load(&mut self, home: ChunkId, image: &[u8]) -> Result<(), String> {
        self.tables.load_home(home, image)
    }

    /// Homes that are not here any more are let go, and bytes counted again.
    pub fn keep(&mut self, is_here: impl Fn(ChunkId) -> bool) {
        self.tables.keep(is_here);
    }

    /// Bytes that its tables count.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.tables.bytes
    }
}
