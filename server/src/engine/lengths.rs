//! How long a chunk is at the moment: always the same, or (of a dynamic tensor) as long as its round. Owns the lengths of the round
//! being collected and of the version in force, and which one storage was told last.

use super::command::{Command, Commands};
use super::spec::ChunkSpec;

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

    /// Of the version in force.
    pub(super) fn live(&self) -> u64 {
        self.live
    }

    /// Of the round being collected, once somebody has contributed to it.
    pub(super) fn collected(&self) -> Option<u64> {
        self.round
    }

    /// A contribution of this length is folded.
    pub(super) fn collect(&mut self, bytes: u64) {
        self.round = Some(bytes);
    }

    /// Of the round being collected.
    pub(super) fn round(&self) -> u64 {
        self.round.unwrap_or(self.live)
    }

    /// The round being collected is over; where it is `published`, its length is in force.
    pub(super) fn end_round(&mut self, published: bool) {
        if published {
            self.live = self.round();
        }
        self.round = None;
    }

    /// An image has the version in force, with so many bytes.
    pub(super) fn set_live(&mut self, bytes: u64) {
        (self.live, self.round) = (bytes, None);
    }

    /// What follows is about so many bytes of the chunk. Commands of chunks of one length need no such word.
    pub(super) fn size(&mut self, chunk: u32, bytes: u64, out: &mut Commands) {
        if self.told != bytes {
            self.told = bytes;
            out.push(Command::Size { chunk, bytes });
        }
    }
}
