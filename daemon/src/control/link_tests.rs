//! The scheduler link against a scheduler made of a listener and a script.

use super::*;
use crate::host;
use crate::security::Security;
use proto_common::error::ExitCode;
use proto_common::ids::{Epoch, Incarnation, JobId, Rank, Role};
use proto_common::limits::PROTOCOL_VERSION;
use proto_common::message::{Coming, MapDigest, NodeGroup, RefusalReason};
use proto_common::optimizer::Optimizer;
use proto_common::shard_map::MapUpdate;
use proto_common::tensor::TensorSpec;
use proto_common::transport::Policies;
use tokio::net::TcpListener;
use tokio::time::timeout;

static PLAIN: Security = Security::off();

const LONG: Duration = Duration::from_secs(5);

fn register() -> Register {
    Register {
        protocol: PROTOCOL_VERSION,
        build: "test".into(),
        job: JobId(0),
        role: Role::Worker,
        incarnation: Incarnation(1),
        wanted_rank: None,
        data_address: None,
        http_address: None,
        host: None,
        pid: 1,
        offer: host::offer(Policies::default(), Vec::new()).unwrap(),
        rules: Vec::new(),
        resume: None,
    }
}

fn welcome(settings: &Settings) -> FromScheduler {
    welcome_of(settings, 1)
}

fn welcome_of(settings: &Settings, term: u32) -> FromScheduler {
    FromScheduler::Welcome(Welcome {
        rank: Rank(2),
        job: JobId(0),
        epoch: Epoch { term, counter: 0 },
        scheduler: Incarnation(9),
        shape: settings.shape(),
        coming: Coming::Start,
        restore: None,
    })
}

async fn listen() -> (TcpListener, Settings) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut settings = Settings::default();
    settings.scheduler.port = listener.local_addr().unwrap().port();
    settings.deadlines.heartbeat_ms = 10;
    settings.deadlines.silence_ms = 500;
    settings.deadlines.connect_ms = 1_000;
    (listener, settings)
}

/// A link and the scheduler's end of it. It does not survive the scheduler.
async fn linked() -> (SchedulerLink, Connection) {
    let (link, connection, ..) = linked_for(0, None).await;
    (link, connection)
}

/// A link that looks for the next scheduler for so long, with what it knows; the scheduler's end, and its listener.
async fn linked_for(
    scheduler_ms: u64,
    known: Option<Resume>,
) -> (SchedulerLink, Connection, TcpListener, Settings) {
    let (listener, mut settings) = listen().await;
    settings.deadlines.scheduler_ms = scheduler_ms;
    let resume = move || known.clone();
    let scheduler = async {
        let mut connection = Connection::new(listener.accept().await.unwrap().0).unwrap();
        let first = connection.receive_within::<ToScheduler>(LONG).await.unwrap().unwrap();
        assert_eq!(first, ToScheduler::Register(register()));
        connection.send_within(&welcome(&settings), LONG).await.unwrap();
        connection
    };
    let report = || MemberReport { round: 7, ..MemberReport::default() };
    let (link, connection) =
        tokio::join!(SchedulerLink::connect((&settings, &PLAIN), register(), report, resume), scheduler);
    let (link, welcome) = link.unwrap();
    assert_eq!(welcome.rank, Rank(2));
    (link, connection, listener, settings)
}

#[tokio::test]
async fn heartbeats_carry_the_report_and_messages_pass_both_ways() {
    let (mut link, mut scheduler) = linked().await;
    let beat = scheduler.receive_within::<ToScheduler>(LONG).await.unwrap().unwrap();
    assert!(matches!(beat, ToScheduler::Heartbeat(MemberReport { round: 7, .. })), "{beat:?}");
    scheduler.send_within(&FromScheduler::HeartbeatAck, LONG).await.unwrap();
    scheduler.send_within(&FromScheduler::Shutdown { reason: "over".into() }, LONG).await.unwrap();
    let event = link.events.recv().await.unwrap();
    assert!(matches!(event, LinkEvent::Message(FromScheduler::Shutdown { .. })), "{event:?}");
    link.sender().send(&ToScheduler::LinksReady).await.unwrap();
    let end = async {
        let mut heard = Vec::new();
        while let Some(message) = scheduler.receive_within::<ToScheduler>(LONG).await.unwrap() {
            heard.push(message);
        }
        heard.retain(|message| !matches!(message, ToScheduler::Heartbeat(_)));
        heard
    };
    let (finished, heard) = tokio::join!(link.finish(&ToScheduler::Goodbye, Duration::from_millis(50)), end);
    finished.unwrap();
    assert_eq!(heard, [ToScheduler::LinksReady, ToScheduler::Goodbye]);
}

#[tokio::test]
async fn a_lost_scheduler_is_told_at_once_and_a_silent_one_in_time() {
    let (mut link, scheduler) = linked().await;
    drop(scheduler);
    assert!(matches!(link.events.recv().await, Some(LinkEvent::Lost(LinkError::Closed))));
    assert!(link.events.recv().await.is_none(), "it is the last event");
    let (mut link, _scheduler) = linked().await;
    let event = link.events.recv().await;
    assert!(matches!(event, Some(LinkEvent::Lost(LinkError::Silent { silent_ms: 500 }))), "{event:?}");
}

#[tokio::test]
async fn a_refusal_and_a_mute_scheduler_have_their_codes() {
    let (listener, settings) = listen().await;
    let refuse = async {
        let mut connection = Connection::new(listener.accept().await.unwrap().0).unwrap();
        let reason = RefusalReason::RankTaken { rank: Rank(1), places: 2 };
        connection.send_within(&FromScheduler::Refused(reason), LONG).await.unwrap();
        connection
    };
    let (refused, _connection) = tokio::join!(
        SchedulerLink::connect((&settings, &PLAIN), register(), MemberReport::default, || None),
        refuse
    );
    assert_eq!(refused.unwrap_err().exit_code(), ExitCode::Refused);
    let mute = SchedulerLink::connect((&settings, &PLAIN), register(), MemberReport::default, || None)
        .await
        .unwrap_err();
    assert_eq!(mute.exit_code(), ExitCode::SchedulerUnreachable);
    assert!(mute.to_string().contains("did not answer"), "{mute}");
}

#[tokio::test]
async fn a_scheduler_that_dies_before_it_answers_is_no_end_and_one_that_never_answers_is() {
    let (listener, settings) = listen().await;
    let serve = async {
        drop(listener.accept().await.unwrap());
        let mut connection = Connection::new(listener.accept().await.unwrap().0).unwrap();
        assert_eq!(connection.receive_within(LONG).await.unwrap(), Some(ToScheduler::Register(register())));
        connection.send_within(&welcome(&settings), LONG).await.unwrap();
        connection
    };
    let own = (&settings, &PLAIN);
    let (link, _scheduler) =
        tokio::join!(SchedulerLink::connect(own, register(), MemberReport::default, || None), serve);
    assert_eq!(link.unwrap().1.rank, Rank(2));
    let turn_away = async {
        for _ in 0..super::GREETS_MAX {
            drop(listener.accept().await.unwrap());
        }
    };
    let (refused, ()) =
        tokio::join!(SchedulerLink::connect(own, register(), MemberReport::default, || None), turn_away);
    let text = refused.unwrap_err().to_string();
    assert!(text.contains("did not answer the registration"), "{text}");
}

#[tokio::test]
async fn a_message_too_large_is_its_callers_error() {
    let (link, _scheduler) = linked().await;
    let reason = "x".repeat(proto_common::limits::CONTROL_FRAME_BYTES_MAX);
    let error = link.sender().send(&ToScheduler::Failing { reason }).await.unwrap_err();
    assert!(matches!(error, LinkError::Message(_)), "{error}");
}

/// What a member says when it comes again, and the connection that it says it on.
async fn comes_again(listener: &TcpListener) -> (Connection, Register, Resume) {
    let mut connection = Connection::new(listener.accept().await.unwrap().0).unwrap();
    let first = connection.receive_within::<ToScheduler>(LONG).await.unwrap().unwrap();
    let ToScheduler::Register(again) = first else { panic!("{first:?}") };
    let rest = connection.receive_within::<ToScheduler>(LONG).await.unwrap().unwrap();
    let ToScheduler::Resuming { part, last: true } = rest else { panic!("{rest:?}") };
    (connection, again, part)
}

fn known() -> Resume {
    let epoch = Epoch { term: 1, counter: 4 };
    Resume {
        rank: Rank(2),
        term: 1,
        epoch,
        barriers: vec![("b".into(), NodeGroup::ALL, 3)],
        ..Resume::default()
    }
}

/// As it is said: with the settings that the scheduler before had told.
fn told_of(settings: &Settings) -> Resume {
    Resume { shape: Some(settings.shape()), ..known() }
}

#[tokio::test]
async fn the_next_scheduler_is_told_what_the_member_knows_and_hears_what_waited() {
    let (mut link, scheduler, listener, settings) = linked_for(5_000, Some(known())).await;
    drop(scheduler);
    let away = link.events.recv().await;
    assert!(matches!(away, Some(LinkEvent::Away { why: LinkError::Closed, .. })), "{away:?}");
    link.sender().send(&ToScheduler::LinksReady).await.unwrap();
    // One that goes away without an answer, and one that stays.
    drop(listener.accept().await.unwrap());
    let (mut scheduler, again, told) = comes_again(&listener).await;
    assert_eq!(
        again,
        Register { wanted_rank: Some(Rank(2)), resume: Some(told_of(&settings).head()), ..register() }
    );
    assert_eq!(told, told_of(&settings));
    scheduler.send_within(&welcome_of(&settings, 2), LONG).await.unwrap();
    let back = link.events.recv().await;
    assert!(matches!(&back, Some(LinkEvent::Back(welcome)) if welcome.epoch.term == 2), "{back:?}");
    let mut heard = [
        scheduler.receive_within::<ToScheduler>(LONG).await.unwrap().unwrap(),
        scheduler.receive_within::<ToScheduler>(LONG).await.unwrap().unwrap(),
    ];
    heard.sort_by_key(|message| !matches!(message, ToScheduler::Heartbeat(_)));
    assert!(matches!(heard[0], ToScheduler::Heartbeat(_)), "heartbeats go on: {heard:?}");
    assert_eq!(heard[1], ToScheduler::LinksReady, "what was said meanwhile");
}

#[tokio::test]
async fn a_large_map_is_sent_to_a_scheduler_that_asks_for_it() {
    let tensors = (0..1000).map(|key| TensorSpec::f32(key, 1, Optimizer::sum())).collect();
    let map = MapUpdate { epoch: known().epoch, tensors, ranges: Vec::new() };
    let (mut link, scheduler, listener, settings) =
        linked_for(5_000, Some(Resume { map: map.clone(), ..known() })).await;
    drop(scheduler);
    assert!(matches!(link.events.recv().await, Some(LinkEvent::Away { .. })));
    let (mut scheduler, again, told) = comes_again(&listener).await;
    let digest = Some(MapDigest::of(&map));
    assert_eq!((again.resume.and_then(|head| head.digest), told.digest), (digest, digest));
    assert_eq!((told.map.tensors.len(), &told.barriers), (0, &known().barriers));
    scheduler.admit();
    scheduler.send_within(&FromScheduler::SendMap, LONG).await.unwrap();
    let rest = scheduler.receive_within::<ToScheduler>(LONG).await.unwrap().unwrap();
    let ToScheduler::Resuming { part, last: true } = rest else { panic!("{rest:?}") };
    assert_eq!((part.map, part.barriers), (map, Vec::new()));
    scheduler.send_within(&welcome_of(&settings, 2), LONG).await.unwrap();
    assert!(matches!(link.events.recv().await, Some(LinkEvent::Back(_))));
}

#[tokio::test]
async fn a_lower_term_and_a_refusal_end_the_link() {
    let (mut link, scheduler, listener, settings) = linked_for(5_000, Some(known())).await;
    drop(scheduler);
    assert!(matches!(link.events.recv().await, Some(LinkEvent::Away { .. })));
    let (mut scheduler, ..) = comes_again(&listener).await;
    scheduler.send_within(&welcome_of(&settings, 0), LONG).await.unwrap();
    let Some(LinkEvent::Lost(lost)) = link.events.recv().await else { panic!("a deposed one is obeyed") };
    assert!(matches!(lost, LinkError::Deposed { term: 0, known: 1, .. }), "{lost}");
    assert!(link.events.recv().await.is_none(), "it is the last event");

    let (mut link, scheduler, listener, _settings) = linked_for(5_000, Some(known())).await;
    drop(scheduler);
    assert!(matches!(link.events.recv().await, Some(LinkEvent::Away { .. })));
    let (mut scheduler, ..) = comes_again(&listener).await;
    let reason = RefusalReason::Misplaced("declared dead".into());
    scheduler.send_within(&FromScheduler::Refused(reason), LONG).await.unwrap();
    let lost = link.events.recv().await;
    assert!(matches!(&lost, Some(LinkEvent::Lost(LinkError::Refused(_)))), "{lost:?}");
    let last = scheduler.receive_within::<ToScheduler>(LONG).await.unwrap();
    assert_eq!(last, Some(ToScheduler::Goodbye), "a member that exits says so");
}

#[tokio::test]
async fn a_member_votes_once_in_a_term_and_follows_nobody_else_in_it() {
    let (mut link, scheduler, listener, settings) = linked_for(5_000, Some(known())).await;
    drop(scheduler);
    assert!(matches!(link.events.recv().await, Some(LinkEvent::Away { .. })));
    let (mut elected, _, told) = comes_again(&listener).await;
    assert_eq!(told.term, 1);
    for term in [1, 2, 2] {
        elected.send_within(&FromScheduler::Candidate { term }, LONG).await.unwrap();
    }
    let vote = elected.receive_within::<ToScheduler>(LONG).await.unwrap();
    assert_eq!(
        vote,
        Some(ToScheduler::Heard { epoch: Epoch { term: 2, counter: 0 } }),
        "not of term 1, which it has obeyed"
    );
    // It fails before it decides. The next one hears of the vote, and cannot have that term.
    drop(elected);
    let (mut next, _, told) = comes_again(&listener).await;
    assert_eq!(told.term, 2);
    next.send_within(&welcome_of(&settings, 2), LONG).await.unwrap();
    let Some(LinkEvent::Lost(lost)) = link.events.recv().await else { panic!("two schedulers of one term") };
    assert!(matches!(lost, LinkError::Deposed { term: 2, known: 2, .. }), "{lost}");
}

#[tokio::test]
async fn decisions_are_heard_when_they_are_in_force_and_a_silent_scheduler_is_told_of_its_end() {
    let (mut link, mut scheduler, listener, _settings) = linked_for(5_000, Some(known())).await;
    let epoch = Epoch { term: 1, counter: 5 };
    let roster = FromScheduler::Roster { epoch, members: Vec::new(), left: vec![Rank(7)] };
    let answer = |request| FromScheduler::Released { request, result: Ok(()) };
    let rosters = vec![vec![Incarnation(1)]];
    for message in
        [answer(1), roster.clone(), answer(2), FromScheduler::Proposed { epoch, rosters: rosters.clone() }]
    {
        scheduler.send_within(&message, LONG).await.unwrap();
    }
    let mut heard = scheduler.receive_within::<ToScheduler>(LONG).await.unwrap();
    while matches!(heard, Some(ToScheduler::Heartbeat(_))) {
        heard = scheduler.receive_within(LONG).await.unwrap();
    }
    assert_eq!(heard, Some(ToScheduler::Heard { epoch }));
    // It says nothing more. The member has heard of nothing but the first answer.
    let first = link.events.recv().await;
    assert!(
        matches!(first, Some(LinkEvent::Message(FromScheduler::Released { request: 1, .. }))),
        "{first:?}"
    );
    let away = link.events.recv().await;
    assert!(matches!(away, Some(LinkEvent::Away { why: LinkError::Silent { .. }, .. })), "{away:?}");
    let mut last = None;
    while let Some(message) = scheduler.receive_within::<ToScheduler>(LONG).await.unwrap() {
        last = Some(message);
    }
    assert_eq!(last, Some(ToScheduler::Abandons));
    let (_next, _, told) = comes_again(&listener).await;
    assert_eq!(
        (told.epoch, told.left, told.rosters),
        (epoch, vec![Rank(7)], rosters),
        "what may be in force"
    );
}

#[tokio::test]
async fn the_next_scheduler_is_waited_for_so_long_and_only_by_who_is_in_a_roster() {
    let (mut link, scheduler, listener, _settings) = linked_for(100, Some(known())).await;
    drop((scheduler, listener));
    assert!(matches!(link.events.recv().await, Some(LinkEvent::Away { .. })));
    let Some(LinkEvent::Lost(lost)) = link.events.recv().await else { panic!("it waits for ever") };
    assert!(matches!(lost, LinkError::NotBack { waited_ms: 100, .. }), "{lost}");
    assert_eq!(lost.exit_code(), ExitCode::SchedulerUnreachable);
    let (mut link, scheduler, ..) = linked_for(5_000, None).await;
    drop(scheduler);
    assert!(matches!(link.events.recv().await, Some(LinkEvent::Away { .. })));
    assert!(matches!(link.events.recv().await, Some(LinkEvent::Lost(LinkError::Closed))));
}

#[tokio::test]
async fn after_the_schedulers_last_word_nobody_looks_for_another() {
    let (mut link, mut scheduler, ..) = linked_for(5_000, Some(known())).await;
    scheduler.send_within(&FromScheduler::Shutdown { reason: "over".into() }, LONG).await.unwrap();
    drop(scheduler);
    assert!(matches!(link.events.recv().await, Some(LinkEvent::Message(FromScheduler::Shutdown { .. }))));
    assert!(matches!(link.events.recv().await, Some(LinkEvent::Lost(LinkError::Closed))));
}

#[tokio::test]
async fn a_goodbye_is_said_again_to_the_next_scheduler_until_one_confirms_it() {
    let (link, mut scheduler, listener, settings) = linked_for(5_000, Some(known())).await;
    let serve = async {
        let is_bye = |message: &ToScheduler| matches!(message, ToScheduler::Goodbye);
        while !is_bye(&scheduler.receive_within(LONG).await.unwrap().unwrap()) {}
        // It has read it, and dies before it has told anybody.
        drop(scheduler);
        let (mut scheduler, _, told) = comes_again(&listener).await;
        assert_eq!(told, Resume { leaves: true, ..told_of(&settings) });
        scheduler.send_within(&welcome_of(&settings, 2), LONG).await.unwrap();
        assert!(is_bye(&scheduler.receive_within(LONG).await.unwrap().unwrap()), "at once");
        scheduler.send_within(&FromScheduler::GoodbyeAck, LONG).await.unwrap();
        drop(scheduler);
        let third = timeout(Duration::from_millis(100), listener.accept()).await;
        assert!(third.is_err(), "nobody comes again after that");
    };
    let (finished, ()) = tokio::join!(link.finish(&ToScheduler::Goodbye, LONG), serve);
    finished.unwrap();
    // A failing member's word is not: who does not come is dead to the next one.
    let (link, mut scheduler, listener, _settings) = linked_for(5_000, Some(known())).await;
    let failing = ToScheduler::Failing { reason: "x".into() };
    let serve = async {
        while scheduler.receive_within::<ToScheduler>(LONG).await.unwrap().unwrap() != failing {}
        drop(scheduler);
        assert!(timeout(Duration::from_millis(100), listener.accept()).await.is_err());
    };
    let (finished, ()) = tokio::join!(link.finish(&failing, LONG), serve);
    finished.unwrap();
}

#[tokio::test]
async fn the_next_scheduler_may_confirm_a_goodbye_at_once() {
    let (link, mut scheduler, listener, _settings) = linked_for(5_000, Some(known())).await;
    let serve = async {
        while scheduler.receive_within::<ToScheduler>(LONG).await.unwrap().unwrap() != ToScheduler::Goodbye {}
        drop(scheduler);
        let (mut scheduler, ..) = comes_again(&listener).await;
        scheduler.send_within(&FromScheduler::GoodbyeAck, LONG).await.unwrap();
    };
    let (finished, ()) = tokio::join!(link.goodbye(LONG), serve);
    finished.unwrap();
}

#[tokio::test]
async fn a_goodbye_waits_for_the_next_scheduler_and_an_unheard_one_is_an_error() {
    let short = Duration::from_millis(20);
    let (mut link, scheduler, listener, settings) = linked_for(5_000, Some(known())).await;
    drop(scheduler);
    assert!(matches!(link.events.recv().await, Some(LinkEvent::Away { .. })));
    let serve = async {
        // Longer than a member waits for a scheduler that is there to close.
        assert!(timeout(5 * short, std::future::pending::<()>()).await.is_err());
        let (mut scheduler, ..) = comes_again(&listener).await;
        scheduler.send_within(&welcome_of(&settings, 2), LONG).await.unwrap();
        while scheduler.receive_within::<ToScheduler>(LONG).await.unwrap().unwrap() != ToScheduler::Goodbye {}
        scheduler.send_within(&FromScheduler::GoodbyeAck, LONG).await.unwrap();
    };
    let (finished, ()) = tokio::join!(link.goodbye(short), serve);
    finished.unwrap();
    let (mut link, scheduler, listener, _settings) = linked_for(200, Some(known())).await;
    drop((scheduler, listener));
    assert!(matches!(link.events.recv().await, Some(LinkEvent::Away { .. })));
    let finished = link.goodbye(short).await;
    assert!(matches!(finished, Err(LinkError::NotBack { .. })), "{finished:?}");
}
