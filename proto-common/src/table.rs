//! Sparse tables: rows of one width under u64 ids, created at the first push. This file defines what a table is, which
//! part of the tables has a row, and the bytes of requests about rows. The parts are in the shard map as tensors,
//! their *homes*: a push to rows is a contribution to a home, and is replicated, moved and counted like any other.
//! Pulls are calls with reserved numbers.

use crate::element::Dtype;
use crate::ids::{ChunkId, ChunkIndex, Key, Lane};
use crate::limits::{LANES_MAX, WORKERS_MAX};
use crate::mode::Mode;
use crate::optimizer::{Optimizer, OptimizerError, Rule, RuleName};
use crate::shard_map::lane_of;
use crate::tensor::TensorSpec;
pub use crate::tensor::{HOMES, home_of};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Handler numbers from here on are for tables; programs use the numbers below.
pub const TABLE_APPS: u32 = 1 << 31;
/// Keys of tables are below this.
pub const TABLES_MAX: u32 = 1 << 16;
/// Elements of a row, at most.
pub const ROW_WIDTH_MAX: u32 = 1 << 16;
/// The largest `admit_after`: pushes are counted in a byte.
pub const ADMIT_AFTER_MAX: u32 = 255;
/// Rows of one request, at most.
pub const ROWS_PER_REQUEST_MAX: usize = 1 << 20;
/// Bytes of the rows that one request pulls or pushes, at most.
pub const ROW_BYTES_PER_REQUEST_MAX: usize = 16 << 20;

const _: () = assert!((LANES_MAX as u32) < 1 << 8 && TABLES_MAX << 8 <= TABLE_APPS);

/// Initial values of a row. They depend only on the seed, the row's id and the position of the element, so a row that
/// was evicted, or is on another server, begins with the same values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Initial {
    /// All elements have the same value.
    Constant(f32),
    /// Uniformly distributed from `low` to below `high`.
    Uniform {
        /// The lowest value.
        low: f32,
        /// The upper bound, exclusive.
        high: f32,
        /// Another seed gives other values.
        seed: u64,
    },
}

impl Initial {
    /// Fills a row.
    #[inline]
    pub fn fill(&self, id: u64, row: &mut [f32]) {
        match *self {
            Self::Constant(value) => row.fill(value),
            Self::Uniform { low, high, seed } => {
                let start = mix(seed ^ mix(id));
                for (at, element) in row.iter_mut().enumerate() {
                    // 24 bits: as many as an f32 below 1 has.
                    let bits = mix(start.wrapping_add(at as u64)) >> 40;
                    *element = low + (high - low) * (bits as f32 / (1 << 24) as f32);
                }
            }
        }
    }
}

/// A table. All workers declare the same.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableSpec {
    /// Its key, below [`TABLES_MAX`]. Tensors have separate keys.
    pub key: u32,
    /// f32 elements of a row.
    pub width: u32,
    /// The update rule, applied to each row separately, with the sum of one push's gradients for it. Schedules count
    /// the row's pushes.
    pub optimizer: Optimizer,
    /// Initial values of rows.
    pub initial: Initial,
    /// How many pushes a row needs before it gets memory; earlier ones are dropped. At most [`ADMIT_AFTER_MAX`]. With
    /// 0 and 1 it gets memory at its first push. Pulls do not count, and do not create rows: they return initial
    /// values. Counts are small, so several ids may share one and a row may be admitted too early. Counts are halved
    /// from time to time, so a row with rare pushes is never admitted.
    pub admit_after: u32,
    /// The largest number of rows, distributed evenly over servers and lanes, which hold at least one each. Beyond
    /// that, the rows with the oldest last push are evicted. 0: no limit.
    pub rows_max: u64,
}

/// Why a table cannot be declared.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum TableError {
    /// A value is out of range.
    #[error("table {key}: {name} = {value} is out of range; use {range}")]
    OutOfRange {
        /// The table.
        key: u32,
        /// The field.
        name: &'static str,
        /// The given value.
        value: String,
        /// The allowed values.
        range: String,
    },
    /// The update rule cannot be used.
    #[error("table {key}: {source}")]
    Optimizer {
        /// The table.
        key: u32,
        /// The reason.
        source: OptimizerError,
    },
    /// A rule that cannot be applied to a single row.
    #[error("table {0}: lamb needs the norms of a whole tensor; use another rule")]
    Norms(u32),
    /// A rule of the servers' program.
    #[error(
        "table {0}: update rule {1} is one of the servers' program, which has tensors only; use a rule of Gradwire"
    )]
    OwnRule(u32, RuleName),
}

impl TableSpec {
    /// A table whose rows are created at their first push, and stay.
    #[must_use]
    pub const fn new(key: u32, width: u32, optimizer: Optimizer, initial: Initial) -> Self {
        Self { key, width, optimizer, initial, admit_after: 1, rows_max: 0 }
    }

    /// Rejects what is not supported.
    pub fn validate(&self) -> Result<(), TableError> {
        let key = self.key;
        let wrong =
            |name, value: String, range: String| Err(TableError::OutOfRange { key, name, value, range });
        if key >= TABLES_MAX {
            return wrong("key", key.to_string(), format!("0 to {}", TABLES_MAX - 1));
        }
        if self.width == 0 || self.width > ROW_WIDTH_MAX {
            return wrong("width", self.width.to_string(), format!("1 to {ROW_WIDTH_MAX}"));
        }
        if self.admit_after > ADMIT_AFTER_MAX {
            return wrong("admit_after", self.admit_after.to_string(), format!("0 to {ADMIT_AFTER_MAX}"));
        }
        let is_finite = match self.initial {
            Initial::Constant(value) => value.is_finite(),
            Initial::Uniform { low, high, .. } => low < high && (high - low).is_finite(),
        };
        if !is_finite {
            let range = "finite numbers, low below high".into();
            return wrong("initial", format!("{:?}", self.initial), range);
        }
        if self.optimizer.needs_norms() {
            return Err(TableError::Norms(key));
        }
        if let Rule::Own(own) = &self.optimizer.rule {
            return Err(TableError::OwnRule(key, own.name));
        }
        self.optimizer.validate().map_err(|source| TableError::Optimizer { key, source })
    }

    /// Bytes of a row's elements.
    #[must_use]
    #[inline]
    pub const fn row_bytes(&self) -> usize {
        self.width as usize * size_of::<f32>()
    }
}

/// Mixes bits: the last step of SplitMix64.
#[must_use]
#[inline]
pub const fn mix(mut bits: u64) -> u64 {
    bits = bits.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// How rows are distributed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spread {
    /// Servers of the cluster.
    pub servers: u32,
    /// Lanes of each.
    pub lanes: u16,
}

impl Spread {
    /// Parts of a table.
    #[must_use]
    #[inline]
    pub const fn parts(&self) -> usize {
        self.servers as usize * self.lanes as usize
    }

    /// The part that contains a row.
    #[must_use]
    #[inline]
    pub fn part_of(&self, id: u64) -> usize {
        // High bits, scaled: low ones find the row within its part.
        let (high, parts) = (mix(id) >> 32, self.parts() as u64);
        ((high * parts) >> 32) as usize
    }

    /// The home of a part: the first key of the part's keys on the lane that the part is assigned to.
    #[must_use]
    #[inline]
    pub fn home(&self, part: usize) -> ChunkId {
        let (first, lanes) = (HOMES | (part as u64) << 8, self.lanes.max(1));
        let id = |key| ChunkId { key: Key(key), chunk: ChunkIndex(0) };
        let turn = Lane((part % usize::from(lanes)) as u16);
        let own = (first..=first | 0xff).map(id).find(|id| lane_of(*id, lanes) == turn);
        own.unwrap_or_else(|| id(first))
    }

    /// The declaration of a part's home. One contribution fits into a chunk.
    #[must_use]
    pub fn home_spec(&self, part: usize, chunk_bytes: u64) -> TensorSpec {
        let elements = chunk_bytes / Dtype::F32.bytes() as u64;
        TensorSpec {
            name: format!("rows of sparse tables, part {part}"),
            dynamic: true,
            ..TensorSpec::f32(self.home(part).key.0, elements, Optimizer::assign()).in_mode(Mode::Async)
        }
    }
}

/// Bytes before a contribution's ids: see [`PushHead`].
pub const PUSH_HEAD_BYTES: usize = 40;

/// The head of a contribution to a home. The bytes of a declaration follow it, or ids and then their rows of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PushHead {
    /// Declare or push.
    pub op: RowOp,
    /// The table.
    pub key: u32,
    /// The number of rows. For a declaration the number of its bytes, which zeros may follow.
    pub count: u32,
    /// The number of parts of tables, for a declaration.
    pub parts: u32,
    /// The number of rows that the table may have at the home after this. Its primary writes this before replicas
    /// receive it, because they must drop the same rows as the primary.
    pub room: u32,
    /// The position of this push among its worker's pushes, if the worker gives it.
    pub which: Option<PushStep>,
}

/// One of a worker's pushes to rows of a table at a home. If a restarted worker repeats its step, the position is the
/// same, and it counts once. Positions only grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PushStep {
    /// The worker.
    pub rank: u32,
    /// Its step, as counted by its trainer.
    pub step: u64,
    /// The number of the push within the step.
    pub nth: u32,
}

impl PushHead {
    /// The bytes on the wire.
    #[must_use]
    #[inline]
    pub fn to_bytes(self) -> [u8; PUSH_HEAD_BYTES] {
        let PushStep { rank, step, nth } = self.which.unwrap_or(PushStep { rank: u32::MAX, step: 0, nth: 0 });
        let (op, low, high) = (self.op as u32, step as u32, (step >> 32) as u32);
        let words = [op, self.key, self.count, self.parts, self.room, rank, nth, 0, low, high];
        let mut bytes = [0; PUSH_HEAD_BYTES];
        bytes.chunks_exact_mut(4).zip(words).for_each(|(to, word)| to.copy_from_slice(&word.to_le_bytes()));
        bytes
    }

    /// `None` if the bytes are invalid or truncated.
    #[must_use]
    #[inline]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.first_chunk::<PUSH_HEAD_BYTES>()?;
        let mut words =
            bytes.chunks_exact(4).map(|word| word.first_chunk().map_or(0, |w| u32::from_le_bytes(*w)));
        let op = RowOp::from_wire(u8::try_from(words.next()?).ok()?)?;
        let [key, count, parts, room] = [words.next()?, words.next()?, words.next()?, words.next()?];
        let [rank, nth, _, low, high] =
            [words.next()?, words.next()?, words.next()?, words.next()?, words.next()?];
        let which = PushStep { rank, nth, step: u64::from(high) << 32 | u64::from(low) };
        let which = match rank {
            u32::MAX => None,
            0..WORKERS_MAX => Some(which),
            _ => return None,
        };
        Some(Self { op, key, count, parts, room, which })
    }
}

/// The handler number for calls about a table's rows on a lane.
#[must_use]
#[inline]
pub const fn table_app(key: u32, lane: Lane) -> u32 {
    TABLE_APPS | key << 8 | lane.0 as u32
}

/// Table and lane of such a number; `None` for a program's handler.
#[must_use]
#[inline]
pub fn table_of(app: u32) -> Option<(u32, Lane)> {
    let rest = app.checked_sub(TABLE_APPS)?;
    (rest >> 8 < TABLES_MAX).then_some((rest >> 8, Lane((rest & 0xff) as u16)))
}

/// The operation of a request about rows. Its wire id, the first byte of the head, never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RowOp {
    /// In a call: the body is a [`TableSpec`], and the answer says whether the table is declared like this. In a
    /// contribution: declares it.
    Declare = 0,
    /// Contribution only: ids, then rows of values. The rule is applied to each row.
    Push = 1,
    /// The body has ids, and the reply their rows.
    Pull = 2,
}

impl RowOp {
    /// The operation with this wire id.
    #[must_use]
    #[inline]
    pub const fn from_wire(id: u8) -> Option<Self> {
        Some(match id {
            0 => Self::Declare,
            1 => Self::Push,
            2 => Self::Pull,
            _ => return None,
        })
    }
}

/// The result of a request about rows: the first byte of the reply's head, which never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RowStatus {
    /// Done.
    Done = 0,
    /// The table is not declared here.
    Undeclared = 1,
    /// The table was declared differently before; the body has the reason as text.
    Conflict = 2,
    /// The request does not match the table's rows.
    Malformed = 3,
    /// There is no memory for the request.
    Full = 4,
    /// This server does not serve the home, or may not answer yet: ask the server in the shard map.
    Elsewhere = 5,
}

impl RowStatus {
    /// The status with this wire id.
    #[must_use]
    #[inline]
    pub const fn from_wire(id: u8) -> Option<Self> {
        Some(match id {
            0 => Self::Done,
            1 => Self::Undeclared,
            2 => Self::Conflict,
            3 => Self::Malformed,
            4 => Self::Full,
            5 => Self::Elsewhere,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> TableSpec {
        TableSpec::new(3, 64, Optimizer::sum(), Initial::Constant(0.0))
    }

    #[test]
    fn rows_are_spread_evenly_and_numbers_of_tables_are_their_own() {
        let spread = Spread { servers: 3, lanes: 2 };
        let mut counts = [0u32; 6];
        (0..60_000u64).for_each(|id| counts[spread.part_of(id)] += 1);
        assert!(counts.iter().all(|count| (9_500..10_500).contains(count)), "{counts:?}");
        let homes: Vec<ChunkId> = (0..6).map(|part| spread.home(part)).collect();
        let lanes: Vec<u16> = homes.iter().map(|home| lane_of(*home, 2).0).collect();
        assert_eq!(lanes, [0, 1, 0, 1, 0, 1]);
        assert_eq!(
            homes.iter().map(|home| home_of(home.key)).collect::<Vec<_>>(),
            (0..6).map(Some).collect::<Vec<_>>()
        );
        assert_eq!((home_of(Key(HOMES - 1)), home_of(Key(u64::MAX))), (None, None));
        assert_eq!(spread.home_spec(5, 4096).validate(4096), Ok(()));
        for (key, lane) in [(0, 0), (7, 3), (TABLES_MAX - 1, LANES_MAX - 1)] {
            assert_eq!(table_of(table_app(key, Lane(lane))), Some((key, Lane(lane))));
        }
        assert_eq!((table_of(0), table_of(TABLE_APPS - 1), table_of(u32::MAX)), (None, None, None));
    }

    #[test]
    fn heads_of_contributions_round_trip_and_are_refused_cut_short() {
        let which = Some(PushStep { rank: 4, step: 1 << 40 | 5, nth: 6 });
        let head = PushHead { op: RowOp::Push, key: 7, count: 3, parts: 9, room: 11, which };
        assert_eq!(PushHead::from_bytes(&head.to_bytes()), Some(head));
        let head = PushHead { which: None, ..head };
        assert_eq!(PushHead::from_bytes(&head.to_bytes()), Some(head));
        let nobody = Some(PushStep { rank: WORKERS_MAX, step: 0, nth: 0 });
        assert_eq!(PushHead::from_bytes(&PushHead { which: nobody, ..head }.to_bytes()), None);
        for bytes in 0..PUSH_HEAD_BYTES {
            assert_eq!(PushHead::from_bytes(&head.to_bytes()[..bytes]), None);
        }
        assert_eq!(PushHead::from_bytes(&[9; PUSH_HEAD_BYTES]), None);
    }

    #[test]
    fn initial_rows_depend_on_seed_and_id_and_stay_in_range() {
        let fill = |seed, id| {
            let mut row = [0f32; 1000];
            Initial::Uniform { low: -0.5, high: 0.5, seed }.fill(id, &mut row);
            row
        };
        assert_eq!(fill(1, 2), fill(1, 2));
        assert!(fill(1, 2) != fill(1, 3) && fill(1, 2) != fill(2, 2));
        let row = fill(1, 2);
        assert!(row.iter().all(|element| (-0.5..0.5).contains(element)));
        let mean: f32 = row.iter().sum::<f32>() / 1000.0;
        assert!(mean.abs() < 0.05, "{mean}");
    }

    #[test]
    fn what_cannot_be_served_is_refused_by_name() {
        assert_eq!(spec().validate(), Ok(()));
        let refused = |spec: TableSpec, why: &str| {
            let text = spec.validate().unwrap_err().to_string();
            assert!(text.contains(why), "{text}");
        };
        refused(TableSpec { key: TABLES_MAX, ..spec() }, "key = 65536");
        refused(TableSpec { width: 0, ..spec() }, "width = 0");
        refused(TableSpec { width: ROW_WIDTH_MAX + 1, ..spec() }, "1 to 65536");
        refused(TableSpec { admit_after: ADMIT_AFTER_MAX + 1, ..spec() }, "0 to 255");
        assert_eq!(TableSpec { admit_after: ADMIT_AFTER_MAX, ..spec() }.validate(), Ok(()));
        refused(TableSpec { initial: Initial::Constant(f32::NAN), ..spec() }, "finite");
        refused(
            TableSpec { initial: Initial::Uniform { low: 1.0, high: 1.0, seed: 0 }, ..spec() },
            "low below high",
        );
        refused(TableSpec { optimizer: Optimizer::sgd(-1.0, 0.0, 0.0), ..spec() }, "learning_rate");
        let lamb = Optimizer::mean(crate::optimizer::Lamb::default(), 0.1);
        refused(TableSpec { optimizer: lamb, ..spec() }, "lamb");
        let own = Optimizer::mean(crate::optimizer::Own::new("clipped", &[]).unwrap(), 0.1);
        refused(TableSpec { optimizer: own, ..spec() }, "update rule clipped");
    }
}
