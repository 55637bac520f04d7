//! What the engine wants done, in order. Commands carry ids, never senders or pointers.

use crate::error::OpError;
use proto_common::batch::{Block, Landing, Notice, SlotGrant};
use proto_common::ids::Rank;
use proto_common::message::WaitCause;
use std::ops::Range;

/// One thing to do. `op` is the operation, and `server` the server, that it is about.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "what is the same in all is said above")]
pub enum Command {
    /// Write a batch into a slot of the server's inbox.
    Send {
        server: Rank,
        /// The slot.
        slot: SlotGrant,
        /// Which of [`Commands::parts`].
        parts: Range<usize>,
        /// Which of [`Commands::grants`]: our inbox's slots granted again.
        grants: Range<usize>,
        /// Credits we could use beyond those we hold.
        wanted: u16,
        /// Count of batches on the channel.
        sequence: u64,
    },
    /// Write a part's payload into the buffer that the server granted, before anything that is sent after.
    Place {
        server: Rank,
        /// Which of [`Commands::parts`].
        part: usize,
        /// The buffer.
        remote: Landing,
    },
    /// Write a notice without a batch.
    Notice {
        server: Rank,
        /// What it says.
        notice: Notice,
    },
    /// The operation still waits for workers: warn.
    Waits {
        op: u64,
        /// For how long.
        waited_ms: u64,
        /// What they have not done.
        cause: WaitCause,
        /// Those workers.
        on: Vec<Rank>,
    },
    /// The operation failed: tell the caller. Its buffers may still be in use.
    Failed {
        op: u64,
        /// Why.
        error: OpError,
    },
    /// A part's weights are to be read in place; the operation's end follows.
    Shown {
        op: u64,
        /// The server that has them.
        server: Rank,
        /// Bytes before them in the tensor.
        offset: u64,
        /// Where they lie.
        at: Landing,
    },
    /// A pull of a dynamic tensor brought so many bytes on this lane; its end follows.
    Landed {
        op: u64,
        /// Bytes that landed.
        bytes: u64,
        /// Newest version among its parts.
        newest: u64,
    },
    /// A part's weights came in the payload of the results; the operation's end follows.
    Carried {
        op: u64,
        /// Bytes before them in the tensor.
        offset: u64,
        /// Where they begin in the payload.
        from: u64,
        /// Their bytes.
        bytes: u64,
    },
    /// A part has ended with this version; the operation's end follows.
    Version {
        op: u64,
        /// Bytes before the part in the tensor.
        offset: u64,
        /// The chunk's version.
        version: u64,
    },
    /// So many of the operation's parts on this lane came too late for their round, and were dropped; its end follows.
    Late {
        op: u64,
        /// How many.
        chunks: u32,
    },
    /// A call's reply has come; its end follows.
    Replied {
        op: u64,
        /// Where what came with the result begins in the result's payload.
        offset: u64,
        /// Its bytes.
        bytes: u64,
        /// Bytes of the body, where that landed.
        landed: Option<u64>,
    },
    /// A call's reply needs room of so many bytes: it is asked for again, with that.
    Room {
        op: u64,
        /// Bytes of the body.
        bytes: u64,
    },
    /// All of the operation's parts on this lane have ended; its buffers are free as far as this lane goes.
    Done {
        op: u64,
        /// Least version among its parts.
        version: u64,
    },
    /// The server broke the protocol: close its channel.
    Close {
        server: Rank,
        /// What it did.
        reason: String,
    },
}

/// A block to be sent, and whose it is. The regions of its landing and of a reference are filled in by the runtime,
/// which knows the channel; their offsets are the tensor's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartBlock {
    /// The operation.
    pub op: u64,
    /// Bytes before its payload in the operation's source.
    pub offset: u64,
    /// The table entry.
    pub block: Block,
}

impl PartBlock {
    /// Bytes that travel in the batch.
    #[must_use]
    pub fn inline_bytes(&self) -> u64 {
        self.block.data.inline_bytes(self.block.bytes)
    }
}

/// A reused list of commands with what they refer to.
#[derive(Debug, Default)]
pub struct Commands {
    /// In order of execution.
    pub list: Vec<Command>,
    /// Blocks that `Send` refers to.
    pub parts: Vec<PartBlock>,
    /// Grants that `Send` refers to.
    pub grants: Vec<SlotGrant>,
}

impl Commands {
    /// Forgets everything, keeps the memory.
    pub fn clear(&mut self) {
        self.list.clear();
        self.parts.clear();
        self.grants.clear();
    }

    pub(super) fn close(&mut self, server: Rank, reason: &str) {
        self.list.push(Command::Close { server, reason: reason.to_owned() });
    }
}
