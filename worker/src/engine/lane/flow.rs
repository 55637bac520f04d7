//! What is sent, and when: packs parts into batches as credits allow, and returns slots and reports that are due.

use super::LaneEngine;
use crate::engine::command::{Command, Commands, PartBlock};
use proto_common::batch::{Block, BlockData, Landing, Status};
use proto_common::ids::Rank;

/// A batch that refers to this many bytes is sent, so that the server can begin with it while the next one is packed.
const REFERENCED_BYTES_MAX: u64 = 4 << 20;

impl LaneEngine {
    /// Packs parts that can be sent into at most `batches` batches, and returns slots and reports that are due. Called after each burst
    /// of events.
    pub fn flush(&mut self, batches: usize, now_ms: u64, out: &mut Commands) {
        self.now_ms = now_ms;
        while let Some(at) = self.chunks.release(now_ms) {
            self.enqueue(at);
        }
        let mut left = batches;
        for index in 0..self.links.len() {
            let server = Rank(index as u32);
            while left > 0 && self.send_batch(server, out) {
                left -= 1;
            }
            let waits = self.links[index].settle_credits(server, self.config.in_flight_max, out);
            self.stats.credit_waits += u64::from(waits);
        }
    }

    /// Sends one batch to a server, if there is something to send and a credit to send it with.
    fn send_batch(&mut self, server: Rank, out: &mut Commands) -> bool {
        let at = server.0 as usize;
        let Some((mut room, in_flight)) = self.links[at].room(self.config.in_flight_max) else {
            return false;
        };
        let first = out.parts.len();
        let most = self.config.gather_max.saturating_sub(1).min(in_flight);
        self.links[at].take_farewells(&mut room, most, &mut out.parts);
        let mut referenced_bytes = 0;
        while out.parts.len() - first < most && referenced_bytes < REFERENCED_BYTES_MAX {
            let Some(index) = self.links[at].peek() else { break };
            let Some(block) = self.part_block(index).filter(|_| self.is_next(index)) else {
                self.links[at].pop();
                self.enqueue_next(index);
                continue;
            };
            let data = block.block.data;
            if !room.take(data.inline_bytes(block.block.bytes)) {
                break;
            }
            self.links[at].pop();
            out.parts.push(block);
            if data == BlockData::Placed
                && let Some(remote) = self.links[at].buffers.occupy(block.block.id)
            {
                out.list.push(Command::Place { server, part: out.parts.len() - 1, remote });
            }
            if matches!(data, BlockData::ByReference { .. }) {
                referenced_bytes += block.block.bytes;
            }
            self.mark_sent(index, data);
        }
        if out.parts.len() == first {
            return false;
        }
        let is_sent = self.links[at].send(server, first, self.now_ms, out);
        self.stats.batches += u64::from(is_sent);
        is_sent
    }

    fn part_block(&self, index: u32) -> Option<PartBlock> {
        let part = self.parts.get(index)?;
        let op = self.ops.get(part.op)?;
        let submit = &part.submit(&op.submit);
        let spec = part.spec;
        let lands = submit.kind.lands() && !submit.view;
        let landing =
            (lands || op.is_call()).then_some(Landing { region: 0, offset: spec.offset, bytes: spec.bytes });
        let (offset, bytes) = spec.payload();
        let chunk = &self.chunks[part.chunk];
        let link = self.links.get(spec.server.0 as usize);
        let slot = BlockData::Inline { offset: 0 };
        let block = Block {
            id: spec.id,
            op: submit.kind,
            dtype: submit.dtype,
            codec: spec.coded.map_or(0, |coded| coded.codec),
            status: Status::None,
            operation: submit.operation,
            first_open: chunk.first_open().unwrap_or(submit.operation),
            count: submit.count,
            bytes: if submit.payload { bytes } else { 0 },
            data: match link {
                _ if submit.kind.contributes() && !submit.payload => BlockData::Merged,
                Some(link) => link.buffers.way(submit, &spec, self.now_ms),
                None => slot,
            },
            landing,
            view: submit.view,
            exact: submit.exact,
            reading: chunk.shown_by.reading(),
            timeout_ms: op.left_ms(self.now_ms),
            token: self.parts.token(index),
        };
        Some(PartBlock { op: submit.op, offset, block: part.as_sent(block) })
    }

    /// May this part be sent now? Not if an earlier part of the chunk was returned since this one was queued.
    fn is_next(&self, index: u32) -> bool {
        self.parts.get(index).is_some_and(|part| self.chunks[part.chunk].is_next(index))
    }

    fn enqueue_next(&mut self, index: u32) {
        let Some(at) = self.parts.get(index).map(|part| part.chunk) else { return };
        self.chunks[at].dequeue();
        self.enqueue(at);
    }

    fn mark_sent(&mut self, index: u32, data: BlockData) {
        let Some(part) = self.parts.get_mut(index) else { return };
        let (spec, chunk, at) = (part.spec, part.chunk, part.spec.server.0 as usize);
        part.sent(data);
        let asked = matches!(data, BlockData::Announced { .. });
        let carries = !asked && self.ops.get(part.op).is_some_and(|op| part.submit(&op.submit).payload);
        self.stats.parts += 1;
        let sent_bytes = if carries { spec.payload().1 } else { 0 };
        self.stats.sent_bytes += sent_bytes;
        self.traffic[at].sent_bytes += sent_bytes;
        self.stats.plain_bytes += if carries { spec.bytes } else { 0 };
        self.stats.placed += u64::from(data == BlockData::Placed);
        self.stats.referenced += u64::from(matches!(data, BlockData::ByReference { .. }));
        self.links[at].sent();
        self.chunks[chunk].sent(spec.server, asked);
        self.enqueue(chunk);
    }
}
