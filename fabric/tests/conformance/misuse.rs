//! What cannot be done is refused, with whose fault it is, and in time.

use super::rig::{DEPTH, Place, Queue, Rig, connect, soon};
use fabric::{CompletionQueue, FabricError};
use std::time::{Duration, Instant};

pub fn impossible_depths_offers_and_indices_are_refused<R: Rig>() {
    for depth in [0, usize::MAX] {
        assert!(matches!(R::queue(Place::Near, depth), Err(FabricError::Misuse(_))), "{depth}");
    }
    let queue = R::queue(Place::Near, DEPTH).unwrap();
    let device = R::device(Place::Near);
    assert!(matches!(device.offer(&[]), Err(FabricError::Misuse(_))));
    let (offer, _pending) = device.offer(&[queue.handle(), queue.handle()]).unwrap();
    let far = R::queue(Place::Far, DEPTH).unwrap();
    let connect =
        |offer: &[u8], index| R::device(Place::Far).connect(offer, index, &far.handle(), soon()).map(|_| ());
    for index in [2, u16::MAX] {
        assert!(matches!(connect(&offer, index), Err(FabricError::Misuse(_))), "channel {index}");
    }
    for bytes in [&[][..], &[1], &offer[..3], &offer[..offer.len() / 2]] {
        let answer = connect(bytes, 0);
        assert!(matches!(answer, Err(FabricError::Peer(_))), "{} bytes: {answer:?}", bytes.len());
    }
}

pub fn a_channel_goes_to_the_queue_it_was_connected_for<R: Rig>() {
    let (ours, mut other) = (R::queue(Place::Near, DEPTH).unwrap(), R::queue(Place::Near, DEPTH).unwrap());
    let far = R::queue(Place::Far, DEPTH).unwrap();
    let (offer, pending) = R::device(Place::Near).offer(&[ours.handle()]).unwrap();
    let handle = far.handle();
    let (setup, _connected) = std::thread::scope(|scope| {
        let connecting = scope.spawn(|| R::device(Place::Far).connect(&offer, 0, &handle, soon()).unwrap());
        (pending.accept(soon()).unwrap().pop().unwrap(), connecting.join().unwrap())
    });
    let attached = other.attach(setup);
    if R::LIMITS.binds_setups {
        assert!(matches!(attached, Err(FabricError::Misuse(_))), "{attached:?}");
    } else {
        attached.unwrap();
    }
}

pub fn a_peer_that_does_not_come_is_waited_for_until_the_deadline<R: Rig>() {
    let queue = R::queue(Place::Near, DEPTH).unwrap();
    let (_, pending) = R::device(Place::Near).offer(&[queue.handle()]).unwrap();
    let started = Instant::now();
    let answer = pending.accept(started + Duration::from_millis(200)).map(|_| ());
    assert!(matches!(answer, Err(FabricError::Deadline { .. })), "{answer:?}");
    assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
    // And the queue is as good as before.
    let (mut near, mut far) = (queue, R::queue(Place::Far, DEPTH).unwrap());
    connect::<R>(&mut near, &mut far);
}
