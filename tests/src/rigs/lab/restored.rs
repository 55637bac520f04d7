//! A job that continues from the checkpoint of another one, as trainers do that `resume`. The checkpoint is a real one, in a
//! directory.

use super::shape::CHUNK_BYTES;
use super::{Lab, LabShape, Plan};
use checkpoint::{Directory, Manifest, PartRecord, Shape, Store, TensorRecord};
use fabric::sim::SimFaults;
use gradwire_server::engine::ChunkSpec;
use proto_common::ids::Rank;
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;

const NAME: &str = "before";

/// See the module.
#[derive(Debug)]
pub(super) struct Restored(TempDir);

impl Restored {
    /// The place, and the checkpoint in it.
    pub(super) fn checkpoint(&self) -> (&str, &'static str) {
        (self.0.path().to_str().expect("a path of letters"), NAME)
    }
}

impl Lab {
    /// Makes some rounds without faults, writes a checkpoint, and starts another job from it, whose rounds follow those.
    #[must_use]
    pub fn restored(seed: u64, shape: LabShape) -> Self {
        let (place, rounds) = (TempDir::new().expect("a directory"), 1 + seed % 3);
        let faults = SimFaults { order: shape.faults.order, ..SimFaults::calm() };
        let (places, plan) = (shape.servers, Plan::NOTHING);
        let mut before =
            Self::new(seed, LabShape { rounds, replicas: 0, places, plan, faults, ..shape.clone() });
        before.make_rounds();
        before.write_checkpoint(place.path(), rounds);
        let mut lab = Self::new(seed, LabShape { rounds: rounds + shape.rounds, ..shape });
        // Nothing of it may be lost either.
        for (tensor, rank) in (0..lab.tensors.len())
            .flat_map(|tensor| (0..lab.shape.workers).map(move |rank| (tensor, Rank(rank))))
        {
            for round in 1..=rounds {
                lab.watch.begin(tensor, rank, round);
                lab.watch.acknowledge(tensor, rank, round);
            }
        }
        lab.restored = Some(Restored(place));
        lab
    }

    fn write_checkpoint(&self, place: &Path, round: u64) {
        let store: Arc<dyn Store> = Arc::new(Directory::new(place));
        let shape = Shape { servers: self.shape.servers, chunk_bytes: CHUNK_BYTES, ..Shape::default() };
        let mut manifest = Manifest::new(NAME, 1, round, 1, shape);
        let record = |spec: &_| TensorRecord { spec: Clone::clone(spec), version: round, newest: round };
        manifest.tensors = self.tensors.iter().map(record).collect();
        for server in self.seats.iter().filter_map(|seat| seat.server_ref()) {
            let map = server.member.map();
            for (at, lane) in (0..).zip(&server.lanes) {
                let placed = self
                    .tensors
                    .iter()
                    .flat_map(|spec| map.placed_chunks(spec.key).map(move |one| (spec, one)));
                let own = placed
                    .filter(|(_, (span, holder))| *holder == server.rank && map.lane_of(span.id).0 == at);
                let chunks = own.map(|(spec, (span, _))| ChunkSpec::of(spec, &span)).collect();
                let part = lane.write_part(store.clone(), (NAME, round), &self.tensors, chunks);
                let part = part.unwrap_or_else(|error| panic!("{}: {error}", self.describe()));
                let (file, bytes, crc32c, index_crc32c) =
                    (part.file, part.bytes, part.crc32c, part.index_crc32c);
                manifest.parts.push(PartRecord { file, bytes, crc32c, index_crc32c });
            }
        }
        checkpoint::commit(&*store, &manifest).expect("a checkpoint");
    }
}
