//! A chunk as images have it: when it is exactly a version, whether a checkpoint is to copy it, and what an image says of it. It
//! must not know how images travel or are stored.

use super::{Chunk, Saving, Stage};
use crate::engine::image::ChunkState;

impl Chunk {
    /// Is it to be copied before anything is published?
    pub(in crate::engine) fn is_due(&self) -> bool {
        self.saving == Saving::Due
    }

    pub(in crate::engine) fn takes_no_part(&self) -> bool {
        self.stage == Stage::Contributions
            && self.contributed.len() == 0
            && self.held.of_round(self.round()).next().is_none()
    }

    /// A copy is wanted of this version; of the one in force where that is later, or there are no rounds.
    pub(in crate::engine) fn want_copy(&mut self, round: u64, now: bool) {
        let is_there = self.version >= round || now || self.is_loose();
        self.saving = match (is_there, self.is_whole()) {
            (true, true) => Saving::Due,
            // In the middle of a round's end: then the version that it makes.
            (true, false) => Saving::Awaits(self.version + 1),
            (false, _) => Saving::Awaits(round),
        };
    }

    /// Are what its rule keeps, and its weights, those of the published version? Not between the two halves of a rule that
    /// needs norms.
    pub(in crate::engine) fn is_whole(&self) -> bool {
        // While it is to be copied it is not prepared.
        let halfway =
            self.group.is_some() && matches!(self.stage, Stage::Norms | Stage::Buffer) && !self.is_due();
        !halfway && !self.is_judged() && !self.initialising()
    }

    pub(in crate::engine) fn state(&self, with_previous: bool) -> ChunkState {
        let range = |buffer: u8| {
            let versions = &self.versions[usize::from(buffer & 1)];
            (*versions.start(), *versions.end())
        };
        let (live, previous) = (range(self.buffer), range(1 - self.buffer));
        let previous_bytes = self.before_bytes().filter(|_| with_previous);
        let (made, marks) = self.tally.as_ref().map(|tally| tally.saved()).unwrap_or_default();
        ChunkState {
            version: self.version,
            initialised: self.initialised,
            bad: self.bad,
            live_bytes: self.live_bytes(),
            versions: live,
            previous: previous_bytes.map(|_| previous),
            previous_bytes: previous_bytes.unwrap_or(0),
            made,
            marks,
        }
    }

    pub(in crate::engine) fn fits(&self, state: &ChunkState) -> Result<(), String> {
        state.check()?;
        let (made, marks) = self.tally.as_ref().map_or((0, 0), |tally| tally.lengths());
        for (got, want) in [(state.made.len(), made), (state.marks.len(), marks)] {
            if got != want {
                return Err(format!(
                    "the image counts contributions of {got} workers, but the chunk has {want} workers"
                ));
            }
        }
        let most = self.spec.bytes;
        let is_other = |bytes: u64| bytes > most || (!self.spec.dynamic && bytes != most);
        let got = match (state.previous_bytes > most, is_other(state.live_bytes)) {
            (true, _) => state.previous_bytes,
            (false, true) => state.live_bytes,
            (false, false) => return Ok(()),
        };
        Err(format!("the weights in the image have {got} bytes, but the chunk has at most {most} bytes"))
    }
}
