//! What goes out and when: packing parts into batches as credits allow, asking for credits, returning slots.
//! The other half of the lane's engine; what becomes of operations is in `lane`.

use super::command::{Command, Commands, PartBlock};
use super::lane::LaneEngine;
use super::link::{Link, SlotUse};
use super::part::State;
use super::shown_by::take_farewells;
use proto_common::batch::{BatchRoom, Block, BlockData, Landing, Notice, OpKind, Reading, SlotGrant, Status};
use proto_common::ids::{Operation, Rank};
use proto_common::limits::GRANTS_PER_BATCH_MAX;

/// A batch that refers to so much is sent: what it brings is under way while the next one is made.
const REFERENCED_BYTES_MAX: u64 = 4 << 20;

impl LaneEngine {
    /// A server says that results lie in a slot of our inbox: may it be read? After an old grant it may not,
    /// because the server may be writing the next results there.
    pub fn notified(&mut self, server: Rank, grant: SlotGrant, out: &mut Commands) -> bool {
        let Some(link) = self.links.get(server.0 as usize).filter(|link| link.up) else { return false };
        match link.check(grant) {
            SlotUse::Granted => return true,
            SlotUse::Stale => self.stats.duplicates += 1,
            SlotUse::Unknown => out.close(server, "it used a slot that was never granted"),
        }
        false
    }

    /// Packs what may go into batches, at most `batches` of them, and says what is owed. Called after each
    /// burst of events.
    pub fn flush(&mut self, batches: usize, now_ms: u64, out: &mut Commands) {
        self.now_ms = now_ms;
        while self.retries.first().is_some_and(|(due, _)| *due <= now_ms) {
            let Some((_, id)) = self.retries.pop_first() else { break };
            if let Some(chunk) = self.chunks.get_mut(&id) {
                chunk.held = false;
            }
            self.enqueue(id);
        }
        let mut left = batches;
        for server in 0..self.links.len() {
            while left > 0 && self.send_batch(Rank(server as u32), out) {
                left -= 1;
            }
            self.settle_credits(Rank(server as u32), out);
        }
    }

    /// Sends one batch to a server, if there is something to send and a credit to send it with.
    fn send_batch(&mut self, server: Rank, out: &mut Commands) -> bool {
        let link = &self.links[server.0 as usize];
        let room_in_flight = self.config.in_flight_max.saturating_sub(link.sent_parts);
        if !link.up || link.to_send() == 0 || link.credits.is_empty() || room_in_flight == 0 {
            return false;
        }
        let first = out.parts.len();
        let mut room = BatchRoom::new(link.slot_bytes);
        let most = self.config.gather_max.saturating_sub(1).min(room_in_flight);
        take_farewells(&mut self.links[server.0 as usize], &mut room, most, &mut out.parts);
        let mut referenced_bytes = 0;
        while out.parts.len() - first < most && referenced_bytes < REFERENCED_BYTES_MAX {
            let Some(place) = self.links[server.0 as usize].queue.peek().copied() else { break };
            let Some(block) = self.part_block(place.part).filter(|_| self.is_next(place.part)) else {
                self.links[server.0 as usize].queue.pop();
                self.enqueue_next(place.part);
                continue;
            };
            let data = block.block.data;
            if !room.take(data.inline_bytes(block.block.bytes)) {
                break;
            }
            self.links[server.0 as usize].queue.pop();
            out.parts.push(block);
            if data == BlockData::Placed
                && let Some(remote) = self.occupy(block.block.id, server)
            {
                out.list.push(Command::Place { server, part: block, remote });
            }
            if matches!(data, BlockData::ByReference { .. }) {
                referenced_bytes += block.block.bytes;
            }
            self.mark_sent(place.part, data);
        }
        if out.parts.len() == first {
            return false;
        }
        let first_grant = out.grants.len();
        let link = &mut self.links[server.0 as usize];
        let Some(slot) = link.credits.pop() else { return false };
        let owed = link.owed.len().min(GRANTS_PER_BATCH_MAX);
        out.grants.extend(link.owed.drain(..owed));
        link.sequence += 1;
        link.last_use_ms = self.now_ms;
        let wanted = wanted(link);
        link.asked = wanted;
        self.stats.batches += 1;
        let (parts, grants) = (first..out.parts.len(), first_grant..out.grants.len());
        out.list.push(Command::Send { server, slot, parts, grants, wanted, sequence: link.sequence });
        true
    }

    fn part_block(&self, index: u32) -> Option<PartBlock> {
        let part = self.parts.get(index)?;
        let op = self.ops.get(part.op)?;
        let spec = part.spec;
        let lands = op.submit.kind.lands() && !op.submit.view;
        let is_call = op.submit.kind == OpKind::Call;
        let landing =
            (lands || is_call).then_some(Landing { region: 0, offset: spec.offset, bytes: spec.bytes });
        let (offset, bytes) = spec.payload();
        let chunk = self.chunks.get(&spec.id);
        let first_open = chunk.and_then(|chunk| chunk.open.front()).copied().map(Operation);
        let waited = self.now_ms.saturating_sub(op.since_ms);
        let block = Block {
            id: spec.id,
            op: op.submit.kind,
            dtype: op.submit.dtype,
            codec: spec.coded.map_or(0, |coded| coded.codec),
            status: Status::None,
            operation: op.submit.operation,
            first_open: first_open.unwrap_or(op.submit.operation),
            round: op.submit.round,
            bytes: if op.submit.payload { bytes } else { 0 },
            data: self.way(op, &spec),
            landing,
            view: op.submit.view,
            exact: op.submit.exact,
            reading: chunk.map_or(Reading::default(), |chunk| chunk.reading),
            timeout_ms: op.submit.timeout_ms.saturating_sub(u32::try_from(waited).unwrap_or(u32::MAX)),
            token: self.parts.token(index),
        };
        Some(PartBlock { op: op.submit.op, offset, block: part.as_sent(block) })
    }

    /// Is it its chunk's turn, and this part's? Not if an earlier one came back since it was put in the queue.
    fn is_next(&self, index: u32) -> bool {
        let chunk = self.parts.get(index).and_then(|part| self.chunks.get(&part.spec.id));
        chunk.is_some_and(|chunk| !chunk.held && !chunk.asked && chunk.waiting.front() == Some(&index))
    }

    fn enqueue_next(&mut self, index: u32) {
        let Some(id) = self.parts.get(index).map(|part| part.spec.id) else { return };
        if let Some(chunk) = self.chunks.get_mut(&id) {
            chunk.queued = false;
        }
        self.enqueue(id);
    }

    fn mark_sent(&mut self, index: u32, data: BlockData) {
        let Some(part) = self.parts.get_mut(index) else { return };
        let spec = part.spec;
        part.state = State::Sent(data);
        let asked = matches!(data, BlockData::Announced { .. });
        let carries = !asked && self.ops.get(part.op).is_some_and(|op| op.submit.payload);
        self.stats.parts += 1;
        let sent_bytes = if carries { spec.payload().1 } else { 0 };
        self.stats.sent_bytes += sent_bytes;
        self.traffic[spec.server.0 as usize].sent_bytes += sent_bytes;
        self.stats.plain_bytes += if carries { spec.bytes } else { 0 };
        self.stats.placed += u64::from(data == BlockData::Placed);
        self.stats.referenced += u64::from(matches!(data, BlockData::ByReference { .. }));
        self.links[spec.server.0 as usize].sent_parts += 1;
        if let Some(chunk) = self.chunks.get_mut(&spec.id) {
            chunk.waiting.pop_front();
            chunk.queued = false;
            chunk.asked = asked;
            chunk.sent += 1;
            chunk.sent_to = spec.server;
        }
        self.enqueue(spec.id);
    }

    /// Asks for credits when there are none, and returns read slots when no batch took them along.
    fn settle_credits(&mut self, server: Rank, out: &mut Commands) {
        let link = &mut self.links[server.0 as usize];
        if !link.up {
            return;
        }
        let blocked = link.sent_parts >= self.config.in_flight_max;
        if link.to_send() > 0 && link.credits.is_empty() && !blocked {
            self.stats.credit_waits += 1;
            if link.asked == 0 {
                link.asked = wanted(link);
                let count = u8::try_from(link.asked).unwrap_or(u8::MAX).max(1);
                out.list.push(Command::Notice { server, notice: Notice::Want(count) });
            }
        }
        if 2 * link.owed.len() >= link.inbox.len().max(1) {
            for grant in link.owed.drain(..) {
                out.list.push(Command::Notice { server, notice: Notice::Returned(grant) });
            }
        }
    }
}

/// Credits that the queue could use beyond those in hand: at most a batch for every part. What a worker keeps
/// in reserve is the server's to decide, which knows how many share its slots.
fn wanted(link: &Link) -> u16 {
    u16::try_from(link.to_send().saturating_sub(link.credits.len())).unwrap_or(u16::MAX)
}
