//! Encoded contributions in storage: summed as they decode, marked where no codec makes them. And rule changes.

use super::*;
use proto_common::batch::{Block, BlockData, Count, OpKind, Reading, Status};
use proto_common::ids::{ChunkId, Operation, Rank};
use proto_common::mode::Mode;

const ELEMENTS: usize = 1000;
const SLOT_BYTES: u64 = 8 << 10;

const NO_VIEWS: Views = [None, None];

fn first(from: Source) -> Addend {
    Addend { from, onto: Onto::Nothing }
}

fn codecs() -> Vec<Codec> {
    let (top, random) = (Codec::TopK { share: 0.1 }, Codec::RandomK { share: 0.1 });
    vec![
        Codec::F16,
        Codec::Bf16,
        Codec::OneBit,
        Codec::TwoBit { threshold: 0.5 },
        top,
        random,
        Codec::Dither { bits: 4 },
    ]
}

/// Chunk 0 has no codec, the others one each.
fn storage() -> Storage {
    let cells = |count| Cells::allocate(count, SLOT_BYTES, "storage-test").unwrap();
    let mut storage = Storage::new(cells(2), cells(2)).unwrap();
    for (index, codec) in [Codec::Plain].into_iter().chain(codecs()).enumerate() {
        let (id, dtype, optimizer) = (ChunkId::new(1, index as u32), Dtype::F32, Optimizer::assign());
        let bytes = 4 * ELEMENTS as u64;
        storage
            .add(&ChunkSpec {
                id,
                bytes,
                dynamic: false,
                dtype,
                codec,
                optimizer,
                mode: Mode::Sync,
                backup_workers: 0,
            })
            .unwrap();
    }
    storage
}

/// An encoded gradient, and what it decodes to.
fn encoded(codec: Codec, salt: usize) -> (Vec<u8>, Vec<f32>) {
    let mut values: Vec<f32> = (0..ELEMENTS).map(|at| ((at * 37 + salt) % 101) as f32 / 50.0 - 1.0).collect();
    let mut bytes = vec![0; codec.encoded_bytes(ELEMENTS)];
    codec.encode(salt as u64, &mut values, &mut bytes);
    codec.decode(&bytes, &mut values);
    (bytes, values)
}

fn weights(storage: &Storage, chunk: u32) -> Vec<f32> {
    let buffer = &storage.stored(chunk).unwrap().weights[0];
    buffer.as_chunks::<4>().0.iter().map(|word| f32::from_ne_bytes(*word)).collect()
}

#[test]
fn encoded_contributions_are_summed_as_they_decode() {
    let mut storage = storage();
    for (chunk, codec) in (1u32..).zip(codecs()) {
        let ((one, a), (other, b)) = (encoded(codec, 3), encoded(codec, 4));
        // At odd places, and one of them by way of the spill area.
        storage.areas.inbox.memory().write(100, &one).unwrap();
        storage.areas.inbox.memory().write(SLOT_BYTES + 7, &other).unwrap();
        let (slot, other) = (Source::Slot { slot: 0, offset: 100 }, Source::Slot { slot: 1, offset: 7 });
        storage.reduce(chunk, first(slot), &NO_VIEWS).unwrap();
        storage.spill(chunk, other, None, 1).unwrap();
        storage.areas.inbox.memory().write(SLOT_BYTES, &[0xff; 4000]).unwrap();
        let last = Some(Addend { from: Source::Spill(1), onto: Onto::Sum });
        let round = Round { number: 1, last, old: 0, into: 0, contributors: 2 };
        storage.finish(chunk, &round, &NO_VIEWS).unwrap();
        let sums: Vec<f32> = a.iter().zip(b).map(|(a, b)| a + b).collect();
        assert_eq!(weights(&storage, chunk), sums, "{codec}");
    }
}

/// Two contributions to a chunk of these elements, reduced one by one or together; what becomes of its weights, and of
/// its sum where there is a third.
fn of_contributions(dtype: Dtype, together: bool, third: bool) -> Vec<u8> {
    let cells = |count| Cells::allocate(count, SLOT_BYTES, "storage-test").unwrap();
    let mut storage = Storage::new(cells(3), cells(1)).unwrap();
    let bytes = (dtype.bytes() * ELEMENTS) as u64;
    let rule = if dtype.is_integer() { Optimizer::sum() } else { Optimizer::sgd(0.5, 0.9, 0.0) };
    let id = ChunkId::new(1, 0);
    let codec = Codec::Plain;
    storage
        .add(&ChunkSpec {
            id,
            bytes,
            dynamic: false,
            dtype,
            codec,
            optimizer: rule,
            mode: Mode::Sync,
            backup_workers: 0,
        })
        .unwrap();
    for slot in 0..3 {
        let values: Vec<u8> = (0..bytes).map(|at| ((at * 7 + slot * 5) % 37) as u8).collect();
        storage.areas.inbox.memory().write(slot * SLOT_BYTES, &values).unwrap();
    }
    let slot = |slot| Source::Slot { slot, offset: 0 };
    let mut second = Addend { from: slot(1), onto: Onto::First(slot(0)) };
    if !together {
        storage.reduce(0, first(slot(0)), &NO_VIEWS).unwrap();
        second.onto = Onto::Sum;
    }
    let mut last = Some(second);
    if third {
        storage.reduce(0, second, &NO_VIEWS).unwrap();
        last = Some(Addend { from: slot(2), onto: Onto::Sum });
    }
    let round = Round { number: 1, last, old: 0, into: 1, contributors: 2 + u32::from(third) };
    assert_eq!(storage.finish(0, &round, &NO_VIEWS).unwrap(), Verdict::Fits);
    storage.stored(0).unwrap().weights[1].to_vec()
}

#[test]
fn two_contributions_in_one_pass_are_the_same_bits_as_one_by_one() {
    for dtype in Dtype::ALL {
        for third in [false, true] {
            let together = of_contributions(dtype, true, third);
            assert!(together.iter().any(|byte| *byte != 0), "{dtype}");
            let alone = of_contributions(dtype, false, third);
            assert!(together == alone, "{dtype}, a third {third}");
        }
    }
}

/// A sum that came as another server made it, applied from its slot, or by way of the accumulator.
fn of_a_record(dtype: Dtype, codec: Codec, fused: bool) -> Vec<u8> {
    let cells = || Cells::allocate(2, SLOT_BYTES, "storage-test").unwrap();
    let mut storage = Storage::new(cells(), cells()).unwrap();
    let bytes = (dtype.bytes() * ELEMENTS) as u64;
    let (id, mode, optimizer) = (ChunkId::new(1, 0), Mode::Sync, Optimizer::sgd(0.5, 0.9, 0.0));
    let (dynamic, backup_workers) = (false, 0);
    storage.add(&ChunkSpec { id, bytes, dynamic, dtype, codec, optimizer, mode, backup_workers }).unwrap();
    let records = cells();
    let values: Vec<u8> = (0..bytes).map(|at| ((at * 7 + 3) % 37) as u8).collect();
    records.memory().write(SLOT_BYTES + 72, &values).unwrap();
    storage.set_records(Rank(3), Some(records));
    let from = Source::Record { from: Rank(3), slot: 1, offset: 72 };
    if !fused {
        storage.take_sum(0, from, (0, bytes), false).unwrap();
    }
    for number in 1..3 {
        let round = Round { number, last: fused.then(|| first(from)), old: 0, into: 0, contributors: 2 };
        storage.finish(0, &round, &NO_VIEWS).unwrap();
    }
    storage.stored(0).unwrap().weights[0].to_vec()
}

#[test]
fn a_sum_applied_from_its_slot_is_the_same_bits_as_one_taken_out() {
    for (dtype, codec) in
        [(Dtype::F32, Codec::Plain), (Dtype::F64, Codec::Plain), (Dtype::F32, Codec::OneBit)]
    {
        let fused = of_a_record(dtype, codec, true);
        assert!(fused.iter().any(|byte| *byte != 0), "{dtype} {codec}");
        assert!(fused == of_a_record(dtype, codec, false), "{dtype} {codec}");
    }
}

fn block(chunk: u32, codec: u8, bytes: u64, offset: u64) -> Block {
    Block {
        id: ChunkId::new(1, chunk),
        op: OpKind::Push,
        dtype: Dtype::F32,
        codec,
        status: Status::None,
        operation: Operation(1),
        first_open: Operation(1),
        exact: false,
        count: Count::Round(1),
        bytes,
        data: BlockData::Inline { offset },
        landing: None,
        view: false,
        reading: Reading::default(),
        timeout_ms: 0,
        token: 0,
    }
}

#[test]
fn what_no_codec_makes_is_marked_and_nothing_else() {
    let mut storage = storage();
    let index_of = |id: ChunkId| (id.chunk.0 < 8).then_some(id.chunk.0);
    let mut refused = 0;
    for (chunk, codec) in (1u32..).zip(codecs()) {
        let (mut bytes, _) = encoded(codec, 5);
        let good = block(chunk, codec.wire_id(), bytes.len() as u64, 8);
        storage.areas.inbox.memory().write(64 + 8, &bytes).unwrap();
        let strangers = [
            Block { codec: 99, ..good },
            Block { bytes: good.bytes - 4, ..good },
            Block { id: ChunkId::new(1, 9), ..good },
            Block { data: BlockData::Placed, ..good },
            Block { codec: 0, ..good },
        ];
        let mut blocks = [&[good][..], &strangers].concat();
        storage.check_coded((0, 64), index_of, &mut blocks).unwrap();
        assert!(
            blocks.iter().all(|block| block.status == Status::None),
            "{codec}: the engine refuses the others"
        );
        // As no scale and no place is; halves and numbers may be NaN.
        bytes.iter_mut().for_each(|byte| *byte = 0xff);
        storage.areas.inbox.memory().write(64 + 8, &bytes).unwrap();
        storage.check_coded((0, 64), index_of, &mut blocks).unwrap();
        let marked: Vec<bool> = blocks.iter().map(|block| block.status == Status::Malformed).collect();
        let is_refused = codec.check(ELEMENTS, &bytes).is_err();
        refused += usize::from(is_refused);
        assert_eq!(marked, [is_refused, false, false, false, false, false], "{codec}");
        // Changed after the check, it is some numbers, and no harm.
        storage.reduce(chunk, first(Source::Slot { slot: 0, offset: 72 }), &NO_VIEWS).unwrap();
    }
    assert!(refused > 0);
}

#[test]
fn a_change_that_one_chunk_has_no_room_for_changes_no_chunk() {
    let mut storage = storage();
    let mut taken = 0;
    while storage.change_rule(&[(1, 100 + taken)], Optimizer::sum()).is_ok() {
        taken += 1;
    }
    let refused = storage.change_rule(&[(0, 1), (1, 1)], Optimizer::sgd(1.0, 0.0, 0.0));
    assert!(matches!(refused, Err(StorageError::TooManyChanges(_))), "{refused:?}");
    let ones: Vec<u8> = [1f32; ELEMENTS].iter().flat_map(|one| one.to_ne_bytes()).collect();
    storage.areas.inbox.memory().write(0, &ones).unwrap();
    let last = Some(first(Source::Slot { slot: 0, offset: 0 }));
    let round = Round { number: 1, last, old: 0, into: 0, contributors: 1 };
    storage.finish(0, &round, &NO_VIEWS).unwrap();
    assert_eq!(weights(&storage, 0), [1.0; ELEMENTS], "assigned, as before");
}
