//! What is contributed to homes, on its way from the worker into their rows. The home's server plans it before copies are told
//! of it: it says how many rows there may be, and keeps that room. What is done then is a function of the rows there are and of
//! what is contributed, so copies hold what their server holds. It must not know how contributions travel.

use super::steps::Before;
use super::{Asked, ID_BYTES, Planned, Refill, Rows, TABLES_MAX, Tables};
use proto_common::ids::ChunkId;
use proto_common::message;
use proto_common::table::{PUSH_HEAD_BYTES, PushHead, RowOp, TableSpec, home_of};

/// How it ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Applied {
    /// In force.
    Done,
    /// Not all of it: the contributor gets an error.
    LeftOut,
    /// This server could not do what there was room for, and says why: a copy is not what its server has.
    Lacking(String),
}

fn declared(head: &PushHead, body: &[u8]) -> Option<TableSpec> {
    let spec = body.get(..head.count as usize).and_then(|spec| message::decode::<TableSpec>(spec).ok());
    spec.filter(|spec| spec.key == head.key && spec.validate().is_ok())
}

fn is_whole(rows: &Rows, count: usize, body: &[u8]) -> bool {
    count > 0 && body.len() as u64 == count as u64 * (ID_BYTES + rows.spec().row_bytes()) as u64
}

fn begin(rows: &mut Rows, home: ChunkId, room: usize, refill: Refill<'_>) -> Result<(), String> {
    rows.set_room(room);
    home_of(home.key).map_or(Ok(()), |part| refill(rows, part as usize))
}

impl Tables {
    pub(super) fn free_bytes(&self) -> u64 {
        self.most_bytes.saturating_sub(self.bytes)
    }

    /// A contribution to a home that is served here: there is put into it what there is room for. What was planned for the home
    /// before, and did not come into force, is forgotten.
    pub fn plan(&mut self, home: ChunkId, bytes: &mut [u8], refill: Refill<'_>) {
        self.forget_plan(home);
        let Some((to_head, body)) = bytes.split_at_mut_checked(PUSH_HEAD_BYTES) else { return };
        let Some(mut head) = PushHead::from_bytes(to_head) else { return };
        let (planned, room) = match head.op {
            RowOp::Declare => self.plan_table(home, &head, body, refill),
            RowOp::Push => self.plan_push(home, &head, body),
            RowOp::Pull => None,
        }
        .unwrap_or_default();
        head.room = u32::try_from(room).unwrap_or(u32::MAX);
        to_head.copy_from_slice(&head.to_bytes());
        self.bytes += planned.bytes();
        self.planned.insert(home, planned);
    }

    fn forget_plan(&mut self, home: ChunkId) -> Option<Rows> {
        let planned = self.planned.remove(&home)?;
        self.bytes -= planned.bytes();
        planned.table
    }

    /// A table with what a checkpoint has of it. None where it is there, or cannot be.
    fn plan_table(
        &mut self,
        home: ChunkId,
        head: &PushHead,
        body: &[u8],
        refill: Refill<'_>,
    ) -> Option<(Planned, usize)> {
        let spec = declared(head, body)?;
        if self.tables.contains_key(&(home, spec.key)) || self.tables.len() >= TABLES_MAX {
            return None;
        }
        let mut rows = Rows::new(spec, head.parts as usize);
        let room = rows.rows_within(self.free_bytes(), usize::MAX);
        if room == 0 {
            return None;
        }
        self.refused = None;
        if let Err(why) = begin(&mut rows, home, room, refill) {
            tracing::error!(table = head.key, why, "cannot restore a table from the checkpoint");
            self.refused = Some((home, head.key, why));
            return None;
        }
        Some((Planned { kept_bytes: 0, table: Some(rows) }, room))
    }

    fn plan_push(&mut self, home: ChunkId, head: &PushHead, body: &[u8]) -> Option<(Planned, usize)> {
        let free_bytes = self.free_bytes();
        let rows = self.tables.get_mut(&(home, head.key))?;
        let count = head.count as usize;
        if !is_whole(rows, count, body) {
            return None;
        }
        let before = rows.bytes();
        let room = rows.rows_within(before.saturating_add(free_bytes), count);
        let room = rows.with_memory(room);
        let kept_bytes = rows.bytes_of(room) - before;
        Some((Planned { kept_bytes, table: None }, room))
    }

    /// A contribution to a home is in force, here or at the server whose copy this is. What is not a contribution changes nothing.
    pub fn apply(&mut self, home: ChunkId, bytes: &[u8], refill: Refill<'_>) -> Applied {
        let begun = self.forget_plan(home);
        let Some(head) = PushHead::from_bytes(bytes) else { return Applied::LeftOut };
        let body = bytes.get(PUSH_HEAD_BYTES..).unwrap_or_default();
        match head.op {
            RowOp::Declare => self.declare(home, &head, body, (begun, refill)),
            RowOp::Push => self.push(home, &head, body),
            RowOp::Pull => Applied::LeftOut,
        }
    }

    /// Every worker declares a table; the first one makes it.
    fn declare(
        &mut self,
        home: ChunkId,
        head: &PushHead,
        body: &[u8],
        (begun, refill): (Option<Rows>, Refill<'_>),
    ) -> Applied {
        let Some(spec) = declared(head, body) else { return Applied::LeftOut };
        if let Some(before) = self.tables.get(&(home, head.key)) {
            return if *before.spec() == spec { Applied::Done } else { Applied::LeftOut };
        }
        if head.room == 0 {
            return Applied::LeftOut;
        }
        let rows = match begun {
            Some(rows) => rows,
            None => {
                let mut rows = Rows::new(spec, head.parts as usize);
                if let Err(why) = begin(&mut rows, home, head.room as usize, refill) {
                    return Applied::Lacking(why);
                }
                rows
            }
        };
        self.bytes += rows.bytes();
        self.tables.insert((home, head.key), rows);
        Applied::Done
    }

    /// Pushes to rows that there is no room for are left out, and told; so are those to rows that are not admitted, which is no
    /// fault.
    fn push(&mut self, home: ChunkId, head: &PushHead, body: &[u8]) -> Applied {
        let Some(rows) = self.tables.get_mut(&(home, head.key)) else { return Applied::LeftOut };
        let count = head.count as usize;
        if !is_whole(rows, count, body) || !Asked::Here(body).ids(count, &mut self.ids) {
            return Applied::LeftOut;
        }
        if let Some(which) = head.which {
            match rows.steps.before(which) {
                Some(Before::Applied) => return Applied::Done,
                Some(Before::LeftOut) => return Applied::LeftOut,
                None => rows.steps.note(which),
            }
        }
        let (before, without_room) = (rows.bytes(), rows.without_room());
        rows.set_room(head.room as usize);
        let values = body.get(count * ID_BYTES..).unwrap_or_default();
        rows.push(&self.ids, &values, &mut self.scratch);
        self.bytes += rows.bytes() - before;
        if rows.is_wanting() {
            return Applied::Lacking(format!("no memory for rows of table {}", head.key));
        }
        if rows.without_room() == without_room {
            return Applied::Done;
        }
        if let Some(which) = head.which {
            rows.steps.leave_out(which.rank);
        }
        Applied::LeftOut
    }
}
