//! What the tests of the TCP driver share: connected pairs in one process, a raw socket in place of a peer,
//! and waits that give up.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a rig of several tests"
)]

use fabric::{
    Access, ChannelId, ChannelSetup, Completion, CompletionKind, CompletionQueue, Device, DisconnectReason,
    FabricError, LaneQueue, PeerWritable, PendingOffer, PostError, Region, RemoteKey, RemoteSpan, Span,
    TcpDevice, TcpQueue, Write,
};
use socket2::{Domain, SockAddr, Socket, Type};
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

pub const PATIENCE: Duration = Duration::from_secs(20);

pub fn soon() -> Instant {
    Instant::now() + PATIENCE
}

/// What channels are to run over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    Unix,
    Tcp,
}

impl Carrier {
    pub fn name(self) -> &'static str {
        match self {
            Self::Unix => "unix socket",
            Self::Tcp => "tcp socket",
        }
    }
}

/// Each of these functions as two tests, one for each carrier.
#[allow(unused_macros, reason = "a rig of several tests")]
macro_rules! over_both {
    ($($test:ident),* $(,)?) => {
        mod over_unix {
            $(#[test] fn $test() { super::$test(crate::tcp_rig::Carrier::Unix) })*
        }
        mod over_tcp {
            $(#[test] fn $test() { super::$test(crate::tcp_rig::Carrier::Tcp) })*
        }
    };
}
#[allow(unused_imports, reason = "a rig of several tests")]
pub(crate) use over_both;

pub fn device(carrier: Carrier, buffer_bytes: Option<usize>) -> TcpDevice {
    let device = TcpDevice::new(Ipv4Addr::LOCALHOST.into(), "127.0.0.1".into());
    let device = device.with_unix(carrier == Carrier::Unix);
    match buffer_bytes {
        Some(bytes) => device.with_socket_buffer_bytes(bytes),
        None => device,
    }
}

/// Of queues TCP needs to know no more than their number.
pub trait Channels {
    fn offer_channels(&self, channels: usize) -> Result<(Vec<u8>, Box<dyn PendingOffer>), FabricError>;
    fn connect_channel(&self, offer: &[u8], index: u16, by: Instant) -> Result<ChannelSetup, FabricError>;
}

impl Channels for TcpDevice {
    fn offer_channels(&self, channels: usize) -> Result<(Vec<u8>, Box<dyn PendingOffer>), FabricError> {
        self.offer(&vec![LaneQueue::new(1).unwrap().handle(); channels])
    }

    fn connect_channel(&self, offer: &[u8], index: u16, by: Instant) -> Result<ChannelSetup, FabricError> {
        self.connect(offer, index, &LaneQueue::new(1).unwrap().handle(), by)
    }
}

/// One side of a channel.
pub struct End {
    pub queue: TcpQueue,
    pub channel: ChannelId,
    pub seen: Vec<Completion>,
}

impl End {
    pub fn new(queue: TcpQueue, channel: ChannelId) -> Self {
        Self { queue, channel, seen: Vec::new() }
    }

    pub fn write(
        &mut self,
        id: u64,
        gather: &[Span],
        remote: RemoteSpan,
        immediate: Option<u32>,
    ) -> Result<(), PostError> {
        self.queue.post_write(self.channel, &Write { id, gather, remote, immediate, signaled: true })
    }

    /// Exposes a region and lends all of it.
    pub fn expose(&mut self, region: &Region) -> RemoteKey {
        lend_all(&mut self.queue, self.channel, region)
    }

    pub fn poll(&mut self) {
        self.queue.poll(&mut self.seen);
    }

    /// Polls, sleeping in between, until a completion fits; takes everything up to it.
    pub fn until(&mut self, what: &str, fits: impl Fn(&CompletionKind) -> bool) -> Vec<CompletionKind> {
        let deadline = soon();
        loop {
            if let Some(at) = self.seen.iter().position(|c| fits(&c.kind)) {
                return self.seen.drain(..=at).map(|c| c.kind).collect();
            }
            assert!(Instant::now() < deadline, "waited in vain for {what}; seen: {:?}", self.seen);
            self.queue.wait(Duration::from_millis(100));
            self.poll();
        }
    }

    pub fn until_received(&mut self, immediate: u32) -> Vec<CompletionKind> {
        self.until(&format!("immediate {immediate}"), |k| *k == CompletionKind::Received { immediate })
    }

    pub fn until_disconnected(&mut self) -> DisconnectReason {
        let all = self.until("the end", |k| matches!(k, CompletionKind::Disconnected(_)));
        match all.last() {
            Some(CompletionKind::Disconnected(reason)) => reason.clone(),
            _ => unreachable!("found above"),
        }
    }
}

/// Channels between two fresh queues.
pub fn pairs(
    carrier: Carrier,
    channels: u16,
    send_depth: usize,
    buffer_bytes: Option<usize>,
) -> (TcpQueue, TcpQueue, Vec<(ChannelId, ChannelId)>) {
    let device = device(carrier, buffer_bytes);
    let (mut left, mut right) = (TcpQueue::new(send_depth).unwrap(), TcpQueue::new(send_depth).unwrap());
    let (offer, pending) = device.offer_channels(usize::from(channels)).unwrap();
    let connected: Vec<_> = (0..channels)
        .map(|i| {
            let setup = device.connect_channel(&offer, i, soon()).unwrap();
            assert_eq!(setup.carrier(), carrier.name());
            left.attach(setup).unwrap()
        })
        .collect();
    let accepted = pending.accept(soon()).unwrap().into_iter().map(|s| right.attach(s).unwrap());
    let ids = connected.into_iter().zip(accepted.collect::<Vec<_>>()).collect();
    (left, right, ids)
}

/// The two ends of one channel.
pub fn pair(carrier: Carrier, send_depth: usize, buffer_bytes: Option<usize>) -> (End, End) {
    let (left, right, ids) = pairs(carrier, 1, send_depth, buffer_bytes);
    (End::new(left, ids[0].0), End::new(right, ids[0].1))
}

/// What an offer tells (its bytes are frozen in the driver's tests).
#[derive(Clone, Debug)]
pub struct Opened {
    pub port: u16,
    /// Zeros for none.
    pub name: [u8; 16],
    /// All of it; its secret is bytes 8 to 23.
    pub offer: Vec<u8>,
}

pub fn open_offer(offer: &[u8]) -> Opened {
    let port = u16::from_le_bytes([offer[4], offer[5]]);
    Opened { port, name: offer[24..40].try_into().unwrap(), offer: offer.to_vec() }
}

impl Opened {
    /// Where the offer's unix socket is.
    pub fn unix_address(&self) -> SockAddr {
        let digits: String = self.name.iter().map(|byte| format!("{byte:02x}")).collect();
        SockAddr::unix(format!("\0gradwire-{digits}")).unwrap()
    }

    /// A connection that has said nothing yet.
    pub fn dial(&self, carrier: Carrier) -> Socket {
        let (domain, address) = match carrier {
            Carrier::Unix => (Domain::UNIX, self.unix_address()),
            Carrier::Tcp => (Domain::IPV4, SocketAddr::from((Ipv4Addr::LOCALHOST, self.port)).into()),
        };
        let socket = Socket::new(domain, Type::STREAM, None).unwrap();
        socket.connect(&address).unwrap();
        if carrier == Carrier::Tcp {
            socket.set_tcp_nodelay(true).unwrap();
        }
        socket
    }

    /// A connection that has introduced itself.
    pub fn introduce(&self, carrier: Carrier, index: u16) -> Socket {
        let mut socket = self.dial(carrier);
        socket.write_all(&self.preamble(index)).unwrap();
        socket
    }

    pub fn preamble(&self, index: u16) -> Vec<u8> {
        fabric::tcp_preamble(&self.offer, index).unwrap()
    }
}

/// A raw socket that plays the peer.
pub fn raw_peer(carrier: Carrier, send_depth: usize) -> (Socket, End) {
    let (offer, pending) = device(carrier, None).offer_channels(1).unwrap();
    let socket = open_offer(&offer).introduce(carrier, 0);
    let mut queue = TcpQueue::new(send_depth).unwrap();
    let setup = pending.accept(soon()).unwrap().remove(0);
    assert_eq!(setup.carrier(), carrier.name());
    let channel = queue.attach(setup).unwrap();
    (socket, End::new(queue, channel))
}

pub fn region(bytes: usize) -> PeerWritable {
    PeerWritable::allocate(bytes, "test").unwrap()
}

pub fn bytes_of(region: &PeerWritable, offset: u64, bytes: usize) -> Vec<u8> {
    let mut out = vec![0; bytes];
    region.read(offset, &mut out).unwrap();
    out
}

pub fn at(key: RemoteKey, offset: u64) -> RemoteSpan {
    RemoteSpan { key, offset }
}

/// Exposes a region and lends all of it to a channel's peer.
pub fn lend_all(queue: &mut TcpQueue, channel: ChannelId, region: &Region) -> RemoteKey {
    queue.lend(channel, &region.all(), Access::ReadWrite, 0).unwrap();
    queue.expose(channel, region).unwrap()
}
