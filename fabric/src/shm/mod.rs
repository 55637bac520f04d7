//! The shared-memory driver: peers of one user on one host map each other's regions and copy into them. It
//! owns what both ends share and trusts none of it; it must not know of other drivers.
//!
//! | file | owns |
//! | --- | --- |
//! | `offer` | who may connect, and the exchange of both ends' memory |
//! | `link` | the bytes and descriptors on a channel's socket |
//! | `ring`, `landings`, `doorbell` | the lock-free algorithms, over the primitives of `word`, checked in `models` |
//! | `shared`, `bell` | the same in shared memory, with their system calls |
//! | `regions` | a peer's regions, mapped |
//! | `channel`, `queue` | posting, polling, sleeping, noticing that a peer has exited |
//! | `words` | two bare words, for benchmarks |

mod bell;
mod channel;
mod doorbell;
mod landings;
mod link;
#[cfg(test)]
mod models;
mod offer;
mod queue;
mod regions;
mod ring;
mod shared;
pub(crate) mod word;
mod words;

use crate::device::{ChannelSetup, CqHandle, Device, PendingOffer};
use crate::error::FabricError;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

pub(crate) use bell::{Bell, ShmHandle};
pub(crate) use channel::ShmSetup;
pub(crate) use doorbell::{ON_SOCKETS, ON_WORD};
#[cfg(test)]
pub(crate) use models::Bell as ModelledBell;
#[cfg(feature = "sim")]
pub use offer::again;
pub(crate) use queue::ShmQueue;
pub use words::{SharedWord, SharedWords};

/// Waits until a descriptor is readable, at most so long.
pub fn wait_readable(fd: BorrowedFd<'_>, within: Duration) -> Result<(), FabricError> {
    link::wait_one(fd, Instant::now() + within)
}

/// Shared memory between processes of one user on one host.
#[derive(Clone, Debug, Default)]
pub struct ShmDevice {
    _private: (),
}

impl ShmDevice {
    /// Opens the device; there is nothing to configure.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

impl Device for ShmDevice {
    fn offer(&self, queues: &[CqHandle]) -> Result<(Vec<u8>, Box<dyn PendingOffer>), FabricError> {
        let (bytes, offer) = offer::open(queues)?;
        Ok((bytes, Box::new(offer)))
    }

    fn connect(
        &self,
        offer: &[u8],
        index: u16,
        queue: &CqHandle,
        deadline: Instant,
    ) -> Result<ChannelSetup, FabricError> {
        offer::join(offer, index, queue, deadline)
    }
}
