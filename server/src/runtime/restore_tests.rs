//! Copies of tensors that a job restores: whenever their server fails, its copy serves what the checkpoint has.

use super::lane::DataLane;
use super::rig;
use crate::engine::{ChunkSpec, ChunkState, Role};
use crate::storage::Image;
use checkpoint::{Directory, Manifest, PartRecord, Shape, Store, TensorRecord};
use fabric::sim::{SimFaults, SimNet, SimQueue};
use proto_common::ids::{ChunkId, Epoch, Incarnation, Rank};
use proto_common::message::NotTaken;
use proto_common::optimizer::{Lamb, Optimizer};
use proto_common::tensor::TensorSpec;
use std::path::Path;
use std::sync::Arc;

const CHUNK_BYTES: u64 = 4096;
const CHUNKS: u64 = 6;
const VERSION: u64 = 5;
const ALONE: Role = Role::Primary { backup: None, seeding: None };
const BACKED_UP: Role = Role::Primary { backup: Some(Rank(1)), seeding: None };
const COPY: Role = Role::Copy { of: Rank(0) };
/// Turns of both servers, after which the copy has everything.
const TURNS: u64 = 200;

/// One tensor whose chunks are independent, and one whose chunks end a round together.
fn tensors() -> [TensorSpec; 2] {
    let rules = [Optimizer::sgd(0.5, 0.9, 0.0), Optimizer::mean(Lamb::default(), 0.1)];
    let mut key = 0;
    rules.map(|rule| {
        key += 1;
        TensorSpec::f32(key, CHUNKS / 2 * CHUNK_BYTES / 4, rule)
    })
}

fn chunks() -> Vec<ChunkSpec> {
    let of = |spec: TensorSpec| {
        spec.chunks(CHUNK_BYTES).map(|span| ChunkSpec::of(&spec, &span)).collect::<Vec<_>>()
    };
    tensors().into_iter().flat_map(of).collect()
}

fn with(role: Role) -> Vec<(ChunkSpec, Role)> {
    chunks().into_iter().map(|chunk| (chunk, role)).collect()
}

fn epoch(counter: u32) -> Epoch {
    Epoch { term: 1, counter }
}

/// A chunk's weights in the checkpoint.
fn saved_weights(id: ChunkId) -> Vec<f32> {
    vec![1.5 + id.chunk.0 as f32 + 100.0 * id.key.0 as f32; CHUNK_BYTES as usize / 4]
}

/// What a server publishes of a chunk: its version, and its weights.
fn published(lane: &DataLane<SimQueue>, id: ChunkId) -> Option<(u64, Vec<f32>)> {
    let index = lane.engine.index_of(id)?;
    let (state, live) = lane.engine.state(index, false)?;
    let mut image = Vec::new();
    lane.storage.save_image(index, &state, live, &mut image).unwrap();
    let image = Image::read(&image).unwrap();
    let number = |bytes: &[u8]| f32::from_le_bytes(bytes.try_into().unwrap());
    Some((state.version, image.weights.chunks(4).map(number).collect()))
}

/// A server trains to version 5, and writes a checkpoint of it.
fn write_checkpoint(place: &Path) {
    let net = SimNet::new(1, SimFaults::default());
    let mut lane = rig::lane(&net, 0, CHUNK_BYTES);
    lane.assign(epoch(1), &chunks()).unwrap();
    for chunk in chunks() {
        let index = lane.engine.index_of(chunk.id).unwrap();
        let versions = (VERSION, VERSION);
        let state = ChunkState {
            version: VERSION,
            initialised: true,
            versions,
            live_bytes: chunk.bytes,
            ..ChunkState::default()
        };
        let mut image = Vec::new();
        lane.storage.save_image(index, &state, 0, &mut image).unwrap();
        let weights: Vec<u8> = saved_weights(chunk.id).into_iter().flat_map(f32::to_le_bytes).collect();
        let mut image = Image::read(&image).unwrap();
        image.weights = &weights;
        lane.storage.load_image(index, &image, 0, false).unwrap();
        lane.engine.restore(index, &state, 0).unwrap();
    }
    let store: Arc<dyn Store> = Arc::new(Directory::new(place));
    let part = lane.write_part(store.clone(), ("five", VERSION), &tensors(), chunks()).unwrap();
    let shape = Shape { servers: 1, chunk_bytes: CHUNK_BYTES, ..Shape::default() };
    let mut manifest = Manifest::new("five", 7, VERSION, 1, shape);
    let record = |spec| TensorRecord { spec, version: VERSION, newest: VERSION };
    manifest.tensors = tensors().into_iter().map(record).collect();
    let (file, bytes, crc32c, index_crc32c) = (part.file, part.bytes, part.crc32c, part.index_crc32c);
    manifest.parts = vec![PartRecord { file, bytes, crc32c, index_crc32c }];
    checkpoint::commit(&*store, &manifest).unwrap();
}

/// A server of a job that continues from the checkpoint.
fn restoring(net: &SimNet, rank: u32, place: &Path) -> DataLane<SimQueue> {
    let mut lane = rig::lane(net, rank, CHUNK_BYTES);
    lane.restore_from(place.to_str().unwrap(), "five", 1).unwrap();
    lane
}

#[test]
fn a_copy_that_serves_before_it_was_filled_begins_from_the_checkpoint() {
    let place = tempfile::tempdir().unwrap();
    write_checkpoint(place.path());
    let mut filled_before = Vec::new();
    for turns in (0..40).chain([TURNS]) {
        let net = SimNet::new(turns, SimFaults::default());
        let (mut one, mut other) = (restoring(&net, 0, place.path()), restoring(&net, 1, place.path()));
        one.assign(epoch(1), &chunks()).unwrap();
        one.roles(epoch(1), &with(BACKED_UP)).unwrap();
        other.roles(epoch(1), &with(COPY)).unwrap();
        let (ours, theirs) = net.connect(one.queue_mut(), other.queue_mut());
        let inbox = other.adopt_copy(Rank(0), Incarnation(1), theirs).unwrap();
        one.adopt_stream((Rank(1), 1), Incarnation(1), ours, inbox).unwrap();
        for turn in 0..turns {
            one.step(turn).unwrap();
            other.step(turn).unwrap();
            net.advance_to(net.now_us() + 20);
        }
        let has = |lane: &DataLane<SimQueue>, chunk: &ChunkSpec| {
            published(lane, chunk.id).is_some_and(|(version, _)| version == VERSION)
        };
        filled_before.push(chunks().iter().filter(|chunk| has(&other, chunk)).count());
        // The first server fails.
        drop(one);
        other.end_server(Rank(0));
        other.roles(epoch(2), &with(ALONE)).unwrap();
        for chunk in chunks() {
            let weights = saved_weights(chunk.id);
            assert!(!other.engine.has_tear(chunk.id), "after {turns} turns: {:?}", chunk.id);
            assert_eq!(
                published(&other, chunk.id),
                Some((VERSION, weights)),
                "after {turns} turns: {:?}",
                chunk.id
            );
        }
    }
    assert_eq!((filled_before.first(), filled_before.last()), (Some(&0), Some(&(CHUNKS as usize))));
    assert!(filled_before.iter().any(|count| (1..CHUNKS as usize).contains(count)), "{filled_before:?}");
}

#[test]
fn a_copy_that_cannot_read_the_checkpoint_does_not_serve_zeros() {
    let place = tempfile::tempdir().unwrap();
    write_checkpoint(place.path());
    let net = SimNet::new(1, SimFaults::default());
    let mut other = restoring(&net, 1, place.path());
    other.roles(epoch(1), &with(COPY)).unwrap();
    for entry in std::fs::read_dir(place.path().join("five")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "safetensors") {
            std::fs::write(&path, b"overwritten").unwrap();
        }
    }
    let refused = other.roles(epoch(2), &with(ALONE)).unwrap_err();
    let refused = NotTaken::from(refused);
    assert!(refused.is_checkpoint, "{refused:?}");
    assert!(
        chunks().iter().all(|chunk| other.engine.index_of(chunk.id).is_none()),
        "nobody is answered with zeros"
    );
}
