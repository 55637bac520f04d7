//! What is left of checkpoints that were given up, and how many of these are borne.

use super::checkpoints::{asks, at, cleared, declared, operator, orders, part_of, saved};
use super::*;
use crate::engine::checkpoints::{Clearing, LEFT_MAX};
use proto_common::message::{CheckpointNews, CheckpointOrder, SaveError};

/// A checkpoint that begins by itself, is whole, and is given no manifest. Neither its parts can be removed, nor those before.
fn fails_and_stays(rig: &mut Rig, round: u64) -> Vec<Clearing> {
    let refused = Err("Permission denied".to_owned());
    let begun = rig.say(server(0), ToScheduler::Checkpoint(CheckpointNews::Begun { round }));
    assert_eq!(orders(&begun), [(1, CheckpointOrder::Save { round, now: false })]);
    rig.say(server(0), part_of(round, round));
    let result = Err("Permission denied".into());
    let given_up = cleared(rig.handle(Input::ManifestWritten { round, result }));
    for clearing in cleared(begun).into_iter().chain(given_up.clone()) {
        assert_eq!(rig.handle(Input::ClearedAway { clearing, result: refused.clone() }), []);
    }
    given_up
}

#[test]
fn where_nothing_that_is_given_up_can_be_removed_no_more_is_begun() {
    let mut rig = Rig::running(1, 1);
    declared(&mut rig, 4);
    let left: Vec<Clearing> = (1..=LEFT_MAX as u64).flat_map(|n| fails_and_stays(&mut rig, 5 * n)).collect();
    assert_eq!(left.len(), LEFT_MAX);
    let failed = |rig: &Rig| rig.engine.status(0).checkpoints.failed;
    assert_eq!(failed(&rig), LEFT_MAX as u64);
    // It is said, counted and tried again, and servers write nothing.
    let begun = |round| ToScheduler::Checkpoint(CheckpointNews::Begun { round });
    let commands = rig.say(server(0), begun(100));
    let notes = rig.engine.take_notes();
    let [Note::CheckpointsStopped { round: 100, stopped }] = &notes[..] else { panic!("{notes:?}") };
    assert_eq!((&stopped.left[..], &stopped.reason[..]), (&[5, 10, 15][..], "Permission denied"));
    assert_eq!(orders(&commands), [(1, CheckpointOrder::Drop { round: 100 })]);
    assert_eq!(cleared(commands), left);
    let again = rig.say(server(0), begun(100));
    assert_eq!((rig.engine.take_notes(), cleared(again)), (vec![], vec![]), "said, and under way");
    assert_eq!(failed(&rig), LEFT_MAX as u64 + 1);
    // A server that is late says an earlier one.
    let late = rig.say(server(0), begun(95));
    assert_eq!(orders(&late), [(1, CheckpointOrder::Drop { round: 95 })]);
    assert_eq!((rig.engine.take_notes(), failed(&rig)), (vec![], LEFT_MAX as u64 + 1));
    // Whoever asks is told.
    for commands in [asks(&mut rig, worker(0), 7, 101), {
        operator(&mut rig, 1_000_000);
        rig.say(server(0), at(101))
    }] {
        let [(_, Err(SaveError::Failed { reason, .. }))] = &saved(&commands)[..] else {
            panic!("{commands:?}")
        };
        assert!(reason.contains("abandoned rounds [5, 10, 15] cannot be removed"), "{reason}");
        assert_eq!(orders(&commands), []);
    }
    let status = rig.engine.status(0).checkpoints;
    assert!(status.stopped.is_some_and(|why| why.contains("one user")), "{:?}", status.failure);
    // One of them is gone, and there is room for another one.
    rig.handle(Input::ClearedAway { clearing: left[1].clone(), result: Ok(()) });
    assert_eq!(rig.engine.status(0).checkpoints.stopped, None);
    let commands = rig.say(server(0), begun(110));
    assert_eq!(orders(&commands), [(1, CheckpointOrder::Save { round: 110, now: false })]);
}

#[test]
fn what_cannot_be_removed_at_first_counts_until_it_is() {
    let mut rig = Rig::running(1, 1);
    declared(&mut rig, 4);
    let left = fails_and_stays(&mut rig, 5);
    let begun = ToScheduler::Checkpoint(CheckpointNews::Begun { round: 10 });
    let cleared_now = cleared(rig.say(server(0), begun));
    assert_eq!(cleared_now[..1], left, "tried again, and the next one begins");
    rig.handle(Input::ClearedAway { clearing: left[0].clone(), result: Ok(()) });
    let failed = CheckpointNews::Failed { round: 10, reason: "no room".into() };
    rig.say(server(0), ToScheduler::Checkpoint(failed));
    let begun = ToScheduler::Checkpoint(CheckpointNews::Begun { round: 15 });
    let writing = vec![15];
    assert_eq!(
        cleared(rig.say(server(0), begun)),
        [Clearing::Before { round: 15, writing, restore: None }],
        "of one without parts nothing is left"
    );
}
