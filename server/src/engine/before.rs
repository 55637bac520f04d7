//! The version before the one in force: where workers are waited for, one that comes again is given exactly the weights
//! that its earlier life had. It must not know who asks, or why.

use super::chunk::{Chunk, Stage, Waiter};
use proto_common::batch::{OpKind, Status};

/// What a chunk keeps of the version before.
#[derive(Clone, Copy, Debug)]
pub(super) struct Before {
    /// Is it to be kept? Then nothing is published where weights in force lie.
    kept: bool,
    /// Is the buffer that is not in force the version before it?
    there: bool,
    /// Its bytes.
    bytes: u64,
}

impl Before {
    pub(super) fn new(kept: bool) -> Self {
        Self { kept, there: false, bytes: 0 }
    }
}

impl Chunk {
    /// The buffers to publish into, best first: the one in force is in the cache, and needs no second one.
    pub(super) fn to_publish_into(&self) -> impl Iterator<Item = u8> {
        let in_force = (!self.before.kept).then_some(self.buffer);
        in_force.into_iter().chain([1 - self.buffer])
    }

    /// The initial value is in force: what it took the place of is nobody's weights.
    pub(super) fn forget_before(&mut self) {
        self.before.there = false;
    }

    /// Bytes of the version before, where it is there.
    pub(super) fn before_bytes(&self) -> Option<u64> {
        (self.before.kept && self.before.there).then_some(self.before.bytes)
    }

    /// As an image has it.
    pub(super) fn set_before(&mut self, bytes: Option<u64>) {
        (self.before.there, self.before.bytes) = (bytes.is_some(), bytes.unwrap_or(0));
    }

    /// A round is about to be in force in this buffer or, with none, to end without new weights.
    pub(super) fn keep_before(&mut self, weights: Option<u8>) {
        match (weights, self.stage) {
            (Some(into), _) => {
                (self.before.there, self.before.bytes) = (into != self.buffer, self.live_bytes());
            }
            // What did not fit was written there in part.
            (None, Stage::Verdict { into }) if into != self.buffer => self.before.there = false,
            (None, _) => {}
        }
    }

    /// The buffer that this operation's weights are in, and their bytes; or why there is none.
    pub(super) fn weights_for(&self, waiter: &Waiter) -> Result<(u8, u64), Status> {
        let (now, other) = (self.buffer, 1 - self.buffer);
        let has = |buffer: u8| self.versions[usize::from(buffer)].contains(&waiter.version);
        match () {
            () if !waiter.exact || has(now) => Ok((now, self.live_bytes())),
            () if self.before.there && has(other) => Ok((other, self.before.bytes)),
            () => Err(Status::VersionGone),
        }
    }

    /// The version that an operation is told it was answered with.
    pub(super) fn version_for(&self, waiter: &Waiter, status: Status) -> u64 {
        if waiter.op == OpKind::Release {
            // Who comes again goes on after it.
            return self.made_by(waiter.rank).unwrap_or(self.version);
        }
        if waiter.exact && status == Status::Done { waiter.version } else { self.version }
    }
}
