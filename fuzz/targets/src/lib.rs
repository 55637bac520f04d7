//! Fuzz targets, one a file: functions of any bytes, which panic where a decoder or an engine is wrong. libFuzzer runs them
//! (`make fuzz`), and the tests at the end of this file replay the inputs of `fuzz/seeds`. Here is what targets share: reading
//! an input as a program, and batches as the decoder could have passed them. Must not know the engines: their rigs and
//! invariants stand in the targets.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a finding")]
#![allow(clippy::missing_panics_doc, reason = "test code: a panic is a finding")]

use proto_common::batch::{
    BatchHeader, BatchKind, Block, BlockData, Count, Kept, Landing, OpKind, Reading, SlotGrant, Status,
};
use proto_common::element::Dtype;
use proto_common::ids::{ChunkId, Epoch, Incarnation, JobId, Lane, Operation, Rank, Version};
use proto_common::limits::OPEN_SPAN_MAX;

/// The job of every honest batch.
pub const JOB: JobId = JobId(7);
/// The life of the process under test.
pub const OWN_LIFE: Incarnation = Incarnation(100);

/// What most honest requests have in common; it asks for nothing yet.
#[must_use]
pub fn request(operation: u64) -> Block {
    Block {
        id: ChunkId::new(0, 0),
        op: OpKind::Release,
        dtype: Dtype::F32,
        codec: 0,
        status: Status::None,
        operation: Operation(operation),
        first_open: Operation(1.min(operation)),
        exact: false,
        count: Count::Round(0),
        bytes: 0,
        data: BlockData::Inline { offset: 0 },
        landing: None,
        view: false,
        reading: Reading::default(),
        timeout_ms: 1_000,
        token: operation,
    }
}

/// A target, `run`: a closure over bytes, or over any type that can be made of bytes, as libFuzzer's macro takes it.
#[macro_export]
macro_rules! target {
    (|$data:ident: &[u8]| $body:block) => {
        /// Tries one input.
        pub fn run($data: &[u8]) $body
    };
    (|$input:ident: $type:ty| $body:block) => {
        /// Tries one input.
        pub fn run(data: &[u8]) {
            if data.len() < <$type as arbitrary::Arbitrary<'_>>::size_hint(0).0 {
                return;
            }
            let bytes = arbitrary::Unstructured::new(data);
            let Ok($input) = <$type as arbitrary::Arbitrary<'_>>::arbitrary_take_rest(bytes) else { return };
            $body
        }
    };
}

/// A target whose input is a program for a `$rig`: it is made, steps until the program is over, and is judged.
#[macro_export]
macro_rules! programs {
    ($rig:ty) => {
        /// Tries one input.
        pub fn run(data: &[u8]) {
            let mut program = $crate::Program::new(data);
            let mut rig = <$rig>::new(&mut program);
            while !program.is_over() {
                rig.step(&mut program);
            }
            rig.finish();
        }
    };
}

/// An input read as a sequence of choices. Past its end every choice is 0, the plainest one.
#[derive(Debug)]
pub struct Program<'a> {
    bytes: &'a [u8],
}

impl<'a> Program<'a> {
    /// A program of these bytes.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// Has every byte been read?
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.bytes.split_first() else { return 0 };
        self.bytes = rest;
        *first
    }

    /// A number below `bound`, which is at least 1.
    pub fn below(&mut self, bound: u32) -> u32 {
        u32::from(self.byte()) % bound.max(1)
    }

    /// True for one byte value in `count`; false for 0.
    pub fn one_in(&mut self, count: u8) -> bool {
        count <= 1 || self.byte() % count == count - 1
    }

    /// Mostly a small number, sometimes one at an edge.
    pub fn number(&mut self) -> u64 {
        match self.byte() {
            small @ 0..240 => u64::from(small % 24),
            240..244 => u64::from(u32::MAX) - u64::from(self.byte()),
            244..248 => u64::MAX - u64::from(self.byte()),
            248..252 => (u64::MAX >> 1) + u64::from(self.byte()),
            252.. => u64::from(self.byte()) << 24 | u64::from(self.byte()),
        }
    }

    /// Any element of a list that is not empty.
    pub fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len() as u32) as usize]
    }

    /// Any slot, mostly one of the first few in an early generation.
    pub fn slot(&mut self) -> SlotGrant {
        let slot = if self.one_in(16) { (self.number() & 0xffff) as u32 } else { self.below(9) };
        SlotGrant { slot, generation: self.number() as u8 }
    }

    /// Up to 3 slots.
    pub fn slots(&mut self) -> Vec<SlotGrant> {
        (0..self.below(4)).map(|_| self.slot()).collect()
    }

    /// A block that the decoder may pass: known ids, everything else free.
    pub fn block(&mut self, payload_bytes: u64) -> Block {
        let bytes = self.number().min(payload_bytes);
        let data = match self.below(8) {
            0 => BlockData::ByReference { region: self.number(), offset: self.number() },
            1 => BlockData::Announced { keep: self.byte() & 1 == 1 },
            2 => BlockData::Placed,
            3 => BlockData::Merged,
            _ => BlockData::Inline { offset: self.number().min(payload_bytes - bytes) },
        };
        let lands = self.byte() & 1 == 1;
        let operation = self.number();
        Block {
            id: ChunkId::new(self.number(), self.below(3)),
            op: self.pick(&[OpKind::Push, OpKind::Pull, OpKind::PushPull, OpKind::Init]),
            dtype: self.pick(&Dtype::ALL),
            codec: u8::from(self.one_in(8)),
            status: Status::from_wire(self.byte() % 22).unwrap_or(Status::None),
            operation: Operation(operation),
            first_open: Operation(operation - self.number().min(operation).min(OPEN_SPAN_MAX)),
            exact: self.one_in(4),
            count: Count::Round(self.number()),
            bytes,
            data,
            landing: lands.then(|| Landing {
                region: self.number(),
                offset: self.number(),
                bytes: self.number(),
            }),
            view: self.byte().is_multiple_of(4),
            reading: Reading {
                from: Operation(self.number()),
                kept: self.pick(&[Kept::None, Kept::All, Kept::Version(Version(1))]),
            },
            timeout_ms: self.number() as u32,
            token: self.number(),
        }
    }

    /// Changes at most one field of an honest header.
    pub fn bend(&mut self, header: &mut BatchHeader) {
        match self.byte() % 16 {
            0 => header.kind = self.pick(&[BatchKind::Request, BatchKind::Result]),
            1 => header.lane = Lane(self.number() as u16),
            2 => header.sender = Rank(self.number() as u32),
            3 => header.job = JobId(self.number()),
            4 => header.epoch = Epoch { term: self.number() as u32, counter: self.number() as u32 },
            5 => header.sender_incarnation = Incarnation(self.number()),
            6 => header.receiver_incarnation = Incarnation(self.number()),
            7 => header.sequence = self.number(),
            _ => {}
        }
        header.wanted = self.number() as u16;
    }
}

/// The header of an honest batch to the process under test.
#[must_use]
pub fn header(kind: BatchKind, sender: Rank, life: Incarnation) -> BatchHeader {
    BatchHeader {
        kind,
        lane: Lane(0),
        wanted: 0,
        sender,
        job: JOB,
        epoch: Epoch { term: 1, counter: 1 },
        sender_incarnation: life,
        receiver_incarnation: OWN_LIFE,
        sequence: 1,
        payload_offset: PAYLOAD_OFFSET,
        payload_bytes: PAYLOAD_BYTES,
        payload_checksum: None,
    }
}

/// Where payloads begin.
pub const PAYLOAD_OFFSET: u64 = 256;
/// Bytes of every payload.
pub const PAYLOAD_BYTES: u64 = 1 << 20;

/// Declares each target, and a test that replays its inputs.
macro_rules! targets {
    ($($name:ident),* $(,)?) => {
        $(pub mod $name;)*

        #[cfg(test)]
        mod replay {
            $(#[test] fn $name() { super::tests::replay(stringify!($name), super::$name::run); })*
        }

        #[cfg(test)]
        const TARGETS: &[&str] = &[$(stringify!($name)),*];
    };
}

targets! {
    batch_decode,
    call_frame,
    checkpoint_files,
    chunk_image,
    codec_decode,
    control_decode,
    data_readers,
    first_words,
    notice,
    scheduler_engine,
    server_calls,
    server_copies,
    server_engine,
    settings,
    table_rows,
    tcp_frame,
    verbs_words,
    worker_engine,
}

#[cfg(test)]
mod tests {
    use super::TARGETS;
    use std::collections::BTreeSet;
    use std::path::{Path, PathBuf};

    fn fuzz() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
    }

    /// The inputs of a target: those that are kept, one a line in hexadecimal, after one without bytes and one of zeros.
    fn inputs(target: &str) -> Vec<Vec<u8>> {
        let kept = std::fs::read_to_string(fuzz().join(format!("seeds/{target}.hex"))).unwrap_or_default();
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        let bytes = |line: &str| line.as_bytes().chunks(2).map(byte).collect();
        [Vec::new(), vec![0; 64]].into_iter().chain(kept.lines().map(bytes)).collect()
    }

    /// A panic names the input, which `make fuzz` starts from as `kept-NUMBER`.
    pub(super) fn replay(target: &str, run: fn(&[u8])) {
        for (at, input) in inputs(target).iter().enumerate() {
            let caught = std::panic::catch_unwind(|| run(input));
            assert!(
                caught.is_ok(),
                "line {} of fuzz/seeds/{target}.hex: see the panic above",
                at.saturating_sub(1)
            );
        }
    }

    fn names(folder: &str) -> BTreeSet<String> {
        let files = std::fs::read_dir(fuzz().join(folder)).unwrap();
        let stem = |file: PathBuf| file.file_stem().unwrap().to_str().unwrap().to_owned();
        files.map(|entry| stem(entry.unwrap().path())).collect()
    }

    #[test]
    fn every_target_is_known_to_libfuzzer_and_every_seed_belongs_to_one() {
        let targets: BTreeSet<String> = TARGETS.iter().map(|&name| name.to_owned()).collect();
        assert_eq!(names("fuzz_targets"), targets);
        assert!(names("seeds").is_subset(&targets));
        let manifest = std::fs::read_to_string(fuzz().join("Cargo.toml")).unwrap();
        for target in targets {
            assert!(
                manifest.contains(&format!("name = \"{target}\"\n")),
                "{target} is no [[bin]] of fuzz/Cargo.toml"
            );
        }
    }

    #[test]
    fn the_seeds_are_read() {
        assert!(inputs("server_engine").len() > 100);
        assert_eq!(inputs("notice")[1], [0; 64]);
    }
}
