//! All drivers of a process, opened together, and the table of how that is done. Lanes and machines have their devices and queues
//! from here. Names of transports, and which of them two peers use, are in the crate `drivers`.

use crate::device::{Device, Transport};
use crate::error::FabricError;
use crate::lane::LaneQueue;
use crate::memory::Span;
use crate::shm::ShmDevice;
use crate::tcp::TcpDevice;
use crate::verbs::{VerbsConfig, VerbsDevice};
use drivers::Driver;
use std::any::Any;
use std::net::IpAddr;
use std::sync::Arc;

/// Opens a transport, where it is wanted.
type Open = fn(&DevicesConfig) -> Result<Arc<dyn Transport>, FabricError>;

/// The table: a transport and how it is opened. A new one has a line here, and is a module of this file. Shared memory and TCP are
/// not in the table: they can be had everywhere, and each lane has a queue of both, which it calls without dynamic dispatch.
const TABLE: &[(Driver, Open)] = &[(Driver::Verbs, open_verbs)];

fn open_verbs(config: &DevicesConfig) -> Result<Arc<dyn Transport>, FabricError> {
    Ok(Arc::new(VerbsDevice::open(&config.verbs, config.bind, config.advertise.clone())?))
}

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
    /// Which transports are wanted. Shared memory and TCP are opened in any case.
    pub wanted: Vec<Driver>,
    /// How the RDMA device is opened, if it is wanted.
    pub verbs: VerbsConfig,
}

/// The drivers of a process.
#[derive(Clone, Debug)]
pub struct Devices {
    /// Shared memory.
    pub shm: ShmDevice,
    /// TCP.
    pub tcp: TcpDevice,
    /// Those of the table that were wanted and could be opened, in its order.
    transports: Vec<Arc<dyn Transport>>,
}

impl Devices {
    /// Opens what is wanted and can be had; also which transports were wanted and cannot be had, and why.
    #[must_use]
    pub fn open(config: &DevicesConfig) -> (Self, Vec<(Driver, FabricError)>) {
        let tcp = TcpDevice::new(config.bind, config.advertise.clone());
        let tcp = tcp.with_unix(config.unix_sockets).with_encryption(config.encrypt);
        let mut devices = Self { shm: ShmDevice::new(), tcp, transports: Vec::new() };
        let mut missing = Vec::new();
        for (driver, open) in TABLE.iter().filter(|(driver, _)| config.wanted.contains(driver)) {
            match open(config) {
                Ok(transport) => devices.transports.push(transport),
                Err(error) => missing.push((*driver, error)),
            }
        }
        (devices, missing)
    }

    /// The queue of a lane, over all of them.
    pub fn lane(&self, send_depth: usize) -> Result<LaneQueue, FabricError> {
        let lane = LaneQueue::new(send_depth)?;
        self.transports.iter().try_fold(lane, |lane, transport| lane.with(&**transport))
    }

    /// A queue over shared memory, TCP and this transport, without the others.
    pub fn lane_over(&self, driver: Driver, send_depth: usize) -> Result<LaneQueue, FabricError> {
        let lane = LaneQueue::new(send_depth)?;
        match self.transport(driver) {
            Some(transport) => lane.with(transport),
            None => Ok(lane),
        }
    }

    /// Closes transports that cannot serve so many lanes; also why they cannot.
    pub fn keep_those_for(&mut self, lanes: u16, send_depth: usize) -> Vec<(Driver, FabricError)> {
        let mut missing = Vec::new();
        self.transports.retain(|transport| {
            // All at once: they share what the device has.
            let tried: Result<Vec<_>, _> = (0..lanes).map(|_| transport.open_queue(send_depth)).collect();
            let serves = tried.is_ok();
            missing.extend(tried.err().map(|error| (transport.driver(), error)));
            serves
        });
        missing
    }

    /// The device of a driver, if it is open.
    #[must_use]
    pub fn device(&self, driver: Driver) -> Option<&dyn Device> {
        match driver {
            Driver::Shm => Some(&self.shm),
            Driver::Tcp => Some(&self.tcp),
            _ => self.transport(driver).map(|transport| transport as &dyn Device),
        }
    }

    fn transport(&self, driver: Driver) -> Option<&dyn Transport> {
        self.transports.iter().find(|transport| transport.driver() == driver).map(|transport| &**transport)
    }

    /// The RDMA device, for what only it has.
    #[must_use]
    pub fn verbs(&self) -> Option<&VerbsDevice> {
        self.transport(Driver::Verbs).and_then(|transport| (transport as &dyn Any).downcast_ref())
    }

    /// Is there a device that memory is registered with?
    #[must_use]
    pub fn register_memory(&self) -> bool {
        self.transports.iter().any(|transport| transport.driver().is_device())
    }

    /// Registers a stretch with the devices that need it.
    pub fn prepare(&self, span: &Span) -> Result<(), FabricError> {
        self.transports.iter().try_for_each(|transport| transport.prepare(span))
    }

    /// Gives back registrations of regions that nobody else owns any more.
    pub fn release_unused(&self) {
        self.transports.iter().for_each(|transport| transport.release_unused());
    }

    /// What devices did not give back since the process began: the memory that they may reach is kept until the process ends, and
    /// the log says why.
    #[must_use]
    pub fn kept_objects(&self) -> u64 {
        self.transports.iter().map(|transport| transport.kept_objects()).sum()
    }

    /// Bytes registered with devices.
    #[must_use]
    pub fn registered_bytes(&self) -> u64 {
        self.transports.iter().map(|transport| transport.registered_bytes()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn each_transport_is_open_or_says_why_not() {
        let config = DevicesConfig {
            bind: Ipv4Addr::LOCALHOST.into(),
            advertise: "127.0.0.1".into(),
            unix_sockets: true,
            encrypt: false,
            wanted: Driver::ALL.to_vec(),
            verbs: VerbsConfig { device: Some("no-such-device".into()), ..VerbsConfig::default() },
        };
        let (devices, missing) = Devices::open(&config);
        for driver in Driver::ALL {
            let is_missing = missing.iter().any(|(missing, _)| *missing == driver);
            assert!(
                devices.device(driver).is_some() != is_missing,
                "{driver} is not in the table of this file"
            );
            assert!(devices.lane_over(driver, 4).is_ok());
        }
        assert!(devices.verbs().is_none() && !devices.register_memory());
        let (_, unwanted) = Devices::open(&DevicesConfig { wanted: Vec::new(), ..config });
        assert!(unwanted.is_empty(), "what nobody wants is not missing");
    }
}
