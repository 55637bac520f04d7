//! All drivers of a process, opened together.

use crate::device::Device;
use crate::error::FabricError;
use crate::lane::LaneQueue;
use crate::memory::Span;
use crate::shm::ShmDevice;
use crate::tcp::TcpDevice;
use crate::verbs::{VerbsConfig, VerbsDevice};
use std::net::IpAddr;

/// What devices are opened with.
#[derive(Clone, Debug)]
pub struct DevicesConfig {
    /// Where channels are connected to.
    pub bind: IpAddr,
    /// The name or address under which peers reach that.
    pub advertise: String,
    /// May the tcp driver use unix sockets?
    pub unix_sockets: bool,
    /// Is what goes over TCP encrypted?
    pub encrypt: bool,
    /// The RDMA device; `None` where it is not wanted.
    pub verbs: Option<VerbsConfig>,
}

/// The drivers of a process.
#[derive(Clone, Debug)]
pub struct Devices {
    /// Shared memory.
    pub shm: ShmDevice,
    /// TCP.
    pub tcp: TcpDevice,
    /// The RDMA device, where there is one.
    pub verbs: Option<VerbsDevice>,
}

impl Devices {
    /// Opens what is wanted and can be had; also why there is no RDMA device, where one was wanted.
    #[must_use]
    pub fn open(config: &DevicesConfig) -> (Self, Option<FabricError>) {
        let (bind, advertise) = (config.bind, &config.advertise);
        let verbs = config.verbs.as_ref().map(|verbs| VerbsDevice::open(verbs, bind, advertise.clone()));
        let (verbs, error) = match verbs.transpose() {
            Ok(verbs) => (verbs, None),
            Err(error) => (None, Some(error)),
        };
        let tcp = TcpDevice::new(bind, advertise.clone());
        let tcp = tcp.with_unix(config.unix_sockets).with_encryption(config.encrypt);
        (Self { shm: ShmDevice::new(), tcp, verbs }, error)
    }

    /// The queue of a lane, over all of them.
    pub fn lane(&self, send_depth: usize) -> Result<LaneQueue, FabricError> {
        let lane = LaneQueue::new(send_depth)?;
        self.verbs.iter().try_fold(lane, LaneQueue::with_verbs)
    }

    /// The RDMA device as any other.
    #[must_use]
    pub fn verbs(&self) -> Option<&dyn Device> {
        self.verbs.as_ref().map(|device| device as &dyn Device)
    }

    /// Registers a stretch with the RDMA device, where there is one.
    pub fn prepare(&self, span: &Span) -> Result<(), FabricError> {
        self.verbs.iter().try_for_each(|device| device.prepare(span))
    }

    /// Gives back registrations of regions that nobody else owns any more.
    pub fn release_unused(&self) {
        self.verbs.iter().for_each(VerbsDevice::release_unused);
    }

    /// What the RDMA device did not give back since the process began: the memory that it may reach is kept until the
    /// process ends, and the log says why.
    #[must_use]
    pub fn kept_objects(&self) -> u64 {
        self.verbs.as_ref().map_or(0, |_| VerbsDevice::kept_objects())
    }

    /// Bytes registered with the RDMA device.
    #[must_use]
    pub fn registered_bytes(&self) -> u64 {
        self.verbs.as_ref().map_or(0, VerbsDevice::registered_bytes)
    }
}
