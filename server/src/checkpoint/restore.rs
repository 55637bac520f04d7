//! What chunks begin with where the job goes on from a checkpoint. It reads; it must not change what it reads from.

use crate::engine::ChunkSpec;
use checkpoint::{Checkpoint, CheckpointError};
use std::sync::Arc;

/// See the module. Lanes share it.
#[derive(Clone, Debug)]
pub(crate) struct Restorer(Arc<Checkpoint>);

impl Restorer {
    /// Opens a complete checkpoint of a place.
    pub(crate) fn open(place: &str, name: &str) -> Result<Self, CheckpointError> {
        let store = checkpoint::open(place)?;
        Ok(Self(Arc::new(Checkpoint::open(&store, name)?)))
    }

    /// The image that a new chunk begins from; none where the checkpoint does not have its tensor.
    pub(crate) fn image(
        &self,
        chunk: &ChunkSpec,
        chunk_bytes: u64,
    ) -> Result<Option<Vec<u8>>, CheckpointError> {
        let key = chunk.id.key;
        let Some(tensor) = self.0.manifest().tensor(key) else {
            if chunk.id.chunk.0 == 0 {
                let name = &self.0.manifest().name;
                tracing::warn!(tensor = %key, checkpoint = name, "a tensor is not in the checkpoint, and begins with zeros");
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
            return Err(CheckpointError::OtherSpec { key, name, ours, theirs });
        };
        self.0.has(&tensor.spec, chunk_bytes)?;
        let state = self.0.chunk(&tensor.spec, &span)?;
        let mut image = state.marks;
        image.extend_from_slice(&state.weights);
        state.state.iter().chain(&state.master).for_each(|array| image.extend_from_slice(array));
        Ok(Some(image))
    }
}
