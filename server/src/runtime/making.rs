//! Memory for chunks that are new here. It must not decide what this server has: the engine does, and hears what could not be
//! made.

use super::lane::{DataLane, LaneError};
use super::roles::AllMade;
use crate::engine::ChunkSpec;
use fabric::CompletionQueue;

impl<Q: CompletionQueue> DataLane<Q> {
    /// Chunks of zeros, as far as they are not made yet (`all`). One that there is no memory for counts as none that this server has: what comes for it is sent back,
    /// and the next decision that names it tries again. The others are made.
    pub(super) fn make(&mut self, added: &[(u32, ChunkSpec)], all: &mut AllMade) -> Result<(), LaneError> {
        let (mut made, mut refused) = (Ok(()), Vec::new());
        for (index, spec) in added {
            match self.make_one(*index, spec, all) {
                Ok(()) => self.saves.is_new(*index),
                Err(error) => {
                    refused.push(*index);
                    made = made.and(Err(error));
                }
            }
        }
        self.engine.unmade(&refused, &mut self.commands);
        made
    }

    fn make_one(&mut self, index: u32, spec: &ChunkSpec, all: &mut AllMade) -> Result<(), LaneError> {
        match all.remove(&spec.id).filter(|(of, _)| of == spec) {
            Some((_, made)) => self.storage.put_at(index, made)?,
            None => self.storage.add_at(index, spec)?,
        }
        for buffer in 0..2 {
            let weights = self.storage.weights(index, buffer)?;
            self.queue.prepare(&weights)?;
        }
        Ok(())
    }
}
