//! What a lane writes to servers: batches, whose payloads are gathered from the gradients' own memory; payloads into key buffers; and
//! notices. Writes that a channel cannot accept yet wait here. The engine decides what is sent, and when.

use super::{LaneDriver, LaneError};
use crate::engine::PartBlock;
use crate::runtime::link::{Waiting, lend, payload_sum, post_one};
use fabric::{Access, CompletionQueue, PostError, RemoteKey, RemoteSpan, Span};
use proto_common::batch::{
    BatchHeader, BatchKind, BatchWriter, BlockData, Landing, Notice, OpKind, SlotGrant,
};
use proto_common::ids::Rank;

/// Posts that may wait for a server when another without a batch joins them.
const BACKLOG_MAX: usize = 1 << 16;

impl<Q: CompletionQueue> LaneDriver<Q> {
    /// Encodes a batch and gathers its payload from the gradients' own memory.
    pub(super) fn send(
        &mut self,
        server: Rank,
        slot: SlotGrant,
        parts: &[PartBlock],
        grants: &[SlotGrant],
        wanted: u16,
        sequence: u64,
    ) -> Result<(), LaneError> {
        let mut header = self.header(server, wanted, sequence);
        if self.links.get(server.0 as usize).and_then(Option::as_ref).is_some_and(|link| link.sums) {
            header.payload_checksum = payload_sum(&self.live, &mut self.span_reader, parts)?;
        }
        let Some(Some(link)) = self.links.get_mut(server.0 as usize) else { return Ok(()) };
        let (Some(inbox), Some(block)) = (&link.inbox, self.blocks.take()) else { return Ok(()) };
        self.gather.clear();
        // The prefix, with its length once that is known.
        self.gather.push(self.blocks.span(block, 0)?);
        let mut lent = Ok(());
        let bytes = {
            let Ok(mut writer) = BatchWriter::new(&mut self.prefix, inbox.slot_bytes) else { return Ok(()) };
            for part in parts {
                let mut live = self.live.get_mut(&part.op);
                let block = link.addressed(part, live.as_deref());
                if let Some(live) = &mut live {
                    self.flight.part_sent(&live.about);
                    live.granted |=
                        block.landing.is_some() || matches!(block.data, BlockData::ByReference { .. });
                }
                if let Some(source) = live.as_ref().and_then(|live| live.source.as_ref())
                    && part.inline_bytes() > 0
                {
                    self.gather.push(source.slice(part.offset, part.block.bytes)?);
                }
                lent = lent.and(lend(&mut self.queue, link.channel, &self.landing, (part.op, &block))?);
                if block.op == OpKind::Call {
                    let pieces = live.map_or_else(Vec::new, |live| live.state.lent());
                    let channel = link.channel;
                    lent = pieces.iter().fold(lent, |lent, piece| {
                        lent.and(self.queue.lend(channel, piece, Access::Read, part.op))
                    });
                }
                let fitted = writer.push(block);
                debug_assert!(fitted, "the engine packed with the same room");
            }
            for grant in grants {
                let fitted = writer.grant(*grant);
                debug_assert!(fitted, "the engine packed with the same bound");
            }
            writer.finish(header)
        };
        self.blocks.write(block, 0, &self.prefix[..bytes])?;
        self.gather[0] = self.blocks.span(block, bytes as u64)?;
        // The place in the server's inbox is checked by the driver when it is written.
        let offset = inbox.offset.saturating_add(u64::from(slot.slot).saturating_mul(inbox.slot_bytes));
        let remote = RemoteSpan { key: RemoteKey(inbox.region), offset };
        link.note(lent);
        if link.refused.is_some() {
            // The server would refuse a batch that names memory which it cannot reach, and the reason would be lost. The channel
            // ends with the next turn, for ours.
            self.blocks.give(block);
            return Ok(());
        }
        let gather = std::mem::take(&mut self.gather);
        let immediate = Some(Notice::Batch(slot).to_wire());
        self.gather = self
            .post_to(server, Waiting { id: u64::from(block), gather, remote, immediate, block: Some(block) });
        Ok(())
    }

    /// Writes a payload where the server granted. The batch that says so comes after it, on the same channel; it needs
    /// no completion of its own, because the operation keeps its buffers until it is answered.
    pub(super) fn place(
        &mut self,
        server: Rank,
        part: &PartBlock,
        landing: Landing,
    ) -> Result<(), LaneError> {
        let Some(source) = self.live.get(&part.op).and_then(|live| live.source.as_ref()) else {
            return Ok(());
        };
        let mut gather = std::mem::take(&mut self.gather);
        gather.clear();
        gather.push(source.slice(part.offset, part.block.bytes)?);
        let remote = RemoteSpan { key: RemoteKey(landing.region), offset: landing.offset };
        self.gather = self.post_to(server, Waiting { id: 0, gather, remote, immediate: None, block: None });
        Ok(())
    }

    fn header(&self, server: Rank, wanted: u16, sequence: u64) -> BatchHeader {
        BatchHeader {
            kind: BatchKind::Request,
            lane: self.config.engine.lane,
            wanted,
            sender: self.config.engine.rank,
            job: self.config.engine.job,
            epoch: self.epoch,
            sender_incarnation: self.config.engine.incarnation,
            receiver_incarnation: self.engine.server_incarnation(server),
            sequence,
            payload_offset: 0,
            payload_bytes: 0,
            payload_checksum: None,
        }
    }

    pub(super) fn notice(&mut self, server: Rank, notice: Notice) {
        let Some(Some(link)) = self.links.get_mut(server.0 as usize) else { return };
        let Some(inbox) = &link.inbox else { return };
        let remote = RemoteSpan { key: RemoteKey(inbox.region), offset: inbox.offset };
        let immediate = Some(notice.to_wire());
        let waiting = Waiting { id: 0, gather: Vec::new(), remote, immediate, block: None };
        self.post_to(server, waiting);
    }

    /// Posts, or queues behind what is queued already. Returns the gather list for reuse.
    fn post_to(&mut self, server: Rank, waiting: Waiting) -> Vec<Span> {
        let Some(Some(link)) = self.links.get_mut(server.0 as usize) else { return Vec::new() };
        if !link.backlog.is_empty() {
            if waiting.block.is_none() && link.backlog.len() >= BACKLOG_MAX {
                // The server sends probes, and accepts no answers to them.
                link.refused.get_or_insert(PostError::Full);
            }
            link.backlog.push_back(waiting);
            return Vec::new();
        }
        match post_one(&mut self.queue, link, &waiting) {
            Ok(()) => {
                let mut gather = waiting.gather;
                gather.clear();
                gather
            }
            Err(error) => {
                link.note(Err(error));
                link.backlog.push_back(waiting);
                Vec::new()
            }
        }
    }

    pub(super) fn retry_backlogs(&mut self) {
        for server in 0..self.links.len() {
            let Self { queue, links, .. } = self;
            let Some(link) = &mut links[server] else { continue };
            while let Some(waiting) = link.backlog.pop_front() {
                if let Err(error) = post_one(queue, link, &waiting) {
                    link.note(Err(error));
                    link.backlog.push_front(waiting);
                    break;
                }
            }
            if link.refused.is_some() {
                self.lose(Rank(server as u32), "writing to it failed");
            }
        }
    }
}
