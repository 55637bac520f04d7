//! Results as they are written into a worker's inbox. It must not decide what they say.

use crate::engine::ResultBlock;
use proto_common::batch::{BatchHeader, BatchWriter, Block, BlockData, Landing, SlotGrant, Status};
use proto_common::limits::RESULT_SLOT_BYTES;

/// Writes header and table; returns their bytes. Where a granted buffer lies is `place`'s to say.
pub(super) fn encode_results(
    prefix: &mut [u8],
    header: BatchHeader,
    results: &[ResultBlock],
    grants: &[SlotGrant],
    place: impl Fn(Landing) -> Option<Landing>,
) -> usize {
    // The engine packed with the same room; the writer cannot refuse what fitted there.
    let Ok(mut writer) = BatchWriter::new(prefix, RESULT_SLOT_BYTES) else { return 0 };
    for result in results {
        let bytes = 4 * result.missing.len() as u64;
        let granted = result.block.status == Status::Granted;
        let landing = if granted { result.block.landing.and_then(&place) } else { result.block.landing };
        let block = Block { bytes, data: BlockData::Inline { offset: 0 }, landing, ..result.block };
        let fitted = writer.push(block);
        debug_assert!(fitted, "packed with the same room");
    }
    for grant in grants {
        let fitted = writer.grant(*grant);
        debug_assert!(fitted, "packed with the same bound");
    }
    writer.finish(header)
}
