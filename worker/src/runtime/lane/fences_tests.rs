//! A lane over real drivers, and servers that are in the middle of what they do with its memory when their channel ends.

use super::*;
use crate::call_fault::CallFault;
use crate::engine::{EngineConfig, PartSpec};
use crate::runtime::lane::LaneConfig;
use crate::runtime::op::OpBuffers;
use crate::runtime::rig;
use crate::runtime::{OpState, ServerInbox};
use fabric::{
    Access, Device, LaneQueue, PeerWritable, Region, RemoteKey, RemoteSpan, ShmDevice, TcpDevice, Write,
};
use proto_common::batch::{Count, OpKind, SlotGrant};
use proto_common::call::call_id;
use proto_common::ids::Incarnation;
use proto_common::plan::Placement;
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
    /// The client's memory.
    ours: PeerWritable,
    /// The same, for the server.
    memory: RemoteSpan,
    state: Arc<OpState>,
}

fn rigged(device: &dyn Device, kind: OpKind, placement: Placement) -> Rigged {
    let ours = PeerWritable::allocate(1 << 20, "gradwire-test").unwrap();
    let mut driver = rig::driver_over(LaneQueue::new(64).unwrap(), (0, 1), &ours);
    let mut server = LaneQueue::new(64).unwrap();
    let deadline = Instant::now() + SOON;
    let (offer, pending) = device.offer(&[server.handle()]).unwrap();
    let handle = driver.queue_mut().handle();
    let (theirs, near) = std::thread::scope(|scope| {
        let connecting = scope.spawn(|| device.connect(&offer, 0, &handle, deadline).unwrap());
        (pending.accept(deadline).unwrap().pop().unwrap(), connecting.join().unwrap())
    });
    let channel = server.attach(theirs).unwrap();
    let near = driver.queue_mut().attach(near).unwrap();
    driver.attach(SERVER, 1, near).unwrap();
    let inbox = PeerWritable::allocate(1 << 16, "inbox").unwrap();
    let region = server.expose(channel, &inbox).unwrap().0;
    server.lend(channel, &inbox.all(), Access::ReadWrite, 0).unwrap();
    let grants = vec![SlotGrant { slot: 0, generation: 1 }];
    driver
        .activate(SERVER, Incarnation(9), ServerInbox { region, offset: 0, slot_bytes: 1 << 16, grants })
        .unwrap();
    let key = driver.queue_mut().expose(near, &ours).unwrap();
    let written = ours.span(0, WRITTEN).unwrap();
    driver.queue_mut().lend(near, &written, Access::ReadWrite, 0).unwrap();
    let state = OpState::new(1);
    let mut submission = rig::submission(1, state.clone());
    (submission.submit.kind, submission.submit.placement) = (kind, placement);
    let span = ours.span(0, 4).unwrap();
    match placement {
        Placement::RendezvousRead => submission.source = Some(span),
        _ => submission.target = Some(span),
    }
    driver.submit(submission, 1);
    driver.step(1);
    let memory = RemoteSpan { key: RemoteKey(key.0), offset: 0 };
    Rigged { driver, server, channel, ours, memory, state }
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

fn poison(ours: &PeerWritable) {
    ours.write(0, &vec![POISON; WRITTEN as usize]).unwrap();
}

fn bytes(ours: &PeerWritable) -> Vec<u8> {
    let mut bytes = vec![0; WRITTEN as usize];
    ours.read(0, &mut bytes).unwrap();
    bytes
}

fn is_poisoned(ours: &PeerWritable) -> bool {
    bytes(ours).iter().all(|byte| *byte == POISON)
}

/// The caller would write the next gradient, which the server adds up for everybody.
#[test]
fn who_fails_is_told_when_the_server_has_stopped_reading() {
    let Rigged { mut driver, mut server, channel, state, .. } = read_in_place();
    driver.fail(error());
    driver.step(2);
    assert_eq!(state.poll(), None, "its gradient is being read");
    server.end_reads(channel);
    driver.step(3);
    assert_eq!(state.poll(), Some(Err(error())));
    assert!(state.take_buffers().is_some());
}

#[test]
fn a_server_that_does_not_stop_is_named_and_keeps_the_buffers() {
    let Rigged { mut driver, mut server, channel, state, .. } = read_in_place();
    driver.fail(error());
    driver.step(2 + HELD_MS);
    let told = state.poll();
    assert!(matches!(&told, Some(Err(OpError::Held { servers, .. })) if servers[..] == [SERVER]), "{told:?}");
    assert!(state.take_buffers().is_none());
    server.end_reads(channel);
    driver.step(3 + HELD_MS);
    assert!(state.take_buffers().is_some());
}

/// The caller could write the next gradient into an array whose last one the server still adds up.
#[test]
fn who_shares_memory_with_a_server_that_does_not_answer_is_told_what_and_who_after_a_second() {
    let shared = Arc::new(PeerWritable::allocate(64, "shared").unwrap());
    let buffers = OpBuffers { shared: [Some(shared), None], ..OpBuffers::default() };
    let state = Arc::new(OpState::fresh(1, buffers));
    let mut driver = rig::driver(0);
    let mut submission = rig::submission(1, state.clone());
    submission.submit.timeout_ms = 10;
    driver.submit(submission, 1);
    let late_ms = 60_000;
    driver.step(late_ms);
    assert!(state.has_failed() && state.poll().is_none());
    driver.step(late_ms + HELD_MS - 1);
    assert_eq!(state.poll(), None);
    driver.step(late_ms + HELD_MS);
    let Some(Err(OpError::Held { servers, waited_ms: HELD_MS, cause: Some(cause) })) = state.poll() else {
        panic!("{:?}", state.poll())
    };
    assert_eq!(servers, [SERVER]);
    assert!(matches!(*cause, OpError::Unconnected { .. } | OpError::NoAnswer { .. }), "{cause}");
    assert!(state.take_buffers().is_none());
}

/// A callback panics while the lane tells of a failure: the other operation's gradient is read on all the same.
#[test]
fn a_lane_that_ends_after_a_panic_keeps_what_a_server_reads() {
    for stops in [true, false] {
        let Rigged { mut driver, mut server, channel, state, .. } = read_in_place();
        let other = OpState::new(1);
        other.on_end(Box::new(|_| panic!("a trainer's callback")));
        driver.submit(rig::submission(2, other.clone()), 1);
        assert!(catch_unwind(AssertUnwindSafe(|| driver.fail(error()))).is_err());
        let panicked = OpError::Closed("a panic".into());
        driver.end(&panicked, 2);
        assert!(driver.tell_ended(2), "its server has not stopped");
        assert_eq!((other.poll(), state.poll()), (Some(Err(error())), None));
        if stops {
            server.end_reads(channel);
            assert!(!driver.tell_ended(3));
            assert!(matches!(state.poll(), Some(Err(OpError::Closed(_)))));
            assert!(state.take_buffers().is_some());
            continue;
        }
        assert!(!driver.tell_ended(2 + HELD_MS));
        assert!(matches!(state.poll(), Some(Err(OpError::Held { .. }))));
        drop(driver);
        assert!(state.take_buffers().is_none());
        assert_eq!(Arc::strong_count(&state), 2, "its buffers would go to somebody else");
    }
}

#[test]
fn what_a_server_reads_that_is_no_member_any_more_counts_for_nothing() {
    let Rigged { mut driver, server, state, .. } = read_in_place();
    driver.end_server(SERVER);
    driver.fail(error());
    assert_eq!(state.poll(), Some(Err(error())), "nobody waits for it");
    drop(server);
}

/// Rows, or the reply of a handler: the server writes it where the caller wants it.
#[test]
fn the_room_of_a_reply_is_returned_when_a_stopped_server_has_written_it() {
    let Rigged { mut driver, mut server, channel, ours, memory, state } =
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
    driver.end_server(SERVER);
    driver.fail(error());
    driver.step(2);
    assert_eq!(state.poll(), None, "it may still be written");
    resume.send(()).unwrap();
    stopped.join().unwrap();
    driver.step(3);
    assert!(matches!(state.poll(), Some(Err(_))));
    assert!(!is_poisoned(&ours), "what the fence is for");
    poison(&ours);
    driver.step(4);
    assert!(state.take_buffers().is_some() && is_poisoned(&ours));
}

/// A handler reads a request where it lies, and its process is stopped there. Nobody needs what it makes of it.
#[test]
fn a_call_to_a_server_that_is_gone_does_not_wait_for_a_handler_that_reads() {
    let Rigged { mut driver, mut server, channel, state, .. } =
        rigged(&ShmDevice::new(), OpKind::Call, Placement::Slot);
    server.begin_reads(channel).unwrap();
    driver.fail(error());
    driver.step(2);
    assert_eq!(state.poll(), None, "it is a member still");
    driver.end_server(SERVER);
    driver.step(3);
    assert!(matches!(state.poll(), Some(Err(_))) && state.take_buffers().is_some());
}

/// Over shared memory the lane copies by itself what a server told it, so the end of the channel is enough.
#[test]
fn a_landing_that_was_told_before_a_failover_does_not_land_after_it() {
    let Rigged { mut driver, mut server, channel, ours, memory, state } =
        rigged(&ShmDevice::new(), OpKind::PushPull, Placement::Slot);
    poison(&ours);
    let weights = PeerWritable::allocate(WRITTEN as usize, "weights").unwrap();
    weights.write(0, &vec![LATE; WRITTEN as usize]).unwrap();
    let gather = [weights.all()];
    let write = Write { id: 1, gather: &gather, remote: memory, immediate: None, signaled: true };
    server.post_landing(channel, &write).unwrap();
    driver.end_server(SERVER);
    driver.fail(error());
    assert!(matches!(state.poll(), Some(Err(_))), "nobody waits for it");
    assert!(state.take_buffers().is_some());
    driver.step(2);
    server.poll(&mut Vec::new());
    assert!(is_poisoned(&ours));
}

/// Landings and replies are the same to this driver.
#[test]
fn over_tcp_nothing_lands_after_the_channel_has_ended() {
    for kind in [OpKind::PushPull, OpKind::Call] {
        let device = TcpDevice::new(Ipv4Addr::LOCALHOST.into(), "127.0.0.1".into());
        let device = device.with_socket_buffer_bytes(SOCKET_BYTES);
        let Rigged { mut driver, mut server, channel, ours, memory, state } =
            rigged(&device, kind, Placement::Slot);
        poison(&ours);
        let gather = [Region::of_bytes(vec![LATE; WRITTEN as usize]).all()];
        let write = Write { id: 1, gather: &gather, remote: memory, immediate: None, signaled: true };
        server.post_write(channel, &write).unwrap();
        server.flush();
        // The server is stopped now. What it has sent may lie there.
        driver.step(2);
        assert!(bytes(&ours).last() == Some(&POISON), "all of it has landed: nothing is tested");
        driver.end_server(SERVER);
        driver.fail(error());
        assert!(matches!(state.poll(), Some(Err(_))));
        assert!(state.take_buffers().is_some());
        poison(&ours);
        let (mut seen, deadline) = (Vec::new(), Instant::now() + SOON);
        while seen.is_empty() {
            assert!(Instant::now() < deadline, "it does not hear that it was closed");
            server.wait(Duration::from_millis(5));
            server.flush();
            server.poll(&mut seen);
            driver.step(3);
        }
        assert!(is_poisoned(&ours));
    }
}

/// The caller shares memory with the call, so it hears of a failure only when no server reaches that memory any more.
#[test]
fn a_call_to_a_server_without_a_process_ends_at_its_deadline_with_its_memory() {
    let ours = PeerWritable::allocate(1 << 16, "gradwire-test").unwrap();
    let engine = EngineConfig { keeps_calls: true, ..rig::engine(0, 1) };
    let config = LaneConfig { engine, result_slots: 1 };
    let mut driver = LaneDriver::new(LaneQueue::new(64).unwrap(), config, Region::clone(&ours)).unwrap();
    let shared = [Some(Arc::new(ours)), None];
    let state = Arc::new(OpState::fresh(1, OpBuffers { shared, ..OpBuffers::default() }));
    let mut submission = rig::submission(1, state.clone());
    (submission.submit.kind, submission.submit.timeout_ms) = (OpKind::Call, 100);
    submission.submit.count = Count::Body(0);
    let part = PartSpec { id: call_id(7, SERVER), ..submission.parts[0] };
    submission.parts = [part].into();
    driver.submit(submission, 0);
    driver.end_server(SERVER);
    driver.step(1_099);
    assert!(state.poll().is_none(), "a server has a second for its answer");
    driver.step(1_150);
    let Some(Err(OpError::Call { app: 7, server: SERVER, waited_ms: 1_150, fault })) = state.poll() else {
        panic!("{:?}", state.poll())
    };
    assert_eq!(fault, CallFault::ServerDied);
    assert!(driver.live.is_empty(), "its memory is free");
}
