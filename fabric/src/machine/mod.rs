//! The remote machine as a device: the interface of Xue et al., "Fast Distributed Deep Learning over RDMA", section 3.1
//! and table 1, over every driver.
//!
//! | paper | here |
//! | --- | --- |
//! | `CreateRdmaDevice(num_cqs, num_qps_per_peer, endpoint)` | [`Machine::open`] with a [`MachineConfig`] |
//! | `RdmaDevice::AllocateMemRegion(size_in_bytes)` | [`Machine::allocate_region`] |
//! | `RdmaDevice::GetChannel(endpoint, qp_idx)` | [`Machine::channel`] |
//! | `RdmaChannel::Memcpy(local, remote, size, direction, callback)` | [`Channel::copy`], or [`Channel::start_copy`] to wait |
//! | addresses of memory, told by a vanilla RPC (section 3.2) | [`Machine::publish`], [`Machine::lookup`] |
//!
//! As in the paper, a machine has several completion queues with one polling thread each (`poller`), and the queue
//! pairs of its peers are spread over them round-robin. A polling thread spins briefly, then sleeps. The driver is the
//! first of the table of the crate `drivers` that both machines have, or the requested one; [`Machine::choice`] returns it
//! with the reason.
//!
//! The connecting side owns the channel; if both sides ask for one, each has its own. On set-up connections (`words`,
//! `reception`, `peer`) the connecting side first sends the secret of the machine ([`MachineConfig::secret`]). Without
//! it, no question is answered, no region is looked up and no channel is opened. Only a machine on a loopback address
//! may have no secret; then every process on its host may look up what it has published, and write to it. Callbacks
//! run on polling threads and must not block. Every wait has a deadline. A copy that is late closes its channel,
//! because nothing else could guarantee that its bytes do not move any more.
//!
//! The parameter server's own data path does not use this interface: it posts from the thread that polls, with
//! notices.
//!
//! ```
//! # use fabric::machine::{Direction, Machine, MachineConfig};
//! # use std::time::Duration;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let soon = Duration::from_secs(10);
//! let (server, worker) = (
//!     Machine::open(&MachineConfig::new("127.0.0.1:0".parse()?, 1, 1))?,
//!     Machine::open(&MachineConfig::new("127.0.0.1:0".parse()?, 2, 4))?,
//! );
//! let weights = server.allocate_region(4096)?;
//! server.publish("weights", &weights)?;
//!
//! let remote = worker.lookup(server.endpoint(), "weights", soon)?;
//! let ours = worker.allocate_region(4096)?;
//! ours.write(0, b"gradient")?;
//! let channel = worker.channel(server.endpoint(), 0, soon)?;
//! channel.start_copy(&ours.span(0, 8)?, &remote, 64, Direction::LocalToRemote)?.wait()?;
//! channel.start_copy(&ours.span(8, 8)?, &remote, 64, Direction::RemoteToLocal)?.wait()?;
//! let mut back = [0; 8];
//! ours.read(8, &mut back)?;
//! assert_eq!(&back, b"gradient");
//! # Ok(())
//! # }
//! ```

mod channel;
mod config;
mod copy;
mod inner;
mod peer;
mod poller;
mod reception;
mod words;

pub use channel::Channel;
pub use config::{MachineConfig, Secret};
pub use copy::{CopyError, Copying, Direction, RemoteRegion};
pub use drivers::{Choice, Driver};

use crate::devices::Devices;
use crate::error::FabricError;
use crate::host::host_identity;
use crate::lock::lock;
use crate::memory::{PeerWritable, Region};
use config::WITHIN_MAX;
use copy::check_name;
use inner::{Inner, Published};
use peer::Peer;
use poller::Poller;
use std::collections::HashMap;
use std::net::{Shutdown, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use words::Means;

/// The interval between repeated lookups, so that they do not keep others from the peer.
const LOOKUP_SLICE: Duration = Duration::from_millis(200);

/// See the module. Dropping it closes it: its channels end, and copies in flight fail.
#[derive(Debug)]
pub struct Machine {
    inner: Arc<Inner>,
    /// By endpoint. Each has its own lock, because setting up takes time.
    peers: Mutex<HashMap<SocketAddr, Arc<Mutex<Peer>>>>,
    listener: TcpListener,
    reception: Option<JoinHandle<()>>,
}

impl Machine {
    /// Opens a machine: its devices, its completion queues with their threads, and its endpoint.
    pub fn open(config: &MachineConfig) -> Result<Self, FabricError> {
        config.check()?;
        let (devices, missing) = open_devices(config)?;
        let host = host_identity().map_err(|e| FabricError::os("reading this host's identity", e))?;
        let uid = rustix::process::geteuid().as_raw();
        let means = Means { host, uid, required: config.driver, missing };
        let listener = TcpListener::bind(config.endpoint).map_err(|e| {
            FabricError::os(format!("listening on {} (is it a free port of this host?)", config.endpoint), e)
        })?;
        let endpoint =
            listener.local_addr().map_err(|e| FabricError::os("reading the port of a listener", e))?;
        let poller = |index| Poller::start(index, devices.lane(config.send_depth)?, config.spin);
        let pollers = (0..usize::from(config.num_cqs)).map(poller).collect::<Result<_, _>>()?;
        let inner = Arc::new(Inner {
            config: MachineConfig { endpoint, ..config.clone() },
            means,
            devices,
            pollers,
            next_poller: AtomicUsize::new(0),
            published: Published::default(),
            guests: Mutex::default(),
            next_guest: AtomicU64::new(0),
            is_closing: AtomicBool::new(false),
        });
        let (shared, ours) = (Arc::clone(&inner), listener.try_clone());
        let ours = ours.map_err(|e| FabricError::os("duplicating a listener", e))?;
        let reception = std::thread::Builder::new()
            .name("gradwire-endpoint".into())
            .spawn(move || reception::serve(&shared, &ours))
            .map_err(|e| FabricError::os("starting a machine's thread", e))?;
        Ok(Self { inner, peers: Mutex::default(), listener, reception: Some(reception) })
    }

    /// The address for peers.
    #[must_use]
    pub fn endpoint(&self) -> SocketAddr {
        self.inner.config.endpoint
    }

    /// Allocates memory for copies. It is registered with the RDMA device, if there is one.
    pub fn allocate_region(&self, bytes: usize) -> Result<PeerWritable, FabricError> {
        if bytes == 0 {
            return Err(FabricError::Misuse("a region needs at least one byte".into()));
        }
        let region = PeerWritable::allocate(bytes, "gradwire-machine")?;
        self.inner.devices.prepare(&region.all())?;
        Ok(region)
    }

    /// Publishes a region under this name: every peer may look it up, and copy from and to it, as long as the machine
    /// exists.
    pub fn publish(&self, name: &str, region: &Region) -> Result<(), FabricError> {
        check_name(name)?;
        self.inner.published.insert(name, region)
    }

    /// Looks up a peer's region by its name, and waits until it is published.
    pub fn lookup(
        &self,
        endpoint: SocketAddr,
        name: &str,
        within: Duration,
    ) -> Result<RemoteRegion, FabricError> {
        check_name(name)?;
        let (started, within) = (Instant::now(), within.min(WITHIN_MAX));
        loop {
            let left = within.saturating_sub(started.elapsed());
            let deadline = Instant::now() + left.max(self.inner.config.step.min(within));
            let found = self.with_peer(endpoint, |peer, inner| {
                peer.look_up(inner, name, left.min(LOOKUP_SLICE), deadline)
            })?;
            match found {
                Some(region) => return Ok(region),
                None if left.is_zero() => {
                    return Err(FabricError::late(
                        format!("machine {endpoint} to publish {name:?}"),
                        started,
                    ));
                }
                None => {}
            }
        }
    }

    /// The channel to a peer with this queue pair number. It is connected at first use, and again after it has ended.
    pub fn channel(
        &self,
        endpoint: SocketAddr,
        qp_index: u16,
        within: Duration,
    ) -> Result<Channel, FabricError> {
        let most = self.inner.config.num_qps_per_peer;
        if qp_index >= most {
            return Err(FabricError::Misuse(format!(
                "invalid queue pair {qp_index}: this machine has {most} per peer"
            )));
        }
        let deadline = Instant::now() + within.min(WITHIN_MAX);
        let (at, attached) =
            self.with_peer(endpoint, |peer, inner| peer.channel(inner, qp_index, deadline))?;
        let orders = self.inner.pollers[at].orders.clone();
        Ok(Channel::new(endpoint, orders, attached, self.inner.config.copy_within))
    }

    /// The driver to a peer, and the reason.
    pub fn choice(&self, endpoint: SocketAddr, within: Duration) -> Result<Choice, FabricError> {
        let deadline = Instant::now() + within.min(WITHIN_MAX);
        self.with_peer(endpoint, |peer, inner| peer.choice(inner, deadline))
    }

    fn with_peer<T>(
        &self,
        endpoint: SocketAddr,
        work: impl FnOnce(&mut Peer, &Inner) -> Result<T, FabricError>,
    ) -> Result<T, FabricError> {
        let peer = {
            let mut peers = lock(&self.peers);
            Arc::clone(peers.entry(endpoint).or_insert_with(|| Arc::new(Mutex::new(Peer::new(endpoint)))))
        };
        work(&mut lock(&peer), &self.inner)
    }
}

/// The devices, and why others are not open. One that is required and missing is an error.
fn open_devices(config: &MachineConfig) -> Result<(Devices, Vec<(Driver, String)>), FabricError> {
    let (devices, failed) = Devices::open(&config.devices());
    let closed = Driver::ALL.into_iter().filter(|driver| devices.device(*driver).is_none());
    let why = |driver: Driver| {
        let error = failed.iter().find(|(failed, _)| *failed == driver);
        (driver, error.map_or_else(|| "not requested".to_owned(), |(_, error)| error.to_string()))
    };
    let missing: Vec<_> = closed.map(why).collect();
    if let Some((driver, why)) = missing.iter().find(|(driver, _)| config.driver == Some(*driver)) {
        return Err(FabricError::Misuse(format!("{driver} is required but not available: {why}")));
    }
    Ok((devices, missing))
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.inner.is_closing.store(true, Ordering::Release);
        // Ends an accept that waits.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        if let Some(reception) = self.reception.take() {
            let _ = reception.join();
        }
        for guest in lock(&self.inner.guests).values() {
            let _ = guest.shutdown(Shutdown::Both);
        }
        self.inner.pollers.iter().for_each(Poller::stop);
        lock(&self.peers).clear();
    }
}
