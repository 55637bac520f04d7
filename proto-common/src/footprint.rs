//! What a process registers with a device before any tensor exists, from its settings. Tensors are added as far as
//! they are used. It must not know how registering works.

use crate::config::{MemorySettings, Settings};
use crate::limits::{
    INBOX_SLOTS_MIN, PREFIXES_PER_LANE, RESULT_SLOT_BYTES, RESULT_SLOTS, RESULTS_PER_LANE, TABLE_BYTES_MAX,
    slot_bytes_for,
};

/// The reason why an inbox is smaller than its setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// The bytes that the process may pin.
    Pinned(u64),
    /// `memory.registered_bytes`.
    Registered(u64),
}

impl Limit {
    /// The tighter limit of the settings and the process, if the process has one.
    #[must_use]
    pub fn of(memory: &MemorySettings, pinned_bytes: Option<u64>) -> Self {
        match pinned_bytes {
            Some(bytes) if bytes <= memory.registered_bytes => Self::Pinned(bytes),
            _ => Self::Registered(memory.registered_bytes),
        }
    }

    /// The bytes that may be registered.
    #[must_use]
    pub fn bytes(self) -> u64 {
        match self {
            Self::Pinned(bytes) | Self::Registered(bytes) => bytes,
        }
    }
}

/// Slots of each lane's inbox at a server that uses a device: the setting, or as many as fit into half of the
/// registered memory. The rest is for tensors and batches, which always have at least what they need. `queue_bytes`:
/// bytes of the device's queue of a lane.
#[must_use]
pub fn inbox_slots(
    memory: &MemorySettings,
    (lanes, chunk_bytes): (u16, u64),
    queue_bytes: u64,
    limit: Limit,
) -> u32 {
    let slot_bytes = slot_bytes_for(chunk_bytes) * u64::from(lanes);
    let beside = u64::from(lanes) * (u64::from(RESULTS_PER_LANE) * RESULT_SLOT_BYTES + queue_bytes);
    let room = (limit.bytes() / 2).min(limit.bytes().saturating_sub(beside));
    let slots = u32::try_from(room / slot_bytes.max(1)).unwrap_or(u32::MAX);
    slots.max(INBOX_SLOTS_MIN).min(memory.inbox_slots)
}

/// Blocks of each lane's spill area at a server.
#[must_use]
pub fn spill_blocks(memory: &MemorySettings, chunk_bytes: u64) -> u32 {
    u32::try_from(memory.spill_bytes / chunk_bytes.max(1)).unwrap_or(u32::MAX).max(1)
}

/// A server's share: per lane the inbox that all workers share, and result batches in flight.
#[must_use]
pub fn server_bytes(settings: &Settings, slots: u32) -> u64 {
    let inbox = u64::from(slots) * slot_bytes_for(settings.cluster.chunk_bytes);
    u64::from(settings.cluster.lanes) * (inbox + u64::from(RESULTS_PER_LANE) * RESULT_SLOT_BYTES)
}

/// A server's spill area when all of it is in use. It is registered as far as it is used.
#[must_use]
pub fn spill_bytes(settings: &Settings) -> u64 {
    let blocks = u64::from(spill_blocks(&settings.memory, settings.cluster.chunk_bytes));
    u64::from(settings.cluster.lanes) * blocks * settings.cluster.chunk_bytes
}

/// A worker's share: per lane the inboxes for each server's results, and headers and tables of batches in flight.
#[must_use]
pub fn worker_bytes(settings: &Settings) -> u64 {
    let slots = u64::from(RESULT_SLOTS) * u64::from(settings.cluster.servers);
    let prefixes = u64::from(PREFIXES_PER_LANE) * TABLE_BYTES_MAX as u64;
    u64::from(settings.cluster.lanes) * (slots * RESULT_SLOT_BYTES + prefixes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_slots_and_servers_count() {
        let one = Settings::default();
        let (server, worker) = (server_bytes(&one, 16), worker_bytes(&one));
        assert_eq!(server, 16 * slot_bytes_for(256 << 10) + 256 * RESULT_SLOT_BYTES);
        assert_eq!(worker, 4 * RESULT_SLOT_BYTES + 128 * TABLE_BYTES_MAX as u64);
        let mut more = one;
        more.cluster.lanes = 3;
        assert_eq!((server_bytes(&more, 16), worker_bytes(&more)), (3 * server, 3 * worker));
        more.cluster.servers += 1;
        assert_eq!(server_bytes(&more, 17), 3 * (server + slot_bytes_for(256 << 10)));
        assert_eq!(worker_bytes(&more), 3 * (worker + 4 * RESULT_SLOT_BYTES));
    }

    #[test]
    fn an_inbox_takes_half_of_what_may_be_registered_at_most() {
        let memory = MemorySettings::default();
        let slot_bytes = slot_bytes_for(256 << 10);
        let slots = |limit| inbox_slots(&memory, (2, 256 << 10), 0, limit);
        let enough = 2 * 2 * slot_bytes * 16;
        assert_eq!(slots(Limit::Pinned(enough)), 16);
        assert_eq!(slots(Limit::Pinned(enough - 1)), 15);
        assert_eq!(slots(Limit::Registered(enough - 1)), 15, "the settings' limit counts as well");
        assert_eq!(slots(Limit::Pinned(0)), 2, "with fewer nothing goes");
        let beside = 2 * 256 * RESULT_SLOT_BYTES;
        let tight = Limit::Pinned(beside + 2 * slot_bytes * 3);
        assert!(tight.bytes() / 2 > 2 * slot_bytes * 3);
        assert_eq!(slots(tight), 3, "not at the cost of what results need");
        let with_queues = |queue_bytes| inbox_slots(&memory, (2, 256 << 10), queue_bytes, tight);
        assert_eq!((with_queues(1), with_queues(slot_bytes)), (2, 2));
        assert_eq!(Limit::of(&memory, None), Limit::Registered(memory.registered_bytes));
        assert_eq!(Limit::of(&memory, Some(5)), Limit::Pinned(5));
        assert_eq!(Limit::of(&memory, Some(u64::MAX)), Limit::Registered(memory.registered_bytes));
    }

    #[test]
    fn a_spill_area_has_a_block_at_least_in_each_lane() {
        let mut settings = Settings::default();
        settings.cluster.lanes = 3;
        assert_eq!(spill_bytes(&settings), 3 * (256 << 20));
        settings.memory.spill_bytes = settings.cluster.chunk_bytes - 1;
        assert_eq!(spill_bytes(&settings), 3 * settings.cluster.chunk_bytes);
    }
}
