//! How operations end: done, refused, late, failed with everything else.

use super::*;

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
    let error = OpError::Refused { chunk: blocks[0].id, server: Rank(0), status: Status::WrongShape };
    let commands = rig.results(0, &[refused(&blocks[0]), refused(&blocks[1])], &[]);
    assert_eq!(commands, [Command::Failed { op, error }]);
    assert_eq!(rig.results(0, &[done(&blocks[2])], &[]), [Command::Done { op, version: 0 }]);
    assert_eq!((rig.engine.stats().failed, rig.engine.stats().done), (1, 0));
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
    let error = OpError::Deadline { chunk: block.id, round: 3, waited_ms: 5_000, missing };
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
    let error = OpError::StillRead { chunk: block.id, round: 3, waited_ms: 5_000, readers: vec![Rank(2)] };
    assert_eq!(commands, [Command::Failed { op, error }, Command::Done { op, version: 2 }]);
}

#[test]
fn silence_ends_with_the_servers_that_owe_an_answer() {
    let mut rig = Rig::new(1);
    let op = rig.push(1, &[part(1, 0), PartSpec { id: ChunkId::new(1, 1), ..part(1, 1) }]);
    let sent = rig.sent();
    rig.results(0, &[done(&sent[0].blocks[0])], &[]);
    assert_eq!(rig.tick(5_999), [], "the server has a second of grace");
    let error = OpError::NoAnswer { key: Key(1), servers: vec![Rank(1)], waited_ms: 6_000 };
    assert_eq!(rig.tick(1), [Command::Failed { op, error }]);
    assert_eq!(rig.tick(10_000), [], "told once");
    assert_eq!(rig.engine.in_flight(), 1, "its buffers may still be written");
    assert_eq!(rig.results(1, &[done(&sent[1].blocks[0])], &[]), [Command::Done { op, version: 1 }]);
}

#[test]
fn the_oldest_operation_is_told_with_its_servers() {
    let mut rig = Rig::new(0);
    assert_eq!(rig.engine.oldest(0), None);
    rig.submit_as(Submit { parts: &[part(4, 1)], ..submit(OpKind::Pull, 1) });
    rig.now_ms += 10;
    rig.push(1, &[part(1, 0)]);
    let expected = OldestOp { key: Key(4), what: "pull", waited_ms: 50, servers: vec![Rank(1)] };
    assert_eq!(rig.engine.oldest(1_050), Some(expected));
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
