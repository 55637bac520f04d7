//! Chunks of a checkpoint are read side by side, and no further after an error.

use super::*;
use checkpoint::{Directory, Manifest, PartPlan, PartWriter, Planned, Shape, Staged, Store, TensorRecord};
use proto_common::optimizer::Optimizer;
use proto_common::tensor::TensorSpec;
use std::sync::{Condvar, Mutex};
use std::time::Duration;

const CHUNK_BYTES: u64 = 4096;
const CHUNKS: u64 = 20;
const PATIENCE: Duration = Duration::from_secs(20);

/// How many reads are under way, and how many have been at once. Once nobody else comes, nobody waits any more.
#[derive(Debug, Default)]
struct Reads {
    is_counted: bool,
    now: u64,
    most: u64,
    is_given_up: bool,
}

/// A place where each read waits until as many are under way as one lane begins.
#[derive(Debug)]
struct Slow(Directory, Mutex<Reads>, Condvar);

impl Store for Slow {
    fn place(&self) -> String {
        self.0.place()
    }
    fn names(&self) -> Result<Vec<String>, CheckpointError> {
        self.0.names()
    }
    fn files(&self, name: &str) -> Result<Vec<(String, u64)>, CheckpointError> {
        self.0.files(name)
    }
    fn bytes(&self, name: &str, file: &str) -> Result<Option<u64>, CheckpointError> {
        self.0.bytes(name, file)
    }
    fn read(&self, name: &str, file: &str, offset: u64, into: &mut [u8]) -> Result<(), CheckpointError> {
        let mut reads = self.1.lock().unwrap();
        if reads.is_counted {
            reads.now += 1;
            reads.most = reads.most.max(reads.now);
            self.2.notify_all();
            let alone = |reads: &mut Reads| reads.most < READERS_MAX && !reads.is_given_up;
            let waited = self.2.wait_timeout_while(reads, PATIENCE, alone).unwrap();
            reads = waited.0;
            reads.is_given_up |= waited.1.timed_out();
            reads.now -= 1;
        }
        drop(reads);
        self.0.read(name, file, offset, into)
    }
    fn stage(&self, name: &str, file: &str) -> Result<Staged, CheckpointError> {
        self.0.stage(name, file)
    }
    fn put(&self, name: &str, file: &str, staged: Staged) -> Result<(), CheckpointError> {
        self.0.put(name, file, staged)
    }
    fn put_bytes(&self, name: &str, file: &str, bytes: &[u8]) -> Result<(), CheckpointError> {
        self.0.put_bytes(name, file, bytes)
    }
    fn put_new(&self, name: &str, file: &str, bytes: &[u8]) -> Result<bool, CheckpointError> {
        self.0.put_new(name, file, bytes)
    }
    fn remove(&self, name: &str, file: &str) -> Result<(), CheckpointError> {
        self.0.remove(name, file)
    }
    fn forget(&self, name: &str) -> Result<bool, CheckpointError> {
        self.0.forget(name)
    }
}

fn spec() -> TensorSpec {
    TensorSpec::f32(1, CHUNKS * CHUNK_BYTES / 4, Optimizer::sum())
}

/// Chunk by chunk, bytes that are the chunk's number; its marks are one byte.
fn write(store: &Arc<dyn Store>) {
    let spec = spec();
    let (key, name, dtype, elements) = (spec.key, spec.name.clone(), spec.dtype, spec.elements);
    let planned = Planned { key, name, dtype, range: (0, elements), elements, chunks: CHUNKS, arrays: 0 };
    let plan = PartPlan { tensors: vec![planned], ..PartPlan::default() };
    let mut writer = PartWriter::begin(store.clone(), "one", "part", &plan).unwrap();
    for span in spec.chunks(CHUNK_BYTES) {
        let bytes = vec![span.id.chunk.0 as u8; span.bytes as usize];
        writer.weights(spec.key, span.offset / 4, &bytes).unwrap();
        writer.marks(spec.key, span.id.chunk.0, &[99]).unwrap();
    }
    let shape = Shape { chunk_bytes: CHUNK_BYTES, ..Shape::default() };
    let mut manifest = Manifest::new("one", 1, 1, 1, shape);
    manifest.parts.push(writer.finish().unwrap());
    manifest.tensors.push(TensorRecord { spec, version: 1, newest: 1 });
    checkpoint::commit(&**store, &manifest).unwrap();
}

#[test]
fn a_lane_reads_as_many_chunks_at_once_as_it_may_and_none_after_an_error() {
    let place = tempfile::tempdir().unwrap();
    let slow = Arc::new(Slow(Directory::new(place.path()), Mutex::default(), Condvar::new()));
    let store: Arc<dyn Store> = slow.clone();
    write(&store);
    let restorer = Restorer(Arc::new(Checkpoint::open(&store, "one").unwrap()), 1, Progress::default());
    slow.1.lock().unwrap().is_counted = true;
    let spec = spec();
    let chunks: Vec<ChunkSpec> = spec.chunks(CHUNK_BYTES).map(|span| ChunkSpec::of(&spec, &span)).collect();
    let chunks: Vec<&ChunkSpec> = chunks.iter().collect();
    let mut found = vec![false; chunks.len()];
    let read = restorer.images(&chunks, CHUNK_BYTES, |at, image| {
        let image = image.expect("it is there");
        assert!(image[0] == 99 && image[1..].iter().all(|byte| usize::from(*byte) == at), "{at}");
        found[at] = true;
        Ok::<(), CheckpointError>(())
    });
    read.unwrap();
    assert!(found.iter().all(|found| *found), "{found:?}");
    assert_eq!((slow.1.lock().unwrap().most, restorer.progress().read()), (READERS_MAX, CHUNKS));
    let mut taken = 0;
    let error = restorer.images(&chunks, CHUNK_BYTES, |_, _| {
        taken += 1;
        if taken < 3 { Ok(()) } else { Err(CheckpointError::Plan("enough".into())) }
    });
    assert!(error.unwrap_err().to_string().contains("enough"));
    assert_eq!(taken, 3);
    restorer.images(&[], CHUNK_BYTES, |_, _| Err(CheckpointError::Plan("none".into()))).unwrap();
}
