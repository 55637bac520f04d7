//! How long a chunk is at the moment: always the same, or (of a dynamic tensor) as long as its round.

use super::chunk::{Chunk, ChunkSpec};
use super::command::{Command, Commands};

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lengths {
    /// Of the round being collected, once somebody has contributed to it.
    round: Option<u64>,
    /// Of the version in force.
    live: u64,
    /// As storage was told last.
    told: u64,
}

impl Lengths {
    pub(super) fn new(spec: &ChunkSpec) -> Self {
        // A dynamic chunk is empty until its first round.
        let live = if spec.dynamic { 0 } else { spec.bytes };
        Self { round: None, live, told: spec.bytes }
    }
}

impl Chunk {
    /// Bytes of the version in force.
    pub(super) fn live_bytes(&self) -> u64 {
        self.lengths.live
    }

    /// Is a contribution as long as the others of its round that are here? Where each is an update of its own there are none.
    pub(super) fn agrees(&self, round: u64, bytes: u64) -> bool {
        if self.is_loose() {
            return true;
        }
        let collected = self.lengths.round.filter(|_| round == self.round());
        // Those that are held agree with one another: one of them speaks for all.
        let mut held = self.held.of_round(round);
        collected.is_none_or(|other| other == bytes) && held.next().is_none_or(|held| held.bytes == bytes)
    }

    /// A contribution of this length is folded.
    pub(super) fn collect(&mut self, bytes: u64) {
        self.lengths.round = Some(bytes);
    }

    /// Bytes of the round being collected.
    pub(super) fn round_bytes(&self) -> u64 {
        self.lengths.round.unwrap_or(self.lengths.live)
    }

    /// The round being collected is over; where it is `published`, its length is in force.
    pub(super) fn end_length(&mut self, published: bool) {
        if published {
            self.lengths.live = self.round_bytes();
        }
        self.lengths.round = None;
    }

    /// Bytes of the version in force, as an image has them.
    pub(super) fn set_live_bytes(&mut self, bytes: u64) {
        self.lengths.live = bytes;
        self.lengths.round = None;
    }

    /// What follows is about so many bytes of the chunk. Commands of chunks of one length need no such word.
    pub(super) fn size(&mut self, index: u32, bytes: u64, out: &mut Commands) {
        if self.lengths.told != bytes {
            self.lengths.told = bytes;
            out.push(Command::Size { chunk: index, bytes });
        }
    }
}
