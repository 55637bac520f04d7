//! Visitors and listeners that are silent, hostile or of another release: neither side hangs or dies of the other.

use super::Host;
use super::listen::receive;
use super::visit::{Outcome, visit};
use super::words::{FromListener, ToListener, Trial};
use daemon::control::Connection;
use daemon::security::Security;
use proto_common::config::Settings;
use proto_common::error::ExitCode;
use proto_common::limits::PROTOCOL_VERSION;
use proto_common::transport::Driver;
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};

const SOON: Duration = Duration::from_secs(30);

fn host(step_ms: u64) -> Host {
    let mut settings = Settings::default();
    settings.deadlines.handshake_ms = step_ms;
    let (devices, missing) = daemon::devices::open(&settings).unwrap();
    let offer = daemon::host::offer(settings.transport, missing).unwrap();
    Host::new(&settings, (devices, Security::off()), offer)
}

async fn listener() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (listener, address)
}

fn hello(host: &Host) -> ToListener {
    ToListener::Hello { protocol: PROTOCOL_VERSION, offer: (*host.offer).clone() }
}

#[tokio::test]
async fn a_listener_that_says_nothing_is_a_deadline() {
    let (_silent, address) = listener().await;
    let started = Instant::now();
    let visit = visit(&host(100), &address).await;
    assert_eq!(visit.code(), ExitCode::Deadline);
    assert!(started.elapsed() < Duration::from_secs(10));
    assert!(visit.rows.is_empty());
}

#[tokio::test]
async fn a_listener_that_refuses_or_speaks_out_of_order_is_refused() {
    let out_of_order = FromListener::Offer(Err("x".into()));
    for answer in [
        FromListener::Refused("not you".into()),
        FromListener::Hello { protocol: PROTOCOL_VERSION + 1, offer: (*host(100).offer).clone() },
        out_of_order,
    ] {
        let (listener, address) = listener().await;
        let visiting = tokio::spawn(async move { visit(&host(5_000), &address).await });
        let mut link = Connection::new(listener.accept().await.unwrap().0).unwrap();
        link.receive_within::<ToListener>(SOON).await.unwrap();
        link.send_within(&answer, SOON).await.unwrap();
        assert_eq!(visiting.await.unwrap().code(), ExitCode::Refused, "{answer:?}");
    }
}

#[tokio::test]
async fn what_is_no_doctor_is_refused_however_it_ends() {
    // Another protocol, a message of no meaning, half a message, nothing.
    for said in [&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], &[1, 0, 0, 0, 99], &[9, 0, 0, 0, 1], &[]] {
        let (listener, address) = listener().await;
        let visiting = tokio::spawn(async move { visit(&host(5_000), &address).await });
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(said).await.unwrap();
        // With the hello unread, closing resets the connection.
        drop(stream);
        assert_eq!(visiting.await.unwrap().code(), ExitCode::Refused, "{said:?}");
    }
}

#[tokio::test]
async fn a_listener_that_offers_nonsense_fails_the_trial_only() {
    let (listener, address) = listener().await;
    let visiting = tokio::spawn(async move { visit(&host(500), &address).await });
    let mut link = Connection::new(listener.accept().await.unwrap().0).unwrap();
    link.receive_within::<ToListener>(SOON).await.unwrap();
    let hello = FromListener::Hello { protocol: PROTOCOL_VERSION, offer: (*host(500).offer).clone() };
    link.send_within(&hello, SOON).await.unwrap();
    while let Ok(Some(message)) = link.receive_within::<ToListener>(SOON).await {
        let answer = match message {
            ToListener::Try(_) => FromListener::Offer(Ok(vec![0xFF; 1000])),
            _ => FromListener::End(Err("there is \x1b[31mnothing".into())),
        };
        link.send_within(&answer, SOON).await.unwrap();
    }
    let visit = visiting.await.unwrap();
    assert_eq!(visit.code(), ExitCode::Transport);
    let failed = visit
        .rows
        .iter()
        .filter(|row| matches!(&row.outcome, Outcome::Fails { why } if !why.contains('\x1b')));
    assert_eq!(failed.count(), 3, "shm, unix and tcp: {:?}", visit.rows);
}

/// Serves one connection and says how it ended.
async fn served(host: Host, act: impl AsyncFnOnce(TcpStream)) -> Result<usize, String> {
    let (listener, address) = listener().await;
    let serving = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        receive(&host, stream).await
    });
    act(TcpStream::connect(address).await.unwrap()).await;
    let ended = tokio::time::timeout(SOON, serving).await.expect("a visit ends");
    ended.unwrap().map(|trials| trials.len())
}

#[tokio::test]
async fn visitors_that_are_silent_or_talk_nonsense_are_dropped() {
    let silence =
        served(host(100), async |stream| drop(tokio::time::timeout(SOON, until_closed(stream)).await));
    assert!(silence.await.unwrap_err().contains("100 ms"));
    let gone = served(host(5_000), async |stream| drop(stream)).await;
    assert!(gone.unwrap_err().contains("said nothing"));
    for garbage in [&[0xFF; 64][..], &[4, 0, 0, 0, 9, 9, 9, 9]] {
        let served = served(host(5_000), async |mut stream| {
            stream.write_all(garbage).await.unwrap();
            until_closed(stream).await;
        });
        assert!(served.await.is_err());
    }
}

/// Reads until the other side closes.
async fn until_closed(mut stream: TcpStream) {
    let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
}

#[tokio::test]
async fn a_visitor_that_never_connects_its_channel_costs_a_step() {
    for trial in Trial::all() {
        let here = host(200);
        let said = hello(&here);
        let served = served(here, async |stream| {
            let mut link = Connection::new(stream).unwrap();
            link.send_within(&said, SOON).await.unwrap();
            link.receive_within::<FromListener>(SOON).await.unwrap();
            link.send_within(&ToListener::Try(trial), SOON).await.unwrap();
            let offer = link.receive_within::<FromListener>(SOON).await.unwrap();
            if let Some(FromListener::Offer(Ok(_))) = offer {
                link.send_within(&ToListener::End(Ok(7)), SOON).await.unwrap();
                let end = link.receive_within::<FromListener>(SOON).await.unwrap();
                assert!(matches!(end, Some(FromListener::End(Err(_)))), "{trial}: {end:?}");
            }
        });
        assert_eq!(served.await, Ok(1), "{trial}");
    }
}

#[tokio::test]
async fn a_visitor_may_not_try_without_end() {
    let here = host(5_000);
    let said = hello(&here);
    let served = served(here, async |stream| {
        let mut link = Connection::new(stream).unwrap();
        link.send_within(&said, SOON).await.unwrap();
        link.receive_within::<FromListener>(SOON).await.unwrap();
        // There is no device: each trial is over at once.
        let verbs = Trial { driver: Driver::Verbs, is_unix: false };
        while link.send_within(&ToListener::Try(verbs), SOON).await.is_ok() {
            let Ok(Some(_)) = link.receive_within::<FromListener>(SOON).await else { break };
        }
    });
    assert_eq!(served.await, Ok(2 * Trial::all().count()));
}

#[tokio::test]
async fn both_sides_together_find_what_works() {
    let (listener, address) = listener().await;
    let serving =
        tokio::spawn(async move { receive(&host(10_000), listener.accept().await.unwrap().0).await });
    let visit = visit(&host(10_000), &address).await;
    assert_eq!(visit.code(), ExitCode::Ok, "{visit:?}");
    let works = |row: &&super::Row| matches!(row.outcome, Outcome::Works { .. });
    let names: Vec<_> = visit.rows.iter().filter(works).map(|row| row.trial.as_str()).collect();
    for name in ["shm", "tcp (unix)", "tcp"] {
        assert!(names.contains(&name), "{name} is not among {names:?}");
    }
    let seen = serving.await.unwrap().unwrap();
    assert!(seen.iter().all(|(_, result)| result.is_ok()), "{seen:?}");
}
