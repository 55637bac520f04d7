//! What of a worker's operations is open, and pulls of one version exactly.

use super::*;

fn keeping(workers: u32) -> EngineConfig {
    EngineConfig { worker_loss: WorkerLoss::Wait, ..config(workers) }
}

fn exact(operation: u64, round: u64) -> Block {
    Block { exact: true, ..pull(operation, round) }
}

#[test]
fn a_server_that_never_heard_of_earlier_operations_knows_what_comes_next() {
    let mut rig = Rig::new(config(2));
    let open = |first, block| Block { first_open: Operation(first), ..block };
    rig.send(0, &[open(5, push(6, 2))]);
    assert_eq!(rig.flush(), [answer(0, 6, Status::Retry, 2)], "5 is open, and goes before it");
    assert_eq!(rig.send(0, &[open(5, push(5, 1))]), [reduce(rig.at(), Onto::Nothing)]);
    assert_eq!(rig.send(0, &[open(5, push(6, 2))]), [spill(rig.at(), 0)]);
    assert_eq!(rig.send(0, &[open(4, push(4, 1))]), [], "it was answered: what is open only moves on");
    assert_eq!(rig.engine.stats().duplicates, 1);
    rig.send(1, &[push(1, 1)]);
    assert_eq!(rig.version(), 1);
}

#[test]
fn the_version_in_force_and_the_one_before_are_there_and_no_older_one() {
    let mut rig = Rig::new(keeping(1));
    for round in 1..=3 {
        rig.send(0, &[push(round, round)]);
        rig.flush();
    }
    let commands = rig.send(0, &[exact(4, 3), exact(5, 2), exact(6, 1)]);
    assert_eq!(commands, [land(0, 1), land(0, 0)]);
    let gone = answer(0, 6, Status::VersionGone, 3);
    assert_eq!(rig.flush(), [done(0, 4, 3), done(0, 5, 2), gone]);
}

#[test]
fn what_is_to_be_kept_is_not_overwritten_while_it_is_read() {
    let mut rig = Rig::new(keeping(1));
    rig.send(0, &[push(1, 1)]);
    rig.send(0, &[push(2, 2)]);
    assert_eq!(rig.send(0, &[exact(3, 1)]), [land(0, 1)]);
    let commands = rig.send(0, &[push(4, 3)]);
    assert_eq!(commands, [reduce(rig.at(), Onto::Nothing)], "version 1 is on its way to somebody");
    rig.flush();
    let commands = rig.landed(0, 1);
    assert!(matches!(commands[..], [Command::Finish { round: 3, into: 1, old: 0, .. }]), "{commands:?}");
    assert_eq!(rig.flush(), [done(0, 4, 3)]);
}

#[test]
fn a_version_to_come_is_waited_for_and_its_deadline_names_who_is_missing() {
    let mut rig = Rig::new(keeping(2));
    assert_eq!(rig.send(0, &[exact(1, 1)]), []);
    rig.send(0, &[push(2, 1)]);
    let late = Answer { missing: vec![1], ..answer(0, 1, Status::DeadlineWaiting, 0) };
    assert_eq!(rig.tick(1_000)[0], late);
    rig.send(0, &[exact(3, 1)]);
    let commands = rig.send(1, &[push(1, 1)]);
    assert!(commands.contains(&land(0, 1)), "{commands:?}");
}

#[test]
fn where_nothing_is_kept_only_the_version_in_force_is_there() {
    let mut rig = Rig::new(config(1));
    rig.send(0, &[push(1, 1)]);
    rig.send(0, &[push(2, 2)]);
    assert_eq!(rig.send(0, &[exact(3, 1), exact(4, 2)]), [land(0, 0)]);
    let answers = rig.flush();
    assert_eq!(answers[2..], [answer(0, 3, Status::VersionGone, 2), done(0, 4, 2)]);
}

#[test]
fn zeros_from_before_the_initial_value_are_no_version() {
    let mut rig = Rig::new(config(1));
    rig.send(0, &[init(1, BYTES)]);
    rig.send(0, &[push(2, 1)]);
    assert_eq!(rig.send(0, &[exact(3, 0)]), []);
    assert_eq!(rig.flush()[2], answer(0, 3, Status::VersionGone, 1));
    let mut rig = Rig::new(keeping(1));
    rig.send(0, &[init(1, BYTES)]);
    rig.send(0, &[push(2, 1)]);
    assert_eq!(rig.send(0, &[exact(3, 0)]), [land(0, 1)], "the initial value is kept");
}

#[test]
fn of_a_round_that_did_not_fit_no_other_weights_are_there() {
    let mut rig = Rig::new(keeping(1));
    let int = |block| Block { id: ChunkId::new(2, 0), dtype: Dtype::I32, ..block };
    let spec = ChunkSpec { dtype: Dtype::I32, ..spec(2) };
    rig.engine.assign(Epoch { term: 1, counter: 1 }, &[spec]);
    let judge = |rig: &mut Rig, verdict| {
        let mut out = Commands::default();
        rig.engine.finished(1, verdict, &mut out);
    };
    rig.send(0, &[int(push(1, 1))]);
    judge(&mut rig, Verdict::Fits);
    rig.send(0, &[int(push(2, 2))]);
    judge(&mut rig, Verdict::BadValue);
    rig.flush();
    rig.send(0, &[int(exact(3, 0)), int(exact(4, 1)), int(exact(5, 2))]);
    let told: Vec<_> = rig.flush().into_iter().map(|answer| (answer.status, answer.version)).collect();
    assert_eq!(told, [(Status::VersionGone, 2), (Status::Done, 1), (Status::Done, 2)]);
}

#[test]
fn only_a_pull_that_lands_asks_for_one_version_and_only_where_there_are_rounds() {
    let mut rig = Rig::with(config(1), true);
    let loose = ChunkSpec { mode: Mode::Async, ..spec(2) };
    rig.engine.assign(Epoch { term: 1, counter: 1 }, &[loose]);
    let view = Block { view: true, landing: None, ..exact(2, 0) };
    let other = Block { id: ChunkId::new(2, 0), ..exact(1, 0) };
    rig.send(0, &[Block { exact: true, ..push_pull(1, 1) }, view, other]);
    assert!(rig.flush().iter().all(|answer| answer.status == Status::Refused));
}
