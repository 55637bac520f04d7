//! What deaths, returns and restarts mean, as lists of commands.

use super::*;
use proto_common::error::DeathCause;
use proto_common::message::{self, Coming, ROUNDS_PART_MAX, Resume, RoundsPart, WaitError};
use proto_common::shard_map::MapChange;

pub(super) fn rig_of(replicas: u32, loss: WorkerLoss) -> Rig {
    let mut rig = Rig::new(2, 2);
    let mut config = rig.engine.config.clone();
    (config.shape.replicas, config.shape.worker_loss, config.shape.server_places) = (replicas, loss, 3);
    config.shape.scheduler_ms = 1_000;
    rig.engine = Engine::new(config, 0);
    for id in [server(0), server(1), worker(0), worker(1)] {
        let message = Register { wanted_rank: Some(id.rank), ..register(id.role, connection(id).0 + 1) };
        rig.say(id, ToScheduler::Register(message));
    }
    assert_eq!(rig.engine.phase, Phase::Running);
    rig
}

/// A tensor of four chunks that servers have allocated.
pub(super) fn declared(rig: &mut Rig) {
    let tensors = vec![TensorSpec { name: "w".into(), ..TensorSpec::f32(7, 4 * 1024, Optimizer::sum()) }];
    rig.say(worker(0), ToScheduler::Declare { request: 1, tensors, timeout_ms: 50 });
    let epoch = rig.engine.epoch();
    for rank in 0..2 {
        rig.say(server(rank), ToScheduler::Assigned { epoch, error: None });
    }
}

pub(super) fn messages(commands: &[Command]) -> Vec<&FromScheduler> {
    let sent = commands.iter().filter_map(|command| match command {
        Command::Send { message, .. } => Some(message.as_ref()),
        _ => None,
    });
    sent.collect()
}

#[test]
fn a_servers_death_promotes_its_copy_and_the_next_server_gets_one() {
    let mut rig = rig_of(1, WorkerLoss::Stop);
    declared(&mut rig);
    let commands = rig.lose(server(0));
    let [FromScheduler::Remap { epoch, change }, FromScheduler::Roster { members, .. }] =
        messages(&commands)[..]
    else {
        panic!("{commands:?}")
    };
    assert_eq!((*epoch, change), (Epoch { term: 1, counter: 3 }, &MapChange::ServerGone(Rank(0))));
    assert_eq!(members.len(), 3);
    // Its place is free. The new one is told everything, and gets copies of what has none.
    let commands = rig.say_on(50, ToScheduler::Register(register(Role::Server, 9)));
    let sent = messages(&commands);
    assert!(matches!(sent[0], FromScheduler::Welcome(welcome) if welcome.rank == Rank(0)), "{commands:?}");
    assert!(matches!(sent[1], FromScheduler::Roster { members, .. } if members.len() == 4));
    assert!(matches!(sent[2], FromScheduler::Assign(update) if update.tensors.len() == 1));
    let FromScheduler::Remap { epoch, change: MapChange::Ranges(ranges) } = sent[3] else {
        panic!("{commands:?}")
    };
    assert!(ranges.iter().all(|range| (range.server, range.seeding) == (Rank(1), Some(Rank(0)))));
    let early = Epoch { counter: epoch.counter - 1, ..*epoch };
    assert!(rig.say(server(1), ToScheduler::Seeded { epoch: early, to: Rank(0) }).is_empty(), "of before");
    let commands = rig.say(server(1), ToScheduler::Seeded { epoch: *epoch, to: Rank(0) });
    let FromScheduler::Remap { change: MapChange::Ranges(ranges), .. } = messages(&commands)[0] else {
        panic!("{commands:?}")
    };
    assert!(ranges.iter().all(|range| range.backup == Some(Rank(0)) && range.seeding.is_none()));
    // Half of it is served there from now on: the copy is there.
    let map = rig.engine.declarations.shards.map();
    let at_first: u32 = map.ranges().filter(|range| range.server == Rank(0)).map(|range| range.chunks).sum();
    assert_eq!(at_first, 2, "{:?}", map.ranges().collect::<Vec<_>>());
}

#[test]
fn a_server_that_dies_while_all_seem_done_is_taken_over_from_when_a_worker_comes() {
    use proto_common::message::CheckpointNews;
    let mut rig = rig_of(1, WorkerLoss::Continue);
    declared(&mut rig);
    rig.say(server(0), ToScheduler::Checkpoint(CheckpointNews::Begun { round: 5 }));
    rig.say(server(1), ToScheduler::Checkpoint(CheckpointNews::Begun { round: 5 }));
    rig.say(worker(0), ToScheduler::Goodbye);
    rig.say(worker(1), ToScheduler::Goodbye);
    assert!(rig.engine.saving.is_some());
    // The job waits for its last checkpoint only, and a worker comes just then.
    rig.engine.death(0, Death { member: server(0), cause: DeathCause::ConnectionLost }, &mut Vec::new());
    rig.engine.members.close(server(0));
    rig.say_on(50, ToScheduler::Register(register(Role::Worker, 9)));
    let commands = rig.tick_at(1);
    assert_eq!(rig.engine.phase, Phase::Running);
    assert!(rig.engine.members.get(server(0)).is_none(), "{commands:?}");
    assert!(rig.engine.declarations.shards.is_empty_at(Rank(0)));
}

#[test]
fn without_copies_the_error_names_what_went_and_what_to_do() {
    let mut rig = rig_of(0, WorkerLoss::Continue);
    declared(&mut rig);
    rig.engine.last_checkpoint = Some("round-000000120".into());
    let commands = rig.lose(server(1));
    let FromScheduler::MemberDied(death) = only(&commands) else { panic!("{commands:?}") };
    let text = death.to_string();
    for words in ["server 1 failed", "tensors 7 (w)", "round-000000120", "cluster.replicas = 1"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    rig.engine.last_checkpoint = None;
    let text = rig.engine.loss(&[Key(7)]);
    assert!(text.contains("there is no checkpoint: restart the job"), "{text}");
}

#[test]
fn a_backup_that_has_neither_its_copy_nor_the_checkpoint_ends_the_job_and_says_so() {
    let mut rig = rig_of(1, WorkerLoss::Wait);
    declared(&mut rig);
    rig.engine.last_checkpoint = Some("round-000000120".into());
    rig.lose(server(0));
    let epoch = rig.engine.epoch();
    let error = Some(message::NotTaken { reason: "part 1 is damaged".into(), is_checkpoint: true });
    let commands = rig.say(server(1), ToScheduler::Assigned { epoch, error });
    let FromScheduler::MemberDied(death) = only(&commands) else { panic!("{commands:?}") };
    let text = death.to_string();
    for words in
        ["server 1 failed", "no copy of yet", "part 1 is damaged", "tensors 7 (w)", "checkpoint.restore"]
    {
        assert!(text.contains(words), "{words}: {text}");
    }
}

#[test]
fn where_the_last_server_follows_the_one_that_it_had_copies_of_the_error_names_what_went() {
    let mut rig = rig_of(1, WorkerLoss::Wait);
    declared(&mut rig);
    rig.lose(server(0));
    let commands = rig.lose(server(1));
    let FromScheduler::MemberDied(death) = only(&commands) else { panic!("{commands:?}") };
    assert!(death.to_string().contains("no other server has its part of tensors 7 (w)"), "{death}");
}

#[test]
fn a_worker_is_waited_for_so_long() {
    let mut rig = rig_of(1, WorkerLoss::Wait);
    rig.now_ms = 5;
    let commands = rig.lose(worker(1));
    assert!(
        matches!(only(&commands), FromScheduler::Roster { members, left, .. } if members.len() == 3 && left.is_empty())
    );
    // Its old life is no member any more, a new one has its place.
    let commands = rig.say_on(60, ToScheduler::Register(register(Role::Worker, connection(worker(1)).0 + 1)));
    assert!(
        matches!(only(&commands), FromScheduler::Refused(reason) if reason.to_string().contains("new process"))
    );
    let commands = rig.say_on(61, ToScheduler::Register(register(Role::Worker, 99)));
    let sent = messages(&commands);
    assert!(matches!(sent[0], FromScheduler::Welcome(w) if (w.rank, w.coming) == (Rank(1), Coming::Again)));
    assert!(matches!(sent[1], FromScheduler::Roster { members, .. } if members.len() == 4));
    rig.handle(Input::Closed { connection: ConnectionId(61), fault: None });
    for now_ms in (10..505).step_by(9) {
        rig.now_ms = now_ms;
        for id in [server(0), server(1), worker(0)] {
            rig.say(id, ToScheduler::Heartbeat(MemberReport::default()));
        }
    }
    let commands = rig.tick_at(505);
    let FromScheduler::MemberDied(death) = only(&commands) else { panic!("{commands:?}") };
    assert!(death.to_string().contains("did not rejoin within 500 ms"), "{death}");
    // Said once; those who do not leave hold the end up for so long, and no longer.
    assert!(rig.tick_at(506).is_empty());
    assert_eq!(rig.engine.next_tick_ms(506), 516);
    assert!(rig.tick_at(505 + DRAIN_MS - 1).is_empty());
    assert!(matches!(rig.tick_at(505 + DRAIN_MS).as_slice(), [Command::End(Outcome::Died(_))]));
}

#[test]
fn without_a_worker_barriers_go_on_and_the_next_one_counts_from_where_servers_say() {
    let mut rig = rig_of(1, WorkerLoss::Continue);
    let group = NodeGroup::WORKERS;
    let barrier = ToScheduler::Barrier { request: 4, name: "b".into(), group, passed: 0, timeout_ms: 50 };
    assert!(rig.say(worker(0), barrier).is_empty());
    let pid = rig.engine.members.get(worker(1)).unwrap().pid;
    let commands = quiet(rig.lose(worker(1)));
    assert_eq!(commands, [to(&[worker(0)], FromScheduler::Released { request: 4, result: Ok(()) })]);
    let failed = rig.engine.status(rig.now_ms).recovery.failed;
    assert_eq!(
        failed.iter().map(|failed| (failed.member, failed.pid)).collect::<Vec<_>>(),
        [(worker(1), pid)]
    );
    let commands = rig.say_on(70, ToScheduler::Register(register(Role::Worker, 99)));
    let sent = messages(&commands);
    assert!(matches!(sent[0], FromScheduler::Welcome(welcome) if welcome.coming == Coming::Between));
    assert!(matches!(sent[2], FromScheduler::AskRounds { rank: Rank(1), .. }), "{commands:?}");
    let incarnation = Incarnation(99);
    let answer = |round| ToScheduler::Rounds {
        rank: Rank(1),
        incarnation,
        rounds: RoundsPart::whole(vec![(Key(7), round)]),
    };
    assert!(rig.say(server(1), answer(5)).is_empty());
    let commands = rig.say(server(0), answer(3));
    let counts =
        FromScheduler::CountFrom { rank: Rank(1), incarnation, rounds: RoundsPart::whole(vec![(Key(7), 5)]) };
    assert_eq!(*only(&commands), counts, "the highest, once all have answered");
}

#[test]
fn a_worker_whose_first_rounds_are_not_said_in_time_is_taken_out_with_words() {
    let mut rig = rig_of(1, WorkerLoss::Continue);
    rig.lose(worker(1));
    rig.say_on(70, ToScheduler::Register(register(Role::Worker, 99)));
    let (rank, incarnation) = (Rank(1), Incarnation(99));
    let answer = |rounds| ToScheduler::Rounds { rank, incarnation, rounds };
    // One server says it; the other one a first part of it.
    assert!(rig.say(server(1), answer(RoundsPart::whole(vec![(Key(7), 5)]))).is_empty());
    let part = RoundsPart { last: false, ..RoundsPart::whole(vec![(Key(7), 6)]) };
    assert!(rig.say(server(0), answer(part)).is_empty());
    for now_ms in (10..500).step_by(10) {
        assert!(rig.engine.next_tick_ms(rig.now_ms) <= 500);
        rig.now_ms = now_ms;
        for id in [server(0), server(1), worker(0)] {
            rig.say(id, ToScheduler::Heartbeat(MemberReport::default()));
        }
        rig.say_on(70, ToScheduler::Heartbeat(MemberReport::default()));
        assert!(rig.tick_at(now_ms).is_empty());
    }
    let commands = rig.tick_at(500);
    let [FromScheduler::Refused(reason), FromScheduler::Roster { members, .. }] = messages(&commands)[..]
    else {
        panic!("{commands:?}")
    };
    let reason = reason.to_string();
    assert!(
        reason.contains("servers 0 did not report within 500 ms") && reason.contains("rejoin_ms"),
        "{reason}"
    );
    assert!(commands.contains(&Command::Close { connection: ConnectionId(70) }));
    assert_eq!(members.len(), 3);
    let last = RoundsPart { part: 1, last: true, rounds: vec![(Key(8), 2)] };
    assert!(rig.say(server(0), answer(last)).is_empty(), "too late");
}

#[test]
fn rounds_of_more_tensors_than_a_message_holds_come_and_go_in_parts() {
    let mut rig = rig_of(1, WorkerLoss::Continue);
    rig.lose(worker(1));
    rig.say_on(70, ToScheduler::Register(register(Role::Worker, 99)));
    let (rank, incarnation) = (Rank(1), Incarnation(99));
    let many: Vec<_> = (0..ROUNDS_PART_MAX as u64 + 1).map(|key| (Key(key), 3)).collect();
    let mut commands = Vec::new();
    for server in [server(0), server(1)] {
        for rounds in RoundsPart::cut(&many) {
            assert!(commands.is_empty(), "before all have said all");
            commands = rig.say(server, ToScheduler::Rounds { rank, incarnation, rounds });
        }
    }
    let told = RoundsPart::cut(&many).into_iter();
    let told: Vec<_> = told.map(|rounds| FromScheduler::CountFrom { rank, incarnation, rounds }).collect();
    assert_eq!(messages(&commands), told.iter().collect::<Vec<_>>());
}

#[test]
fn a_server_that_wishes_to_go_goes_when_it_has_nothing() {
    let mut rig = rig_of(1, WorkerLoss::Stop);
    declared(&mut rig);
    let commands = rig.say(server(1), ToScheduler::Drain);
    assert!(commands.iter().all(
        |c| matches!(c, Command::Send { message, .. } if matches!(**message, FromScheduler::Remap { .. }))
    ));
    assert!(rig.engine.declarations.shards.is_empty_at(Rank(1)), "the copies were where they were to go");
    let commands = rig.say(server(1), ToScheduler::Goodbye);
    assert_eq!(
        commands[commands.len() - 2..],
        [goodbye_ack(server(1)), close(server(1))],
        "it goes when they are told"
    );
    assert!(matches!(only(&commands), FromScheduler::Roster { members, .. } if members.len() == 3));
    let commands = rig.say(server(0), ToScheduler::Goodbye);
    assert!(matches!(only(&commands), FromScheduler::MemberDied(_)), "the last one may not");
}

/// What a member of this cluster knows.
pub(super) fn known_in(before: &Rig) -> Resume {
    let members = before.engine.members.iter().map(|(id, member)| member.entry(id)).collect();
    let (map, epoch) = (before.engine.declarations.shards.map().whole(), before.engine.epoch());
    Resume { epoch, members, map, ..Resume::default() }
}

/// A scheduler that is started with the settings of this one.
pub(super) fn next_after(before: &Rig) -> Rig {
    Rig { engine: Engine::new(before.engine.config.clone(), 0), now_ms: 0 }
}

/// What a member of that cluster says to the next scheduler.
pub(super) fn come_again(rig: &mut Rig, id: MemberId, resume: &Resume) -> Vec<Command> {
    let resume = Resume { rank: id.rank, ..resume.clone() };
    let again = Register { resume: Some(resume.head()), ..register(id.role, connection(id).0 + 1) };
    let mut commands = rig.say(id, ToScheduler::Register(again));
    commands.extend(rig.say(id, ToScheduler::Resuming { part: resume, last: true }));
    commands
}

#[test]
fn the_next_scheduler_decides_nothing_before_all_have_come() {
    let mut before = rig_of(1, WorkerLoss::Wait);
    declared(&mut before);
    let barriers = vec![("b".into(), NodeGroup::WORKERS, 1)];
    let resume = Resume { rank: Rank(0), term: 4, barriers, ..known_in(&before) };
    let mut rig = next_after(&before);
    for id in [server(1), worker(0), worker(1)] {
        assert!(come_again(&mut rig, id, &resume).is_empty());
    }
    assert_eq!(rig.engine.phase, Phase::Rebuilding);
    assert_eq!(rig.engine.standing(connection(worker(0))), Standing::Member, "it was one before");
    assert!(rig.say_on(80, ToScheduler::Register(register(Role::Server, 80))).is_empty(), "strangers wait");
    assert_eq!(rig.engine.standing(ConnectionId(80)), Standing::Waiting);
    let commands = come_again(&mut rig, server(0), &resume);
    let welcomes = messages(&commands).into_iter().filter(|m| matches!(m, FromScheduler::Welcome(_))).count();
    assert_eq!((welcomes, &rig.engine.phase), (5, &Phase::Running), "the stranger, too");
    assert!(rig.engine.epoch() > Epoch { term: 5, counter: 0 } && rig.engine.epoch().term == 5);
    let behind = ToScheduler::Barrier {
        request: 1,
        name: "b".into(),
        group: NodeGroup::WORKERS,
        passed: 0,
        timeout_ms: 50,
    };
    let commands = rig.say(worker(1), behind);
    let result: Result<(), WaitError> = Ok(());
    assert_eq!(
        *only(&commands),
        FromScheduler::Released { request: 1, result },
        "it was opened for another one"
    );
}

#[test]
fn who_waits_to_be_let_in_says_nothing_else() {
    let mut before = rig_of(1, WorkerLoss::Wait);
    declared(&mut before);
    let resume = known_in(&before);
    let mut rig = next_after(&before);
    come_again(&mut rig, worker(0), &resume);
    let order = ToScheduler::OrderCheckpoint { protocol: PROTOCOL_VERSION, timeout_ms: 50 };
    for strange in [ToScheduler::Identify, order, ToScheduler::Goodbye] {
        assert_eq!(rig.say(worker(0), strange), [], "its connection stays, and so does what it said");
    }
    for id in [server(0), server(1)] {
        come_again(&mut rig, id, &resume);
    }
    let commands = come_again(&mut rig, worker(1), &resume);
    let welcomes = messages(&commands).into_iter().filter(|m| matches!(m, FromScheduler::Welcome(_))).count();
    assert_eq!(welcomes, 4);
}

#[test]
fn the_next_scheduler_asks_again_from_where_workers_count() {
    let mut before = rig_of(1, WorkerLoss::Continue);
    declared(&mut before);
    before.lose(worker(1));
    // It came in between, and the scheduler died before servers had answered.
    let commands = before.say_on(connection(worker(1)).0, ToScheduler::Register(register(Role::Worker, 99)));
    assert!(messages(&commands).iter().any(|m| matches!(m, FromScheduler::AskRounds { rank: Rank(1), .. })));
    let resume = known_in(&before);
    let life = |id: MemberId| resume.members.iter().find(|one| one.id == id).map(|one| one.incarnation);
    let mut rig = next_after(&before);
    let mut commands = Vec::new();
    for id in [server(0), server(1), worker(0), worker(1)] {
        let resume = Resume { rank: id.rank, ..resume.clone() };
        let again = Register { resume: Some(resume.head()), ..register(id.role, life(id).unwrap().0) };
        rig.say(id, ToScheduler::Register(again));
        commands = rig.say(id, ToScheduler::Resuming { part: resume, last: true });
    }
    let asked: Vec<_> = messages(&commands)
        .into_iter()
        .filter_map(|message| match message {
            FromScheduler::AskRounds { rank, incarnation } => Some((*rank, *incarnation)),
            _ => None,
        })
        .collect();
    assert_eq!(asked, [0, 1].map(|rank| (Rank(rank), life(worker(rank)).unwrap())), "{commands:?}");
    let incarnation = Incarnation(99);
    let answer = |round| ToScheduler::Rounds {
        rank: Rank(1),
        incarnation,
        rounds: RoundsPart::whole(vec![(Key(7), round)]),
    };
    assert!(rig.say(server(0), answer(6)).is_empty());
    let commands = rig.say(server(1), answer(4));
    let counts =
        FromScheduler::CountFrom { rank: Rank(1), incarnation, rounds: RoundsPart::whole(vec![(Key(7), 6)]) };
    assert_eq!(*only(&commands), counts);
}

#[test]
fn who_does_not_come_to_the_next_scheduler_is_dead() {
    let mut before = rig_of(1, WorkerLoss::Wait);
    declared(&mut before);
    let resume = known_in(&before);
    let mut rig = next_after(&before);
    come_again(&mut rig, server(0), &resume);
    assert!(rig.wait_until(SILENCE_MS).is_empty(), "without any worker nothing is decided");
    let commands = come_again(&mut rig, worker(0), &resume);
    let gone =
        |m: &&FromScheduler| matches!(m, FromScheduler::Remap { change: MapChange::ServerGone(Rank(1)), .. });
    assert_eq!(messages(&commands).into_iter().filter(gone).count(), 1, "{commands:?}");
    assert!(rig.engine.declarations.shards.map().ranges().all(|range| range.server == Rank(0)));
    assert!(rig.engine.members.awaited().eq([Rank(1)]));
    let commands = come_again(&mut rig, server(1), &resume);
    assert!(
        messages(&commands).iter().any(|m| matches!(m, FromScheduler::Refused(_))),
        "too late: {commands:?}"
    );
}

/// The only worker is gone, and the scheduler too: servers know all, where every one of them has come.
#[test]
fn without_workers_all_servers_are_enough_for_one_that_follows() {
    let mut before = rig_of(1, WorkerLoss::Wait);
    declared(&mut before);
    let resume = known_in(&before);
    let mut config = EngineConfig { resume: true, ..before.engine.config.clone() };
    config.shape.scheduler_ms = 10 * SILENCE_MS;
    let mut rig = Rig { engine: Engine::new(config, 0), now_ms: 0 };
    come_again(&mut rig, server(1), &resume);
    let again = Register { wanted_rank: Some(Rank(1)), ..register(Role::Worker, 80) };
    assert!(rig.say_on(80, ToScheduler::Register(again)).is_empty());
    assert!(rig.wait_until(2 * SILENCE_MS).is_empty(), "server 0 may know more");
    come_again(&mut rig, server(0), &resume);
    assert_eq!(rig.engine.phase, Phase::Running);
    assert_eq!(rig.engine.member_of(ConnectionId(80)), Some(worker(1)), "it has died, and come again");
    assert!(rig.engine.members.awaited().eq([Rank(0)]));
}

#[test]
fn a_scheduler_that_slept_too_long_asks_its_members_what_they_know() {
    let mut rig = rig_of(1, WorkerLoss::Stop);
    declared(&mut rig);
    let commands = rig.tick_at(SILENCE_MS);
    assert_eq!(commands.len(), 4, "all connections close: {commands:?}");
    assert!(commands.iter().all(|command| matches!(command, Command::Close { .. })));
    assert_eq!(rig.engine.phase, Phase::Rebuilding);
}

#[test]
fn one_that_slept_while_members_came_reads_what_they_said_before_it_judges_who_is_silent() {
    let mut before = rig_of(1, WorkerLoss::Wait);
    declared(&mut before);
    let resume = known_in(&before);
    for slept_ms in [SILENCE_MS / 2, 8 * SILENCE_MS] {
        let mut rig = next_after(&before);
        come_again(&mut rig, worker(0), &resume);
        rig.wait_until(SILENCE_MS * 3 / 5);
        assert!(rig.tick_at(rig.now_ms + slept_ms).is_empty(), "they have said it while it slept");
        for id in [server(0), server(1), worker(1)] {
            come_again(&mut rig, id, &resume);
        }
        assert_eq!(rig.engine.phase, Phase::Running);
        assert_eq!(rig.engine.members.changes().lost, 0);
    }
}

#[test]
fn one_that_slept_before_anybody_came_waits_for_them() {
    let mut before = rig_of(1, WorkerLoss::Wait);
    declared(&mut before);
    let resume = known_in(&before);
    let config = EngineConfig { resume: true, ..before.engine.config.clone() };
    let mut rig = Rig { engine: Engine::new(config, 0), now_ms: 0 };
    rig.wait_until(10);
    assert!(rig.tick_at(2 * ASSEMBLE_MS).is_empty(), "they have come while it slept");
    for id in [server(0), server(1), worker(0), worker(1)] {
        come_again(&mut rig, id, &resume);
    }
    assert_eq!(rig.engine.phase, Phase::Running);
}

#[test]
fn one_that_woke_up_after_its_job_does_not_hold_up_the_next_one() {
    let mut rig = Rig::new(1, 1);
    rig.say(worker(0), ToScheduler::Register(register(Role::Worker, 5)));
    let entry = message::Member {
        id: server(0),
        incarnation: Incarnation(connection(server(0)).0 + 1),
        data_address: None,
        http_address: None,
    };
    let stale = Resume {
        epoch: Epoch { term: 1, counter: 9 },
        members: vec![
            entry.clone(),
            message::Member { id: worker(0), incarnation: Incarnation(77), ..entry },
        ],
        ..Resume::default()
    };
    assert!(come_again(&mut rig, server(0), &stale).is_empty());
    assert_eq!(rig.engine.phase, Phase::Rebuilding);
    let commands = rig.wait_until(2 * SILENCE_MS);
    assert!(matches!(only(&commands), FromScheduler::Refused(_)), "{commands:?}");
    assert_eq!(rig.engine.phase, Phase::Assembling);
    rig.say_on(40, ToScheduler::Register(register(Role::Server, 6)));
    assert_eq!(rig.engine.phase, Phase::Running);
}

/// A new life may come before those who know that there is a cluster, and is welcomed; then others have their time to come.
#[test]
fn who_came_before_it_was_known_that_there_is_a_cluster_hears_that_the_scheduler_lives() {
    let mut before = rig_of(1, WorkerLoss::Wait);
    declared(&mut before);
    let resume = known_in(&before);
    let mut rig = next_after(&before);
    let again = Register { wanted_rank: Some(Rank(1)), ..register(Role::Worker, 80) };
    rig.say_on(80, ToScheduler::Register(again));
    for id in [server(0), server(1), worker(0)] {
        come_again(&mut rig, id, &resume);
    }
    assert_eq!(rig.engine.phase, Phase::Rebuilding, "worker 1 of before may come");
    let commands = rig.say_on(80, ToScheduler::Heartbeat(MemberReport::default()));
    assert_eq!(only(&commands), &FromScheduler::HeartbeatAck);
    rig.wait_until(SILENCE_MS);
    assert_eq!(rig.engine.member_of(ConnectionId(80)), Some(worker(1)), "it has died, and come again");
    assert!(
        rig.say_on(81, ToScheduler::Heartbeat(MemberReport::default())).len() == 2,
        "a stranger is refused"
    );
}

/// Its rank could be that of a member which comes later.
#[test]
fn who_wants_no_rank_waits_until_it_is_known_whose_are_free() {
    let mut before = rig_of(1, WorkerLoss::Wait);
    declared(&mut before);
    let resume = known_in(&before);
    let mut rig = next_after(&before);
    assert!(rig.say_on(80, ToScheduler::Register(register(Role::Server, 80))).is_empty());
    for id in [worker(1), worker(0), server(0)] {
        come_again(&mut rig, id, &resume);
    }
    assert_eq!(rig.engine.member_of(ConnectionId(80)), None, "server 1 may come");
    rig.wait_until(SILENCE_MS);
    assert_eq!(rig.engine.member_of(connection(server(0))), Some(server(0)));
    assert_eq!(rig.engine.member_of(ConnectionId(80)), Some(server(1)), "which has not come");
}

/// All servers have died while there was no scheduler.
#[test]
fn the_next_scheduler_names_what_went_with_all_servers() {
    let mut before = rig_of(1, WorkerLoss::Wait);
    declared(&mut before);
    let resume = known_in(&before);
    let mut rig = next_after(&before);
    // Workers alone are no majority here: the servers could follow another scheduler.
    rig.engine.config.force = true;
    for id in [worker(0), worker(1)] {
        come_again(&mut rig, id, &resume);
    }
    let commands = rig.wait_until(SILENCE_MS);
    let died = messages(&commands).into_iter().find_map(|message| match message {
        FromScheduler::MemberDied(death) => Some(death.to_string()),
        _ => None,
    });
    let text = died.expect("nobody has the data any more");
    assert!(text.contains("tensors 7 (w)") && text.contains("there is no checkpoint"), "{text}");
}
