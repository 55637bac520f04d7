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
    ChannelId, Completion, CompletionKind, CompletionQueue, DisconnectReason, PostError, Region, RemoteKey,
    RemoteSpan, Span, TcpDevice, TcpQueue, Write,
};
use std::io::Write as _;
use std::net::{Ipv4Addr, TcpStream};
use std::time::{Duration, Instant};

pub const PATIENCE: Duration = Duration::from_secs(20);

pub fn soon() -> Instant {
    Instant::now() + PATIENCE
}

pub fn device(buffer_bytes: Option<usize>) -> TcpDevice {
    let device = TcpDevice::new(Ipv4Addr::LOCALHOST.into(), "127.0.0.1".into());
    match buffer_bytes {
        Some(bytes) => device.with_socket_buffer_bytes(bytes),
        None => device,
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

    pub fn expose(&mut self, region: &Region) -> RemoteKey {
        self.queue.expose(self.channel, region).unwrap()
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
    channels: u16,
    send_depth: usize,
    buffer_bytes: Option<usize>,
) -> (TcpQueue, TcpQueue, Vec<(ChannelId, ChannelId)>) {
    let device = device(buffer_bytes);
    let (mut left, mut right) = (TcpQueue::new(send_depth).unwrap(), TcpQueue::new(send_depth).unwrap());
    let (offer, pending) = device.offer_channels(usize::from(channels)).unwrap();
    let connected: Vec<_> = (0..channels)
        .map(|i| left.attach(device.connect_channel(&offer, i, soon()).unwrap()).unwrap())
        .collect();
    let accepted = pending.accept(soon()).unwrap().into_iter().map(|s| right.attach(s).unwrap());
    let ids = connected.into_iter().zip(accepted.collect::<Vec<_>>()).collect();
    (left, right, ids)
}

/// The two ends of one channel.
pub fn pair(send_depth: usize, buffer_bytes: Option<usize>) -> (End, End) {
    let (left, right, ids) = pairs(1, send_depth, buffer_bytes);
    (End::new(left, ids[0].0), End::new(right, ids[0].1))
}

/// Port and secret of an offer (its bytes are frozen in the driver's tests).
pub fn open_offer(offer: &[u8]) -> (u16, [u8; 16]) {
    (u16::from_le_bytes([offer[4], offer[5]]), offer[8..24].try_into().unwrap())
}

/// A socket that has introduced itself.
pub fn introduce(port: u16, secret: &[u8; 16], index: u16) -> TcpStream {
    let mut socket = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    socket.set_nodelay(true).unwrap();
    let mut preamble = b"GWP1".to_vec();
    preamble.extend_from_slice(&index.to_le_bytes());
    preamble.extend_from_slice(&[0, 0]);
    preamble.extend_from_slice(secret);
    socket.write_all(&preamble).unwrap();
    socket
}

/// A raw socket that plays the peer.
pub fn raw_peer(send_depth: usize) -> (TcpStream, End) {
    let (offer, pending) = device(None).offer_channels(1).unwrap();
    let (port, secret) = open_offer(&offer);
    let socket = introduce(port, &secret, 0);
    let mut queue = TcpQueue::new(send_depth).unwrap();
    let setup = pending.accept(soon()).unwrap().remove(0);
    let channel = queue.attach(setup).unwrap();
    (socket, End::new(queue, channel))
}

pub fn region(bytes: usize) -> Region {
    Region::allocate(bytes, "test").unwrap()
}

pub fn bytes_of(region: &Region, offset: u64, bytes: usize) -> Vec<u8> {
    let mut out = vec![0; bytes];
    region.read(offset, &mut out).unwrap();
    out
}

pub fn at(key: RemoteKey, offset: u64) -> RemoteSpan {
    RemoteSpan { key, offset }
}
