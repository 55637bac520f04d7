//! Requests as workers send them, and as they should not: from this process's memory and from the worker's.

use super::*;
use fabric::{PeerWritable, Pool};
use proto_common::optimizer::Optimizer;
use proto_common::table::{Initial, PushHead, PushStep};
use std::sync::Arc;
use zerocopy::IntoBytes;

const WIDTH: usize = 4;
const KEY: u32 = 1;

fn spec() -> TableSpec {
    TableSpec::new(KEY, WIDTH as u32, Optimizer::sum(), Initial::Constant(1.0))
}

fn home() -> ChunkId {
    ChunkId::new(5, 0)
}

fn head(op: RowOp, count: usize) -> Vec<u8> {
    let mut head = vec![op as u8, 0, 0, 0];
    head.extend((count as u32).to_le_bytes());
    head.extend(home().key.0.to_le_bytes());
    head
}

/// Tables, with a worker's memory of a page.
struct Bed {
    tables: Tables,
    worker: Arc<PeerWritable>,
    pool: Pool,
}

impl Bed {
    fn new(most_bytes: u64, specs: &[TableSpec]) -> Self {
        let mut tables = Tables::default();
        tables.limit(most_bytes);
        let mut bed = Self {
            tables,
            worker: Arc::new(PeerWritable::allocate(4096, "worker").unwrap()),
            pool: Pool::new(1 << 20, "p").unwrap(),
        };
        for spec in specs {
            assert!(bed.declare(spec));
            let body = message::encode(spec).unwrap();
            assert!(matches!(bed.ask(spec.key, RowOp::Declare, 1, &body), Told::Status(RowStatus::Done, _)));
        }
        bed
    }

    fn ask(&mut self, key: u32, op: RowOp, count: usize, body: &[u8]) -> Told {
        let Self { tables, pool, .. } = self;
        let allocate = |bytes| pool.allocate(bytes).map_err(|error| FabricError::Internal(error.to_string()));
        let room = Room { there: None, allocate: &allocate };
        tables.request(home(), key, &head(op, count), &Asked::Here(body), &room)
    }

    /// The body lies in the worker's memory, which has so many bytes of it, and room from the middle on.
    fn ask_there(&mut self, op: RowOp, count: usize, body: &[u8], room_bytes: u64) -> Told {
        let Self { tables, pool, worker } = self;
        worker.write(0, body).unwrap();
        let view = |offset, bytes| View::from(Arc::clone(worker)).slice(offset, bytes).unwrap();
        let allocate = |bytes| pool.allocate(bytes).map_err(|error| FabricError::Internal(error.to_string()));
        let room = Room { there: Some(view(2048, room_bytes)), allocate: &allocate };
        tables.request(home(), KEY, &head(op, count), &Asked::There(view(0, body.len() as u64)), &room)
    }

    /// A contribution comes into force.
    fn apply(&mut self, op: RowOp, key: u32, count: usize, body: &[u8]) -> bool {
        self.apply_as(None, op, key, count, body)
    }

    fn apply_as(&mut self, which: Option<PushStep>, op: RowOp, key: u32, count: usize, body: &[u8]) -> bool {
        let head = PushHead { op, key, count: count as u32, parts: 1, room: u32::MAX, which };
        let mut bytes = [&head.to_bytes()[..], body].concat();
        self.tables.plan(home(), &mut bytes, &|_, _| Ok(()));
        self.tables.apply(home(), &bytes, &|_, _| Ok(())) == Applied::Done
    }

    fn declare(&mut self, spec: &TableSpec) -> bool {
        let body = message::encode(spec).unwrap();
        self.apply(RowOp::Declare, spec.key, body.len(), &body)
    }

    fn push(&mut self, key: u32, ids: &[u64]) -> RowStatus {
        let body = [ids.as_bytes(), vec![1f32; ids.len() * WIDTH].as_bytes()].concat();
        if self.apply(RowOp::Push, key, ids.len(), &body) { RowStatus::Done } else { RowStatus::Full }
    }

    fn pull(&mut self, key: u32, ids: &[u64]) -> Vec<f32> {
        match self.ask(key, RowOp::Pull, ids.len(), ids.as_bytes()) {
            Told::Rows(rows) => {
                rows.chunks(4 * WIDTH).map(|row| f32::from_le_bytes(*row.first_chunk().unwrap())).collect()
            }
            other => panic!("{other:?}"),
        }
    }
}

fn status(told: &Told) -> Option<RowStatus> {
    match told {
        Told::Status(status, _) => Some(*status),
        Told::Rows(_) | Told::Placed(_) => None,
    }
}

#[test]
fn requests_are_executed_where_the_worker_has_them() {
    let mut bed = Bed::new(u64::MAX, &[spec()]);
    let ids = [7u64, 9, 7];
    let values: Vec<f32> = (0..3 * WIDTH).map(|at| at as f32).collect();
    let body = [ids.as_bytes(), values.as_bytes()].concat();
    assert!(bed.apply(RowOp::Push, KEY, 3, &body));
    let told = bed.ask_there(RowOp::Pull, 2, ids[..2].as_bytes(), 2 * 4 * WIDTH as u64);
    assert!(matches!(told, Told::Placed(32)), "{told:?}");
    let mut rows = [0f32; 2 * WIDTH];
    bed.worker.read(2048, rows.as_mut_bytes()).unwrap();
    assert_eq!(
        rows,
        [9.0, 11.0, 13.0, 15.0, 5.0, 6.0, 7.0, 8.0],
        "one more than was pushed, the duplicate summed"
    );
    let told = bed.ask_there(RowOp::Pull, 2, ids[..2].as_bytes(), 31);
    assert!(matches!(told, Told::Rows(_)), "too little room is none: {told:?}");
}

#[test]
fn what_is_cut_short_is_refused_before_anything_is_done() {
    let mut bed = Bed::new(u64::MAX, &[spec()]);
    let whole = [[3u64, 4].as_bytes(), [1f32; 2 * WIDTH].as_bytes()].concat();
    for bytes in 0..whole.len() {
        let cut = &whole[..bytes];
        assert!(!bed.apply(RowOp::Push, KEY, 2, cut), "{bytes} bytes");
        // Of two ids alone it is a pull.
        if bytes == 16 {
            continue;
        }
        for told in [bed.ask_there(RowOp::Pull, 2, cut, 0), bed.ask(KEY, RowOp::Push, 2, cut)] {
            assert_eq!(status(&told), Some(RowStatus::Malformed), "{bytes} bytes");
        }
    }
    for (op, count) in
        [(RowOp::Push, 0), (RowOp::Push, 1), (RowOp::Push, 3), (RowOp::Pull, 2), (RowOp::Declare, 1)]
    {
        let told = bed.ask_there(op, count, &whole, 512);
        assert_eq!(status(&told), Some(RowStatus::Malformed), "{op:?} of {count}");
    }
    for count in [usize::from(u16::MAX), ROWS_PER_REQUEST_MAX + 1, u32::MAX as usize] {
        assert_eq!(status(&bed.ask_there(RowOp::Pull, count, &[0; 1024], 0)), Some(RowStatus::Malformed));
    }
    assert_eq!(bed.tables.stats(|_| true).rows, 0);
}

#[test]
fn a_table_with_a_limit_of_its_own_gives_rows_up_where_memory_ends() {
    let limited = TableSpec { key: 2, rows_max: u64::MAX, ..spec() };
    let mut bed = Bed::new(1 << 20, &[spec(), limited]);
    let mut full = None;
    for id in 0..100_000 {
        if bed.push(2, &[id]) != RowStatus::Done {
            full = Some(id);
        }
        assert!(bed.tables.bytes <= 1 << 20, "after row {id}: {}", bed.tables.bytes);
    }
    assert_eq!(full, None, "older rows made way");
    let stats = bed.tables.stats(|_| true);
    assert!(stats.rows > 1000 && stats.evicted == 100_000 - stats.rows, "{stats:?}");
    assert_eq!(bed.pull(2, &[99_999]), [2.0]);
    // The other one, without a limit, has come too late.
    assert_eq!(bed.push(1, &[1]), RowStatus::Full);
    assert_eq!(bed.pull(1, &[1]), [1.0]);
}

#[test]
fn only_pushes_without_memory_are_called_so() {
    let late = TableSpec { key: 2, admit_after: 3, ..spec() };
    let mut bed = Bed::new(2 << 20, &[spec(), late]);
    let mut id = 0;
    while bed.push(1, &[id]) == RowStatus::Done {
        id += 1;
    }
    assert!(id > 1000, "{id}");
    // A step that is repeated by whoever comes again.
    for (step, rows, is_whole) in
        [(4, [0, 1], true), (5, [0, id + 1], false), (5, [0, id + 1], false), (4, [0, 1], true)]
    {
        let body = [rows.as_bytes(), [1f32; 2 * WIDTH].as_bytes()].concat();
        let which = Some(PushStep { rank: 0, step, nth: 0 });
        assert_eq!(bed.apply_as(which, RowOp::Push, 1, 2, &body), is_whole, "{step}");
    }
    assert_eq!(bed.pull(1, &[0]), [1.0 + 3.0], "each of both counts once");
    assert_eq!(bed.push(1, &[0]), RowStatus::Done, "it is there");
    assert_eq!(bed.push(2, &[5]), RowStatus::Done, "not admitted, which is no want of memory");
    assert_eq!(bed.push(2, &[5]), RowStatus::Done);
    assert_eq!(bed.push(2, &[5]), RowStatus::Full);
}

#[test]
fn a_table_counts_before_it_has_rows() {
    let mut bed = Bed::new(1 << 20, &[]);
    let counting = TableSpec { admit_after: 2, ..spec() };
    assert!(!bed.declare(&counting));
    let told = bed.ask(KEY, RowOp::Declare, 1, &message::encode(&counting).unwrap());
    assert_eq!(status(&told), Some(RowStatus::Full), "its counts alone take a MiB");
    assert_eq!(bed.tables.bytes, 0);
    let asked = message::encode(&spec()).unwrap();
    assert_eq!(status(&bed.ask(KEY, RowOp::Declare, 1, &asked)), Some(RowStatus::Undeclared));
    assert!(bed.declare(&spec()) && !bed.declare(&counting), "another one of this key is none");
    assert!(bed.tables.bytes >= 1 << 14);
}
