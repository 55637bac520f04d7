//! The links to servers in force, as callers, metrics and status look at them. Kept by who connects; on the way of an
//! operation two flags are all that is asked.

use fabric::lock;
use proto_common::ids::Rank;
use proto_common::transport::{Choice, Driver};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Links {
    /// By rank.
    all: Mutex<Vec<(Rank, Choice)>>,
    are_ready: AtomicBool,
    elsewhere: AtomicBool,
    over_device: AtomicBool,
    failovers: AtomicU64,
    reconnects: AtomicU64,
}

impl Links {
    /// All of them, by rank.
    pub(crate) fn all(&self) -> Vec<(Rank, Choice)> {
        lock(&self.all).clone()
    }

    /// A server is connected, perhaps by another driver than before.
    pub(crate) fn set(&self, server: Rank, choice: Choice) {
        let mut all = lock(&self.all);
        match all.binary_search_by_key(&server, |(rank, _)| *rank) {
            Ok(at) => {
                all[at].1 = choice;
                self.reconnects.fetch_add(1, Ordering::Relaxed);
            }
            Err(at) => all.insert(at, (server, choice)),
        }
        self.flag(&all);
    }

    /// A server's process has failed or left.
    pub(crate) fn remove(&self, server: Rank) {
        let mut all = lock(&self.all);
        all.retain(|(rank, _)| *rank != server);
        self.flag(&all);
    }

    fn flag(&self, all: &[(Rank, Choice)]) {
        let any = |found: fn(Driver) -> bool| all.iter().any(|(_, choice)| found(choice.driver));
        self.elsewhere.store(any(|driver| !driver.shares_memory()), Ordering::Release);
        self.over_device.store(any(Driver::is_device), Ordering::Release);
    }

    /// The first connections are all there.
    pub(crate) fn ready(&self) {
        self.are_ready.store(true, Ordering::Release);
    }

    /// Were the first connections made?
    pub(crate) fn are_ready(&self) -> bool {
        self.are_ready.load(Ordering::Acquire)
    }

    /// Do all servers share memory with this worker?
    pub(crate) fn share_memory(&self) -> bool {
        !self.elsewhere.load(Ordering::Acquire)
    }

    /// Is any over a device that memory is to be registered with?
    pub(crate) fn are_over_device(&self) -> bool {
        self.over_device.load(Ordering::Acquire)
    }

    /// So many servers have died by now whose chunks others took over.
    pub(crate) fn set_failovers(&self, count: u64) {
        self.failovers.store(count, Ordering::Relaxed);
    }

    /// As [`Links::set_failovers`] was told.
    pub(crate) fn failovers(&self) -> u64 {
        self.failovers.load(Ordering::Relaxed)
    }

    /// Connections to living servers that were made again.
    pub(crate) fn reconnects(&self) -> u64 {
        self.reconnects.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(driver: Driver) -> Choice {
        Choice { driver, why: String::new() }
    }

    #[test]
    fn flags_follow_the_links() {
        let links = Links::default();
        assert!(links.share_memory() && !links.are_over_device());
        links.set(Rank(1), choice(Driver::Verbs));
        links.set(Rank(0), choice(Driver::Shm));
        assert!(!links.share_memory() && links.are_over_device());
        assert_eq!(links.all().iter().map(|(rank, _)| rank.0).collect::<Vec<_>>(), [0, 1]);
        links.set(Rank(1), choice(Driver::Tcp));
        assert!(!links.share_memory() && !links.are_over_device());
        assert_eq!(links.reconnects(), 1);
        links.remove(Rank(1));
        assert!(links.share_memory());
    }
}
