//! What sockets have beyond what every driver promises (`conformance`), over both kinds: small buffers, offsets beyond
//! 4 GiB, back-pressure, fairness, waiting.
#![allow(clippy::unwrap_used, reason = "tests")]

mod tcp_rig;

use fabric::{
    CompletionKind, CompletionQueue, PeerWritable, PostError, Read, RemoteKey, RemoteSpan, TcpQueue, Write,
};
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};
use tcp_rig::{Carrier, End, at, bytes_of, lend_all, over_both, pair, pairs, region, soon};

over_both!(
    offsets_above_four_gigabytes_work_both_ways,
    reads_of_large_answers_keep_their_bound,
    a_transfer_far_larger_than_the_socket_buffers_arrives,
    partial_writes_of_many_small_frames_keep_every_byte,
    a_peer_that_stops_reading_fills_the_queue_and_nothing_more,
    one_busy_channel_does_not_starve_another,
    one_poll_is_bounded,
    waiting_ends_for_data_for_the_watched_descriptor_and_for_time,
);

/// Bytes that tell their place.
fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    (0..bytes as u64)
        .map(|i| (i.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(seed) >> 23) as u8)
        .collect()
}

fn filled(seed: u64, bytes: usize) -> PeerWritable {
    let region = region(bytes);
    region.write(0, &pattern(seed, bytes)).unwrap();
    region
}

fn offsets_above_four_gigabytes_work_both_ways(carrier: Carrier) {
    const FAR: u64 = (5 << 30) + 3;
    let (mut left, mut right) = pair(carrier, 8, None);
    let (huge, small) = (region(6 << 30), filled(3, 4096));
    let key = right.expose(&huge);
    left.write(1, &[small.span(0, 2048).unwrap()], at(key, FAR), Some(1)).unwrap();
    left.queue.flush();
    right.until_received(1);
    assert_eq!(bytes_of(&huge, FAR, 2048), pattern(3, 2048));
    let back = region(4096);
    let local = back.span(1, 2048).unwrap();
    left.queue.post_read(left.channel, &Read { id: 9, local: &local, remote: at(key, FAR) }).unwrap();
    left.queue.flush();
    left.until_read_from(&mut right, 9);
    assert_eq!(bytes_of(&back, 1, 2048), pattern(3, 2048));
}

fn reads_of_large_answers_keep_their_bound(carrier: Carrier) {
    // The answer's header arrives long before its end: the place is taken until then, on both sides.
    let (mut left, mut right) = pair(carrier, 256, Some(16 << 10));
    let source = filled(5, 1 << 20);
    let key = right.expose(&source);
    let into = region(1 << 20);
    let local = into.span(0, 1 << 20).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| right.until_received(1));
        let (mut posted, mut done) = (0, 0);
        let deadline = soon();
        while done < 200 {
            assert!(Instant::now() < deadline, "{done} of 200 reads");
            let read = Read { id: posted, local: &local, remote: at(key, 0) };
            while posted < 200 && left.queue.post_read(left.channel, &read).is_ok() {
                posted += 1;
            }
            left.queue.flush();
            left.queue.wait(Duration::from_millis(100));
            left.poll();
            done += left
                .seen
                .drain(..)
                .map(|c| assert!(matches!(c.kind, CompletionKind::ReadDone { .. })))
                .count();
        }
        left.write(0, &[], at(key, 0), Some(1)).unwrap();
        left.queue.flush();
    });
    assert_eq!(bytes_of(&into, 0, 1 << 20), pattern(5, 1 << 20));
}

fn a_transfer_far_larger_than_the_socket_buffers_arrives(carrier: Carrier) {
    const BYTES: usize = 272 << 20;
    let (mut left, mut right) = pair(carrier, 8, Some(32 << 10));
    let (from, to) = (region(BYTES), region(BYTES));
    for at in (0..BYTES as u64).step_by(4096) {
        from.write(at, &at.wrapping_mul(0x9E37_79B9).to_le_bytes()).unwrap();
    }
    let key = right.expose(&to);
    left.write(7, &[from.span(0, BYTES as u64).unwrap()], at(key, 0), Some(7)).unwrap();
    left.queue.flush();
    std::thread::scope(|scope| {
        scope.spawn(|| left.until("the write", |k| *k == CompletionKind::WriteDone { id: 7 }));
        right.until_received(7);
    });
    for at in (0..BYTES as u64).step_by(4096) {
        assert_eq!(bytes_of(&to, at, 8), at.wrapping_mul(0x9E37_79B9).to_le_bytes(), "at {at}");
    }
}

fn partial_writes_of_many_small_frames_keep_every_byte(carrier: Carrier) {
    let (mut left, mut right) = pair(carrier, 4096, Some(4 << 10));
    let (from, to) = (filled(4, 1 << 20), region(1 << 20));
    let key = right.expose(&to);
    for n in 0..4096u64 {
        let halves = [from.span(n * 256, 100).unwrap(), from.span(n * 256 + 100, 156).unwrap()];
        let write = Write {
            id: n,
            gather: &halves,
            remote: at(key, n * 256),
            immediate: Some(n as u32),
            signaled: n % 2 == 0,
        };
        left.queue.post_write(left.channel, &write).unwrap();
    }
    let deadline = soon();
    while right.seen.len() < 4096 || left.seen.len() < 2048 {
        assert!(Instant::now() < deadline);
        left.poll();
        right.poll();
    }
    let immediates = right.seen.iter().map(|c| c.kind.clone());
    assert!(immediates.eq((0..4096).map(|immediate| CompletionKind::Received { immediate })));
    assert!(
        left.seen
            .iter()
            .map(|c| c.kind.clone())
            .eq((0..2048).map(|n| CompletionKind::WriteDone { id: n * 2 }))
    );
    assert_eq!(bytes_of(&to, 0, 1 << 20), pattern(4, 1 << 20));
}

fn a_peer_that_stops_reading_fills_the_queue_and_nothing_more(carrier: Carrier) {
    const DEPTH: usize = 16;
    let (mut left, mut right) = pair(carrier, DEPTH, Some(16 << 10));
    let (from, to) = (filled(6, 64 << 10), region(64 << 10));
    let key = right.expose(&to);
    let span = [from.span(0, 64 << 10).unwrap()];
    let mut posted = 0;
    let deadline = soon();
    loop {
        while left.write(posted, &span, at(key, 0), Some(posted as u32)).is_ok() {
            posted += 1;
            assert!(posted < 1000, "the queue never fills");
        }
        left.queue.flush();
        left.poll();
        // Once the kernel's buffers are full, too, it is no busy loop: with nothing to do it sleeps.
        let started = Instant::now();
        left.queue.wait(Duration::from_millis(50));
        if started.elapsed() >= Duration::from_millis(50) {
            break;
        }
        assert!(started < deadline, "it never sleeps");
    }
    assert_eq!(left.write(0, &span, at(key, 0), None), Err(PostError::Full));
    let unfinished = posted as usize - left.seen.len();
    assert_eq!(unfinished, DEPTH, "each place is a queued frame");
    // The peer wakes up.
    let deadline = soon();
    while right.seen.len() < posted as usize {
        assert!(Instant::now() < deadline);
        right.queue.wait(Duration::from_millis(1));
        right.poll();
        left.poll();
    }
    assert!(left.write(0, &span, at(key, 0), None).is_ok());
}

fn one_busy_channel_does_not_starve_another(carrier: Carrier) {
    let (mut left, mut right, ids) = pairs(carrier, 2, 64, None);
    let (from, to) = (region(1 << 20), region(1 << 20));
    let span = [from.span(0, 1 << 20).unwrap()];
    let keys: Vec<_> = ids.iter().map(|(_, theirs)| lend_all(&mut right, *theirs, &to)).collect();
    let flood = |left: &mut TcpQueue| {
        let write = Write {
            id: 0,
            gather: &span,
            remote: RemoteSpan { key: keys[0], offset: 0 },
            immediate: Some(0),
            signaled: false,
        };
        while left.post_write(ids[0].0, &write).is_ok() {}
        left.flush();
    };
    for round in 1..50u32 {
        flood(&mut left);
        let write = Write {
            id: 0,
            gather: &[],
            remote: RemoteSpan { key: keys[1], offset: 0 },
            immediate: Some(round),
            signaled: false,
        };
        left.post_write(ids[1].0, &write).unwrap();
        left.flush();
        let (mut seen, mut polls) = (Vec::new(), 0);
        while !seen.iter().any(|c: &fabric::Completion| c.channel == ids[1].1) {
            flood(&mut left);
            right.poll(&mut seen);
            polls += 1;
            assert!(polls < 100, "starved in round {round}");
        }
    }
}

fn one_poll_is_bounded(carrier: Carrier) {
    let (mut left, mut right) = pair(carrier, 512, None);
    let (from, to) = (region(256 << 10), region(256 << 10));
    let key = right.expose(&to);
    for n in 0..8 {
        left.write(n, &[from.span(0, 256 << 10).unwrap()], at(key, 0), Some(n as u32)).unwrap();
    }
    left.queue.flush();
    let deadline = soon();
    let mut total = 0;
    while total < 8 {
        assert!(Instant::now() < deadline);
        // What is known is not slept on.
        left.poll();
        right.queue.wait(Duration::from_millis(20));
        right.poll();
        // At most the rest of one large frame, and one that began.
        assert!(right.seen.len() <= 2, "{}", right.seen.len());
        total += right.seen.drain(..).count();
    }
}

fn waiting_ends_for_data_for_the_watched_descriptor_and_for_time(carrier: Carrier) {
    let (mut left, mut right) = pair(carrier, 8, None);
    let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
    right.queue.watch(event.as_fd(), true).unwrap();
    let long = Duration::from_secs(60);
    for round in 0..3u32 {
        let started = Instant::now();
        right.queue.wait(Duration::from_millis(30));
        assert!(started.elapsed() >= Duration::from_millis(30));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(10));
                // Never read: each write counts.
                rustix::io::write(&event, &1u64.to_ne_bytes()).unwrap();
            });
            right.queue.wait(long);
        });
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(10));
                left.write(0, &[], at(RemoteKey(0), 0), Some(round)).unwrap();
                left.queue.flush();
            });
            right.queue.wait(long);
        });
        right.poll();
        assert_eq!(
            right.seen.drain(..).map(|c| c.kind).next(),
            Some(CompletionKind::Received { immediate: round })
        );
        assert!(started.elapsed() < Duration::from_secs(10));
    }
    right.queue.wait(Duration::ZERO);
    assert!(right.queue.has_channels());
    right.queue.close(right.channel);
    assert!(!right.queue.has_channels());
}

impl End {
    /// Waits for a read while the other end, driven by the same thread, answers it.
    fn until_read_from(&mut self, other: &mut End, id: u64) {
        let deadline = soon();
        while !self.seen.iter().any(|c| c.kind == CompletionKind::ReadDone { id }) {
            assert!(Instant::now() < deadline, "read {id} was not answered");
            other.poll();
            self.queue.wait(Duration::from_millis(1));
            self.poll();
        }
        self.seen.clear();
    }
}
