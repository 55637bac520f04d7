//! What chunks begin with where the job continues from a checkpoint. It reads; it must not change what it reads from.

use crate::engine::ChunkSpec;
use crate::tables::Rows;
use checkpoint::{Checkpoint, CheckpointError};
use proto_common::table::{Spread, TableSpec};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread;

/// Threads of a lane that read chunks at once: an object store needs as long for one request as for several.
const READERS_MAX: u64 = 8;
/// Bytes of chunks that they may have read beside one another. One of them reads a chunk of any size.
const READ_BYTES_MAX: u64 = 64 << 20;
/// A chunk's bytes, with as much as a rule keeps beside it.
const IMAGE_CHUNKS: u64 = 4;

/// See the module. Lanes share it.
#[derive(Clone, Debug)]
pub(crate) struct Restorer(Arc<Checkpoint>, u16, Progress);

/// Chunks, and stretches of rows, that were read so far: who waits for lanes sees that they continue.
#[derive(Clone, Debug, Default)]
pub(crate) struct Progress(Arc<AtomicU64>);

impl Progress {
    pub(crate) fn read(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn count(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Restorer {
    /// Opens a complete checkpoint of a place, for servers of so many lanes.
    pub(crate) fn open(place: &str, name: &str, lanes: u16) -> Result<Self, CheckpointError> {
        let (store, name) = checkpoint::find(place, name)?;
        Ok(Self(Arc::new(Checkpoint::open(&store, &name)?), lanes, Progress::default()))
    }

    /// How far lanes are with it.
    pub(crate) fn progress(&self) -> Progress {
        self.2.clone()
    }

    /// The image that a new chunk begins from; none where the checkpoint does not have its tensor.
    pub(crate) fn image(
        &self,
        chunk: &ChunkSpec,
        chunk_bytes: u64,
    ) -> Result<Option<Vec<u8>>, CheckpointError> {
        let key = chunk.id.key;
        let Some(tensor) = self.0.tensor(key) else {
            if chunk.id.chunk.0 == 0 {
                let name = &self.0.manifest().name;
                tracing::warn!(tensor = %key, checkpoint = name, "a tensor is missing in the checkpoint, and starts with zeros");
            }
            return Ok(None);
        };
        let theirs = tensor.spec.chunk(chunk.id.chunk, chunk_bytes);
        let Some(span) = theirs
            .filter(|span| ChunkSpec { codec: chunk.codec, ..ChunkSpec::of(&tensor.spec, span) } == *chunk)
        else {
            let name = self.0.manifest().name.clone();
            let ours = format!(
                "{} bytes of {} with {:?} in mode {}",
                chunk.bytes, chunk.dtype, chunk.optimizer, chunk.mode
            );
            let spec = &tensor.spec;
            let theirs = format!(
                "{} elements of {} with {:?} in mode {}",
                spec.elements,
                spec.dtype,
                spec.optimizer,
                spec.settled_mode()
            );
            return Err(CheckpointError::OtherSpec { tensor: spec.label(), name, ours, theirs });
        };
        self.0.has(&tensor.spec, chunk_bytes)?;
        let state = self.0.chunk(&tensor.spec, &span)?;
        self.2.count();
        let mut image = state.marks;
        image.extend_from_slice(&state.weights);
        state.state.iter().chain(&state.master).for_each(|array| image.extend_from_slice(array));
        Ok(Some(image))
    }

    /// Hands out the images of new chunks, in whatever order they are read, with the chunk's place among these. Several threads read
    /// them, because a lane that waited for one request after the other would wait for minutes. Ends with the first error.
    pub(crate) fn images<E: From<CheckpointError>>(
        &self,
        chunks: &[&ChunkSpec],
        chunk_bytes: u64,
        mut take: impl FnMut(usize, Option<Vec<u8>>) -> Result<(), E>,
    ) -> Result<(), E> {
        let image_bytes = IMAGE_CHUNKS * chunks.iter().map(|chunk| chunk.bytes).max().unwrap_or(0);
        let readers = READ_BYTES_MAX.checked_div(image_bytes).unwrap_or(1).clamp(1, READERS_MAX);
        let (next, (read, images)) = (AtomicUsize::new(0), sync_channel(0));
        thread::scope(|scope| {
            for _ in 0..readers.min(chunks.len() as u64) {
                let (next, read) = (&next, read.clone());
                scope.spawn(move || {
                    loop {
                        let at = next.fetch_add(1, Ordering::Relaxed);
                        let Some(chunk) = chunks.get(at) else { return };
                        // Nobody takes more after an error.
                        if read.send((at, self.image(chunk, chunk_bytes))).is_err() {
                            return;
                        }
                    }
                });
            }
            drop(read);
            images.into_iter().try_for_each(|(at, image)| take(at, image?))
        })
    }

    /// Puts the rows that a lane has now into a new table of so many parts; says why not.
    pub(crate) fn refill(&self, rows: &mut Rows, part: usize) -> Result<(), String> {
        let (ours, name) = (rows.spec().clone(), &self.0.manifest().name);
        let Some(theirs) = self.0.table(ours.key) else {
            tracing::warn!(
                table = ours.key,
                checkpoint = name,
                "a table is missing in the checkpoint, and starts empty"
            );
            return Ok(());
        };
        // What is kept, and which rows get memory, may be told anew.
        let alike = |spec: &TableSpec| TableSpec { admit_after: 0, rows_max: 0, ..spec.clone() };
        if alike(&ours) != alike(theirs) {
            return Err(format!("checkpoint {name} has it as {theirs:?}; declare it as in the checkpoint"));
        }
        let lanes = self.1.max(1);
        let spread = Spread { servers: (rows.parts() / usize::from(lanes)) as u32, lanes };
        let is_own = |id: u64| spread.part_of(id) == part;
        let (width, mut is_full, mut is_odd) = (rows.row_numbers(), false, false);
        let read = self.0.rows(ours.key, is_own, |piece| {
            self.2.count();
            is_odd |= piece.numbers.len() != piece.ids.len() * width;
            let each = piece.ids.iter().zip(&piece.pushes).zip(piece.numbers.chunks_exact(width));
            for ((id, pushes), numbers) in each.filter(|((id, _), _)| is_own(**id)) {
                is_full |= !rows.put(*id, *pushes, numbers);
            }
        });
        read.map_err(|error| error.to_string())?;
        if is_odd {
            return Err(format!("checkpoint {name} is damaged: it has rows of another length"));
        }
        if is_full {
            let fix = "raise memory.table_bytes, or give the table a rows_max";
            return Err(format!("a server has no memory for its rows in checkpoint {name}; {fix}"));
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "restore_tests.rs"]
mod tests;
