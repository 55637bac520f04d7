//! Memory that the library did not allocate, through each driver: writes go out from where it lies; over tcp it is
//! read and landed in; shared memory refuses to hand it over; what was adopted for reading is never written.
#![allow(clippy::unwrap_used, reason = "test code: a panic is a failed test")]

mod shm_rig;
mod sim_rig;
mod tcp_rig;

use fabric::{CompletionKind, CompletionQueue, DisconnectReason, PostError, Read, RemoteSpan, UserBuffer};
use std::sync::Arc;
use tcp_rig::{Carrier, at, bytes_of, over_both, pair};

const COUNT: usize = 5000;
const BYTES: u64 = 4 * COUNT as u64;

fn numbers() -> Vec<f32> {
    (0..COUNT).map(|i| i as f32 - 0.5).collect()
}

fn encoded(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
}

#[test]
fn shared_memory_writes_from_it_and_refuses_to_hand_it_over() {
    let (mut a, mut b) = shm_rig::pair();
    let inbox = shm_rig::region(BYTES as usize);
    let remote = RemoteSpan { key: b.expose(&inbox), offset: 0 };
    for source in [UserBuffer::from(numbers()), UserBuffer::from(Arc::new(numbers()))] {
        assert_eq!(a.queue.expose(a.channel, &source.region()), Err(PostError::NotShareable));
        inbox.write(0, &vec![0xee; BYTES as usize]).unwrap();
        a.write(&[source.region().all()], remote, Some(5), true).unwrap();
        assert_eq!(b.next_immediate(), 5);
        assert_eq!(bytes_of(&inbox, 0, BYTES as usize), encoded(&source));
        assert_eq!(a.next(), CompletionKind::WriteDone { id: 7 });
    }
    assert!(a.queue.expose(a.channel, &inbox).is_ok(), "the channel lives");
}

#[test]
fn shared_memory_reads_land_in_it_where_it_may_be_written() {
    let (mut a, mut b) = shm_rig::pair();
    let theirs = shm_rig::region(BYTES as usize);
    theirs.write(0, &encoded(&numbers())).unwrap();
    let remote = RemoteSpan { key: b.expose(&theirs), offset: 0 };
    let shared = UserBuffer::from(Arc::new(vec![1.0f32; COUNT]));
    let read = |id, local: &UserBuffer, queue: &mut fabric::LaneQueue, channel| {
        queue.post_read(channel, &Read { id, local: &local.region().all(), remote })
    };
    assert_eq!(read(1, &shared, &mut a.queue, a.channel), Err(PostError::ReadOnly));
    let ours = UserBuffer::from(vec![1.0f32; COUNT]);
    read(2, &ours, &mut a.queue, a.channel).unwrap();
    assert_eq!(a.next(), CompletionKind::ReadDone { id: 2 });
    assert_eq!((ours.into_vec().unwrap(), shared[0]), (numbers(), 1.0));
}

fn is_written_and_read_in_place(carrier: Carrier) {
    let (mut left, mut right) = pair(carrier, 16, None);
    let theirs = UserBuffer::from(vec![0.0f32; COUNT]);
    let key = right.expose(&theirs.region());
    let source = UserBuffer::from(Arc::new(numbers()));
    left.write(1, &[source.region().all()], at(key, 0), Some(9)).unwrap();
    left.queue.flush();
    right.until_received(9);
    assert_eq!(*theirs, *source);
    // A peer reads what was adopted for reading.
    let key = left.expose(&source.region());
    let again = UserBuffer::from(vec![0.0f32; COUNT]);
    right
        .queue
        .post_read(right.channel, &Read { id: 3, local: &again.region().all(), remote: at(key, 0) })
        .unwrap();
    right.queue.flush();
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| left.until_received(4));
        right.until("the read", |kind| *kind == CompletionKind::ReadDone { id: 3 });
        right.write(4, &[], at(key, 0), Some(4)).unwrap();
        right.queue.flush();
        serving.join().unwrap();
    });
    assert_eq!(again.into_vec().unwrap(), numbers());
}

fn what_was_adopted_for_reading_is_never_written(carrier: Carrier) {
    let (mut left, mut right) = pair(carrier, 16, None);
    let shared = UserBuffer::from(Arc::new(numbers()));
    let local = Read { id: 1, local: &shared.region().all(), remote: at(fabric::RemoteKey(1), 0) };
    assert_eq!(right.queue.post_read(right.channel, &local), Err(PostError::ReadOnly));
    let key = right.expose(&shared.region());
    let poison = UserBuffer::from(vec![-1.0f32; COUNT]);
    left.write(1, &[poison.region().all()], at(key, 0), Some(9)).unwrap();
    left.queue.flush();
    match right.until_disconnected() {
        DisconnectReason::PeerMisbehaved(what) => assert!(what.contains("read-only"), "{what}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(*shared, *numbers());
}

over_both!(is_written_and_read_in_place, what_was_adopted_for_reading_is_never_written);

#[test]
fn the_simulation_does_the_same() {
    let mut rig = sim_rig::Rig::new(1, fabric::sim::SimFaults::calm());
    let shared = UserBuffer::from(Arc::new(vec![1.0f32; 16]));
    let key = rig.b.queue.expose(rig.b.channel, &shared.region()).unwrap();
    let local = Read { id: 1, local: &shared.region().all(), remote: at(rig.a.key, 0) };
    assert_eq!(rig.b.queue.post_read(rig.b.channel, &local), Err(PostError::ReadOnly));
    rig.a.write(key, 0, 64, 7).unwrap();
    rig.run();
    assert!(rig.a.end().is_some() && rig.b.immediates().is_empty());
    assert_eq!(*shared, [1.0; 16]);
}
