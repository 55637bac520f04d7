//! The batch header: its typed form and its 96 wire bytes.

use crate::ids::{Epoch, Incarnation, JobId, Lane, Rank};
use crate::limits::HEADER_BYTES;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, TryFromBytes, Unaligned};

pub(super) const MAGIC: [u8; 4] = *b"GWB1";
/// Version of header, table and notices. Changes with any of their bytes.
pub(super) const BATCH_VERSION: u16 = 4;

/// The direction of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TryFromBytes)]
#[repr(u8)]
pub enum BatchKind {
    /// A worker's operations, to a server.
    Request = 1,
    /// A server's results, to a worker.
    Result = 2,
    /// A record of a stream, to a server with replicas: one block.
    Record = 3,
}

/// The header of every batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchHeader {
    /// Request, result or record.
    pub kind: BatchKind,
    /// The lane of all blocks.
    pub lane: Lane,
    /// Credits that the sender could use in addition to those it holds.
    pub wanted: u16,
    /// The sender's rank in its role.
    pub sender: Rank,
    /// The job.
    pub job: JobId,
    /// The sender's epoch of the membership.
    pub epoch: Epoch,
    /// The sender's incarnation.
    pub sender_incarnation: Incarnation,
    /// The receiver's incarnation as the sender knows it.
    pub receiver_incarnation: Incarnation,
    /// Counts batches on the channel, from 1.
    pub sequence: u64,
    /// Bytes from the batch's start to its payload.
    pub payload_offset: u64,
    /// Bytes of payload.
    pub payload_bytes: u64,
    /// CRC32C of the payload, if the transport uses one.
    pub payload_checksum: Option<u32>,
}

/// The wire form. Field order gives every number its natural alignment.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct RawHeader {
    pub(super) magic: [u8; 4],
    pub(super) version: U16,
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) checksum: U32,
    pub(super) lane: U16,
    pub(super) block_count: U16,
    pub(super) grant_count: U16,
    pub(super) wanted: U16,
    pub(super) sender: U32,
    pub(super) job: U64,
    pub(super) term: U32,
    pub(super) counter: U32,
    pub(super) sender_incarnation: U64,
    pub(super) receiver_incarnation: U64,
    pub(super) sequence: U64,
    pub(super) payload_offset: U64,
    pub(super) payload_bytes: U64,
    pub(super) payload_checksum: U32,
    pub(super) reserved: [u8; 12],
}

const _: () = assert!(size_of::<RawHeader>() == HEADER_BYTES);

/// Flag: `payload_checksum` holds a CRC32C.
pub(super) const FLAG_PAYLOAD_CHECKSUM: u8 = 1;

impl BatchHeader {
    pub(super) fn to_raw(self, block_count: u16, grant_count: u16) -> RawHeader {
        RawHeader {
            magic: MAGIC,
            version: U16::new(BATCH_VERSION),
            kind: self.kind as u8,
            flags: if self.payload_checksum.is_some() { FLAG_PAYLOAD_CHECKSUM } else { 0 },
            checksum: U32::ZERO,
            lane: U16::new(self.lane.0),
            block_count: U16::new(block_count),
            grant_count: U16::new(grant_count),
            wanted: U16::new(self.wanted),
            sender: U32::new(self.sender.0),
            job: U64::new(self.job.0),
            term: U32::new(self.epoch.term),
            counter: U32::new(self.epoch.counter),
            sender_incarnation: U64::new(self.sender_incarnation.0),
            receiver_incarnation: U64::new(self.receiver_incarnation.0),
            sequence: U64::new(self.sequence),
            payload_offset: U64::new(self.payload_offset),
            payload_bytes: U64::new(self.payload_bytes),
            payload_checksum: U32::new(self.payload_checksum.unwrap_or(0)),
            reserved: [0; 12],
        }
    }

    /// The typed form; `None` if kind or flags are unknown.
    pub(super) fn from_raw(raw: &RawHeader) -> Option<Self> {
        let kind = BatchKind::try_read_from_bytes(&[raw.kind]).ok()?;
        if raw.flags & !FLAG_PAYLOAD_CHECKSUM != 0 || raw.reserved != [0; 12] {
            return None;
        }
        let summed = raw.flags & FLAG_PAYLOAD_CHECKSUM != 0;
        Some(Self {
            kind,
            lane: Lane(raw.lane.get()),
            wanted: raw.wanted.get(),
            sender: Rank(raw.sender.get()),
            job: JobId(raw.job.get()),
            epoch: Epoch { term: raw.term.get(), counter: raw.counter.get() },
            sender_incarnation: Incarnation(raw.sender_incarnation.get()),
            receiver_incarnation: Incarnation(raw.receiver_incarnation.get()),
            sequence: raw.sequence.get(),
            payload_offset: raw.payload_offset.get(),
            payload_bytes: raw.payload_bytes.get(),
            payload_checksum: summed.then(|| raw.payload_checksum.get()),
        })
    }
}
