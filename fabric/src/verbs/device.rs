//! Opening a device, choosing its address, and bringing queue pairs together.

use super::VerbsConfig;
use super::channel::Flags;
use super::counters::PortCounters;
use super::dmabuf::Dmabuf;
use super::endpoint;
use super::info::{DeviceInfo, Gid, PortInfo, choose};
use super::queue::{OWN_BYTES, VerbsQueue};
use super::registrar::Registrar;
use super::setup::{VerbsHandle, VerbsSetup};
use super::sys::{self, Context, Domain, Path, QueuePair};
use super::watch::Watch;
use super::words::{Endpoint, Remote, decode_offer, encode_offer};
use crate::device::{ChannelSetup, CqHandle, Device, PendingOffer, SetupKind, Transport, TransportQueue};
use crate::error::FabricError;
use crate::memory::{Access, Span};
use crate::random;
use crate::tcp::TcpDevice;
use drivers::Driver;
use socket2::Socket;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

/// Bytes that each lane's queue registers for itself.
pub const VERBS_QUEUE_BYTES: u64 = OWN_BYTES;

/// A RDMA device.
#[derive(Clone, Debug)]
pub struct VerbsDevice {
    context: Arc<Context>,
    watch: Arc<Watch>,
    registrar: Arc<Registrar>,
    path: Path,
    gid: [u8; 16],
    tail_flags: bool,
    /// Brings the channels' connections about.
    tcp: TcpDevice,
}

/// A queue pair that is not connected yet.
struct Prepared {
    owner: VerbsHandle,
    queue_pair: QueuePair,
    flags: Option<Flags>,
    endpoint: Endpoint,
}

impl Prepared {
    fn connected(self, socket: Socket, theirs: &Endpoint) -> ChannelSetup {
        let Self { owner, queue_pair, flags, .. } = self;
        let flags = flags.zip(theirs.flags).map(|(ours, theirs)| ours.towards(theirs));
        ChannelSetup::of(Driver::Verbs, "RDMA device", VerbsSetup { queue_pair, socket, owner, flags })
    }
}

/// The file of the verbs library, which this loads. An error says what is missing and which package to install.
pub fn verbs_library() -> Result<PathBuf, FabricError> {
    sys::library_path()
}

impl VerbsDevice {
    /// The names of the devices here.
    pub fn names() -> Result<Vec<String>, FabricError> {
        sys::device_names()
    }

    /// The devices here, as they look now. One that cannot be opened is told with the reason.
    pub fn describe() -> Result<Vec<DeviceInfo>, FabricError> {
        let describe = |name: String| DeviceInfo { ports: ports_of(&name), name };
        Ok(sys::device_names()?.into_iter().map(describe).collect())
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
        let gids = gids_of(&context, config.port)?;
        let gid = choose(&gids, config.gid_index).ok_or_else(|| {
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
            traffic_class: config.traffic_class,
            // Each channel's own, with what its peer can.
            reads: 1,
            reads_answered: 1,
        };
        let domain = Domain::new(Arc::clone(&context))?;
        let registrar = Arc::new(Registrar::new(domain, config.registered_bytes_max));
        let tcp = TcpDevice::new(bind, advertise).with_unix(false);
        let tail_flags = config.tail_flags;
        let watch = Arc::new(Watch::new(&context, config.port));
        let device = Self { context, watch, registrar, path, gid: gid.gid, tail_flags, tcp };
        // The probe: without the right to pin memory, say, no queue can be made.
        device.queue(1)?;
        Ok(device)
    }

    /// A completion queue on this device. `send_depth`: unfinished requests one channel may have; what the device has no
    /// room for is taken off.
    pub fn queue(&self, send_depth: usize) -> Result<VerbsQueue, FabricError> {
        VerbsQueue::new(&self.context, &self.watch, &self.registrar, (send_depth, self.path.port))
    }

    /// Registers a stretch now rather than when it is first used, so that what stands against it is told at once.
    pub fn prepare(&self, span: &Span) -> Result<(), FabricError> {
        self.registrar.prepare(span)
    }

    /// Registers memory of another device by its dmabuf, for peers to read and, with [`Access::ReadWrite`], to write: expose
    /// it with [`VerbsQueue::expose_dmabuf`]. One stretch without holes, whatever its shape is to whoever computes there:
    /// `bytes` bytes (no elements, no rows) from `offset` bytes on, which is a multiple of 4096; peers count from 0 at its
    /// beginning. It is no memory of this process: nothing is posted from it or into it here, and it does not count in the
    /// budget. [`FabricError::Unsupported`] where the device or the library cannot.
    pub fn register_dmabuf(
        &self,
        fd: BorrowedFd<'_>,
        offset: u64,
        bytes: u64,
        access: Access,
    ) -> Result<Dmabuf, FabricError> {
        Dmabuf::new(&self.registrar, fd, (offset, bytes), access)
    }

    /// Gives back the registrations of regions that nobody else owns any more. It also happens by itself, with the
    /// next registration.
    pub fn release_unused(&self) {
        self.registrar.release_unused();
    }

    /// Its name and port.
    #[must_use]
    pub fn port(&self) -> (&str, u8) {
        (&self.context.name, self.path.port)
    }

    /// What its port has counted since it was opened: of all that use the port.
    #[must_use]
    pub fn counted(&self) -> PortCounters {
        self.watch.counted()
    }

    /// Bytes registered with the device.
    #[must_use]
    pub fn registered_bytes(&self) -> u64 {
        self.release_unused();
        self.registrar.registered_bytes()
    }

    /// Objects that devices did not give back since the process began. The memory that they may reach is kept until its
    /// end; the log says why.
    #[must_use]
    pub fn kept_objects() -> u64 {
        sys::kept()
    }

    /// A queue pair of a lane, and what a peer has to know of it.
    fn endpoint(&self, owner: VerbsHandle) -> Result<Prepared, FabricError> {
        self.watch.check()?;
        let queue_pair = owner.0.queue_pair()?;
        let plan = &owner.0.plan;
        let [a, b, c, ..] = random::random()?;
        let first_packet = u32::from_le_bytes([a, b, c, 0]);
        let flags = self.tail_flags.then(|| Flags::new(&owner.0.registrar)).transpose()?;
        let remote = Remote { gid: self.gid, queue_pair: queue_pair.number, first_packet };
        let endpoint = Endpoint {
            remote,
            mtu: self.path.mtu,
            reads: plan.reads_answered,
            flags: flags.as_ref().map(Flags::ours),
        };
        Ok(Prepared { owner, queue_pair, flags, endpoint })
    }

    fn join(&self, prepared: &Prepared, theirs: &Endpoint) -> Result<(), FabricError> {
        let Prepared { queue_pair, endpoint: ours, .. } = prepared;
        let is_v4 = |gid: [u8; 16]| Ipv6Addr::from(gid).to_ipv4_mapped().is_some();
        if is_v4(self.gid) != is_v4(theirs.remote.gid) {
            return Err(FabricError::Peer(
                "one side's RDMA address is of IPv4 and the other's of IPv6 (set verbs.gid_index on both)"
                    .into(),
            ));
        }
        let plan = &prepared.owner.0.plan;
        let reads = plan.reads.min(theirs.reads);
        let path =
            Path { mtu: ours.mtu.min(theirs.mtu), reads, reads_answered: plan.reads_answered, ..self.path };
        queue_pair.connect(&path, &theirs.remote, ours.remote.first_packet)
    }
}

fn gids_of(context: &Context, port: u8) -> Result<Vec<Gid>, FabricError> {
    Ok(context.gids()?.into_iter().filter(|gid| gid.port == port).collect())
}

fn ports_of(name: &str) -> Result<Vec<PortInfo>, FabricError> {
    let context = Context::open(Some(name))?;
    let describe = |number| {
        let (is_up, mtu) = context.port(number)?;
        Ok(PortInfo { number, is_up, mtu_bytes: 128 << mtu, gids: gids_of(&context, number)? })
    };
    (1..=context.port_count()?).map(describe).collect()
}

fn handle_of(queue: &CqHandle) -> Result<VerbsHandle, FabricError> {
    let missing = || FabricError::Misuse("a queue without verbs was given to the verbs driver".into());
    queue.of().cloned().ok_or_else(missing)
}

struct Pending {
    device: VerbsDevice,
    tcp: Box<dyn PendingOffer>,
    prepared: Vec<Prepared>,
}

impl PendingOffer for Pending {
    fn accept(self: Box<Self>, deadline: Instant) -> Result<Vec<ChannelSetup>, FabricError> {
        let Self { device, tcp, prepared } = *self;
        let mut setups = Vec::with_capacity(prepared.len());
        for (setup, prepared) in tcp.accept(deadline)?.into_iter().zip(prepared) {
            let socket = tcp_socket(setup)?;
            let theirs = endpoint::hear(&socket, deadline)?;
            device.join(&prepared, &theirs)?;
            setups.push(prepared.connected(socket, &theirs));
        }
        Ok(setups)
    }
}

fn tcp_socket(setup: ChannelSetup) -> Result<Socket, FabricError> {
    match setup.kind {
        SetupKind::Tcp(socket, _) => Ok(socket),
        _ => Err(FabricError::Internal("a tcp offer was taken up over another driver".into())),
    }
}

impl Device for VerbsDevice {
    fn offer(&self, queues: &[CqHandle]) -> Result<(Vec<u8>, Box<dyn PendingOffer>), FabricError> {
        let (tcp_offer, tcp) = self.tcp.offer(queues)?;
        let prepare = |queue: &CqHandle| self.endpoint(handle_of(queue)?);
        let prepared = queues.iter().map(prepare).collect::<Result<Vec<_>, FabricError>>()?;
        let endpoints: Vec<_> = prepared.iter().map(|prepared| prepared.endpoint).collect();
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
        let (theirs, tcp_offer) = decode_offer(offer, index)?;
        let prepared = self.endpoint(handle_of(queue)?)?;
        self.join(&prepared, &theirs)?;
        let socket = tcp_socket(self.tcp.connect(tcp_offer, index, queue, deadline)?)?;
        endpoint::tell(&socket, &prepared.endpoint, deadline)?;
        Ok(prepared.connected(socket, &theirs))
    }
}

impl Transport for VerbsDevice {
    fn driver(&self) -> Driver {
        Driver::Verbs
    }

    fn open_queue(&self, send_depth: usize) -> Result<Box<dyn TransportQueue>, FabricError> {
        Ok(Box::new(self.queue(send_depth)?))
    }

    fn prepare(&self, span: &Span) -> Result<(), FabricError> {
        Self::prepare(self, span)
    }

    fn release_unused(&self) {
        Self::release_unused(self);
    }

    fn kept_objects(&self) -> u64 {
        Self::kept_objects()
    }

    fn registered_bytes(&self) -> u64 {
        Self::registered_bytes(self)
    }
}
