//! What a process registers with a device before any tensor is there, by its settings. Tensors come on top, as far as
//! they are used. It must not know how registering works.

use crate::config::Settings;
use crate::limits::{
    PREFIXES_PER_LANE, RESULT_SLOT_BYTES, RESULTS_PER_LANE, TABLE_BYTES_MAX, slot_bytes_for,
};

/// A server's: per lane the inbox that all workers share, and result batches under way.
#[must_use]
pub fn server_bytes(settings: &Settings) -> u64 {
    let inbox = u64::from(settings.memory.inbox_slots) * slot_bytes_for(settings.cluster.chunk_bytes);
    u64::from(settings.cluster.lanes) * (inbox + u64::from(RESULTS_PER_LANE) * RESULT_SLOT_BYTES)
}

/// A worker's: per lane the inboxes for each server's results, and headers and tables of batches under way.
#[must_use]
pub fn worker_bytes(settings: &Settings) -> u64 {
    let slots = u64::from(settings.memory.result_slots) * u64::from(settings.cluster.servers);
    let prefixes = u64::from(PREFIXES_PER_LANE) * TABLE_BYTES_MAX as u64;
    u64::from(settings.cluster.lanes) * (slots * RESULT_SLOT_BYTES + prefixes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_slots_and_servers_count() {
        let one = Settings::default();
        let (server, worker) = (server_bytes(&one), worker_bytes(&one));
        assert_eq!(server, 16 * slot_bytes_for(256 << 10) + 256 * RESULT_SLOT_BYTES);
        assert_eq!(worker, 4 * RESULT_SLOT_BYTES + 128 * TABLE_BYTES_MAX as u64);
        let mut more = one;
        more.cluster.lanes = 3;
        assert_eq!((server_bytes(&more), worker_bytes(&more)), (3 * server, 3 * worker));
        more.memory.inbox_slots += 1;
        more.cluster.servers += 1;
        assert_eq!(server_bytes(&more), 3 * (server + slot_bytes_for(256 << 10)));
        assert_eq!(worker_bytes(&more), 3 * (worker + 4 * RESULT_SLOT_BYTES));
    }
}
