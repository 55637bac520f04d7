//! Exactly once: duplicates, replays over a new channel, gaps.

use super::*;

#[test]
fn the_same_batch_again_is_ignored() {
    let mut rig = Rig::new(config(2));
    let slot = rig.workers[0].credits[0];
    rig.send(0, &[push(1, 1)]);
    let header = rig.header(0);
    assert_eq!(rig.deliver(0, slot, &header, &[push(1, 1)], &[]), []);
    assert_eq!(rig.engine.stats().duplicates, 1);
    assert_eq!(rig.engine.stats().contributions, 1);
}

#[test]
fn a_notice_for_an_old_grant_is_recognised_before_the_slot_is_read() {
    let mut rig = Rig::new(config(2));
    let slot = rig.workers[0].credits[0];
    let mut out = Commands::default();
    assert!(rig.engine.notified(Rank(0), slot, &mut out));
    rig.send(0, &[push(1, 1)]);
    assert!(!rig.engine.notified(Rank(0), slot, &mut out), "its slot may hold another worker's bytes by now");
    assert_eq!(out.list, []);
    assert!(!rig.engine.notified(Rank(0), SlotGrant { slot: slot.slot, generation: 99 }, &mut out));
    assert!(expelled(&out.list).contains("never granted"));
}

#[test]
fn a_replayed_contribution_is_not_applied_again_and_gets_the_current_version() {
    let mut rig = Rig::new(config(2));
    rig.send(0, &[push_pull(1, 1)]);
    rig.down(Rank(0)); // The result is lost with the channel.
    rig.send(1, &[push(1, 1)]);
    rig.connect(0);
    let commands = rig.send(0, &[push_pull(1, 1)]);
    assert_eq!(commands, [land(0, 0)], "it lands again and reduces nothing");
    assert_eq!(rig.flush(), [done(1, 1, 1), done(0, 1, 1)]);
    assert_eq!((rig.engine.stats().contributions, rig.engine.stats().duplicates), (2, 1));
}

#[test]
fn a_replay_within_the_round_waits_once_and_is_answered_once() {
    let mut rig = Rig::new(config(2));
    rig.send(0, &[push(1, 1)]);
    rig.down(Rank(0));
    rig.connect(0);
    assert_eq!(rig.send(0, &[push(1, 1)]), []);
    rig.send(1, &[push(1, 1)]);
    let answers = rig.flush();
    assert_eq!(answers.iter().filter(|answer| answer.rank == 0).count(), 1);
    assert_eq!(rig.version(), 1);
}

#[test]
fn a_spilled_contribution_is_held_once_however_often_it_comes() {
    let mut rig = Rig::new(config(3));
    rig.send(2, &[push(1, 1)]);
    rig.down(Rank(2));
    rig.connect(2);
    assert_eq!(rig.send(2, &[push(1, 1)]), []);
    assert_eq!(rig.engine.spills().0, 1);
}

#[test]
fn a_gap_is_to_be_tried_again_and_takes_nothing() {
    let mut rig = Rig::new(config(2));
    assert_eq!(rig.send(0, &[push(2, 2)]), []);
    assert_eq!(rig.flush(), [answer(0, 2, Status::Retry, 2)], "a gap is nobody else's");
    assert_eq!(rig.engine.spills().0, 0);
    rig.send(0, &[push(1, 1)]);
    let commands = rig.send(0, &[push(2, 2)]);
    assert_eq!(commands, [spill(rig.at(), 0)]);
}

#[test]
fn without_spill_blocks_the_early_ones_come_again() {
    let mut rig = Rig::new(EngineConfig { spill_blocks: 1, ..config(4) });
    rig.send(2, &[push(1, 1)]);
    assert_eq!(rig.send(3, &[push(1, 1), push(2, 2)]), []);
    let retry = |rank, operation, missing: &[u32]| Answer {
        missing: missing.to_vec(),
        ..answer(rank, operation, Status::Retry, operation)
    };
    // Rank 2 has contributed, and whether 3 has tried does not matter to those whose turn it is.
    assert_eq!(
        rig.flush(),
        [retry(3, 1, &[0, 1]), retry(3, 2, &[])],
        "what follows a retried operation is a gap"
    );
    rig.send(1, &[push(1, 1)]);
    rig.send(3, &[push(1, 1)]);
    assert_eq!(rig.flush(), [retry(3, 1, &[0])]);
    rig.send(0, &[push(1, 1)]);
    assert!(matches!(rig.send(3, &[push(1, 1)])[..], [Command::Finish { contributors: 4, .. }]));
}

#[test]
fn too_many_rounds_ahead_is_to_be_tried_again() {
    let mut rig = Rig::new(config(2));
    let blocks: Vec<Block> = (1..=6).map(|number| push(number, number)).collect();
    assert_eq!(rig.send(0, &blocks).len(), 5, "one reduced, four kept");
    assert_eq!(rig.flush(), [Answer { missing: vec![1], ..answer(0, 6, Status::Retry, 6) }]);
}

#[test]
fn without_rank_order_everyone_who_is_absent_is_awaited_the_first_few_named() {
    let base = EngineConfig { deterministic: false, inbox_slots: 64, spill_blocks: 1, ..config(40) };
    let mut rig = Rig::new(base);
    rig.send(3, &[push(1, 1), push(2, 2), push(3, 3)]);
    let missing: Vec<u32> = (0..17).filter(|rank| *rank != 3).collect();
    assert_eq!(rig.flush(), [Answer { missing, ..answer(3, 3, Status::Retry, 3) }]);
}

#[test]
fn a_round_that_readers_hold_up_awaits_no_contribution() {
    let mut rig = Rig::new(EngineConfig { spill_blocks: 1, ..config(2) });
    rig.send(1, &[pull(1, 0)]); // Reads buffer 0, and goes on.
    rig.send(0, &[push(1, 1)]);
    rig.send_wanting(1, 4, &[push_pull(2, 1)]); // Publishes into buffer 1, and reads that, too.
    rig.flush();
    rig.send(1, &[push(3, 2), push(4, 3), push(5, 4)]);
    assert_eq!(rig.flush(), [Answer { missing: vec![0], ..answer(1, 5, Status::Retry, 4) }]);
    rig.send_wanting(0, 4, &[push(2, 2), push(3, 3)]);
    assert_eq!(rig.flush(), [answer(0, 3, Status::Retry, 3)], "complete, and both buffers are read");
}

#[test]
fn a_dead_workers_contribution_stays_and_its_waiters_go() {
    let mut rig = Rig::new(config(2));
    rig.send(0, &[push_pull(1, 1)]);
    rig.down(Rank(0));
    let commands = rig.send(1, &[push(1, 1)]);
    assert!(
        matches!(commands[..], [Command::Finish { contributors: 2, .. }]),
        "no Land for the dead: {commands:?}"
    );
    assert_eq!(rig.flush(), [done(1, 1, 1)]);
    assert_eq!(rig.engine.oldest(0), None);
}

#[test]
fn what_comes_from_a_worker_without_a_channel_is_ignored() {
    let mut rig = Rig::new(config(2));
    rig.down(Rank(0));
    assert_eq!(rig.send(0, &[push(1, 1)]), []);
    assert_eq!(rig.notice(0, Notice::Want(1)), []);
    assert_eq!(rig.engine.peer_incarnation(Rank(0)), Incarnation::default());
    let mut out = Commands::default();
    assert_eq!(
        rig.engine.peer_up(Rank(2), life(2), &[], false, &mut out),
        [],
        "a rank that the job does not have"
    );
}
