//! Batches of workers: which batches are admitted, and which machine gets each of their operations. `rounds` handles payloads of
//! operations, and `answers` their answers.

use super::LaneEngine;
use super::rounds::Taken;
use crate::engine::command::Commands;
use crate::engine::inputs::BatchContext;
use crate::engine::rounds::Number;
use crate::engine::sabotage::BrokenRule;
use crate::engine::waiters::Waiter;
use proto_common::batch::{BatchKind, Block, OpKind, Status};
use proto_common::ids::Rank;
use proto_common::limits::OPERATIONS_PER_WORKER_MAX;

impl LaneEngine {
    /// A batch lies in a slot.
    pub fn batch(&mut self, batch: &BatchContext<'_>, now_ms: u64, out: &mut Commands) {
        if !self.admitted(batch, out) {
            return;
        }
        self.lapse(batch.peer, batch.header.epoch, out);
        for block in batch.blocks {
            if !self.block(batch, block, now_ms, out) {
                return;
            }
        }
    }

    /// A batch lies in a slot, but its payload does not match its checksum: no operation of it is taken.
    pub fn corrupt_batch(&mut self, batch: &BatchContext<'_>, out: &mut Commands) {
        if !self.admitted(batch, out) {
            return;
        }
        self.stats.corrupt_batches += 1;
        for block in batch.blocks {
            // The worker has given this part up, so it has no payload. Header and table are valid.
            if block.status == Status::Corrupt {
                if !self.block(batch, block, 0, out) {
                    return;
                }
                continue;
            }
            if !self.count_operation(batch.peer, out) {
                return;
            }
            self.peers.send_back(batch.peer, block, Status::Corrupt, Vec::new());
        }
    }

    fn admitted(&mut self, batch: &BatchContext<'_>, out: &mut Commands) -> bool {
        let admitted = self.admit(batch);
        match &admitted {
            Ok(()) => self.stats.batches += 1,
            Err(Some(reason)) => out.expel(batch.peer, reason),
            Err(None) => self.stats.duplicates += 1,
        }
        admitted.is_ok()
    }

    /// May the sender send this batch? `Err(None)`: it is an old batch, and is ignored.
    fn admit(&mut self, batch: &BatchContext<'_>) -> Result<(), Option<String>> {
        let (peer, header) = (batch.peer, batch.header);
        let keeps = self.breaks(BrokenRule::CreditReturn);
        let Some(incarnation) = self.peers.incarnation(peer) else { return Err(None) };
        let wrong = |what: &str| Err(Some(format!("its batch carries the wrong {what}")));
        if header.kind != BatchKind::Request {
            return wrong("kind");
        }
        if header.job != self.config.job || header.sender != peer {
            return wrong("job or rank");
        }
        if header.sender_incarnation != incarnation || header.receiver_incarnation != self.config.incarnation
        {
            return wrong("incarnation");
        }
        if header.lane != self.config.lane {
            return wrong("lane");
        }
        // Its epoch is not checked here: a worker may learn of a new scheduler later than this server. The roster has its incarnation.
        let taken = self.peers.take_batch(peer, batch.slot, (batch.grants, header.wanted), keeps);
        taken.or_else(|what| what.map_or(Err(None), wrong))
    }

    /// False if the worker is expelled because of this block: the rest of the batch is ignored.
    fn block(&mut self, batch: &BatchContext<'_>, block: &Block, now_ms: u64, out: &mut Commands) -> bool {
        let peer = batch.peer;
        if !self.count_operation(peer, out) {
            return false;
        }
        if block.op == OpKind::Call {
            let (calls, mut desk) = self.calls_at_desk(out);
            return calls.take(batch, block, now_ms, &mut desk);
        }
        if self.is_farewell(peer, block, out) {
            return true;
        }
        let Some(index) = self.serves(&block.id) else {
            self.misrouted(peer, block, out);
            return true;
        };
        let is_behind = batch.header.epoch < self.chunks[index as usize].alone_since;
        if block.op.contributes() && is_behind && !self.breaks(BrokenRule::EpochCheck) {
            self.misrouted(peer, block, out);
            return true;
        }
        if self.is_torn(index, peer, block) || self.placed_before(index, peer, batch.header.epoch, block, out)
        {
            return true;
        }
        let chunk = &self.chunks[index as usize];
        if let Some(reason) = chunk.key_buffers.misplaced(peer, block, chunk.spec.bytes) {
            out.expel(peer, reason);
            return false;
        }
        let chunk = &mut self.chunks[index as usize];
        let fresh = match chunk.rounds.order.number(peer, block.operation, block.first_open) {
            Number::Early => {
                self.retry(peer, block, Vec::new());
                return true;
            }
            Number::Fresh => true,
            Number::Repeated => {
                self.stats.duplicates += 1;
                false
            }
        };
        chunk.weights.hide(peer, block.reading);
        self.finish_late(index, out);
        self.chunks[index as usize].rounds.renew(block.id.key, &self.roster);
        match self.take(index, batch, block, fresh, out) {
            Ok(Taken::Answered) => return true,
            Ok(Taken::Waits { version }) => {
                self.chunks[index as usize].rounds.order.mark_taken(peer, block.operation);
                self.wait_for(index, Waiter::new(peer, block, version, now_ms), fresh);
                self.go_on_after(index, block.op, out);
            }
            // Not taken: the worker must send it again, in a slot or with a payload.
            Err(status @ (Status::Granted | Status::Unset)) => {
                self.peers.send_back(peer, block, status, Vec::new());
            }
            Err(Status::Retry) => {
                let awaited = self.awaited_first(index, block.op);
                self.retry(peer, block, awaited);
            }
            Err(status) => {
                // Its number is used up, so later operations on the key leave no gap.
                let rounds = &mut self.chunks[index as usize].rounds;
                rounds.order.mark_taken(peer, block.operation);
                rounds.count_refused(peer, block);
                self.refuse(peer, block, status);
                // Other operations may have waited for this one.
                self.go_on_after(index, block.op, out);
            }
        }
        true
    }

    /// An operation was taken, or refused finally. A round may have waited only for the initial value.
    fn go_on_after(&mut self, index: u32, op: OpKind, out: &mut Commands) {
        if op == OpKind::Init {
            self.end_short(index, out);
        }
        self.advance(index, out);
    }

    /// Counts an operation that will be answered. False if the worker has too many operations in flight; its channel is then closed.
    fn count_operation(&mut self, peer: Rank, out: &mut Commands) -> bool {
        let counts = self.peers.count_operation(peer);
        if !counts {
            out.expel(peer, format!("it has more than {OPERATIONS_PER_WORKER_MAX} operations in flight"));
        }
        counts
    }
}
