//! A lane over real drivers, and servers that are in the middle of what they do with its memory when their channel ends.

use super::*;
use crate::runtime::rig;
use crate::runtime::{OpState, ServerInbox};
use fabric::{Device, LaneQueue, Region, RemoteKey, RemoteSpan, ShmDevice, TcpDevice, Write};
use proto_common::batch::SlotGrant;
use proto_common::ids::Incarnation;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

const SERVER: Rank = Rank(0);
const SOON: Duration = Duration::from_secs(30);
/// Less than what the server writes.
const SOCKET_BYTES: usize = 64 << 10;
/// What the server writes, of half of the client's memory; what the trainer has there.
const WRITTEN: u64 = 1 << 19;
const LATE: u8 = 0xAB;
const POISON: u8 = 0x55;

/// A lane that has an operation under way to a server.
struct Rigged {
    driver: LaneDriver<LaneQueue>,
    server: LaneQueue,
    channel: ChannelId,
    /// The client's memory, for the server.
    memory: RemoteSpan,
    state: Arc<OpState>,
}

fn rigged(device: &dyn Device, kind: OpKind, placement: Placement) -> Rigged {
    let mut driver = rig::driver(0);
    let mut server = LaneQueue::new(64).unwrap();
    let deadline = Instant::now() + SOON;
    let (offer, pending) = device.offer(&[server.handle()]).unwrap();
    let handle = driver.queue_mut().handle();
    let (theirs, ours) = std::thread::scope(|scope| {
        let connecting = scope.spawn(|| device.connect(&offer, 0, &handle, deadline).unwrap());
        (pending.accept(deadline).unwrap().pop().unwrap(), connecting.join().unwrap())
    });
    let channel = server.attach(theirs).unwrap();
    let near = driver.queue_mut().attach(ours).unwrap();
    driver.attach(SERVER, 1, near).unwrap();
    let inbox = Region::allocate(1 << 16, "inbox").unwrap();
    let region = server.expose(channel, &inbox).unwrap().0;
    server.lend(channel, &inbox.all()).unwrap();
    let grants = vec![SlotGrant { slot: 0, generation: 1 }];
    driver
        .activate(SERVER, Incarnation(9), ServerInbox { region, offset: 0, slot_bytes: 1 << 16, grants })
        .unwrap();
    let landing = driver.landing.clone();
    let key = driver.queue_mut().expose(near, &landing).unwrap();
    driver.queue_mut().lend(near, &landing.span(0, WRITTEN).unwrap()).unwrap();
    let state = OpState::new(1);
    let mut submission = rig::submission(1, state.clone());
    (submission.kind, submission.placement) = (kind, placement);
    let span = landing.span(0, 4).unwrap();
    match placement {
        Placement::RendezvousRead => submission.source = Some(span),
        _ => submission.target = Some(span),
    }
    driver.submit(submission, 1).unwrap();
    driver.step(1).unwrap();
    let memory = RemoteSpan { key: RemoteKey(key.0), offset: 0 };
    Rigged { driver, server, channel, memory, state }
}

/// Over shared memory the server has begun to read a gradient where it lies.
fn read_in_place() -> Rigged {
    let mut rigged = rigged(&ShmDevice::new(), OpKind::Push, Placement::RendezvousRead);
    rigged.server.begin_reads(rigged.channel).unwrap();
    rigged
}

fn error() -> OpError {
    OpError::Closed("test".into())
}

fn poison(driver: &LaneDriver<LaneQueue>) {
    driver.landing.write(0, &vec![POISON; WRITTEN as usize]).unwrap();
}

fn bytes(driver: &LaneDriver<LaneQueue>) -> Vec<u8> {
    let mut bytes = vec![0; WRITTEN as usize];
    driver.landing.read(0, &mut bytes).unwrap();
    bytes
}

fn is_poisoned(driver: &LaneDriver<LaneQueue>) -> bool {
    bytes(driver).iter().all(|byte| *byte == POISON)
}

/// The caller would write the next gradient, which the server adds up for everybody.
#[test]
fn who_fails_is_told_when_the_server_has_stopped_reading() {
    let Rigged { mut driver, mut server, channel, state, .. } = read_in_place();
    driver.fail(error()).unwrap();
    driver.step(2).unwrap();
    assert_eq!(state.poll(), None, "its gradient is being read");
    server.end_reads(channel);
    driver.step(3).unwrap();
    assert_eq!(state.poll(), Some(Err(error())));
    assert!(state.take_buffers().is_some());
}

#[test]
fn a_server_that_does_not_stop_is_named_and_keeps_the_buffers() {
    let Rigged { mut driver, mut server, channel, state, .. } = read_in_place();
    driver.fail(error()).unwrap();
    driver.step(2 + HELD_MS).unwrap();
    let told = state.poll();
    assert!(matches!(&told, Some(Err(OpError::Held { servers, .. })) if servers[..] == [SERVER]), "{told:?}");
    assert!(state.take_buffers().is_none());
    server.end_reads(channel);
    driver.step(3 + HELD_MS).unwrap();
    assert!(state.take_buffers().is_some());
}

#[test]
fn what_a_server_reads_that_is_no_member_any_more_counts_for_nothing() {
    let Rigged { mut driver, server, state, .. } = read_in_place();
    driver.end_server(SERVER).unwrap();
    driver.fail(error()).unwrap();
    assert_eq!(state.poll(), Some(Err(error())), "nobody waits for it");
    drop(server);
}

/// Rows, or the reply of a handler: the server writes it where the caller wants it.
#[test]
fn the_room_of_a_reply_is_returned_when_a_stopped_server_has_written_it() {
    let Rigged { mut driver, mut server, channel, memory, state } =
        rigged(&ShmDevice::new(), OpKind::Call, Placement::Slot);
    let ((entered, has_entered), (resume, resumed)) = (self::channel(), self::channel::<()>());
    let stopped = std::thread::spawn(move || {
        let view = server.view(channel, memory, WRITTEN).unwrap();
        let mut copy = || {
            entered.send(()).unwrap();
            resumed.recv().unwrap();
            view.write(0, &vec![LATE; WRITTEN as usize]).unwrap();
        };
        server.while_open(channel, &mut copy).unwrap();
    });
    has_entered.recv().unwrap();
    // It is a member no more, and others have what it had.
    driver.end_server(SERVER).unwrap();
    driver.fail(error()).unwrap();
    driver.step(2).unwrap();
    assert_eq!(state.poll(), None, "it may still be written");
    resume.send(()).unwrap();
    stopped.join().unwrap();
    driver.step(3).unwrap();
    assert!(matches!(state.poll(), Some(Err(_))));
    assert!(!is_poisoned(&driver), "what the fence is for");
    poison(&driver);
    driver.step(4).unwrap();
    assert!(state.take_buffers().is_some() && is_poisoned(&driver));
}

/// Over shared memory the lane copies by itself what a server told it, so the end of the channel is enough.
#[test]
fn a_landing_that_was_told_before_a_failover_does_not_land_after_it() {
    let Rigged { mut driver, mut server, channel, memory, state } =
        rigged(&ShmDevice::new(), OpKind::PushPull, Placement::Slot);
    poison(&driver);
    let weights = Region::allocate(WRITTEN as usize, "weights").unwrap();
    weights.write(0, &vec![LATE; WRITTEN as usize]).unwrap();
    let gather = [weights.all()];
    let write = Write { id: 1, gather: &gather, remote: memory, immediate: None, signaled: true };
    server.post_landing(channel, &write).unwrap();
    driver.end_server(SERVER).unwrap();
    driver.fail(error()).unwrap();
    assert!(matches!(state.poll(), Some(Err(_))), "nobody waits for it");
    assert!(state.take_buffers().is_some());
    driver.step(2).unwrap();
    server.poll(&mut Vec::new());
    assert!(is_poisoned(&driver));
}

/// Landings and replies are the same to this driver.
#[test]
fn over_tcp_nothing_lands_after_the_channel_has_ended() {
    for kind in [OpKind::PushPull, OpKind::Call] {
        let device = TcpDevice::new(Ipv4Addr::LOCALHOST.into(), "127.0.0.1".into());
        let device = device.with_socket_buffer_bytes(SOCKET_BYTES);
        let Rigged { mut driver, mut server, channel, memory, state } =
            rigged(&device, kind, Placement::Slot);
        poison(&driver);
        let gather = [Region::of_bytes(vec![LATE; WRITTEN as usize]).all()];
        let write = Write { id: 1, gather: &gather, remote: memory, immediate: None, signaled: true };
        server.post_write(channel, &write).unwrap();
        server.flush();
        // The server is stopped now. What it has sent may lie there.
        driver.step(2).unwrap();
        assert!(bytes(&driver).last() == Some(&POISON), "all of it has landed: nothing is tested");
        driver.end_server(SERVER).unwrap();
        driver.fail(error()).unwrap();
        assert!(matches!(state.poll(), Some(Err(_))));
        assert!(state.take_buffers().is_some());
        poison(&driver);
        let (mut seen, deadline) = (Vec::new(), Instant::now() + SOON);
        while seen.is_empty() {
            assert!(Instant::now() < deadline, "it does not hear that it was closed");
            server.wait(Duration::from_millis(5));
            server.flush();
            server.poll(&mut seen);
            driver.step(3).unwrap();
        }
        assert!(is_poisoned(&driver));
    }
}
