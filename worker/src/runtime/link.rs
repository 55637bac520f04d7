//! One server's channel on one lane: what is posted, what waits to be posted, and where its parts say their bytes are.

use super::live::Live;
use crate::engine::PartBlock;
use fabric::{
    Access, ChannelId, CompletionQueue, MappedRegions, OutOfBounds, PeerWritable, PostError, Region,
    RemoteKey, RemoteSpan, Span, SpanReader, View, Write,
};
use proto_common::batch::{Block, BlockData, Landing, OpKind, SlotGrant, payload_checksum};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;

/// A server's inbox on this lane, from its bootstrap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerInbox {
    /// Remote key of its region.
    pub region: u64,
    /// Bytes from the region's start to slot 0.
    pub offset: u64,
    /// Bytes of a slot.
    pub slot_bytes: u64,
    /// First credits.
    pub grants: Vec<SlotGrant>,
}

/// A write that the channel did not take yet.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) id: u64,
    pub(super) gather: Vec<Span>,
    pub(super) remote: RemoteSpan,
    pub(super) immediate: Option<u32>,
    pub(super) block: Option<u32>,
}

#[derive(Debug)]
pub(super) struct Link {
    pub(super) channel: ChannelId,
    /// Of the connection that it is a part of.
    pub(super) number: u64,
    /// Remote key of the region of the client's buffers.
    pub(super) landing_key: u64,
    pub(super) inbox: Option<ServerInbox>,
    /// Slots that the server writes results into; nobody else ever does.
    pub(super) results: PeerWritable,
    /// The server's regions that weights are read in, mapped here, by key. Bounded by what a channel hands over.
    pub(super) mapped: MappedRegions,
    pub(super) probed: bool,
    /// Requests carry a checksum of their payload.
    pub(super) sums: bool,
    pub(super) posted: VecDeque<u32>,
    pub(super) backlog: VecDeque<Waiting>,
    /// The channel refused something for good: it has to end, or what it is for would wait to its deadline.
    pub(super) refused: Option<PostError>,
}

impl Link {
    pub(super) fn new(channel: ChannelId, number: u64, landing_key: u64, results: PeerWritable) -> Self {
        Self {
            channel,
            number,
            landing_key,
            inbox: None,
            results,
            mapped: MappedRegions::default(),
            probed: false,
            sums: false,
            posted: VecDeque::new(),
            backlog: VecDeque::new(),
            refused: None,
        }
    }

    /// A stretch of the server's memory, to be read in place. `RemoteAccess`: it gave no such stretch.
    pub(super) fn view<Q: CompletionQueue>(&mut self, queue: &mut Q, at: Landing) -> Result<View, PostError> {
        let remote = RemoteSpan { key: RemoteKey(at.region), offset: at.offset };
        self.mapped.view(queue, self.channel, remote, at.bytes)
    }

    /// What came of a call to the channel. A closed one reports itself with the next completions; full ones are tried
    /// again.
    pub(super) fn note(&mut self, result: Result<(), PostError>) {
        if let Err(error) = result
            && !matches!(error, PostError::Full | PostError::Closed)
        {
            self.refused.get_or_insert(error);
        }
    }

    /// The block as the server needs it: region key and offset of the operation's own buffers.
    pub(super) fn addressed(&self, part: &PartBlock, live: Option<&Live>) -> Block {
        let source = live.and_then(|live| live.source.as_ref());
        let data = match (part.block.data, source) {
            (BlockData::ByReference { offset, .. }, Some(source)) => {
                BlockData::ByReference { region: self.landing_key, offset: source.offset() + offset }
            }
            (data, _) => data,
        };
        Block { data, landing: self.landing(part, live), ..part.block }
    }

    fn landing(&self, part: &PartBlock, live: Option<&Live>) -> Option<Landing> {
        let landing = part.block.landing?;
        let Some(target) = live?.target.as_ref() else {
            // The region is also where pieces of a request lie.
            let none = Landing { region: self.landing_key, offset: 0, bytes: 0 };
            return (part.block.op == OpKind::Call).then_some(none);
        };
        Some(Landing {
            region: self.landing_key,
            offset: target.offset() + landing.offset,
            bytes: landing.bytes,
        })
    }
}

/// What a block grants of our buffers can be reached by its server from here on; or why not.
pub(super) fn lend<Q: CompletionQueue>(
    queue: &mut Q,
    channel: ChannelId,
    buffers: &Region,
    (op, block): (u64, &Block),
) -> Result<Result<(), PostError>, OutOfBounds> {
    let landing = block.landing.map(|landing| (landing.offset, landing.bytes, Access::ReadWrite));
    let source = match block.data {
        BlockData::ByReference { offset, .. } => Some((offset, block.bytes, Access::Read)),
        _ => None,
    };
    for (offset, bytes, access) in landing.into_iter().chain(source) {
        if let Err(error) = queue.lend(channel, &buffers.span(offset, bytes)?, access, op) {
            return Ok(Err(error));
        }
    }
    Ok(Ok(()))
}

pub(super) fn post_one<Q: CompletionQueue>(
    queue: &mut Q,
    link: &mut Link,
    waiting: &Waiting,
) -> Result<(), PostError> {
    let write = Write {
        id: waiting.id,
        gather: &waiting.gather,
        remote: waiting.remote,
        immediate: waiting.immediate,
        signaled: waiting.block.is_some(),
    };
    queue.post_write(link.channel, &write)?;
    link.posted.extend(waiting.block);
    Ok(())
}

/// The checksum of what these parts carry, none where they carry nothing.
pub(super) fn payload_sum(
    live: &FxHashMap<u64, Live>,
    reader: &mut SpanReader,
    parts: &[PartBlock],
) -> Result<Option<u32>, OutOfBounds> {
    let mut sum = None;
    for part in parts.iter().filter(|part| part.inline_bytes() > 0) {
        let Some(source) = live.get(&part.op).and_then(|live| live.source.as_ref()) else { continue };
        let span = source.slice(part.offset, part.block.bytes)?;
        reader.read(&span, |piece| sum = Some(payload_checksum(sum.unwrap_or(0), piece)))?;
    }
    Ok(sum)
}
