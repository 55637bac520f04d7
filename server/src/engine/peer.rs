//! One worker as the lane sees it: its life, the slots of its inbox that we may write, and what is to be
//! said to it.

use super::command::ResultBlock;
use super::credits::{Misuse, misuse};
use proto_common::batch::SlotGrant;
use proto_common::ids::Incarnation;
use std::collections::VecDeque;

/// The worker's inbox as granted to us.
#[derive(Debug, Default)]
pub(super) struct ResultSlots {
    free: Vec<SlotGrant>,
    /// Written, and not returned yet.
    used: Vec<SlotGrant>,
}

impl ResultSlots {
    pub(super) fn new(grants: &[SlotGrant]) -> Self {
        Self { free: grants.to_vec(), used: Vec::new() }
    }

    pub(super) fn take(&mut self) -> Option<SlotGrant> {
        let grant = self.free.pop()?;
        self.used.push(grant);
        Some(grant)
    }

    /// The worker has read the slot and grants it again, with the next generation. A notice of that which
    /// comes twice must not free the slot twice: results would be written over unread ones.
    pub(super) fn give(&mut self, grant: SlotGrant) -> Result<(), Misuse> {
        if let Some(at) = self.used.iter().position(|used| used.slot == grant.slot) {
            let used = self.used[at].generation;
            if grant.generation != used.wrapping_add(1) {
                return Err(misuse(used, grant.generation));
            }
            self.used.swap_remove(at);
            self.free.push(grant);
            return Ok(());
        }
        let free = self.free.iter().find(|free| free.slot == grant.slot).ok_or(Misuse::NotGranted)?;
        Err(misuse(free.generation, grant.generation))
    }
}

#[derive(Debug, Default)]
pub(super) struct Peer {
    pub(super) incarnation: Incarnation,
    pub(super) result_slots: ResultSlots,
    /// Results not sent yet; bounded by the operations the worker may have in flight.
    pub(super) results: VecDeque<ResultBlock>,
    /// Operations taken whose result is not sent yet.
    pub(super) unanswered: usize,
    /// Grants not sent yet.
    pub(super) grants: Vec<SlotGrant>,
    /// Credits it holds, as far as we told it.
    pub(super) credits: u32,
    /// Credits it could use beyond those.
    pub(super) wanted: u32,
    /// Did it say that it needs them? Otherwise they can wait for a result to ride on.
    pub(super) needy: bool,
    /// Is it in the queue of peers that want credits?
    pub(super) queued: bool,
    /// Is it in the list of peers to flush?
    pub(super) dirty: bool,
    /// It and this server read each other's memory where it lies.
    pub(super) in_place: bool,
    /// Count of result batches on this channel.
    pub(super) sequence: u64,
}
