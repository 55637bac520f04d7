//! What can go wrong in the fabric, by blame.

use std::io;
use std::time::Instant;
use thiserror::Error;

/// What raises the limit, for people.
const MORE_ADDRESS_SPACE: &str = "raise `ulimit -v` (LimitAS=infinity in a systemd unit, `as` in /etc/security/limits.conf, \
    PropagateResourceLimitsExcept=AS or VSizeFactor in slurm.conf, h_vmem in Grid Engine)";

/// Opening devices, memory, or connecting failed.
#[derive(Debug, Error)]
pub enum FabricError {
    /// The system refused.
    #[error("{what}: {source}")]
    Os {
        /// What was being done, and with what.
        what: String,
        /// The system's word.
        source: io::Error,
    },
    /// The peer broke the protocol.
    #[error("the peer misbehaved: {0}")]
    Peer(String),
    /// The peer did not answer in time.
    #[error("{what}: no answer within {waited_ms} ms")]
    Deadline {
        /// Whom or what was waited for.
        what: String,
        /// How long.
        waited_ms: u64,
    },
    /// The caller asked for something that does not exist.
    #[error("{0}")]
    Misuse(String),
    /// More memory would have to be registered with a device than the settings or the system allow.
    #[error("{what}; {fix}, or set transport.verbs = \"off\" to train over tcp")]
    Unregistered {
        /// What does not fit where.
        what: String,
        /// What makes room for it.
        fix: &'static str,
    },
    /// The process's limit of address space leaves too little.
    #[error(
        "{what} needs {} KiB of address space, but this process is limited to {} KiB and already uses {} KiB; {}, lower cluster.lanes, memory.spill_bytes or memory.pool_bytes, or set transport.shm = \"off\"",
        .bytes.div_ceil(1024), .limit_bytes / 1024, .used_bytes / 1024, MORE_ADDRESS_SPACE
    )]
    AddressSpace {
        /// What was to be mapped.
        what: String,
        /// Its bytes.
        bytes: u64,
        /// Bytes that the process has.
        used_bytes: u64,
        /// Bytes that it may have.
        limit_bytes: u64,
    },
    /// The system, a library or a device has no such thing.
    #[error("{what} is not available here: {why}")]
    Unsupported {
        /// What was asked for.
        what: String,
        /// Who cannot, and what to do instead.
        why: String,
    },
    /// The verbs library is missing or too old.
    #[error("cannot load libibverbs: {why}; {fix}")]
    Library {
        /// The dynamic linker's error, or what the library does not have.
        why: String,
        /// What to install.
        fix: &'static str,
    },
    /// A bug of ours.
    #[error("internal error: {0}")]
    Internal(String),
}

impl FabricError {
    pub(crate) fn os(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::Os { what: what.into(), source: source.into() }
    }

    /// The wait for `what` began at `started` and has reached its deadline.
    pub(crate) fn late(what: impl Into<String>, started: Instant) -> Self {
        Self::Deadline { what: what.into(), waited_ms: started.elapsed().as_millis() as u64 }
    }
}

/// A work request that was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum PostError {
    /// The channel's queue or the peer's notice ring is full: post again after the next completions.
    #[error("the channel's queue is full")]
    Full,
    /// The channel is closed or broken.
    #[error("the channel is closed")]
    Closed,
    /// The region cannot be handed to another process.
    #[error(
        "other processes cannot map this memory, because it was not allocated by the library or has huge pages: grant it over tcp, or use a buffer of a pool with normal pages"
    )]
    NotShareable,
    /// The region is only for reading, and this would write it.
    #[error("this memory is read-only: receive into a buffer of a pool, or into writable memory")]
    ReadOnly,
    /// The peer has not granted this remote key, or the stretch is out of its bounds.
    #[error("remote access refused: unknown key, or out of bounds")]
    RemoteAccess,
    /// Memory of ours cannot be registered with the device.
    #[error("cannot register memory with the device (the log has the reason)")]
    Unregistered,
    /// More gather entries than the driver takes.
    #[error("too many gather entries")]
    TooManySpans,
}
