//! Workers and server that read each other's memory where it lies: contributions are reduced in workers' memory, and
//! weights shown in the server's.

use super::*;
use proto_common::batch::{Kept, Reading};
use proto_common::ids::Version;

fn rig(workers: u32) -> Rig {
    Rig::with(config(workers), true)
}

/// Where a worker's gradient lies.
fn there(rank: u32) -> Source {
    Source::Worker { peer: Rank(rank), region: REGION, offset: 64, bytes: BYTES }
}

fn by_reference(block: Block) -> Block {
    Block { data: BlockData::ByReference { region: REGION, offset: 64 }, ..block }
}

/// Nothing of what operations before this one were shown is read.
fn reading(from: u64) -> Reading {
    Reading { from: Operation(from), kept: Kept::None }
}

fn view(block: Block, views_from: u64) -> Block {
    Block { view: true, landing: None, reading: reading(views_from), ..block }
}

fn finish(round: u64, last: Option<Source>, old: u8, into: u8) -> Command {
    Command::Finish { chunk: 0, round, last: last.map(first), old, into, contributors: 1 }
}

/// Where each worker is told that its weights lie: the number of the buffer.
fn shown(rig: &mut Rig) -> Vec<(u32, u64)> {
    let blocks = rig.flush_blocks();
    rig.return_slots();
    let place = |(rank, result): (u32, ResultBlock)| {
        let landing = result.block.landing.filter(|_| result.block.view)?;
        assert_eq!((result.block.status, landing.bytes), (Status::Done, BYTES));
        match result.place {
            Some(Place::Weights { chunk: 0, buffer }) => Some((rank, u64::from(buffer))),
            other => panic!("{other:?}"),
        }
    };
    blocks.into_iter().filter_map(place).collect()
}

#[test]
fn what_lies_in_a_worker_s_memory_is_reduced_there_in_rank_order() {
    let mut rig = rig(3);
    assert_eq!(rig.send(2, &[by_reference(push(1, 1))]), [], "kept where it lies");
    assert_eq!(rig.engine.spills().0, 0);
    assert_eq!(rig.send(0, &[by_reference(push(1, 1))]), [], "it is reduced with the next one");
    let last = Command::Finish {
        chunk: 0,
        round: 1,
        last: Some(Addend { from: there(2), onto: Onto::Sum }),
        old: 0,
        into: 0,
        contributors: 3,
    };
    let both = reduce(there(1), Onto::First(there(0)));
    assert_eq!(rig.send(1, &[by_reference(push(1, 1))]), [both, last]);
    assert_eq!(rig.flush(), [done(2, 1, 1), done(0, 1, 1), done(1, 1, 1)]);
    assert_eq!((rig.engine.stats().in_place, rig.engine.stats().fetches), (3, 0));
}

#[test]
fn before_its_deadline_ends_an_operation_its_gradient_is_copied() {
    let mut rig = rig(3);
    rig.send(2, &[by_reference(push(1, 1))]);
    rig.now_ms = 1_000;
    assert_eq!(rig.time(), [spill(there(2), 0)], "it is the worker's again once that is answered");
    let late = Answer { missing: vec![0, 1], ..answer(2, 1, Status::DeadlineWaiting, 0) };
    assert_eq!(rig.flush(), [late]);
    rig.send(0, &[by_reference(push(1, 1))]);
    let commands = rig.send(1, &[by_reference(push(1, 1))]);
    let last = commands.last();
    assert!(
        matches!(last, Some(Command::Finish { last: Some(Addend { from: Source::Spill(0), .. }), .. })),
        "{last:?}"
    );
}

#[test]
fn before_its_deadline_ends_an_operation_a_round_s_first_gradient_is_reduced_alone() {
    let mut rig = rig(3);
    assert_eq!(rig.send(1, &[by_reference(push(1, 1))]), []);
    rig.now_ms = 1_000;
    assert_eq!(
        rig.time(),
        [reduce(there(1), Onto::Nothing)],
        "it is the worker's again once that is answered"
    );
    let late = Answer { missing: vec![0, 2], ..answer(1, 1, Status::DeadlineWaiting, 0) };
    assert_eq!(rig.flush(), [late]);
    assert_eq!(rig.engine.spills().0, 0, "no copy");
    // Its channel's end changes nothing any more.
    rig.down(Rank(1));
    assert_eq!(rig.send(0, &[by_reference(push(1, 1))]), [reduce(there(0), Onto::Sum)]);
    let commands = rig.send(2, &[by_reference(push(1, 1))]);
    let last = Some(onto_sum(there(2)));
    assert!(matches!(commands[..], [Command::Finish { last: found, .. }] if found == last), "{commands:?}");
    assert_eq!((rig.engine.stats().contributions, rig.engine.stats().in_place), (3, 3));
}

/// It may write that memory as soon as it knows that the channel has ended.
#[test]
fn a_round_s_first_gradient_that_is_not_reduced_has_not_come_when_its_channel_ends() {
    let mut rig = rig(2);
    assert_eq!(rig.send(1, &[by_reference(push(1, 1))]), []);
    rig.down(Rank(1));
    assert_eq!(rig.engine.stats().contributions, 0);
    rig.connect(1);
    assert_eq!(rig.send(0, &[by_reference(push(1, 1))]), [], "now it is the first");
    let commands = rig.send(1, &[by_reference(push(1, 1))]);
    let last = Some(Addend { from: there(1), onto: Onto::First(there(0)) });
    assert!(matches!(commands[..], [Command::Finish { last: found, .. }] if found == last), "{commands:?}");
    assert_eq!(rig.flush(), [done(0, 1, 1), done(1, 1, 1)]);
}

#[test]
fn of_two_gradients_none_is_a_pass_of_its_own() {
    let mut rig = rig(2);
    assert_eq!(rig.send(1, &[by_reference(push(1, 1))]), []);
    let last = Some(Addend { from: there(0), onto: Onto::First(there(1)) });
    let finish = |round, into| Command::Finish { chunk: 0, round, last, old: 0, into, contributors: 2 };
    assert_eq!(rig.send(0, &[view(by_reference(push_pull(1, 1)), 1)]), [finish(1, 0)]);
    // A batch's own payload is the server's to free: it is not kept.
    let commands = rig.send(0, &[push(2, 2)]);
    assert_eq!(commands, [reduce(rig.at(), Onto::Nothing)]);
    let commands = rig.send(1, &[by_reference(push(2, 2))]);
    assert!(
        matches!(commands[..], [Command::Finish { last: Some(last), .. }] if last == onto_sum(there(1))),
        "{commands:?}"
    );
}

#[test]
fn without_room_for_a_copy_the_operation_waits_on() {
    let mut rig = Rig::with(EngineConfig { spill_blocks: 0, ..config(3) }, true);
    rig.send(2, &[by_reference(push(1, 1))]);
    assert_eq!(rig.tick(60_000), [], "its memory is needed");
    rig.send(0, &[by_reference(push(1, 1))]);
    rig.send(1, &[by_reference(push(1, 1))]);
    assert_eq!(rig.flush(), [done(0, 1, 1), done(1, 1, 1), done(2, 1, 1)]);
}

#[test]
fn with_its_channel_a_worker_s_memory_is_gone() {
    let mut rig = rig(3);
    rig.send(2, &[by_reference(push(1, 1))]);
    rig.down(Rank(2));
    rig.connect(2);
    rig.send(0, &[by_reference(push(1, 1))]);
    assert_eq!(
        rig.send(1, &[by_reference(push(1, 1))]),
        [reduce(there(1), Onto::First(there(0)))],
        "rank 2 is to come again"
    );
    let commands = rig.send(2, &[by_reference(push(1, 1))]);
    assert!(matches!(commands[..], [Command::Finish { .. }]), "{commands:?}");
    assert_eq!(rig.flush().len(), 3);
}

#[test]
fn shown_weights_stay_as_they_are_until_they_are_not_read_any_more() {
    let mut rig = rig(1);
    let first = rig.send(0, &[view(by_reference(push_pull(1, 1)), 1)]);
    assert_eq!(first, [finish(1, Some(there(0)), 0, 0)], "nobody reads the zeros");
    assert_eq!(shown(&mut rig), [(0, 0)]);
    // The first view is read still.
    let second = rig.send(0, &[view(by_reference(push_pull(2, 2)), 1)]);
    assert_eq!(second, [finish(2, Some(there(0)), 0, 1)]);
    assert_eq!(shown(&mut rig), [(0, 1)]);
    // Neither is: in place.
    let third = rig.send(0, &[view(by_reference(push_pull(3, 3)), 3)]);
    assert_eq!(third, [finish(3, Some(there(0)), 1, 1)]);
    assert_eq!(shown(&mut rig), [(0, 1)]);
    assert_eq!(rig.engine.stats().views, 3);
}

#[test]
fn a_round_waits_for_readers_of_both_versions_and_hears_of_it_when_one_is_not_read_any_more() {
    let mut rig = rig(1);
    rig.send(0, &[view(by_reference(push_pull(1, 1)), 1)]);
    rig.send(0, &[view(by_reference(push_pull(2, 2)), 1)]);
    rig.flush();
    let third = rig.send(0, &[view(by_reference(push_pull(3, 3)), 1)]);
    assert_eq!(third, [reduce(there(0), Onto::Nothing)], "no place for its weights");
    assert_eq!(rig.flush(), []);
    let release = Block { reading: reading(2), ..block(OpKind::Release, 4, 3) };
    assert_eq!(rig.send(0, &[release]), [finish(3, None, 1, 0)]);
    assert_eq!(rig.flush(), [done(0, 3, 3), done(0, 4, 3)]);
}

/// Three rounds: the first one's weights are read still, the second one's are not.
#[test]
fn a_newer_version_is_let_go_while_an_older_one_is_read() {
    let mut rig = rig(1);
    rig.send(0, &[view(by_reference(push_pull(1, 1)), 1)]);
    rig.send(0, &[view(by_reference(push_pull(2, 2)), 1)]);
    rig.flush();
    let keeping = |operation, kept| {
        let reading = Reading { from: Operation(operation), kept };
        Block { reading, ..view(by_reference(push_pull(operation, operation)), 1) }
    };
    let third = rig.send(0, &[keeping(3, Kept::Version(Version(1)))]);
    assert_eq!(third, [finish(3, Some(there(0)), 1, 1)]);
    rig.flush();
    let fourth = rig.send(0, &[keeping(4, Kept::All)]);
    assert_eq!(fourth, [reduce(there(0), Onto::Nothing)], "both may be read");
    let release = |operation, version| {
        let reading = Reading { from: Operation(operation), kept: Kept::Version(Version(version)) };
        Block { reading, ..block(OpKind::Release, operation, 4) }
    };
    assert_eq!(rig.send(0, &[release(5, 3)]), [finish(4, None, 1, 0)], "the first one is not read any more");
}

#[test]
fn at_the_deadline_of_a_round_without_a_place_its_readers_are_named() {
    let mut rig = rig(2);
    let both = |rig: &mut Rig, operation: u64, views_from: u64| {
        rig.send(1, &[view(by_reference(push_pull(operation, operation)), views_from)]);
        rig.send(0, &[by_reference(push(operation, operation))])
    };
    for operation in [1, 2] {
        both(&mut rig, operation, 1);
        rig.flush();
    }
    both(&mut rig, 3, 1);
    let told = rig.tick(1_000);
    let reading = |rank| Answer { missing: vec![1], ..answer(rank, 3, Status::DeadlineReading, 2) };
    assert_eq!(told, [reading(0), reading(1)]);
    rig.down(Rank(1));
    assert_eq!(rig.connect_with(1, 4), [], "the same life may read them still");
    rig.again(1);
    assert_eq!(
        rig.connect_with(1, 4),
        [Command::Finish { chunk: 0, round: 3, last: None, old: 1, into: 1, contributors: 2 }],
        "of a reader that comes anew nothing is read"
    );
}

#[test]
fn an_old_operation_s_word_does_not_end_a_younger_view() {
    let mut rig = rig(1);
    let first = view(by_reference(push_pull(1, 1)), 1);
    rig.send(0, &[first]);
    rig.flush();
    // It comes twice: what it says of views is older than the view.
    rig.send(0, &[Block { reading: reading(1), ..first }]);
    rig.flush();
    let second = rig.send(0, &[view(by_reference(push_pull(2, 2)), 1)]);
    assert_eq!(second, [finish(2, Some(there(0)), 0, 1)]);
}

#[test]
fn views_are_for_pulls_of_workers_that_can_read_them() {
    for (in_place, block) in [
        (false, view(pull(1, 0), 1)),
        (true, view(push(1, 1), 1)),
        (true, Block { landing: Some(landing()), ..view(pull(1, 0), 1) }),
        (true, Block { bytes: 4, ..block(OpKind::Release, 1, 0) }),
    ] {
        let mut rig = Rig::with(config(1), in_place);
        rig.send(0, &[block]);
        let told = rig.flush();
        assert!(
            matches!(told[..], [Answer { status: Status::Refused | Status::WrongShape, .. }]),
            "{told:?}"
        );
    }
}

#[test]
fn many_views_of_one_worker_take_one_place() {
    let mut rig = rig(1);
    for operation in 1..=1_000 {
        rig.send(0, &[view(pull(operation, 0), 1)]);
        assert_eq!(shown(&mut rig), [(0, 0)]);
    }
    assert!(format!("{:?}", rig.engine).matches("(Rank(0), Operation(1000))").count() == 1);
    assert!(!format!("{:?}", rig.engine).contains("(Rank(0), Operation(999))"));
}
