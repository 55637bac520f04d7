//! Chunks outside mode sync, where each contribution is an update of its own, and rounds that end without backup workers.

use super::*;
use proto_common::batch::Kept;

fn rig_of(workers: u32, edit: impl Fn(ChunkSpec) -> ChunkSpec, in_place: bool) -> Rig {
    let mut rig = Rig::with(EngineConfig { deterministic: false, ..config(workers) }, in_place);
    rig.engine = LaneEngine::new(rig.config);
    rig.engine.assign(Epoch { term: 1, counter: 1 }, &[edit(spec(1))]);
    (0..workers).for_each(|rank| rig.connect(rank));
    rig
}

fn rig(workers: u32, mode: Mode) -> Rig {
    rig_of(workers, |spec| ChunkSpec { mode, ..spec }, false)
}

fn backed(workers: u32, backup_workers: u32) -> Rig {
    rig_of(workers, |spec| ChunkSpec { backup_workers, ..spec }, false)
}

/// One contribution, applied by itself.
fn applied(version: u64, from: Source, old: u8, into: u8) -> Command {
    Command::Finish { chunk: 0, round: version, last: Some(first(from)), old, into, contributors: 1 }
}

fn behind(rank: u32, operation: u64, version: u64, missing: &[u32]) -> Answer {
    Answer { missing: missing.to_vec(), ..answer(rank, operation, Status::DeadlineBehind, version) }
}

#[test]
fn an_async_contribution_is_applied_when_it_comes_whoever_else_has_come() {
    let mut rig = rig(3, Mode::Async);
    let commands = rig.send(2, &[push_pull(1, 1)]);
    assert_eq!(commands, [applied(1, rig.at(), 0, 0), land(2, 0)]);
    assert_eq!(rig.flush(), [done(2, 1, 1)]);
    rig.landed(2, 0);
    let commands = rig.send(2, &[push(2, 2), pull(3, 2)]);
    assert_eq!(commands, [applied(2, rig.at(), 0, 0), land(2, 0)]);
    assert_eq!(rig.flush(), [done(2, 2, 2), done(2, 3, 2)]);
    let commands = rig.send(0, &[push(1, 1)]);
    assert_eq!(commands, [applied(3, rig.at(), 0, 1)], "beside what is being read");
    assert_eq!(rig.flush(), [done(0, 1, 3)], "the version counts the contributions of all");
}

#[test]
fn what_finds_no_buffer_waits_and_keeps_its_workers_order() {
    let mut rig = rig(2, Mode::Async);
    rig.send(0, &[pull(1, 0)]);
    rig.send(0, &[push_pull(2, 1)]);
    rig.flush();
    // Both buffers are being read.
    let commands = rig.send(1, &[push(1, 1), push(2, 2), pull(3, 2)]);
    assert_eq!(commands, [reduce(rig.at(), Onto::Nothing), spill(rig.at(), 0)]);
    assert_eq!(rig.flush(), []);
    assert_eq!(rig.tick(999), []);
    let reading = |operation| Answer { missing: vec![0], ..answer(1, operation, Status::DeadlineReading, 1) };
    assert_eq!(rig.tick(1), [reading(1), reading(2), reading(3)], "the error names who reads");
    let finish = |round, last, old| Command::Finish { chunk: 0, round, last, old, into: 0, contributors: 1 };
    let commands = rig.landed(0, 0);
    assert_eq!(
        commands,
        [finish(2, None, 1), finish(3, Some(first(Source::Spill(0))), 0)],
        "applied all the same"
    );
    assert_eq!((rig.version(), rig.engine.spills().0), (3, 0));
}

#[test]
fn one_that_is_being_read_holds_back_its_worker_and_nobody_else() {
    let mut rig = rig(2, Mode::Async);
    let there = Block { data: BlockData::ByReference { region: REGION, offset: 0 }, ..push(1, 1) };
    let commands = rig.send(0, &[there, push(2, 2), pull(3, 2)]);
    assert!(
        matches!(commands[..], [Command::Fetch { to: 0, .. }, Command::Spill { to: 1, .. }]),
        "{commands:?}"
    );
    rig.send(1, &[push(1, 1), pull(2, 1)]);
    assert_eq!(rig.flush(), [done(1, 1, 1), done(1, 2, 1)]);
    // The channel ends: the first is to come again, and goes before the second, which was taken.
    rig.down(Rank(0));
    rig.connect(0);
    let commands = rig.send(0, &[push(1, 1)]);
    let second = applied(3, Source::Spill(1), 1, 1);
    assert_eq!(commands, [applied(2, rig.at(), 0, 1), second]);
    assert_eq!(rig.flush(), [done(0, 1, 2)]);
    assert_eq!(rig.engine.stats().contributions, 3);
}

#[test]
fn a_replay_is_answered_and_not_applied_again_in_every_mode() {
    for mode in [Mode::Async, Mode::Bounded(1)] {
        let mut rig = rig(2, mode);
        rig.send(0, &[push_pull(1, 1)]);
        rig.down(Rank(0));
        rig.connect(0);
        assert_eq!(rig.send(0, &[push_pull(1, 1)]), [land(0, 0)], "{mode}");
        assert_eq!(rig.flush(), [done(0, 1, 1)], "{mode}");
        assert_eq!((rig.engine.stats().contributions, rig.engine.stats().duplicates), (1, 1));
    }
}

#[test]
fn a_bound_holds_answers_and_not_contributions_back() {
    let mut rig = rig(3, Mode::Bounded(1));
    rig.send(0, &[push(1, 1), push(2, 2), pull(3, 2)]);
    assert_eq!(rig.version(), 2, "both are in force");
    assert_eq!(rig.flush(), [done(0, 1, 1)], "one ahead is told, two ahead is not");
    rig.send(1, &[push(1, 1)]);
    assert_eq!(rig.flush(), [done(1, 1, 3)], "worker 2 lacks still");
    rig.send(2, &[pull(1, 0)]);
    assert_eq!(rig.flush(), [done(2, 1, 3)], "a pull makes nobody further");
    let commands = rig.send(2, &[push(2, 1)]);
    assert!(matches!(commands[..], [Command::Finish { round: 4, .. }, Command::Land { peer: Rank(0), .. }]));
    let mut answers = rig.flush();
    answers.sort_by_key(|answer| (answer.rank, answer.operation));
    assert_eq!(answers, [done(0, 2, 4), done(0, 3, 4), done(2, 2, 4)]);
}

#[test]
fn the_deadline_of_a_bound_names_who_is_behind() {
    let mut rig = rig(4, Mode::Bounded(0));
    rig.send(2, &[push(1, 1)]);
    rig.send(0, &[push(1, 1), pull(2, 1)]);
    assert_eq!(rig.tick(999), []);
    let late = |rank, operation| behind(rank, operation, 2, &[1, 3]);
    assert_eq!(rig.tick(1), [late(2, 1), late(0, 1), late(0, 2)]);
    assert_eq!(rig.engine.oldest(0), None);
    rig.send(0, &[push(3, 2)]);
    assert_eq!(
        rig.engine.oldest(rig.now_ms + 5).map(|waiting| waiting.on),
        Some(vec![Rank(1), Rank(2), Rank(3)])
    );
}

#[test]
fn a_refused_contribution_counts_as_made_so_that_nobody_waits_for_it() {
    let mut rig = rig(2, Mode::Bounded(0));
    rig.send(0, &[push(1, 1)]);
    rig.send(1, &[Block { bytes: 4, ..push(1, 1) }, pull(2, 1)]);
    let refused = answer(1, 1, Status::WrongShape, 1);
    let mut answers = rig.flush();
    answers.sort_by_key(|answer| (answer.rank, answer.operation));
    assert_eq!(answers, [done(0, 1, 1), refused, done(1, 2, 1)]);
}

#[test]
fn a_contribution_that_names_no_count_is_refused() {
    let mut rig = rig(1, Mode::Async);
    assert_eq!(rig.send(0, &[push(1, 0)]), []);
    assert_eq!(rig.flush(), [answer(0, 1, Status::Refused, 0)]);
}

#[test]
fn no_more_contributions_of_a_worker_are_kept_than_of_rounds() {
    let mut rig = rig(2, Mode::Async);
    let there = Block { data: BlockData::ByReference { region: REGION, offset: 0 }, ..push(1, 1) };
    let blocks: Vec<Block> = [there].into_iter().chain((2..=5).map(|number| push(number, number))).collect();
    rig.send(0, &blocks);
    assert_eq!(rig.flush(), [answer(0, 5, Status::Retry, 5)], "four wait, the first of them read still");
}

#[test]
fn integers_that_do_not_fit_are_told_to_their_contributor_alone_also_again() {
    let edit = |spec| ChunkSpec { mode: Mode::Async, dtype: Dtype::I32, ..spec };
    let mut rig = rig_of(2, edit, false);
    let int = |block| Block { dtype: Dtype::I32, ..block };
    rig.send(0, &[int(push(1, 1)), int(pull(2, 1))]);
    rig.send(1, &[int(push_pull(1, 1))]);
    assert_eq!(rig.flush(), [], "storage has not judged");
    let mut out = Commands::default();
    rig.engine.finished(0, Verdict::BadValue, &mut out);
    assert!(
        matches!(out.list[..], [Command::Land { .. }, Command::Finish { round: 2, .. }]),
        "{:?}",
        out.list
    );
    assert_eq!(rig.flush(), [answer(0, 1, Status::BadValue, 1), done(0, 2, 1)]);
    out.clear();
    rig.engine.finished(0, Verdict::Fits, &mut out);
    assert_eq!(rig.flush(), [done(1, 1, 2)]);
    rig.down(Rank(0));
    rig.connect(0);
    assert_eq!(rig.send(0, &[int(push(1, 1))]), []);
    assert_eq!(rig.flush(), [answer(0, 1, Status::BadValue, 2)]);
}

#[test]
fn an_initial_value_that_is_being_read_goes_before_contributions() {
    let mut rig = rig(2, Mode::Async);
    let there = Block { data: BlockData::ByReference { region: REGION, offset: 0 }, ..init(1, BYTES) };
    rig.send(0, &[there]);
    let commands = rig.send(1, &[push(1, 1)]);
    assert_eq!(commands, [spill(rig.at(), 1)]);
    let commands = rig.fetched(0, 0);
    let set = Command::Init { chunk: 0, from: Source::Spill(0), into: 1 };
    assert_eq!(commands, [set, applied(1, Source::Spill(1), 1, 1)]);
    let mut answers = rig.flush();
    answers.sort_by_key(|answer| answer.rank);
    assert_eq!(answers, [done(0, 1, 0), done(1, 1, 1)]);
    rig.send(0, &[init(2, BYTES)]);
    assert_eq!(rig.flush(), [done(0, 2, 1)], "it is set already");
}

#[test]
fn what_lies_in_its_workers_memory_is_applied_there_and_views_hold_it_up() {
    let edit = |spec| ChunkSpec { mode: Mode::Async, ..spec };
    let mut rig = rig_of(2, edit, true);
    let there = |rank| Source::Worker { peer: Rank(rank), region: REGION, offset: 64, bytes: BYTES };
    let data = BlockData::ByReference { region: REGION, offset: 64 };
    let view = |block, from| Block {
        view: true,
        landing: None,
        reading: Reading { from: Operation(from), kept: Kept::None },
        ..block
    };
    assert_eq!(rig.send(0, &[view(Block { data, ..push_pull(1, 1) }, 1)]), [applied(1, there(0), 0, 0)]);
    rig.send(0, &[view(Block { data, ..push_pull(2, 2) }, 1)]);
    assert_eq!(rig.flush(), [done(0, 1, 1), done(0, 2, 2)]);
    let commands = rig.send(1, &[Block { data, ..push(1, 1) }]);
    assert_eq!(commands, [reduce(there(1), Onto::Nothing)], "both versions are shown");
    assert_eq!(rig.flush(), []);
    let commands = rig.send(0, &[view(pull(3, 2), 2)]);
    let finish = Command::Finish { chunk: 0, round: 3, last: None, old: 1, into: 0, contributors: 1 };
    assert_eq!(commands, [finish], "the first is not read any more");
    assert_eq!(rig.flush(), [done(0, 3, 3), done(1, 1, 3)]);
}

#[test]
fn a_round_ends_without_its_backup_worker_who_is_told() {
    let mut rig = backed(3, 1);
    rig.send(0, &[push(1, 1)]);
    let commands = rig.send(2, &[push(1, 1)]);
    assert!(matches!(commands[..], [Command::Finish { contributors: 2, .. }]), "{commands:?}");
    assert_eq!(rig.flush(), [done(0, 1, 1), done(2, 1, 1)]);
    let commands = rig.send(1, &[push_pull(1, 1)]);
    assert_eq!(commands, [land(1, 0)], "dropped, and the weights in force land");
    assert_eq!(rig.flush(), [answer(1, 1, Status::Late, 1)]);
    assert_eq!((rig.engine.stats().late, rig.engine.stats().contributions), (1, 2));
    rig.down(Rank(1));
    rig.connect(1);
    rig.send(1, &[push_pull(1, 1), push(2, 2)]);
    assert_eq!(rig.flush(), [answer(1, 1, Status::Late, 1)], "again, and the next round counts");
    assert_eq!(rig.engine.stats().late, 1);
    rig.send(0, &[push(2, 2)]);
    assert_eq!(rig.version(), 2);
}

#[test]
fn what_was_held_for_a_round_that_ends_without_it_is_dropped_there() {
    let mut rig = backed(3, 1);
    let there = Block { data: BlockData::ByReference { region: REGION, offset: 0 }, ..push(1, 1) };
    rig.send(2, &[there, push(2, 2)]);
    rig.send(0, &[push(1, 1), push(2, 2)]);
    rig.send(1, &[push(1, 1)]);
    // Round 1 had 0 and 1; round 2 has 2 and 0, whose contributions were here already.
    let mut answers = rig.flush();
    answers.sort_by_key(|answer| (answer.rank, answer.operation));
    assert_eq!(
        answers,
        [done(0, 1, 1), done(0, 2, 2), done(1, 1, 1)],
        "its memory is being read: it is not told"
    );
    assert_eq!(rig.fetched(2, 0), []);
    assert_eq!(rig.flush(), [answer(2, 1, Status::Late, 2), done(2, 2, 2)]);
    assert_eq!((rig.engine.spills().0, rig.engine.stats().late), (0, 1));
    rig.send(1, &[push(2, 2)]);
    assert_eq!(rig.flush(), [answer(1, 2, Status::Late, 2)]);
}

#[test]
fn a_round_waits_for_all_but_the_backup_workers_and_names_the_rest() {
    let mut rig = backed(4, 2);
    rig.send(3, &[push(1, 1)]);
    assert_eq!(
        rig.tick(1_000),
        [Answer { missing: vec![0, 1, 2], ..answer(3, 1, Status::DeadlineWaiting, 0) }]
    );
    rig.send(1, &[push(1, 1)]);
    assert_eq!(rig.version(), 1);
}
