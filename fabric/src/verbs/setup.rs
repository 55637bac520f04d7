//! A queue pair on its way to the lane that will own it, and what it is made of. It must not post or poll.

use super::channel::Flags;
use super::queue::Plan;
use super::registrar::Registrar;
use super::sys::{Completions, QueuePair, Receives};
use crate::error::FabricError;
use socket2::Socket;
use std::sync::Arc;

/// What a lane's queue pairs are made of.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) completions: Arc<Completions>,
    pub(super) receives: Arc<Receives>,
    pub(super) registrar: Arc<Registrar>,
    pub(super) plan: Plan,
}

impl Shared {
    pub(super) fn queue_pair(&self) -> Result<QueuePair, FabricError> {
        let size = (self.plan.requests, self.plan.gather_max);
        QueuePair::new(self.registrar.domain(), &self.completions, &self.receives, size)
    }
}

/// A lane's queue, as a channel that is being connected has to know it.
#[derive(Clone, Debug)]
pub(crate) struct VerbsHandle(pub(super) Arc<Shared>);

/// A connected queue pair.
#[derive(Debug)]
pub(crate) struct VerbsSetup {
    pub(super) queue_pair: QueuePair,
    pub(super) socket: Socket,
    pub(super) owner: VerbsHandle,
    /// Notices by flags, where both sides want them.
    pub(super) flags: Option<Flags>,
}
