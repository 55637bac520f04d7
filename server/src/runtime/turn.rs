//! One turn of a lane. Its first half, `take`, polls the completion queue, gives the engine what has arrived, and executes its
//! commands. Its second half, `send`, packs and posts answers and records. It has no clock and no thread of its own, so that the
//! simulation runs the same code.

use super::calls::CallEvent;
use super::error::LaneError;
use super::lane::DataLane;
use super::link::{Fetch, Posted};
use super::slots::read_prefix;
use crate::engine::BatchContext;
use daemon::flight::Kind;
use fabric::{
    ChannelId, Completion, CompletionKind, CompletionQueue, DisconnectReason, PostError, RemoteKey,
    RemoteSpan,
};
use proto_common::batch::{BlockData, Notice, SlotGrant};
use proto_common::ids::Rank;

/// Milliseconds between ticks of the engine.
const TICK_MS: u64 = 50;

impl<Q: CompletionQueue> DataLane<Q> {
    /// The next event for handlers, in order.
    pub(super) fn next_call_event(&mut self) -> Option<CallEvent> {
        self.calls.next_event()
    }

    /// One turn: everything that has happened is decided and executed. True when something had happened.
    pub fn step(&mut self, now_ms: u64) -> Result<bool, LaneError> {
        let busy = self.take(now_ms)?;
        self.send()?;
        Ok(busy)
    }

    /// The first half of a turn: handles everything that has arrived.
    pub(super) fn take(&mut self, now_ms: u64) -> Result<bool, LaneError> {
        self.check()?;
        let mut completions = std::mem::take(&mut self.completions);
        self.queue.poll(&mut completions);
        self.settle_fences();
        let busy = !completions.is_empty() || self.queue.moved();
        for completion in completions.drain(..) {
            self.handle(completion, now_ms)?;
            self.execute();
            self.check()?;
        }
        self.completions = completions;
        if self.has_unreleased() {
            self.answer_released(now_ms);
            self.execute();
        }
        if self.calls.ahead.is_new() {
            self.read_ahead()?;
            self.execute();
        }
        if now_ms >= self.next_tick_ms {
            self.next_tick_ms = now_ms + TICK_MS;
            self.engine.tick(now_ms, &mut self.commands);
            self.execute();
        }
        // A complete round waits for workers to copy older weights out of the buffer that it needs.
        if self.engine.is_stuck() {
            self.engine.relieve(now_ms, &mut self.commands);
            self.execute();
        }
        let changed = self.change_roles();
        let copied = self.save()?;
        self.check()?;
        Ok(busy || changed || copied)
    }

    /// The second half of a turn: sends answers and records.
    pub(super) fn send(&mut self) -> Result<(), LaneError> {
        self.retry_backlogs()?;
        self.retry_servers()?;
        loop {
            self.engine.flush(self.blocks.free(), &mut self.commands);
            // Before the results are sent: they may grant a block that is free again to the same worker.
            self.take_key_buffers()?;
            self.execute();
            self.check()?;
            // Executing may have ended a round.
            if !self.engine.has_to_tell() || self.blocks.free() == 0 {
                break;
            }
        }
        self.end_reads();
        self.queue.flush();
        Ok(())
    }

    fn handle(&mut self, completion: Completion, now_ms: u64) -> Result<(), LaneError> {
        if self.handle_server(&completion)? {
            return Ok(());
        }
        let Some(rank) = self.ranks.get(&completion.channel).copied() else { return Ok(()) };
        match completion.kind {
            CompletionKind::Received { immediate } => match Notice::from_wire(immediate) {
                Some(Notice::Batch(slot)) => self.batch((rank, completion.channel), slot, now_ms)?,
                Some(notice) => {
                    if let Notice::GivenBack(slot) = notice
                        && self.engine.is_granted(rank, slot)
                    {
                        self.take_slot(completion.channel, slot)?;
                    }
                    self.engine.notice(rank, notice, &mut self.commands);
                }
                None => self.expel(rank, "its notice has an unknown form"),
            },
            CompletionKind::WriteDone { id } => {
                let posted = Posted::from_id(id);
                if let Some(link) = self.links[rank.0 as usize].as_mut() {
                    link.completed(posted);
                }
                self.completed(rank, posted);
                if matches!(posted, Posted::Reply(_)) {
                    self.call_written(rank)?;
                }
            }
            CompletionKind::ReadDone { .. } => {
                let link = self.links[rank.0 as usize].as_mut();
                match link.and_then(|link| link.fetches.pop_front()) {
                    Some(Fetch::Chunk { chunk, block }) => {
                        self.engine.fetched(rank, chunk, block, &mut self.commands);
                    }
                    Some(Fetch::Call { call, bytes }) => self.call_read(rank, call, bytes)?,
                    None => {}
                }
            }
            CompletionKind::Disconnected(DisconnectReason::PeerMisbehaved(what)) => self.expel(rank, &what),
            CompletionKind::Disconnected(reason) => {
                tracing::info!(worker = rank.0, ?reason, "data channel of a worker ended");
                self.flight.peer(Kind::ChannelDown, rank);
                self.detach(rank);
            }
        }
        Ok(())
    }

    /// Copies the prefix out of the slot, checks it, and lets the engine decide.
    fn batch(
        &mut self,
        (rank, channel): (Rank, ChannelId),
        slot: SlotGrant,
        now_ms: u64,
    ) -> Result<(), LaneError> {
        if slot.slot >= self.config.engine.inbox_slots {
            self.expel(rank, "its notice names a slot that does not exist");
            return Ok(());
        }
        if !self.engine.notified(rank, slot, &mut self.commands) {
            return Ok(());
        }
        self.take_slot(channel, slot)?;
        match read_prefix(&self.inbox, slot.slot, &mut self.prefix, &mut self.reader)? {
            Ok(header) => {
                match self.reach(rank) {
                    Ok(()) => {}
                    // The worker may have changed that memory since. The whole batch is dropped; the end of the channel follows.
                    Err(PostError::Closed) => return Ok(()),
                    Err(_) => {
                        self.expel(rank, "its batch refers to memory that it did not hand over");
                        return Ok(());
                    }
                }
                let place = (slot.slot, header.payload_offset);
                let index_of = |id| self.engine.index_of(id);
                self.storage.check_coded(place, index_of, &mut self.reader.blocks)?;
                self.flight.batch(rank, &self.reader.blocks);
                let (blocks, grants) = (&self.reader.blocks, &self.reader.grants);
                let context = BatchContext { peer: rank, slot, header: &header, blocks, grants };
                // The worker may ask for checksums (`transport.payload_checksum`). They are checked before anything is reduced.
                let sound = match header.payload_checksum {
                    Some(stated) => {
                        let (offset, bytes) = (header.payload_offset, header.payload_bytes);
                        self.storage.checksum(slot.slot, offset, bytes)? == stated
                    }
                    None => true,
                };
                if sound {
                    self.engine.batch(&context, now_ms, &mut self.commands);
                } else {
                    tracing::debug!(worker = rank.0, "the payload of a batch was corrupted in transit");
                    self.engine.corrupt_batch(&context, &mut self.commands);
                }
            }
            Err(error) => self.expel(rank, &error.to_string()),
        }
        Ok(())
    }

    /// Maps the worker's memory that the batch refers to, if this channel reads in place (shared memory). Other channels fetch it.
    fn reach(&mut self, rank: Rank) -> Result<(), PostError> {
        let Self { queue, links, reader, .. } = self;
        let link = links.get_mut(rank.0 as usize).and_then(Option::as_mut).ok_or(PostError::Closed)?;
        if !link.in_place {
            return Ok(());
        }
        reader.blocks.iter().try_for_each(|block| match block.data {
            BlockData::ByReference { region, offset } => {
                if !link.reads {
                    // If the worker has closed the channel, it may use that memory for something else already.
                    queue.begin_reads(link.channel)?;
                    link.reads = true;
                }
                let remote = RemoteSpan { key: RemoteKey(region), offset };
                link.mapped.view(queue, link.channel, remote, block.bytes).map(drop)
            }
            BlockData::Inline { .. }
            | BlockData::Announced { .. }
            | BlockData::Placed
            | BlockData::Merged => Ok(()),
        })
    }
}
