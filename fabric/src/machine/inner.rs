//! What a machine shares with its threads: settings, devices, polling threads, published regions, and peers' connections. It
//! must not know what a peer asks.

use super::choice::Means;
use super::config::MachineConfig;
use super::poller::Poller;
use super::published::{Published, locked};
use crate::device::Device;
use crate::devices::Devices;
use crate::error::FabricError;
use drivers::Driver;
use std::collections::HashMap;
use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Set-up connections at once.
const PEERS_MAX: usize = 1024;

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
        let mut guests = locked(&self.guests);
        if guests.len() >= PEERS_MAX {
            tracing::warn!(most = PEERS_MAX, "too many peers; rejecting one");
            return None;
        }
        let number = self.next_guest.fetch_add(1, Ordering::Relaxed);
        guests.insert(number, noted);
        Some((number, guest))
    }

    pub(super) fn dismiss(&self, number: u64) {
        locked(&self.guests).remove(&number);
    }
}
