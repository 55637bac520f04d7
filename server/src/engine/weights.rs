//! Where the weights of one chunk are: which of its two buffers is in force, which versions each has, and who reads them. Owns the
//! answer to "which buffer may a round be published into". It must not know how rounds come about.
//!
//! Where workers are waited for, the version before the one in force is kept: one that joins again is given exactly the weights that
//! its earlier incarnation had.
//!
//! ```text
//!  the version before:
//!  gone ──a round is published into the other buffer──▶ there ──a round is published in place, or did not fit──▶ gone
//! ```
//!
//! If a round were published into a buffer that is read, a worker would get weights of two versions in one tensor.

use super::image::ChunkState;
use super::views::Views;
use proto_common::batch::Reading;
use proto_common::ids::Rank;

/// See the module.
#[derive(Debug)]
pub(super) struct Weights {
    /// Buffer of the published version (0 or 1).
    buffer: u8,
    /// The first and the last version that each buffer has the weights of: rounds may end without new ones.
    versions: [(u64, u64); 2],
    /// Is the version before the one in force kept? Then nothing is published where weights in force lie.
    keeps_before: bool,
    /// Its bytes, if the buffer that is not in force has it.
    before: Option<u64>,
    /// Who reads each buffer.
    pub(super) views: Views,
}

impl Weights {
    pub(super) fn new(keeps_before: bool) -> Self {
        Self { buffer: 0, versions: [(0, 0); 2], keeps_before, before: None, views: Views::default() }
    }

    /// The buffer in force.
    pub(super) fn buffer(&self) -> u8 {
        self.buffer
    }

    /// The buffers to publish into, best first: the one in force is in the cache, and needs no second one.
    fn to_publish_into(&self) -> impl Iterator<Item = u8> {
        let in_force = (!self.keeps_before).then_some(self.buffer);
        in_force.into_iter().chain([1 - self.buffer])
    }

    /// A buffer to publish into that nobody reads; none while both are being read.
    pub(super) fn writable(&self) -> Option<u8> {
        self.to_publish_into().find(|buffer| !self.views.is_read(*buffer))
    }

    /// A buffer that a round could have if it were not for landings.
    pub(super) fn landing_only(&self) -> Option<u8> {
        self.to_publish_into().find(|buffer| self.views.is_landing_only(*buffer))
    }

    /// Does somebody read one of the buffers?
    pub(super) fn is_read(&self) -> bool {
        self.views.is_read(0) || self.views.is_read(1)
    }

    /// The initial value is set: the buffer for it, which is in force then. It is not the one in force now, because the zeros may be
    /// on their way to a worker.
    pub(super) fn initialise(&mut self) -> u8 {
        self.buffer = 1 - self.buffer;
        self.before = None;
        self.buffer
    }

    /// A version is in force in this buffer; the one before it has so many bytes.
    pub(super) fn publish(&mut self, into: u8, version: u64, before_bytes: u64) {
        self.before = (into != self.buffer).then_some(before_bytes);
        self.buffer = into;
        self.versions[usize::from(into)] = (version, version);
    }

    /// A version has the weights of the one before. If its values did not fit, they were written to a buffer in part.
    pub(super) fn pass(&mut self, version: u64, written: Option<u8>) {
        if written.is_some_and(|into| into != self.buffer) {
            self.before = None;
        }
        self.versions[usize::from(self.buffer)].1 = version;
    }

    /// The buffer that has a version's weights (any newer one's, if no version is named), and their bytes. None if newer versions have
    /// replaced them.
    pub(super) fn of(&self, version: Option<u64>, live_bytes: u64) -> Option<(u8, u64)> {
        let other = 1 - self.buffer;
        let has = |buffer: u8, version: u64| {
            let (first, last) = self.versions[usize::from(buffer)];
            (first..=last).contains(&version)
        };
        match version {
            Some(version) if !has(self.buffer, version) => {
                self.before.filter(|_| has(other, version)).map(|bytes| (other, bytes))
            }
            _ => Some((self.buffer, live_bytes)),
        }
    }

    /// What the worker reads of what it was shown: the rest may be overwritten.
    pub(super) fn hide(&mut self, rank: Rank, reading: Reading) {
        self.views.hide(rank, reading, &self.versions);
    }

    /// Adds to an image what it is to have of weights.
    pub(super) fn save(&self, state: &mut ChunkState, with_previous: bool) {
        let before = self.before.filter(|_| with_previous && self.keeps_before);
        state.versions = self.versions[usize::from(self.buffer)];
        state.previous = before.map(|_| self.versions[usize::from(1 - self.buffer)]);
        state.previous_bytes = before.unwrap_or(0);
    }

    /// An image's weights are in this buffer.
    pub(super) fn restore(&mut self, state: &ChunkState, into: u8) {
        self.buffer = into & 1;
        // Nobody asks for a version that is in neither buffer.
        self.versions[usize::from(1 - self.buffer)] = state.previous.unwrap_or(state.versions);
        self.versions[usize::from(self.buffer)] = state.versions;
        self.before = state.previous.map(|_| state.previous_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_is_published_in_place_unless_the_version_before_is_kept() {
        let (mut weights, mut keeping) = (Weights::new(false), Weights::new(true));
        assert_eq!((weights.writable(), keeping.writable()), (Some(0), Some(1)));
        weights.publish(0, 1, 16);
        keeping.publish(1, 1, 16);
        assert_eq!((weights.of(Some(0), 16), keeping.of(Some(0), 8)), (None, Some((0, 16))));
        assert_eq!((keeping.of(Some(1), 8), keeping.of(None, 8)), (Some((1, 8)), Some((1, 8))));
        // A round that ends without new weights is of the same ones; what did not fit is in the other buffer in part.
        keeping.pass(2, None);
        assert_eq!((keeping.of(Some(2), 8), keeping.of(Some(0), 8)), (Some((1, 8)), Some((0, 16))));
        keeping.pass(3, Some(0));
        assert_eq!((keeping.of(Some(1), 8), keeping.of(Some(0), 8)), (Some((1, 8)), None));
    }

    #[test]
    fn a_buffer_that_is_read_is_not_written_and_an_image_says_what_is_where() {
        let mut weights = Weights::new(true);
        weights.publish(1, 4, 16);
        weights.views.land(Rank(0), 0);
        assert_eq!((weights.writable(), weights.landing_only(), weights.is_read()), (None, Some(0), true));
        let mut state = ChunkState::default();
        weights.save(&mut state, true);
        assert_eq!((state.versions, state.previous, state.previous_bytes), ((4, 4), Some((0, 0)), 16));
        let mut other = Weights::new(true);
        other.restore(&state, 0);
        assert_eq!(
            (other.buffer(), other.of(Some(4), 8), other.of(Some(0), 8)),
            (0, Some((0, 8)), Some((1, 16)))
        );
        assert_eq!(other.initialise(), 1);
        assert_eq!(other.of(Some(4), 8), None);
    }
}
