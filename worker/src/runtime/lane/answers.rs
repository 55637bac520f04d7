//! Receives results from servers: reads their result batches, and maps the memory in which weights are read as views. The engine decides
//! what follows from an answer.

use super::{LaneDriver, LaneError};
use crate::engine::ResultContext;
use crate::error::OpError;
use fabric::{CompletionQueue, Exclusive, PoolError, PostError, View, Waker};
use proto_common::batch::{Landing, SlotGrant, prefix_bytes};
use proto_common::ids::Rank;
use proto_common::limits::{HEADER_BYTES, RESULT_SLOT_BYTES};

impl<Q: CompletionQueue> LaneDriver<Q> {
    pub(super) fn results(&mut self, server: Rank, slot: SlotGrant, now_ms: u64) -> Result<(), LaneError> {
        if slot.slot >= self.config.result_slots {
            self.lose(server, "its notice names a slot that does not exist");
            return Ok(());
        }
        if !self.engine.notified(server, slot, &mut self.commands) {
            return Ok(());
        }
        let Some(Some(link)) = self.links.get(server.0 as usize) else { return Ok(()) };
        let inbox = &link.results;
        let start = u64::from(slot.slot) * RESULT_SLOT_BYTES;
        inbox.read(start, &mut self.prefix[..HEADER_BYTES])?;
        let header = prefix_bytes(&self.prefix[..HEADER_BYTES]).and_then(|bytes| {
            let copied = inbox.read(start, &mut self.prefix[..bytes]);
            debug_assert!(copied.is_ok(), "a slot holds the largest prefix");
            self.reader.read(&self.prefix[..bytes], RESULT_SLOT_BYTES)
        });
        let header = match header {
            Ok(header) => header,
            Err(error) => {
                self.lose(server, &error.to_string());
                return Ok(());
            }
        };
        // Within the slot: the reader checked it.
        let bytes = header.payload_bytes as usize;
        inbox.read(start + header.payload_offset, &mut self.payload[..bytes])?;
        if self.is_over(server) {
            return Ok(());
        }
        let payload = &self.payload[..bytes];
        let (blocks, grants) = (&self.reader.blocks, &self.reader.grants);
        self.flight.answered(server, blocks);
        let context = ResultContext { server, slot, header: &header, blocks, grants, payload };
        self.engine.results(&context, now_ms, &mut self.commands);
        Ok(())
    }

    /// Has the channel ended before what the batch shows could be mapped? Then the batch counts for nothing, and the
    /// operations wait for the channel's own word on why: the next completions bring it.
    fn is_over(&mut self, server: Rank) -> bool {
        let Self { queue, links, reader, .. } = self;
        let Some(Some(link)) = links.get_mut(server.0 as usize) else { return true };
        let mut shown = reader.blocks.iter().filter(|block| block.view).filter_map(|block| block.landing);
        shown.any(|at| matches!(link.view(queue, at), Err(PostError::Closed)))
    }

    /// Hands an operation the view of a part's weights.
    pub(super) fn shown(&mut self, op: u64, server: Rank, offset: u64, at: Landing) {
        match self.view(server, at) {
            Ok(view) => return self.tell(op, |state| state.shown(offset, view)),
            // Closed for another answer of the same batch.
            Err(PostError::Closed) => {}
            Err(_) => self.lose(server, "it showed weights in memory that it did not hand over"),
        }
        // After the channel's end: it may still read the operation's gradient.
        let reason = self.reason_of_end(server);
        self.failed(op, OpError::Broken { server, reason });
    }

    /// Writes weights that came with a result into the operation's memory.
    pub(super) fn carried(&mut self, op: u64, offset: u64, from: u64, bytes: u64) -> Result<(), LaneError> {
        let Some(target) = self.live.get(&op).and_then(|live| live.target.as_ref()) else { return Ok(()) };
        // Within the payload: the reader checked it.
        let weights =
            self.payload.get(from as usize..from.saturating_add(bytes) as usize).unwrap_or_default();
        Ok(target.receive(offset, weights)?)
    }

    /// Hands a call what came with its result.
    pub(super) fn replied(&mut self, op: u64, offset: u64, bytes: u64, landed: Option<u64>) {
        let range = offset as usize..offset.saturating_add(bytes) as usize;
        // Within the payload: the reader checked it.
        let inline = self.payload.get(range).unwrap_or_default();
        self.tell(op, |state| state.replied(inline, landed));
    }

    /// A reply was announced that has too little room. If the pool is full, it waits for memory to come back, before everybody who
    /// waits to make a request. Otherwise requests could take all that comes back, while the server holds up their line for this
    /// reply.
    pub(super) fn make_room(&mut self, op: u64, bytes: u64) {
        self.tell(op, |state| state.announced(bytes));
        let is_known = self.rooms.waiting.iter().any(|(other, _)| *other == op);
        if !is_known {
            self.rooms.waiting.push_back((op, bytes));
        }
        self.forget_request(op);
        self.make_rooms();
    }

    /// Gives announced replies room, the first ones first, as far as the pool has it.
    pub(super) fn make_rooms(&mut self) {
        while let Some(&(op, bytes)) = self.rooms.waiting.front() {
            // Its caller was told that it failed, or its channel has ended and it goes out again.
            let is_wanted = self.engine.wants_room(op);
            let room = self.pool.as_ref().filter(|_| is_wanted).map(|pool| (pool, pool.allocate(bytes)));
            match room {
                Some((_, Ok(room))) => self.roomy(op, room),
                Some((pool, Err(PoolError::Exhausted { wanted, capacity, .. }))) if wanted <= capacity => {
                    if self.rooms.ahead.is_some() {
                        return;
                    }
                    // What came back before this called nobody: so it is tried once more.
                    let waker = self.rooms.waker.clone();
                    self.rooms.ahead = Some(pool.go_ahead(move || waker.iter().for_each(Waker::wake)));
                    continue;
                }
                None | Some((_, Err(_))) => self.engine.give_up(op, bytes, &mut self.commands),
            }
            self.rooms.waiting.pop_front();
        }
        self.rooms.ahead = None;
    }

    /// The server has read all of a request. A server that was stopped in the middle of reading it over an earlier channel may
    /// still do so. Requests in frames are released, too. Otherwise announced calls whose frames fill the pool would wait for each
    /// other.
    fn forget_request(&mut self, op: u64) {
        let Some(live) = self.live.get_mut(&op).filter(|live| live.fences.is_empty()) else { return };
        live.source = None;
        let state = live.state.clone();
        for piece in state.lent() {
            self.end_grants(op, &piece);
        }
        state.forget_request();
    }

    fn roomy(&mut self, op: u64, room: Exclusive) {
        let Some(live) = self.live.get_mut(&op) else { return };
        let (room, state) = (room.lend(), live.state.clone());
        let bytes = room.len() as u64;
        // A server that had too little room has said so, and writes there no more.
        if let Some(old) = live.target.replace(room.all()) {
            self.end_grants(op, &old);
        }
        state.make_room(room);
        self.engine.has_room(op, bytes);
    }

    fn view(&mut self, server: Rank, at: Landing) -> Result<View, PostError> {
        let Self { queue, links, .. } = self;
        let link = links.get_mut(server.0 as usize).and_then(Option::as_mut);
        link.ok_or(PostError::Closed)?.view(queue, at)
    }

    fn reason_of_end(&self, server: Rank) -> String {
        let broken = self.broken.iter().rev().find(|(rank, ..)| *rank == server);
        broken.map_or_else(|| PostError::Closed.to_string(), |(.., reason)| reason.clone())
    }
}
