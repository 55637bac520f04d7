//! When a checkpoint is complete, and what keeps it from it.

use super::losing::{come_again, known_in, next_after, rig_of};
use super::*;
use crate::engine::checkpoints::{Clearing, ENDED_KEPT, OPERATORS_MAX, STALLED_MS_MAX, Unusable};
use proto_common::error::ExitCode;
use proto_common::ids::{ChunkId, MemberId};
use proto_common::limits::{MANIFEST_MS_MAX, PROTOCOL_VERSION};
use proto_common::message::{CheckpointNews, CheckpointOrder, Cover, PartWritten, SaveError, Waits};

pub(super) fn declared(rig: &mut Rig, chunks: u64) -> Vec<Key> {
    let spec = TensorSpec::f32(1, chunks * rig.engine.config.shape.chunk_bytes / 4, Optimizer::sum());
    let (tensors, timeout_ms) = (vec![spec], 1000);
    let commands = rig.say(worker(0), ToScheduler::Declare { request: 1, tensors, timeout_ms });
    assert!(matches!(&commands[0], Command::Send { .. }), "{commands:?}");
    let epoch = rig.engine.epoch();
    for rank in 0..rig.engine.config.shape.servers {
        rig.say(server(rank), ToScheduler::Assigned { epoch, error: None });
    }
    vec![Key(1)]
}

fn part(lane: u16, first: u32, chunks: u32, version: u64) -> ToScheduler {
    let covers = vec![Cover { first: ChunkId::new(1, first), chunks, version }];
    let file = format!("part-{lane}-{first}");
    ToScheduler::Checkpoint(CheckpointNews::Part(PartWritten {
        round: 5,
        lane,
        file,
        covers,
        ..PartWritten::default()
    }))
}

fn ask(request: u64) -> ToScheduler {
    ToScheduler::SaveCheckpoint { request, round: 5, timeout_ms: 100 }
}

pub(super) fn saved(commands: &[Command]) -> Vec<(u64, Result<String, SaveError>)> {
    let answers = commands.iter().filter_map(|command| match command {
        Command::Send { message, .. } => match &**message {
            FromScheduler::CheckpointSaved { request, result } => Some((*request, result.clone())),
            _ => None,
        },
        _ => None,
    });
    answers.collect()
}

pub(super) fn orders(commands: &[Command]) -> Vec<(usize, CheckpointOrder)> {
    let orders = commands.iter().filter_map(|command| match command {
        Command::Send { to, message } => match &**message {
            FromScheduler::Checkpoint(order) => Some((to.len(), order.clone())),
            _ => None,
        },
        _ => None,
    });
    orders.collect()
}

#[test]
fn a_checkpoint_is_complete_when_all_parts_cover_all_chunks_once() {
    let mut rig = Rig::running(2, 2);
    declared(&mut rig, 4);
    assert_eq!(orders(&rig.say(worker(0), ask(7))), [(2, CheckpointOrder::Save { round: 5, now: true })]);
    assert!(rig.say(worker(1), ask(8)).is_empty(), "the same one");
    assert!(rig.say(server(0), part(0, 0, 2, 5)).is_empty());
    let commands = rig.say(server(1), part(0, 2, 2, 5));
    let [Command::WriteManifest(completed)] = &commands[..] else { panic!("{commands:?}") };
    assert_eq!((completed.round, completed.tensors[0].1, completed.parts.len()), (5, 5, 2));
    assert!(
        completed.parts.iter().all(|part| !part.covers.is_empty()),
        "the manifest says what each part has"
    );
    assert!(rig.say(server(1), part(0, 2, 2, 5)).is_empty(), "said again");
    // Of an earlier try, and on its way since before.
    for late in [
        CheckpointNews::Failed { round: 5, reason: "late".into() },
        CheckpointNews::Past { round: 5, newest: 6 },
    ] {
        assert_eq!(rig.say(server(0), ToScheduler::Checkpoint(late)), []);
    }
    let written = Input::ManifestWritten { round: 5, result: Ok("round-5".into()) };
    let commands = rig.engine.handle(0, written);
    assert_eq!(saved(&commands), [(7, Ok("round-5".into())), (8, Ok("round-5".into()))]);
    assert_eq!(rig.engine.last_checkpoint.as_deref(), Some("round-5"));
}

#[test]
fn gaps_doubles_and_torn_tensors_fail_it() {
    for (second, word) in [
        (part(0, 3, 1, 5), "once each"),
        (part(0, 1, 3, 5), "once each"),
        (part(0, 2, 2, 4), "rounds 4 to 5"),
    ] {
        let mut rig = Rig::running(2, 1);
        declared(&mut rig, 4);
        rig.say(worker(0), ask(7));
        rig.say(server(0), part(0, 0, 2, 5));
        let commands = rig.say(server(1), second);
        assert_eq!(orders(&commands), [(2, CheckpointOrder::Drop { round: 5 })]);
        let [(7, Err(error))] = &saved(&commands)[..] else { panic!("{commands:?}") };
        assert!(error.to_string().contains(word), "{error}");
    }
}

#[test]
fn what_servers_begin_reaches_all_of_them_once() {
    let mut rig = Rig::running(3, 1);
    let say = |rig: &mut Rig, from, news| orders(&rig.say(server(from), ToScheduler::Checkpoint(news)));
    let begun = CheckpointNews::Begun { round: 5 };
    assert_eq!(say(&mut rig, 1, begun.clone()), [(3, CheckpointOrder::Save { round: 5, now: false })]);
    assert!(say(&mut rig, 2, begun).is_empty());
    assert_eq!(
        say(&mut rig, 2, CheckpointNews::Passed { round: 5 }),
        [(3, CheckpointOrder::Passed { round: 5 })]
    );
    assert!(say(&mut rig, 0, CheckpointNews::Passed { round: 5 }).is_empty());
    assert!(say(&mut rig, 0, CheckpointNews::Passed { round: 9 }).is_empty(), "of none");
    let failed = CheckpointNews::Failed { round: 5, reason: "no room".into() };
    assert_eq!(say(&mut rig, 0, failed.clone()), [(3, CheckpointOrder::Drop { round: 5 })]);
    assert!(say(&mut rig, 0, failed).is_empty());
    assert_eq!(say(&mut rig, 0, CheckpointNews::Begun { round: 10 }).len(), 1);
    let skipped = say(&mut rig, 1, CheckpointNews::Begun { round: 11 });
    assert_eq!(skipped, [(3, CheckpointOrder::Drop { round: 11 })], "one at a time");
    say(&mut rig, 2, CheckpointNews::Begun { round: 11 });
    assert_eq!(rig.engine.status(0).checkpoints.skipped, 1, "whoever says it");
    assert_eq!(
        orders(&rig.say(worker(0), ask(1))),
        [(3, CheckpointOrder::Drop { round: 10 }), (3, CheckpointOrder::Save { round: 5, now: true }),]
    );
    let status = rig.engine.status(0).checkpoints;
    assert_eq!((status.writing, status.parts, status.parts_expected, status.failed), (Some(5), 0, 3, 2));
    assert!(status.failure.is_some_and(|failure| failure.contains("round 10")));
}

#[test]
fn one_that_is_over_is_not_begun_again_by_a_word_that_was_on_its_way() {
    let mut rig = Rig::running(2, 1);
    let say = |rig: &mut Rig, from, news| orders(&rig.say(server(from), ToScheduler::Checkpoint(news)));
    say(&mut rig, 0, CheckpointNews::Begun { round: 5 });
    say(&mut rig, 0, CheckpointNews::Failed { round: 5, reason: "no room".into() });
    let again = say(&mut rig, 1, CheckpointNews::Begun { round: 5 });
    assert_eq!(again, [(2, CheckpointOrder::Drop { round: 5 })], "server 0 would not write it");
    let next = say(&mut rig, 1, CheckpointNews::Begun { round: 10 });
    assert_eq!(next, [(2, CheckpointOrder::Save { round: 10, now: false })], "and the next one is tried");
    for round in 11..=10 + 2 * ENDED_KEPT as u64 {
        say(&mut rig, 0, CheckpointNews::Failed { round: round - 1, reason: "no room".into() });
        say(&mut rig, 0, CheckpointNews::Begun { round });
    }
    assert_eq!(rig.engine.checkpoints.remembers(), ENDED_KEPT);
}

#[test]
fn who_asks_for_one_that_has_begun_by_itself_does_not_wait_for_what_takes_no_part() {
    let mut rig = Rig::running(2, 1);
    rig.say(server(1), ToScheduler::Checkpoint(CheckpointNews::Begun { round: 5 }));
    assert_eq!(orders(&rig.say(worker(0), ask(7))), [(2, CheckpointOrder::Passed { round: 5 })]);
    assert!(rig.say(worker(0), ask(8)).is_empty(), "told once");
}

#[test]
fn whoever_asks_has_a_deadline_that_names_what_is_missing() {
    let mut rig = Rig::running(2, 1);
    rig.say(worker(0), ask(7));
    rig.say(server(0), part(0, 0, 2, 5));
    let commands = rig.engine.handle(rig.now_ms + 99, Input::Tick);
    assert!(saved(&commands).is_empty());
    let commands = rig.engine.handle(rig.now_ms + 100, Input::Tick);
    let [(7, Err(SaveError::Deadline { missing: 1, parts: 2, .. }))] = &saved(&commands)[..] else {
        panic!("{commands:?}")
    };
    let mut without = Rig::running(1, 1);
    without.engine.checkpoints = Checkpoints::new(false);
    assert_eq!(saved(&without.say(worker(0), ask(1))), [(1, Err(SaveError::NoPlace))]);
}

const OPERATOR: ConnectionId = ConnectionId(900);

pub(super) fn operator(rig: &mut Rig, timeout_ms: u64) -> Vec<Command> {
    operator_on(rig, OPERATOR.0, timeout_ms)
}

fn operator_on(rig: &mut Rig, connection: u64, timeout_ms: u64) -> Vec<Command> {
    rig.say_on(connection, ToScheduler::OrderCheckpoint { protocol: PROTOCOL_VERSION, timeout_ms })
}

fn closed(commands: &[Command]) -> Vec<u64> {
    let closed = commands.iter().filter_map(|command| match command {
        Command::Close { connection } => Some(connection.0),
        _ => None,
    });
    closed.collect()
}

pub(super) fn at(newest: u64) -> ToScheduler {
    ToScheduler::Checkpoint(CheckpointNews::At { lane: 0, newest, waits: None })
}

#[test]
fn an_operator_has_a_round_that_no_server_has_reached() {
    let mut rig = Rig::running(2, 1);
    declared(&mut rig, 4);
    assert_eq!(orders(&operator(&mut rig, 1000)), [(2, CheckpointOrder::Where)]);
    assert!(operator_on(&mut rig, 901, 1000).is_empty(), "asked already");
    assert!(orders(&rig.say(server(0), at(3))).is_empty());
    let begun = orders(&rig.say(server(1), at(2)));
    assert_eq!(begun, [(2, CheckpointOrder::Save { round: 5, now: false })]);
    // A lane is past it: another one is named, further ahead.
    let past = ToScheduler::Checkpoint(CheckpointNews::Past { round: 5, newest: 6 });
    let commands = rig.say(server(1), past.clone());
    assert_eq!(orders(&commands), [(2, CheckpointOrder::Drop { round: 5 }), (2, CheckpointOrder::Where)]);
    assert!(saved(&commands).is_empty(), "it is not over for who asked");
    assert!(rig.say(server(0), past).is_empty());
    rig.say(server(0), at(7));
    let begun = orders(&rig.say(server(1), at(6)));
    assert_eq!(begun, [(2, CheckpointOrder::Save { round: 11, now: false })]);
    let part = |first, chunks| {
        let ToScheduler::Checkpoint(CheckpointNews::Part(part)) = part(0, first, chunks, 11) else {
            unreachable!()
        };
        ToScheduler::Checkpoint(CheckpointNews::Part(PartWritten { round: 11, ..part }))
    };
    rig.say(server(0), part(0, 2));
    let commands = rig.say(server(1), part(2, 2));
    assert!(matches!(&commands[..], [Command::WriteManifest(_)]), "{commands:?}");
    let written = Input::ManifestWritten { round: 11, result: Ok("round-11".into()) };
    let commands = rig.engine.handle(0, written);
    assert_eq!(saved(&commands), [(0, Ok("round-11".into())), (0, Ok("round-11".into()))]);
    assert_eq!(closed(&commands), [OPERATOR.0, 901], "their connections have served");
}

#[test]
fn an_operator_keeps_its_connection_until_it_is_answered_and_no_longer() {
    let mut rig = Rig::running(2, 1);
    rig.engine.config.shape.silence_ms = 10_000;
    assert_eq!(rig.engine.standing(OPERATOR), Standing::Stranger);
    assert!(closed(&operator(&mut rig, 100)).is_empty());
    assert_eq!(rig.engine.standing(OPERATOR), Standing::Waiting);
    assert!(rig.engine.next_tick_ms(rig.now_ms + 99) <= rig.now_ms + 100, "there is a deadline");
    let commands = rig.engine.handle(rig.now_ms + 100, Input::Tick);
    assert_eq!((saved(&commands).len(), closed(&commands)), (1, vec![OPERATOR.0]));
    assert_eq!(rig.engine.standing(OPERATOR), Standing::Stranger);
    // It says one thing.
    operator_on(&mut rig, 901, 100);
    let commands = operator_on(&mut rig, 901, 100);
    assert!(matches!(only(&commands), FromScheduler::Refused(_)), "{commands:?}");
    assert_eq!(closed(&commands), [901]);
    assert!(saved(&rig.engine.handle(rig.now_ms + 200, Input::Tick)).is_empty(), "nobody waits any more");
    let mut without = Rig::running(1, 1);
    without.engine.checkpoints = Checkpoints::new(false);
    let commands = operator(&mut without, 100);
    assert_eq!((saved(&commands), closed(&commands)), (vec![(0, Err(SaveError::NoPlace))], vec![OPERATOR.0]));
    let commands = rig.say_on(902, ToScheduler::Identify);
    assert_eq!(closed(&commands), [902], "any other question is answered once, too");
}

#[test]
fn operators_that_wait_leave_places_to_members() {
    let mut rig = Rig::running(2, 1);
    let most = OPERATORS_MAX as u64;
    for connection in 900..900 + most {
        assert!(saved(&operator_on(&mut rig, connection, 100)).is_empty());
    }
    let commands = operator_on(&mut rig, 900 + most, 100);
    let [(0, Err(error))] = &saved(&commands)[..] else { panic!("{commands:?}") };
    assert!(error.to_string().contains("too many"), "{error}");
    assert_eq!(closed(&commands), [900 + most]);
    rig.handle(Input::Closed { connection: OPERATOR, fault: None });
    assert!(saved(&operator_on(&mut rig, 901 + most, 100)).is_empty(), "one has gone");
}

#[test]
fn an_operator_waits_for_another_checkpoint_and_has_a_deadline() {
    let mut rig = Rig::running(2, 1);
    rig.engine.config.shape.silence_ms = 10_000;
    declared(&mut rig, 4);
    rig.say(server(0), ToScheduler::Checkpoint(CheckpointNews::Begun { round: 5 }));
    assert!(operator(&mut rig, 100).is_empty(), "one at a time");
    let commands = rig.engine.handle(rig.now_ms + 100, Input::Tick);
    let [(0, Err(error))] = &saved(&commands)[..] else { panic!("{commands:?}") };
    assert!(error.to_string().contains("round 5 is still being written"), "{error}");
    operator(&mut rig, 100_000);
    let failed = CheckpointNews::Failed { round: 5, reason: "no room".into() };
    rig.say(server(0), ToScheduler::Checkpoint(failed));
    let commands = rig.engine.handle(rig.now_ms + 101, Input::Tick);
    assert_eq!(orders(&commands), [(2, CheckpointOrder::Where)], "now it is its turn");
    // Training stands still: the error says where.
    rig.say(server(0), at(3));
    rig.say(server(1), at(3));
    let waits = Waits { round: 5, left: 2, chunk: ChunkId::new(1, 3), version: 3 };
    let waiting = CheckpointNews::At { lane: 0, newest: 3, waits: Some(waits) };
    rig.say(server(1), ToScheduler::Checkpoint(waiting));
    rig.engine.checkpoints.hurry();
    let commands = rig.engine.handle(rig.now_ms, Input::Tick);
    let [(0, Err(error))] = &saved(&commands)[..] else { panic!("{commands:?}") };
    let words = "server 1 lane 0 (2 chunks left; chunk 3 of tensor 1 is at round 3, not yet at round 5)";
    assert!(error.to_string().contains(words), "{error}");
}

#[test]
fn a_job_ends_when_the_checkpoint_under_way_is_complete_or_takes_too_long() {
    for is_written in [true, false] {
        let mut rig = Rig::running(1, 1);
        rig.engine.config.shape.silence_ms = 10 * DRAIN_MS;
        declared(&mut rig, 4);
        rig.say(server(0), ToScheduler::Checkpoint(CheckpointNews::Begun { round: 5 }));
        let commands = rig.say(worker(0), ToScheduler::Goodbye);
        assert_eq!(orders(&commands), [(1, CheckpointOrder::Passed { round: 5 })]);
        assert_eq!(rig.engine.phase, Phase::Running);
        assert!(saved(&operator(&mut rig, 100))[0].1.is_err(), "too late for another one");
        if is_written {
            rig.say(server(0), part(0, 0, 4, 5));
            assert_eq!(rig.engine.phase, Phase::Running);
            rig.engine.handle(rig.now_ms, Input::ManifestWritten { round: 5, result: Ok("round-5".into()) });
        } else {
            rig.engine.handle(rig.now_ms + DRAIN_MS - 1, Input::Tick);
            assert_eq!(rig.engine.phase, Phase::Running);
            rig.engine.handle(rig.now_ms + DRAIN_MS, Input::Tick);
        }
        assert!(matches!(rig.engine.phase, Phase::Ending { outcome: Outcome::Done { .. }, .. }));
    }
}

/// A job whose workers are done, with a checkpoint that lacks its manifest only.
fn lacking_its_manifest() -> Rig {
    let mut rig = Rig::running(1, 1);
    rig.engine.config.shape.silence_ms = 10 * MANIFEST_MS_MAX;
    declared(&mut rig, 4);
    rig.say(server(0), ToScheduler::Checkpoint(CheckpointNews::Begun { round: 5 }));
    rig.say(worker(0), ToScheduler::Goodbye);
    rig.say(server(0), part(0, 0, 4, 5));
    assert_eq!(rig.engine.phase, Phase::Running);
    rig
}

#[test]
fn what_is_not_whole_when_the_scheduler_is_told_to_stop_is_said() {
    let mut rig = lacking_its_manifest();
    rig.handle(Input::Stop { reason: "SIGTERM".into() });
    let notes = rig.engine.take_notes();
    let [Note::CheckpointFailed(why)] = &notes[..] else { panic!("{notes:?}") };
    assert!(why.contains("manifest was not written when the scheduler was told to stop"), "{why}");
    assert_eq!(rig.engine.status(rig.now_ms).checkpoints.failed, 1);
}

#[test]
fn a_manifest_is_waited_for_longer_and_one_that_is_not_written_is_said() {
    for is_written in [true, false] {
        let mut rig = lacking_its_manifest();
        let most_ms = rig.now_ms + DRAIN_MS + MANIFEST_MS_MAX;
        rig.tick_at(rig.now_ms + DRAIN_MS);
        assert!(rig.engine.next_tick_ms(rig.now_ms) > rig.now_ms, "it does not spin");
        rig.engine.handle(most_ms - 1, Input::Tick);
        assert_eq!(rig.engine.phase, Phase::Running);
        let written = Input::ManifestWritten { round: 5, result: Ok("round-5".into()) };
        rig.engine.handle(most_ms, if is_written { written } else { Input::Tick });
        assert!(matches!(rig.engine.phase, Phase::Ending { outcome: Outcome::Done { .. }, .. }));
        let notes = rig.engine.take_notes();
        assert_eq!(notes.iter().any(|note| matches!(note, Note::CheckpointFailed(_))), !is_written);
        let status = rig.engine.status(most_ms).checkpoints;
        assert_eq!((status.completed, status.failed), if is_written { (1, 0) } else { (0, 1) });
        let is_said = status.failure.is_some_and(|failure| failure.contains("manifest was not written"));
        assert_eq!(is_said, !is_written);
    }
}

#[test]
fn what_cannot_be_begun_from_ends_a_fresh_job_and_none_that_runs() {
    let unusable = Unusable { code: ExitCode::BadData, reason: "the manifest is damaged".into() };
    let mut fresh = Rig::new(1, 1);
    fresh.engine.config.checkpoints.unusable = Some(unusable.clone());
    fresh.say(server(0), ToScheduler::Register(register(Role::Server, 1)));
    assert_eq!(fresh.engine.phase, Phase::Assembling);
    fresh.say(worker(0), ToScheduler::Register(register(Role::Worker, 2)));
    let Phase::Ending { outcome, .. } = &fresh.engine.phase else { panic!("{:?}", fresh.engine.phase) };
    assert_eq!(*outcome, Outcome::Unusable(unusable.clone()));

    let before = rig_of(1, WorkerLoss::Stop);
    let resume = known_in(&before);
    let mut follows = next_after(&before);
    follows.engine.config.checkpoints.unusable = Some(unusable);
    for id in [server(0), server(1), worker(0), worker(1)] {
        come_again(&mut follows, id, &resume);
    }
    assert_eq!(follows.engine.phase, Phase::Running);
}

#[test]
fn one_that_nothing_comes_of_is_given_up_and_the_next_one_goes_on() {
    let mut rig = Rig::running(2, 1);
    rig.engine.config.shape.silence_ms = 10 * STALLED_MS_MAX;
    declared(&mut rig, 4);
    let tick = |rig: &mut Rig, at_ms| rig.engine.handle(rig.now_ms + at_ms, Input::Tick);
    let waits = |left| {
        let waits = Some(Waits { round: 5, left, chunk: ChunkId::new(1, 3), version: 3 });
        ToScheduler::Checkpoint(CheckpointNews::At { lane: 0, newest: 9, waits })
    };
    rig.say(server(0), ToScheduler::Checkpoint(CheckpointNews::Begun { round: 5 }));
    tick(&mut rig, 0);
    rig.say(server(0), part(0, 0, 2, 5));
    assert!(orders(&tick(&mut rig, 1)).is_empty(), "a part has come: it counts from here on");
    assert!(orders(&tick(&mut rig, STALLED_MS_MAX / 2)).is_empty());
    assert_eq!(orders(&tick(&mut rig, STALLED_MS_MAX / 2 + 1)), [(2, CheckpointOrder::Where)]);
    rig.say(server(1), waits(2));
    assert_eq!(orders(&tick(&mut rig, STALLED_MS_MAX)), [(2, CheckpointOrder::Where)]);
    // A chunk was copied: it goes on.
    rig.say(server(1), waits(1));
    assert!(orders(&tick(&mut rig, STALLED_MS_MAX + 1)).is_empty());
    rig.say(server(1), waits(1));
    assert_eq!(orders(&tick(&mut rig, 2 * STALLED_MS_MAX)), [(2, CheckpointOrder::Where)]);
    assert_eq!(rig.engine.status(0).checkpoints.missing, [(Rank(1), 0)]);
    assert_eq!(orders(&tick(&mut rig, 2 * STALLED_MS_MAX + 1)), [(2, CheckpointOrder::Drop { round: 5 })]);
    let status = rig.engine.status(0).checkpoints;
    assert_eq!((status.writing, status.failed, status.missing), (None, 1, vec![]));
    let words = "1 of 2 parts are missing: server 1 lane 0 (1 chunks left; chunk 3 of tensor 1 is at round 3";
    assert!(status.failure.as_ref().is_some_and(|why| why.contains(words)), "{:?}", status.failure);
    let begun = ToScheduler::Checkpoint(CheckpointNews::Begun { round: 10 });
    let next = orders(&rig.say(server(0), begun));
    assert_eq!(next, [(2, CheckpointOrder::Save { round: 10, now: false })]);
}

#[test]
fn a_manifest_that_is_never_written_is_given_up() {
    let mut rig = Rig::running(1, 1);
    rig.engine.config.shape.silence_ms = 10 * STALLED_MS_MAX;
    declared(&mut rig, 4);
    rig.say(server(0), ToScheduler::Checkpoint(CheckpointNews::Begun { round: 5 }));
    rig.say(server(0), part(0, 0, 4, 5));
    rig.engine.handle(rig.now_ms, Input::Tick);
    rig.engine.handle(rig.now_ms + STALLED_MS_MAX, Input::Tick);
    let failure = rig.engine.status(0).checkpoints.failure;
    assert!(failure.is_some_and(|why| why.contains("the manifest, which is being written")));
    // Written after all, it counts.
    rig.engine.handle(rig.now_ms, Input::ManifestWritten { round: 5, result: Ok("round-5".into()) });
    assert_eq!(rig.engine.last_checkpoint.as_deref(), Some("round-5"));
}

/// As many chunks of a tensor in mode async as servers have.
fn loose(rig: &mut Rig) {
    let elements = 4 * rig.engine.config.shape.chunk_bytes / 4;
    let spec = TensorSpec {
        mode: Some(proto_common::mode::Mode::Async),
        ..TensorSpec::f32(1, elements, Optimizer::sum())
    };
    rig.say(worker(0), ToScheduler::Declare { request: 1, tensors: vec![spec], timeout_ms: 1000 });
    let epoch = rig.engine.epoch();
    for rank in 0..rig.engine.config.shape.servers {
        rig.say(server(rank), ToScheduler::Assigned { epoch, error: None });
    }
}

pub(super) fn asks(rig: &mut Rig, from: MemberId, request: u64, round: u64) -> Vec<Command> {
    rig.say(from, ToScheduler::SaveCheckpoint { request, round, timeout_ms: 100 })
}

pub(super) fn part_of(round: u64, version: u64) -> ToScheduler {
    let ToScheduler::Checkpoint(CheckpointNews::Part(part)) = part(0, 0, 4, version) else { unreachable!() };
    ToScheduler::Checkpoint(CheckpointNews::Part(PartWritten { round, ..part }))
}

fn written(rig: &mut Rig, round: u64) -> Vec<Command> {
    let result = Ok(format!("round-{round}"));
    rig.engine.handle(rig.now_ms, Input::ManifestWritten { round, result })
}

#[test]
fn workers_that_count_for_themselves_do_not_end_one_anothers_checkpoints() {
    let mut rig = Rig::running(1, 3);
    loose(&mut rig);
    let save = |round| [(1, CheckpointOrder::Save { round, now: true })];
    assert_eq!(orders(&asks(&mut rig, worker(0), 7, 500)), save(500));
    assert!(asks(&mut rig, worker(1), 8, 300).is_empty(), "it waits");
    rig.say(server(0), part_of(500, 900));
    assert!(asks(&mut rig, worker(2), 9, 310).is_empty(), "also for the manifest");
    let begun = rig.say(server(0), ToScheduler::Checkpoint(CheckpointNews::Begun { round: 310 }));
    let drop = [(1, CheckpointOrder::Drop { round: 310 })];
    assert_eq!(orders(&begun), drop, "an earlier one would be taken for a leftover");
    let commands = written(&mut rig, 500);
    assert_eq!(saved(&commands), [(7, Ok("round-500".into()))]);
    assert_eq!(orders(&commands), save(310), "one for all who wait");
    assert!(asks(&mut rig, worker(0), 10, 502).is_empty());
    let late = rig.engine.handle(rig.now_ms + 100, Input::Tick);
    let [(8 | 9, Err(SaveError::Deadline { .. })), (8 | 9, Err(_)), (10, Err(error))] = &{
        let mut late = saved(&late);
        late.sort_by_key(|(request, _)| *request);
        late
    }[..] else {
        panic!("{late:?}")
    };
    assert!(error.to_string().contains("round 310 before it is still being written"), "{error}");
    assert_eq!(rig.engine.status(0).checkpoints.failed, 0);
}

#[test]
fn one_of_a_round_that_is_complete_is_not_written_again_while_nothing_has_changed() {
    let mut rig = Rig::running(1, 2);
    declared(&mut rig, 4);
    asks(&mut rig, worker(0), 7, 5);
    rig.say(server(0), part_of(5, 5));
    assert!(asks(&mut rig, worker(1), 8, 6).is_empty(), "another round waits for the manifest");
    let commands = written(&mut rig, 5);
    assert_eq!(orders(&commands), [(1, CheckpointOrder::Save { round: 6, now: true })]);
    assert_eq!(saved(&asks(&mut rig, worker(1), 9, 5)), [(9, Ok("round-5".into()))]);
    // A tensor was behind: it may have come further meanwhile.
    rig.say(server(0), part_of(6, 5));
    written(&mut rig, 6);
    assert_eq!(orders(&asks(&mut rig, worker(1), 10, 6)).len(), 1);
}

#[test]
fn who_asked_a_scheduler_that_slept_is_answered() {
    let mut rig = Rig::running(2, 1);
    rig.engine.config.shape.scheduler_ms = 60_000;
    declared(&mut rig, 4);
    operator(&mut rig, 1_000_000);
    let commands = rig.engine.handle(rig.now_ms + 100 * SILENCE_MS, Input::Tick);
    assert_eq!(rig.engine.phase, Phase::Rebuilding);
    let [(0, Err(error))] = &saved(&commands)[..] else { panic!("{commands:?}") };
    assert!(error.to_string().contains("suspended"), "{error}");
    assert_eq!(rig.engine.checkpoints.askers(), 0);
}

#[test]
fn a_manifest_says_what_the_job_began_from() {
    let mut rig = Rig::running(1, 1);
    rig.engine.config.checkpoints.restore = Some("round-000000005".into());
    declared(&mut rig, 4);
    asks(&mut rig, worker(0), 7, 5);
    let commands = rig.say(server(0), part_of(5, 5));
    let [Command::WriteManifest(completed)] = &commands[..] else { panic!("{commands:?}") };
    assert_eq!(completed.restore.as_deref(), Some("round-000000005"));
}

pub(super) fn cleared(commands: Vec<Command>) -> Vec<Clearing> {
    let clearings = commands.into_iter().filter_map(|command| match command {
        Command::ClearAway(clearing) => Some(clearing),
        _ => None,
    });
    clearings.collect()
}

#[test]
fn what_came_of_one_that_is_given_up_is_cleared_away_whenever_it_came() {
    let mut rig = Rig::running(2, 1);
    declared(&mut rig, 4);
    let restore = || Some("round-000000003".to_owned());
    rig.engine.config.checkpoints.restore = restore();
    let begun = rig.say(worker(0), ask(7));
    let writing = vec![5];
    assert_eq!(cleared(begun), [Clearing::Before { round: 5, writing, restore: restore() }]);
    assert_eq!(cleared(rig.say(server(0), part(0, 0, 2, 5))), []);
    let failed = CheckpointNews::Failed { round: 5, reason: "no room".into() };
    let given_up = |file: &str| {
        let files = vec![file.to_owned()];
        [Clearing::GivenUp { round: 5, files, restore: restore() }]
    };
    let commands = rig.say(server(1), ToScheduler::Checkpoint(failed));
    assert_eq!(cleared(commands), given_up("part-0-0"));
    assert_eq!(cleared(rig.say(server(1), part(0, 2, 2, 5))), given_up("part-0-2"), "on its way then");
}

#[test]
fn where_the_manifest_cannot_be_written_the_parts_are_cleared_away() {
    let mut rig = Rig::running(1, 1);
    declared(&mut rig, 2);
    rig.say(worker(0), ask(7));
    assert_eq!(rig.say(server(0), part(0, 0, 2, 5)).len(), 1);
    let written = Input::ManifestWritten { round: 5, result: Err("no room".into()) };
    let files = vec!["part-0-0".to_owned()];
    let cleared = cleared(rig.engine.handle(0, written));
    assert_eq!(cleared, [Clearing::GivenUp { round: 5, files, restore: None }]);
}
