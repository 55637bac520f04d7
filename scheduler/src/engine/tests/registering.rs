//! Who is let in, with which rank, and what everyone is told.

use super::losing::{messages, rig_of};
use super::*;
use proto_common::message::RefusalReason;

fn refusal(commands: &[Command]) -> String {
    match only(commands) {
        FromScheduler::Refused(reason) => reason.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn ranks_are_given_in_order_or_as_wanted() {
    let mut rig = Rig::new(1, 3);
    let commands = rig.say_on(1, ToScheduler::Register(register(Role::Worker, 1)));
    let welcome = Welcome {
        rank: Rank(0),
        job: JobId(7),
        epoch: Epoch { term: 1, counter: 0 },
        scheduler: Incarnation(99),
        shape: rig.engine.config.shape,
        restore: None,
        coming: Coming::Start,
    };
    assert_eq!(commands, [send(ConnectionId(1), FromScheduler::Welcome(welcome))]);
    let wanted = Register { wanted_rank: Some(Rank(2)), ..register(Role::Worker, 2) };
    rig.say_on(2, ToScheduler::Register(wanted));
    assert_eq!(rig.engine.member_of(ConnectionId(2)), Some(worker(2)));
    rig.say_on(3, ToScheduler::Register(register(Role::Worker, 3)));
    assert_eq!(rig.engine.member_of(ConnectionId(3)), Some(worker(1)), "the gap is filled");
}

#[test]
fn who_takes_the_last_rank_leaves_the_first_to_those_who_want_it() {
    let mut rig = Rig::new(1, 3);
    for (connection, wanted, given) in [(1, Register::LAST, 2), (2, Register::LAST, 1), (3, Rank(0), 0)] {
        let message = Register { wanted_rank: Some(wanted), ..register(Role::Worker, connection) };
        rig.say_on(connection, ToScheduler::Register(message));
        assert_eq!(rig.engine.member_of(ConnectionId(connection)), Some(worker(given)));
    }
}

#[test]
fn the_last_one_completes_the_roster_for_all() {
    let mut rig = Rig::new(1, 1);
    rig.say(worker(0), ToScheduler::Register(register(Role::Worker, 5)));
    assert_eq!(rig.engine.status(0).missing, [server(0)]);
    let commands = rig.say(server(0), ToScheduler::Register(register(Role::Server, 6)));
    let member = |id, incarnation| proto_common::message::Member {
        id,
        incarnation: Incarnation(incarnation),
        data_address: Some("127.0.0.1:1".into()),
        http_address: None,
    };
    let members = vec![member(server(0), 6), member(worker(0), 5)];
    let roster = FromScheduler::Roster { epoch: Epoch { term: 1, counter: 1 }, members, left: Vec::new() };
    assert_eq!(commands[1..], [to(&[server(0), worker(0)], roster)]);
}

#[test]
fn a_worker_too_many_and_a_wrong_rank_are_refused() {
    let mut rig = Rig::new(1, 2);
    rig.say_on(1, ToScheduler::Register(register(Role::Worker, 1)));
    let at_the_end = Register { wanted_rank: Some(Rank(2)), ..register(Role::Worker, 2) };
    assert!(refusal(&rig.say_on(2, ToScheduler::Register(at_the_end))).contains("rank 2 is taken or out"));
    let taken = Register { wanted_rank: Some(Rank(0)), ..register(Role::Worker, 2) };
    assert!(refusal(&rig.say_on(2, ToScheduler::Register(taken))).contains("below 2"));
    rig.say_on(3, ToScheduler::Register(register(Role::Worker, 3)));
    let commands = rig.say_on(4, ToScheduler::Register(register(Role::Worker, 4)));
    assert!(refusal(&commands).contains("the job already has 2 workers, the maximum"));
    assert_eq!(commands[1], Command::Close { connection: ConnectionId(4) });
}

#[test]
fn what_a_host_calls_itself_is_shown() {
    let mut rig = Rig::new(1, 1);
    let host = Some("node-a".to_owned());
    rig.say_on(1, ToScheduler::Register(Register { host: host.clone(), ..register(Role::Worker, 1) }));
    assert_eq!(rig.engine.status(0).members[0].host, host);
}

#[test]
fn strangers_of_every_kind_are_refused() {
    let mut rig = Rig::new(1, 2);
    let mut said = |message: Register| refusal(&rig.say_on(1, ToScheduler::Register(message)));
    let base = register(Role::Worker, 1);
    assert!(said(Register { protocol: 0, ..base.clone() }).contains("same release"));
    assert!(said(Register { job: JobId(8), ..base.clone() }).contains("job 8 is not"));
    assert!(said(Register { role: Role::Scheduler, ..base.clone() }).contains("second scheduler"));
    assert!(said(Register { build: "x".repeat(257), ..base.clone() }).contains("256 bytes"));
    assert!(said(Register { host: Some("x".repeat(257)), ..base.clone() }).contains("256 bytes"));
    assert!(
        said(Register { role: Role::Server, data_address: None, ..base.clone() }).contains("data address")
    );
    rig.say_on(2, ToScheduler::Register(base.clone()));
    let again = refusal(&rig.say_on(3, ToScheduler::Register(base)));
    assert!(again.contains("already registered as worker 0"), "{again}");
}

#[test]
fn registering_twice_on_one_connection_is_a_fault() {
    let mut rig = Rig::running(1, 1);
    let commands = rig.say(worker(0), ToScheduler::Register(register(Role::Worker, 9)));
    assert_eq!(commands[0], close(worker(0)));
    assert!(matches!(only(&commands), FromScheduler::MemberDied(death) if death.member == worker(0)));
}

#[test]
fn a_job_that_ends_takes_nobody() {
    let mut rig = Rig::new(1, 2);
    rig.say(worker(0), ToScheduler::Register(register(Role::Worker, 1)));
    rig.handle(Input::Stop { reason: "SIGTERM".into() });
    let commands = rig.say(worker(1), ToScheduler::Register(register(Role::Worker, 2)));
    assert!(refusal(&commands).contains("the job is ending"));
}

/// A cluster whose scheduler may be one that follows another.
fn following(servers: u32, workers: u32) -> Rig {
    let rig = Rig::new(servers, workers);
    let mut config = rig.engine.config.clone();
    config.shape.scheduler_ms = 1_000;
    Rig { engine: Engine::new(config, 0), now_ms: 0 }
}

#[test]
fn who_wants_no_rank_gets_one_when_all_are_there() {
    let mut rig = following(2, 2);
    for (connection, role) in [(1, Role::Server), (2, Role::Worker), (3, Role::Worker)] {
        assert!(rig.say_on(connection, ToScheduler::Register(register(role, connection))).is_empty());
        assert_eq!(rig.engine.member_of(ConnectionId(connection)), None);
    }
    assert_eq!(rig.engine.status(0).missing, [server(1)]);
    assert_eq!(rig.engine.standing(ConnectionId(1)), Standing::Waiting, "no member yet");
    let again = refusal(&rig.say_on(4, ToScheduler::Register(register(Role::Worker, 3))));
    assert!(again.contains("already registered, and waits for the others"), "{again}");
    let many = refusal(&rig.say_on(5, ToScheduler::Register(register(Role::Worker, 5))));
    assert!(many.contains("the job already has 2 workers, the maximum"), "{many}");
    assert_eq!(rig.say_on(1, ToScheduler::Heartbeat(MemberReport::default())).len(), 1, "answered");
    // One that goes counts no more, and nobody has died.
    assert!(rig.handle(Input::Closed { connection: ConnectionId(2), fault: None }).is_empty());
    assert_eq!(rig.engine.status(0).missing, [server(1), worker(1)]);
    let wanted = Register { wanted_rank: Some(Rank(0)), ..register(Role::Server, 6) };
    assert_eq!(rig.say_on(6, ToScheduler::Register(wanted)).len(), 1, "welcome at once");
    assert_eq!(rig.engine.phase, Phase::Assembling);
    let commands = rig.say_on(7, ToScheduler::Register(register(Role::Worker, 7)));
    assert_eq!(commands.len(), 4, "three are welcome, and the roster: {commands:?}");
    for (connection, id) in [(6, server(0)), (1, server(1)), (3, worker(0)), (7, worker(1))] {
        assert_eq!(rig.engine.member_of(ConnectionId(connection)), Some(id));
        assert_eq!(rig.engine.standing(ConnectionId(connection)), Standing::Member);
    }
    assert_eq!(rig.engine.phase, Phase::Running);
}

#[test]
fn where_nobody_of_before_comes_ranks_are_given_and_who_is_missing_is_told() {
    let mut rig = following(2, 1);
    rig.say_on(1, ToScheduler::Register(register(Role::Server, 1)));
    rig.say_on(2, ToScheduler::Register(register(Role::Worker, 2)));
    assert!(rig.tick_at(SILENCE_MS - 1).is_empty());
    assert_eq!(rig.tick_at(SILENCE_MS).len(), 2, "both are welcome");
    for (connection, id) in [(1, server(0)), (2, worker(0))] {
        assert_eq!(rig.engine.member_of(ConnectionId(connection)), Some(id));
    }
    for now_ms in (SILENCE_MS..ASSEMBLE_MS).step_by(50) {
        rig.now_ms = now_ms;
        for connection in [1, 2] {
            rig.say_on(connection, ToScheduler::Heartbeat(MemberReport::default()));
        }
    }
    let commands = rig.tick_at(ASSEMBLE_MS);
    let refused = commands.iter().filter(|command| {
        matches!(command, Command::Send { message, .. } if matches!(&**message, FromScheduler::Refused(reason)
            if reason.to_string().contains("missing: server 1")))
    });
    assert_eq!(refused.count(), 2, "{commands:?}");
}

#[test]
fn a_job_that_ends_turns_those_away_who_wait_for_a_rank() {
    let mut rig = following(2, 1);
    rig.say_on(1, ToScheduler::Register(register(Role::Server, 1)));
    let wanted = Register { wanted_rank: Some(Rank(0)), ..register(Role::Worker, 2) };
    rig.say_on(2, ToScheduler::Register(wanted));
    let commands = rig.handle(Input::Closed { connection: ConnectionId(2), fault: None });
    assert!(refusal(&commands).contains("the job is over: worker 0 failed"), "{commands:?}");
}

#[test]
fn who_comes_before_the_death_of_its_life_before_is_noticed_may_come_again() {
    let mut rig = Rig::running(1, 2);
    let asks = |wanted| Register { wanted_rank: Some(Rank(wanted)), ..register(Role::Worker, 77) };
    let taken = rig.say_on(60, ToScheduler::Register(asks(1)));
    let Command::Send { message, .. } = &taken[0] else { panic!("{taken:?}") };
    let FromScheduler::Refused(reason @ RefusalReason::Later(words)) = &**message else {
        panic!("{taken:?}")
    };
    assert!(words.contains("deadlines.silence_ms") && words.contains("worker 1"), "{words}");
    assert_eq!(daemon::control::code_of_refusal(reason), proto_common::error::ExitCode::SchedulerUnreachable);
    let none = rig.say_on(61, ToScheduler::Register(asks(2)));
    let Command::Send { message, .. } = &none[0] else { panic!("{none:?}") };
    assert!(matches!(
        &**message,
        FromScheduler::Refused(RefusalReason::Full { .. } | RefusalReason::RankTaken { .. })
    ));
}

#[test]
fn a_server_that_takes_the_place_of_another_is_told_so_and_an_added_one_starts() {
    let mut rig = rig_of(1, WorkerLoss::Continue);
    let coming = |rig: &mut Rig, connection, rank| {
        let asks = Register { wanted_rank: Some(Rank(rank)), ..register(Role::Server, connection) };
        let commands = rig.say_on(connection, ToScheduler::Register(asks));
        let told = messages(&commands);
        let asks = |message: &&FromScheduler| matches!(message, FromScheduler::AskRounds { .. });
        assert!(!told.iter().any(asks), "a server contributes to no round: {commands:?}");
        let FromScheduler::Welcome(welcome) = told[0] else { panic!("{commands:?}") };
        (welcome.rank, welcome.coming)
    };
    assert_eq!(coming(&mut rig, 70, 2), (Rank(2), Coming::Start), "no earlier process had this rank");
    rig.lose(server(1));
    assert_eq!(coming(&mut rig, 71, 1), (Rank(1), Coming::Again));
    // In a new job no server replaces another one.
    let mut rig = Rig::new(2, 1);
    assert_eq!(coming(&mut rig, 72, 1), (Rank(1), Coming::Start));
}

#[test]
fn a_server_with_other_rules_than_the_others_is_refused() {
    let mut rig = Rig::new(2, 1);
    let kind = OwnKind::new("clipped").keeps(2);
    let with = |life, rules: &[OwnKind]| {
        ToScheduler::Register(Register { rules: rules.to_vec(), ..register(Role::Server, life) })
    };
    rig.say_on(1, with(1, std::slice::from_ref(&kind)));
    let text = refusal(&rig.say_on(2, with(2, &[])));
    assert!(
        text.contains("this one has no update rule \"clipped\"") && text.contains("same program"),
        "{text}"
    );
    let text = refusal(&rig.say_on(3, with(3, &[kind.clone().keeps(1)])));
    assert!(text.contains("has no parameters, 1 arrays"), "{text}");
    let text = refusal(&rig.say_on(4, with(4, &[kind.clone(), kind.clone()])));
    assert!(text.contains("not valid") && text.contains("registered twice"), "{text}");
    rig.say_on(5, with(5, std::slice::from_ref(&kind)));
    assert_eq!(rig.engine.member_of(ConnectionId(5)), Some(server(1)));
    rig.say_on(6, ToScheduler::Register(register(Role::Worker, 6)));
    assert_eq!(rig.engine.phase, Phase::Running, "a worker has none");
}
