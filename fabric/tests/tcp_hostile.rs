//! Peers that lie, stop or talk nonsense: each ends its own channel with the reason, and nothing else.
#![allow(clippy::unwrap_used, reason = "tests")]

mod tcp_rig;

use fabric::tcp_frame::Frame;
use fabric::{CompletionKind, CompletionQueue, DisconnectReason, PostError, Read, RemoteKey};
use proptest::prelude::*;
use std::io::{Read as _, Write as _};
use std::time::Duration;
use tcp_rig::{Carrier, End, at, bytes_of, lend_all, over_both, pair, pairs, raw_peer, region};

over_both!(
    garbage_is_refused,
    a_length_beyond_the_region_is_refused_before_a_byte_is_read,
    keys_that_were_not_exposed_on_this_channel_are_refused,
    answers_must_fit_a_question,
    a_peer_that_asks_and_never_takes_the_answers_is_cut_off,
    a_stream_that_ends_in_a_frame_is_a_peer_that_closed,
    what_was_sent_before_the_end_is_delivered_before_the_end,
    a_read_request_comes_out_as_frozen_bytes,
    what_was_taken_back_is_not_reached_by_what_began_before,
);

/// The peer begins a write, or a read, says that it is done, and goes on with it: the memory is somebody else's by then.
fn what_was_taken_back_is_not_reached_by_what_began_before(carrier: Carrier) {
    for reads in [false, true] {
        let (mut socket, mut end) = raw_peer(carrier, 8);
        let memory = region(16 << 20);
        let key = end.expose(&memory);
        socket.write_all(&write(key, 0, 0, Some(8))).unwrap();
        if reads {
            // More than the sockets hold, and the peer takes none of it.
            let read = Frame::ReadRequest { key: key.0, offset: 0, length: 16 << 20, id: 0 };
            socket.write_all(&[&read.encode()[..], &write(key, 0, 0, Some(9))].concat()).unwrap();
            end.until_received(9);
        } else {
            socket.write_all(&[write(key, 0, 64, Some(9)), vec![7; 10]].concat()).unwrap();
            end.until_received(8);
            while bytes_of(&memory, 9, 1) != [7] {
                end.queue.wait(Duration::from_millis(5));
                end.poll();
            }
        }
        end.queue.take_back(end.channel, &memory.all(), 0);
        memory.write(0, &[0xEE; 64]).unwrap();
        // It may be closed already.
        let _ = socket.write_all(&[7; 54]);
        let reason = end.until_disconnected();
        let named = |why: &String| why.contains("it said that it was done");
        assert!(matches!(&reason, DisconnectReason::PeerMisbehaved(why) if named(why)), "{reason:?}");
        assert_eq!(bytes_of(&memory, 0, 64), [0xEE; 64]);
    }
}

fn write(key: RemoteKey, offset: u64, length: u64, immediate: Option<u32>) -> Vec<u8> {
    Frame::Write { key: key.0, offset, length, immediate }.encode().to_vec()
}

/// What a peer says, and what it gets for it.
fn refused(carrier: Carrier, bytes: impl FnOnce(&mut End, RemoteKey) -> Vec<u8>) -> String {
    let (mut socket, mut end) = raw_peer(carrier, 8);
    let memory = region(8192);
    memory.write(0, &[0xEE; 8192]).unwrap();
    let key = end.expose(&memory);
    let bytes = bytes(&mut end, key);
    socket.write_all(&bytes).unwrap();
    let reason = end.until_disconnected();
    assert_eq!(bytes_of(&memory, 0, 8192), [0xEE; 8192], "nothing of it landed");
    assert_eq!(end.write(0, &[], at(key, 0), Some(1)), Err(PostError::Closed));
    assert!(!end.queue.has_channels());
    end.poll();
    assert!(end.seen.is_empty(), "nothing comes after the end: {:?}", end.seen);
    match reason {
        DisconnectReason::PeerMisbehaved(why) => why,
        other => panic!("{other:?}"),
    }
}

fn garbage_is_refused(carrier: Carrier) {
    assert!(
        refused(carrier, |_, _| b"GET / HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n".to_vec())
            .contains("no frame begins")
    );
    assert!(refused(carrier, |_, _| vec![0; 40]).contains("no frame begins"));
    let flagged = |_: &mut End, key| {
        let mut bytes = write(key, 0, 0, None);
        bytes[3] = 0x80;
        bytes
    };
    assert!(refused(carrier, flagged).contains("unknown flags"));
}

fn a_length_beyond_the_region_is_refused_before_a_byte_is_read(carrier: Carrier) {
    for (offset, length) in [(0, 8193), (8192, 1), (1, u64::MAX), (u64::MAX, 1), (u64::MAX, u64::MAX)] {
        let why = refused(carrier, |_, key| [write(key, offset, length, Some(1)), vec![7; 4096]].concat());
        assert!(why.contains("was not granted"), "{why}");
    }
}

fn keys_that_were_not_exposed_on_this_channel_are_refused(carrier: Carrier) {
    let other = region(4096);
    for key in [0, u64::MAX, other.id()] {
        let why = refused(carrier, |_, _| [write(RemoteKey(key), 0, 1, None), vec![7]].concat());
        assert!(why.contains("a write of 1 bytes") && why.contains("was not granted"), "{why}");
        let why = refused(carrier, |_, _| {
            Frame::ReadRequest { key, offset: 0, length: 1, id: 0 }.encode().to_vec()
        });
        assert!(why.contains("a read of 1 bytes") && why.contains("was not granted"), "{why}");
    }
    // Exposed on another channel of the same queue is not exposed here.
    let (mut left, mut right, ids) = pairs(carrier, 2, 8, None);
    let key = lend_all(&mut right, ids[1].1, &other);
    let (mut ours, theirs) = (End::new(left, ids[0].0), right);
    ours.write(0, &[other.span(0, 8).unwrap()], at(key, 0), Some(1)).unwrap();
    ours.queue.flush();
    let mut theirs = End::new(theirs, ids[0].1);
    assert!(matches!(theirs.until_disconnected(), DisconnectReason::PeerMisbehaved(_)));
    assert!(theirs.queue.has_channels(), "the other channel lives");
    assert_eq!(ours.until_disconnected(), DisconnectReason::PeerClosed);
    left = ours.queue;
    let mut ours = End::new(left, ids[1].0);
    ours.write(0, &[other.span(0, 8).unwrap()], at(key, 0), Some(2)).unwrap();
    ours.queue.flush();
    theirs.until_received(2);
}

fn answers_must_fit_a_question(carrier: Carrier) {
    let answer = |length, id| [Frame::ReadResponse { length, id }.encode().to_vec(), vec![7; 64]].concat();
    assert!(refused(carrier, |_, _| answer(16, 0)).contains("an unknown read"));
    for (length, id) in [(15, 0), (17, 0), (u64::MAX, 0), (16, 1)] {
        let why = refused(carrier, |end, _| {
            let local = region(16).span(0, 16).unwrap();
            let read = Read { id: 0, local: &local, remote: at(RemoteKey(5), 0) };
            end.queue.post_read(end.channel, &read).unwrap();
            answer(length, id)
        });
        assert!(why.contains("an unknown read"), "{why}");
    }
    // The second answer to one question.
    let why = refused(carrier, |end, key| {
        let local = region(16).span(0, 16).unwrap();
        end.queue.post_read(end.channel, &Read { id: 0, local: &local, remote: at(key, 0) }).unwrap();
        [Frame::ReadResponse { length: 16, id: 0 }.encode().to_vec(), vec![7; 16], answer(16, 0)].concat()
    });
    assert!(why.contains("an unknown read"), "{why}");
}

fn a_peer_that_asks_and_never_takes_the_answers_is_cut_off(carrier: Carrier) {
    let (mut socket, mut end) = raw_peer(carrier, 8);
    let memory = region(4 << 20);
    let key = end.expose(&memory);
    let request = Frame::ReadRequest { key: key.0, offset: 0, length: 4 << 20, id: 0 }.encode();
    socket.write_all(&request.repeat(100)).unwrap();
    let reason = end.until_disconnected();
    assert!(
        matches!(&reason, DisconnectReason::PeerMisbehaved(why) if why.contains("64 reads")),
        "{reason:?}"
    );
}

fn a_stream_that_ends_in_a_frame_is_a_peer_that_closed(carrier: Carrier) {
    let memory = region(8192);
    for cut in [0, 1, 39, 40, 41, 40 + 1023] {
        let (mut socket, mut end) = raw_peer(carrier, 8);
        let key = end.expose(&memory);
        let frame = [write(key, 0, 1024, Some(9)), vec![7; 1024]].concat();
        socket.write_all(&write(key, 0, 0, Some(8))).unwrap();
        socket.write_all(&frame[..cut]).unwrap();
        drop(socket);
        assert_eq!(end.until_received(8).len(), 1);
        assert_eq!(end.until_disconnected(), DisconnectReason::PeerClosed, "cut at {cut}");
    }
}

fn what_was_sent_before_the_end_is_delivered_before_the_end(carrier: Carrier) {
    let (mut left, mut right) = pair(carrier, 64, None);
    let (from, to) = (region(1 << 13), region(1 << 13));
    from.write(0, &[5; 1 << 13]).unwrap();
    let key = right.expose(&to);
    // Within the receive window: what the peer's kernel still holds is lost when we write to it.
    for n in 0..4 {
        left.write(n, &[from.span(0, 1 << 13).unwrap()], at(key, 0), Some(n as u32)).unwrap();
    }
    left.until("the last write", |k| *k == CompletionKind::WriteDone { id: 3 });
    drop(left);
    // Writing into the closed connection must not lose what waits in ours.
    for _ in 0..3 {
        let _ = right.write(0, &[to.span(0, 8).unwrap()], at(key, 0), None);
        right.queue.flush();
        std::thread::sleep(Duration::from_millis(5));
    }
    let all = right.until("the end", |k| matches!(k, CompletionKind::Disconnected(_)));
    let received = all.iter().filter(|k| matches!(k, CompletionKind::Received { .. })).count();
    assert_eq!(
        (received, all.last()),
        (4, Some(&CompletionKind::Disconnected(DisconnectReason::PeerClosed)))
    );
}

fn a_read_request_comes_out_as_frozen_bytes(carrier: Carrier) {
    let (mut socket, mut end) = raw_peer(carrier, 8);
    let local = region(16).span(0, 16).unwrap();
    let read = Read { id: 0xFFFF, local: &local, remote: at(RemoteKey(5), 6) };
    end.queue.post_read(end.channel, &read).unwrap();
    end.queue.flush();
    let mut bytes = [0; 40];
    socket.read_exact(&mut bytes).unwrap();
    assert_eq!(bytes, Frame::ReadRequest { key: 5, offset: 6, length: 16, id: 0 }.encode());
}

fn carriers() -> impl Strategy<Value = Carrier> {
    prop_oneof![Just(Carrier::Unix), Just(Carrier::Tcp)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    /// However the stream is cut, the same bytes land and the same notices come.
    #[test]
    fn any_fragmentation_gives_the_same(
        carrier in carriers(),
        sizes in prop::collection::vec(prop_oneof![0usize..80, 900usize..3000, 20_000usize..40_000], 1..12),
        cuts in prop::collection::vec(prop_oneof![1usize..50, 1usize..2000, 1000usize..50_000], 1..40),
    ) {
        let (mut socket, mut end) = raw_peer(carrier, 8);
        let memory = region(1 << 20);
        let key = end.expose(&memory);
        let (mut stream, mut wanted) = (Vec::new(), Vec::new());
        for (n, size) in sizes.iter().enumerate() {
            stream.extend(write(key, wanted.len() as u64, *size as u64, Some(n as u32)));
            let payload: Vec<u8> = (0..*size).map(|i| (i * 7 + n * 13) as u8).collect();
            stream.extend_from_slice(&payload);
            wanted.extend_from_slice(&payload);
        }
        let mut rest = &stream[..];
        let mut cuts = cuts.iter().cycle();
        while !rest.is_empty() {
            let (now, later) = rest.split_at((*cuts.next().unwrap()).min(rest.len()));
            socket.write_all(now).unwrap();
            end.poll();
            rest = later;
        }
        let last = sizes.len() as u32 - 1;
        let all = end.until_received(last);
        prop_assert_eq!(all, (0..=last).map(|immediate| CompletionKind::Received { immediate }).collect::<Vec<_>>());
        prop_assert_eq!(bytes_of(&memory, 0, wanted.len()), wanted);
    }

    /// Random bytes never panic; they end the channel or leave it waiting for more.
    #[test]
    fn random_streams_end_or_wait(
        carrier in carriers(),
        head in prop::option::of(0u64..300),
        bytes in prop::collection::vec(any::<u8>(), 0..3000),
    ) {
        let (mut socket, mut end) = raw_peer(carrier, 8);
        let memory = region(4096);
        let key = end.expose(&memory);
        if let Some(length) = head {
            socket.write_all(&write(key, 0, length, None)).unwrap();
        }
        // The channel may have been closed by then.
        let _ = socket.write_all(&bytes);
        drop(socket);
        end.until_disconnected();
    }
}
