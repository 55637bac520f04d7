//! The verbs driver: reliable connections of a RDMA device (RoCEv2), one queue pair a channel. Writes and reads are the
//! device's own; a notice is a write with immediate, which every channel of a lane receives by one shared receive
//! queue.
//!
//! A channel is set up over a TCP connection (`endpoint`), which stays open: its end tells of a dead peer when nothing
//! is under way that could time out. `device` opens and connects, `registrar` registers memory piece by piece, `queue`
//! polls, `channel` posts, `reach` knows what of the peer's memory may be reached, `watch` hears what the device says of
//! itself, `counters` reads what its port counts; `sys` holds the library and all `unsafe`. Built with the feature `verbs` only, because a program with it does not
//! start without the verbs library; without it, `absent` says so wherever a device is asked for.

mod config;
mod counters;
mod info;
pub mod reach;
pub mod words;

#[cfg(not(feature = "verbs"))]
mod absent;
#[cfg(feature = "verbs")]
mod channel;
#[cfg(feature = "verbs")]
mod cut;
#[cfg(feature = "verbs")]
mod device;
#[cfg(feature = "verbs")]
mod dmabuf;
#[cfg(feature = "verbs")]
mod endpoint;
#[cfg(feature = "verbs")]
mod flags;
#[cfg(feature = "verbs")]
mod forge;
#[cfg(feature = "verbs")]
mod ids;
#[cfg(feature = "verbs")]
mod queue;
#[cfg(feature = "verbs")]
mod registrar;
#[cfg(feature = "verbs")]
mod sys;
#[cfg(feature = "verbs")]
mod watch;

#[cfg(not(feature = "verbs"))]
use absent as driver;
#[cfg(feature = "verbs")]
use device as driver;

#[cfg(not(feature = "verbs"))]
pub use absent::{Dmabuf, VerbsQueue};
pub use config::{HAS_VERBS, VerbsConfig};
pub use counters::PortCounters;
#[cfg(feature = "verbs")]
pub use dmabuf::Dmabuf;
pub use driver::{VERBS_QUEUE_BYTES, VerbsDevice};
pub(crate) use driver::{VerbsHandle, VerbsSetup};
#[cfg(feature = "verbs")]
#[doc(hidden)]
pub use forge::Forged;
pub use info::{DeviceInfo, Gid, PortInfo};
#[cfg(feature = "verbs")]
pub use queue::VerbsQueue;
