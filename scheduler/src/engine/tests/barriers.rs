//! Barriers: opened once, by the last one; deadlines name who is missing.

use super::super::member::SCHEDULER;
use super::*;
use proto_common::message::WaitError;

fn barrier(request: u64, name: &str, group: NodeGroup, timeout_ms: u64) -> ToScheduler {
    again(request, name, group, timeout_ms, 0)
}

fn again(request: u64, name: &str, group: NodeGroup, timeout_ms: u64, passed: u64) -> ToScheduler {
    ToScheduler::Barrier { request, name: name.into(), group, passed, timeout_ms }
}

fn released(request: u64) -> FromScheduler {
    FromScheduler::Released { request, result: Ok(()) }
}

fn error(commands: &[Command]) -> WaitError {
    match only(commands) {
        FromScheduler::Released { result: Err(error), .. } => error.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_last_one_opens_it_for_all_and_it_can_be_used_again() {
    let mut rig = Rig::running(1, 2);
    for round in 0..2 {
        assert!(rig.say(worker(1), again(10 + round, "a", NodeGroup::WORKERS, 50, round)).is_empty());
        let commands = rig.say(worker(0), again(20 + round, "a", NodeGroup::WORKERS, 50, round));
        let expected = [to(&[worker(0)], released(20 + round)), to(&[worker(1)], released(10 + round))];
        assert_eq!(commands, expected);
    }
    assert!(rig.engine.status(0).barriers.is_empty());
}

#[test]
fn names_and_groups_do_not_meet() {
    let mut rig = Rig::running(1, 1);
    assert!(rig.say(worker(0), barrier(1, "a", NodeGroup::ALL, 50)).is_empty());
    assert!(rig.say(server(0), barrier(1, "b", NodeGroup::ALL, 50)).is_empty());
    assert_eq!(rig.say(server(0), barrier(2, "a", NodeGroup::SERVERS, 50)).len(), 1, "alone in its group");
    assert_eq!(rig.engine.status(7).barriers.len(), 2);
    assert_eq!(rig.engine.status(7).barriers[0].missing, [server(0)]);
    assert_eq!(rig.say(server(0), barrier(3, "a", NodeGroup::ALL, 50)).len(), 2);
}

#[test]
fn a_deadline_names_the_missing_and_only_them() {
    let mut rig = Rig::running(1, 3);
    rig.say(worker(0), barrier(1, "a", NodeGroup::WORKERS, 50));
    rig.now_ms = 20;
    rig.say(worker(2), barrier(2, "a", NodeGroup::WORKERS, 60));
    assert!(rig.tick_at(49).is_empty());
    let first = rig.tick_at(50);
    let (name, missing) = ("a".to_owned(), vec![worker(1)]);
    assert_eq!(error(&first), WaitError::Deadline { name: name.clone(), waited_ms: 50, missing });
    let second = rig.tick_at(80);
    let missing = vec![worker(0), worker(1)];
    assert_eq!(
        error(&second),
        WaitError::Deadline { name, waited_ms: 60, missing },
        "worker 0 is not there now"
    );
}

#[test]
fn nonsense_is_refused() {
    let mut rig = Rig::running(1, 2);
    let none = NodeGroup { scheduler: false, servers: false, workers: false };
    let outside = error(&rig.say(worker(0), barrier(1, "a", none, 50)));
    assert!(outside.to_string().contains("not part of the group"), "{outside}");
    assert!(matches!(
        error(&rig.say(worker(0), barrier(1, "a", NodeGroup::SERVERS, 50))),
        WaitError::Refused { .. }
    ));
    let long = "x".repeat(NAME_BYTES_MAX + 1);
    assert!(error(&rig.say(worker(0), barrier(1, &long, NodeGroup::ALL, 50))).to_string().contains("bytes"));
    assert!(rig.say(worker(0), barrier(1, &long[1..], NodeGroup::ALL, 50)).is_empty(), "at the bound");
    let twice = error(&rig.say(worker(0), barrier(2, &long[1..], NodeGroup::ALL, 50)));
    assert!(twice.to_string().contains("already waits at it"), "{twice}");
}

#[test]
fn nobody_waits_for_one_who_left() {
    let mut rig = Rig::running(1, 2);
    rig.say(worker(0), barrier(1, "a", NodeGroup::WORKERS, 50));
    let commands = quiet(rig.say(worker(1), ToScheduler::Goodbye));
    assert!(error(&commands).to_string().contains("worker 1 has left"), "{commands:?}");
    let later = error(&rig.say(worker(0), barrier(2, "b", NodeGroup::WORKERS, 50)));
    assert!(later.to_string().contains("worker 1 has left"), "{later}");
}

#[test]
fn who_comes_again_comes_through_what_was_opened_also_where_others_have_left_since() {
    let mut rig = Rig::running(1, 2);
    let group = NodeGroup::WORKERS;
    rig.say(worker(0), barrier(1, "trained", group, 50));
    assert_eq!(rig.say(worker(1), barrier(1, "trained", group, 50)).len(), 2);
    rig.say(worker(1), ToScheduler::Goodbye);
    // Killed before its own goodbye, it begins at the beginning.
    assert_eq!(rig.say(worker(0), barrier(2, "trained", group, 50)), [to(&[worker(0)], released(2))]);
    let next = error(&rig.say(worker(0), again(3, "trained", group, 50, 1)));
    assert!(next.to_string().contains("worker 1 has left"), "{next}");
}

#[test]
fn a_job_that_ends_opens_nothing() {
    let mut rig = Rig::running(1, 1);
    rig.handle(Input::Stop { reason: "SIGTERM".into() });
    let refused = error(&rig.say(worker(0), barrier(1, "a", NodeGroup::WORKERS, 50)));
    assert!(refused.to_string().contains("ending"), "{refused}");
}

#[test]
fn a_program_that_runs_the_scheduler_comes_to_barriers_of_its_group() {
    let all = NodeGroup { scheduler: true, ..NodeGroup::ALL };
    let own = |request| Input::Message { from: LOCAL, message: again(request, "a", all, 50, 1) };
    let mut rig = Rig::running(1, 1);
    // A scheduler of its own has no program that could come: nobody waits for it.
    assert!(rig.say(worker(0), barrier(1, "a", all, 50)).is_empty());
    assert_eq!(rig.say(server(0), barrier(2, "a", all, 50)).len(), 2);
    rig.engine = rig.engine.with_program();
    assert!(rig.say(worker(0), again(3, "a", all, 50, 1)).is_empty());
    assert!(rig.say(server(0), again(4, "a", all, 50, 1)).is_empty());
    assert_eq!(rig.engine.status(7).barriers[0].missing, [SCHEDULER]);
    let opened = rig.engine.handle(8, own(5));
    assert_eq!(opened.len(), 3);
    assert!(opened.contains(&Command::Send { to: vec![LOCAL], message: Box::new(released(5)) }));
}

#[test]
fn who_is_behind_the_others_comes_through_and_a_wait_told_twice_is_one() {
    let mut rig = Rig::running(1, 2);
    let group = NodeGroup::WORKERS;
    rig.say(worker(0), barrier(1, "a", group, 50));
    assert_eq!(rig.say(worker(1), barrier(1, "a", group, 50)).len(), 2);
    // A new life that begins at the beginning.
    assert_eq!(rig.say(worker(1), barrier(2, "a", group, 50)), [to(&[worker(1)], released(2))]);
    assert!(rig.say(worker(1), again(3, "a", group, 50, 1)).is_empty(), "here the others are, too");
    assert!(rig.say(worker(1), again(3, "a", group, 50, 1)).is_empty(), "the same wait");
    let other = error(&rig.say(worker(1), again(4, "a", group, 50, 1)));
    assert!(other.to_string().contains("already waits at it"), "{other}");
    assert_eq!(rig.say(worker(0), again(5, "a", group, 50, 1)).len(), 2);
}

#[test]
fn a_count_that_cannot_be_is_refused() {
    let mut rig = Rig::running(1, 1);
    let group = NodeGroup::WORKERS;
    let enter = |passed| ToScheduler::Barrier { request: 1, name: "b".into(), group, passed, timeout_ms: 50 };
    let commands = rig.say(worker(0), enter(u64::MAX));
    assert!(matches!(only(&commands), FromScheduler::Released { result: Err(_), .. }), "{commands:?}");
    let commands = rig.say(worker(0), enter(0));
    assert!(matches!(only(&commands), FromScheduler::Released { result: Ok(()), .. }), "{commands:?}");
}
