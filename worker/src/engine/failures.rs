//! Parts that are not done: which are sent again, because their payload changed on the way or a server could not take them yet; and
//! what an operation failed of. Names of tensors are added by the handle.

use super::command::Commands;
use super::lane::{LaneEngine, RETRY_DOUBLINGS_MAX, RETRY_MS};
use super::part::{CORRUPT_RETRIES_MAX, Part, State, listed};
use crate::error::OpError;
use crate::subject::Subject;
use proto_common::batch::{Block, Status};
use proto_common::ids::Rank;

impl LaneEngine {
    /// A part is sent again, and once too often without its payload: then the server knows that its number is used up,
    /// and takes what follows it on the chunk.
    pub(super) fn changed_on_the_way(&mut self, index: u32, part: Part, server: Rank, out: &mut Commands) {
        self.stats.retries += 1;
        self.put_back(index, part);
        let Some(part) = self.parts.get_mut(index) else { return };
        (part.corrupt, part.told_ms) = ((part.corrupt + 1).min(CORRUPT_RETRIES_MAX + 1), None);
        let (chunk, status) = (part.spec.id, Status::Corrupt);
        if part.is_given_up()
            && let Some(op) = self.ops.get_mut(part.op)
        {
            let error = OpError::Refused { subject: Subject::default(), chunk, server, status };
            op.fail(error, &mut self.stats, out);
        }
    }

    /// A server could not take a part. It waits in its place, with what follows it on the chunk: to send them
    /// in another order would only make them come back again. It is not in flight any more, or enough of
    /// them would keep each other from going out.
    pub(super) fn put_back(&mut self, index: u32, part: Part) {
        self.requeue(index, part);
        let Self { chunks, retries, .. } = self;
        let chunk = chunks.entry(part.spec.id).or_default();
        if chunk.server(part.spec.server) != part.spec.server {
            // Who could not take it is not asked again.
            self.enqueue(part.spec.id);
        } else if !chunk.held {
            chunk.held = true;
            let wait_ms = RETRY_MS << chunk.tries.min(RETRY_DOUBLINGS_MAX);
            chunk.tries = chunk.tries.saturating_add(1);
            retries.insert((self.now_ms + wait_ms, part.spec.id));
        }
    }

    /// A part that was sent waits again, in its place.
    pub(super) fn requeue(&mut self, index: u32, part: Part) {
        if let Some(link) = self.links.get_mut(part.spec.server.0 as usize) {
            link.sent_parts = link.sent_parts.saturating_sub(1);
        }
        let Self { chunks, parts, .. } = self;
        let chunk = chunks.entry(part.spec.id).or_default();
        if let Some(part) = parts.get_mut(index) {
            part.state = State::Queued;
            part.spec.server = chunk.server(part.spec.server);
        }
        let order = |index: &u32| parts.get(*index).map_or(0, |part| part.order);
        let at = chunk.waiting.partition_point(|other| order(other) < part.order);
        chunk.waiting.insert(at, index);
        chunk.sent = chunk.sent.saturating_sub(1);
    }

    /// The error that a server's answer means, if it means one.
    pub(super) fn failure(
        &self,
        server: Rank,
        part: &Part,
        block: &Block,
        payload: &[u8],
    ) -> Option<OpError> {
        let (subject, chunk, version) = (Subject::default(), block.id, block.round);
        let of = self.ops.get(part.op);
        let error = match block.status {
            Status::Done | Status::Late => return None,
            Status::BadValue => {
                let (round, dtype) = (of.map_or(version, |op| op.submit.round), block.dtype);
                OpError::BadValue { subject, chunk, round, dtype }
            }
            Status::VersionGone => {
                let wanted = of.map_or(version, |op| op.submit.round);
                OpError::VersionGone { subject, chunk, wanted, version }
            }
            Status::Torn => OpError::Torn { subject, chunk, server, version },
            status => {
                let (since, made) = of.map_or((self.now_ms, 0), |op| (op.since_ms, op.submit.round));
                let (waited_ms, round) = (self.now_ms.saturating_sub(since), version.saturating_add(1));
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
}
