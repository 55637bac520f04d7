//! Order: operations of one chunk are FIFO whatever the priorities, which order chunks.

use super::*;
use crate::subject::Subject;
use proto_common::batch::{Kept, Reading};

fn with_priority(rig: &mut Rig, operation: u64, key: u64, priority: i32) -> u64 {
    rig.submit_as(Submit { priority, ..submit(OpKind::Push, operation) }, &[part(key, 0)])
}

#[test]
fn higher_priority_goes_first_and_age_decides_among_equals() {
    let mut rig = Rig::new(4);
    for (key, priority) in [(1, 0), (2, 5), (3, -1), (4, 5)] {
        with_priority(&mut rig, 1, key, priority);
    }
    assert_eq!(rig.sent()[0].operations(), [(2, 1), (4, 1), (1, 1), (3, 1)]);
}

#[test]
fn priorities_never_reorder_one_chunk() {
    let mut rig = Rig::new(4);
    with_priority(&mut rig, 1, 1, 0);
    with_priority(&mut rig, 2, 1, 9);
    with_priority(&mut rig, 1, 2, 5);
    assert_eq!(rig.sent()[0].operations(), [(2, 1), (1, 1), (1, 2)]);
}

#[test]
fn with_one_credit_left_the_first_layer_overtakes_the_last_but_no_operation_its_own_key() {
    // A slot holds one of these.
    let chunk =
        |key, index| PartSpec { id: ChunkId::new(key, index), bytes: SLOT_BYTES * 2 / 3, ..part(key, 0) };
    let layer = |key| [chunk(key, 0), chunk(key, 1), chunk(key, 2)];
    let mut rig = Rig::new(1);
    // As a backward pass submits: the last layer, and while that is on its way the first one.
    rig.submit_as(Submit { priority: -9, ..submit(OpKind::PushPull, 1) }, &layer(9));
    let mut sent = rig.sent();
    rig.submit_as(Submit { priority: 0, ..submit(OpKind::PushPull, 1) }, &layer(1));
    // More urgent, but of a key that has an earlier operation: it waits for its turn on each chunk.
    rig.submit_as(Submit { priority: 9, ..submit(OpKind::PushPull, 2) }, &layer(9));
    let mut went = Vec::new();
    while let Some(batch) = sent.pop() {
        assert!(sent.is_empty(), "one credit, one batch");
        let answers: Vec<Block> = batch.blocks.iter().map(done).collect();
        went.extend(answers.iter().map(|block| (block.id.key.0, block.id.chunk.0, block.operation.0)));
        rig.results(0, &answers, &grants(0..1));
        sent = rig.sent();
    }
    // The only chunk of key 9 whose first operation has gone, then the first layer, then the rest of the last one.
    let wanted =
        [(9, 0, 1), (9, 0, 2), (1, 0, 1), (1, 1, 1), (1, 2, 1), (9, 1, 1), (9, 1, 2), (9, 2, 1), (9, 2, 2)];
    assert_eq!(went, wanted);
}

#[test]
fn a_chunk_has_only_so_many_operations_under_way() {
    let mut rig = Rig::new(4);
    for operation in 1..=6 {
        rig.push(operation, &[part(1, 0)]);
    }
    let sent = rig.sent();
    assert_eq!(sent[0].operations(), [(1, 1), (1, 2), (1, 3), (1, 4)]);
    assert_eq!(rig.sent(), []);
    rig.results(0, &[done(&sent[0].blocks[0])], &[]);
    assert_eq!(rig.sent()[0].operations(), [(1, 5)]);
}

#[test]
fn what_a_server_could_not_take_goes_again_after_a_while_in_order() {
    let mut rig = Rig::new(4);
    rig.push(1, &[part(1, 0)]);
    rig.push(2, &[part(1, 0)]);
    let sent = rig.sent();
    let again = sent[0].blocks.iter().map(|block| reply(block, Status::Retry, 0)).collect::<Vec<_>>();
    assert_eq!(rig.results(0, &again, &[]), []);
    assert_eq!(rig.engine.next_retry_ms(), Some(1_002));
    rig.now_ms = 1_001;
    assert_eq!(rig.sent(), []);
    rig.now_ms = 1_002;
    assert_eq!(rig.sent()[0].operations(), [(1, 1), (1, 2)]);
    assert_eq!((rig.engine.next_retry_ms(), rig.engine.stats().retries), (None, 2));
}

#[test]
fn what_follows_a_part_that_came_back_waits_for_it() {
    let mut rig = Rig::new(4);
    rig.push(1, &[part(1, 0)]);
    let first = rig.sent()[0].blocks[0];
    rig.submit_as(Submit { priority: 9, ..submit(OpKind::Push, 2) }, &[part(1, 0)]);
    rig.results(0, &[reply(&first, Status::Retry, 0)], &[]);
    assert_eq!(rig.sent(), [], "operation 2 was about to go: it would only be a gap");
    rig.now_ms += 2;
    assert_eq!(rig.sent()[0].operations(), [(1, 1), (1, 2)]);
}

#[test]
fn a_retried_part_still_counts_as_under_way() {
    let mut rig = Rig::new(4);
    for operation in 1..=5 {
        rig.push(operation, &[part(1, 0)]);
    }
    let sent = rig.sent();
    rig.results(0, &[reply(&sent[0].blocks[3], Status::Retry, 0)], &[]);
    rig.now_ms += 2;
    assert_eq!(rig.sent()[0].operations(), [(1, 4)], "operation 5 does not overtake it");
}

#[test]
fn parts_to_be_tried_again_do_not_fill_up_what_may_be_in_flight() {
    let mut rig = Rig::down(EngineConfig { in_flight_max: 2, ..config() });
    rig.up(0, 4);
    for key in 1..=3 {
        rig.push(1, &[part(key, 0)]);
    }
    let sent = rig.sent();
    let again: Vec<Block> = sent[0].blocks.iter().map(|block| reply(block, Status::Retry, 0)).collect();
    rig.results(0, &again, &[]);
    assert_eq!(rig.sent()[0].operations(), [(3, 1)], "another chunk may go meanwhile");
    rig.now_ms += 2;
    assert_eq!(rig.sent()[0].operations(), [(1, 1)]);
}

#[test]
fn the_wait_grows_until_the_server_takes_one() {
    let mut rig = Rig::new(60);
    rig.push(1, &[part(1, 0)]);
    rig.push(2, &[part(1, 0)]);
    let mut waits = Vec::new();
    let mut sent = rig.sent();
    for _ in 0..7 {
        rig.results(
            0,
            &sent[0].blocks.iter().map(|block| reply(block, Status::Retry, 0)).collect::<Vec<_>>(),
            &[],
        );
        let due = rig.engine.next_retry_ms().expect("to be tried again");
        waits.push(due - rig.now_ms);
        rig.now_ms = due;
        sent = rig.sent();
    }
    assert_eq!(waits, [2, 4, 8, 16, 32, 32, 32]);
    rig.results(0, &[done(&sent[0].blocks[0]), reply(&sent[0].blocks[1], Status::Retry, 0)], &[]);
    assert_eq!(rig.engine.next_retry_ms(), Some(rig.now_ms + 2));
}

#[test]
fn what_changed_on_the_way_is_sent_three_times_again_in_its_place() {
    let mut rig = Rig::new(2);
    let first = rig.push(1, &[part(1, 0)]);
    let second = rig.push(2, &[part(1, 0)]);
    let credits = |rig: &mut Rig| rig.results(0, &[], &grants(20..22));
    for again in 0..3 {
        let sent = rig.flush().sent;
        assert_eq!(sent[0].operations(), [(1, 1), (1, 2)], "{again}");
        let back: Vec<Block> = sent[0].blocks.iter().map(|block| reply(block, Status::Corrupt, 0)).collect();
        assert_eq!(rig.results(0, &back, &[]), []);
        rig.now_ms += 100;
        credits(&mut rig);
    }
    let sent = rig.flush().sent;
    let block = sent[0].blocks[0];
    let error = OpError::Refused {
        subject: Subject::default(),
        chunk: block.id,
        server: Rank(0),
        status: Status::Corrupt,
    };
    assert_eq!(
        rig.results(0, &[reply(&block, Status::Corrupt, 0)], &[]),
        [Command::Failed { op: first, error }]
    );
    assert_eq!(rig.results(0, &[done(&sent[0].blocks[1])], &[]), [Command::Done { op: second, version: 2 }]);
    // The server is to know that the number is used up, also where another payload of its batch changes.
    for status in [Status::Corrupt, Status::Retry, Status::Refused] {
        rig.now_ms += 100;
        credits(&mut rig);
        let sent = rig.flush().sent;
        let [given_up] = sent[0].blocks[..] else { panic!("{sent:?}") };
        assert_eq!((given_up.status, given_up.operation, given_up.bytes), (Status::Corrupt, Operation(1), 0));
        let commands = rig.results(0, &[reply(&given_up, status, 0)], &[]);
        let ended = [Command::Done { op: first, version: 0 }];
        assert_eq!(commands, if status == Status::Refused { &ended[..] } else { &[] }, "{status:?}");
    }
    assert_eq!((rig.engine.stats().retries, rig.engine.stats().failed), (9, 1));
}

fn reading(from: u64) -> Reading {
    Reading { from: Operation(from), kept: Kept::None }
}

#[test]
fn what_ends_a_view_is_not_held_up_by_those_that_may_wait_for_it() {
    let mut rig = Rig::new(8);
    for operation in 1..=4 {
        rig.push(operation, &[part(1, 0)]);
    }
    assert_eq!(
        rig.sent().iter().map(|batch| batch.blocks.len()).sum::<usize>(),
        4,
        "as many as there may be"
    );
    let parts = [part(1, 0)];
    rig.submit_as(Submit { payload: false, ..submit(OpKind::Release, 5) }, &parts);
    rig.push(6, &[part(1, 0)]);
    let sent = rig.sent();
    assert_eq!(sent.iter().map(|batch| batch.blocks.len()).sum::<usize>(), 1);
    assert_eq!(sent[0].blocks[0].op, OpKind::Release);
}

#[test]
fn a_part_that_is_sent_again_says_what_is_read_now() {
    let mut rig = Rig::new(4);
    let parts = [part(1, 0)];
    rig.submit_as(Submit { reading: reading(1), ..submit(OpKind::Push, 1) }, &parts);
    let first = rig.sent();
    assert_eq!(first[0].blocks[0].reading, reading(1));
    let end = Submit { reading: reading(2), payload: false, ..submit(OpKind::Release, 2) };
    rig.submit_as(end, &parts);
    rig.sent();
    let back = Block { status: Status::Retry, ..done(&first[0].blocks[0]) };
    rig.results(0, &[back], &grants(0..2));
    rig.now_ms += 100;
    let again = rig.sent();
    assert_eq!(again[0].blocks[0].operation, Operation(1));
    assert_eq!(again[0].blocks[0].reading, reading(2));
}
