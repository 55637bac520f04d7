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
        first_open: Operation(3),
        count: Count::Round(3),
        bytes,
        data: BlockData::Inline { offset: 0 },
        landing: Some(Landing { region: 8, offset: 5 << 30, bytes }),
        timeout_ms: 30_000,
        view: false,
        exact: false,
        reading: Reading { from: Operation(2), kept: Kept::Version(Version(8)) },
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
    assert_eq!(hex(&bytes), expected, "the wire format changed: raise BATCH_VERSION and this file together");
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

const FLAGS_AT: usize = HEADER_BYTES + 15;
const OFFSET_AT: usize = HEADER_BYTES + 40;
const REGION_AT: usize = HEADER_BYTES + 48;

/// The flags of every placement, and what a block of it says of where its bytes are.
#[test]
fn frozen_placements() {
    let found = [
        BlockData::Inline { offset: 0 },
        BlockData::ByReference { region: 0x0102, offset: 0x0304 },
        BlockData::Announced { keep: false },
        BlockData::Announced { keep: true },
        BlockData::Placed,
        BlockData::Merged,
    ]
    .map(|data| {
        let bytes = encode(&[Block { data, ..block(16) }], &[]);
        (bytes[FLAGS_AT], hex(&bytes[OFFSET_AT..REGION_AT + 8]))
    });
    let none = "0".repeat(32);
    let expected = [
        (2, none.clone()),
        (3, "04030000000000000201000000000000".to_owned()),
        (6, none.clone()),
        (14, none.clone()),
        (18, none.clone()),
        (130, none),
    ];
    assert_eq!(found, expected, "the wire format changed: raise BATCH_VERSION and this test together");
}

#[test]
fn a_block_travels_one_way_only() {
    let good = encode(&[block(16)], &[]);
    let read = |flags: u8, offset: u8, region: u8| {
        let mut bytes = good.clone();
        (bytes[FLAGS_AT], bytes[OFFSET_AT], bytes[REGION_AT]) = (flags, offset, region);
        bytes[8..12].fill(0);
        let sum = crc32c::crc32c(&bytes[..HEADER_BYTES + BLOCK_BYTES]);
        bytes[8..12].copy_from_slice(&sum.to_le_bytes());
        BatchReader::default().read(&bytes, slot_bytes_for(CHUNK_BYTES_DEFAULT)).err()
    };
    for (flags, offset, region) in
        [(2, 0, 0), (3, 9, 9), (6, 0, 0), (14, 0, 0), (18, 0, 0), (34, 0, 0), (66, 0, 0), (130, 0, 0)]
    {
        assert_eq!(read(flags, offset, region), None, "{flags} {offset} {region}");
    }
    let lies = [
        (2, 0, 1),
        (6, 1, 0),
        (6, 0, 1),
        (14, 1, 0),
        (18, 1, 0),
        (18, 0, 1),
        (7, 0, 0),
        (10, 0, 0),
        (19, 0, 0),
        (22, 0, 0),
        (26, 0, 0),
        (130, 1, 0),
        (130, 0, 1),
        (131, 0, 0),
        (146, 0, 0),
    ];
    for (flags, offset, region) in lies {
        assert_eq!(
            read(flags, offset, region),
            Some(BatchError::BadBlock { index: 0 }),
            "{flags} {offset} {region}"
        );
    }
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

#[test]
fn no_operation_before_the_first_is_open() {
    const SPAN_AT: usize = HEADER_BYTES + 110;
    let read = |operation, span: u16| {
        let mut bytes = encode(
            &[Block { operation: Operation(operation), first_open: Operation(operation), ..block(16) }],
            &[],
        );
        bytes[SPAN_AT..SPAN_AT + 2].copy_from_slice(&span.to_le_bytes());
        bytes[8..12].fill(0);
        let sum = crc32c::crc32c(&bytes[..HEADER_BYTES + BLOCK_BYTES]);
        bytes[8..12].copy_from_slice(&sum.to_le_bytes());
        let mut reader = BatchReader::default();
        let read = reader.read(&bytes, slot_bytes_for(CHUNK_BYTES_DEFAULT)).map(|_| ());
        read.map(|()| reader.blocks[0].first_open.0)
    };
    assert_eq!(read(7, 0), Ok(7));
    assert_eq!(read(7, 7), Ok(0));
    assert_eq!(read(7, 8), Err(BatchError::BadBlock { index: 0 }));
    assert_eq!(read(70_000, u16::MAX), Ok(70_000 - OPEN_SPAN_MAX));
    assert_eq!(Status::from_wire(20), Some(Status::VersionGone));
    assert_eq!(Status::from_wire(21), Some(Status::DeadlineCopies));
    assert_eq!(Status::from_wire(22), Some(Status::Torn));
    assert_eq!(Status::from_wire(23), Some(Status::DeadlineSaving));
    assert_eq!(Status::from_wire(24), Some(Status::Unset));
    assert_eq!(Status::from_wire(25), Some(Status::Again));
    assert_eq!(Status::from_wire(26), Some(Status::StateLost));
    assert_eq!(Status::from_wire(27), None);
}

fn kept(number: u64) -> Kept {
    match number % 3 {
        0 => Kept::None,
        1 => Kept::Version(Version(number >> 2)),
        _ => Kept::All,
    }
}

fn any_block() -> impl Strategy<Value = Block> {
    let ids = (any::<u64>(), any::<u32>(), 1u8..7, 0usize..8, any::<u8>(), 0u8..21);
    let numbers = (any::<u64>(), any::<u64>(), 0u64..2000, any::<u32>(), any::<u64>());
    let data = prop_oneof![
        Just(BlockData::Inline { offset: 0 }),
        any::<(u64, u64)>().prop_map(|(region, offset)| BlockData::ByReference { region, offset }),
        any::<bool>().prop_map(|keep| BlockData::Announced { keep }),
        Just(BlockData::Placed),
        Just(BlockData::Merged),
    ];
    let places = (data, any::<Option<(u64, u64, u64)>>());
    (ids, numbers, places).prop_map(|((key, chunk, op, dtype, codec, status), numbers, (data, landing))| {
        let op = OpKind::from_wire(op).unwrap();
        Block {
            id: ChunkId::new(key, chunk),
            op,
            dtype: Dtype::ALL[dtype],
            codec,
            status: Status::from_wire(status).unwrap(),
            operation: Operation(numbers.0),
            first_open: Operation(numbers.0.saturating_sub(numbers.4 % (OPEN_SPAN_MAX + 1))),
            count: Count::of(op, numbers.1),
            bytes: numbers.2,
            data,
            landing: landing.map(|(region, offset, bytes)| Landing { region, offset, bytes }),
            view: numbers.3 % 2 == 1,
            exact: numbers.3 % 4 > 1,
            reading: Reading { from: Operation(numbers.4 ^ numbers.0), kept: kept(numbers.2) },
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

#[test]
fn the_page_of_the_protocol_says_this_version() {
    let row = format!("\n| {} | header, block table", super::header::BATCH_VERSION);
    assert!(include_str!("../../../../docs/protocol.md").contains(&row), "docs/protocol.md lacks {row:?}");
}

#[test]
fn pieces_sum_to_the_whole_and_the_number_is_frozen() {
    let whole = b"123456789";
    assert_eq!(payload_checksum(0, whole), 0xE306_9283, "the check value of CRC32C");
    for at in 0..=whole.len() {
        let (head, tail) = whole.split_at(at);
        assert_eq!(payload_checksum(payload_checksum(0, head), tail), 0xE306_9283);
    }
}
