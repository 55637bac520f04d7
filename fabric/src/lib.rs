//! Moves opaque bytes one-sided between registered regions of processes: the remote machine as a device (Xue et al.,
//! section 3.1 and table 1). One trait family, several drivers.
//!
//! [`machine`] is the paper's interface: devices, regions, channels by endpoint and queue pair, and asynchronous
//! copies, with its own threads. The roles use the layer below it, from their own threads: a [`Device`] connects
//! channels, a [`LaneQueue`] per lane owns them, [`CompletionQueue::post_write`] and [`CompletionQueue::post_read`]
//! start copies, and [`CompletionQueue::poll`] returns completions and notices.
//!
//! This crate knows nothing of batches, keys or roles. Except for the bindings it is the only crate with `unsafe`;
//! each block says why it is sound and why it is needed.

pub mod address_space;
pub mod allocations;
pub mod copy;
mod device;
mod devices;
mod error;
// Only the simulated transport may keep no order within a channel: all drivers that ship declare `Order::Posted`.
#[cfg(feature = "sim")]
mod gate;
mod grants;
mod host;
mod journal;
mod lane;
mod lock;
pub mod machine;
mod mailbox;
pub mod memlock;
mod memory;
pub mod oneshot;
mod random;
pub mod rng;
pub mod seat;
mod shm;
#[cfg(feature = "sim")]
pub mod sim;
pub mod simd;
mod tcp;
mod verbs;
mod work;

pub use device::{
    Caps, ChannelSetup, CompletionQueue, CqHandle, Device, Fence, MappedRegions, Order, PendingOffer,
    Transport, TransportQueue,
};
pub use devices::{Devices, DevicesConfig};
pub use drivers::Driver;
pub use error::{FabricError, PostError};
pub use host::{connect_local, host_identity, is_of_our_user, memory_bytes};
pub use journal::{JournalReader, JournalWriter, RECORD_WORDS, Record, Records, journal};
pub use lane::{LaneQueue, Rest, Sleeper, Waker};
pub use lock::lock;
pub use mailbox::{Letters, Mailbox};
pub use memory::{
    Access, Ahead, Blocks, Borrowed, BufferId, Exclusive, Fenced, Floats, HUGE_PAGE_BYTES, Handles, Number,
    Numbers, OutOfBounds, Pages, PeerWritable, Pool, PoolError, Region, Span, SpanReader, UserBuffer, View,
};
pub use shm::{SharedWord, SharedWords, ShmDevice, wait_readable};
pub use tcp::TcpDevice;
// For tests and fuzz targets only.
#[cfg(feature = "sim")]
#[doc(hidden)]
pub use shm::again as shm_words_again;
#[doc(hidden)]
pub use tcp::{TcpQueue, frame as tcp_frame};
#[cfg(feature = "sim")]
#[doc(hidden)]
pub use tcp::{again as tcp_words_again, preamble_of as tcp_preamble};
#[cfg(feature = "sim")]
#[doc(hidden)]
pub use verbs::Forged;
pub use verbs::{
    DeviceInfo, Dmabuf, Gid, PortCounters, PortInfo, VERBS_QUEUE_BYTES, VerbsConfig, VerbsDevice, VerbsQueue,
    verbs_library,
};
#[doc(hidden)]
pub use verbs::{reach as verbs_reach, words as verbs_words};
pub use work::{ChannelId, Completion, CompletionKind, DisconnectReason, Read, RemoteKey, RemoteSpan, Write};
