//! The batch decoder: any bytes are refused or give blocks that lie within the batch, or that say where else their
//! bytes are in a way that survives writing them again; never a panic. A third of the inputs get a right checksum, so
//! that what lies behind it is reached.

use proto_common::batch::{BatchHeader, BatchReader, BatchWriter, Block, BlockData, prefix_bytes};
use proto_common::limits::TABLE_BYTES_MAX;

crate::target!(|data: &[u8]| {
    let Some((seed, batch)) = data.split_first() else { return };
    let mut batch = batch.to_vec();
    if seed % 3 == 0 {
        mend_checksum(&mut batch);
    }
    let total_bytes = batch.len() as u64;
    let mut reader = BatchReader::default();
    match reader.read(&batch, total_bytes) {
        Ok(header) => {
            assert!(header.payload_offset + header.payload_bytes <= total_bytes);
            for block in &reader.blocks {
                match block.data {
                    BlockData::Inline { offset } => assert!(offset + block.bytes <= header.payload_bytes),
                    BlockData::ByReference { .. } | BlockData::Announced { .. } | BlockData::Placed | BlockData::Merged => {
                        assert_eq!(again(&header, block), *block);
                    }
                }
            }
        }
        Err(_) => assert!(reader.blocks.is_empty() && reader.grants.is_empty()),
    }
});

/// The block, written and read once more.
fn again(header: &BatchHeader, block: &Block) -> Block {
    let mut prefix = vec![0; TABLE_BYTES_MAX];
    let mut writer = BatchWriter::new(&mut prefix, u64::MAX).expect("room for a table");
    assert!(writer.push(*block), "it takes no room but its entry");
    let bytes = writer.finish(*header);
    let mut reader = BatchReader::default();
    reader.read(&prefix[..bytes], u64::MAX).expect("what was written can be read");
    reader.blocks[0]
}

/// The checksum lies at byte 8 and counts as zero in its own sum.
fn mend_checksum(batch: &mut [u8]) {
    let Ok(prefix_bytes) = prefix_bytes(batch) else { return };
    if batch.len() < prefix_bytes {
        return;
    }
    batch[8..12].fill(0);
    let sum = crc32c::crc32c(&batch[..prefix_bytes]);
    batch[8..12].copy_from_slice(&sum.to_le_bytes());
}
