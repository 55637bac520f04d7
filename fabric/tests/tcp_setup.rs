//! Offers and connections of the TCP driver: the right peer gets its channels within the deadline, whatever
//! strangers do meanwhile; what cannot be done is told with cause and fix.
#![allow(clippy::unwrap_used, reason = "tests")]

mod tcp_rig;

use fabric::{CompletionQueue, FabricError, TcpDevice, TcpQueue};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};
use tcp_rig::{at, bytes_of, device, introduce, open_offer, region, soon};

/// Accepts `channels` and checks that each carries a write of its index.
fn works(pending: Box<dyn fabric::PendingOffer>, offer: &[u8], channels: u16) {
    let device = device(None);
    let (mut ours, mut theirs) = (TcpQueue::new(8).unwrap(), TcpQueue::new(8).unwrap());
    // In reverse: the order of connecting does not matter.
    let mut connected: Vec<_> = (0..channels)
        .rev()
        .map(|i| theirs.attach(device.connect_channel(offer, i, soon()).unwrap()).unwrap())
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

#[test]
fn channels_are_told_apart_by_index() {
    let (offer, pending) = device(None).offer_channels(5).unwrap();
    works(pending, &offer, 5);
}

#[test]
fn strangers_liars_and_duplicates_are_dropped() {
    let (offer, pending) = device(None).offer_channels(2).unwrap();
    let (port, secret) = open_offer(&offer);
    let mut wrong = secret;
    wrong[15] ^= 1;
    let mut strangers =
        vec![introduce(port, &wrong, 0), introduce(port, &secret, 2), introduce(port, &secret, u16::MAX)];
    let mut http = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    http.write_all(b"GET / HTTP/1.1\r\nHost: parameter-server\r\n\r\n").unwrap();
    strangers.push(http);
    let silent = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    drop(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap());
    works(pending, &offer, 2);
    for mut stranger in strangers.into_iter().chain([silent]) {
        stranger.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let ended = match stranger.read(&mut [0; 8]) {
            Ok(bytes) => bytes == 0,
            Err(e) => e.kind() == std::io::ErrorKind::ConnectionReset,
        };
        assert!(ended, "a stranger was kept");
    }
}

#[test]
fn a_second_connection_for_an_index_is_dropped() {
    let (offer, pending) = device(None).offer_channels(2).unwrap();
    let (port, secret) = open_offer(&offer);
    let _first = introduce(port, &secret, 0);
    let mut second = introduce(port, &secret, 0);
    let _other = introduce(port, &secret, 1);
    assert_eq!(pending.accept(soon()).unwrap().len(), 2);
    second.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    assert!(matches!(second.read(&mut [0; 8]), Ok(0) | Err(_)));
}

#[test]
fn two_hundred_half_open_connections_cost_no_time() {
    let (offer, pending) = device(None).offer_channels(3).unwrap();
    let (port, secret) = open_offer(&offer);
    let open = |i: usize| {
        let mut socket = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        // Some say nothing, some say a part of the truth.
        socket.write_all(&[b"GWP1".as_slice(), &[0; 4], &secret].concat()[..i % 24]).unwrap();
        socket
    };
    let _half_open: Vec<_> = (0..200).map(open).collect();
    works(pending, &offer, 3);
}

#[test]
fn a_preamble_may_come_byte_by_byte() {
    let (offer, pending) = device(None).offer_channels(1).unwrap();
    let (port, secret) = open_offer(&offer);
    let slow = std::thread::spawn(move || {
        let mut socket = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        socket.set_nodelay(true).unwrap();
        for byte in [b"GWP1".as_slice(), &[0; 4], &secret].concat() {
            socket.write_all(&[byte]).unwrap();
            std::thread::yield_now();
        }
        socket
    });
    assert_eq!(pending.accept(soon()).unwrap().len(), 1);
    slow.join().unwrap();
}

#[test]
fn a_peer_that_does_not_come_is_named() {
    let (offer, pending) = device(None).offer_channels(3).unwrap();
    let (port, secret) = open_offer(&offer);
    let _one = introduce(port, &secret, 1);
    let _silent = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    let started = Instant::now();
    let error = pending.accept(Instant::now() + Duration::from_millis(150)).err().unwrap();
    assert!(started.elapsed() < Duration::from_secs(2));
    assert!(matches!(error, FabricError::Deadline { waited_ms: 150.., .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("channels 0, 2 (of 3)") && text.contains("firewall"), "{text}");
}

#[test]
fn connecting_fails_in_time_and_says_to_whom() {
    // A port that was just freed: nobody listens.
    let (offer, pending) = device(None).offer_channels(1).unwrap();
    drop(pending);
    let error = device(None).connect_channel(&offer, 0, soon()).err().unwrap().to_string();
    assert!(error.contains("channel 0 to 127.0.0.1:") && error.contains("died"), "{error}");

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
    let error =
        device(None).connect_channel(&stuck, 0, Instant::now() + Duration::from_millis(100)).err().unwrap();
    assert!(matches!(error, FabricError::Deadline { waited_ms: 90..2000, .. }), "{error:?}");
    let error = device(None).connect_channel(&stuck, 0, Instant::now()).err().unwrap();
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
    let (offer, _pending) = device(None).offer_channels(2).unwrap();
    assert!(matches!(device(None).connect_channel(&offer, 2, soon()), Err(FabricError::Misuse(_))));
    for offer in [&offer[..24], &offer[..3], &[0; 30], &[]] {
        assert!(matches!(device(None).connect_channel(offer, 0, soon()), Err(FabricError::Peer(_))));
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
