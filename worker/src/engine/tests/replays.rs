//! Channels that break and come back: everything unanswered goes out again, in order, and nothing else.

use super::*;

#[test]
fn unanswered_parts_go_again_in_order_over_the_next_channel() {
    let mut rig = Rig::new(4);
    for operation in 1..=3 {
        rig.push(operation, &[part(1, 0)]);
    }
    let sent = rig.sent();
    assert_eq!(rig.results(0, &[done(&sent[0].blocks[0])], &[]).len(), 1);
    rig.push(4, &[part(1, 0)]);
    rig.engine.server_down(Rank(0));
    assert_eq!(rig.flush(), Happened::default());
    rig.push(5, &[part(1, 0)]);
    rig.up(0, 4);
    assert_eq!(rig.sent()[0].operations(), [(1, 2), (1, 3), (1, 4), (1, 5)]);
}

#[test]
fn operations_numbers_and_rounds_stay_and_the_time_left_shrinks() {
    let mut rig = Rig::new(4);
    rig.push(1, &[part(1, 0)]);
    let first = rig.sent()[0].blocks[0];
    rig.engine.server_down(Rank(0));
    rig.now_ms += 1_000;
    rig.up(0, 4);
    assert_eq!(rig.sent()[0].blocks, [Block { timeout_ms: 4_000, ..first }]);
    rig.engine.server_down(Rank(0));
    rig.now_ms += 9_000;
    rig.up(0, 4);
    assert_eq!(rig.sent()[0].blocks[0].timeout_ms, 0);
}

#[test]
fn the_other_servers_are_not_disturbed() {
    let mut rig = Rig::new(4);
    rig.push(1, &[part(1, 0), PartSpec { id: ChunkId::new(1, 1), ..part(1, 1) }]);
    for operation in 1..=6 {
        rig.push(operation, &[part(2, 1)]);
    }
    let sent = rig.sent();
    rig.engine.server_down(Rank(0));
    rig.up(0, 4);
    let again = rig.sent();
    assert_eq!((again.len(), again[0].server), (1, 0));
    let other: Vec<Block> =
        sent.iter().find(|batch| batch.server == 1).expect("sent").blocks.iter().map(done).collect();
    let commands = rig.results(1, &other, &[]);
    assert_eq!(commands.len(), 4, "its answers still count: {commands:?}");
}

#[test]
fn parts_that_waited_to_be_tried_again_go_once() {
    let mut rig = Rig::new(4);
    rig.push(1, &[part(1, 0)]);
    rig.push(2, &[part(1, 0)]);
    let sent = rig.sent();
    let retry: Vec<Block> = sent[0].blocks.iter().map(|block| reply(block, Status::Retry, 0)).collect();
    rig.results(0, &retry[..1], &[]);
    rig.engine.server_down(Rank(0));
    rig.up(0, 4);
    rig.now_ms += 10;
    assert_eq!(rig.sent()[0].operations(), [(1, 1), (1, 2)]);
    assert_eq!(rig.sent(), []);
}

#[test]
fn old_credits_are_gone_with_the_channel() {
    let mut rig = Rig::new(4);
    rig.engine.server_down(Rank(0));
    assert_eq!(rig.engine.server_incarnation(Rank(0)), Incarnation::default());
    rig.up(0, 0);
    rig.push(1, &[part(1, 0)]);
    assert_eq!(rig.flush().sent, []);
}

#[test]
fn what_comes_while_the_channel_is_down_is_ignored() {
    let mut rig = Rig::new(4);
    rig.push(1, &[part(1, 0)]);
    let block = done(&rig.sent()[0].blocks[0]);
    rig.engine.server_down(Rank(0));
    let slot = rig.inbox[0][0];
    assert_eq!(rig.deliver(0, slot, &Rig::header(0), &[block], &[], &[]), []);
    assert!(!rig.engine.notified(Rank(0), slot, &mut Commands::default()));
    assert_eq!(rig.engine.in_flight(), 1);
}

#[test]
fn priorities_hold_after_a_replay() {
    let mut rig = Rig::new(4);
    rig.push(1, &[part(1, 0)]);
    rig.submit_as(Submit { priority: 3, ..submit(OpKind::Push, 1) }, &[part(2, 0)]);
    rig.sent();
    rig.engine.server_down(Rank(0));
    rig.up(0, 4);
    assert_eq!(rig.sent()[0].operations(), [(2, 1), (1, 1)]);
}
