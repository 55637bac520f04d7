//! The version before the one in force: where workers are waited for, one that comes again is given exactly the weights
//! that its earlier life had. Owns whether the buffer that is not in force is that version. It must not know who asks, or why.
//!
//! ```text
//!  gone ──a round is published into the other buffer──▶ there ──a round is published in place, or did not fit──▶ gone
//! ```

/// See the module.
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

    /// Is it to be kept?
    pub(super) fn is_kept(&self) -> bool {
        self.kept
    }

    /// Its bytes, where it is there.
    pub(super) fn bytes(&self) -> Option<u64> {
        self.there.then_some(self.bytes)
    }

    /// What is in the other buffer is nobody's weights.
    pub(super) fn forget(&mut self) {
        self.there = false;
    }

    /// The other buffer has so many bytes of it now; or (none) it is not there.
    pub(super) fn set(&mut self, bytes: Option<u64>) {
        (self.there, self.bytes) = (bytes.is_some(), bytes.unwrap_or(0));
    }
}
