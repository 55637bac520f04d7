//! The end of channels by those who close them: nothing lands after it, nothing sent before it is lost, memory is given
//! back, and ids are not used again.

use super::child::BIG;
use super::rig::{
    LONG_SLEEP, Place, Queue, Rig, at, bytes_of, connect, filled, meet, pair, pair_with, region, soon,
};
use fabric::{CompletionKind, CompletionQueue, DisconnectReason, Fence, PeerWritable, PostError, Read};
use std::time::{Duration, Instant};

/// What memory is filled with that is used again: no byte of it may change.
pub const POISON: u8 = 0x55;

/// Uses memory again that a peer may have written to, and looks whether it still does.
pub fn assert_nothing_lands<R: Rig>(lent: &PeerWritable) {
    let poison = vec![POISON; lent.len()];
    lent.write(0, &poison).unwrap();
    std::thread::sleep(R::LIMITS.late);
    assert!(bytes_of(lent, 0, lent.len()) == poison, "a late write into memory that is used again");
}

pub fn nothing_lands_after_a_close_and_the_peer_hears_it<R: Rig>() {
    let lent = region(BIG);
    let (mut a, mut b, key) = pair_with::<R>(&lent);
    let source = filled(1, BIG);
    std::thread::scope(|scope| {
        let writing = scope.spawn(move || {
            let span = [source.span(0, BIG as u64).unwrap()];
            let reason = loop {
                match a.write(&span, at(key, 0), None, None) {
                    Ok(()) => {}
                    // Said by the post before it is said by a completion.
                    Err(PostError::Full | PostError::Closed) => a.queue.wait(Duration::from_millis(5)),
                    Err(other) => panic!("{other}"),
                }
                a.poll();
                if let Some(completion) = a.seen.pop_front() {
                    break completion.kind;
                }
            };
            let posted = a.write(&span, at(key, 0), Some(1), None);
            (reason, posted, a.queue.expose(a.channel, &source))
        });
        let deadline = soon();
        while bytes_of(&lent, 64, 8) == [0; 8] {
            assert!(Instant::now() < deadline, "it writes nothing");
            b.poll();
        }
        let mut fence = b.queue.close(b.channel);
        while fence == Fence::Pending {
            assert!(Instant::now() < deadline, "the fence is never done");
            b.queue.wait(Duration::from_millis(5));
            fence = b.queue.fence(b.channel);
        }
        assert_nothing_lands::<R>(&lent);
        let (told, posted, exposed) = writing.join().unwrap();
        assert!(matches!(told, CompletionKind::Disconnected(_)), "{told:?}");
        assert_eq!((posted, exposed), (Err(PostError::Closed), Err(PostError::Closed)));
    });
    assert!(b.seen.is_empty(), "{:?}", b.seen);
}

pub fn a_closed_channel_is_closed_and_its_queue_goes_on<R: Rig>() {
    let (lent, source) = (region(4096), region(64));
    let (mut a, mut b, key) = pair_with::<R>(&lent);
    let span = source.span(0, 8).unwrap();
    b.notify(5);
    a.write(std::slice::from_ref(&span), at(key, 0), None, Some(1)).unwrap();
    a.queue.close(a.channel);
    a.queue.close(a.channel);
    a.queue.wait(Duration::from_millis(20));
    a.poll();
    assert!(a.seen.is_empty(), "nothing comes of a channel that was closed: {:?}", a.seen);
    assert_eq!(a.write(&[], at(key, 0), Some(1), None), Err(PostError::Closed));
    assert_eq!(a.queue.expose(a.channel, &lent), Err(PostError::Closed));
    let read = Read { id: 1, local: &span, remote: at(key, 0) };
    assert_eq!(a.queue.post_read(a.channel, &read), Err(PostError::Closed));
    assert_eq!(b.ended().0, DisconnectReason::PeerClosed);
    let (near, far) = connect::<R>(&mut a.queue, &mut b.queue);
    assert!(near > a.channel && far > b.channel, "ids are not used again");
    (a.channel, b.channel) = (near, far);
    meet(&mut a, &mut b);
}

pub fn what_was_sent_before_the_end_is_delivered_before_it<R: Rig>() {
    for drops in [false, true] {
        let lent = region(4096);
        let (mut a, mut b, key) = pair_with::<R>(&lent);
        let source = filled(2, 4096);
        for i in 0..4u32 {
            let span = [source.span(0, 4096).unwrap()];
            a.write(&span, at(key, 0), Some(i), Some(i.into())).unwrap();
        }
        for id in 0..4 {
            assert_eq!(a.next(), CompletionKind::WriteDone { id });
        }
        if drops {
            drop(a);
        } else {
            a.queue.close(a.channel);
        }
        let (reason, before) = b.ended();
        assert_eq!(reason, DisconnectReason::PeerClosed);
        assert!(before.into_iter().eq((0..4).map(|immediate| CompletionKind::Received { immediate })));
        assert!(bytes_of(&lent, 0, 4096) == bytes_of(&source, 0, 4096));
        assert_eq!(b.write(&[], at(key, 0), Some(1), None), Err(PostError::Closed));
    }
}

pub fn a_dropped_queue_ends_all_its_channels<R: Rig>() {
    let mut near = R::queue(Place::Near, 64).unwrap();
    let mut far = R::queue(Place::Far, 64).unwrap();
    let ids: Vec<_> = (0..3).map(|_| connect::<R>(&mut near, &mut far)).collect();
    let started = Instant::now();
    std::thread::scope(|scope| {
        // While the other one sleeps.
        scope.spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            drop(near);
        });
        let (mut ended, mut polled) = (Vec::new(), Vec::new());
        while ended.len() < 3 {
            assert!(started.elapsed() < LONG_SLEEP, "only {ended:?}");
            far.wait(LONG_SLEEP);
            far.poll(&mut polled);
            for completion in polled.drain(..) {
                assert_eq!(completion.kind, CompletionKind::Disconnected(DisconnectReason::PeerClosed));
                ended.push(completion.channel);
            }
        }
        ended.sort_unstable();
        assert!(ended.into_iter().eq(ids.iter().map(|(_, far)| *far)));
    });
    let (mut a, mut b) = pair::<R>();
    a.queue.close(a.channel);
    assert_eq!(b.ended().0, DisconnectReason::PeerClosed);
}

pub fn memory_is_given_back_with_the_queues_that_knew_it<R: Rig>() {
    const BYTES: usize = 16 << 20;
    let name = format!("given-back-{}", R::NAME);
    let mapped = || std::fs::read_to_string("/proc/self/maps").unwrap().contains(&name);
    let lent = PeerWritable::allocate(BYTES, &name).unwrap();
    let (mut a, b, key) = pair_with::<R>(&lent);
    // With a write of it under way that nobody takes.
    a.write(&[lent.span(0, BYTES as u64 / 2).unwrap()], at(key, BYTES as u64 / 2), None, None).unwrap();
    assert!(mapped());
    drop((a, b));
    assert!(mapped(), "our own hold on it");
    drop(lent);
    assert!(!mapped());
}

/// A region's own end must not end what peers may still do with it.
pub fn a_region_lives_as_long_as_it_is_exposed<R: Rig>() {
    let (mut a, mut b) = pair::<R>();
    let source = filled(4, 4096);
    let lent = region(4096);
    b.grant(&lent);
    drop(lent);
    let key = a.granted();
    a.write(&[source.span(0, 4096).unwrap()], at(key, 0), Some(1), None).unwrap();
    assert_eq!(b.next_with(&mut a), CompletionKind::Received { immediate: 1 });
    let back = region(4096);
    a.read(&back.span(0, 4096).unwrap(), at(key, 0), 1).unwrap();
    assert_eq!(a.next_with(&mut b), CompletionKind::ReadDone { id: 1 });
    assert!(bytes_of(&back, 0, 4096) == bytes_of(&source, 0, 4096));
}
