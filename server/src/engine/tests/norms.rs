//! Tensors whose chunks finish a round together, because their rule needs norms over all of them.

use super::*;
use crate::engine::lane::waiting::Found;
use proto_common::optimizer::Lamb;

/// Workers on a tensor of two chunks, of key 1, with a plain one of key 2 behind it.
fn rig(workers: u32) -> Rig {
    let mut rig = Rig::new(config(workers));
    rig.engine = LaneEngine::new(rig.config);
    let lamb = Optimizer::mean(Lamb::default(), 0.1);
    let chunk = |index| ChunkSpec { id: ChunkId::new(1, index), optimizer: lamb, ..spec(1) };
    rig.engine.assign(Epoch { term: 1, counter: 1 }, &[chunk(0), chunk(1), spec(2)]);
    (0..workers).for_each(|rank| rig.connect(rank));
    rig
}

/// A block of chunk `index`, of key 1.
fn of(index: u32, block: Block) -> Block {
    Block { id: ChunkId::new(1, index), ..block }
}

#[test]
fn the_last_chunk_finishes_all_of_them_with_the_norms_first() {
    let mut rig = rig(2);
    rig.send(0, &[of(0, push_pull(1, 1)), of(1, push(1, 1))]);
    let commands = rig.send(1, &[of(0, push(1, 1))]);
    let last = rig.at();
    assert_eq!(
        commands,
        [Command::Prepare { chunk: 0, round: 1, last: Some(onto_sum(last)), old: 0, contributors: 2 }]
    );
    assert_eq!(rig.flush(), [], "its norms are not the tensor's");
    let commands = rig.send(1, &[of(1, push(1, 1))]);
    let finish = |chunk| Command::Finish { chunk, round: 1, last: None, old: 0, into: 0, contributors: 2 };
    let prepare =
        Command::Prepare { chunk: 1, round: 1, last: Some(onto_sum(rig.at())), old: 0, contributors: 2 };
    assert_eq!(commands, [prepare, Command::Norms { chunks: 0..2 }, finish(0), finish(1), land(0, 0)]);
    let mut answers = rig.flush();
    answers.sort_by_key(|answer| answer.rank);
    assert_eq!(answers, [done(0, 1, 1), done(0, 1, 1), done(1, 1, 1), done(1, 1, 1)]);
}

#[test]
fn contributions_to_the_next_round_wait_for_the_tensor() {
    let mut rig = rig(1);
    rig.send_wanting(0, 4, &[of(0, push(1, 1))]);
    rig.flush();
    let commands = rig.send_wanting(0, 4, &[of(0, push(2, 2)), of(1, push(1, 1)), of(1, push(2, 2))]);
    let kinds: Vec<&str> = commands
        .iter()
        .map(|command| match command {
            Command::Spill { .. } => "spill",
            Command::Prepare { chunk: 0, .. } => "prepare 0",
            Command::Prepare { .. } => "prepare 1",
            Command::Norms { .. } => "norms",
            Command::Finish { round: 1, .. } => "finish 1",
            Command::Finish { round: 2, .. } => "finish 2",
            other => panic!("{other:?}"),
        })
        .collect();
    let first = ["spill", "prepare 1", "norms", "finish 1", "finish 1"];
    let second = ["prepare 0", "prepare 1", "norms", "finish 2", "finish 2"];
    assert_eq!(kinds, [&first[..], &second[..]].concat());
    let answers = rig.flush();
    assert_eq!(answers.iter().filter(|answer| answer.status == Status::Done).count(), 4);
}

#[test]
fn a_chunk_that_is_still_read_finishes_later_and_the_others_do_not_wait() {
    let mut rig = rig(1);
    // Both buffers of chunk 0 are read.
    for round in 1..3 {
        rig.send_wanting(0, 4, &[of(0, push_pull(round, round)), of(1, push(round, round))]);
        rig.flush();
    }
    let commands = rig.send_wanting(0, 4, &[of(0, push(3, 3)), of(1, push(3, 3))]);
    let finished = |command: &Command| match command {
        Command::Finish { chunk, .. } => Some(*chunk),
        _ => None,
    };
    assert_eq!(commands.iter().filter_map(finished).collect::<Vec<_>>(), [1]);
    assert_eq!(rig.flush(), [done(0, 3, 3)]);
    let commands = rig.landed(0, 0);
    assert!(
        matches!(commands[..], [Command::Finish { chunk: 0, round: 3, old: 1, into: 0, .. }]),
        "{commands:?}"
    );
    assert_eq!(rig.flush(), [done(0, 3, 3)]);
}

#[test]
fn a_deadline_names_who_has_not_contributed_to_the_other_chunks() {
    let mut rig = rig(2);
    rig.send(0, &[of(0, push(1, 1)), of(1, push(1, 1))]);
    rig.send(1, &[of(0, push(1, 1))]);
    let missing = |rank| Answer { missing: vec![1], ..answer(rank, 1, Status::DeadlineWaiting, 0) };
    let mut answers = rig.tick(1_000);
    answers.sort_by_key(|answer| answer.rank);
    assert_eq!(answers, [missing(0), missing(0), missing(1)]);
}

#[test]
fn an_initial_value_comes_too_late_for_a_chunk_that_waits_for_norms() {
    let mut rig = rig(1);
    rig.send_wanting(0, 4, &[of(0, push(1, 1))]);
    assert_eq!(rig.send(0, &[of(0, init(2, BYTES))]), [], "its step is made, of the weights as they are");
    assert_eq!(rig.flush(), [answer(0, 2, Status::Refused, 0)]);
}

#[test]
fn who_is_missing_is_found_once_for_all_who_wait_for_a_tensor() {
    let mut rig = rig(2);
    rig.send(0, &[of(0, push(1, 1)), of(1, push(1, 1))]);
    rig.send(1, &[of(0, push(1, 1))]);
    let mut found = Found::default();
    let waiters: Vec<_> = rig.engine.chunk_mut(0).waiters.iter().copied().collect();
    let missing = (Status::DeadlineWaiting, vec![Rank(1)]);
    assert_eq!(rig.engine.waits_for(0, &waiters[0], &mut found), missing);
    assert_eq!(found.tensor, Some((0..2, missing)));
    let known = (Status::DeadlineReading, vec![Rank(0)]);
    found.tensor = Some((0..2, known.clone()));
    assert_eq!(rig.engine.waits_for(0, &waiters[1], &mut found), known, "nobody has looked again");
}

#[test]
fn a_deadline_names_who_reads_another_chunk_that_is_not_published() {
    let mut rig = rig(1);
    // Both buffers of chunk 0 are read, so that its third round is not published.
    for round in 1..3 {
        rig.send_wanting(0, 4, &[of(0, push_pull(round, round)), of(1, push(round, round))]);
        rig.flush();
    }
    rig.send_wanting(0, 4, &[of(0, push(3, 3)), of(1, push(3, 3))]);
    rig.flush();
    rig.send_wanting(0, 4, &[of(1, push(4, 4))]);
    let reading = |operation, version| Answer {
        missing: vec![0],
        ..answer(0, operation, Status::DeadlineReading, version)
    };
    assert_eq!(rig.tick(1_000), [reading(3, 2), reading(4, 3)]);
}
