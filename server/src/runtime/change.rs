//! Decisions that a lane is still carrying out: chunks that it is to have a part in, and new rules of tensors that copies have not
//! confirmed. It must not carry them out.

use super::error::LaneError;
use crate::engine::{ChunkSpec, Role};
use crate::storage::Made;
use fabric::oneshot;
use proto_common::ids::{ChunkId, Epoch, Key, Rank};
use proto_common::message::NotTaken;
use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

/// How long copies may take to confirm a change. Less than whoever asks lanes waits for them, so that it hears whom this
/// waits for; one that is silent for so long is dead by then, and waited for no more.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(30);

/// Who asked for a change.
pub(super) type Reply = oneshot::Sender<Result<(), NotTaken>>;

/// Chunks that have memory, and no index yet.
pub(super) type AllMade = HashMap<ChunkId, (ChunkSpec, Made)>;

/// A new rule that is made here, and is answered when copies have confirmed it: it is to outlive this server.
#[derive(Debug)]
pub(super) struct Changed {
    pub(super) key: Key,
    /// Chunks that were changed here, and since when this server serves each.
    pub(super) chunks: Vec<(u32, Epoch)>,
    pub(super) made: Instant,
    pub(super) reply: Reply,
}

impl Changed {
    /// What is to be said of it now; nothing yet while servers that lack it may still confirm it.
    pub(super) fn answer(
        &self,
        moved: bool,
        lacking: impl Iterator<Item = Rank>,
        waited: Duration,
    ) -> Option<Result<(), NotTaken>> {
        let key = self.key;
        if moved {
            let what = "it moved to another server during the change of its optimizer; change it again";
            return Some(Err(format!("tensor {key}: {what}").into()));
        }
        let lacking: BTreeSet<u32> = lacking.map(|server| server.0).collect();
        if lacking.is_empty() {
            return Some(Ok(()));
        }
        (waited >= CONFIRMED_WITHIN).then(|| {
            let waited_ms = waited.as_millis();
            Err(format!(
                "tensor {key}: its optimizer was changed here, but servers {lacking:?} with replicas have not confirmed the change for {waited_ms} ms; check these servers, and change it again"
            )
            .into())
        })
    }
}

/// Roles that are being prepared.
#[derive(Debug)]
pub(super) struct Changing {
    pub(super) epoch: Epoch,
    pub(super) chunks: Vec<(ChunkSpec, Role)>,
    /// Those before it were looked at.
    pub(super) next: usize,
    pub(super) made: AllMade,
    /// Copies that could not be made, and why the first of them.
    pub(super) lacking: Vec<ChunkId>,
    pub(super) failed: Option<LaneError>,
    pub(super) reply: Option<Reply>,
}

impl Changing {
    pub(super) fn answer(&mut self, result: Result<(), LaneError>) {
        let result = result.map_err(NotTaken::from);
        // Nobody listens any more where the deadline has passed.
        if let Some(reply) = self.reply.take() {
            reply.send(result);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_that_copies_do_not_confirm_ends_with_their_names() {
        let reply = oneshot::channel().0;
        let change = Changed { key: Key(7), chunks: Vec::new(), made: Instant::now(), reply };
        let lacking = || [Rank(2), Rank(1), Rank(2)].into_iter();
        assert_eq!(change.answer(false, lacking(), CONFIRMED_WITHIN - Duration::from_millis(1)), None);
        let late = change.answer(false, lacking(), CONFIRMED_WITHIN).and_then(Result::err).unwrap().reason;
        assert!(
            late.contains("tensor 7") && late.contains("servers {1, 2}") && late.contains("30000 ms"),
            "{late}"
        );
        assert_eq!(change.answer(false, std::iter::empty(), Duration::ZERO), Some(Ok(())));
        assert!(
            change.answer(true, lacking(), Duration::ZERO).unwrap().unwrap_err().reason.contains("moved")
        );
    }
}
