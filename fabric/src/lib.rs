//! Moves opaque bytes one-sided between registered regions of processes: the remote machine as a device
//! (Xue et al., section 3.1 and table 1). One trait family, several drivers.
//!
//! | paper | here |
//! | --- | --- |
//! | `CreateRdmaDevice(num_cqs, num_qps_per_peer, endpoint)` | a [`Device`], a [`LaneQueue`] per lane, one channel per lane and peer |
//! | `AllocateMemRegion` | [`Region::allocate`], [`Pool`] |
//! | `GetChannel(endpoint, qp_idx)` | [`Device::connect`] with the peer's offer and the channel's index |
//! | `Memcpy(local, remote, size, direction, callback)` | [`CompletionQueue::post_write`], [`CompletionQueue::post_read`], completions by [`CompletionQueue::poll`] |
//!
//! This crate knows nothing of batches, keys or roles. It is the only crate with `unsafe` (bindings apart);
//! each block says why it is sound and why it is needed.

pub mod copy;
mod device;
mod devices;
mod error;
mod host;
mod lane;
pub mod machine;
mod mailbox;
pub mod memlock;
mod memory;
mod random;
mod rest;
mod shm;
pub mod sim;
pub mod simd;
mod tcp;
mod verbs;
mod work;

pub use device::{Caps, ChannelSetup, CompletionQueue, CqHandle, Device, PendingOffer};
pub use devices::{Devices, DevicesConfig};
pub use error::{FabricError, PostError};
pub use host::host_identity;
pub use lane::{LaneQueue, Waker};
pub use mailbox::Mailbox;
pub use memory::{Blocks, Buffer, F32s, OutOfBounds, Pool, PoolError, Region, Span};
pub use rest::{Rest, Sleeper};
pub use shm::{ShmDevice, View};
pub use tcp::TcpDevice;
// For the driver's own tests and fuzz target only.
#[doc(hidden)]
pub use tcp::{TcpQueue, frame as tcp_frame};
pub use verbs::{
    DeviceInfo, Gid, HAS_VERBS, PortInfo, VERBS_QUEUE_BYTES, VerbsConfig, VerbsDevice, VerbsQueue,
};
pub use work::{ChannelId, Completion, CompletionKind, DisconnectReason, Read, RemoteKey, RemoteSpan, Write};
