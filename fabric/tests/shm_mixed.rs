//! One lane with shared-memory and TCP channels: told apart by id, polled as one, and woken by either while
//! it sleeps on sockets.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod shm_rig;

use fabric::{
    ChannelId, ChannelSetup, Completion, CompletionKind, CompletionQueue, Device, DisconnectReason,
    LaneQueue, PostError, RemoteKey, RemoteSpan, ShmDevice, TcpDevice, Write,
};
use shm_rig::{DEPTH, region, soon};
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

fn tcp() -> TcpDevice {
    TcpDevice::new(IpAddr::V4(Ipv4Addr::LOCALHOST), "127.0.0.1".into())
}

fn connect(
    device: &(impl Device + Clone + 'static),
    ours: &mut LaneQueue,
    theirs: &mut LaneQueue,
) -> [ChannelId; 2] {
    let (offer, pending) = device.offer(&[ours.handle()]).unwrap();
    let (handle, connecting) = (theirs.handle(), device.clone());
    let connecting = std::thread::spawn(move || connecting.connect(&offer, 0, &handle, soon()).unwrap());
    let accepted: ChannelSetup = pending.accept(soon()).unwrap().pop().unwrap();
    [ours.attach(accepted).unwrap(), theirs.attach(connecting.join().unwrap()).unwrap()]
}

/// A lane with what it has reported and nobody has looked at.
struct Lane {
    queue: LaneQueue,
    inbox: VecDeque<Completion>,
}

impl Lane {
    fn notify(&mut self, channel: ChannelId, immediate: u32) {
        let remote = RemoteSpan { key: RemoteKey(0), offset: 0 };
        let write = Write { id: 0, gather: &[], remote, immediate: Some(immediate), signaled: false };
        self.queue.post_write(channel, &write).unwrap();
        self.queue.flush();
    }

    /// The next event, sleeping for it: no wait may run to its end.
    fn next(&mut self) -> (ChannelId, CompletionKind) {
        let started = Instant::now();
        let mut completions = Vec::new();
        loop {
            if let Some(completion) = self.inbox.pop_front() {
                return (completion.channel, completion.kind);
            }
            self.queue.poll(&mut completions);
            self.inbox.extend(completions.drain(..));
            if self.inbox.is_empty() {
                self.queue.wait(Duration::from_secs(20));
            }
            assert!(started.elapsed() < Duration::from_secs(10), "a wake was lost");
        }
    }
}

fn lanes() -> (Lane, Lane, [ChannelId; 2], [ChannelId; 2]) {
    let (mut a, mut b) = (LaneQueue::new(DEPTH).unwrap(), LaneQueue::new(DEPTH).unwrap());
    let over_shm = connect(&ShmDevice::new(), &mut a, &mut b);
    let over_tcp = connect(&tcp(), &mut a, &mut b);
    assert_ne!(over_shm[0], over_tcp[0]);
    let lane = |queue| Lane { queue, inbox: VecDeque::new() };
    (lane(a), lane(b), over_shm, over_tcp)
}

const ENDED: CompletionKind = CompletionKind::Disconnected(DisconnectReason::PeerClosed);

#[test]
fn both_drivers_wake_a_lane_that_sleeps_on_sockets() {
    let (mut a, mut b, over_shm, over_tcp) = lanes();
    let echo = std::thread::spawn(move || {
        loop {
            match b.next() {
                (_, CompletionKind::Received { immediate: u32::MAX }) => return,
                (channel, CompletionKind::Received { immediate }) => b.notify(channel, immediate),
                other => panic!("{other:?}"),
            }
        }
    });
    for i in 0..3000u32 {
        let channel = if i % 3 == 0 { over_tcp[0] } else { over_shm[0] };
        a.notify(channel, i);
        assert_eq!(a.next(), (channel, CompletionKind::Received { immediate: i }));
    }
    a.notify(over_shm[0], u32::MAX);
    echo.join().unwrap();
    let mut ended = [a.next(), a.next()];
    ended.sort_unstable_by_key(|(channel, _)| *channel);
    assert_eq!(ended, [(over_shm[0], ENDED), (over_tcp[0], ENDED)]);
}

#[test]
fn a_waker_and_time_end_a_sleep_on_sockets() {
    let (mut a, _b, _, _) = lanes();
    let waker = a.queue.waker();
    waker.wake();
    let started = Instant::now();
    a.queue.wait(Duration::from_secs(20));
    let waking = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        waker.wake();
    });
    let mut nothing = Vec::new();
    // The wake comes later than this, and a wait may end before it for no reason.
    while started.elapsed() < Duration::from_millis(50) {
        a.queue.wait(Duration::from_secs(20));
        a.queue.poll(&mut nothing);
    }
    assert!(started.elapsed() < Duration::from_secs(5));
    let (started, mut waits) = (Instant::now(), 0);
    while started.elapsed() < Duration::from_millis(300) {
        a.queue.wait(Duration::from_millis(300));
        a.queue.poll(&mut nothing);
        waits += 1;
    }
    assert!(waits < 5, "an idle lane sleeps: {waits} waits");
    assert!(nothing.is_empty());
    waking.join().unwrap();
}

#[test]
fn views_are_for_shared_memory_only() {
    let (mut a, mut b, over_shm, over_tcp) = lanes();
    let memory = region(4096);
    let key = b.queue.expose(over_shm[1], &memory).unwrap();
    b.queue.expose(over_tcp[1], &memory).unwrap();
    assert!(a.queue.view(over_shm[0], RemoteSpan { key, offset: 0 }, 4096).is_ok());
    assert!(matches!(
        a.queue.view(over_tcp[0], RemoteSpan { key, offset: 0 }, 1),
        Err(PostError::RemoteAccess)
    ));
    a.queue.close(over_shm[0]);
    a.notify(over_tcp[0], 3);
    let mut events = [b.next(), b.next()];
    events.sort_unstable_by_key(|(channel, _)| *channel);
    assert_eq!(events, [(over_shm[1], ENDED), (over_tcp[1], CompletionKind::Received { immediate: 3 })]);
}
