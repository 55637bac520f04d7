//! Where what peers send comes in: the receives of a lane, each with its stretch of registered memory.

use crate::error::FabricError;
use crate::verbs::ids::Turns;
use crate::verbs::reach::MESSAGE_BYTES;
use crate::verbs::registrar::{Own, Registrar};
use crate::verbs::sys::{Receives, place};
use std::sync::Arc;

#[derive(Debug)]
pub(super) struct Inbound {
    memory: Own,
    receives: Arc<Receives>,
    turns: Turns,
}

impl Inbound {
    /// All receives are posted.
    pub(super) fn new(
        registrar: &Arc<Registrar>,
        receives: &Arc<Receives>,
        count: usize,
    ) -> Result<Self, FabricError> {
        let memory = registrar.own((count * MESSAGE_BYTES) as u64, "gradwire-verbs-messages", false)?;
        let this = Self { memory, receives: Arc::clone(receives), turns: Turns::new(count) };
        (0..count as u32).try_for_each(|index| this.post(index))?;
        Ok(this)
    }

    /// Posts a receive, which has been taken.
    pub(super) fn post(&self, index: u32) -> Result<(), FabricError> {
        let (offset, bytes) = (u64::from(index) * MESSAGE_BYTES as u64, MESSAGE_BYTES as u64);
        let memory = &self.memory.registration;
        let span = memory.region.span(offset, bytes).map_err(|e| FabricError::Internal(e.to_string()))?;
        self.receives.post(self.turns.id(index), &place(&span, memory.keys().0))
    }

    /// Takes a receive that has completed. False: it is none that is posted.
    pub(super) fn take(&mut self, index: u32, turn: u32) -> bool {
        self.turns.take(index, turn)
    }

    /// The message in a receive that was taken.
    pub(super) fn message(&self, index: u32) -> Option<[u8; MESSAGE_BYTES]> {
        let mut message = [0; MESSAGE_BYTES];
        let read =
            self.memory.registration.region.read(u64::from(index) * MESSAGE_BYTES as u64, &mut message);
        read.is_ok().then_some(message)
    }
}
