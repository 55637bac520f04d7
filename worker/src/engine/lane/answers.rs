//! Result batches: which are accepted, and what each answer does to its part. The handle adds names of tensors to errors.

use super::{LaneEngine, ResultContext};
use crate::engine::command::{Command, Commands};
use crate::engine::op::{Op, Told};
use crate::engine::part::{Part, PartSpec, State};
use crate::engine::placement::KeyBuffer;
use crate::engine::shown_by::Farewell;
use crate::error::OpError;
use crate::subject::Subject;
use proto_common::batch::{BatchKind, Block, BlockData, OpKind, SlotGrant, Status};
use proto_common::ids::Rank;
use proto_common::limits::RANKS_LISTED_MAX;

impl LaneEngine {
    /// A server notifies that results lie in a slot of our inbox. May the slot be read?
    pub fn notified(&mut self, server: Rank, grant: SlotGrant, out: &mut Commands) -> bool {
        let Some(link) = self.link(server).filter(|link| link.is_up()) else { return false };
        let checked = link.check(grant);
        self.is_new(server, checked, out)
    }

    /// A result batch has arrived.
    pub fn results(&mut self, context: &ResultContext<'_>, now_ms: u64, out: &mut Commands) {
        self.now_ms = now_ms;
        let (server, header, config) = (context.server, context.header, self.config);
        let Some(link) = self.link(server).filter(|link| link.is_up()) else { return };
        let mine = header.kind == BatchKind::Result
            && header.job == config.job
            && header.lane == config.lane
            && header.sender == server
            && header.sender_incarnation == link.incarnation()
            && header.receiver_incarnation == config.incarnation;
        if !mine {
            return out.close(server, "its result batch is for someone else");
        }
        let received = link.received(context.slot, context.grants, now_ms);
        if self.is_new(server, received, out) {
            for block in context.blocks {
                self.answered(server, block, context.payload, out);
            }
        }
    }

    /// Counts results that are duplicates or late, and closes the channel of a server that did something wrong.
    fn is_new(&mut self, server: Rank, found: Result<bool, &'static str>, out: &mut Commands) -> bool {
        self.stats.duplicates += u64::from(found == Ok(false));
        found.unwrap_or_else(|reason| {
            out.close(server, reason);
            false
        })
    }

    fn answered(&mut self, server: Rank, block: &Block, payload: &[u8], out: &mut Commands) {
        if Farewell::is_answered_by(block) {
            if let Some(chunk) = self.chunks.find(block.id) {
                chunk.shown_by.answered(server, block.status);
            }
            return;
        }
        let index = self.parts.by_token(block.token);
        let part = index.and_then(|index| Some((index, *self.parts.get(index)?)));
        let asked = |part: &Part| part.spec.id == block.id && part.spec.server == server;
        let part = part.filter(|(_, part)| asked(part));
        let Some((index, part, State::Sent(data))) = part.map(|(index, part)| (index, part, part.state))
        else {
            self.stats.duplicates += 1;
            return;
        };
        self.settle_buffer(&part, data, block.status);
        match block.status {
            Status::Granted => match self.granted(&part, data, block) {
                Ok(()) => {
                    self.requeue(index, part);
                    self.enqueue(part.chunk);
                }
                Err(reason) => out.close(server, reason),
            },
            Status::Retry | Status::CallRoom => {
                self.stats.retries += 1;
                self.put_back(index, part);
                self.note_awaited(index, part.op, block, payload);
            }
            Status::Reroute => self.rerouted(index, part),
            Status::Unset if self.ops.get(part.op).is_some_and(Op::sets) => {
                self.requeue(index, part);
                self.parts.get_mut(index).into_iter().for_each(Part::bring_initial);
                self.enqueue(part.chunk);
            }
            Status::Corrupt => self.changed_on_the_way(index, part, server, out),
            _ if block.op == OpKind::Call || self.ops.get(part.op).is_some_and(Op::is_call) => {
                self.call_answered(server, (index, part), block, out);
            }
            late if self.asks_again((index, part), late, listed(block, payload), out) => {}
            _ => self.ended(server, (index, part), block, payload, out),
        }
    }

    /// A part of a tensor's operation has ended.
    fn ended(
        &mut self,
        server: Rank,
        (index, part): (u32, Part),
        block: &Block,
        payload: &[u8],
        out: &mut Commands,
    ) {
        let failure = self.failure(server, &part, block, payload);
        if failure.is_none()
            && !(self.shown(server, &part, block, out) && self.carried(server, &part, block, out))
        {
            return;
        }
        if let Some(op) = self.ops.get_mut(part.op) {
            if block.status == Status::Late {
                op.was_late();
            }
            if let Some(landing) = block.landing.filter(|_| !block.view) {
                op.landed(landing.bytes.min(part.spec.bytes), block.count.round());
            }
        }
        self.end_part(index, part.spec, block.count.round(), failure, out);
    }

    /// A part is answered. An announced part no longer delays its chunk, and a key buffer may be written again if the server does not
    /// need its content any more.
    fn settle_buffer(&mut self, part: &Part, data: BlockData, status: Status) {
        let (id, server) = (part.spec.id, part.spec.server);
        match data {
            BlockData::Inline { .. } | BlockData::ByReference { .. } => {}
            BlockData::Announced { .. } => {
                self.chunks[part.chunk].announced(status == Status::Granted);
            }
            BlockData::Merged => {}
            BlockData::Placed => {
                if let Some(link) = self.link(server) {
                    link.buffers.settle(id, status);
                }
            }
        }
    }

    /// The server answers an announcement, or reports that it has no room for a payload that it was to read. The error names what the
    /// server did wrong.
    fn granted(&mut self, part: &Part, data: BlockData, block: &Block) -> Result<(), &'static str> {
        let (id, server) = (part.spec.id, part.spec.server);
        let buffer = KeyBuffer::answered(part.spec.bytes, data, block.landing, self.now_ms)?;
        let stays = self.chunks[part.chunk].accepts_grant(server);
        if let Some(link) = self.link(server).filter(|_| stays) {
            link.buffers.granted(id, buffer);
        }
        Ok(())
    }

    /// Passes on the address of weights that are read as a view. False if the answer has no address although a view was requested, or has
    /// one although none was: the channel is then closed.
    fn shown(&mut self, server: Rank, part: &Part, block: &Block, out: &mut Commands) -> bool {
        let Some(submit) = self.ops.get(part.op).map(|op| &op.submit) else { return true };
        if !block.view && !submit.view {
            return true;
        }
        let at = block.landing.filter(|at| block.view && submit.view && at.bytes == part.spec.bytes);
        let Some(at) = at else {
            out.close(server, "its answer does not say where the weights lie that it was asked for");
            return false;
        };
        self.chunks[part.chunk].shown_by.note(server, submit.operation, block.count.round());
        out.list.push(Command::Shown { op: submit.op, server, offset: part.spec.offset, at });
        true
    }

    /// Passes on weights that came with the answer. False if they are not the part's: the channel is then closed.
    fn carried(&mut self, server: Rank, part: &Part, block: &Block, out: &mut Commands) -> bool {
        let Some(submit) = self.ops.get(part.op).map(|op| &op.submit).filter(|_| block.bytes > 0) else {
            return true;
        };
        let (PartSpec { offset, bytes, .. }, op) = (part.spec, submit.op);
        match block.data {
            BlockData::Inline { offset: from }
                if submit.kind.lands() && !submit.view && block.bytes == bytes =>
            {
                out.list.push(Command::Carried { op, offset, from, bytes });
                true
            }
            _ => {
                out.close(server, "its answer carries weights of another size, or that nobody asked for");
                false
            }
        }
    }

    /// Stores the ranks that the server waits for before it can take a part. The error of an operation at its deadline names them.
    fn note_awaited(&mut self, index: u32, op: u32, block: &Block, payload: &[u8]) {
        let missing = listed(block, payload);
        let says_why = !missing.is_empty() || block.status == Status::CallRoom;
        if let Some(part) = self.parts.get_mut(index) {
            part.told_ms = says_why.then_some(self.now_ms);
        }
        if let Some(op) = self.ops.get_mut(op).filter(|_| says_why) {
            op.tell(Told::Waits { chunk: block.id, missing });
        }
    }

    /// The payload of a part changed on the way, and the part is sent again. After too many attempts it is sent without its payload, so
    /// that the server knows that its number is used up, and takes later parts of the chunk.
    fn changed_on_the_way(&mut self, index: u32, part: Part, server: Rank, out: &mut Commands) {
        self.stats.retries += 1;
        self.put_back(index, part);
        let Some(part) = self.parts.get_mut(index) else { return };
        part.has_changed();
        let (chunk, status) = (part.spec.id, Status::Corrupt);
        if part.is_given_up()
            && let Some(op) = self.ops.get_mut(part.op)
        {
            let error = OpError::Refused { subject: Subject::default(), chunk, server, status };
            op.fail(error, &mut self.stats, out);
        }
    }

    /// A server could not take a part. It waits in its old place, before the later parts of the chunk: if these were sent first, the server
    /// would only return them. The part does not count as in flight meanwhile. Otherwise enough such parts would reach the limit, and no
    /// part could be sent.
    pub(super) fn put_back(&mut self, index: u32, part: Part) {
        self.requeue(index, part);
        if !self.chunks.hold(part.chunk, part.spec.server, self.now_ms) {
            self.enqueue(part.chunk);
        }
    }

    /// A part that was sent is queued again, in its old place.
    pub(super) fn requeue(&mut self, index: u32, part: Part) {
        if let Some(link) = self.link(part.spec.server) {
            link.answered();
        }
        let Self { chunks, parts, .. } = self;
        let chunk = &mut chunks[part.chunk];
        if let Some(part) = parts.get_mut(index) {
            (part.state, part.is_announced) = (State::Queued, false);
            part.spec.server = chunk.server(part.spec.server);
        }
        let order = |index| parts.get(index).map_or(0, |part| part.order);
        chunk.take_back(index, |other| order(other) < part.order);
    }

    /// The error of a server's answer, if its status is an error.
    fn failure(&self, server: Rank, part: &Part, block: &Block, payload: &[u8]) -> Option<OpError> {
        let (subject, chunk, version) = (Subject::default(), block.id, block.count.round());
        let of = self.ops.get(part.op);
        let error = match block.status {
            Status::Done | Status::Late => return None,
            Status::BadValue => {
                let (round, dtype) = (of.map_or(version, |op| op.submit.count.round()), block.dtype);
                OpError::BadValue { subject, chunk, round, dtype }
            }
            Status::VersionGone => {
                let wanted = of.map_or(version, |op| op.submit.count.round());
                OpError::VersionGone { subject, chunk, wanted, version }
            }
            Status::Torn => OpError::Torn { subject, chunk, server, version },
            status => {
                let (waited_ms, made) =
                    of.map_or((0, 0), |op| (op.waited_ms(self.now_ms), op.submit.count.round()));
                let round = version.saturating_add(1);
                let ranks = listed(block, payload);
                match status {
                    Status::DeadlineWaiting => {
                        OpError::Deadline { subject, chunk, round, waited_ms, missing: ranks }
                    }
                    Status::DeadlineReading => {
                        OpError::StillRead { subject, chunk, round, waited_ms, readers: ranks }
                    }
                    Status::DeadlineCopies => {
                        OpError::Uncopied { subject, chunk, round, waited_ms, servers: ranks }
                    }
                    Status::DeadlineSaving => OpError::Unsaved { subject, chunk, round, waited_ms },
                    Status::DeadlineBehind => {
                        OpError::Behind { subject, chunk, made, waited_ms, behind: ranks }
                    }
                    status => OpError::Refused { subject, chunk, server, status },
                }
            }
        };
        Some(error)
    }

    /// A part has ended, with success or failure.
    pub(super) fn end_part(
        &mut self,
        index: u32,
        spec: PartSpec,
        version: u64,
        failure: Option<OpError>,
        out: &mut Commands,
    ) {
        let Some(part) = self.parts.remove(index) else { return };
        if let Some(link) = self.link(spec.server) {
            link.answered();
        }
        let operation = self.ops.get(part.op).map(|op| op.submit.operation);
        self.chunks[part.chunk].ended(operation);
        self.enqueue(part.chunk);
        let Some(op) = self.ops.get_mut(part.op) else { return };
        let (is_last, id) = (op.end_part(version), op.submit.op);
        if op.submit.by_chunk {
            out.list.push(Command::Version { op: id, offset: spec.offset, version });
        }
        if op.submit.kind.lands() && failure.is_none() {
            let view = op.submit.view;
            self.stats.arrived(view, spec.bytes);
            if let Some(from) = self.traffic.get_mut(spec.server.0 as usize).filter(|_| !view) {
                from.landed_bytes += spec.bytes;
            }
        }
        if let Some(error) = failure {
            op.fail(error, &mut self.stats, out);
        }
        if is_last && let Some(mut op) = self.ops.remove(part.op) {
            op.end(self.now_ms, &mut self.stats, out);
        }
    }
}

/// The ranks that a result lists, up to the maximum. The payload of a success is weights.
fn listed(block: &Block, payload: &[u8]) -> Vec<Rank> {
    if matches!(block.status, Status::Done | Status::Late) {
        return Vec::new();
    }
    let BlockData::Inline { offset } = block.data else { return Vec::new() };
    let end = offset.saturating_add(block.bytes);
    let range = usize::try_from(offset).unwrap_or(usize::MAX)..usize::try_from(end).unwrap_or(usize::MAX);
    let listed = payload.get(range).unwrap_or_default();
    let ranks = listed.chunks_exact(4).map(|b| Rank(u32::from_le_bytes([b[0], b[1], b[2], b[3]])));
    ranks.take(RANKS_LISTED_MAX).collect()
}
