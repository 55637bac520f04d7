//! Which weights of a chunk are where: the buffer to publish into, the version in force and the one before, and their lengths. It
//! must not know how rounds come about.

use super::{Chunk, Stage, Waiter};
use crate::engine::command::Commands;
use proto_common::batch::{OpKind, Status};

impl Chunk {
    /// The buffers to publish into, best first: the one in force is in the cache, and needs no second one.
    pub(in crate::engine) fn to_publish_into(&self) -> impl Iterator<Item = u8> {
        let in_force = (!self.before.is_kept()).then_some(self.buffer);
        in_force.into_iter().chain([1 - self.buffer])
    }

    /// The initial value is published: the other buffer has no earlier version.
    pub(in crate::engine) fn forget_before(&mut self) {
        self.before.forget();
    }

    /// Bytes of the version before, where it is there.
    pub(in crate::engine) fn before_bytes(&self) -> Option<u64> {
        self.before.bytes().filter(|_| self.before.is_kept())
    }

    /// As an image has it.
    pub(in crate::engine) fn set_before(&mut self, bytes: Option<u64>) {
        self.before.set(bytes);
    }

    /// A round is about to be in force in this buffer or, with none, to end without new weights.
    pub(in crate::engine) fn keep_before(&mut self, weights: Option<u8>) {
        match (weights, self.stage) {
            (Some(into), _) => {
                let bytes = self.live_bytes();
                self.before.set((into != self.buffer).then_some(bytes));
            }
            // What did not fit was written there in part.
            (None, Stage::Verdict { into }) if into != self.buffer => self.before.forget(),
            (None, _) => {}
        }
    }

    /// The buffer that this operation's weights are in, and their bytes; or why there is none.
    pub(in crate::engine) fn weights_for(&self, waiter: &Waiter) -> Result<(u8, u64), Status> {
        let (now, other) = (self.buffer, 1 - self.buffer);
        let has = |buffer: u8| self.versions[usize::from(buffer)].contains(&waiter.version);
        if !waiter.exact || has(now) {
            return Ok((now, self.live_bytes()));
        }
        self.before.bytes().filter(|_| has(other)).map(|bytes| (other, bytes)).ok_or(Status::VersionGone)
    }

    /// The version that an operation is told it was answered with.
    pub(in crate::engine) fn version_for(&self, waiter: &Waiter, status: Status) -> u64 {
        if waiter.op == OpKind::Release {
            // Who comes again goes on after it.
            return self.made_by(waiter.rank).unwrap_or(self.version);
        }
        if waiter.exact && status == Status::Done { waiter.version } else { self.version }
    }

    /// Bytes of the version in force.
    pub(in crate::engine) fn live_bytes(&self) -> u64 {
        self.lengths.live()
    }

    /// Is a contribution as long as the others of its round that are here? Where each is an update of its own there are none.
    pub(in crate::engine) fn agrees(&self, round: u64, bytes: u64) -> bool {
        if self.is_loose() {
            return true;
        }
        let collected = self.lengths.collected().filter(|_| round == self.round());
        // Those that are held agree with one another: one of them speaks for all.
        let mut held = self.held.of_round(round);
        collected.is_none_or(|other| other == bytes) && held.next().is_none_or(|held| held.bytes == bytes)
    }

    /// A contribution of this length is folded.
    pub(in crate::engine) fn collect(&mut self, bytes: u64) {
        self.lengths.collect(bytes);
    }

    /// Bytes of the round being collected.
    pub(in crate::engine) fn round_bytes(&self) -> u64 {
        self.lengths.round()
    }

    /// The round being collected is over; where it is `published`, its length is in force.
    pub(in crate::engine) fn end_length(&mut self, published: bool) {
        self.lengths.end_round(published);
    }

    /// Bytes of the version in force, as an image has them.
    pub(in crate::engine) fn set_live_bytes(&mut self, bytes: u64) {
        self.lengths.set_live(bytes);
    }

    /// What follows is about so many bytes of the chunk. Commands of chunks of one length need no such word.
    pub(in crate::engine) fn size(&mut self, index: u32, bytes: u64, out: &mut Commands) {
        self.lengths.size(index, bytes, out);
    }
}
