//! What the checks stand on: a driver behind one small trait, connected ends that sleep for what they wait for, and
//! peers in processes of their own. Must not check anything of a driver itself, nor know one beyond its `Rig`.

use fabric::{
    Access, ChannelId, ChannelSetup, Completion, CompletionKind, CompletionQueue, CqHandle, Device,
    DisconnectReason, FabricError, LaneQueue, PeerWritable, PostError, Read, Region, RemoteKey, RemoteSpan,
    ShmDevice, Span, TcpDevice, Write,
};
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

/// Unfinished requests of a channel, unless a check says otherwise.
pub const DEPTH: usize = 64;
const PATIENCE: Duration = Duration::from_secs(60);
/// A sleep that ends by itself only where a wake was lost.
pub const LONG_SLEEP: Duration = Duration::from_secs(10);
const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

pub fn soon() -> Instant {
    Instant::now() + PATIENCE
}

/// Which of two ends: a machine with two devices gives each its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Near,
    Far,
}

/// Who refuses a key or a stretch that was not granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The post itself: this side was told what it may address.
    AtPost,
    /// The peer, which ends the channel: only it knows what it exposed.
    ByPeer,
}

/// In what drivers differ for a reason.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub refusal: Refusal,
    /// The longest transfer that is tried: more than whatever the driver moves in one piece.
    pub long_bytes: usize,
    /// Spans of a write that are one too many.
    pub gather_refused: usize,
    /// Is a connected channel good for one queue only?
    pub binds_setups: bool,
    /// How often things are done again: an emulated machine is slow.
    pub rounds: u32,
    /// For so long a peer's late bytes are waited for: a software RDMA device goes on for its dead.
    pub late: Duration,
    /// Longest processor time of an idle second.
    pub idle_cpu: Duration,
}

/// A completion queue that can be slept on.
pub trait Queue: CompletionQueue + 'static {
    fn handle(&self) -> CqHandle;
    fn wait(&mut self, timeout: Duration);
}

/// A driver under test.
pub trait Rig: Copy + Send + Sync + 'static {
    type Queue: Queue;
    /// Of the module `over_NAME` with its tests.
    const NAME: &'static str;
    /// What its channels say that they are carried by.
    const CARRIER: &'static str;
    const LIMITS: Limits;

    fn device(place: Place) -> Box<dyn Device>;
    fn queue(place: Place, send_depth: usize) -> Result<Self::Queue, FabricError>;
}

impl Queue for LaneQueue {
    fn handle(&self) -> CqHandle {
        Self::handle(self)
    }

    fn wait(&mut self, timeout: Duration) {
        Self::wait(self, timeout);
    }
}

const LOCAL: Limits = Limits {
    refusal: Refusal::AtPost,
    long_bytes: 24 << 20,
    gather_refused: 1025,
    binds_setups: true,
    rounds: 5000,
    late: Duration::from_millis(300),
    idle_cpu: Duration::from_millis(10),
};
/// The peer's table says what may be written, and any queue can poll any socket.
const SOCKETS: Limits =
    Limits { refusal: Refusal::ByPeer, gather_refused: 257, binds_setups: false, ..LOCAL };

#[derive(Clone, Copy, Debug)]
pub struct Shm;

impl Rig for Shm {
    type Queue = LaneQueue;
    const NAME: &'static str = "shm";
    const CARRIER: &'static str = "shared memory";
    const LIMITS: Limits = LOCAL;

    fn device(_: Place) -> Box<dyn Device> {
        Box::new(ShmDevice::new())
    }

    fn queue(_: Place, send_depth: usize) -> Result<LaneQueue, FabricError> {
        LaneQueue::new(send_depth)
    }
}

fn tcp(unix: bool) -> Box<dyn Device> {
    Box::new(TcpDevice::new(LOCALHOST, LOCALHOST.to_string()).with_unix(unix))
}

#[derive(Clone, Copy, Debug)]
pub struct Tcp;

impl Rig for Tcp {
    type Queue = LaneQueue;
    const NAME: &'static str = "tcp";
    const CARRIER: &'static str = "tcp socket";
    const LIMITS: Limits = SOCKETS;

    fn device(_: Place) -> Box<dyn Device> {
        tcp(false)
    }

    fn queue(_: Place, send_depth: usize) -> Result<LaneQueue, FabricError> {
        LaneQueue::new(send_depth)
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Unix;

impl Rig for Unix {
    type Queue = LaneQueue;
    const NAME: &'static str = "unix";
    const CARRIER: &'static str = "unix socket";
    const LIMITS: Limits = SOCKETS;

    fn device(_: Place) -> Box<dyn Device> {
        tcp(true)
    }

    fn queue(_: Place, send_depth: usize) -> Result<LaneQueue, FabricError> {
        LaneQueue::new(send_depth)
    }
}

/// RDMA devices: the first one for who invites, the last one for who connects.
#[derive(Clone, Copy, Debug)]
pub struct Verbs;

impl Verbs {
    /// Gives up after half a second, so that tests need not wait for the end of a usual patience.
    const TIMEOUT: u8 = 14;

    /// `timeout`: as in `VerbsConfig`, where it is not to be the short one.
    pub fn open(place: Place, timeout: Option<u8>) -> fabric::VerbsDevice {
        Self::open_with(place, |config| config.timeout = timeout.unwrap_or(Self::TIMEOUT))
    }

    fn open_with(place: Place, edit: impl FnOnce(&mut fabric::VerbsConfig)) -> fabric::VerbsDevice {
        let names = fabric::VerbsDevice::names().unwrap();
        let name = if place == Place::Near { names.first() } else { names.last() };
        let mut config = fabric::VerbsConfig { device: name.cloned(), ..fabric::VerbsConfig::default() };
        edit(&mut config);
        fabric::VerbsDevice::open(&config, LOCALHOST, LOCALHOST.to_string()).expect("an RDMA device")
    }
}

impl Queue for fabric::VerbsQueue {
    fn handle(&self) -> CqHandle {
        Self::handle(self)
    }

    fn wait(&mut self, timeout: Duration) {
        Self::wait(self, timeout);
    }
}

impl Rig for Verbs {
    type Queue = fabric::VerbsQueue;
    const NAME: &'static str = "verbs";
    const CARRIER: &'static str = "RDMA device";
    const LIMITS: Limits = Limits {
        // More than the 8 MiB of one request of the software device.
        long_bytes: 9 << 20,
        gather_refused: 257,
        rounds: 500,
        late: Duration::from_secs(3),
        // An emulated processor that shares its core took 13 ms for a few waits. One that spins takes the whole second.
        idle_cpu: Duration::from_millis(50),
        ..LOCAL
    };

    fn device(place: Place) -> Box<dyn Device> {
        Box::new(Self::open(place, None))
    }

    fn queue(place: Place, send_depth: usize) -> Result<fabric::VerbsQueue, FabricError> {
        Self::open(place, None).queue(send_depth)
    }
}

/// The same devices, with notices by flags.
#[derive(Clone, Copy, Debug)]
pub struct VerbsFlags;

impl VerbsFlags {
    fn open(place: Place) -> fabric::VerbsDevice {
        Verbs::open_with(place, |config| config.tail_flags = true)
    }
}

impl Rig for VerbsFlags {
    type Queue = LaneQueue;
    const NAME: &'static str = "verbs_flags";
    const CARRIER: &'static str = Verbs::CARRIER;
    // Nobody sleeps.
    const LIMITS: Limits = Limits { idle_cpu: Duration::from_secs(5), ..Verbs::LIMITS };

    fn device(place: Place) -> Box<dyn Device> {
        Box::new(Self::open(place))
    }

    fn queue(place: Place, send_depth: usize) -> Result<LaneQueue, FabricError> {
        LaneQueue::new(send_depth)?.with(&Self::open(place))
    }
}

/// The same devices, behind the queue that lanes use for all drivers.
#[derive(Clone, Copy, Debug)]
pub struct VerbsLane;

impl Rig for VerbsLane {
    type Queue = LaneQueue;
    const NAME: &'static str = "verbs_lane";
    const CARRIER: &'static str = Verbs::CARRIER;
    const LIMITS: Limits = Verbs::LIMITS;

    fn device(place: Place) -> Box<dyn Device> {
        Verbs::device(place)
    }

    fn queue(place: Place, send_depth: usize) -> Result<LaneQueue, FabricError> {
        LaneQueue::new(send_depth)?.with(&Verbs::open(place, None))
    }
}

pub fn region(bytes: usize) -> PeerWritable {
    PeerWritable::allocate(bytes, "conformance").unwrap()
}

/// Bytes that tell their place.
pub fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    (0..bytes as u64)
        .map(|i| (i.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(seed) >> 23) as u8)
        .collect()
}

pub fn filled(seed: u64, bytes: usize) -> PeerWritable {
    let region = region(bytes);
    region.write(0, &pattern(seed, bytes)).unwrap();
    region
}

pub fn bytes_of(region: &PeerWritable, offset: u64, bytes: usize) -> Vec<u8> {
    let mut out = vec![0; bytes];
    region.read(offset, &mut out).unwrap();
    out
}

pub fn at(key: RemoteKey, offset: u64) -> RemoteSpan {
    RemoteSpan { key, offset }
}

/// Where a notice without bytes goes.
pub const NOWHERE: RemoteSpan = RemoteSpan { key: RemoteKey(0), offset: 0 };

/// The one form in which it is told what came of a fault.
pub fn report(case: &str, what: &str, since: Instant) {
    println!("fault: {case}: {what} after {} ms", since.elapsed().as_millis());
}

/// One end of a channel with the queue that it is on.
pub struct End<R: Rig> {
    pub queue: R::Queue,
    pub channel: ChannelId,
    pub seen: VecDeque<Completion>,
    polled: Vec<Completion>,
}

impl<R: Rig> End<R> {
    pub fn new(queue: R::Queue, channel: ChannelId) -> Self {
        Self { queue, channel, seen: VecDeque::new(), polled: Vec::new() }
    }

    pub fn poll(&mut self) {
        self.queue.poll(&mut self.polled);
        self.seen.extend(self.polled.drain(..));
    }

    fn take(&mut self) -> Option<CompletionKind> {
        let completion = self.seen.pop_front()?;
        assert_eq!(completion.channel, self.channel, "{completion:?}");
        Some(completion.kind)
    }

    /// The next completion, slept for.
    pub fn next(&mut self) -> CompletionKind {
        let deadline = soon();
        loop {
            self.poll();
            if let Some(kind) = self.take() {
                return kind;
            }
            assert!(Instant::now() < deadline, "nothing came");
            self.queue.wait(LONG_SLEEP);
        }
    }

    /// The next completion while this thread drives the other end, too.
    pub fn next_with(&mut self, other: &mut Self) -> CompletionKind {
        let deadline = soon();
        loop {
            other.poll();
            self.poll();
            if let Some(kind) = self.take() {
                return kind;
            }
            assert!(Instant::now() < deadline, "nothing came");
            self.queue.wait(Duration::from_millis(1));
        }
    }

    /// The end of the channel, and what came before it.
    pub fn ended(&mut self) -> (DisconnectReason, Vec<CompletionKind>) {
        let mut before = Vec::new();
        loop {
            match self.next() {
                CompletionKind::Disconnected(reason) => return (reason, before),
                kind => before.push(kind),
            }
        }
    }

    /// Posts a write; with an id it is signalled.
    pub fn post(
        &mut self,
        gather: &[Span],
        remote: RemoteSpan,
        immediate: Option<u32>,
        id: Option<u64>,
    ) -> Result<(), PostError> {
        let write = Write { id: id.unwrap_or(0), gather, remote, immediate, signaled: id.is_some() };
        self.queue.post_write(self.channel, &write)
    }

    /// Posts and starts a write.
    pub fn write(
        &mut self,
        gather: &[Span],
        remote: RemoteSpan,
        immediate: Option<u32>,
        id: Option<u64>,
    ) -> Result<(), PostError> {
        let posted = self.post(gather, remote, immediate, id);
        self.queue.flush();
        posted
    }

    /// As `write`, asleep while there is no room.
    pub fn write_patiently(
        &mut self,
        gather: &[Span],
        remote: RemoteSpan,
        immediate: Option<u32>,
        id: Option<u64>,
    ) {
        let deadline = soon();
        while let Err(error) = self.write(gather, remote, immediate, id) {
            assert_eq!(error, PostError::Full);
            assert!(Instant::now() < deadline, "there is never room");
            self.queue.wait(LONG_SLEEP);
            self.poll();
        }
    }

    pub fn read(&mut self, local: &Span, remote: RemoteSpan, id: u64) -> Result<(), PostError> {
        let posted = self.queue.post_read(self.channel, &Read { id, local, remote });
        self.queue.flush();
        posted
    }

    pub fn notify(&mut self, immediate: u32) {
        self.write_patiently(&[], NOWHERE, Some(immediate), None);
    }

    /// Exposes a region, once there is room to tell of it.
    pub fn expose(&mut self, region: &Region) -> RemoteKey {
        let deadline = soon();
        loop {
            match self.queue.expose(self.channel, region) {
                Ok(key) => return key,
                // Until the peer has taken those before it.
                Err(PostError::Full) => {
                    self.queue.flush();
                    self.queue.wait(Duration::from_millis(1));
                    self.poll();
                }
                Err(error) => panic!("{error}"),
            }
            assert!(Instant::now() < deadline, "there is never room");
        }
    }

    /// Exposes a region, lends all of it and says under which key.
    pub fn grant(&mut self, region: &Region) -> RemoteKey {
        let key = self.expose(region);
        self.queue.lend(self.channel, &region.all(), Access::ReadWrite, 0).unwrap();
        self.notify(u32::try_from(key.0).expect("so few regions"));
        key
    }

    /// The key of the region that the peer grants.
    pub fn granted(&mut self) -> RemoteKey {
        RemoteKey(self.next_notice().into())
    }

    pub fn next_notice(&mut self) -> u32 {
        match self.next() {
            CompletionKind::Received { immediate } => immediate,
            other => panic!("{other:?}"),
        }
    }
}

/// Connected channels, not attached yet: of these queues' handles, connected from the last to the first.
fn connect_handles<R: Rig>(near: &[CqHandle], far: &[CqHandle]) -> (Vec<ChannelSetup>, Vec<ChannelSetup>) {
    let (offer, pending) = R::device(Place::Near).offer(near).unwrap();
    let device = R::device(Place::Far);
    let connect = |index: usize| device.connect(&offer, index as u16, &far[index], soon()).unwrap();
    let (near, mut far) = std::thread::scope(|scope| {
        let connecting = scope.spawn(|| (0..far.len()).rev().map(connect).collect::<Vec<_>>());
        (pending.accept(soon()).unwrap(), connecting.join().unwrap())
    });
    far.reverse();
    assert!(near.iter().chain(&far).all(|setup| setup.carrier() == R::CARRIER));
    (near, far)
}

/// A connected channel between two queues, which have not attached it yet.
pub fn connect_only<R: Rig>(near: &R::Queue, far: &R::Queue) -> (ChannelSetup, ChannelSetup) {
    let (mut near, mut far) = connect_handles::<R>(&[near.handle()], &[far.handle()]);
    (near.remove(0), far.remove(0))
}

/// One channel for each pair of queues that the indices name, in that order.
pub fn connect_all<R: Rig>(
    near: &mut [R::Queue],
    far: &mut [R::Queue],
    pairs: &[(usize, usize)],
) -> Vec<(ChannelId, ChannelId)> {
    let near_handles: Vec<_> = pairs.iter().map(|&(at, _)| near[at].handle()).collect();
    let far_handles: Vec<_> = pairs.iter().map(|&(_, at)| far[at].handle()).collect();
    let (ours, theirs) = connect_handles::<R>(&near_handles, &far_handles);
    let both = pairs.iter().zip(ours).zip(theirs);
    both.map(|((&(a, b), ours), theirs)| (near[a].attach(ours).unwrap(), far[b].attach(theirs).unwrap()))
        .collect()
}

/// A new channel between two queues.
pub fn connect<R: Rig>(near: &mut R::Queue, far: &mut R::Queue) -> (ChannelId, ChannelId) {
    let (near, far) = (std::slice::from_mut(near), std::slice::from_mut(far));
    connect_all::<R>(near, far, &[(0, 0)])[0]
}

pub fn pair_of_depth<R: Rig>(send_depth: usize) -> (End<R>, End<R>) {
    let mut near = R::queue(Place::Near, send_depth).unwrap();
    let mut far = R::queue(Place::Far, send_depth).unwrap();
    let (a, b) = connect::<R>(&mut near, &mut far);
    let (mut a, mut b) = (End::new(near, a), End::new(far, b));
    meet(&mut a, &mut b);
    (a, b)
}

/// A word each way, as roles do before a link counts as ready.
pub fn meet<R: Rig>(a: &mut End<R>, b: &mut End<R>) {
    a.notify(1);
    b.notify(2);
    assert_eq!(b.next_with(a), CompletionKind::Received { immediate: 1 });
    assert_eq!(a.next_with(b), CompletionKind::Received { immediate: 2 });
}

pub fn pair<R: Rig>() -> (End<R>, End<R>) {
    pair_of_depth(DEPTH)
}

/// A pair, and the key under which the first one may use this region of the second one.
pub fn pair_with<R: Rig>(lent: &PeerWritable) -> (End<R>, End<R>, RemoteKey) {
    let (mut a, mut b) = pair();
    b.grant(lent);
    let key = a.granted();
    (a, b, key)
}
