//! Peers that lie, over raw sockets: each is refused or disconnected, in time, and the lane goes on.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod shm_rig;

use fabric::{
    ChannelSetup, CompletionQueue, Device, DisconnectReason, FabricError, LaneQueue, PendingOffer, PostError,
    RemoteKey, RemoteSpan, ShmDevice,
};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketType, connect, recvmsg, sendmsg, socket,
};
use shm_rig::{DEPTH, Side, hex, region, soon};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

const CAPACITY: u32 = DEPTH as u32;
const SLOTS_AT: u64 = 384;
/// Of a ring of that capacity: its words, its slots and the landings behind them.
const RING_BYTES: u64 = 8192;

fn memory(bytes: u64, seals: SealFlags) -> OwnedFd {
    let memfd = memfd_create("hostile", MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&memfd, bytes).unwrap();
    fcntl_add_seals(&memfd, seals).unwrap();
    memfd
}

fn sealed(bytes: u64) -> OwnedFd {
    memory(bytes, SealFlags::SHRINK)
}

fn send(link: &OwnedFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds)));
    sendmsg(link, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL).unwrap();
}

/// A stranger who has read the offer.
struct Raw {
    link: OwnedFd,
    secret: [u8; 16],
}

impl Raw {
    fn dial(offer: &[u8]) -> Self {
        let name = format!("gradwire-{}", hex(&offer[6..22]));
        let link = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        connect(&link, &SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap()).unwrap();
        Self { link, secret: offer[22..38].try_into().unwrap() }
    }

    fn greeting(&self, index: u16, capacity: u32) -> Vec<u8> {
        let mut bytes = b"GWS2".to_vec();
        bytes.extend_from_slice(&index.to_le_bytes());
        bytes.extend_from_slice(&[0; 2]);
        bytes.extend_from_slice(&capacity.to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&self.secret);
        bytes
    }

    fn greet(&self, bell: &OwnedFd, ring: &OwnedFd) {
        send(&self.link, &self.greeting(0, CAPACITY), &[bell.as_fd(), ring.as_fd()]);
    }

    /// The victim's ring, which we write.
    fn victims_ring(&self) -> OwnedFd {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut bytes = [0; 64];
        recvmsg(&self.link, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::empty()).unwrap();
        let fds = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds.collect::<Vec<_>>()),
            _ => None,
        });
        fds.unwrap().pop().unwrap()
    }

    /// Is it over for us?
    fn is_turned_away(&self) -> bool {
        let mut byte = [0; 64];
        matches!(rustix::io::read(&self.link, &mut byte), Ok(0) | Err(_))
    }
}

fn offer() -> (LaneQueue, Vec<u8>, Box<dyn PendingOffer>) {
    let queue = LaneQueue::new(DEPTH).unwrap();
    let (offer, pending) = ShmDevice::new().offer(&[queue.handle()]).unwrap();
    (queue, offer, pending)
}

/// A victim with an attached channel to a raw peer, and the ring the raw peer hands over and keeps.
fn victim() -> (Side, Raw, OwnedFd) {
    let (mut queue, offer, pending) = offer();
    let raw = Raw::dial(&offer);
    let ring = sealed(RING_BYTES);
    raw.greet(&sealed(4096), &ring);
    let channel = queue.attach(pending.accept(soon()).unwrap().pop().unwrap()).unwrap();
    (Side::new(queue, channel), raw, ring)
}

fn refused(greet: impl FnOnce(&Raw)) -> Result<Vec<ChannelSetup>, FabricError> {
    let (_queue, offer, pending) = offer();
    let raw = Raw::dial(&offer);
    greet(&raw);
    pending.accept(Instant::now() + Duration::from_millis(200))
}

fn assert_misbehaved(mut side: Side) {
    let started = Instant::now();
    let reason = side.next_end();
    assert!(matches!(reason, DisconnectReason::PeerMisbehaved(_)), "{reason:?}");
    assert!(started.elapsed() < Duration::from_secs(2));
    assert_eq!(side.notify(1), Err(PostError::Closed));
}

#[test]
fn strangers_do_not_keep_a_peer_from_connecting() {
    let (mut queue, offer, pending) = offer();
    let silent: Vec<_> = (0..10).map(|_| Raw::dial(&offer)).collect();
    let mut wrong = Raw::dial(&offer);
    wrong.secret[15] ^= 1;
    wrong.greet(&sealed(4096), &sealed(RING_BYTES));
    let garbage = Raw::dial(&offer);
    send(&garbage.link, &[7; 200], &[]);
    let many = Raw::dial(&offer);
    let fd = sealed(RING_BYTES);
    send(&many.link, &many.greeting(0, CAPACITY), &[fd.as_fd(); 5]);
    let no_fds = Raw::dial(&offer);
    send(&no_fds.link, &no_fds.greeting(0, CAPACITY), &[]);
    drop(Raw::dial(&offer));

    let mut other = LaneQueue::new(DEPTH).unwrap();
    let handle = other.handle();
    let connecting = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        ShmDevice::new().connect(&offer, 0, &handle, soon()).unwrap()
    });
    queue.attach(pending.accept(soon()).unwrap().pop().unwrap()).unwrap();
    other.attach(connecting.join().unwrap()).unwrap();
    assert!([&wrong, &garbage, &many, &no_fds].iter().all(|raw| raw.is_turned_away()));
    assert!(silent.iter().all(Raw::is_turned_away));
}

#[test]
fn silence_ends_at_the_deadline() {
    let started = Instant::now();
    assert!(matches!(refused(|_| {}), Err(FabricError::Deadline { .. })));
    assert!(started.elapsed() < Duration::from_secs(2));
    // And on the connecting side: nobody accepts.
    let (queue, offer, _pending) = offer();
    let deadline = Instant::now() + Duration::from_millis(100);
    let answer = ShmDevice::new().connect(&offer, 0, &queue.handle(), deadline);
    assert!(matches!(answer, Err(FabricError::Deadline { .. })), "{answer:?}");
}

#[test]
fn memory_that_could_vanish_is_refused() {
    let unsealed = || memory(RING_BYTES, SealFlags::empty());
    assert!(matches!(refused(|raw| raw.greet(&sealed(4096), &unsealed())), Err(FabricError::Peer(_))));
    assert!(matches!(refused(|raw| raw.greet(&unsealed(), &sealed(RING_BYTES))), Err(FabricError::Peer(_))));
    assert!(matches!(refused(|raw| raw.greet(&sealed(4096), &sealed(512))), Err(FabricError::Peer(_))));
    let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    assert!(refused(|raw| raw.greet(&sealed(4096), &socket.into())).is_err());
}

#[test]
fn impossible_rings_are_refused() {
    for (index, capacity) in [(0, 0), (0, 3), (0, 1 << 20), (0, u32::MAX), (1, CAPACITY)] {
        let answer = refused(|raw| {
            let (bell, ring) = (sealed(4096), sealed(RING_BYTES));
            send(&raw.link, &raw.greeting(index, capacity), &[bell.as_fd(), ring.as_fd()]);
        });
        assert!(matches!(answer, Err(FabricError::Peer(_))), "{index} {capacity}: {answer:?}");
    }
}

#[test]
fn offers_that_are_none_are_refused() {
    let (queue, offer, _pending) = offer();
    let connect = |bytes: &[u8]| ShmDevice::new().connect(bytes, 0, &queue.handle(), soon());
    for bytes in [&offer[..37], &[0; 38], &[]] {
        assert!(matches!(connect(bytes), Err(FabricError::Peer(_))));
    }
    let mut gone = offer.clone();
    gone[10] ^= 1;
    assert!(matches!(connect(&gone), Err(FabricError::Os { .. })), "nobody listens there");
}

#[test]
fn garbage_on_the_socket_ends_the_channel() {
    let region_message = |bytes: u64| {
        let mut message = vec![1];
        message.extend_from_slice(&5u64.to_le_bytes());
        message.extend_from_slice(&bytes.to_le_bytes());
        message
    };
    type Lie<'a> = &'a dyn Fn(&Raw);
    let lies: [Lie<'_>; 7] = [
        &|raw| send(&raw.link, &[9; 30], &[]),
        &|raw| send(&raw.link, &[9; 4000], &[]),
        &|raw| send(&raw.link, &region_message(4096), &[]),
        &|raw| send(&raw.link, &region_message(4096), &[memory(4096, SealFlags::empty()).as_fd()]),
        &|raw| send(&raw.link, &region_message(8192), &[sealed(4096).as_fd()]),
        &|raw| send(&raw.link, &region_message(4096), &[sealed(4096).as_fd(); 3]),
        &|raw| {
            send(&raw.link, &region_message(4096), &[sealed(4096).as_fd()]);
            send(&raw.link, &region_message(4096), &[sealed(4096).as_fd()]);
        },
    ];
    for lie in lies {
        let (side, raw, _ring) = victim();
        lie(&raw);
        assert_misbehaved(side);
    }
}

#[test]
fn garbage_in_the_receive_ring_ends_the_channel() {
    let (side, raw, _ring) = victim();
    rustix::io::pwrite(raw.victims_ring(), &u64::MAX.to_le_bytes(), SLOTS_AT).unwrap();
    assert_misbehaved(side);
}

#[test]
fn a_lying_head_ends_the_channel() {
    let (mut side, _raw, ring) = victim();
    rustix::io::pwrite(&ring, &0x7000_0000u32.to_le_bytes(), 0).unwrap();
    let refused = (0..=CAPACITY).find_map(|i| side.notify(i).err());
    assert_eq!(refused, Some(PostError::Closed));
    assert_misbehaved(side);
}

#[test]
fn a_ring_refilled_for_ever_does_not_hide_a_death() {
    let (mut side, raw, _ring) = victim();
    let ring = raw.victims_ring();
    drop(raw);
    // All slots hold valid notices of the first lap, and after each poll of the next one.
    let mut completions = Vec::new();
    for lap in 0..100u32 {
        for slot in 0..CAPACITY {
            let word = u64::from(lap * CAPACITY + slot + 1) << 32;
            rustix::io::pwrite(&ring, &word.to_le_bytes(), SLOTS_AT + u64::from(slot) * 8).unwrap();
        }
        side.queue.poll(&mut completions);
        side.queue.wait(Duration::ZERO);
        std::thread::sleep(Duration::from_millis(1));
    }
    let deadline = soon();
    while !matches!(completions.last().unwrap().kind, fabric::CompletionKind::Disconnected(_)) {
        assert!(Instant::now() < deadline);
        side.queue.poll(&mut completions);
        side.queue.wait(Duration::from_millis(10));
    }
}

#[test]
fn a_peer_that_takes_nothing_makes_us_full_and_not_hang() {
    let (mut side, _raw, _ring) = victim();
    let regions: Vec<_> = (0..2000).map(|_| region(4096)).collect();
    let refused = regions.iter().find_map(|region| side.queue.expose(side.channel, region).err());
    assert!(matches!(refused, Some(PostError::Full | PostError::RemoteAccess)), "{refused:?}");
    let write = (0..=CAPACITY).find_map(|i| side.notify(i).err());
    assert_eq!(write, Some(PostError::Full));
}

#[test]
fn a_region_arrives_in_time_for_its_first_write() {
    let (mut side, raw, _ring) = victim();
    let (memory, source) = (sealed(4096), region(4096));
    source.write(0, b"here").unwrap();
    let span = [source.span(0, 4).unwrap()];
    let remote = RemoteSpan { key: RemoteKey(5), offset: 4092 };
    assert_eq!(side.write(&span, remote, None, false), Err(PostError::RemoteAccess));
    let mut message = vec![1];
    message.extend_from_slice(&5u64.to_le_bytes());
    message.extend_from_slice(&4096u64.to_le_bytes());
    send(&raw.link, &message, &[memory.as_fd()]);
    side.write(&span, remote, None, false).unwrap();
    let mut got = [0; 4];
    rustix::io::pread(&memory, &mut got, 4092).unwrap();
    assert_eq!(&got, b"here");
}
