//! Batches: round trips, frozen bytes, and what the decoder does with lies.

use super::*;
use crate::element::Dtype;
use crate::ids::*;
use crate::limits::*;
use proptest::prelude::*;

fn header() -> BatchHeader {
    BatchHeader {
        kind: BatchKind::Request,
        lane: Lane(3),
        wanted: 5,
        sender: Rank(2),
        job: JobId(0x1122_3344_5566_7788),
        epoch: Epoch { term: 1, counter: 9 },
        sender_incarnation: Incarnation(0xAABB),
        receiver_incarnation: Incarnation(0xCCDD),
        sequence: 77,
        payload_offset: 0,
        payload_bytes: 0,
        payload_checksum: None,
    }
}

fn block(bytes: u64) -> Block {
    Block {
        id: ChunkId::new(1 << 40, 6),
        op: OpKind::PushPull,
        dtype: Dtype::F32,
        codec: 0,
        status: Status::None,
        operation: Operation(4),
        round: 3,
        bytes,
        data: BlockData::Inline { offset: 0 },
        landing: Some(Landing { region: 8, offset: 5 << 30, bytes }),
        timeout_ms: 30_000,
        token: 0xF00D,
    }
}

fn encode(blocks: &[Block], grants: &[SlotGrant]) -> Vec<u8> {
    let mut prefix = vec![0xEE; TABLE_BYTES_MAX];
    let mut writer = BatchWriter::new(&mut prefix, slot_bytes_for(CHUNK_BYTES_DEFAULT)).unwrap();
    for block in blocks {
        assert!(writer.push(*block));
    }
    for grant in grants {
        assert!(writer.grant(*grant));
    }
    let bytes = writer.finish(header());
    prefix.truncate(bytes);
    prefix
}

#[test]
fn frozen_bytes() {
    let bytes = encode(&[block(16)], &[SlotGrant { slot: 1, generation: 2 }]);
    let expected = include_str!("golden.hex").split_whitespace().collect::<String>();
    let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
    assert_eq!(hex, expected, "the wire format changed: raise BATCH_VERSION and this file together");
}

#[test]
fn packs_until_full_and_says_so() {
    let mut prefix = vec![0; TABLE_BYTES_MAX];
    let mut writer = BatchWriter::new(&mut prefix, slot_bytes_for(CHUNK_BYTES_DEFAULT)).unwrap();
    assert!(
        BatchRoom::new(slot_bytes_for(CHUNK_BYTES_DEFAULT)).fits(CHUNK_BYTES_DEFAULT),
        "a slot holds a whole chunk"
    );
    assert!(writer.push(block(CHUNK_BYTES_DEFAULT)));
    assert!(!writer.push(block(CHUNK_BYTES_DEFAULT)));
    let mut writer = BatchWriter::new(&mut prefix, slot_bytes_for(CHUNK_BYTES_DEFAULT)).unwrap();
    for _ in 0..BLOCKS_PER_BATCH_MAX {
        assert!(writer.push(block(16)));
    }
    assert!(!writer.push(block(16)));
    assert!(!BatchRoom::new(u64::MAX).fits(u64::MAX));
    assert_eq!(
        BatchWriter::new(&mut [0; 100], 1 << 20).err(),
        Some(EncodeError::BufferTooSmall { have: 100 })
    );
}

#[test]
fn each_lie_gets_its_own_refusal() {
    let good = encode(&[block(16)], &[]);
    let total = slot_bytes_for(CHUNK_BYTES_DEFAULT);
    let mut reader = BatchReader::default();
    let mut read = |bytes: &[u8], total| reader.read(bytes, total);
    assert!(read(&good, total).is_ok());
    assert!(matches!(read(&good[..40], total), Err(BatchError::Truncated { have: 40, need: HEADER_BYTES })));
    assert!(matches!(read(&good[..150], total), Err(BatchError::Truncated { have: 150, .. })));
    let mut bad = good.clone();
    bad[0] = b'X';
    assert_eq!(read(&bad, total), Err(BatchError::BadMagic));
    let mut bad = good.clone();
    bad[4] = 9;
    assert_eq!(read(&bad, total), Err(BatchError::Version(9)));
    let mut bad = good.clone();
    bad[100] ^= 1;
    assert!(matches!(read(&bad, total), Err(BatchError::Checksum { .. })));
    assert!(matches!(read(&good, 192), Err(BatchError::PayloadOutOfBounds { .. })));
    assert_eq!(prefix_bytes(&good), Ok(HEADER_BYTES + BLOCK_BYTES));
}

fn any_block() -> impl Strategy<Value = Block> {
    let ids = (any::<u64>(), any::<u32>(), 1u8..5, 0usize..8, any::<u8>(), 0u8..9);
    let numbers = (any::<u64>(), any::<u64>(), 0u64..2000, any::<u32>(), any::<u64>());
    let places = (any::<Option<(u64, u64)>>(), any::<Option<(u64, u64, u64)>>());
    (ids, numbers, places).prop_map(|((key, chunk, op, dtype, codec, status), numbers, (by_ref, landing))| {
        Block {
            id: ChunkId::new(key, chunk),
            op: OpKind::from_wire(op).unwrap(),
            dtype: Dtype::ALL[dtype],
            codec,
            status: Status::from_wire(status).unwrap(),
            operation: Operation(numbers.0),
            round: numbers.1,
            bytes: numbers.2,
            data: match by_ref {
                Some((region, offset)) => BlockData::ByReference { region, offset },
                None => BlockData::Inline { offset: 0 },
            },
            landing: landing.map(|(region, offset, bytes)| Landing { region, offset, bytes }),
            timeout_ms: numbers.3,
            token: numbers.4,
        }
    })
}

proptest! {
    #[test]
    fn round_trip(blocks in prop::collection::vec(any_block(), 0..40),
                  slots in prop::collection::vec((0..INBOX_SLOTS_MAX as u32, any::<u8>()), 0..GRANTS_PER_BATCH_MAX)) {
        let grants: Vec<_> = slots.into_iter().map(|(slot, generation)| SlotGrant { slot, generation }).collect();
        let bytes = encode(&blocks, &grants);
        let mut reader = BatchReader::default();
        let read = reader.read(&bytes, slot_bytes_for(CHUNK_BYTES_DEFAULT)).unwrap();
        prop_assert_eq!(&reader.grants, &grants);
        prop_assert_eq!(read.payload_offset, bytes.len() as u64);
        let mut offset = 0;
        for (mut want, got) in blocks.into_iter().zip(&reader.blocks) {
            if let BlockData::Inline { offset: at } = &mut want.data {
                *at = offset;
                offset += want.bytes;
            }
            prop_assert_eq!(want, *got);
        }
        prop_assert_eq!(read.payload_bytes, offset);
    }

    #[test]
    fn garbage_never_panics_and_leaves_nothing_behind(bytes in prop::collection::vec(any::<u8>(), 0..600), total: u64) {
        let mut reader = BatchReader::default();
        if reader.read(&bytes, total).is_err() {
            prop_assert!(reader.blocks.is_empty() && reader.grants.is_empty());
        }
    }

    #[test]
    fn a_flipped_bit_in_the_prefix_is_refused(at in 0usize..(HEADER_BYTES + BLOCK_BYTES + 4) * 8) {
        let mut bytes = encode(&[block(16)], &[SlotGrant { slot: 1, generation: 2 }]);
        bytes[at / 8] ^= 1 << (at % 8);
        let mut reader = BatchReader::default();
        prop_assert!(reader.read(&bytes, slot_bytes_for(CHUNK_BYTES_DEFAULT)).is_err());
    }
}
