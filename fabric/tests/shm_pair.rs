//! Two lanes of one process over the real shared-memory device: what a channel promises, both sides of each
//! bound, sleeping and waking.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod shm_rig;

use fabric::{
    CompletionKind, CompletionQueue, Device, DisconnectReason, FabricError, LaneQueue, PostError, Read,
    RemoteKey, RemoteSpan, Rest, ShmDevice,
};
use shm_rig::{DEPTH, pair, pair_of_depth, region, soon};
use std::time::{Duration, Instant};

fn at(key: RemoteKey, offset: u64) -> RemoteSpan {
    RemoteSpan { key, offset }
}

#[test]
fn a_gathered_write_lands_before_its_notice() {
    let (mut a, mut b) = pair();
    let (source, target) = (region(8192), region(4096));
    source.write(0, b"shared ").unwrap();
    source.write(5000, b"memory").unwrap();
    let key = b.expose(&target);
    assert_eq!(b.expose(&target), key, "repeating it is cheap");
    let spans = [source.span(0, 7).unwrap(), source.span(5000, 6).unwrap()];
    a.write(&spans, at(key, 100), Some(42), true).unwrap();
    assert_eq!(b.next_immediate(), 42);
    let mut got = [0; 13];
    target.read(100, &mut got).unwrap();
    assert_eq!(&got, b"shared memory");
    assert_eq!(a.next(), CompletionKind::WriteDone { id: 7 });
}

#[test]
fn reads_and_views_see_the_peers_memory() {
    let (mut a, mut b) = pair();
    let (local, remote) = (region(4096), region(4096));
    remote.write(4000, b"in place").unwrap();
    let key = b.expose(&remote);
    let span = local.span(8, 8).unwrap();
    a.queue.post_read(a.channel, &Read { id: 3, local: &span, remote: at(key, 4000) }).unwrap();
    assert_eq!(a.next(), CompletionKind::ReadDone { id: 3 });
    let mut got = [0; 8];
    local.read(8, &mut got).unwrap();
    assert_eq!(&got, b"in place");

    let view = a.queue.view(a.channel, at(key, 4000), 8).unwrap();
    assert_eq!(view.len(), 8);
    drop((remote, b));
    a.queue.close(a.channel);
    view.read(3, &mut got[..5]).unwrap();
    assert_eq!(&got[..5], b"place", "a view outlives channel, peer and region");
    assert!(view.read(4, &mut got[..5]).is_err());
    assert!(view.read(u64::MAX, &mut got).is_err());
}

#[test]
fn keys_and_bounds_are_checked_on_both_sides_of_the_bound() {
    let (mut a, mut b) = pair();
    let (source, target) = (region(8192), region(4096));
    let bytes = [source.span(0, 16).unwrap()];
    assert_eq!(a.write(&bytes, at(RemoteKey(99), 0), Some(1), false), Err(PostError::RemoteAccess));
    let key = b.expose(&target);
    assert_eq!(a.write(&bytes, at(key, 4081), Some(1), false), Err(PostError::RemoteAccess));
    assert_eq!(a.write(&bytes, at(key, u64::MAX), Some(1), false), Err(PostError::RemoteAccess));
    assert!(a.queue.view(a.channel, at(key, 4081), 16).is_err());
    assert!(a.queue.view(a.channel, at(key, 0), u64::MAX).is_err());
    let read = Read { id: 1, local: &bytes[0], remote: at(key, 4081) };
    assert_eq!(a.queue.post_read(a.channel, &read), Err(PostError::RemoteAccess));
    a.write(&bytes, at(key, 4080), Some(2), false).unwrap();
    assert_eq!(b.next_immediate(), 2, "a refused write sends no notice");
    let many = vec![source.span(0, 1).unwrap(); a.queue.caps().gather_max];
    a.write(&many, at(key, 0), Some(3), false).unwrap();
    let too_many = vec![source.span(0, 1).unwrap(); 1025];
    assert_eq!(a.write(&too_many, at(key, 0), Some(3), false), Err(PostError::TooManySpans));
}

#[test]
fn a_full_ring_refuses_and_rings_when_there_is_space() {
    let (mut a, mut b) = pair_of_depth(4);
    for i in 0..4 {
        a.notify(i).unwrap();
    }
    assert_eq!(a.notify(4), Err(PostError::Full));
    let (sender, receiver) = std::sync::mpsc::channel();
    let blocked = std::thread::spawn(move || {
        sender.send(()).unwrap();
        let started = Instant::now();
        a.notify_patiently(4);
        (a, started.elapsed())
    });
    receiver.recv().unwrap();
    std::thread::sleep(Duration::from_millis(50));
    for i in 0..5 {
        assert_eq!(b.next_immediate(), i);
    }
    let (_a, waited) = blocked.join().unwrap();
    assert!(waited < Duration::from_secs(5), "it was rung and did not time out: {waited:?}");
}

#[test]
fn unpolled_completions_are_bounded() {
    let (mut a, mut b) = pair_of_depth(4);
    let (source, target) = (region(4096), region(4096));
    let key = b.expose(&target);
    let span = [source.span(0, 1).unwrap()];
    for _ in 0..4 {
        a.write(&span, at(key, 0), None, true).unwrap();
    }
    assert_eq!(a.write(&span, at(key, 0), None, true), Err(PostError::Full));
    a.write(&span, at(key, 0), None, false).unwrap();
    for _ in 0..4 {
        assert_eq!(a.next(), CompletionKind::WriteDone { id: 7 });
    }
    a.write(&span, at(key, 0), None, true).unwrap();
}

#[test]
fn a_closed_channel_delivers_what_was_sent_and_then_ends() {
    let (mut a, mut b) = pair();
    a.notify(1).unwrap();
    a.notify(2).unwrap();
    a.queue.close(a.channel);
    assert_eq!(a.notify(3), Err(PostError::Closed));
    assert_eq!((b.next_immediate(), b.next_immediate()), (1, 2));
    assert_eq!(b.next_end(), DisconnectReason::PeerClosed);
    assert_eq!(b.notify(3), Err(PostError::Closed));
    b.queue.close(b.channel);
}

#[test]
fn nothing_lands_after_a_close() {
    let (mut a, mut b) = pair();
    let (source, target) = (region(1 << 20), region(1 << 20));
    source.write(0, &[9; 64]).unwrap();
    let key = b.expose(&target);
    let span = [source.span(0, 1 << 20).unwrap()];
    let writer = std::thread::spawn(move || {
        while a.write(&span, at(key, 0), None, false).is_ok() {}
        assert_eq!(a.next_end(), DisconnectReason::PeerClosed);
    });
    std::thread::sleep(Duration::from_millis(20));
    b.queue.close(b.channel);
    target.write(0, &[0; 64]).unwrap();
    writer.join().unwrap();
    let mut got = [1; 64];
    target.read(0, &mut got).unwrap();
    assert_eq!(got, [0; 64]);
}

#[test]
fn nothing_is_read_after_a_close() {
    let (mut a, mut b) = pair();
    let (theirs, local) = (region(4096), region(4096));
    let key = b.expose(&theirs);
    let span = local.span(0, 16).unwrap();
    let read = Read { id: 1, local: &span, remote: at(key, 0) };
    assert_eq!(a.queue.post_read(a.channel, &read), Ok(()));
    b.queue.close(b.channel);
    // Whoever closed may write something else there by now: the reader, who has not heard of it yet, gets nothing.
    assert_eq!(a.queue.post_read(a.channel, &read), Err(PostError::Closed));
}

#[test]
fn a_dropped_lane_ends_its_channels() {
    let (a, mut b) = pair();
    drop(a);
    let started = Instant::now();
    assert_eq!(b.next_end(), DisconnectReason::PeerClosed);
    assert!(started.elapsed() < Duration::from_secs(1));
}

#[test]
fn one_offer_connects_several_lanes_in_order() {
    let mut ours: Vec<_> = (0..3).map(|_| LaneQueue::new(DEPTH).unwrap()).collect();
    let mut theirs: Vec<_> = (0..3).map(|_| LaneQueue::new(DEPTH).unwrap()).collect();
    let handles: Vec<_> = ours.iter().map(LaneQueue::handle).collect();
    let (offer, pending) = ShmDevice::new().offer(&handles).unwrap();
    let accepting = std::thread::spawn(move || pending.accept(soon()).unwrap());
    for index in [2, 0, 1] {
        let setup =
            ShmDevice::new().connect(&offer, index, &theirs[usize::from(index)].handle(), soon()).unwrap();
        let lane = &mut theirs[usize::from(index)];
        let channel = lane.attach(setup).unwrap();
        let write = fabric::Write {
            id: 0,
            gather: &[],
            remote: at(RemoteKey(0), 0),
            immediate: Some(u32::from(index) + 10),
            signaled: false,
        };
        lane.post_write(channel, &write).unwrap();
    }
    for (index, setup) in accepting.join().unwrap().into_iter().enumerate() {
        let mut got = Vec::new();
        ours[index].attach(setup).unwrap();
        ours[index].poll(&mut got);
        assert_eq!(got[0].kind, CompletionKind::Received { immediate: index as u32 + 10 });
    }
    assert!(matches!(
        ShmDevice::new().connect(&offer, 3, &theirs[0].handle(), soon()),
        Err(FabricError::Misuse(_))
    ));
}

#[test]
fn misuse_is_refused() {
    assert!(matches!(LaneQueue::new(0), Err(FabricError::Misuse(_))));
    assert!(matches!(LaneQueue::new(usize::MAX), Err(FabricError::Misuse(_))));
    assert!(matches!(ShmDevice::new().offer(&[]), Err(FabricError::Misuse(_))));
    let (ours, mut other) = (LaneQueue::new(DEPTH).unwrap(), LaneQueue::new(DEPTH).unwrap());
    let (offer, pending) = ShmDevice::new().offer(&[ours.handle()]).unwrap();
    let handle = other.handle();
    let connecting =
        std::thread::spawn(move || ShmDevice::new().connect(&offer, 0, &handle, soon()).unwrap());
    let setup = pending.accept(soon()).unwrap().pop().unwrap();
    assert!(matches!(other.attach(setup), Err(FabricError::Misuse(_))), "connected for another lane");
    connecting.join().unwrap();
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

fn cpu() -> Duration {
    let spent = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(spent.tv_sec as u64, spent.tv_nsec as u32)
}

#[test]
fn waiting_costs_no_processor_time() {
    let (mut a, _b) = pair();
    let before = cpu();
    a.queue.wait(Duration::from_millis(1000));
    let spent = cpu() - before;
    assert!(spent < Duration::from_millis(10), "under 1 % of a core: {spent:?}");
}
