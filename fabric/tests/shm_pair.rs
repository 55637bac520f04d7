//! What shared memory has beyond what every driver promises (`conformance`): views, and how a lane without sockets
//! sleeps and is woken.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod shm_rig;

use fabric::{CompletionQueue, LaneQueue, Pool, PostError, Region, RemoteKey, RemoteSpan, Rest, Write};
use shm_rig::{DEPTH, pair, region};
use std::time::{Duration, Instant};

fn at(key: RemoteKey, offset: u64) -> RemoteSpan {
    RemoteSpan { key, offset }
}

#[test]
fn a_view_shows_the_peers_memory_in_place_and_outlives_it() {
    let (mut a, mut b) = pair();
    let remote = region(4096);
    remote.write(4000, b"in place").unwrap();
    let key = b.expose(&remote);
    for (offset, bytes) in [(4081, 16), (0, u64::MAX), (u64::MAX, 1)] {
        assert!(a.queue.view(a.channel, at(key, offset), bytes).is_err(), "{bytes} at {offset}");
    }
    assert!(a.queue.view(a.channel, at(RemoteKey(99), 0), 1).is_err());
    let view = a.queue.view(a.channel, at(key, 4000), 8).unwrap();
    assert_eq!(view.len(), 8);
    drop((remote, b));
    a.queue.close(a.channel);
    let mut got = [0; 8];
    view.read(3, &mut got[..5]).unwrap();
    assert_eq!(&got[..5], b"place");
    assert!(view.read(4, &mut got[..5]).is_err());
    assert!(view.read(u64::MAX, &mut got).is_err());
}

#[test]
fn what_is_exposed_for_reading_is_not_written() {
    let (mut a, mut b) = pair();
    let mut weights = Pool::readable(4096, "weights").unwrap().allocate(4096).unwrap();
    weights.copy_in(b"weights");
    let key = b.expose(weights.region());
    let source = region(4096);
    let gather = [source.span(0, 8).unwrap()];
    let write = Write { id: 1, gather: &gather, remote: at(key, 0), immediate: Some(7), signaled: true };
    assert_eq!(a.queue.post_write(a.channel, &write), Err(PostError::RemoteAccess));
    let view = a.queue.view(a.channel, at(key, 0), 7).unwrap();
    let mut got = [0; 7];
    view.read(0, &mut got).unwrap();
    assert_eq!(&got, b"weights");
    assert!(a.queue.reads_in_place(a.channel) && !a.queue.reads_in_place(fabric::ChannelId(99)));
}

#[test]
fn a_peers_memory_is_worked_on_while_its_channel_is_open() {
    let (mut a, mut b) = pair();
    let (remote, weights) = (region(4096), Region::allocate_readable(4096, "weights").unwrap());
    let (key, weights_key) = (b.expose(&remote), b.expose(&weights));
    let view = a.queue.view(a.channel, at(key, 8), 8).unwrap();
    let constant = a.queue.view(a.channel, at(weights_key, 0), 8).unwrap();
    let mut ran = 0;
    let mut work = || {
        ran += 1;
        view.write(2, b"rows").unwrap();
        assert!(view.write(5, b"rows").is_err() && constant.write(0, b"rows").is_err());
    };
    assert_eq!(a.queue.while_open(a.channel, &mut work), Ok(()));
    assert_eq!(a.queue.while_open(fabric::ChannelId(99), &mut work), Err(PostError::Closed));
    b.queue.close(b.channel);
    assert_eq!(
        a.queue.while_open(a.channel, &mut work),
        Err(PostError::Closed),
        "b may use it otherwise now"
    );
    let mut got = [0; 4];
    remote.read(10, &mut got).unwrap();
    assert_eq!((&got, ran), (b"rows", 1));
}

#[test]
fn writes_past_the_cache_are_there_with_their_notice() {
    const BYTES: u64 = (1 << 20) + 13;
    let (mut a, mut b) = pair();
    let (source, target) = (region(2 << 20), region(2 << 20));
    let key = b.expose(&target);
    let mut got = vec![0; BYTES as usize + 2];
    for (round, streams) in [true, false, true].into_iter().enumerate() {
        let bytes: Vec<u8> = (0..BYTES).map(|at| (at * 31 + round as u64) as u8).collect();
        source.write(3, &bytes).unwrap();
        a.queue.stream_writes(streams);
        // One span above the bound, one below.
        let gather = [source.span(3, BYTES - 100).unwrap(), source.span(3 + BYTES - 100, 100).unwrap()];
        // With its own notice, and with one behind it.
        let immediate = (round == 2).then_some(7);
        let write = Write { id: 1, gather: &gather, remote: at(key, 5), immediate, signaled: false };
        a.queue.post_write(a.channel, &write).unwrap();
        if immediate.is_none() {
            let notice = Write { gather: &[], immediate: Some(7), ..write };
            a.queue.post_write(a.channel, &notice).unwrap();
        }
        assert_eq!(b.next_immediate(), 7);
        target.read(4, &mut got).unwrap();
        assert!(got[1..=BYTES as usize] == bytes, "streams: {streams}");
        assert_eq!((got[0], got[BYTES as usize + 1]), (0, 0), "and nothing around it");
    }
}

#[test]
fn a_waker_ends_a_wait_and_one_before_it_is_not_lost() {
    let (mut a, _b) = pair();
    let waker = a.queue.waker();
    waker.wake();
    let started = Instant::now();
    a.queue.wait(Duration::from_secs(10));
    assert!(started.elapsed() < Duration::from_secs(5), "woken before it slept");
    let waking = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        waker.wake();
    });
    let started = Instant::now();
    a.queue.wait(Duration::from_secs(10));
    assert!(started.elapsed() < Duration::from_secs(5), "woken asleep");
    waking.join().unwrap();
    let started = Instant::now();
    a.queue.wait(Duration::from_millis(60));
    let waited = started.elapsed();
    assert!(waited >= Duration::from_millis(60) && waited < Duration::from_secs(5), "{waited:?}");
}

#[test]
fn a_wake_reaches_who_sleeps_in_another_s_place_and_the_other() {
    let mut queue = LaneQueue::new(DEPTH).unwrap();
    let (waker, sleeper) = (queue.waker(), queue.sleeper().unwrap());
    let rest = queue.arm().expect("nothing is there");
    assert_eq!(rest, Rest::Word);
    let asleep = std::thread::spawn(move || {
        let started = Instant::now();
        sleeper.sleep(rest, Duration::from_secs(10));
        started.elapsed()
    });
    // Before the lane lies down again, so that the other's sleep lasts.
    std::thread::sleep(Duration::from_millis(50));
    let waking = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        waker.wake();
    });
    let started = Instant::now();
    queue.wait(Duration::from_secs(10));
    assert!(started.elapsed() < Duration::from_secs(5), "who sleeps in its place");
    assert!(asleep.join().unwrap() < Duration::from_secs(5), "the other");
    waking.join().unwrap();
}
