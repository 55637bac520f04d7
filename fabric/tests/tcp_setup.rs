//! Offers and connections of the TCP driver: the right peer gets its channels within the deadline, whatever
//! strangers do meanwhile; what cannot be done is told with cause and fix.
#![allow(clippy::unwrap_used, reason = "tests")]

mod tcp_rig;

use fabric::{ChannelSetup, CompletionQueue, FabricError, TcpDevice, TcpQueue};
use rustix::thread::{Uid, set_thread_res_uid};
use socket2::{Domain, Socket, Type};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};
use tcp_rig::{Carrier, Channels, Opened, at, bytes_of, device, open_offer, over_both, region, soon};

over_both!(
    strangers_liars_and_duplicates_are_dropped,
    a_second_connection_for_an_index_is_dropped,
    two_hundred_half_open_connections_cost_no_time,
    a_preamble_may_come_byte_by_byte,
    a_peer_that_does_not_come_is_named,
    connecting_fails_in_time_and_says_to_whom,
);

/// Accepts `channels` and checks that each carries a write of its index.
fn works(carrier: Carrier, pending: Box<dyn fabric::PendingOffer>, offer: &[u8], channels: u16) {
    let device = device(carrier, None);
    let (mut ours, mut theirs) = (TcpQueue::new(8).unwrap(), TcpQueue::new(8).unwrap());
    // In reverse: the order of connecting does not matter.
    let mut connected: Vec<_> = (0..channels)
        .rev()
        .map(|i| {
            let setup = device.connect_channel(offer, i, soon()).unwrap();
            assert_eq!(setup.carrier(), carrier.name());
            theirs.attach(setup).unwrap()
        })
        .collect();
    connected.reverse();
    let started = Instant::now();
    let accepted: Vec<_> =
        pending.accept(soon()).unwrap().into_iter().map(|s| ours.attach(s).unwrap()).collect();
    assert!(started.elapsed() < Duration::from_secs(5), "strangers cost {:?}", started.elapsed());
    let (from, to) = (region(4096), region(4096));
    for index in 0..channels {
        let mut end = tcp_rig::End::new(theirs, connected[usize::from(index)]);
        let mut other = tcp_rig::End::new(ours, accepted[usize::from(index)]);
        let key = other.expose(&to);
        from.write(0, &[index as u8 + 1]).unwrap();
        let place = u64::from(index);
        end.write(1, &[from.span(0, 1).unwrap()], at(key, place), Some(u32::from(index))).unwrap();
        end.queue.flush();
        other.until_received(u32::from(index));
        assert_eq!(bytes_of(&to, place, 1), [index as u8 + 1]);
        (theirs, ours) = (end.queue, other.queue);
    }
}

fn is_dropped(mut socket: Socket) -> bool {
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    match socket.read(&mut [0; 8]) {
        Ok(bytes) => bytes == 0,
        Err(e) => e.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

fn strangers_liars_and_duplicates_are_dropped(carrier: Carrier) {
    let (offer, pending) = device(carrier, None).offer_channels(2).unwrap();
    let opened = open_offer(&offer);
    let mut wrong = opened.clone();
    wrong.offer[23] ^= 1;
    // At the port in any case: it stays open beside the unix socket.
    let mut strangers = Vec::new();
    for way in [carrier, Carrier::Tcp] {
        strangers.extend([
            wrong.introduce(way, 0),
            opened.introduce(way, 2),
            opened.introduce(way, u16::MAX),
        ]);
        let mut http = opened.dial(way);
        http.write_all(b"GET / HTTP/1.1\r\nHost: parameter-server\r\n\r\n").unwrap();
        strangers.extend([http, opened.dial(way)]);
        drop(opened.dial(way));
    }
    works(carrier, pending, &offer, 2);
    assert!(strangers.into_iter().all(is_dropped), "a stranger was kept");
}

fn a_second_connection_for_an_index_is_dropped(carrier: Carrier) {
    let (offer, pending) = device(carrier, None).offer_channels(2).unwrap();
    let opened = open_offer(&offer);
    let _first = opened.introduce(carrier, 0);
    let second = opened.introduce(carrier, 0);
    let _other = opened.introduce(carrier, 1);
    assert_eq!(pending.accept(soon()).unwrap().len(), 2);
    assert!(is_dropped(second));
}

fn two_hundred_half_open_connections_cost_no_time(carrier: Carrier) {
    let (offer, pending) = device(carrier, None).offer_channels(3).unwrap();
    let opened = open_offer(&offer);
    let open = |i: usize| {
        let mut socket = opened.dial(carrier);
        // Some say nothing, some say a part of the truth.
        socket.write_all(&opened.preamble(0)[..i % 40]).unwrap();
        socket
    };
    let _half_open: Vec<_> = (0..200).map(open).collect();
    works(carrier, pending, &offer, 3);
}

fn a_preamble_may_come_byte_by_byte(carrier: Carrier) {
    let (offer, pending) = device(carrier, None).offer_channels(1).unwrap();
    let opened = open_offer(&offer);
    let slow = std::thread::spawn(move || {
        let mut socket = opened.dial(carrier);
        for byte in opened.preamble(0) {
            socket.write_all(&[byte]).unwrap();
            std::thread::yield_now();
        }
        socket
    });
    assert_eq!(pending.accept(soon()).unwrap().len(), 1);
    slow.join().unwrap();
}

fn a_peer_that_does_not_come_is_named(carrier: Carrier) {
    let (offer, pending) = device(carrier, None).offer_channels(3).unwrap();
    let opened = open_offer(&offer);
    let _one = opened.introduce(carrier, 1);
    let _silent = opened.dial(carrier);
    let started = Instant::now();
    let error = pending.accept(Instant::now() + Duration::from_millis(150)).err().unwrap();
    assert!(started.elapsed() < Duration::from_secs(2));
    assert!(matches!(error, FabricError::Deadline { waited_ms: 150.., .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("channels 0, 2 (of 3)") && text.contains("firewall"), "{text}");
}

fn connecting_fails_in_time_and_says_to_whom(carrier: Carrier) {
    // A port that was just freed: nobody listens.
    let (offer, pending) = device(carrier, None).offer_channels(1).unwrap();
    drop(pending);
    let error = device(carrier, None).connect_channel(&offer, 0, soon()).err().unwrap().to_string();
    assert!(error.contains("channel 0 to 127.0.0.1:") && error.contains("has the peer failed"), "{error}");

    // A listener that takes nothing: its backlog is full, so connecting gets no answer.
    let full = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = full.local_addr().unwrap();
    let mut fillers = Vec::new();
    while let Ok(socket) = TcpStream::connect_timeout(&address, Duration::from_millis(200)) {
        fillers.push(socket);
        assert!(fillers.len() < 10_000, "the backlog never fills");
    }
    let mut stuck = offer.clone();
    stuck[4..6].copy_from_slice(&address.port().to_le_bytes());
    let error = device(carrier, None)
        .connect_channel(&stuck, 0, Instant::now() + Duration::from_millis(100))
        .err()
        .unwrap();
    assert!(matches!(error, FabricError::Deadline { waited_ms: 90..2000, .. }), "{error:?}");
    let error = device(carrier, None).connect_channel(&stuck, 0, Instant::now()).err().unwrap();
    assert!(matches!(error, FabricError::Deadline { .. }), "{error:?}");
}

#[test]
fn misuse_is_told() {
    let misuse =
        |device: TcpDevice, channels| matches!(device.offer_channels(channels), Err(FabricError::Misuse(_)));
    let named = |name: &str| TcpDevice::new(Ipv4Addr::LOCALHOST.into(), name.into());
    assert!(misuse(named("127.0.0.1"), 0));
    assert!(misuse(named("127.0.0.1"), 1025));
    assert!(!misuse(named("127.0.0.1"), 1024));
    assert!(misuse(named(""), 1));
    assert!(misuse(named(&"h".repeat(256)), 1));
    // An address that is not ours (TEST-NET-1).
    let elsewhere =
        TcpDevice::new(Ipv4Addr::new(192, 0, 2, 1).into(), "x".into()).offer_channels(1).err().unwrap();
    assert!(elsewhere.to_string().contains("192.0.2.1"), "{elsewhere}");
    let (offer, _pending) = device(Carrier::Unix, None).offer_channels(2).unwrap();
    assert!(matches!(
        device(Carrier::Unix, None).connect_channel(&offer, 2, soon()),
        Err(FabricError::Misuse(_))
    ));
    for offer in [&offer[..40], &offer[..24], &offer[..3], &[0; 50], &[]] {
        assert!(matches!(
            device(Carrier::Unix, None).connect_channel(offer, 0, soon()),
            Err(FabricError::Peer(_))
        ));
    }
    assert!(
        TcpQueue::new(0).is_err() && TcpQueue::new((1 << 16) + 1).is_err() && TcpQueue::new(1 << 16).is_ok()
    );
}

#[test]
fn a_host_name_is_resolved() {
    let device = TcpDevice::new(Ipv4Addr::LOCALHOST.into(), "localhost".into());
    let (offer, pending) = device.offer_channels(1).unwrap();
    let _connected = device.connect_channel(&offer, 0, soon()).unwrap();
    assert_eq!(pending.accept(soon()).unwrap().len(), 1);
}

/// Connects with one side's offer and the other side's device: what carries it, seen from both ends.
fn carriers(offering: Carrier, connecting: Carrier) -> [&'static str; 2] {
    let (offer, pending) = device(offering, None).offer_channels(1).unwrap();
    let ours = device(connecting, None).connect_channel(&offer, 0, soon()).unwrap();
    [ours.carrier(), pending.accept(soon()).unwrap()[0].carrier()]
}

#[test]
fn both_sides_must_want_a_unix_socket() {
    assert_eq!(carriers(Carrier::Unix, Carrier::Unix), ["unix socket"; 2]);
    assert_eq!(carriers(Carrier::Unix, Carrier::Tcp), ["tcp socket"; 2]);
    assert_eq!(carriers(Carrier::Tcp, Carrier::Unix), ["tcp socket"; 2]);
    let (offer, _pending) = device(Carrier::Tcp, None).offer_channels(1).unwrap();
    assert_eq!(open_offer(&offer).name, [0; 16], "an offer without a name");
}

/// An offer as it looks from another host or network namespace: its name is nobody's.
fn from_elsewhere(offer: &[u8], name: [u8; 16]) -> Vec<u8> {
    let mut offer = offer.to_vec();
    offer[24..40].copy_from_slice(&name);
    offer
}

#[test]
fn a_name_that_nobody_has_is_passed_over_at_once() {
    let (offer, pending) = device(Carrier::Unix, None).offer_channels(1).unwrap();
    let started = Instant::now();
    let there = from_elsewhere(&offer, [0x5A; 16]);
    let setup = device(Carrier::Unix, None).connect_channel(&there, 0, soon()).unwrap();
    assert_eq!(setup.carrier(), "tcp socket");
    assert!(started.elapsed() < Duration::from_secs(5));
    assert_eq!(pending.accept(soon()).unwrap()[0].carrier(), "tcp socket");
}

/// A listener at a name of the test's choice.
fn listen_at(name: [u8; 16], backlog: i32) -> (Socket, Opened) {
    let opened = Opened { port: 1, name, offer: Vec::new() };
    let listener = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
    listener.bind(&opened.unix_address()).unwrap();
    listener.listen(backlog).unwrap();
    (listener, opened)
}

#[test]
fn a_full_backlog_at_the_name_is_passed_over_at_once() {
    let name = *b"full-backlog-tcp";
    let (listener, opened) = listen_at(name, 0);
    let _waiting = opened.dial(Carrier::Unix);
    let (offer, pending) = device(Carrier::Unix, None).offer_channels(1).unwrap();
    let there = from_elsewhere(&offer, name);
    let started = Instant::now();
    let setup = device(Carrier::Unix, None).connect_channel(&there, 0, soon()).unwrap();
    assert_eq!(setup.carrier(), "tcp socket");
    assert!(started.elapsed() < Duration::from_secs(5));
    assert_eq!(pending.accept(soon()).unwrap().len(), 1);
    drop(listener);
}

#[test]
fn a_name_goes_with_its_offer() {
    let (offer, pending) = device(Carrier::Unix, None).offer_channels(1).unwrap();
    let address = open_offer(&offer).unix_address();
    let reaches = || Socket::new(Domain::UNIX, Type::STREAM, None).unwrap().connect(&address).is_ok();
    assert!(reaches());
    let (other, _pending) = device(Carrier::Unix, None).offer_channels(1).unwrap();
    assert_ne!(open_offer(&offer).name, open_offer(&other).name);
    drop(pending);
    assert!(!reaches());
}

#[test]
fn channels_of_one_offer_may_come_over_both() {
    let (offer, pending) = device(Carrier::Unix, None).offer_channels(2).unwrap();
    let _tcp = device(Carrier::Tcp, None).connect_channel(&offer, 0, soon()).unwrap();
    let _unix = device(Carrier::Unix, None).connect_channel(&offer, 1, soon()).unwrap();
    let accepted = pending.accept(soon()).unwrap();
    assert_eq!([accepted[0].carrier(), accepted[1].carrier()], ["tcp socket", "unix socket"]);
    assert_eq!(ChannelSetup::carriers(&accepted), "tcp socket and unix socket");
}

/// Runs on a thread of another user. `None`: only root can become one.
fn as_another_user<T: Send>(work: impl FnOnce() -> T + Send) -> Option<T> {
    let nobody = Uid::from_raw(65534);
    std::thread::scope(|scope| {
        // The system's call, unlike the C library's, changes the calling thread only.
        let run = || set_thread_res_uid(nobody, nobody, nobody).is_ok().then(work);
        scope.spawn(run).join().unwrap()
    })
}

#[test]
fn another_user_at_the_name_does_not_get_the_secret() {
    let name = *b"another-user-tcp";
    let Some((listener, _)) = as_another_user(|| listen_at(name, 16)) else { return };
    let (offer, pending) = device(Carrier::Unix, None).offer_channels(1).unwrap();
    let there = from_elsewhere(&offer, name);
    let setup = device(Carrier::Unix, None).connect_channel(&there, 0, soon()).unwrap();
    assert_eq!(setup.carrier(), "tcp socket");
    assert_eq!(pending.accept(soon()).unwrap()[0].carrier(), "tcp socket");
    let (mut link, _) = listener.accept().unwrap();
    assert_eq!(link.read(&mut [0; 64]).unwrap(), 0, "it was told something");
}

#[test]
fn another_user_with_the_secret_is_not_let_in_by_the_name() {
    let (offer, pending) = device(Carrier::Unix, None).offer_channels(1).unwrap();
    let opened = open_offer(&offer);
    let Some(theirs) = as_another_user(|| opened.introduce(Carrier::Unix, 0)) else { return };
    works(Carrier::Unix, pending, &offer, 1);
    assert!(is_dropped(theirs));
}
