//! Rows of sparse tables, as workers push, pull and declare them, and homes' images from other servers, honest and damaged.
//! Never a panic; no more bytes than are allowed where rows are served; an image means what it is saved as again, and one that
//! is refused changes nothing.

use crate::{Program};
use fabric::{FabricError, Pool};
use gradwire_server::tables::{Asked, Room, Tables, Told};
use proto_common::ids::ChunkId;
use proto_common::message::encode;
use proto_common::optimizer::{Adam, Optimizer};
use proto_common::table::{HOMES, Initial, PUSH_HEAD_BYTES, RowOp, RowStatus, TableSpec};

/// Bytes that an empty table takes, at most, with what its rows' memory is rounded up by.
const TABLE_BYTES: u64 = 4 << 20;
/// Bytes of an image that an empty table takes at least.
const IMAGE_TABLE_BYTES: u64 = 32;

/// Most bytes of rows that one request is answered with.
const ANSWER_BYTES: u64 = 1 << 20;

struct Rig {
    /// It serves its homes, and the other has copies.
    one: Tables,
    copy: Tables,
    most_bytes: u64,
    pool: Pool,
}

/// A home's image.
fn save(tables: &Tables, home: ChunkId) -> Vec<u8> {
    let mut image = Vec::new();
    tables.save_home(home, &mut image).expect("it is short");
    image
}

impl Rig {
    fn new(program: &mut Program<'_>) -> Self {
        let most_bytes = program.pick(&[64 << 20, 40_000, 3 << 20, 0]);
        let (mut one, mut copy) = (Tables::default(), Tables::default());
        one.limit(most_bytes);
        copy.limit(most_bytes);
        Self { one, copy, most_bytes, pool: Pool::new(ANSWER_BYTES, "fuzz").expect("memory") }
    }

    fn step(&mut self, program: &mut Program<'_>) {
        let home = ChunkId::new(HOMES | u64::from(program.below(2)) << 8, 0);
        match program.below(8) {
            0 => {
                let spec = spec_of(program);
                let body = encode(&spec).expect("it is short");
                self.ask((home, spec.key), RowOp::Declare, program.number() as u32, &body);
                let head = [0, spec.key, body.len() as u32, program.number() as u32];
                let padding = vec![0; program.below(4) as usize];
                self.contribute(program, home, head, &[body, padding].concat());
            }
            1..4 => {
                let (key, ids) = (program.below(3), ids_of(program));
                let width = program.pick(&WIDTHS) as usize;
                let value = program.byte();
                let values = vec![f32::from(value) - 2.0; ids.len() / 8 * width];
                let values = values.iter().flat_map(|value| value.to_le_bytes()).collect();
                let head = [1, key, (ids.len() / 8) as u32, 0];
                self.contribute(program, home, head, &[ids, values].concat());
            }
            4 => {
                let (key, ids) = (program.below(3), ids_of(program));
                let count = (ids.len() / 8) as u32 + u32::from(program.one_in(8));
                let (status, rows) = self.ask((home, key), RowOp::Pull, count, &ids);
                assert!(status == RowStatus::Done || rows.is_empty());
                let is_whole = count > 0 && rows.len().is_multiple_of(4 * count as usize);
                assert!(status != RowStatus::Done || is_whole && !rows.is_empty());
            }
            5 => self.hand_over(home),
            6 => self.hand_over_damaged(program, home),
            _ => {
                let from = if program.byte() & 1 == 0 { &mut self.one } else { &mut self.copy };
                from.keep(|other| other != home);
                assert!(save(from, home).is_empty());
            }
        }
        for tables in [&mut self.one, &mut self.copy] {
            let counted = tables.bytes();
            tables.keep(|_| true);
            assert_eq!(tables.bytes(), counted, "counted as it went");
        }
    }

    /// A contribution, honest or bent, to who serves the home, and to the copy.
    fn contribute(&mut self, program: &mut Program<'_>, home: ChunkId, words: [u32; 4], body: &[u8]) {
        let mut bytes = words.map(u32::to_le_bytes).concat();
        bytes.resize(PUSH_HEAD_BYTES, 0xff);
        bytes.extend_from_slice(body);
        damage(program, &mut bytes, 8);
        let before = self.one.bytes();
        self.one.plan(home, &mut bytes, &|_, _| Ok(()));
        self.one.apply(home, &bytes, &|_, _| Ok(()));
        assert!(self.one.bytes() <= before.max(self.most_bytes), "more bytes than are allowed");
        self.copy.apply(home, &bytes, &|_, _| Ok(()));
    }

    fn ask(
        &mut self,
        (home, key): (ChunkId, u32),
        op: RowOp,
        count: u32,
        body: &[u8],
    ) -> (RowStatus, Vec<u8>) {
        let before = self.one.bytes();
        let head = [&[op as u8, 0, 0, 0][..], &count.to_le_bytes(), &home.key.0.to_le_bytes()].concat();
        let pool = &self.pool;
        let allocate = |bytes| pool.allocate(bytes).map_err(|error| FabricError::Internal(error.to_string()));
        let room = Room { there: None, allocate: &allocate };
        let told = match self.one.request(home, key, &head, &Asked::Here(body), &room) {
            Told::Status(status, _) => (status, Vec::new()),
            Told::Rows(rows) => (RowStatus::Done, rows.to_vec()),
            Told::Placed(_) => (RowStatus::Done, Vec::new()),
        };
        assert!(self.one.bytes() <= before.max(self.most_bytes), "more bytes than are allowed");
        told
    }

    fn hand_over(&mut self, home: ChunkId) {
        let image = save(&self.one, home);
        self.copy.load_home(home, &image).expect("an honest image");
        assert!(save(&self.copy, home) == image, "a copy is what its server has");
    }

    fn hand_over_damaged(&mut self, program: &mut Program<'_>, home: ChunkId) {
        let mut image = save(&self.one, home);
        if program.one_in(8) {
            image.extend_from_within(..);
        }
        damage(program, &mut image, 1);
        let (before, bytes) = (save(&self.copy, home), self.copy.bytes());
        if self.copy.load_home(home, &image).is_err() {
            assert!(save(&self.copy, home) == before, "a refused image changes nothing");
            assert_eq!(self.copy.bytes(), bytes);
            return;
        }
        let taken = image.len() as u64;
        let most = bytes + TABLE_BYTES * (1 + taken / IMAGE_TABLE_BYTES) + 16 * taken;
        assert!(self.copy.bytes() <= most, "memory that the image does not pay for");
        let saved = save(&self.copy, home);
        assert_eq!(saved.len(), image.len(), "all of it has been taken");
        self.copy.load_home(home, &saved).expect("an honest image");
        assert!(save(&self.copy, home) == saved, "an image means what it is saved as");
    }

    fn finish(mut self) {
        for tables in [&mut self.one, &mut self.copy] {
            tables.keep(|_| false);
            assert_eq!(tables.bytes(), 0);
        }
    }
}

const WIDTHS: [u32; 4] = [1, 2, 5, 700];

fn spec_of(program: &mut Program<'_>) -> TableSpec {
    let adam = Optimizer::mean(Adam::default(), 0.1);
    let optimizer = program.pick(&[Optimizer::sum(), Optimizer::assign(), adam]);
    let low = f32::from(program.byte());
    let uniform = Initial::Uniform { low, high: 3.0, seed: u64::from(program.byte()) };
    let initial = program.pick(&[Initial::Constant(low), uniform]);
    let (key, width) = (program.below(3), program.pick(&WIDTHS));
    TableSpec {
        admit_after: program.pick(&[0, 1, 2, 255, 256]),
        rows_max: program.pick(&[0, 1, 3, 7, u64::MAX]),
        ..TableSpec::new(key, width, optimizer, initial)
    }
}

/// Up to 15 ids, most of them few.
fn ids_of(program: &mut Program<'_>) -> Vec<u8> {
    (0..program.below(16)).flat_map(|_| program.number().to_le_bytes()).collect()
}

/// Changes bytes, mostly the first ones, and cuts the end off: once in so many times.
fn damage(program: &mut Program<'_>, bytes: &mut Vec<u8>, once_in: u8) {
    if !program.one_in(once_in) || bytes.is_empty() {
        return;
    }
    for _ in 0..program.below(4) {
        let anywhere = usize::from(program.byte()) << 8 | usize::from(program.byte());
        let at = if program.one_in(4) { anywhere } else { anywhere % 96 } % bytes.len();
        bytes[at] = program.byte();
    }
    if program.one_in(4) {
        bytes.truncate(bytes.len().saturating_sub(program.number().min(1 << 20) as usize));
    }
}

crate::programs!(Rig);
