//! What lies in a directory of checkpoints: manifests, headers of parts, and what whole parts say that they have. Whatever the
//! bytes, an answer and no panic; a header that is taken has entries that cover the data exactly, and what is read of a part
//! has as many bytes as it says.

use checkpoint::{
    Checkpoint, CheckpointError, Entry, Header, Manifest, Part, PartRecord, Shape, Staged, Store, TableRecord,
};
use crate::Program;
use proto_common::element::Dtype;
use proto_common::ids::Key;
use proto_common::optimizer::Optimizer;
use proto_common::table::{Initial, TableSpec};
use proto_common::tensor::TensorSpec;
use std::collections::BTreeMap;
use std::sync::Arc;

const NAME: &str = "round-000000001";
const FILE: &str = "part-a.safetensors";
const CHUNK_BYTES: u64 = 16;
/// Names of entries, read or passed over.
const NAMES: [&str; 10] = [
    "w",
    "w#master",
    "w#state0",
    "w#state1",
    "table.3#ids",
    "table.3#pushes",
    "table.3#rows",
    "table.9#ids",
    "gradwire#marks",
    "other",
];

/// A checkpoint's files, in memory.
#[derive(Debug, Default)]
struct InMemory(BTreeMap<String, Vec<u8>>);

impl Store for InMemory {
    fn place(&self) -> String {
        "fuzzed".into()
    }
    fn names(&self) -> Result<Vec<String>, CheckpointError> {
        Ok(vec![NAME.into()])
    }
    fn files(&self, _: &str) -> Result<Vec<(String, u64)>, CheckpointError> {
        Ok(self.0.iter().map(|(file, bytes)| (file.clone(), bytes.len() as u64)).collect())
    }
    fn bytes(&self, _: &str, file: &str) -> Result<Option<u64>, CheckpointError> {
        Ok(self.0.get(file).map(|bytes| bytes.len() as u64))
    }
    fn read(&self, _: &str, file: &str, offset: u64, into: &mut [u8]) -> Result<(), CheckpointError> {
        let there = self.0.get(file).and_then(|bytes| bytes.get(offset as usize..)?.get(..into.len()));
        let there = there.expect("what is read has been found to be there");
        into.copy_from_slice(there);
        Ok(())
    }
    fn stage(&self, _: &str, _: &str) -> Result<Staged, CheckpointError> {
        unreachable!("nothing is written")
    }
    fn put(&self, _: &str, _: &str, _: Staged) -> Result<(), CheckpointError> {
        unreachable!("nothing is written")
    }
    fn put_bytes(&self, _: &str, _: &str, _: &[u8]) -> Result<(), CheckpointError> {
        unreachable!("nothing is written")
    }
    fn put_new(&self, _: &str, _: &str, _: &[u8]) -> Result<bool, CheckpointError> {
        unreachable!("nothing is written")
    }
    fn remove(&self, _: &str, _: &str) -> Result<(), CheckpointError> {
        unreachable!("nothing is written")
    }
    fn forget(&self, _: &str) -> Result<bool, CheckpointError> {
        unreachable!("nothing is written")
    }
}

crate::target!(|data: &[u8]| {
    match data.split_first() {
        None => {}
        Some((0, bytes)) => words(bytes),
        Some((_, bytes)) => part(&mut Program::new(bytes)),
    }
});

/// Manifest and header by themselves.
fn words(bytes: &[u8]) {
    let _ = Manifest::parse(bytes, "fuzzed");
    if let Some(first) = bytes.first_chunk::<8>() {
        let _ = Header::length(*first, bytes.len() as u64, "fuzzed");
    }
    let Some((data_bytes, json)) = bytes.split_first() else { return };
    if let Ok(header) = Header::parse(json, u64::from(*data_bytes), "fuzzed") {
        let covered: u64 = header.entries.values().map(Entry::bytes).sum();
        assert_eq!(covered, u64::from(*data_bytes));
    }
}

fn table() -> TableSpec {
    TableSpec::new(3, 2, Optimizer::sum(), Initial::Constant(0.0))
}

/// A part of whatever entries, under checksums that fit, mostly.
fn part(program: &mut Program<'_>) {
    let (header, data) = contents(program);
    let mut json = serde_json::to_vec(&header).expect("it is JSON");
    if program.one_in(16) {
        let at = program.number() as usize % json.len();
        json[at] = program.byte();
    }
    let length = (json.len() as u64).to_le_bytes();
    let sums =
        data.chunks(256 << 10).flat_map(|block| crc32c::crc32c(block).to_le_bytes()).collect::<Vec<u8>>();
    let index = [&length[..], &json, &sums].concat();
    let mut file = [&length[..], &json, &data, &sums].concat();
    let mut record = PartRecord {
        file: FILE.into(),
        bytes: file.len() as u64,
        crc32c: crc32c::crc32c(&file),
        index_crc32c: crc32c::crc32c(&index),
    };
    match program.byte() % 16 {
        0 => record.bytes = program.number(),
        1 => file.truncate(program.number() as usize),
        2 => {
            let at = program.number() as usize % file.len();
            file[at] ^= 1 << (program.byte() % 8);
        }
        _ => {}
    }
    let spec = TensorSpec::f32(7, 8, Optimizer::sum());
    let mut manifest = Manifest::new(NAME, 1, 1, 1, Shape { chunk_bytes: CHUNK_BYTES, ..Shape::default() });
    manifest.tables.push(TableRecord { spec: table(), rows: 1 });
    manifest.parts.push(record.clone());
    let manifest = manifest.to_bytes().expect("it is JSON");
    let store = InMemory([("manifest.json".into(), manifest), (FILE.into(), file)].into());
    let store: Arc<dyn Store> = Arc::new(store);
    if let Ok(part) = Part::open(store.clone(), NAME, &record) {
        read(&part);
    }
    if let Ok(checkpoint) = Checkpoint::open(&store, NAME) {
        restore(&checkpoint, &spec);
    }
}

/// What is said of them is what there is.
fn read(part: &Part) {
    for (_, _, (first, end), entry) in part.tensors().unwrap_or_default() {
        let mut bytes = vec![0; entry.bytes() as usize];
        let _ = part.read(entry.data_offsets[0], &mut bytes);
        let size = Dtype::ALL.into_iter().find(|dtype| format!("{dtype}").eq_ignore_ascii_case(&entry.dtype));
        if let Some(size) = size {
            assert_eq!(entry.bytes(), (end - first) * size.bytes() as u64, "as many as its name says");
        }
    }
    for (_, pieces) in part.tables().unwrap_or_default() {
        for entry in pieces.into_iter().flatten() {
            let _ = part.read(entry.data_offsets[0], &mut vec![0; entry.bytes() as usize]);
        }
    }
    let _ = (part.marks(), part.verify(|_| ()));
}

fn restore(checkpoint: &Checkpoint, spec: &TensorSpec) {
    for span in spec.chunks(CHUNK_BYTES) {
        if let Ok(state) = checkpoint.chunk(spec, &span) {
            let arrays = state.state.iter().chain(&state.master).chain([&state.weights]);
            arrays.for_each(|array| assert_eq!(array.len() as u64, span.bytes));
        }
    }
    for key in [3, 9] {
        let _ = checkpoint.rows(
            key,
            |id| id % 3 < 2,
            |piece| {
                assert_eq!(piece.ids.len(), piece.pushes.len());
                assert!(piece.numbers.len().is_multiple_of(piece.ids.len()));
            },
        );
    }
}

/// Entries one behind the other, a table of blocks last.
fn contents(program: &mut Program<'_>) -> (Header, Vec<u8>) {
    let (mut header, mut data) = (Header::default(), Vec::new());
    for _ in 0..program.below(12) {
        let name = program.pick(&NAMES);
        let (first, count) = (u64::from(program.below(3)) * 4, u64::from(program.below(9)));
        let is_rows = name.ends_with("#rows");
        let dtype = match name {
            _ if program.one_in(8) => program.pick(&["F32", "F64", "BF16", "U64", "U8"]),
            "gradwire#marks" => "U8",
            _ if name.ends_with("#ids") || name.ends_with("#pushes") => "U64",
            _ => "F32",
        };
        let size = match dtype {
            "F64" | "U64" => 8,
            "F32" => 4,
            "BF16" => 2,
            _ => 1,
        };
        let mut shape = vec![count];
        if is_rows || program.one_in(8) {
            shape.push(if is_rows && !program.one_in(8) { 2 } else { program.number() % 5 });
        }
        let bytes = (shape.iter().product::<u64>() * size) as usize;
        let begin = data.len();
        if name == "gradwire#marks" && !program.one_in(4) {
            marks(program, &mut data, bytes);
            shape = vec![(data.len() - begin) as u64];
        } else {
            data.extend((0..bytes).map(|_| program.byte()));
        }
        let end = if program.one_in(16) { first.saturating_add(program.number()) } else { first + shape[0] };
        let is_bare = name.starts_with("gradwire") || name == "w" && program.byte() & 1 == 1;
        let name = if is_bare { name.to_owned() } else { format!("{name}[{first}:{end}]") };
        if header.entries.contains_key(&name) {
            data.truncate(begin);
            continue;
        }
        let data_offsets = [begin as u64, data.len() as u64];
        header.entries.insert(name, Entry { dtype: dtype.into(), shape, data_offsets });
    }
    let keys = if program.one_in(16) { "[1]".into() } else { r#"{"w":7}"#.to_owned() };
    let tables = if program.one_in(16) { vec![table(); 2] } else { vec![table()] };
    let tables = serde_json::to_string(&tables).expect("it is JSON");
    header.metadata = [("gradwire.keys".to_owned(), keys), ("gradwire.tables".to_owned(), tables)].into();
    let (end, blocks) = (data.len() as u64, data.len().div_ceil(256 << 10) as u64);
    let offsets = [end, end + 4 * blocks];
    let sums = Entry { dtype: "U32".into(), shape: vec![blocks], data_offsets: offsets };
    header.entries.insert("gradwire#blocks".into(), sums);
    (header, data)
}

/// The marks of the tensor's chunks.
fn marks(program: &mut Program<'_>, data: &mut Vec<u8>, bytes: usize) {
    for chunk in 0..2u32 {
        data.extend(Key(7).0.to_le_bytes());
        data.extend(chunk.to_le_bytes());
        data.extend((bytes as u32).to_le_bytes());
        data.extend((0..bytes).map(|_| program.byte()));
    }
}
