//! The next scheduler with other settings than the one before it: what data depends on must be the same, the rest may change.

use super::losing::{come_again, declared, known_in, messages, next_after, rig_of};
use super::*;
use proto_common::message::RefusalReason;
use proto_common::message::Resume;

fn shown(before: &Rig) -> Resume {
    Resume { shape: Some(before.engine.config.shape), ..known_in(before) }
}

/// A way to set something else.
type Edit = fn(&mut EngineConfig);

#[test]
fn a_scheduler_with_other_settings_ends_and_members_are_told_nothing() {
    let others: [(&str, &str, Edit); 10] = [
        ("cluster.workers", "3", |config| config.shape.workers = 3),
        ("cluster.servers", "1", |config| config.shape.servers = 1),
        ("cluster.chunk_bytes", "8192", |config| config.shape.chunk_bytes = 8192),
        ("cluster.lanes", "2", |config| config.shape.lanes = 2),
        ("cluster.replicas", "0", |config| config.shape.replicas = 0),
        ("cluster.servers_max", "9", |config| config.shape.server_places = 9),
        ("cluster.mode", "async", |config| config.shape.mode = Mode::Async),
        ("cluster.deterministic", "false", |config| config.shape.deterministic = false),
        ("cluster.backup_workers", "1", |config| config.shape.backup_workers = 1),
        ("cluster.worker_loss", "stop", |config| config.shape.worker_loss = WorkerLoss::Stop),
    ];
    let mut before = rig_of(1, WorkerLoss::Wait);
    declared(&mut before);
    let resume = shown(&before);
    for (key, own, edit) in others {
        let mut rig = next_after(&before);
        edit(&mut rig.engine.config);
        let early = Register { wanted_rank: Some(Rank(1)), ..register(Role::Worker, 80) };
        rig.say_on(80, ToScheduler::Register(early));
        rig.say_on(81, ToScheduler::Register(register(Role::Server, 81)));
        let commands = come_again(&mut rig, server(0), &resume);
        let Some(Command::End(Outcome::Misconfigured(wrong))) = commands.last() else {
            panic!("{key}: {commands:?}")
        };
        assert_eq!((wrong.key, wrong.value.as_str()), (key, own));
        for command in &commands {
            let is_members = match command {
                Command::Send { to, message } => {
                    let is_later = matches!(**message, FromScheduler::Refused(RefusalReason::Later(_)));
                    assert!(is_later, "{key}: who came anew may come again: {message:?}");
                    to.contains(&connection(server(0)))
                }
                Command::Close { connection: closed } => *closed == connection(server(0)),
                _ => false,
            };
            assert!(!is_members, "{key}: a member would end: {command:?}");
        }
        assert_eq!(messages(&commands).len(), 2, "{key}: both who came anew");
    }
}

#[test]
fn what_only_the_scheduler_obeys_may_change() {
    let mut before = rig_of(1, WorkerLoss::Wait);
    declared(&mut before);
    let resume = shown(&before);
    let mut rig = next_after(&before);
    let shape = &mut rig.engine.config.shape;
    (shape.heartbeat_ms, shape.silence_ms, shape.scheduler_ms, shape.workers_min) = (20, 200, 2_000, 2);
    rig.engine.config.rejoin_ms = 900;
    rig.engine.config.rebalance = false;
    for id in [server(0), server(1), worker(0), worker(1)] {
        come_again(&mut rig, id, &resume);
    }
    assert_eq!(rig.engine.phase, Phase::Running);
}

/// One that slept told its members its settings itself.
#[test]
fn a_stranger_does_not_end_a_scheduler_that_woke() {
    let mut before = rig_of(1, WorkerLoss::Wait);
    declared(&mut before);
    let mut resume = shown(&before);
    before.tick_at(100 * SILENCE_MS);
    assert_eq!(before.engine.phase, Phase::Rebuilding);
    resume.shape.as_mut().expect("shown").lanes = 5;
    let commands = come_again(&mut before, worker(0), &resume);
    assert!(matches!(messages(&commands)[0], FromScheduler::Refused(RefusalReason::Misplaced(_))));
    assert_eq!(before.engine.phase, Phase::Rebuilding);
}
