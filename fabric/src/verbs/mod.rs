//! The verbs driver: reliable connections of a RDMA device (RoCEv2), one queue pair a channel. Writes and reads are the
//! device's own; a notice is a write with immediate, which every channel of a lane receives by one shared receive
//! queue.
//!
//! A channel is set up over a TCP connection (`endpoint`), which stays open: its end tells of a dead peer when nothing
//! is under way that could time out. `queue` registers and polls, `channel` posts; `sys` holds the library and all
//! `unsafe`. Built with the feature `verbs` only, because a program with it does not start without the verbs library.

mod channel;
mod endpoint;
mod forge;
mod queue;
mod sys;
mod told;

#[doc(hidden)]
pub use forge::Forged;
pub use queue::VerbsQueue;

use crate::device::{ChannelSetup, CqHandle, Device, PendingOffer, SetupKind};
use crate::error::FabricError;
use crate::random;
use crate::tcp::TcpDevice;
use endpoint::Endpoint;
use queue::Shared;
use socket2::Socket;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;
use sys::{Context, GidEntry, Path, QueuePair, Remote};

/// What a device is opened with.
#[derive(Clone, Debug)]
pub struct VerbsConfig {
    /// Its name; the first one unless said.
    pub device: Option<String>,
    /// Its port, from 1.
    pub port: u8,
    /// The address to use, by its index; a routable RoCEv2 address of a network device unless said.
    pub gid_index: Option<u8>,
    /// A packet without answer is sent again after 4.096 µs · 2^timeout.
    pub timeout: u8,
    /// So many times (at most 6: some devices take 7 for "for ever").
    pub retries: u8,
    /// Of the packets' IP headers.
    pub traffic_class: u8,
}

impl Default for VerbsConfig {
    /// A dead peer with requests under way is noticed after about half a second.
    fn default() -> Self {
        Self { device: None, port: 1, gid_index: None, timeout: 14, retries: 6, traffic_class: 0 }
    }
}

/// A RDMA device.
#[derive(Clone, Debug)]
pub struct VerbsDevice {
    context: Arc<Context>,
    path: Path,
    gid: [u8; 16],
    /// Brings the channels' connections about.
    tcp: TcpDevice,
}

/// A lane's queue, as a channel that is being connected has to know it.
#[derive(Clone, Debug)]
pub(crate) struct VerbsHandle(Arc<Shared>);

/// A connected queue pair.
#[derive(Debug)]
pub(crate) struct VerbsSetup {
    queue_pair: QueuePair,
    socket: Socket,
    owner: VerbsHandle,
    /// The peer has said that it receives.
    is_peer_ready: bool,
}

impl VerbsDevice {
    /// The names of the devices here.
    pub fn names() -> Result<Vec<String>, FabricError> {
        sys::device_names()
    }

    /// Opens a device. `bind` and `advertise`: as for [`TcpDevice::new`].
    pub fn open(config: &VerbsConfig, bind: IpAddr, advertise: String) -> Result<Self, FabricError> {
        let context = Context::open(config.device.as_deref())?;
        let (up, mtu) = context.port(config.port)?;
        if !up {
            let (name, port) = (&context.name, config.port);
            return Err(FabricError::Misuse(format!(
                "port {port} of RDMA device {name} is down (is its network interface up? `rdma link` tells)"
            )));
        }
        let gid = choose(&context.gids()?, config).ok_or_else(|| {
            FabricError::Misuse(format!(
                "RDMA device {} has no RoCEv2 address of a network device on port {} (has its interface an IP address?)",
                context.name, config.port
            ))
        })?;
        let path = Path {
            port: config.port,
            gid_index: gid.index,
            mtu,
            timeout: config.timeout,
            retries: config.retries,
            traffic_class: config.traffic_class,
        };
        let tcp = TcpDevice::new(bind, advertise).with_unix(false);
        Ok(Self { context, path, gid: gid.gid, tcp })
    }

    /// A completion queue on this device. `send_depth`: unfinished requests one channel may have.
    pub fn queue(&self, send_depth: usize) -> Result<VerbsQueue, FabricError> {
        VerbsQueue::new(&self.context, send_depth)
    }

    /// A queue pair of a lane, and what a peer has to know of it.
    fn prepare(&self, owner: &VerbsHandle) -> Result<(QueuePair, Endpoint), FabricError> {
        let queue_pair = owner.0.queue_pair()?;
        let [a, b, c, ..] = random::random()?;
        let first_packet = u32::from_le_bytes([a, b, c, 0]);
        let remote = Remote { gid: self.gid, queue_pair: queue_pair.number, first_packet };
        Ok((queue_pair, Endpoint { remote, mtu: self.path.mtu }))
    }

    fn join(&self, queue_pair: &QueuePair, ours: &Endpoint, theirs: &Endpoint) -> Result<(), FabricError> {
        let path = Path { mtu: ours.mtu.min(theirs.mtu), ..self.path };
        queue_pair.connect(&path, &theirs.remote, ours.remote.first_packet)
    }
}

/// A routable address before a link's own, and version 4 before 6: the order in which they work between hosts.
fn choose(gids: &[GidEntry], config: &VerbsConfig) -> Option<GidEntry> {
    let of_port = gids.iter().filter(|gid| gid.port == config.port);
    if let Some(index) = config.gid_index {
        return of_port.copied().find(|gid| gid.index == index);
    }
    let is_v4 = |gid: &GidEntry| gid.gid[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF];
    let is_link_local = |gid: &GidEntry| gid.gid[..2] == [0xFE, 0x80];
    of_port
        .copied()
        .filter(|gid| gid.is_roce_v2 && gid.has_netdev)
        .min_by_key(|gid| (is_link_local(gid), !is_v4(gid), gid.index))
}

fn handle_of(queue: &CqHandle) -> Result<VerbsHandle, FabricError> {
    let missing = || FabricError::Misuse("a queue without verbs was given to the verbs driver".into());
    queue.verbs.clone().ok_or_else(missing)
}

/// Of an offer: the queue pairs, then what the TCP driver says.
fn encode_offer(endpoints: &[Endpoint], tcp: &[u8]) -> Vec<u8> {
    let mut offer = (endpoints.len() as u16).to_le_bytes().to_vec();
    endpoints.iter().for_each(|endpoint| offer.extend_from_slice(&endpoint.encode()));
    offer.extend_from_slice(tcp);
    offer
}

fn decode_offer(offer: &[u8], index: u16) -> Result<(Endpoint, &[u8]), FabricError> {
    let torn = || FabricError::Peer("its verbs offer is torn".into());
    let (count, rest) = offer.split_first_chunk::<2>().ok_or_else(torn)?;
    let count = u16::from_le_bytes(*count);
    if index >= count {
        return Err(FabricError::Misuse(format!("channel {index} of an offer of {count} channels")));
    }
    let (endpoints, tcp) = rest.split_at_checked(usize::from(count) * endpoint::BYTES).ok_or_else(torn)?;
    let (endpoints, _) = endpoints.as_chunks::<{ endpoint::BYTES }>();
    Ok((Endpoint::decode(&endpoints[usize::from(index)])?, tcp))
}

struct Pending {
    device: VerbsDevice,
    tcp: Box<dyn PendingOffer>,
    prepared: Vec<(VerbsHandle, QueuePair, Endpoint)>,
}

impl PendingOffer for Pending {
    fn accept(self: Box<Self>, deadline: Instant) -> Result<Vec<ChannelSetup>, FabricError> {
        let Self { device, tcp, prepared } = *self;
        let mut setups = Vec::with_capacity(prepared.len());
        for (setup, (owner, queue_pair, ours)) in tcp.accept(deadline)?.into_iter().zip(prepared) {
            let socket = tcp_socket(setup)?;
            endpoint::hear(&socket, deadline, |theirs| device.join(&queue_pair, &ours, theirs))?;
            setups.push(setup_of(VerbsSetup { queue_pair, socket, owner, is_peer_ready: true }));
        }
        Ok(setups)
    }
}

fn tcp_socket(setup: ChannelSetup) -> Result<Socket, FabricError> {
    match setup.kind {
        SetupKind::Tcp(socket) => Ok(socket),
        _ => Err(FabricError::Internal("a tcp offer was taken up over another driver".into())),
    }
}

fn setup_of(setup: VerbsSetup) -> ChannelSetup {
    ChannelSetup { kind: SetupKind::Verbs(Box::new(setup)) }
}

impl Device for VerbsDevice {
    fn offer(&self, queues: &[CqHandle]) -> Result<(Vec<u8>, Box<dyn PendingOffer>), FabricError> {
        let (tcp_offer, tcp) = self.tcp.offer_channels(queues.len())?;
        let prepare = |queue: &CqHandle| {
            let owner = handle_of(queue)?;
            let (queue_pair, endpoint) = self.prepare(&owner)?;
            Ok((owner, queue_pair, endpoint))
        };
        let prepared = queues.iter().map(prepare).collect::<Result<Vec<_>, FabricError>>()?;
        let endpoints: Vec<_> = prepared.iter().map(|(_, _, endpoint)| *endpoint).collect();
        let pending = Pending { device: self.clone(), tcp, prepared };
        Ok((encode_offer(&endpoints, &tcp_offer), Box::new(pending)))
    }

    fn connect(
        &self,
        offer: &[u8],
        index: u16,
        queue: &CqHandle,
        deadline: Instant,
    ) -> Result<ChannelSetup, FabricError> {
        let owner = handle_of(queue)?;
        let (theirs, tcp_offer) = decode_offer(offer, index)?;
        let (queue_pair, ours) = self.prepare(&owner)?;
        self.join(&queue_pair, &ours, &theirs)?;
        let socket = tcp_socket(self.tcp.connect_channel(tcp_offer, index, deadline)?)?;
        endpoint::tell(&socket, &ours, deadline)?;
        Ok(setup_of(VerbsSetup { queue_pair, socket, owner, is_peer_ready: false }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(index: u8, start: &[u8], is_roce_v2: bool, has_netdev: bool) -> GidEntry {
        let mut gid = [1; 16];
        gid[..start.len()].copy_from_slice(start);
        GidEntry { gid, index, port: 1, is_roce_v2, has_netdev }
    }

    #[test]
    fn a_routable_v2_address_of_a_network_device_is_chosen() {
        let v4 = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF];
        let config = VerbsConfig::default();
        let mut gids = vec![
            gid(0, &[0xFE, 0x80], false, true),
            gid(1, &[0xFE, 0x80], true, true),
            gid(2, &[0x20, 0x01], true, true),
            gid(3, &v4, false, true),
            gid(4, &v4, true, false),
            gid(5, &v4, true, true),
        ];
        assert_eq!(choose(&gids, &config).map(|g| g.index), Some(5));
        gids.truncate(5);
        assert_eq!(choose(&gids, &config).map(|g| g.index), Some(2));
        gids.truncate(2);
        assert_eq!(choose(&gids, &config).map(|g| g.index), Some(1));
        gids.truncate(1);
        assert_eq!(choose(&gids, &config), None);
        let named = VerbsConfig { gid_index: Some(0), ..config };
        assert_eq!(choose(&gids, &named).map(|g| g.index), Some(0));
    }
}
