//! Slots that batches and records come in: how what is in one is read; ours for records, lent to a server that streams to us; and what
//! one that is to have copies says of its own, which is taken only where records fit, and each slot once. It must not use them.

use super::error::LaneError;
use crate::storage::Cells;
use fabric::{Access, ChannelId, CompletionQueue, OutOfBounds};
use proto_common::batch::{BatchError, BatchHeader, BatchReader, SlotGrant, prefix_bytes};
use proto_common::limits::{HEADER_BYTES, REPLICA_SLOTS_MAX};
use proto_common::message::InboxGrant;
use std::collections::HashSet;

/// So many slots of so many bytes, lent to whoever is at the other end of a channel; and their region there.
pub(super) fn lend_cells<Q: CompletionQueue>(
    queue: &mut Q,
    channel: ChannelId,
    (slots, slot_bytes): (u32, u64),
) -> Result<(Cells, u64), LaneError> {
    let cells = Cells::allocate(slots, slot_bytes, "gradwire-copies")?;
    let region = queue.expose(channel, cells.memory())?.0;
    queue.lend(channel, &cells.memory().all(), Access::ReadWrite, 0)?;
    Ok((cells, region))
}

/// The slots that a server grants for records of so many bytes, or why they are none.
pub(super) fn slots_of(inbox: &InboxGrant, least_bytes: u64) -> Result<Vec<SlotGrant>, String> {
    if inbox.slot_bytes < least_bytes {
        return Err(format!(
            "its slots for records have {} bytes, but {least_bytes} are needed",
            inbox.slot_bytes
        ));
    }
    let most = inbox.grants.len();
    let grants: Option<Vec<SlotGrant>> =
        inbox.grants.iter().map(|wire| SlotGrant::from_wire(*wire)).collect();
    let is_each_one = |grants: &Vec<SlotGrant>| {
        let slots: HashSet<u32> = grants.iter().map(|grant| grant.slot).collect();
        slots.len() == most && slots.iter().all(|slot| (*slot as usize) < most)
    };
    let sound =
        grants.filter(|grants| !grants.is_empty() && most <= REPLICA_SLOTS_MAX && is_each_one(grants));
    sound.ok_or_else(|| "its slots for records are malformed".into())
}

/// Copies a batch's prefix out of its slot, and checks it.
pub(super) fn read_prefix(
    cells: &Cells,
    slot: u32,
    prefix: &mut [u8],
    reader: &mut BatchReader,
) -> Result<Result<BatchHeader, BatchError>, OutOfBounds> {
    let start = cells.start(slot);
    cells.memory().read(start, &mut prefix[..HEADER_BYTES])?;
    let bytes = match prefix_bytes(&prefix[..HEADER_BYTES]) {
        Ok(bytes) => bytes,
        Err(error) => return Ok(Err(error)),
    };
    // Bounded by the prefix's largest size, which every slot holds.
    cells.memory().read(start, &mut prefix[..bytes])?;
    Ok(reader.read(&prefix[..bytes], cells.cell_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_for_records_are_taken_each_once_and_long_enough() {
        let slots = |slots: &[u32]| -> Vec<u32> {
            slots.iter().map(|slot| SlotGrant { slot: *slot, generation: 1 }.to_wire()).collect()
        };
        let grant = |grants| InboxGrant { region: 1, offset: 0, slot_bytes: 4096, grants };
        assert_eq!(slots_of(&grant(slots(&[1, 0])), 4096).map(|slots| slots.len()), Ok(2));
        for bad in [slots(&[]), slots(&[0, 0]), slots(&[0, 2]), slots(&(0..257).collect::<Vec<_>>())] {
            assert!(slots_of(&grant(bad), 4096).is_err());
        }
        assert!(slots_of(&grant(slots(&[0])), 4097).is_err());
    }
}
