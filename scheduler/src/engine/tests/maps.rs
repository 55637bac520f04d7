//! Recovery of a large job: maps that are reported by digest, members that take long to report, and declarations that many
//! wait for.

use super::losing::{come_again, declared, known_in, messages, next_after, rig_of};
use super::*;
use crate::engine::waiters::WAITING_KEYS_MAX;
use proto_common::message::{MapDigest, Resume};

const PATIENCE_MS: u64 = 20 * SILENCE_MS;

/// A running cluster with a tensor, whose members wait long for a scheduler; all of its members, and what they know: what they
/// report at once, and their map.
fn before() -> (Rig, [MemberId; 4], Resume, Resume) {
    let mut before = rig_of(1, WorkerLoss::Continue);
    before.engine.config.shape.scheduler_ms = PATIENCE_MS;
    declared(&mut before);
    let known = known_in(&before);
    let digest = Some(MapDigest::of(&known.map));
    let map = Resume { digest, map: known.map.clone(), ..known.head() };
    let brief = Resume { digest, map: known.head().map, ..known };
    (before, [server(0), server(1), worker(0), worker(1)], brief, map)
}

fn send_map(rig: &mut Rig, id: MemberId, map: &Resume) -> Vec<Command> {
    rig.say(id, ToScheduler::Resuming { part: map.clone(), last: true })
}

/// Who is asked for its map.
fn asked(commands: &[Command]) -> Vec<ConnectionId> {
    let asks = commands.iter().filter_map(|command| match command {
        Command::Send { to, message } if **message == FromScheduler::SendMap => Some(to.clone()),
        _ => None,
    });
    asks.flatten().collect()
}

#[test]
fn one_member_of_those_with_the_same_map_sends_it() {
    let (before, members, brief, map) = before();
    let mut rig = next_after(&before);
    let commands: Vec<_> = members.iter().flat_map(|id| come_again(&mut rig, *id, &brief)).collect();
    assert_eq!(asked(&commands), [connection(server(0))], "the others have the same: {commands:?}");
    assert_eq!(rig.engine.phase, Phase::Rebuilding);
    let commands = send_map(&mut rig, server(0), &map);
    let welcomes = messages(&commands).into_iter().filter(|m| matches!(m, FromScheduler::Welcome(_))).count();
    assert_eq!((welcomes, &rig.engine.phase), (4, &Phase::Running));
    let tensors = |rig: &Rig| rig.engine.declarations.shards.map().whole().tensors;
    assert_eq!(tensors(&rig), tensors(&before));
    // A worker has it, so it stays whatever a server says.
    let epoch = messages(&commands)
        .into_iter()
        .find_map(|m| if let FromScheduler::Assign(update) = m { Some(update.epoch) } else { None });
    let error = Some("no memory".into());
    rig.say(server(0), ToScheduler::Assigned { epoch: epoch.unwrap(), error });
    rig.say(server(1), ToScheduler::Assigned { epoch: epoch.unwrap(), error: None });
    assert_eq!(tensors(&rig), tensors(&before), "it was answered before");
}

#[test]
fn another_is_asked_where_the_first_is_gone() {
    let (before, members, brief, map) = before();
    let mut rig = next_after(&before);
    members.iter().for_each(|id| drop(come_again(&mut rig, *id, &brief)));
    rig.lose(server(0));
    let commands = rig.tick_at(5);
    assert_eq!(asked(&commands), [connection(server(1))], "{commands:?}");
    send_map(&mut rig, server(1), &map);
    assert_eq!(rig.engine.phase, Phase::Rebuilding, "the first may come again");
    let again = come_again(&mut rig, server(0), &brief);
    assert_eq!((asked(&again), &rig.engine.phase), (Vec::new(), &Phase::Running));
}

#[test]
fn a_map_of_a_newer_epoch_is_sent_again() {
    let (before, members, brief, map) = before();
    let newer = |resume: &Resume| {
        let mut resume = resume.clone();
        resume.map.epoch = resume.map.epoch.next();
        resume
    };
    let mut rig = next_after(&before);
    come_again(&mut rig, server(0), &brief);
    assert_eq!(asked(&come_again(&mut rig, server(1), &newer(&brief))), [], "one at a time");
    let commands = send_map(&mut rig, server(0), &map);
    assert_eq!(asked(&commands), [connection(server(1))], "{commands:?}");
    send_map(&mut rig, server(1), &newer(&map));
    for id in &members[2..] {
        assert_eq!(asked(&come_again(&mut rig, *id, &brief)), [], "there is a newer one");
    }
    assert_eq!(rig.engine.phase, Phase::Running);
}

#[test]
fn a_map_that_was_not_asked_for_or_is_another_one_is_refused() {
    let (before, _, brief, map) = before();
    let refused = |commands: &[Command], why: &str| {
        let FromScheduler::Refused(reason) = only(commands) else { panic!("{commands:?}") };
        assert!(reason.to_string().contains(why), "{reason}");
    };
    let mut rig = next_after(&before);
    come_again(&mut rig, server(0), &brief);
    come_again(&mut rig, server(1), &brief);
    refused(&send_map(&mut rig, server(1), &map), "not asked for");
    let mut other = map.clone();
    other.map.tensors[0].name = "another".into();
    refused(&send_map(&mut rig, server(0), &other), "whose digest it reported");
    assert_eq!(rig.engine.phase, Phase::Rebuilding);
    assert_eq!(asked(&come_again(&mut rig, worker(0), &brief)), [connection(worker(0))]);
}

#[test]
fn a_silent_member_that_others_wait_for_is_given_up_before_them() {
    let (before, members, brief, map) = before();
    let mut rig = next_after(&before);
    members.iter().for_each(|id| drop(come_again(&mut rig, *id, &brief)));
    let commands = rig.wait_until(SILENCE_MS);
    assert_eq!(asked(&commands), [connection(server(1))], "{commands:?}");
    let refused = |m: &&FromScheduler| matches!(m, FromScheduler::Refused(reason) if reason.to_string().contains("deadlines.silence_ms"));
    assert_eq!(messages(&commands).iter().filter(|m| refused(m)).count(), 1, "{commands:?}");
    rig.wait_until(3 * SILENCE_MS / 2);
    send_map(&mut rig, server(1), &map);
    rig.wait_until(2 * SILENCE_MS);
    assert_eq!(
        (&rig.engine.phase, rig.engine.members.changes().lost),
        (&Phase::Running, 1),
        "it alone is failed"
    );
}

/// Scenario: a restarted scheduler reads the maps of a thousand members, one after the other.
#[test]
fn members_that_still_report_are_not_failed_when_the_deadline_of_the_first_one_passes() {
    let (before, members, ..) = before();
    let known = known_in(&before);
    let mut rig = next_after(&before);
    for id in members {
        let again = Register { resume: Some(known.head()), ..register(id.role, connection(id).0 + 1) };
        rig.say(id, ToScheduler::Register(again));
    }
    let part =
        |map: bool| Resume { map: if map { known.map.clone() } else { known.head().map }, ..known.clone() };
    for (at, id) in (1u64..).zip(members) {
        rig.wait_until(at * SILENCE_MS * 3 / 4);
        let part = Resume { rank: id.rank, ..part(true) };
        rig.say(id, ToScheduler::Resuming { part, last: true });
    }
    assert_eq!((&rig.engine.phase, rig.engine.members.changes().lost), (&Phase::Running, 0));
    // Whoever says nothing more is failed all the same.
    let mut rig = next_after(&before);
    for id in members {
        let again = Register { resume: Some(known.head()), ..register(id.role, connection(id).0 + 1) };
        rig.say(id, ToScheduler::Register(again));
    }
    for id in &members[1..] {
        rig.say(*id, ToScheduler::Resuming { part: Resume { rank: id.rank, ..part(true) }, last: true });
    }
    rig.wait_until(SILENCE_MS);
    assert_eq!((&rig.engine.phase, rig.engine.members.changes().lost), (&Phase::Running, 1));
}

#[test]
fn no_report_puts_the_deadline_off_for_longer_than_members_wait() {
    let (before, _, _, _) = before();
    let known = known_in(&before);
    let mut rig = next_after(&before);
    come_again(&mut rig, worker(0), &known);
    let again =
        Register { resume: Some(known.head()), ..register(Role::Server, connection(server(0)).0 + 1) };
    rig.say(server(0), ToScheduler::Register(again));
    while rig.now_ms + SILENCE_MS / 2 < PATIENCE_MS {
        rig.wait_until(rig.now_ms + SILENCE_MS / 2);
        assert_eq!(rig.engine.phase, Phase::Rebuilding, "at {} ms", rig.now_ms);
        let part = Resume { rank: Rank(0), ..known.head() };
        rig.say(server(0), ToScheduler::Resuming { part, last: false });
    }
    rig.wait_until(PATIENCE_MS);
    assert_ne!(rig.engine.phase, Phase::Rebuilding);
}

fn tensors(keys: std::ops::Range<u64>) -> Vec<TensorSpec> {
    keys.map(|key| TensorSpec::f32(key, 1024, Optimizer::sum()).in_mode(Mode::Sync).with_backup(0)).collect()
}

#[test]
fn workers_that_wait_for_the_same_tensors_count_once_and_get_one_answer() {
    let keys = (WAITING_KEYS_MAX / 2) as u64;
    let mut rig = Rig::running(1, 5);
    let declare = |request, keys| ToScheduler::Declare { request, tensors: tensors(keys), timeout_ms: 40 };
    let epoch_of = |commands: &[Command]| match only(commands) {
        FromScheduler::Assign(update) => update.epoch,
        other => panic!("{other:?}"),
    };
    let epoch = epoch_of(&rig.say(worker(0), declare(1, 0..keys)));
    for rank in 1..4 {
        assert!(
            rig.say(worker(rank), declare(1 + u64::from(rank), 0..keys)).is_empty(),
            "worker {rank} waits"
        );
    }
    let commands = rig.say(worker(4), declare(1, keys..2 * keys + 1));
    let FromScheduler::Declared { result: Err(error), .. } = only(&commands) else { panic!("{commands:?}") };
    assert!(error.to_string().contains("too many declarations wait"), "{error}");
    let last = epoch_of(&rig.say(worker(4), declare(2, keys..2 * keys)));
    assert_ne!(last, epoch, "at the bound");
    let commands = rig.say(server(0), ToScheduler::Assigned { epoch, error: None });
    let answers: Vec<_> = messages(&commands)
        .into_iter()
        .map(|message| match message {
            FromScheduler::Declared { request, result: Ok(update) } => (*request, update),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(answers.iter().map(|(request, _)| *request).collect::<Vec<_>>(), [1, 2, 3, 4]);
    assert!(answers.iter().all(|(_, update)| update.is_same(answers[0].1)), "one answer for all");
    // Whoever comes later, too, as long as nothing has moved.
    let commands = rig.say(worker(4), declare(3, 0..keys));
    let FromScheduler::Declared { result: Ok(update), .. } = only(&commands) else { panic!("{commands:?}") };
    assert!(update.is_same(answers[0].1));
    assert_eq!(update.tensors.len(), keys as usize);
}
