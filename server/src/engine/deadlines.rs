//! Which chunks have operations whose deadline may have passed. Each chunk with such operations has one entry that counts, of the
//! earliest deadline that it had when that was made: so a tick looks at no chunk that nobody waits for.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Deadlines {
    /// Deadlines and chunks. An entry counts where its chunk says the same time.
    entries: BinaryHeap<Reverse<(u64, u32)>>,
}

impl Deadlines {
    /// An operation on a chunk has this deadline. `due_ms` is what the chunk says.
    pub(super) fn note(&mut self, chunk: u32, due_ms: &mut u64, deadline_ms: u64) {
        if deadline_ms < *due_ms {
            *due_ms = deadline_ms;
            self.entries.push(Reverse((deadline_ms, chunk)));
        }
    }

    /// A chunk that said this time, which is over.
    pub(super) fn pop(&mut self, now_ms: u64) -> Option<(u32, u64)> {
        let Reverse((due_ms, chunk)) = *self.entries.peek()?;
        if due_ms > now_ms {
            return None;
        }
        self.entries.pop();
        Some((chunk, due_ms))
    }

    /// Entries that count no more are dropped where they are many: a worker whose every operation has an earlier deadline than the one
    /// before adds one with each.
    pub(super) fn shrink(&mut self, chunks: usize, counts: impl Fn(u32, u64) -> bool) {
        if self.entries.len() > 2 * chunks + 64 {
            self.entries.retain(|Reverse((due_ms, chunk))| counts(*chunk, *due_ms));
        }
    }

    /// Chunks that operations may wait for, each once.
    pub(super) fn chunks(&self) -> Vec<u32> {
        let mut chunks: Vec<u32> = self.entries.iter().map(|Reverse((_, chunk))| *chunk).collect();
        chunks.sort_unstable();
        chunks.dedup();
        chunks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_comes_once_at_its_earliest_deadline_and_entries_do_not_pile_up() {
        let (mut deadlines, mut due) = (Deadlines::default(), [u64::MAX; 3]);
        for deadline_ms in (1..=10_000).rev() {
            deadlines.note(1, &mut due[1], deadline_ms);
            deadlines.shrink(due.len(), |chunk, due_ms| due[chunk as usize] == due_ms);
        }
        deadlines.note(2, &mut due[2], 5);
        deadlines.note(2, &mut due[2], 7);
        assert_eq!((due, deadlines.chunks()), ([u64::MAX, 1, 5], vec![1, 2]));
        assert!(deadlines.entries.len() <= 2 * due.len() + 66, "{}", deadlines.entries.len());
        assert_eq!(deadlines.pop(0), None);
        let counting: Vec<_> = std::iter::from_fn(|| deadlines.pop(10_000))
            .filter(|(chunk, due_ms)| due[*chunk as usize] == *due_ms)
            .collect();
        assert_eq!(counting, [(1, 1), (2, 5)]);
    }
}
