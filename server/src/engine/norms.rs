//! Tensors whose rule needs norms over all of them (LAMB): their chunks are on one lane, and finish a round together. Owns which chunks
//! belong together, and how many of each tensor are prepared. It must not know how the norms are computed, or what a round is.
//!
//! ```text
//!  0 ready ──ready──▶ 1 ready ──ready──▶ … ──ready──▶ all: they finish together, and 0 are ready
//!     ▲                  │
//!     └───── one_less ───┘  a chunk is given up, or comes whole
//! ```
//!
//! If a chunk finished by itself, its step would be of norms over a part of the tensor.

use std::ops::Range;

/// The chunks of one such tensor, in order.
#[derive(Clone, Debug)]
struct Group {
    chunks: Range<u32>,
    /// Those whose norms are known.
    ready: u32,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Groups {
    all: Vec<Group>,
}

impl Groups {
    pub(super) fn chunks(&self, group: u32) -> Range<u32> {
        self.all[group as usize].chunks.clone()
    }

    /// The chunks that end rounds with this one, which is of that group if it is of any.
    pub(super) fn with(&self, chunk: u32, group: Option<u32>) -> Range<u32> {
        group.map_or(chunk..chunk + 1, |group| self.chunks(group))
    }

    /// A new chunk joins the group of the chunk before it, or a new one.
    pub(super) fn join(&mut self, chunk: u32, before: Option<u32>) -> u32 {
        let group = before.unwrap_or_else(|| {
            self.all.push(Group { chunks: chunk..chunk, ready: 0 });
            self.all.len() as u32 - 1
        });
        self.all[group as usize].chunks.end = chunk + 1;
        group
    }

    /// These chunks are those of a new tensor: a group that had the same ones before is theirs.
    pub(super) fn place(&mut self, chunks: Range<u32>) -> u32 {
        let new = Group { chunks, ready: 0 };
        match self.all.iter().position(|group| group.chunks == new.chunks) {
            Some(at) => {
                self.all[at] = new;
                at as u32
            }
            None => {
                self.all.push(new);
                self.all.len() as u32 - 1
            }
        }
    }

    /// A chunk is prepared. All chunks of its group, if it is the last one.
    pub(super) fn ready(&mut self, group: u32) -> Option<Range<u32>> {
        let group = &mut self.all[group as usize];
        group.ready += 1;
        if group.ready < group.chunks.len() as u32 {
            return None;
        }
        group.ready = 0;
        Some(group.chunks.clone())
    }

    /// One that was prepared is not.
    pub(super) fn one_less(&mut self, group: u32) {
        let group = &mut self.all[group as usize];
        group.ready = group.ready.saturating_sub(1);
    }

    /// The chunks of each group.
    pub(super) fn ranges(&self) -> impl Iterator<Item = Range<u32>> + '_ {
        self.all.iter().map(|group| group.chunks.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_chunk_finishes_all_and_one_that_leaves_is_waited_for_again() {
        let mut groups = Groups::default();
        let first = groups.join(4, None);
        assert_eq!((groups.join(5, Some(first)), groups.join(6, None)), (first, first + 1));
        assert_eq!((groups.with(5, Some(first)), groups.with(9, None)), (4..6, 9..10));
        assert_eq!(groups.ready(first), None);
        groups.one_less(first);
        assert_eq!((groups.ready(first), groups.ready(first), groups.ready(first)), (None, Some(4..6), None));
        // The same stretch for another tensor begins anew.
        assert_eq!((groups.place(4..6), groups.place(7..8)), (first, first + 2));
        assert_eq!(groups.ready(first), None);
        assert_eq!(groups.ranges().collect::<Vec<_>>(), [4..6, 6..7, 7..8]);
    }
}
