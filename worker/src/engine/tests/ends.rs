//! How operations end: done, refused, late, failed with everything else.

use super::*;
use crate::subject::Subject;
use proto_common::message::WaitCause;

#[test]
fn the_last_part_ends_it_with_the_least_version() {
    let mut rig = Rig::new(4);
    let op = rig.push(1, &[part(1, 0), PartSpec { id: ChunkId::new(1, 1), ..part(1, 1) }]);
    let sent = rig.sent();
    assert_eq!(rig.results(0, &[reply(&sent[0].blocks[0], Status::Done, 7)], &[]), []);
    let commands = rig.results(1, &[reply(&sent[1].blocks[0], Status::Done, 5)], &[]);
    assert_eq!(commands, [Command::Done { op, version: 5 }]);
    assert_eq!((rig.engine.in_flight(), rig.engine.stats().done), (0, 1));
}

#[test]
fn a_refusal_is_told_once_and_the_other_parts_are_waited_for() {
    let mut rig = Rig::new(4);
    let chunk = |chunk| PartSpec { id: ChunkId::new(1, chunk), ..part(1, 0) };
    let op = rig.push(1, &[chunk(0), chunk(1), chunk(2)]);
    let blocks = rig.sent()[0].blocks.clone();
    let refused = |block: &Block| reply(block, Status::WrongShape, 0);
    let error = OpError::Refused {
        subject: Subject::default(),
        chunk: blocks[0].id,
        server: Rank(0),
        status: Status::WrongShape,
    };
    let commands = rig.results(0, &[refused(&blocks[0]), refused(&blocks[1])], &[]);
    assert_eq!(commands, [Command::Failed { op, error }]);
    assert_eq!(rig.results(0, &[done(&blocks[2])], &[]), [Command::Done { op, version: 0 }]);
    assert_eq!((rig.engine.stats().failed, rig.engine.stats().done), (1, 0));
}

#[test]
fn an_initial_value_is_sent_once_it_is_asked_for() {
    let mut rig = Rig::new(4);
    let op = rig.submit_as(submit(OpKind::Init, 1), &[part(1, 0)]);
    let block = rig.sent()[0].blocks[0];
    assert_eq!(block.bytes, 0);
    assert_eq!(rig.results(0, &[reply(&block, Status::Unset, 0)], &[]), []);
    let block = rig.sent()[0].blocks[0];
    assert_eq!((block.bytes, block.operation), (BYTES, Operation(1)));
    assert_eq!(rig.results(0, &[done(&block)], &[]), [Command::Done { op, version: block.count.round() }]);
    // Nothing else has an initial value.
    rig.push(2, &[part(1, 0)]);
    let block = rig.sent()[0].blocks[0];
    let commands = rig.results(0, &[reply(&block, Status::Unset, 0)], &[]);
    assert!(matches!(commands[..], [Command::Failed { error: OpError::Refused { .. }, .. }, _]));
}

#[test]
fn a_late_round_names_the_missing_ranks() {
    let mut rig = Rig::new(4);
    let op = rig.push(3, &[part(1, 0)]);
    let block = rig.sent()[0].blocks[0];
    rig.now_ms += 5_000;
    let late = Block { bytes: 8, ..reply(&block, Status::DeadlineWaiting, 2) };
    let slot = rig.inbox[0][0];
    let payload = [1u32.to_le_bytes(), 3u32.to_le_bytes()].concat();
    let commands = rig.deliver(0, slot, &Rig::header(0), &[late], &[], &payload);
    let missing = vec![Rank(1), Rank(3)];
    let error = OpError::Deadline {
        subject: Subject::default(),
        chunk: block.id,
        round: 3,
        waited_ms: 5_000,
        missing,
    };
    assert_eq!(commands, [Command::Failed { op, error }, Command::Done { op, version: 2 }]);
}

#[test]
fn a_round_that_is_held_up_by_readers_names_them() {
    let mut rig = Rig::new(4);
    let op = rig.push(3, &[part(1, 0)]);
    let block = rig.sent()[0].blocks[0];
    rig.now_ms += 5_000;
    let late = Block { bytes: 4, ..reply(&block, Status::DeadlineReading, 2) };
    let slot = rig.inbox[0][0];
    let commands = rig.deliver(0, slot, &Rig::header(0), &[late], &[], &2u32.to_le_bytes());
    let error = OpError::StillRead {
        subject: Subject::default(),
        chunk: block.id,
        round: 3,
        waited_ms: 5_000,
        readers: vec![Rank(2)],
    };
    assert_eq!(commands, [Command::Failed { op, error }, Command::Done { op, version: 2 }]);
}

#[test]
fn a_bound_that_slow_workers_hold_up_names_them_and_how_far_this_one_is() {
    let mut rig = Rig::new(4);
    let op = rig.push(3, &[part(1, 0)]);
    let block = rig.sent()[0].blocks[0];
    rig.now_ms += 5_000;
    let late = Block { bytes: 4, ..reply(&block, Status::DeadlineBehind, 7) };
    let slot = rig.inbox[0][0];
    let commands = rig.deliver(0, slot, &Rig::header(0), &[late], &[], &2u32.to_le_bytes());
    let error = OpError::Behind {
        subject: Subject::default(),
        chunk: block.id,
        made: 3,
        waited_ms: 5_000,
        behind: vec![Rank(2)],
    };
    assert_eq!(commands, [Command::Failed { op, error }, Command::Done { op, version: 7 }]);
}

#[test]
fn parts_that_come_too_late_end_well_and_are_counted() {
    let mut rig = Rig::new(4);
    let chunk = |chunk| PartSpec { id: ChunkId::new(1, chunk), ..part(1, 0) };
    let op = rig.push(1, &[chunk(0), chunk(1), chunk(2)]);
    let blocks = rig.sent()[0].blocks.clone();
    let late = |block: &Block| reply(block, Status::Late, 9);
    let commands = rig.results(0, &[late(&blocks[0]), done(&blocks[1]), late(&blocks[2])], &[]);
    assert_eq!(commands, [Command::Late { op, chunks: 2 }, Command::Done { op, version: 1 }]);
    assert_eq!((rig.engine.stats().failed, rig.engine.stats().done), (0, 1));
}

#[test]
fn each_chunk_s_version_is_told_where_it_is_asked_for() {
    let mut rig = Rig::new(4);
    let parts = [part(1, 0), PartSpec { id: ChunkId::new(1, 1), offset: BYTES, ..part(1, 1) }];
    let op = rig.submit_as(Submit { by_chunk: true, ..submit(OpKind::Pull, 1) }, &parts);
    let sent = rig.sent();
    let version = |offset, version| Command::Version { op, offset, version };
    assert_eq!(rig.results(1, &[reply(&sent[1].blocks[0], Status::Done, 8)], &[]), [version(BYTES, 8)]);
    let commands = rig.results(0, &[reply(&sent[0].blocks[0], Status::Done, 6)], &[]);
    assert_eq!(commands, [version(0, 6), Command::Done { op, version: 6 }]);
}

#[test]
fn silence_ends_with_the_servers_that_owe_an_answer() {
    let mut rig = Rig::new(1);
    let op = rig.push(1, &[part(1, 0), PartSpec { id: ChunkId::new(1, 1), ..part(1, 1) }]);
    let sent = rig.sent();
    rig.results(0, &[done(&sent[0].blocks[0])], &[]);
    assert_eq!(rig.tick(5_999), [], "the server has a second of grace");
    let error = OpError::NoAnswer {
        subject: Subject::default(),
        key: Key(1),
        servers: vec![Rank(1)],
        waited_ms: 6_000,
    };
    assert_eq!(rig.tick(1), [Command::Failed { op, error }]);
    assert_eq!(rig.tick(10_000), [], "told once");
    assert_eq!(rig.engine.in_flight(), 1, "its buffers may still be written");
    assert_eq!(rig.results(1, &[done(&sent[1].blocks[0])], &[]), [Command::Done { op, version: 1 }]);
}

#[test]
fn the_oldest_operation_is_told_with_its_servers() {
    let mut rig = Rig::new(0);
    assert_eq!(rig.engine.oldest(0), None);
    rig.submit_as(submit(OpKind::Pull, 1), &[part(4, 1)]);
    rig.now_ms += 10;
    rig.push(1, &[part(1, 0)]);
    let told = |rig: &Rig| rig.engine.oldest(1_050).map(|oldest| oldest.cause);
    let expected = OldestOp {
        key: Key(4),
        what: "pull",
        waited_ms: 50,
        servers: vec![Rank(1)],
        cause: (WaitCause::Credits, vec![Rank(1)]),
    };
    assert_eq!(rig.engine.oldest(1_050), Some(expected));
    rig.engine.server_down(Rank(1));
    assert_eq!(told(&rig), Some((WaitCause::Links, vec![Rank(1)])));
    let mut rig = Rig::new(1);
    rig.push(1, &[part(1, 0)]);
    assert_eq!(rig.sent().len(), 1);
    assert_eq!(told(&rig), Some((WaitCause::Answers, vec![Rank(0)])), "sent, and no credit is left");
}

#[test]
fn what_is_shown_is_not_counted_as_landed() {
    let mut rig = Rig::new(1);
    for (operation, view, counts) in [(1, false, (BYTES, 0)), (2, true, (BYTES, BYTES))] {
        rig.submit_as(Submit { view, ..submit(OpKind::Pull, operation) }, &[part(4, 1)]);
        let block = rig.sent()[0].blocks[0];
        let landing = view.then_some(Landing { region: 1, offset: 0, bytes: BYTES });
        // Its credit comes back with it.
        let again = SlotGrant { slot: 0, generation: operation as u8 + 1 };
        rig.results(1, &[Block { landing, ..done(&block) }], &[again]);
        let stats = rig.engine.stats();
        assert_eq!((stats.landed_bytes, stats.shown_bytes), counts, "shown: {view}");
    }
}

#[test]
fn fail_all_ends_everything_once_and_sends_nothing_any_more() {
    let mut rig = Rig::new(1);
    let first = rig.push(1, &[part(1, 0)]);
    let second = rig.push(1, &[part(2, 1), part(3, 1)]);
    let sent = rig.sent();
    let refused = rig.results(0, &[reply(&sent[0].blocks[0], Status::Refused, 0)], &[]);
    assert!(matches!(refused[..], [Command::Failed { op, .. }, Command::Done { .. }] if op == first));
    let third = rig.push(2, &[part(1, 0)]);
    let error = OpError::Closed("test".into());
    let mut out = Commands::default();
    rig.engine.fail_all(&error, &mut out);
    let end = |op| [Command::Failed { op, error: error.clone() }, Command::Done { op, version: 0 }];
    let mut expected: Vec<Command> = end(third).into();
    expected.extend(end(second));
    assert_eq!(out.list, expected);
    assert_eq!((rig.engine.in_flight(), rig.flush()), (0, Happened::default()));
}

/// A server says that it cannot take `block` before these ranks have contributed to round 3.
fn retry(rig: &mut Rig, block: &Block, ranks: &[u32]) {
    let slot = rig.inbox[0].remove(0);
    rig.inbox[0].push(SlotGrant { generation: slot.generation.wrapping_add(1), ..slot });
    let payload: Vec<u8> = ranks.iter().flat_map(|rank| rank.to_le_bytes()).collect();
    let again = Block { bytes: payload.len() as u64, ..reply(block, Status::Retry, 2) };
    let credits = grants(10..14);
    assert_eq!(rig.deliver(0, slot, &Rig::header(0), &[again], &credits, &payload), []);
}

/// Pushes two chunks on server 0, both sent back with these ranks.
fn sent_back_twice(ranks: [&[u32]; 2]) -> (Rig, u64, Vec<Block>) {
    let mut rig = Rig::new(4);
    let op = rig.push(3, &[part(1, 0), PartSpec { id: ChunkId::new(1, 1), ..part(1, 0) }]);
    let blocks = rig.sent()[0].blocks.clone();
    rig.now_ms += 5_500;
    for (block, ranks) in blocks.iter().zip(ranks) {
        retry(&mut rig, block, ranks);
    }
    (rig, op, blocks)
}

fn failures(commands: Vec<Command>) -> Vec<Command> {
    commands.into_iter().filter(|command| !matches!(command, Command::Notice { .. })).collect()
}

#[test]
fn what_could_not_be_taken_names_the_ranks_that_come_first() {
    let (mut rig, op, blocks) = sent_back_twice([&[1, 3], &[0]]);
    assert_eq!(failures(rig.tick(499)), [], "the server has a second of grace");
    let error = OpError::Deadline {
        subject: Subject::default(),
        chunk: blocks[1].id,
        round: 3,
        waited_ms: 6_000,
        missing: vec![Rank(0)],
    };
    assert_eq!(failures(rig.tick(1)), [Command::Failed { op, error }], "its last word");
    // What is sent back after that is sent again as before, and ends the operation.
    assert_eq!(rig.results(0, &[], &grants(20..22)), [], "its idle credits had gone back");
    let again = rig.flush().sent;
    assert_eq!(again[0].blocks.len(), 2);
    let ends = [done(&again[0].blocks[0]), done(&again[0].blocks[1])];
    assert_eq!(rig.results(0, &ends, &[]), [Command::Done { op, version: 3 }]);
}

#[test]
fn a_server_that_names_nobody_for_a_part_is_blamed_itself() {
    let no_answer = OpError::NoAnswer {
        subject: Subject::default(),
        key: Key(1),
        servers: vec![Rank(0)],
        waited_ms: 6_000,
    };
    for ranks in [[&[1][..], &[]], [&[], &[1]], [&[], &[]]] {
        let (mut rig, op, _) = sent_back_twice(ranks);
        assert_eq!(failures(rig.tick(500)), [Command::Failed { op, error: no_answer.clone() }]);
    }
    // The last word counts: named before, not any more.
    let (mut rig, op, _) = sent_back_twice([&[1], &[2]]);
    rig.now_ms += 100;
    let again = rig.sent()[0].blocks[0];
    retry(&mut rig, &again, &[]);
    assert_eq!(failures(rig.tick(400)), [Command::Failed { op, error: no_answer }]);
}

#[test]
fn a_server_that_falls_silent_after_it_named_ranks_is_blamed_itself() {
    for (silent_ms, blamed) in [(999, false), (1_000, true)] {
        let (mut rig, _, _) = sent_back_twice([&[1], &[1]]);
        let failed = failures(rig.tick(silent_ms));
        let [Command::Failed { error, .. }] = &failed[..] else { panic!("{failed:?}") };
        assert_eq!(matches!(error, OpError::NoAnswer { .. }), blamed, "{silent_ms}: {error}");
    }
}

#[test]
fn a_new_channel_forgets_what_the_old_one_said() {
    let (mut rig, _, _) = sent_back_twice([&[1], &[1]]);
    rig.engine.server_down(Rank(0));
    rig.up(0, 4);
    let failed = failures(rig.tick(500));
    assert!(matches!(failed[..], [Command::Failed { error: OpError::NoAnswer { .. }, .. }]), "{failed:?}");
}

#[test]
fn a_list_longer_than_any_server_of_ours_sends_is_cut() {
    let many: Vec<u32> = (0..17).collect();
    let (mut rig, _, _) = sent_back_twice([&many, &many]);
    let failed = failures(rig.tick(500));
    let [Command::Failed { error: OpError::Deadline { missing, .. }, .. }] = &failed[..] else {
        panic!("{failed:?}")
    };
    assert_eq!(*missing, (0..16).map(Rank).collect::<Vec<_>>());
}

#[test]
fn a_pull_of_a_dynamic_tensor_tells_how_much_landed() {
    let mut rig = Rig::new(4);
    let parts = [part(1, 0), PartSpec { id: ChunkId::new(1, 1), offset: BYTES, ..part(1, 1) }];
    let op = rig.submit_as(submit(OpKind::Pull, 1), &parts);
    let sent = rig.sent();
    let landed = |sent: &Sent, bytes| Block {
        landing: Some(Landing { region: 0, offset: 0, bytes }),
        ..done(&sent.blocks[0])
    };
    assert_eq!(rig.results(0, &[landed(&sent[0], BYTES)], &[]), []);
    // More than there is room for is a server's lie.
    let commands = rig.results(1, &[landed(&sent[1], u64::MAX)], &[]);
    assert_eq!(
        commands,
        [Command::Landed { op, bytes: 2 * BYTES, newest: 1 }, Command::Done { op, version: 1 }]
    );
}

#[test]
fn an_empty_contribution_travels_in_its_batch() {
    let mut rig = Rig::new(4);
    let parts = [PartSpec { bytes: 0, ..part(1, 0) }];
    rig.submit_as(Submit { placement: Placement::RendezvousRead, ..submit(OpKind::Push, 1) }, &parts);
    let block = rig.sent()[0].blocks[0];
    assert_eq!((block.bytes, block.data), (0, BlockData::Inline { offset: 0 }));
}

/// A server's answer to the first block that is under way, with the ranks that it waits for.
fn late_for(rig: &mut Rig, status: Status, ranks: &[u32]) -> Vec<Command> {
    let block = rig.sent()[0].blocks[0];
    rig.now_ms += u64::from(block.timeout_ms);
    let late = Block { bytes: 4 * ranks.len() as u64, ..reply(&block, status, 2) };
    let slot = rig.inbox[0].remove(0);
    let again = SlotGrant { generation: slot.generation.wrapping_add(1), ..slot };
    rig.inbox[0].push(again);
    let payload: Vec<u8> = ranks.iter().flat_map(|rank| rank.to_le_bytes()).collect();
    rig.deliver(0, slot, &Rig::header(0), &[late], &[SlotGrant { slot: 9, generation: 1 }], &payload)
}

/// A push to round 3 that waits so long for busy workers.
fn patient(busy_ms: u64) -> (Rig, u64) {
    let mut rig = Rig::new(8);
    let op = rig.submit_as(Submit { busy_ms, ..submit(OpKind::Push, 3) }, &[part(1, 0)]);
    (rig, op)
}

#[test]
fn other_workers_are_waited_for_with_a_warning_each_time_until_it_is_too_long() {
    for (status, cause) in [
        (Status::DeadlineWaiting, WaitCause::Contributions),
        (Status::DeadlineReading, WaitCause::Readers),
        (Status::DeadlineBehind, WaitCause::Bound),
    ] {
        let (mut rig, op) = patient(12_000);
        for waited_ms in [5_000, 10_000] {
            let on = vec![Rank(0), Rank(3)];
            let waits = Command::Waits { op, waited_ms, cause, on };
            assert_eq!(late_for(&mut rig, status, &[0, 3]), [waits]);
        }
        // The same operation, with what is left of the time.
        let commands = late_for(&mut rig, status, &[0, 3]);
        assert!(matches!(commands[..], [Command::Failed { .. }, Command::Done { .. }]), "{commands:?}");
        assert_eq!(rig.now_ms, 1_000 + 12_000);
    }
}

#[test]
fn servers_this_worker_and_nobody_are_not_waited_for_again() {
    for (status, ranks) in [
        (Status::DeadlineCopies, &[1][..]),
        (Status::DeadlineSaving, &[]),
        (Status::DeadlineWaiting, &[0]),
        (Status::DeadlineReading, &[0]),
        (Status::DeadlineWaiting, &[]),
    ] {
        let (mut rig, _) = patient(60_000);
        let commands = late_for(&mut rig, status, ranks);
        assert!(matches!(commands[..], [Command::Failed { .. }, Command::Done { .. }]), "{commands:?}");
    }
    let (mut rig, op) = patient(60_000);
    rig.sent();
    assert_eq!(failures(rig.tick(5_999)), []);
    let failed = failures(rig.tick(1));
    assert!(
        matches!(&failed[..], [Command::Failed { op: of, error: OpError::NoAnswer { .. } }] if *of == op)
    );
}

#[test]
fn operations_that_wait_behind_it_on_their_chunk_get_the_new_time_too() {
    let mut rig = Rig::new(8);
    for operation in 3..8 {
        rig.submit_as(Submit { busy_ms: 60_000, ..submit(OpKind::Push, operation) }, &[part(1, 0)]);
    }
    let blocks = rig.sent()[0].blocks.clone();
    assert_eq!(blocks.len(), 4, "the fifth waits here");
    rig.now_ms += 5_000;
    let late = |block: &Block| Block { bytes: 4, ..reply(block, Status::DeadlineWaiting, 2) };
    let late: Vec<Block> = blocks.iter().map(late).collect();
    let slot = rig.inbox[0][0];
    let told = rig.deliver(0, slot, &Rig::header(0), &late, &[], &3u32.to_le_bytes());
    let waits = told.iter().filter(|command| matches!(command, Command::Waits { waited_ms: 5_000, .. }));
    assert_eq!((waits.count(), told.len()), (4, 4));
    assert_eq!(rig.sent()[0].blocks.len(), 4);
    assert_eq!(failures(rig.tick(5_999)), [], "no server could answer for the fifth");
    let failed = failures(rig.tick(1));
    let no_answer =
        |command: &&Command| matches!(command, Command::Failed { error: OpError::NoAnswer { .. }, .. });
    assert_eq!(failed.iter().filter(no_answer).count(), 5, "{failed:?}");
}

#[test]
fn an_operation_that_has_no_room_at_its_server_before_others_come_is_waited_for_too() {
    let (mut rig, op) = patient(12_000);
    rig.now_ms += 5_990;
    let block = rig.sent()[0].blocks[0];
    retry(&mut rig, &block, &[2]);
    let waits = Command::Waits { op, waited_ms: 6_000, cause: WaitCause::Contributions, on: vec![Rank(2)] };
    assert_eq!(failures(rig.tick(10)), [waits]);
    assert_eq!(failures(rig.tick(5_999)), [], "it has as much time again");
}
