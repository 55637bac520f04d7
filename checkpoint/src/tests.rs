//! Checkpoints in a directory, from writing to retention.

use super::*;
use proto_common::element::Dtype;
use proto_common::ids::Key;
use proto_common::optimizer::{Adam, Optimizer};
use proto_common::table::{Initial, TableSpec};
use proto_common::tensor::TensorSpec;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

const CHUNK_BYTES: u64 = 4096;

fn specs() -> [TensorSpec; 3] {
    let adam = Optimizer::mean(Adam::default(), 0.1);
    let named = |spec: TensorSpec, name: &str| TensorSpec { name: name.into(), ..spec };
    [
        named(TensorSpec::f32(1, 5000, adam), "layer.0/weight"),
        named(TensorSpec::of(Dtype::Bf16, 2, 3000, Optimizer::sgd(0.1, 0.5, 0.0)), "layer.1/weight"),
        TensorSpec::of(Dtype::I64, 3, 7, Optimizer::sum()),
    ]
}

/// Numbers that say where they belong.
fn bytes_of(key: u64, salt: u64, first: u64, count: u64) -> Vec<u8> {
    (first..first + count).map(|at| (at.wrapping_mul(31) ^ key.wrapping_mul(77) ^ salt) as u8).collect()
}

fn state_of(spec: &TensorSpec, offset: u64, bytes: u64) -> ChunkState {
    let (key, elements) = (spec.key.0, bytes / spec.dtype.bytes() as u64);
    let sums = |salt| bytes_of(key, salt, 4 * (offset / spec.dtype.bytes() as u64), 4 * elements);
    ChunkState {
        weights: bytes_of(key, 0, offset, bytes),
        master: (spec.dtype == Dtype::Bf16).then(|| sums(1)),
        state: (0..spec.optimizer.state_arrays() as u64).map(|number| sums(2 + number)).collect(),
        marks: bytes_of(key, 9, offset, 5),
    }
}

/// Writes all tensors over so many servers, chunks in turns, the last ones first.
pub(super) fn write(store: &Arc<dyn Store>, round: u64, servers: u64) -> Manifest {
    let name = round_name(round);
    let shape = Shape { servers: servers as u32, chunk_bytes: CHUNK_BYTES, ..Shape::default() };
    let mut manifest = Manifest::new(&name, 1, round, 1000 + round, shape);
    for server in 0..servers {
        let mut plan = PartPlan { tables: vec![(table(), 1)], ..PartPlan::default() };
        let mut mine = Vec::new();
        for spec in specs() {
            let size = spec.dtype.bytes() as u64;
            for span in spec.chunks(CHUNK_BYTES).filter(|span| u64::from(span.id.chunk.0) % servers == server)
            {
                plan.tensors.push(Planned {
                    key: spec.key,
                    name: spec.name.clone(),
                    dtype: spec.dtype,
                    range: (span.offset / size, (span.offset + span.bytes) / size),
                    elements: spec.elements,
                    chunks: 1,
                    arrays: 3,
                });
                mine.push((spec.clone(), span));
            }
        }
        let mut writer =
            PartWriter::begin(store.clone(), &name, &format!("part-{server}.safetensors"), &plan).unwrap();
        for (spec, span) in mine.iter().rev() {
            let (state, first) =
                (state_of(spec, span.offset, span.bytes), span.offset / spec.dtype.bytes() as u64);
            writer.weights(spec.key, first, &state.weights).unwrap();
            if let Some(master) = &state.master {
                writer.beside(spec.key, What::Master, Dtype::F32, first, master).unwrap();
            }
            for (number, array) in (0..).zip(&state.state) {
                writer.beside(spec.key, What::State(number), Dtype::F32, first, array).unwrap();
            }
            writer.marks(spec.key, span.id.chunk.0, &state.marks).unwrap();
        }
        writer.rows(&rows(server)).unwrap();
        manifest.parts.push(writer.finish().unwrap());
    }
    let record = |spec: TensorSpec| TensorRecord { spec, version: round, newest: round };
    manifest.tensors = specs().into_iter().map(record).collect();
    commit(&*store.clone(), &manifest).unwrap();
    manifest
}

fn table() -> TableSpec {
    TableSpec::new(5, 2, Optimizer::sum(), Initial::Uniform { low: 0.0, high: 1.0, seed: 1 })
}

fn rows(server: u64) -> RowsPiece {
    RowsPiece {
        key: 5,
        ids: vec![server, 100 + server],
        pushes: vec![1, 2],
        numbers: vec![1.0, 2.0, 3.0, server as f32],
    }
}

fn check(checkpoint: &Checkpoint) {
    for spec in specs() {
        assert!(checkpoint.has(&spec, CHUNK_BYTES).unwrap());
        for span in spec.chunks(CHUNK_BYTES) {
            let state = checkpoint.chunk(&spec, &span).unwrap();
            assert_eq!(state, state_of(&spec, span.offset, span.bytes), "{span:?}");
        }
    }
}

pub(super) fn store_in(path: &Path) -> Arc<dyn Store> {
    Arc::new(Directory::new(path))
}

#[test]
fn whoever_wrote_which_chunk_every_one_is_found() {
    let directory = tempfile::tempdir().unwrap();
    let store = store_in(directory.path());
    for servers in [1, 2, 3, 5] {
        let manifest = write(&store, servers, servers);
        let checkpoint = Checkpoint::open(&store, &manifest.name).unwrap();
        assert_eq!(checkpoint.manifest(), &manifest);
        check(&checkpoint);
        let mut found = Vec::new();
        checkpoint
            .rows(
                5,
                |id| id != 100,
                |piece| {
                    found.push(piece.ids[0]);
                    assert_eq!((&piece.pushes, piece.numbers[3]), (&vec![1, 2], piece.ids[0] as f32));
                },
            )
            .unwrap();
        assert_eq!(checkpoint.table(5), Some(&table()).filter(|_| !manifest.tables.is_empty()));
        checkpoint.rows(5, |id| id == u64::MAX, |_| panic!("nothing is wanted")).unwrap();
        checkpoint.rows(6, |_| true, |_| panic!("there is no such table")).unwrap();
        assert_eq!(found, (0..servers).collect::<Vec<_>>());
        let (mut last, verified) = ((0, 0), verify(&store, &manifest.name, |_, _| ()).unwrap());
        verify(&store, &manifest.name, |done, total| last = (done, total)).unwrap();
        assert_eq!((verified.bytes, last), (manifest.bytes(), (manifest.bytes(), manifest.bytes())));
    }
}

/// Changes a part's header, which keeps its length, and the checksum of it in what is handed back.
fn with_header(path: &Path, record: &PartRecord, from: &str, to: &str) -> PartRecord {
    let mut bytes = std::fs::read(path.join(&record.file)).unwrap();
    let length = u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
    let json = String::from_utf8(bytes[8..8 + length].to_vec()).unwrap();
    assert!(json.contains(from));
    let changed = format!("{:length$}", json.replace(from, to).trim_end());
    bytes[8..8 + length].copy_from_slice(changed.as_bytes());
    std::fs::write(path.join(&record.file), &bytes).unwrap();
    let blocks = 4 * Header::parse(changed.as_bytes(), (bytes.len() - 8 - length) as u64, "f")
        .unwrap()
        .entries["gradwire#blocks"]
        .shape[0] as usize;
    let index = [&bytes[..8 + length], &bytes[bytes.len() - blocks..]].concat();
    PartRecord { crc32c: crc32c::crc32c(&bytes), index_crc32c: crc32c::crc32c(&index), ..record.clone() }
}

#[test]
fn a_stretch_of_another_shape_than_its_name_says_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let store = store_in(directory.path());
    let manifest = write(&store, 1, 1);
    let path = directory.path().join(&manifest.name);
    let (from, to) = (r#""shape":[1024]"#, r#""shape":[1024,1]"#);
    let record = with_header(&path, &manifest.parts[0], from, to);
    let part = Part::open(store, &manifest.name, &record).unwrap();
    assert!(part.tensors().unwrap_err().to_string().contains("another shape"));
}

/// Names give way to tables' now; in what was written before, they did not.
#[test]
fn a_tensor_called_as_a_table_in_the_same_part_is_read_and_so_is_the_table() {
    let directory = tempfile::tempdir().unwrap();
    let store = store_in(directory.path());
    let mut manifest = write(&store, 1, 1);
    let path = directory.path().join(&manifest.name);
    manifest.parts[0] = with_header(&path, &manifest.parts[0], "layer.0/weight", "table.5");
    commit(&*store, &manifest).unwrap();
    let checkpoint = Checkpoint::open(&store, &manifest.name).unwrap();
    check(&checkpoint);
    let part = Part::open(store.clone(), &manifest.name, &manifest.parts[0]).unwrap();
    let tables = part.tables().unwrap();
    assert_eq!((&tables[0].0, tables[0].1.len()), (&table(), 1));
    let data = &mut [0; 16];
    part.read(tables[0].1[0][0].data_offsets[0], data).unwrap();
    assert_eq!(data[8], 100, "the second row's id");
}

#[test]
fn the_formats_own_reader_finds_whole_tensors_where_one_part_has_them() {
    let directory = tempfile::tempdir().unwrap();
    let store = store_in(directory.path());
    let spec = &specs()[0];
    let plan = PartPlan {
        tensors: vec![Planned {
            key: spec.key,
            name: spec.name.clone(),
            dtype: spec.dtype,
            range: (0, spec.elements),
            elements: spec.elements,
            chunks: spec.chunk_count(CHUNK_BYTES),
            arrays: 3,
        }],
        ..PartPlan::default()
    };
    let mut writer = PartWriter::begin(store.clone(), "round-1", "p", &plan).unwrap();
    for span in spec.chunks(CHUNK_BYTES) {
        writer.weights(spec.key, span.offset / 4, &bytes_of(1, 0, span.offset, span.bytes)).unwrap();
        writer
            .beside(
                spec.key,
                What::State(0),
                Dtype::F32,
                span.offset / 4,
                &bytes_of(1, 2, span.offset, span.bytes),
            )
            .unwrap();
    }
    assert!(writer.weights(spec.key, 4999, &[0; 8]).is_err(), "beyond the plan");
    assert!(writer.weights(Key(9), 0, &[0; 8]).is_err());
    assert!(writer.beside(spec.key, What::State(0), Dtype::F32, 0, &[0; 4096]).is_err(), "twice");
    let record = writer.finish();
    assert!(record.is_ok());
    let file = std::fs::read(directory.path().join("round-1/p")).unwrap();
    let theirs = safetensors::SafeTensors::deserialize(&file).unwrap();
    let weights = theirs.tensor("layer.0/weight").unwrap();
    assert_eq!((weights.shape(), weights.data()), (&[5000usize][..], &bytes_of(1, 0, 0, 20_000)[..]));
    assert_eq!(theirs.tensor("layer.0/weight#state0[1024:2048]").unwrap().data(), bytes_of(1, 2, 4096, 4096));
}

#[test]
fn damage_is_told_by_the_file_it_is_in_and_never_read_as_weights() {
    let directory = tempfile::tempdir().unwrap();
    let store = store_in(directory.path());
    let manifest = write(&store, 7, 2);
    let path = directory.path().join(&manifest.name).join(&manifest.parts[1].file);
    let sound = std::fs::read(&path).unwrap();
    let read = || -> Result<(), CheckpointError> {
        let checkpoint = Checkpoint::open(&store, &manifest.name)?;
        for spec in specs() {
            for span in spec.chunks(CHUNK_BYTES) {
                checkpoint.chunk(&spec, &span)?;
            }
        }
        checkpoint.rows(5, |_| true, |_| ())
    };
    for at in (0..sound.len()).step_by(211).chain([0, 7, 8, sound.len() - 1]) {
        let mut other = sound.clone();
        other[at] ^= 0x10;
        std::fs::write(&path, &other).unwrap();
        let error = read().expect_err("read in spite of damage").to_string();
        assert!(error.contains(&manifest.parts[1].file), "{error}");
        assert!(verify(&store, &manifest.name, |_, _| ()).is_err(), "{at}");
    }
    for bytes in [0, 8, 100, sound.len() - 1] {
        std::fs::write(&path, &sound[..bytes]).unwrap();
        assert!(matches!(read(), Err(CheckpointError::Corrupt { .. })), "{bytes}");
    }
    std::fs::remove_file(&path).unwrap();
    assert!(matches!(read(), Err(CheckpointError::Corrupt { .. })));
    std::fs::write(&path, &sound).unwrap();
    check(&Checkpoint::open(&store, &manifest.name).unwrap());
}

#[test]
fn another_grid_or_another_declaration_is_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let store = store_in(directory.path());
    let manifest = write(&store, 7, 1);
    let checkpoint = Checkpoint::open(&store, &manifest.name).unwrap();
    let spec = specs()[0].clone();
    assert!(matches!(
        checkpoint.has(&spec, 8192),
        Err(CheckpointError::ChunkBytes { theirs: 4096, ours: 8192, .. })
    ));
    let longer = TensorSpec { elements: 5001, ..spec.clone() };
    let Err(error) = checkpoint.has(&longer, CHUNK_BYTES) else { panic!("taken") };
    assert!(error.to_string().contains("tensor \"layer.0/weight\" is declared"), "{error}");
    assert!(checkpoint.has(&TensorSpec { name: "x".into(), ..spec }, CHUNK_BYTES).unwrap());
    assert!(!checkpoint.has(&TensorSpec::f32(99, 1, Optimizer::sum()), CHUNK_BYTES).unwrap());
}

#[test]
fn a_training_that_went_back_has_the_newest_as_soon_as_it_has_written_one() {
    let directory = tempfile::tempdir().unwrap();
    let store = store_in(directory.path());
    let (first, left) = (write(&store, 100, 1), write(&store, 200, 1));
    assert_eq!(left_behind(&*store, &first).unwrap(), [round_name(200)]);
    assert!(left_behind(&*store, &left).unwrap().is_empty());
    let mut written = Vec::new();
    for (round, unix_ms) in [(150, 5000), (160, 6000)] {
        let mut manifest = write(&store, round, 1);
        manifest.unix_ms = unix_ms;
        commit(&*store, &manifest).unwrap();
        assert_eq!(newest(&*store).unwrap().unwrap().name, manifest.name);
        written.push((retain(&*store, &manifest, 2, |_| false, |_| false).unwrap().gone, manifest.name));
    }
    assert_eq!([&written[0].0, &written[1].0], [&[first.name], &[left.name]]);
    assert_eq!(store.names().unwrap(), [150, 160].map(round_name));
}

#[test]
fn what_is_given_up_takes_no_room() {
    let directory = tempfile::tempdir().unwrap();
    let store = store_in(directory.path());
    let writer = PartWriter::begin(store.clone(), &round_name(1), "part", &PartPlan::default()).unwrap();
    assert_eq!(store.files(&round_name(1)).unwrap().len(), 1);
    drop(writer);
    assert_eq!(store.files(&round_name(1)).unwrap(), []);
}

#[test]
fn the_oldest_go_only_when_a_newer_one_is_complete_and_leftovers_go_with_them() {
    let directory = tempfile::tempdir().unwrap();
    let store = store_in(directory.path());
    let stray = |name: &str| {
        store.put_bytes(name, ".tmp-part-0.safetensors", b"half").unwrap();
    };
    let first = write(&store, 1, 1);
    stray(&round_name(2));
    write(&store, 3, 1);
    let fourth = write(&store, 4, 1);
    stray(&round_name(4));
    stray(&round_name(5));
    assert_eq!(newest(&*store).unwrap().unwrap().name, fourth.name);
    assert!(Checkpoint::open(&store, &round_name(5)).is_err(), "incomplete");
    assert_eq!(retain(&*store, &fourth, 2, |_| false, |_| false).unwrap().gone, [first.name, round_name(2)]);
    assert_eq!(store.names().unwrap(), [3, 4, 5].map(round_name));
    assert_eq!(store.files(&fourth.name).unwrap().len(), 2, "the stray of round 4 is gone");
    check(&Checkpoint::open(&store, &fourth.name).unwrap());
    remove(&*store, &round_name(3)).unwrap();
    assert!(remove(&*store, "../x").is_err() && remove(&*store, "other").is_err());
    assert_eq!(list(&*store).unwrap().len(), 2);
    assert!(retain(&*store, &fourth, 0, |_| false, |_| false).unwrap().gone.is_empty());
}

#[test]
fn what_the_job_began_from_is_not_written_over() {
    let again = name_beside(100, Some(&round_name(100)));
    assert!(again.starts_with(&round_name(100)) && again != round_name(100));
    assert!(again < round_name(101), "leftovers of it go with those of earlier rounds");
    assert_eq!(name_beside(100, Some(&again)), round_name(100));
    for other in [None, Some("round-000000101"), Some("best")] {
        assert_eq!(name_beside(100, other), round_name(100));
    }
}

/// If each were looked for among all, this would compare five thousand million keys, and not end within the suite's time.
#[test]
fn of_very_many_tensors_each_is_found_by_its_key() {
    const TENSORS: u64 = 100_000;
    let directory = tempfile::tempdir().unwrap();
    let store = store_in(directory.path());
    let shape = Shape { chunk_bytes: CHUNK_BYTES, ..Shape::default() };
    let mut manifest = Manifest::new(&round_name(1), 1, 1, 1, shape);
    let spec = |key| TensorSpec::f32(key, 1 + key, Optimizer::sum());
    manifest.tensors =
        (0..TENSORS).rev().map(|key| TensorRecord { spec: spec(key), version: 1, newest: 1 }).collect();
    commit(&*store, &manifest).unwrap();
    let checkpoint = Checkpoint::open(&store, &manifest.name).unwrap();
    for key in 0..TENSORS {
        assert!(checkpoint.has(&spec(key), CHUNK_BYTES).unwrap());
        assert_eq!(checkpoint.tensor(Key(key)).unwrap().spec.elements, 1 + key);
    }
    assert!(checkpoint.tensor(Key(TENSORS)).is_none());
}

/// A place that counts what is asked of it.
#[derive(Debug)]
struct Counting {
    store: Arc<dyn Store>,
    /// Files that were opened, as a reader asks for their length first.
    opened: Mutex<Vec<String>>,
    reads: AtomicU64,
}

impl Store for Counting {
    fn place(&self) -> String {
        self.store.place()
    }
    fn names(&self) -> Result<Vec<String>, CheckpointError> {
        self.store.names()
    }
    fn files(&self, name: &str) -> Result<Vec<(String, u64)>, CheckpointError> {
        self.store.files(name)
    }
    fn bytes(&self, name: &str, file: &str) -> Result<Option<u64>, CheckpointError> {
        self.opened.lock().unwrap().push(file.to_owned());
        self.store.bytes(name, file)
    }
    fn read(&self, name: &str, file: &str, offset: u64, into: &mut [u8]) -> Result<(), CheckpointError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.store.read(name, file, offset, into)
    }
    fn stage(&self, name: &str, file: &str) -> Result<Staged, CheckpointError> {
        self.store.stage(name, file)
    }
    fn put(&self, name: &str, file: &str, staged: Staged) -> Result<(), CheckpointError> {
        self.store.put(name, file, staged)
    }
    fn put_bytes(&self, name: &str, file: &str, bytes: &[u8]) -> Result<(), CheckpointError> {
        self.store.put_bytes(name, file, bytes)
    }
    fn put_new(&self, name: &str, file: &str, bytes: &[u8]) -> Result<bool, CheckpointError> {
        self.store.put_new(name, file, bytes)
    }
    fn remove(&self, name: &str, file: &str) -> Result<(), CheckpointError> {
        self.store.remove(name, file)
    }
    fn forget(&self, name: &str) -> Result<bool, CheckpointError> {
        self.store.forget(name)
    }
}

fn counting(path: &Path) -> (Arc<Counting>, Arc<dyn Store>) {
    let (store, opened, reads) = (store_in(path), Mutex::default(), AtomicU64::new(0));
    let counting = Arc::new(Counting { store, opened, reads });
    (counting.clone(), counting)
}

/// The contents of what [`write`] writes.
fn contents_of(servers: u64) -> Vec<Contents> {
    let of = |server| {
        let spans = specs().into_iter().flat_map(|spec| spec.chunks(CHUNK_BYTES).collect::<Vec<_>>());
        let own = spans.filter(|span| u64::from(span.id.chunk.0) % servers == server);
        Contents::new(own.map(|span| (span.id, 1)).collect::<Vec<_>>(), [5])
    };
    (0..servers).map(of).collect()
}

#[test]
fn only_parts_that_have_what_is_read_are_opened() {
    let directory = tempfile::tempdir().unwrap();
    let (counting, store) = counting(directory.path());
    let mut manifest = write(&store, 1, 4);
    manifest.contents = contents_of(4);
    commit(&*store, &manifest).unwrap();
    let opened = || std::mem::take(&mut *counting.opened.lock().unwrap());
    drop(opened());
    let checkpoint = Checkpoint::open(&store, &manifest.name).unwrap();
    assert_eq!(opened(), ["manifest.json"]);
    let spec = &specs()[0];
    for chunk in [1, 1] {
        let span = spec.chunk(proto_common::ids::ChunkIndex(chunk), CHUNK_BYTES).unwrap();
        assert_eq!(checkpoint.chunk(spec, &span).unwrap(), state_of(spec, span.offset, span.bytes));
    }
    assert_eq!(opened(), ["part-1.safetensors"], "once");
    checkpoint.rows(6, |_| true, |_| panic!("there is no such table")).unwrap();
    assert!(opened().is_empty());
    check(&checkpoint);
    checkpoint.check_parts().unwrap();
    assert_eq!(opened().len(), 3, "each of the others");
    // A part of which the manifest says something wrong, and a word that is none.
    manifest.contents.swap(0, 1);
    commit(&*store, &manifest).unwrap();
    let checkpoint = Checkpoint::open(&store, &manifest.name).unwrap();
    let span = spec.chunks(CHUNK_BYTES).next().unwrap();
    assert!(matches!(checkpoint.chunk(spec, &span), Err(CheckpointError::Corrupt { .. })));
    let wrong = [["1:0", "1:0+x", "x:0+1", "1+1", "1:4294967295+1"], ["", " ", "table.x", "table.", "1:1+1"]];
    for (word, is_wrong) in
        wrong.iter().zip([true, false]).flat_map(|(words, is)| words.iter().map(move |word| (word, is)))
    {
        let text = serde_json::to_string(word).unwrap();
        manifest.contents[0] = serde_json::from_str(&text).unwrap();
        commit(&*store, &manifest).unwrap();
        assert_eq!(Checkpoint::open(&store, &manifest.name).is_err(), is_wrong, "{word:?}");
    }
    manifest.contents.pop();
    commit(&*store, &manifest).unwrap();
    assert!(matches!(Checkpoint::open(&store, &manifest.name), Err(CheckpointError::Foreign { .. })));
}

/// Over a network each read is a request of many milliseconds.
#[test]
fn a_long_stretch_is_read_at_once_and_each_block_of_it_is_checked() {
    const BLOCK: usize = 256 << 10;
    let directory = tempfile::tempdir().unwrap();
    let (counting, store) = counting(directory.path());
    let table = TableSpec::new(5, 1024, Optimizer::sum(), Initial::Constant(0.0));
    let plan = PartPlan { tables: vec![(table, 1)], ..PartPlan::default() };
    let mut writer = PartWriter::begin(store.clone(), "round-1", "part", &plan).unwrap();
    let (ids, numbers): (Vec<u64>, Vec<f32>) =
        ((0..3000).collect(), (0..3000 * 1024).map(|at| at as f32).collect());
    writer.rows(&RowsPiece { key: 5, pushes: ids.clone(), ids, numbers: numbers.clone() }).unwrap();
    let record = writer.finish().unwrap();
    let part = Part::open(store.clone(), "round-1", &record).unwrap();
    let (offset, bytes) = (2 * 3000 * 8 + 4, 3000 * 1024 * 4 - 8);
    let before = counting.reads.load(Ordering::Relaxed);
    let mut read = vec![0; bytes];
    part.read(offset, &mut read).unwrap();
    assert_eq!(counting.reads.load(Ordering::Relaxed) - before, 2, "12 MB");
    let expected: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    assert!(read == expected[4..4 + bytes]);
    let path = directory.path().join("round-1/part");
    let sound = std::fs::read(&path).unwrap();
    for block in [0, 1, 31, 32, 46] {
        let mut other = sound.clone();
        let data_at = 8 + u64::from_le_bytes(*sound.first_chunk().unwrap()) as usize;
        other[data_at + block * BLOCK] ^= 1;
        std::fs::write(&path, other).unwrap();
        let error = part.read(offset, &mut read).unwrap_err().to_string();
        assert!(error.contains(&format!("bytes at {}", data_at + block * BLOCK)), "{error}");
    }
}

#[test]
fn a_part_that_has_gone_meanwhile_keeps_it_from_being_complete() {
    let directory = tempfile::tempdir().unwrap();
    let store = store_in(directory.path());
    let manifest = write(&store, 1, 2);
    store.remove(&manifest.name, store::MANIFEST).unwrap();
    for bytes in [None, Some(b"short")] {
        let part = &manifest.parts[1].file;
        store.remove(&manifest.name, part).unwrap();
        bytes.iter().for_each(|bytes| store.put_bytes(&manifest.name, part, *bytes).unwrap());
        let error = commit(&*store, &manifest).unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
        assert_eq!(newest(&*store).unwrap(), None);
    }
}

#[test]
fn a_part_of_too_many_chunks_is_refused_before_anything_is_written() {
    let directory = tempfile::tempdir().unwrap();
    let store = store_in(directory.path());
    let plan = |chunks, arrays| {
        let elements = 1024 * chunks;
        let (dtype, range) = (Dtype::F32, (0, elements));
        let planned = Planned { key: Key(1), name: "w".into(), dtype, range, elements, chunks, arrays };
        PartPlan { tensors: vec![planned], ..PartPlan::default() }
    };
    let begin =
        |chunks, arrays| PartWriter::begin(store.clone(), &round_name(1), "part", &plan(chunks, arrays));
    assert!(begin(100_000, 3).is_ok());
    assert!(begin(10_000_000, 0).is_ok(), "one stretch, whatever the chunks");
    let error = begin(200_000, 3).unwrap_err();
    assert!(matches!(error, CheckpointError::TooManyChunks { chunks: 200_000, .. }), "{error}");
    assert_eq!(store.files(&round_name(1)).unwrap(), []);
}

#[test]
fn a_part_has_room_for_a_hundred_thousand_tensors_with_two_arrays_each() {
    let directory = tempfile::tempdir().unwrap();
    let store = store_in(directory.path());
    let planned = |key: u64| Planned {
        key: Key(key),
        name: format!("layers.{key}.weight"),
        dtype: Dtype::F32,
        range: (0, 2),
        elements: 2,
        chunks: 1,
        arrays: 2,
    };
    let plan = PartPlan { tensors: (0..100_000).map(planned).collect(), ..PartPlan::default() };
    let mut writer = PartWriter::begin(store, &round_name(1), "part", &plan).unwrap();
    for key in (0..100_000).map(Key) {
        writer.weights(key, 0, &[0; 8]).unwrap();
        for state in [0, 1] {
            writer.beside(key, What::State(state), Dtype::F32, 0, &[0; 8]).unwrap();
        }
    }
    writer.finish().unwrap();
}
