//! What travels between the engines of the model: headers, tables and lengths. Payload bytes never enter an engine, so
//! none are here; a thousand workers and a hundred servers fit one process because of that.

use proto_common::batch::{BatchHeader, BatchKind, Block, BlockData, Notice, SlotGrant, prefix_bytes_padded};
use proto_common::ids::{Epoch, Incarnation, JobId, Lane, Rank};

/// The one job that is simulated.
pub(super) const JOB: JobId = JobId(1);
/// The one membership.
pub(super) const EPOCH: Epoch = Epoch { term: 1, counter: 1 };

/// A batch in either direction.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) slot: SlotGrant,
    pub(super) header: BatchHeader,
    pub(super) blocks: Vec<Block>,
    pub(super) grants: Vec<SlotGrant>,
    /// Ranks that results name, as they travel.
    pub(super) payload: Vec<u8>,
}

impl Batch {
    /// Puts the payloads that are in the batch one behind the other, as the writer of a batch does.
    pub(super) fn lay_out(&mut self) {
        let mut end = 0;
        for block in &mut self.blocks {
            let inline_bytes = block.data.inline_bytes(block.bytes);
            if let BlockData::Inline { offset } = &mut block.data {
                *offset = end;
                end += inline_bytes;
            }
        }
    }

    /// Its bytes on the wire.
    pub(super) fn bytes(&self) -> u64 {
        prefix_bytes_padded(self.blocks.len(), self.grants.len()) as u64
            + self.blocks.iter().map(|block| block.data.inline_bytes(block.bytes)).sum::<u64>()
    }
}

/// A header as the runtimes write it, of a batch from one process to another.
pub(super) fn header(
    kind: BatchKind,
    sender: Rank,
    (from, to): (Incarnation, Incarnation),
    (wanted, sequence): (u16, u64),
) -> BatchHeader {
    BatchHeader {
        kind,
        lane: Lane(0),
        wanted,
        sender,
        job: JOB,
        epoch: EPOCH,
        sender_incarnation: from,
        receiver_incarnation: to,
        sequence,
        payload_offset: 0,
        payload_bytes: 0,
        payload_checksum: None,
    }
}

/// What a message is.
#[derive(Debug)]
pub(super) enum Payload {
    Batch(Box<Batch>),
    /// Weights, written one-sided: no notice says so.
    Landing,
    Notice(Notice),
}

/// On its way.
#[derive(Debug)]
pub(super) struct Message {
    /// Number of the process.
    pub(super) from: u32,
    /// Number of the process.
    pub(super) to: u32,
    pub(super) bytes: u64,
    pub(super) payload: Payload,
}

/// Messages that one process has sent, by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Sent {
    /// Requests of a worker, results of a server.
    pub(crate) batches: u64,
    /// Weights that a server has written to workers.
    pub(crate) landings: u64,
    /// Notices without a batch: credits asked for and given back.
    pub(crate) notices: u64,
    pub(crate) bytes: u64,
}

impl Sent {
    pub(super) fn count(&mut self, message: &Message) {
        self.bytes += message.bytes;
        match message.payload {
            Payload::Batch(_) => self.batches += 1,
            Payload::Landing => self.landings += 1,
            Payload::Notice(_) => self.notices += 1,
        }
    }

    /// All of them.
    pub(crate) fn messages(&self) -> u64 {
        self.batches + self.landings + self.notices
    }

    pub(crate) fn plus(&self, other: &Self) -> Self {
        Self {
            batches: self.batches + other.batches,
            landings: self.landings + other.landings,
            notices: self.notices + other.notices,
            bytes: self.bytes + other.bytes,
        }
    }

    pub(crate) fn since(&self, before: &Self) -> Self {
        Self {
            batches: self.batches - before.batches,
            landings: self.landings - before.landings,
            notices: self.notices - before.notices,
            bytes: self.bytes - before.bytes,
        }
    }
}
