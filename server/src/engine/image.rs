//! The engine's part of a chunk's image: what a server has to know of a chunk, beside its numbers, to go on with it as
//! another one would have. It must not know how images travel or are stored.

use super::chunk::{Chunk, Stage};
use super::lane::LaneEngine;
use super::role::Role;
use proto_common::limits::WORKERS_MAX;
use serde::{Deserialize, Serialize};

/// Versions and counts of contributions are below: they are counted on from what others say.
pub(super) const COUNT_END: u64 = u64::MAX / 2;

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChunkState {
    /// Published version.
    pub version: u64,
    /// Its initial value was set.
    pub initialised: bool,
    /// Rounds that ended without new weights: bit 0 is the one in force.
    pub bad: u64,
    /// Bytes of the version in force.
    pub live_bytes: u64,
    /// First and last version that the weights in force are of.
    pub versions: (u64, u64),
    /// As `versions`, of the weights before, where they are in the image.
    pub previous: Option<(u64, u64)>,
    /// Bytes of those.
    pub previous_bytes: u64,
    /// Contributions of each worker that are in force, where they are counted.
    pub made: Vec<u64>,
    /// Of each worker, where contributions can end otherwise than by being applied: the last one, and which of the 64 up to
    /// it did.
    pub marks: Vec<(u64, u64)>,
}

const NOT_IN_ORDER: &str = "the versions in the image are inconsistent";

impl ChunkState {
    fn check(&self) -> Result<(), String> {
        let (first, last) = self.versions;
        let before = self.previous.is_none_or(|(from, to)| from <= to && to < first);
        let bounded = self.made.len().max(self.marks.len()) <= WORKERS_MAX as usize;
        let counted = self.made.iter().all(|made| *made < COUNT_END) && self.version < COUNT_END;
        if first <= last && last == self.version && before && bounded && counted {
            Ok(())
        } else {
            Err(NOT_IN_ORDER.into())
        }
    }
}

impl Chunk {
    /// Are what its rule keeps, and its weights, those of the published version? Not between the two halves of a rule that
    /// needs norms.
    pub(super) fn is_whole(&self) -> bool {
        // While it is to be copied it is not prepared.
        let halfway =
            self.group.is_some() && matches!(self.stage, Stage::Norms | Stage::Buffer) && !self.is_due();
        !halfway && !self.is_judged() && !self.initialising()
    }

    pub(super) fn state(&self, with_previous: bool) -> ChunkState {
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

    fn fits(&self, state: &ChunkState) -> Result<(), String> {
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

impl LaneEngine {
    /// What an image of a chunk is to say, and in which buffer its weights are; nothing while it cannot be taken, in the
    /// middle of a round's end. Weights before those in force are in the other buffer, where the state has them.
    #[must_use]
    pub fn state(&self, chunk: u32, with_previous: bool) -> Option<(ChunkState, u8)> {
        let chunk = self.chunks.get(chunk as usize).filter(|chunk| chunk.is_whole())?;
        Some((chunk.state(with_previous), chunk.buffer))
    }

    /// Where the weights of an image can be put: a buffer that nobody reads. None while both are being read.
    #[must_use]
    pub fn room_for_image(&self, chunk: u32) -> Option<u8> {
        self.chunks.get(chunk as usize)?.writable()
    }

    /// Does the state of an image fit the chunk?
    pub fn check_state(&self, chunk: u32, state: &ChunkState) -> Result<(), String> {
        self.chunks.get(chunk as usize).map_or(Err(NOT_IN_ORDER.into()), |chunk| chunk.fits(state))
    }

    /// The chunk goes on from an image, whose weights are in buffer `into` now. What was collected of a round is forgotten:
    /// the chunk is to have had none (as a copy, or before anybody contributed).
    pub fn restore(&mut self, index: u32, state: &ChunkState, into: u8) -> Result<(), String> {
        self.check_state(index, state)?;
        let Some(chunk) = self.chunks.get_mut(index as usize) else { return Err(NOT_IN_ORDER.into()) };
        chunk.version = state.version;
        chunk.buffer = into & 1;
        chunk.initialised = state.initialised;
        chunk.bad = state.bad;
        chunk.set_versions(state.versions, state.previous);
        chunk.set_live_bytes(state.live_bytes);
        chunk.set_before(state.previous.map(|_| state.previous_bytes));
        chunk.contributed.clear();
        chunk.stage = Stage::Contributions;
        (chunk.is_spoilt, chunk.is_torn) = (false, false);
        if let Some(tally) = &mut chunk.tally {
            tally.restore(&state.made, &state.marks);
        }
        // The image may be of before its server was told so, and nobody tells this one again.
        self.roster.counting_from(chunk.spec.id.key).for_each(|(rank, from)| chunk.begin_count(rank, from));
        if chunk.role.is_some_and(Role::serves) {
            self.look_for_tears(index);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_follow_one_another() {
        let good =
            ChunkState { version: 5, versions: (4, 5), previous: Some((2, 3)), ..ChunkState::default() };
        assert_eq!(good.check(), Ok(()));
        assert_eq!(ChunkState::default().check(), Ok(()));
        for bad in [
            ChunkState { versions: (4, 6), ..good.clone() },
            ChunkState { versions: (6, 5), ..good.clone() },
            ChunkState { previous: Some((3, 4)), ..good.clone() },
            ChunkState { previous: Some((3, 2)), ..good.clone() },
            ChunkState { made: vec![0; WORKERS_MAX as usize + 1], ..good },
        ] {
            assert_eq!(bad.check(), Err(NOT_IN_ORDER.into()), "{bad:?}");
        }
    }
}
