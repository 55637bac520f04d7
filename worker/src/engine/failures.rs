//! What an operation failed of: a server's answer, or its deadline. Names of tensors are added by the handle.

use super::calls::crowded;
use super::lane::LaneEngine;
use super::part::{Op, Part, Told};
use crate::error::OpError;
use crate::subject::Subject;
use proto_common::batch::{Block, BlockData, OpKind, Status};
use proto_common::ids::{Key, Rank};
use proto_common::limits::RANKS_LISTED_MAX;

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

/// The error of an operation whose deadline has passed without an answer: what servers reported last, or else the servers that
/// have not answered. Those in `down` have no channel.
pub(super) fn late(
    op: &Op,
    told: Option<Told>,
    (key, servers, down): (Key, Vec<Rank>, Vec<Rank>),
    waited_ms: u64,
) -> OpError {
    let subject = Subject::default();
    match told {
        Some(Told::Waits { chunk, .. }) if op.submit.kind == OpKind::Call => crowded(chunk, waited_ms),
        Some(Told::Waits { chunk, missing }) => {
            OpError::Deadline { subject, chunk, round: op.submit.round, waited_ms, missing }
        }
        Some(Told::Elsewhere { chunk, server }) => OpError::Elsewhere { subject, chunk, server, waited_ms },
        None if !down.is_empty() => OpError::Unconnected { subject, key, servers: down, waited_ms },
        None => OpError::NoAnswer { subject, key, servers, waited_ms },
    }
}

/// The ranks that a result lists, as many as are listed at most.
pub(super) fn listed(block: &Block, payload: &[u8]) -> Vec<Rank> {
    let BlockData::Inline { offset } = block.data else { return Vec::new() };
    let end = offset.saturating_add(block.bytes);
    let range = usize::try_from(offset).unwrap_or(usize::MAX)..usize::try_from(end).unwrap_or(usize::MAX);
    let listed = payload.get(range).unwrap_or_default();
    let ranks = listed.chunks_exact(4).map(|b| Rank(u32::from_le_bytes([b[0], b[1], b[2], b[3]])));
    ranks.take(RANKS_LISTED_MAX).collect()
}
