//! The scheduler link against a scheduler made of a listener and a script.

use super::*;
use crate::host;
use proto_common::error::ExitCode;
use proto_common::ids::{Epoch, Incarnation, JobId, Rank, Role};
use proto_common::limits::PROTOCOL_VERSION;
use proto_common::message::RefusalReason;
use proto_common::transport::Policies;
use tokio::net::TcpListener;

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
        pid: 1,
        offer: host::offer(Policies::default(), Vec::new()).unwrap(),
        resume: None,
    }
}

fn welcome(settings: &Settings) -> FromScheduler {
    FromScheduler::Welcome(Welcome {
        rank: Rank(2),
        job: JobId(0),
        epoch: Epoch { term: 1, counter: 0 },
        scheduler: Incarnation(9),
        shape: settings.shape(),
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

/// A link and the scheduler's end of it.
async fn linked() -> (SchedulerLink, Connection) {
    let (listener, settings) = listen().await;
    let scheduler = async {
        let mut connection = Connection::new(listener.accept().await.unwrap().0).unwrap();
        let first = connection.receive_within::<ToScheduler>(LONG).await.unwrap().unwrap();
        assert_eq!(first, ToScheduler::Register(register()));
        connection.send_within(&welcome(&settings), LONG).await.unwrap();
        connection
    };
    let report = || MemberReport { round: 7, ..MemberReport::default() };
    let (link, connection) = tokio::join!(SchedulerLink::connect(&settings, register(), report), scheduler);
    let (link, welcome) = link.unwrap();
    assert_eq!(welcome.rank, Rank(2));
    (link, connection)
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
    let (refused, _connection) =
        tokio::join!(SchedulerLink::connect(&settings, register(), MemberReport::default), refuse);
    assert_eq!(refused.unwrap_err().exit_code(), ExitCode::Refused);
    let mute = SchedulerLink::connect(&settings, register(), MemberReport::default).await.unwrap_err();
    assert_eq!(mute.exit_code(), ExitCode::SchedulerUnreachable);
    assert!(mute.to_string().contains("did not answer"), "{mute}");
}

#[tokio::test]
async fn a_message_too_large_is_its_callers_error() {
    let (link, _scheduler) = linked().await;
    let reason = "x".repeat(proto_common::limits::CONTROL_FRAME_BYTES_MAX);
    let error = link.sender().send(&ToScheduler::Failing { reason }).await.unwrap_err();
    assert!(matches!(error, LinkError::Message(_)), "{error}");
}
