//! The verbs driver over a real RDMA device: runs where one is (`tests/guest` boots such a machine).

#![cfg(feature = "verbs")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]

use fabric::{
    ChannelId, Completion, CompletionKind, CompletionQueue, Device, DisconnectReason, FabricError, PostError,
    Read, Region, RemoteKey, RemoteSpan, ShmDevice, Span, VerbsConfig, VerbsDevice, VerbsQueue, Write,
};
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

const DEPTH: usize = 64;
const PATIENCE: Duration = Duration::from_secs(30);

fn soon() -> Instant {
    Instant::now() + PATIENCE
}

fn device() -> VerbsDevice {
    let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
    VerbsDevice::open(&VerbsConfig::default(), local, local.to_string()).expect("an RDMA device")
}

/// One end of a channel with its queue and the memory that it lends to the other.
struct Side {
    queue: VerbsQueue,
    channel: ChannelId,
    lent: Region,
    key: RemoteKey,
    inbox: Vec<Completion>,
}

impl Side {
    fn new(mut queue: VerbsQueue, channel: ChannelId, bytes: usize) -> Self {
        let lent = Region::allocate(bytes, "lent").unwrap();
        let key = queue.expose(channel, &lent).unwrap();
        queue.flush();
        Self { queue, channel, lent, key, inbox: Vec::new() }
    }

    fn next(&mut self) -> CompletionKind {
        let deadline = soon();
        while self.inbox.is_empty() {
            assert!(Instant::now() < deadline, "nothing came");
            self.queue.poll(&mut self.inbox);
            if self.inbox.is_empty() {
                self.queue.wait(Duration::from_secs(1));
            }
        }
        let completion = self.inbox.remove(0);
        assert_eq!(completion.channel, self.channel);
        completion.kind
    }

    fn write(
        &mut self,
        gather: &[Span],
        to: RemoteSpan,
        immediate: Option<u32>,
        id: Option<u64>,
    ) -> Result<(), PostError> {
        let write = Write { id: id.unwrap_or(0), gather, remote: to, immediate, signaled: id.is_some() };
        let posted = self.queue.post_write(self.channel, &write);
        self.queue.flush();
        posted
    }

    /// As `write`, once there is room and the peer's keys have come.
    fn write_some_time(&mut self, gather: &[Span], to: RemoteSpan, immediate: Option<u32>, id: Option<u64>) {
        let deadline = soon();
        while let Err(error) = self.write(gather, to, immediate, id) {
            assert!(matches!(error, PostError::Full | PostError::RemoteAccess), "{error}");
            assert!(Instant::now() < deadline, "{error}");
            self.queue.poll(&mut self.inbox);
        }
    }
}

fn connect(device: &VerbsDevice, ours: &mut VerbsQueue, theirs: &mut VerbsQueue) -> (ChannelId, ChannelId) {
    let (offer, pending) = device.offer(&[ours.handle()]).unwrap();
    let handle = theirs.handle();
    let setups = std::thread::scope(|scope| {
        let connecting = scope.spawn(|| device.connect(&offer, 0, &handle, soon()).unwrap());
        (pending.accept(soon()).unwrap().pop().unwrap(), connecting.join().unwrap())
    });
    assert_eq!(setups.0.carrier(), "RDMA device");
    (ours.attach(setups.0).unwrap(), theirs.attach(setups.1).unwrap())
}

fn pair_lending(bytes: usize) -> (Side, Side) {
    let device = device();
    let (mut a, mut b) = (device.queue(DEPTH).unwrap(), device.queue(DEPTH).unwrap());
    let (of_a, of_b) = connect(&device, &mut a, &mut b);
    let (mut a, mut b) = (Side::new(a, of_a, bytes), Side::new(b, of_b, bytes));
    // Until the keys have come: who connected says nothing before it has heard that the other is ready.
    let zero = Region::allocate(1, "zero").unwrap().span(0, 1).unwrap();
    let deadline = soon();
    for (writer, key) in [(0, b.key), (1, a.key)] {
        while [&mut a, &mut b][writer]
            .write(std::slice::from_ref(&zero), RemoteSpan { key, offset: 0 }, None, None)
            .is_err()
        {
            assert!(Instant::now() < deadline, "no key came");
            a.queue.poll(&mut a.inbox);
            b.queue.poll(&mut b.inbox);
        }
    }
    (a, b)
}

fn pattern(seed: u8, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

#[test]
fn writes_of_all_sizes_arrive_whole_before_their_notice() {
    // 9 MiB is more than one request of this device carries.
    let sizes = [0, 1, 127, 128, 129, 4096, 65_537, 1 << 20, 9 << 20];
    let (mut a, mut b) = pair_lending(9 << 20);
    let source = Region::allocate(9 << 20, "source").unwrap();
    for (i, &bytes) in sizes.iter().enumerate() {
        let sent = pattern(i as u8, bytes);
        source.write(0, &sent).unwrap();
        let to = RemoteSpan { key: b.key, offset: 0 };
        let span = source.span(0, bytes as u64).unwrap();
        a.write_some_time(&[span], to, Some(i as u32), Some(100 + i as u64));
        assert_eq!(b.next(), CompletionKind::Received { immediate: i as u32 });
        let mut found = vec![0; bytes];
        b.lent.read(0, &mut found).unwrap();
        assert!(found == sent, "{bytes} bytes");
        assert_eq!(a.next(), CompletionKind::WriteDone { id: 100 + i as u64 });
    }
}

#[test]
fn many_spans_become_one_stretch() {
    let (mut a, mut b) = pair_lending(1 << 20);
    let source = Region::allocate(1 << 20, "source").unwrap();
    source.write(0, &pattern(3, 1 << 20)).unwrap();
    // More than one request gathers; some are empty.
    let spans: Vec<Span> = (0..100u64).map(|i| source.span(i * 5000, (i % 7) * 100).unwrap()).collect();
    a.write_some_time(&spans, RemoteSpan { key: b.key, offset: 8 }, Some(9), None);
    assert_eq!(b.next(), CompletionKind::Received { immediate: 9 });
    let mut at = 8;
    for span in &spans {
        let (mut sent, mut found) = (vec![0; span.len() as usize], vec![1; span.len() as usize]);
        source.read(span.offset(), &mut sent).unwrap();
        b.lent.read(at, &mut found).unwrap();
        assert_eq!(found, sent);
        at += span.len();
    }
}

#[test]
fn a_thousand_writes_keep_their_order_and_the_queue_fills_and_empties() {
    let (mut a, mut b) = pair_lending(4096);
    let source = Region::allocate(4096, "source").unwrap();
    let to = RemoteSpan { key: b.key, offset: 0 };
    let (mut next, mut full) = (0, 0);
    let deadline = soon();
    for i in 0..1000u32 {
        source.write(0, &i.to_le_bytes()).unwrap();
        while let Err(error) = a.write(&[source.span(0, 4).unwrap()], to, Some(i), None) {
            full += u32::from(error == PostError::Full);
            assert!(Instant::now() < deadline, "{error}");
            a.queue.poll(&mut a.inbox);
            b.queue.poll(&mut b.inbox);
        }
    }
    while next < 1000 {
        assert_eq!(b.next(), CompletionKind::Received { immediate: next });
        next += 1;
    }
    assert!(full > 0, "{DEPTH} requests are not 1000");
}

#[test]
fn a_read_brings_the_peer_s_bytes() {
    let (mut a, mut b) = pair_lending(1 << 20);
    b.lent.write(77, &pattern(5, 100_000)).unwrap();
    let target = Region::allocate(100_000, "target").unwrap();
    let local = target.span(0, 100_000).unwrap();
    let read = Read { id: 4, local: &local, remote: RemoteSpan { key: b.key, offset: 77 } };
    let deadline = soon();
    while a.queue.post_read(a.channel, &read).is_err() {
        assert!(Instant::now() < deadline, "its key did not come");
        a.queue.poll(&mut a.inbox);
    }
    a.queue.flush();
    assert_eq!(a.next(), CompletionKind::ReadDone { id: 4 });
    let mut found = vec![0; 100_000];
    target.read(0, &mut found).unwrap();
    assert_eq!(found, pattern(5, 100_000));
    b.queue.poll(&mut b.inbox);
    assert!(b.inbox.is_empty(), "the peer is not asked");
}

#[test]
fn what_was_not_exposed_or_is_out_of_bounds_is_refused() {
    let (mut a, b) = pair_lending(4096);
    let source = Region::allocate(8192, "source").unwrap();
    let span = |bytes| [source.span(0, bytes).unwrap()];
    a.write_some_time(&span(8), RemoteSpan { key: b.key, offset: 0 }, None, Some(1));
    assert_eq!(a.next(), CompletionKind::WriteDone { id: 1 });
    for (key, offset, bytes) in
        [(RemoteKey(u64::MAX), 0, 8), (b.key, 4090, 8), (b.key, 0, 4097), (b.key, u64::MAX, 1)]
    {
        let refused = a.write(&span(bytes), RemoteSpan { key, offset }, None, None);
        assert_eq!(refused, Err(PostError::RemoteAccess), "{bytes} at {offset}");
    }
    a.write(&span(4096), RemoteSpan { key: b.key, offset: 0 }, None, Some(2)).unwrap();
    assert_eq!(a.next(), CompletionKind::WriteDone { id: 2 }, "the channel lives");
}

#[test]
fn ping_and_pong_asleep_lose_no_wake() {
    let (mut a, mut b) = pair_lending(4096);
    let rounds = 300u32;
    let keys = (a.key, b.key);
    let answering = std::thread::spawn(move || {
        let source = Region::allocate(64, "source").unwrap();
        for round in 0..rounds {
            assert_eq!(b.next(), CompletionKind::Received { immediate: round });
            let to = RemoteSpan { key: keys.0, offset: 0 };
            b.write_some_time(&[source.span(0, 8).unwrap()], to, Some(round), None);
        }
    });
    let source = Region::allocate(64, "source").unwrap();
    let started = Instant::now();
    for round in 0..rounds {
        let to = RemoteSpan { key: keys.1, offset: 0 };
        a.write_some_time(&[source.span(0, 8).unwrap()], to, Some(round), None);
        assert_eq!(a.next(), CompletionKind::Received { immediate: round });
    }
    // A lost wake costs a second each.
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
    answering.join().unwrap();
}

#[test]
fn a_closed_channel_ends_for_the_peer_and_lands_nothing_more() {
    let (mut a, mut b) = pair_lending(4 << 20);
    let source = Region::allocate(4 << 20, "source").unwrap();
    source.write(0, &vec![0xAB; 4 << 20]).unwrap();
    let to = RemoteSpan { key: b.key, offset: 0 };
    a.write_some_time(&[source.span(0, 4 << 20).unwrap()], to, None, Some(1));
    // In the middle of the write.
    let channel = b.channel;
    b.queue.close(channel);
    let poison = vec![0x55; 4 << 20];
    b.lent.write(0, &poison).unwrap();
    assert!(matches!(a.next(), CompletionKind::Disconnected(_)));
    std::thread::sleep(Duration::from_millis(500));
    let mut found = vec![0; 4 << 20];
    b.lent.read(0, &mut found).unwrap();
    assert!(found == poison, "a late write into memory that is used again");
    assert_eq!(a.write(&[], to, Some(1), None), Err(PostError::Closed));
}

#[test]
fn channels_of_several_lanes_are_told_apart() {
    let device = device();
    let mut ours = [device.queue(DEPTH).unwrap(), device.queue(DEPTH).unwrap()];
    let mut theirs = device.queue(DEPTH).unwrap();
    let handles = [ours[0].handle(), ours[1].handle()];
    let (offer, pending) = device.offer(&handles).unwrap();
    let handle = theirs.handle();
    let (accepted, connected) = std::thread::scope(|scope| {
        let connecting =
            scope.spawn(|| [0, 1].map(|index| device.connect(&offer, index, &handle, soon()).unwrap()));
        (pending.accept(soon()).unwrap(), connecting.join().unwrap())
    });
    let mut ids = Vec::new();
    for (queue, setup) in ours.iter_mut().zip(accepted) {
        ids.push(queue.attach(setup).unwrap());
    }
    let far = connected.map(|setup| theirs.attach(setup).unwrap());
    assert_ne!(far[0], far[1]);
    for (lane, channel) in far.into_iter().enumerate() {
        let write = Write {
            id: 7,
            gather: &[],
            remote: RemoteSpan { key: RemoteKey(0), offset: 0 },
            immediate: Some(lane as u32),
            signaled: true,
        };
        theirs.post_write(channel, &write).unwrap();
    }
    theirs.flush();
    for (lane, queue) in ours.iter_mut().enumerate() {
        let mut inbox = Vec::new();
        let deadline = soon();
        while inbox.is_empty() {
            assert!(Instant::now() < deadline, "nothing came on lane {lane}");
            queue.poll(&mut inbox);
            let mut rest = Vec::new();
            theirs.poll(&mut rest);
        }
        let kind = CompletionKind::Received { immediate: lane as u32 };
        assert_eq!(inbox, [Completion { channel: ids[lane], kind }]);
    }
}

#[test]
fn misuse_is_refused() {
    let device = device();
    let queue = device.queue(DEPTH).unwrap();
    let elsewhere = VerbsConfig { device: Some("no-such-device".into()), ..VerbsConfig::default() };
    let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let error = VerbsDevice::open(&elsewhere, local, local.to_string()).unwrap_err().to_string();
    assert!(error.contains("no-such-device") && error.contains("rxe0"), "{error}");
    assert!(matches!(device.queue(0), Err(FabricError::Misuse(_))));
    assert!(matches!(ShmDevice::new().offer(&[queue.handle()]), Err(FabricError::Misuse(_))));
    assert!(matches!(device.connect(&[1], 0, &queue.handle(), soon()), Err(FabricError::Peer(_))));
}

#[test]
fn a_peer_that_vanishes_is_noticed_while_nothing_is_under_way() {
    let (mut a, b) = pair_lending(4096);
    let started = Instant::now();
    drop(b);
    assert_eq!(a.next(), CompletionKind::Disconnected(DisconnectReason::PeerClosed));
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
}

const OFFER: &str = "VERBS_TEST_OFFER";

/// Not a test of its own: the process that the next one kills. Writes until then.
#[test]
fn a_child_that_writes() {
    let Ok(offer) = std::env::var(OFFER) else { return };
    let offer: Vec<u8> = offer.split(',').map(|byte| byte.parse().unwrap()).collect();
    let device = device();
    let mut queue = device.queue(DEPTH).unwrap();
    let setup = device.connect(&offer, 0, &queue.handle(), soon()).unwrap();
    let channel = queue.attach(setup).unwrap();
    let mut side = Side::new(queue, channel, 4096);
    // The first region that a process exposes has a name that the other side says.
    let key = RemoteKey(u64::from(first_notice(&mut side)));
    let source = Region::allocate(BIG, "source").unwrap();
    source.write(0, &vec![0xAB; BIG]).unwrap();
    for round in 0.. {
        let spans = [source.span(0, BIG as u64).unwrap()];
        side.write_some_time(&spans, RemoteSpan { key, offset: 0 }, Some(round), None);
    }
}

const BIG: usize = 4 << 20;

fn first_notice(side: &mut Side) -> u32 {
    match side.next() {
        CompletionKind::Received { immediate } => immediate,
        other => panic!("{other:?}"),
    }
}

#[test]
fn nothing_of_a_killed_writer_lands_once_its_channel_has_ended() {
    let device = device();
    let mut queue = device.queue(DEPTH).unwrap();
    let (offer, pending) = device.offer(&[queue.handle()]).unwrap();
    let offer: Vec<String> = offer.iter().map(u8::to_string).collect();
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_child_that_writes"])
        .env(OFFER, offer.join(","))
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let setup = pending.accept(soon()).unwrap().pop().unwrap();
    let channel = queue.attach(setup).unwrap();
    let mut side = Side::new(queue, channel, BIG);
    let name = u32::try_from(side.key.0).unwrap();
    side.write(&[], RemoteSpan { key: RemoteKey(0), offset: 0 }, Some(name), None).unwrap();
    for round in 0..3 {
        assert_eq!(side.next(), CompletionKind::Received { immediate: round });
    }
    child.kill().unwrap();
    let killed = Instant::now();
    child.wait().unwrap();
    let reason = loop {
        match side.next() {
            CompletionKind::Disconnected(reason) => break reason,
            CompletionKind::Received { .. } => {}
            other => panic!("{other:?}"),
        }
    };
    println!("a killed writer was noticed after {:?}: {reason:?}", killed.elapsed());
    assert!(killed.elapsed() < Duration::from_secs(5), "{:?}", killed.elapsed());
    let poison = vec![0x55; BIG];
    side.lent.write(0, &poison).unwrap();
    // Pages of a dead sender came for two seconds where the queue pair was left alone.
    std::thread::sleep(Duration::from_secs(3));
    let mut found = vec![0; BIG];
    side.lent.read(0, &mut found).unwrap();
    assert!(found == poison, "a late write into memory that is used again");
}
