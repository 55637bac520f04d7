//! Parts that are not done: which are sent again, because their payload changed on the way or a server could not take them yet; and
//! what an operation failed of. Names of tensors are added by the handle.

use super::LaneEngine;
use super::answers::listed;
use crate::engine::command::Commands;
use crate::engine::part::{Part, State};
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
        part.has_changed();
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
        if !self.chunks.hold(part.spec.id, part.spec.server, self.now_ms) {
            self.enqueue(part.spec.id);
        }
    }

    /// A part that was sent waits again, in its place.
    pub(super) fn requeue(&mut self, index: u32, part: Part) {
        if let Some(link) = self.link(part.spec.server) {
            link.answered();
        }
        let Self { chunks, parts, .. } = self;
        let chunk = chunks.of.entry(part.spec.id).or_default();
        if let Some(part) = parts.get_mut(index) {
            part.state = State::Queued;
            part.spec.server = chunk.server(part.spec.server);
        }
        let order = |index| parts.get(index).map_or(0, |part| part.order);
        chunk.take_back(index, |other| order(other) < part.order);
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
                let (waited_ms, made) = of.map_or((0, 0), |op| (op.waited_ms(self.now_ms), op.submit.round));
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
}
