//! Rounds that are complete and have no buffer for their weights, because workers have not copied older weights yet. A stopped
//! worker would delay all others, so the server copies those weights into a spill block, the worker copies them from there
//! later, and the round continues. Weights that a worker has as a view are not moved: the worker reads the buffer itself.
//! Owns which chunks wait so, and since when; who reads what is each chunk's [`Views`](super::views::Views).
//!
//! ```text
//!            wait                   5 ms                         a spill block, and landings only
//!  (none) ─────────▶ new ─ look ─────────▶ due ──────────────────────────────────────────────────▶ Relieve
//!     ▲                                     ▲ └─ otherwise ─▶ due again after 50 ms                  │
//!     │                                     └────────────────────────────────────────────────────────┘
//!     └── the round has a buffer: its entry goes at the next look
//! ```

use super::chunk::Chunk;
use super::command::{Command, Commands};
use super::placed::Placement;
use super::rounds::Stage;

/// So long a round waits for workers to copy by themselves. Those that run need less, and the copy would be for nothing.
const PATIENCE_MS: u64 = 5;
/// And so long where there was no spill block, or no landing that can be moved.
const AGAIN_MS: u64 = 50;

/// A chunk whose round waits for a buffer.
#[derive(Clone, Copy, Debug)]
struct Stuck {
    chunk: u32,
    /// When something is done about it; not known before somebody looks.
    due_ms: Option<u64>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Relief {
    stuck: Vec<Stuck>,
}

impl Relief {
    /// A complete round of this chunk has to wait for a buffer.
    pub(super) fn wait(&mut self, chunk: u32) {
        match self.stuck.iter_mut().find(|stuck| stuck.chunk == chunk) {
            Some(stuck) => stuck.due_ms = None,
            None => self.stuck.push(Stuck { chunk, due_ms: None }),
        }
    }

    /// Does a complete round wait only for workers to copy? Holders of views may keep a round waiting for long, and nothing can be
    /// moved for them.
    pub(super) fn is_stuck(&self, chunks: &[Chunk]) -> bool {
        self.stuck.iter().any(|stuck| chunks[stuck.chunk as usize].landing_only().is_some())
    }

    /// Moves weights out of the way of rounds that have waited for long.
    pub(super) fn relieve(
        &mut self,
        now_ms: u64,
        chunks: &[Chunk],
        placement: &mut Placement,
        out: &mut Commands,
    ) {
        self.stuck.retain_mut(|stuck| {
            let chunk = &chunks[stuck.chunk as usize];
            if chunk.rounds.stage() != Stage::Buffer {
                return false;
            }
            if *stuck.due_ms.get_or_insert(now_ms + PATIENCE_MS) > now_ms {
                return true;
            }
            stuck.due_ms = Some(now_ms + AGAIN_MS);
            if let Some(buffer) = chunk.landing_only()
                && let Some(to) = placement.take()
            {
                out.push(Command::Relieve { chunk: stuck.chunk, buffer, to });
            }
            true
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto_common::ids::{Operation, Rank};

    fn chunk() -> Chunk {
        let mut chunk = Chunk::sample(1);
        chunk.rounds.wait_for(Stage::Buffer);
        (0..2).for_each(|buffer| chunk.weights.views.land(Rank(0), buffer));
        chunk
    }

    fn relieve(relief: &mut Relief, now_ms: u64, chunk: &Chunk, placement: &mut Placement) -> usize {
        let mut out = Commands::default();
        relief.relieve(now_ms, std::slice::from_ref(chunk), placement, &mut out);
        out.list.len()
    }

    #[test]
    fn a_round_is_relieved_after_its_patience_and_again_later_and_not_once_it_has_a_buffer() {
        let (mut relief, mut chunk, mut placement) = (Relief::default(), chunk(), Placement::new(1));
        relief.wait(0);
        assert!(relief.is_stuck(std::slice::from_ref(&chunk)));
        let mut at = |now_ms, chunk: &Chunk| relieve(&mut relief, now_ms, chunk, &mut placement);
        assert_eq!((at(100, &chunk), at(104, &chunk), at(105, &chunk)), (0, 0, 1));
        assert_eq!((at(106, &chunk), at(155, &chunk)), (0, 0), "the only spill block is used");
        chunk.publish(None);
        assert_eq!(at(300, &chunk), 0);
        assert!(!relief.is_stuck(std::slice::from_ref(&chunk)), "nothing waits");
    }

    #[test]
    fn nothing_is_moved_for_views() {
        let (mut relief, mut chunk, mut placement) = (Relief::default(), chunk(), Placement::new(1));
        (0..2).for_each(|buffer| chunk.weights.views.show(Rank(1), Operation(1), buffer));
        relief.wait(0);
        assert!(!relief.is_stuck(std::slice::from_ref(&chunk)));
        assert_eq!(relieve(&mut relief, 0, &chunk, &mut placement), 0);
        assert_eq!(relieve(&mut relief, 9, &chunk, &mut placement), 0);
        assert_eq!(placement.sizes(), (0, 1));
    }
}
