//! What a machine shares with its threads: settings, devices, polling threads, published regions, and peers' connections. It
//! must not know what a peer asks.

use super::config::MachineConfig;
use super::poller::Poller;
use super::words::Means;
use crate::device::Device;
use crate::devices::Devices;
use crate::error::FabricError;
use crate::lock::lock;
use crate::memory::Region;
use drivers::Driver;
use std::collections::HashMap;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Set-up connections at once.
const PEERS_MAX: usize = 1024;
/// Names of one machine.
const PUBLISHED_MAX: usize = 1 << 16;

#[derive(Debug)]
pub(super) struct Inner {
    /// With the port that the endpoint has got.
    pub(super) config: MachineConfig,
    pub(super) means: Means,
    pub(super) devices: Devices,
    pub(super) pollers: Vec<Poller>,
    pub(super) next_poller: AtomicUsize,
    pub(super) published: Published,
    /// Set-up connections of peers, which end with the machine.
    pub(super) guests: Mutex<HashMap<u64, TcpStream>>,
    pub(super) next_guest: AtomicU64,
    pub(super) is_closing: AtomicBool,
}

impl Inner {
    pub(super) fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Acquire)
    }

    /// Whose turn it is to take a channel.
    pub(super) fn next_poller(&self) -> usize {
        self.next_poller.fetch_add(1, Ordering::Relaxed) % self.pollers.len()
    }

    pub(super) fn device(&self, driver: Driver) -> Result<&dyn Device, FabricError> {
        let device = self.devices.device(driver);
        device.ok_or_else(|| FabricError::Misuse(format!("{driver} is not in use here")))
    }

    /// Records a connection, to be ended with the machine; none if there are too many.
    pub(super) fn enrol(&self, stream: &TcpStream) -> Option<(u64, TcpStream)> {
        let guest = stream.try_clone().ok()?;
        let noted = stream.try_clone().ok()?;
        let mut guests = lock(&self.guests);
        if guests.len() >= PEERS_MAX {
            tracing::warn!(most = PEERS_MAX, "too many peers; rejecting one");
            return None;
        }
        let number = self.next_guest.fetch_add(1, Ordering::Relaxed);
        guests.insert(number, noted);
        Some((number, guest))
    }

    pub(super) fn dismiss(&self, number: u64) {
        lock(&self.guests).remove(&number);
    }
}

/// Regions by the names that peers look them up under.
#[derive(Debug, Default)]
pub(super) struct Published {
    regions: Mutex<HashMap<String, Region>>,
    added: Condvar,
}

impl Published {
    pub(super) fn insert(&self, name: &str, region: &Region) -> Result<(), FabricError> {
        let mut regions = lock(&self.regions);
        match regions.get(name) {
            Some(known) if known.id() == region.id() => return Ok(()),
            Some(_) => {
                return Err(FabricError::Misuse(format!("another region is already published as {name:?}")));
            }
            None if regions.len() == PUBLISHED_MAX => {
                return Err(FabricError::Misuse(format!(
                    "{PUBLISHED_MAX} regions are already published, the maximum"
                )));
            }
            None => drop(regions.insert(name.to_owned(), region.clone())),
        }
        self.added.notify_all();
        Ok(())
    }

    /// The region of that name, once it is there.
    pub(super) fn wait_for(&self, name: &str, within: Duration) -> Option<Region> {
        let regions = lock(&self.regions);
        let waited = self.added.wait_timeout_while(regions, within, |regions| !regions.contains_key(name));
        waited.unwrap_or_else(PoisonError::into_inner).0.get(name).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_found_once_it_is_published_and_stands_for_one_region() {
        let published = Published::default();
        let (one, other) = (Region::allocate(1, "a").unwrap(), Region::allocate(1, "b").unwrap());
        assert!(published.wait_for("x", Duration::from_millis(1)).is_none());
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| published.wait_for("x", Duration::from_secs(30)));
            published.insert("y", &other).unwrap();
            published.insert("x", &one).unwrap();
            assert_eq!(waiting.join().unwrap().map(|region| region.id()), Some(one.id()));
        });
        published.insert("x", &one).unwrap();
        assert!(matches!(published.insert("x", &other), Err(FabricError::Misuse(_))));
    }
}
