//! The fence of a shared-memory channel. A process that is in the middle of a copy when its peer closes keeps the fence pending
//! until the copy has ended, whatever stops it. No thread waits for the fence. After the fence nothing lands.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod shm_rig;

use fabric::{
    CompletionKind, CompletionQueue, DisconnectReason, Fence, PeerWritable, PostError, Region, RemoteKey,
    RemoteSpan, Write,
};
use rustix::process::{Pid, Signal, kill_process};
use shm_rig::{DEPTH, Side, pair, region, soon, to_parent, with_child};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

const LATE: u8 = 0xAB;
const POISON: u8 = 0x55;
/// What a peer writes that is in its copy.
const ENTERED: u8 = 1;

fn bytes_of(region: &PeerWritable) -> Vec<u8> {
    let mut bytes = vec![0; region.len()];
    region.read(0, &mut bytes).unwrap();
    bytes
}

fn poison(region: &PeerWritable) {
    region.write(0, &vec![POISON; region.len()]).unwrap();
}

fn is_poisoned(region: &PeerWritable) -> bool {
    bytes_of(region).iter().all(|byte| *byte == POISON)
}

fn wait_until_fenced(side: &mut Side) {
    let deadline = soon();
    while side.queue.fence(side.channel) == Fence::Pending {
        assert!(Instant::now() < deadline, "the fence is never done");
        side.queue.wait(Duration::from_secs(1));
        side.queue.poll(&mut side.inbox);
    }
}

fn key_of(side: &mut Side) -> RemoteKey {
    RemoteKey(side.next_immediate().into())
}

/// Closes, which waits for nobody.
fn close(side: &mut Side) -> Fence {
    let started = Instant::now();
    let fence = side.queue.close(side.channel);
    assert!(started.elapsed() < Duration::from_millis(15), "closing waited for {:?}", started.elapsed());
    fence
}

#[test]
fn a_peer_that_is_stopped_between_its_look_and_its_copy_keeps_the_fence_pending() {
    let (mut ours, mut theirs) = pair();
    let lent = region(4096);
    let key = ours.expose(&lent);
    ours.notify(key.0 as u32).unwrap();
    let ((entered, has_entered), (resume, resumed)) = (channel(), channel::<()>());
    let peer = std::thread::spawn(move || {
        let key = key_of(&mut theirs);
        let view = theirs.queue.map(theirs.channel, key).unwrap();
        let mut copy = || {
            entered.send(()).unwrap();
            resumed.recv().unwrap();
            view.write(0, &[LATE; 4096]).unwrap();
        };
        theirs.queue.while_open(theirs.channel, &mut copy).unwrap();
        let again = theirs.queue.while_open(theirs.channel, &mut || unreachable!("it is closed"));
        assert_eq!(again, Err(PostError::Closed));
    });
    has_entered.recv().unwrap();
    assert_eq!(close(&mut ours), Fence::Pending);
    poison(&lent);
    ours.queue.wait(Duration::from_secs(1));
    assert_eq!(ours.queue.fence(ours.channel), Fence::Pending);
    resume.send(()).unwrap();
    wait_until_fenced(&mut ours);
    assert!(!is_poisoned(&lent), "what the fence is for");
    poison(&lent);
    peer.join().unwrap();
    assert!(is_poisoned(&lent));
}

#[test]
fn a_fence_is_done_at_once_where_nobody_copies() {
    let (mut ours, theirs) = pair();
    assert_eq!(ours.queue.fence(ours.channel), Fence::Pending, "it is open");
    assert_eq!(close(&mut ours), Fence::Done);
    assert_eq!(ours.queue.fence(ours.channel), Fence::Done);
    drop(theirs);
}

/// A process that is stopped, and then killed, in the middle of a copy.
#[test]
fn a_stopped_process_keeps_the_fence_pending_until_it_continues_or_dies() {
    for kills in [false, true] {
        let (mut ours, child) = with_child("child_stops_in_its_copy", DEPTH);
        let lent = region(4096);
        let key = ours.expose(&lent);
        ours.notify(key.0 as u32).unwrap();
        let deadline = soon();
        while bytes_of(&lent)[0] != ENTERED {
            assert!(Instant::now() < deadline, "it does not begin its copy");
            std::thread::sleep(Duration::from_millis(1));
        }
        let pid = Pid::from_child(&child.0);
        kill_process(pid, Signal::STOP).unwrap();
        assert_eq!(close(&mut ours), Fence::Pending);
        poison(&lent);
        ours.queue.wait(Duration::from_millis(100));
        assert_eq!(ours.queue.fence(ours.channel), Fence::Pending);
        kill_process(pid, if kills { Signal::KILL } else { Signal::CONT }).unwrap();
        wait_until_fenced(&mut ours);
        assert_eq!(is_poisoned(&lent), kills);
        poison(&lent);
        drop(child);
        assert!(is_poisoned(&lent));
    }
}

#[test]
#[ignore = "the other process of a test"]
fn child_stops_in_its_copy() {
    let Some(mut side) = to_parent(DEPTH) else { return };
    let key = key_of(&mut side);
    let view = side.queue.map(side.channel, key).unwrap();
    let mut copy = || {
        view.write(0, &[ENTERED]).unwrap();
        // Longer than the other process needs to stop this one.
        std::thread::sleep(Duration::from_millis(300));
        view.write(0, &[LATE; 4096]).unwrap();
    };
    side.queue.while_open(side.channel, &mut copy).unwrap();
    side.next_end();
}

#[test]
fn who_reads_in_place_keeps_the_fence_from_being_done_until_it_closes_too() {
    let (mut ours, mut theirs) = pair();
    let lent = region(4096);
    let key = ours.expose(&lent);
    ours.notify(key.0 as u32).unwrap();
    let key = key_of(&mut theirs);
    theirs.queue.begin_reads(theirs.channel).unwrap();
    theirs.queue.map(theirs.channel, key).unwrap();
    // A write in between ends nothing.
    let target = region(64);
    let back = ours.expose(&target);
    theirs.queue.end_reads(theirs.channel);
    theirs.queue.begin_reads(theirs.channel).unwrap();
    let span = [region(64).all()];
    theirs.write(&span, RemoteSpan { key: back, offset: 0 }, Some(3), false).unwrap();
    assert_eq!(ours.next_immediate(), 3);
    assert_eq!(close(&mut ours), Fence::Reads);
    // Before it has heard of the close: what is refused now ends no read either.
    let late = theirs.write(&span, RemoteSpan { key: back, offset: 0 }, Some(4), false);
    assert_eq!(
        (late, theirs.queue.begin_reads(theirs.channel)),
        (Err(PostError::Closed), Err(PostError::Closed))
    );
    assert_eq!(ours.queue.fence(ours.channel), Fence::Reads);
    assert_eq!(theirs.next_end(), DisconnectReason::PeerClosed);
    assert_eq!(theirs.notify(1), Err(PostError::Closed));
    assert_eq!(ours.queue.fence(ours.channel), Fence::Reads, "it may still read, and knows it");
    theirs.queue.poll(&mut theirs.inbox);
    assert!(theirs.inbox.is_empty(), "its end is told once");
    assert_eq!(close(&mut theirs), Fence::Done);
    assert_eq!(ours.queue.fence(ours.channel), Fence::Done);
    assert_eq!(theirs.queue.begin_reads(theirs.channel), Err(PostError::Closed));
}

#[test]
fn reads_do_not_begin_at_a_peer_that_has_closed() {
    let (mut ours, mut theirs) = pair();
    theirs.queue.begin_reads(theirs.channel).unwrap();
    theirs.queue.end_reads(theirs.channel);
    assert_eq!(close(&mut ours), Fence::Done);
    assert_eq!(theirs.queue.begin_reads(theirs.channel), Err(PostError::Closed));
}

fn land(side: &mut Side, source: &PeerWritable, key: RemoteKey, id: u64) -> Result<(), PostError> {
    let (gather, remote) = ([source.all()], RemoteSpan { key, offset: 0 });
    let write = Write { id, gather: &gather, remote, immediate: None, signaled: true };
    side.queue.post_landing(side.channel, &write)
}

#[test]
fn a_landing_is_copied_by_its_receiver_before_the_notice_behind_it() {
    let (mut ours, mut theirs) = pair();
    let (lent, source) = (region(1 << 20), region(1 << 20));
    source.write(0, &vec![LATE; 1 << 20]).unwrap();
    let key = ours.expose(&lent);
    land(&mut theirs, &source, key, 5).unwrap();
    assert_eq!(bytes_of(&lent)[0], 0, "the writer copies nothing");
    theirs.notify(9).unwrap();
    theirs.queue.poll(&mut theirs.inbox);
    assert!(theirs.inbox.is_empty(), "it is not there yet");
    assert_eq!(ours.next_immediate(), 9);
    assert!(bytes_of(&lent).iter().all(|byte| *byte == LATE));
    assert_eq!(theirs.next(), CompletionKind::WriteDone { id: 5 });
}

#[test]
fn landings_that_the_receiver_does_not_take_are_bounded_and_end_with_the_channel() {
    let (mut ours, mut theirs) = pair();
    let (lent, source) = (region(64), region(64));
    let key = ours.expose(&lent);
    let posted = (0..).take_while(|id| land(&mut theirs, &source, key, *id).is_ok()).count();
    assert_eq!(posted, DEPTH);
    assert_eq!(land(&mut theirs, &source, key, 0), Err(PostError::Full));
    ours.queue.poll(&mut ours.inbox);
    let done: Vec<_> = (0..posted).map(|_| theirs.next()).collect();
    assert!((0..).zip(&done).all(|(id, kind)| *kind == CompletionKind::WriteDone { id }));
    land(&mut theirs, &source, key, 7).unwrap();
    poison(&lent);
    theirs.notify(4).unwrap();
    assert_eq!(close(&mut theirs), Fence::Done);
    // It was told of before the end, and not copied by then: the source may be of a later time.
    assert_eq!(ours.next_end(), DisconnectReason::PeerClosed);
    assert_eq!(close(&mut ours), Fence::Done);
}

#[test]
fn a_landing_where_nothing_was_granted_ends_the_channel() {
    let (small, read_only) =
        (Region::allocate(64, "small").unwrap(), Region::allocate_readable(4096, "weights").unwrap());
    for target in [None, Some(&small), Some(&read_only)] {
        let (mut ours, mut theirs) = pair();
        let key = target.map_or(RemoteKey(1 << 40), |region| ours.expose(region));
        let source = region(128);
        land(&mut theirs, &source, key, 0).unwrap();
        theirs.notify(1).unwrap();
        let reason = ours.next_end();
        assert!(matches!(reason, DisconnectReason::PeerMisbehaved(_)), "{reason:?}");
    }
}
