//! What an operation failed of: a server's answer, or its deadline. Names of tensors are added by the handle.

use super::lane::LaneEngine;
use super::part::{Part, listed};
use crate::error::OpError;
use crate::subject::Subject;
use proto_common::batch::{Block, Status};
use proto_common::ids::Rank;

impl LaneEngine {
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
