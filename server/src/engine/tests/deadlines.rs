//! Deadlines: an operation is answered in time even if its round is not complete, and the answer names the
//! ranks that are missing.

use super::*;

fn late(rank: u32, operation: u64, version: u64, missing: &[u32]) -> Answer {
    Answer { missing: missing.to_vec(), ..answer(rank, operation, Status::DeadlineWaiting, version) }
}

#[test]
fn both_sides_of_the_deadline_and_the_missing_by_rank() {
    let mut rig = Rig::new(config(4));
    rig.send(0, &[push_pull(1, 1)]);
    rig.send(3, &[push(1, 1)]); // Spilled, and yet not missing.
    assert_eq!(rig.tick(999), []);
    assert_eq!(rig.tick(1), [late(0, 1, 0, &[1, 2]), late(3, 1, 0, &[1, 2])]);
    assert_eq!(rig.tick(10_000), [], "answered once");
    assert_eq!(rig.engine.stats().deadlines, 2);
}

#[test]
fn the_contribution_counts_although_its_operation_was_late() {
    let mut rig = Rig::new(config(2));
    rig.send(0, &[push_pull(1, 1)]);
    assert_eq!(rig.tick(1_000), [late(0, 1, 0, &[1])]);
    let commands = rig.send(1, &[push(1, 1)]);
    assert!(matches!(commands[..], [Command::Finish { .. }]), "and nothing lands any more: {commands:?}");
    assert_eq!(rig.flush(), [done(1, 1, 1)]);
}

#[test]
fn an_operation_that_was_late_may_be_sent_again_and_counts_once() {
    let mut rig = Rig::new(config(2));
    rig.send(0, &[push_pull(1, 1)]);
    assert_eq!(rig.tick(1_000), [late(0, 1, 0, &[1])]);
    assert_eq!(rig.send(0, &[push_pull(1, 1)]), [], "it was reduced");
    let commands = rig.send(1, &[push(1, 1)]);
    assert!(
        matches!(commands[..], [Command::Finish { contributors: 2, .. }, Command::Land { .. }]),
        "{commands:?}"
    );
    assert_eq!(rig.flush(), [done(0, 1, 1), done(1, 1, 1)]);
    rig.landed(0, 1);
    // Its round may have ended meanwhile.
    rig.send(0, &[push_pull(2, 2)]);
    assert_eq!(rig.tick(1_000), [late(0, 2, 1, &[1])]);
    assert!(matches!(rig.send(1, &[push(2, 2)])[..], [Command::Finish { contributors: 2, .. }]));
    assert_eq!(rig.flush(), [done(1, 2, 2)]);
    assert_eq!(rig.send(0, &[push_pull(2, 2)]), [land(0, 1)]);
    assert_eq!(rig.flush(), [done(0, 2, 2)]);
}

#[test]
fn a_timeout_of_zero_is_answered_at_the_next_tick() {
    let mut rig = Rig::new(config(2));
    rig.send(0, &[Block { timeout_ms: 0, ..pull(1, 1) }]);
    assert_eq!(rig.tick(0), [late(0, 1, 0, &[0, 1])]);
}

#[test]
fn init_waits_for_rank_zero() {
    let mut rig = Rig::new(config(3));
    rig.send(1, &[init(1, 0)]);
    assert_eq!(rig.tick(1_000), [late(1, 1, 0, &[0])]);
}

#[test]
fn the_list_of_the_missing_is_bounded() {
    let mut rig = Rig::new(EngineConfig { inbox_slots: 64, ..config(40) });
    rig.send(39, &[push(1, 1)]);
    assert_eq!(rig.tick(1_000), [late(39, 1, 0, &(0..16).collect::<Vec<_>>())]);
}

#[test]
fn the_oldest_operation_is_told_with_who_is_missing() {
    let mut rig = Rig::new(config(3));
    assert_eq!(rig.engine.oldest(0), None);
    rig.now_ms = 10;
    rig.send(1, &[push(1, 1)]);
    rig.now_ms = 20;
    rig.send(0, &[push(1, 1)]);
    let oldest = rig.engine.oldest(50).expect("two wait");
    assert_eq!((oldest.rank, oldest.round, oldest.waited_ms), (Rank(1), 1, 40));
    assert_eq!((oldest.cause, oldest.on), (WaitCause::Contributions, vec![Rank(2)]));
}

#[test]
fn a_reader_that_holds_up_a_complete_round_is_named() {
    let mut rig = Rig::new(config(2));
    rig.send(1, &[pull(1, 0)]); // Reads buffer 0, and goes on.
    rig.send(0, &[push(1, 1)]);
    rig.send_wanting(1, 4, &[push_pull(2, 1)]); // Publishes into buffer 1, and reads that, too.
    rig.flush();
    rig.send(1, &[push(3, 2)]);
    rig.send_wanting(0, 4, &[push(2, 2)]);
    let reading =
        |rank, operation| Answer { missing: vec![1], ..answer(rank, operation, Status::DeadlineReading, 1) };
    let oldest = rig.engine.oldest(0).expect("they wait");
    assert_eq!((oldest.cause, oldest.on), (WaitCause::Readers, vec![Rank(1)]));
    let mut answers = rig.tick(1_000);
    answers.sort_by_key(|answer| answer.rank);
    assert_eq!(answers, [reading(0, 2), reading(1, 3)]);
}
