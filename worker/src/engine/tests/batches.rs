//! Packing: many small parts in one batch, within the slot, the gather list and what may be in flight.

use super::*;
use proto_common::batch::{Count, Reading};

#[test]
fn many_small_parts_share_one_batch_in_order() {
    let mut rig = Rig::new(4);
    for key in 1..=10 {
        rig.push(1, &[part(key, 0)]);
    }
    let sent = rig.sent();
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0].operations(), (1..=10).map(|key| (key, 1)).collect::<Vec<_>>());
    assert_eq!(rig.sent(), []);
    assert_eq!((rig.engine.stats().batches, rig.engine.stats().parts), (1, 10));
}

#[test]
fn each_server_gets_its_own_batch() {
    let mut rig = Rig::new(4);
    rig.push(1, &[part(1, 0), PartSpec { id: ChunkId::new(1, 1), offset: BYTES, ..part(1, 1) }]);
    let sent = rig.sent();
    assert_eq!(
        sent.iter().map(|batch| (batch.server, batch.blocks.len())).collect::<Vec<_>>(),
        [(0, 1), (1, 1)]
    );
}

#[test]
fn bytes_count_for_the_server_they_go_to_and_come_from() {
    let mut rig = Rig::new(4);
    let parts = [PartSpec { bytes: 3 * BYTES, ..part(1, 0) }];
    rig.submit_as(submit(OpKind::PushPull, 1), &parts);
    rig.push(1, &[part(2, 1)]);
    let sent = rig.sent();
    rig.results(0, &[done(&sent[0].blocks[0])], &[]);
    let moved = |rig: &Rig| {
        rig.engine.traffic().iter().map(|one| (one.sent_bytes, one.landed_bytes)).collect::<Vec<_>>()
    };
    assert_eq!(moved(&rig), [(3 * BYTES, 3 * BYTES), (BYTES, 0)]);
    // Over the next channel the count goes on.
    rig.engine.server_down(Rank(1));
    rig.up(1, 4);
    assert_eq!(rig.sent().len(), 1, "sent again");
    assert_eq!(moved(&rig), [(3 * BYTES, 3 * BYTES), (2 * BYTES, 0)]);
    let stats = rig.engine.stats();
    assert_eq!((stats.sent_bytes, stats.landed_bytes), (5 * BYTES, 3 * BYTES), "no more and no less");
}

#[test]
fn both_sides_of_the_gather_list() {
    for (parts, batches) in [(15, 1), (16, 2)] {
        let mut rig = Rig::new(4);
        for key in 1..=parts {
            rig.push(1, &[part(key, 0)]);
        }
        assert_eq!(rig.sent().len(), batches, "one span of sixteen is the header's");
    }
}

#[test]
fn both_sides_of_the_slot() {
    // A prefix of two blocks and all the grants that may come takes 576 bytes.
    let half = (SLOT_BYTES - 576) / 2;
    for (bytes, batches) in [(half, 1), (half + 4, 2)] {
        let mut rig = Rig::new(4);
        for key in 1..=2 {
            rig.push(1, &[PartSpec { bytes, ..part(key, 0) }]);
        }
        assert_eq!(rig.sent().len(), batches, "{bytes} bytes each");
    }
}

#[test]
fn what_may_be_in_flight_is_bounded_and_goes_on_with_answers() {
    let mut rig = Rig::down(EngineConfig { in_flight_max: 3, ..config() });
    rig.up(0, 8);
    for key in 1..=5 {
        rig.push(1, &[part(key, 0)]);
    }
    let sent = rig.sent();
    assert_eq!(sent[0].operations(), [(1, 1), (2, 1), (3, 1)]);
    assert_eq!(rig.sent(), []);
    assert_eq!(rig.results(0, &[done(&sent[0].blocks[1])], &[]), [Command::Done { op: 2, version: 1 }]);
    assert_eq!(rig.sent()[0].operations(), [(4, 1)]);
}

#[test]
fn a_bounded_number_of_batches_leaves_at_once() {
    let mut rig = Rig::new(4);
    for key in 1..=20 {
        rig.push(1, &[part(key, 0)]);
    }
    assert_eq!(rig.flush_at_most(0), Happened::default());
    assert_eq!(rig.flush_at_most(1).sent.len(), 1);
    assert_eq!(rig.flush_at_most(1).sent.len(), 1);
}

#[test]
fn a_block_says_what_the_operation_asks_for() {
    let mut rig = Rig::new(4);
    let parts = [PartSpec { offset: 4096, ..part(1, 0) }];
    rig.submit_as(submit(OpKind::PushPull, 1), &parts);
    rig.now_ms += 100;
    let sent = rig.sent();
    let block = sent[0].blocks[0];
    let token = block.token;
    let expected = Block {
        id: ChunkId::new(1, 0),
        op: OpKind::PushPull,
        dtype: Dtype::F32,
        codec: 0,
        status: Status::None,
        operation: Operation(1),
        first_open: Operation(1),
        exact: false,
        count: Count::Round(1),
        bytes: BYTES,
        data: BlockData::Inline { offset: 0 },
        landing: Some(Landing { region: 0, offset: 4096, bytes: BYTES }),
        view: false,
        reading: Reading::default(),
        timeout_ms: 4_900,
        token,
    };
    assert_eq!(block, expected);
    assert_eq!(rig.engine.stats().sent_bytes, BYTES);
}

/// Its payload has a place and a length of its own; where weights land, and the wish for another placement, change nothing
/// of that. A repeat is the same block.
#[test]
fn an_encoded_contribution_travels_in_a_slot_by_its_own_length() {
    for placement in Placement::ALL {
        let mut rig = Rig::new(4);
        let coded = Some(Coded { codec: 3, offset: 192, bytes: 8 });
        let parts = [PartSpec { offset: 4096, coded, ..part(1, 0) }];
        rig.submit_as(Submit { placement, ..submit(OpKind::PushPull, 1) }, &parts);
        let goes_out = |rig: &mut Rig| {
            let mut out = Commands::default();
            rig.engine.flush(1, rig.now_ms, &mut out);
            assert!(matches!(out.list[..], [Command::Send { .. }]), "{placement}: {:?}", out.list);
            out.parts[0]
        };
        let first = goes_out(&mut rig);
        assert_eq!((first.offset, first.block.codec, first.block.bytes), (192, 3, 8), "{placement}");
        assert_eq!(first.block.data, BlockData::Inline { offset: 0 }, "{placement}");
        assert_eq!(first.block.landing, Some(Landing { region: 0, offset: 4096, bytes: BYTES }));
        let stats = rig.engine.stats();
        assert_eq!((stats.sent_bytes, stats.plain_bytes), (8, BYTES));
        rig.results(0, &[reply(&first.block, Status::Retry, 0)], &[]);
        rig.now_ms += 100;
        let timeout_ms = first.block.timeout_ms - 100;
        assert_eq!(goes_out(&mut rig), PartBlock { block: Block { timeout_ms, ..first.block }, ..first });
    }
}

#[test]
fn operations_without_a_payload_carry_none() {
    let mut rig = Rig::new(4);
    rig.submit_as(submit(OpKind::Pull, 1), &[part(1, 0)]);
    rig.submit_as(submit(OpKind::Init, 1), &[part(2, 0)]);
    let sent = rig.sent();
    assert_eq!(sent[0].blocks.iter().map(|block| block.bytes).collect::<Vec<_>>(), [0, 0]);
    assert!(sent[0].blocks[0].landing.is_some() && sent[0].blocks[1].landing.is_none());
    assert_eq!(rig.engine.stats().sent_bytes, 0, "only payloads count");
}

#[test]
fn an_operation_without_parts_on_this_lane_is_done_at_once() {
    let mut rig = Rig::new(1);
    let mut out = Commands::default();
    rig.engine.submit(&Submit { op: 9, ..submit(OpKind::Push, 1) }, &[], 0, &mut out);
    assert_eq!(out.list, [Command::Done { op: 9, version: u64::MAX }]);
}

#[test]
fn small_operations_may_wait_only_behind_one_on_its_way_to_their_server() {
    let mut rig = Rig::new(4);
    assert!(rig.engine.may_gather(), "nothing waits");
    rig.push(1, &[part(1, 0)]);
    assert!(!rig.engine.may_gather(), "the first goes at once");
    let sent = rig.sent();
    rig.push(1, &[part(2, 0)]);
    assert!(rig.engine.may_gather());
    rig.push(1, &[part(3, 1)]);
    assert!(!rig.engine.may_gather(), "the other server has nothing to answer");
    rig.sent();
    rig.push(2, &[part(2, 0)]);
    assert!(rig.engine.may_gather());
    rig.results(0, &[done(&sent[0].blocks[0])], &[]);
    assert!(rig.engine.may_gather(), "one more is on its way");
}

#[test]
fn both_sides_of_what_may_be_gathered() {
    for (bytes, gathers) in [(16 << 10, true), ((16 << 10) + 4, false)] {
        let mut rig = Rig::new(4);
        rig.push(1, &[part(1, 0)]);
        rig.sent();
        rig.push(1, &[PartSpec { bytes, ..part(2, 0) }]);
        assert_eq!(rig.engine.may_gather(), gathers, "{bytes} bytes");
    }
    let mut rig = Rig::new(4);
    rig.push(1, &[part(100, 0)]);
    rig.sent();
    for key in 1..=32 {
        assert!(rig.engine.may_gather());
        rig.push(1, &[part(key, 0)]);
    }
    assert!(!rig.engine.may_gather(), "enough for one batch");
}
