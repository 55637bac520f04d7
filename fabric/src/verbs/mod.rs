//! The verbs driver: reliable connections of a RDMA device (RoCEv2), one queue pair a channel. Writes and reads are the
//! device's own; a notice is a write with immediate, which every channel of a lane receives by one shared receive
//! queue.
//!
//! A channel is set up over a TCP connection (`endpoint`), which stays open: its end tells of a dead peer when nothing
//! is under way that could time out. `device` opens and connects, `registrar` registers memory piece by piece, `queue`
//! polls, `channel` posts, `reach` knows what of the peer's memory may be reached, `watch` hears what the device says of
//! itself, `counters` reads what its port counts; `sys` holds the library and all `unsafe`. The driver is in every build; the
//! verbs library is loaded when a device is first asked for on a host whose kernel has one.

mod config;
mod counters;
mod info;
pub mod reach;
pub mod words;

mod channel;
mod cut;
mod device;
mod dmabuf;
mod endpoint;
mod ids;
mod queue;
mod registrar;
mod setup;
mod sys;
mod watch;

pub use config::VerbsConfig;
pub use counters::PortCounters;
pub use device::{VERBS_QUEUE_BYTES, VerbsDevice, verbs_library};
pub use dmabuf::Dmabuf;
pub use info::{DeviceInfo, Gid, PortInfo};
#[cfg(feature = "sim")]
#[doc(hidden)]
pub use queue::Forged;
pub use queue::VerbsQueue;
