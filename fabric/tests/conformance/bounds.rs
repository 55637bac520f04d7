//! What a peer may reach: its grants to their last byte and nothing beside them, by writes and by reads.

use super::rig::{
    End, Place, Queue, Refusal, Rig, at, bytes_of, connect, connect_all, meet, pair, pair_with, region,
};
use fabric::{CompletionKind, CompletionQueue, DisconnectReason, PeerWritable, PostError, RemoteKey};

const BYTES: u64 = 4096;
const UNTOUCHED: u8 = 0xEE;

fn untouched() -> PeerWritable {
    let lent = region(BYTES as usize);
    lent.write(0, &[UNTOUCHED; BYTES as usize]).unwrap();
    lent
}

fn assert_untouched(lent: &PeerWritable) {
    assert!(bytes_of(lent, 0, lent.len()) == vec![UNTOUCHED; lent.len()], "something landed");
}

/// What came of a post that must be refused. Where the peer refuses, the channel ends for both.
fn assert_refused<R: Rig>(posted: Result<(), PostError>, a: &mut End<R>, b: &mut End<R>, what: &str) {
    match R::LIMITS.refusal {
        Refusal::AtPost => {
            assert_eq!(posted, Err(PostError::RemoteAccess), "{what}");
            a.notify(77);
            assert_eq!(
                b.next_with(a),
                CompletionKind::Received { immediate: 77 },
                "{what}: the channel lives"
            );
        }
        Refusal::ByPeer => {
            assert_eq!(posted, Ok(()), "{what}");
            let (reason, before) = b.ended();
            assert!(matches!(reason, DisconnectReason::PeerMisbehaved(_)), "{what}: {reason:?}");
            assert_eq!(before, [], "{what}: no notice of it");
            assert_eq!(a.ended().0, DisconnectReason::PeerClosed, "{what}");
            assert_eq!(a.write(&[], at(RemoteKey(0), 0), Some(1), None), Err(PostError::Closed), "{what}");
        }
    }
}

pub fn the_last_byte_of_a_grant_is_the_last<R: Rig>() {
    let source = region(2 * BYTES as usize);
    let within = [(0, 0), (0, BYTES), (BYTES - 1, 1), (BYTES, 0), (17, BYTES - 17)];
    let (mut a, mut b, key) = pair_with::<R>(&untouched());
    for (offset, bytes) in within {
        let span = source.span(0, bytes).unwrap();
        a.write(std::slice::from_ref(&span), at(key, offset), Some(3), None).unwrap();
        assert_eq!(b.next_with(&mut a), CompletionKind::Received { immediate: 3 });
        a.read(&span, at(key, offset), 4).unwrap();
        assert_eq!(a.next_with(&mut b), CompletionKind::ReadDone { id: 4 }, "{bytes} at {offset}");
    }
    let beyond = [(0, BYTES + 1), (BYTES, 1), (BYTES - 7, 8), (u64::MAX, 1), (u64::MAX - 7, 16)];
    for (offset, bytes) in beyond {
        let span = source.span(0, bytes).unwrap();
        let what = format!("{bytes} bytes at {offset}");
        let lent = untouched();
        let (mut a, mut b, key) = pair_with::<R>(&lent);
        let posted = a.write(std::slice::from_ref(&span), at(key, offset), Some(1), Some(1));
        assert_refused(posted, &mut a, &mut b, &format!("a write of {what}"));
        let (mut a, mut b, key) = pair_with::<R>(&lent);
        let posted = a.read(&span, at(key, offset), 1);
        assert_refused(posted, &mut a, &mut b, &format!("a read of {what}"));
        assert_untouched(&lent);
    }
}

pub fn a_key_that_was_never_exposed_reaches_nothing<R: Rig>() {
    let (source, hidden) = (region(64), untouched());
    let span = source.span(0, 8).unwrap();
    for key in [RemoteKey(0), RemoteKey(u64::MAX), RemoteKey(hidden.id())] {
        let (mut a, mut b) = pair::<R>();
        let posted = a.write(std::slice::from_ref(&span), at(key, 0), Some(1), None);
        assert_refused(posted, &mut a, &mut b, "a write");
        let (mut a, mut b) = pair::<R>();
        let posted = a.read(&span, at(key, 0), 1);
        assert_refused(posted, &mut a, &mut b, "a read");
    }
    assert_untouched(&hidden);
}

pub fn a_key_of_another_channel_reaches_nothing<R: Rig>() {
    let (source, lent) = (region(64), untouched());
    let mut near = R::queue(Place::Near, 64).unwrap();
    let mut far = R::queue(Place::Far, 64).unwrap();
    let ids = connect_all::<R>(std::slice::from_mut(&mut near), std::slice::from_mut(&mut far), &[(0, 0); 2]);
    let (mut a, mut b) = (End::<R>::new(near, ids[1].0), End::<R>::new(far, ids[1].1));
    meet(&mut a, &mut b);
    b.grant(&lent);
    let key = a.granted();
    (a.channel, b.channel) = ids[0];
    let posted = a.write(&[source.span(0, 8).unwrap()], at(key, 0), Some(1), None);
    assert_refused(posted, &mut a, &mut b, "a write");
    assert_untouched(&lent);
    (a.channel, b.channel) = ids[1];
    a.write(&[source.span(0, 8).unwrap()], at(key, 0), Some(2), None).unwrap();
    assert_eq!(b.next_with(&mut a), CompletionKind::Received { immediate: 2 }, "the other channel lives");
}

/// A peer that comes back to the same queue has granted nothing yet.
pub fn a_grant_ends_with_the_life_that_gave_it<R: Rig>() {
    let (source, lent) = (region(64), untouched());
    let span = [source.span(0, 8).unwrap()];
    let (mut a, b, key) = pair_with::<R>(&lent);
    drop(b);
    assert_eq!(a.ended().0, DisconnectReason::PeerClosed);
    assert_eq!(a.write(&span, at(key, 0), Some(1), None), Err(PostError::Closed));
    let mut far = R::queue(Place::Far, 64).unwrap();
    let (near, far_channel) = connect::<R>(&mut a.queue, &mut far);
    assert!(near > a.channel, "ids are not used again");
    a.channel = near;
    let mut b = End::<R>::new(far, far_channel);
    meet(&mut a, &mut b);
    let posted = a.write(&span, at(key, 0), Some(1), None);
    assert_refused(posted, &mut a, &mut b, "a write under an old grant");
    assert_untouched(&lent);
}

/// An offer is good for its channels, once, and for as long as who made it lives.
pub fn an_offer_that_was_used_or_withdrawn_connects_nobody<R: Rig>() {
    let (mut ours, mut theirs) = (R::queue(Place::Near, 64).unwrap(), R::queue(Place::Far, 64).unwrap());
    let device = R::device(Place::Far);
    let shortly = || std::time::Instant::now() + std::time::Duration::from_secs(2);
    let (offer, pending) = R::device(Place::Near).offer(&[ours.handle()]).unwrap();
    drop(pending);
    assert!(device.connect(&offer, 0, &theirs.handle(), shortly()).is_err(), "withdrawn");
    let (offer, pending) = R::device(Place::Near).offer(&[ours.handle()]).unwrap();
    let handle = theirs.handle();
    let (accepted, connected) = std::thread::scope(|scope| {
        let connecting = scope.spawn(|| device.connect(&offer, 0, &handle, shortly()).unwrap());
        (pending.accept(shortly()).unwrap().pop().unwrap(), connecting.join().unwrap())
    });
    assert!(device.connect(&offer, 0, &theirs.handle(), shortly()).is_err(), "used");
    let ids = (ours.attach(accepted).unwrap(), theirs.attach(connected).unwrap());
    meet(&mut End::<R>::new(ours, ids.0), &mut End::<R>::new(theirs, ids.1));
}
