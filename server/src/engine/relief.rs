//! Rounds that are complete and have no buffer for their weights, because workers have not copied older weights yet. A stopped
//! worker would delay all others, so the server copies those weights into a spill block, the worker copies them from there
//! later, and the round continues. Weights that a worker has as a view are not moved: the worker reads the buffer itself.

use super::chunk::{Chunk, Stage};
use super::command::{Command, Commands};
use super::lane::LaneEngine;
use proto_common::ids::Rank;

/// So long a round waits for workers to copy by themselves. Those that run need less, and the copy would be for nothing.
const PATIENCE_MS: u64 = 5;
/// And so long where there was no spill block, or no landing that can be moved.
const AGAIN_MS: u64 = 50;

/// A chunk whose round waits for a buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stuck {
    chunk: u32,
    /// When something is done about it; not known before somebody looks.
    due_ms: Option<u64>,
}

/// Weights that were moved out of a buffer, for workers that are to copy them.
#[derive(Debug)]
pub(super) struct Moved {
    buffer: u8,
    spill: u32,
    readers: Vec<Rank>,
}

impl Chunk {
    /// Whoever still reads an older version, in rank order.
    pub(super) fn reading(&self) -> Vec<Rank> {
        let views = self.views.iter().flatten().map(|(rank, _)| *rank);
        let mut ranks: Vec<Rank> = self.readers.iter().flatten().copied().chain(views).collect();
        ranks.sort_unstable();
        ranks.dedup();
        ranks
    }

    /// A buffer that its round could have, were it not for landings.
    fn landing_only(&self) -> Option<u8> {
        let is_landing = |buffer: &u8| {
            let at = usize::from(*buffer);
            self.views[at].is_empty() && !self.readers[at].is_empty()
        };
        self.to_publish_into().find(is_landing).filter(|_| !self.is_due())
    }

    /// A worker has copied what was moved for it: true. The spill block, where nobody needs it any more.
    fn moved_landed(&mut self, peer: Rank, buffer: u8) -> Option<Option<u32>> {
        let is_it = |moved: &Moved| moved.buffer == buffer && moved.readers.contains(&peer);
        // What was moved was told before what is not.
        let at = self.moved.iter().position(is_it)?;
        let readers = &mut self.moved[at].readers;
        let place = readers.iter().position(|reader| *reader == peer)?;
        readers.swap_remove(place);
        Some(readers.is_empty().then(|| self.moved.remove(at).spill))
    }
}

impl LaneEngine {
    /// A complete round has to wait for a buffer.
    pub(super) fn wait_for_buffer(&mut self, index: u32) {
        self.chunks[index as usize].stage = Stage::Buffer;
        self.hasten_save(index);
        match self.stuck.iter_mut().find(|stuck| stuck.chunk == index) {
            Some(stuck) => stuck.due_ms = None,
            None => self.stuck.push(Stuck { chunk: index, due_ms: None }),
        }
    }

    /// Does a complete round wait only for workers to copy? Then [`LaneEngine::relieve`] must be called every few milliseconds.
    /// Holders of views may keep a round waiting for long, and nothing can be moved for them, so the lane sleeps meanwhile.
    #[must_use]
    pub fn is_stuck(&self) -> bool {
        self.stuck.iter().any(|stuck| self.chunks[stuck.chunk as usize].landing_only().is_some())
    }

    /// Moves weights out of the way of rounds that have waited for long.
    pub fn relieve(&mut self, now_ms: u64, out: &mut Commands) {
        let Self { stuck, chunks, spills, .. } = self;
        stuck.retain_mut(|stuck| {
            let chunk = &chunks[stuck.chunk as usize];
            if chunk.stage != Stage::Buffer {
                return false;
            }
            if *stuck.due_ms.get_or_insert(now_ms + PATIENCE_MS) > now_ms {
                return true;
            }
            stuck.due_ms = Some(now_ms + AGAIN_MS);
            if let Some(buffer) = chunk.landing_only()
                && let Some(to) = spills.pop()
            {
                out.push(Command::Relieve { chunk: stuck.chunk, buffer, to });
            }
            true
        });
    }

    /// The weights of a buffer are in a spill block, too, where these workers copy them: one entry for each landing.
    pub fn relieved(&mut self, index: u32, buffer: u8, spill: u32, moved: &[Rank], out: &mut Commands) {
        let Some(chunk) = self.chunks.get_mut(index as usize) else { return };
        let readers = &mut chunk.readers[usize::from(buffer & 1)];
        let mut away = Vec::new();
        for rank in moved {
            if let Some(at) = readers.iter().position(|reader| reader == rank) {
                away.push(readers.swap_remove(at));
            }
        }
        if away.is_empty() {
            self.spills.push(spill);
            return;
        }
        self.stats.relieved += 1;
        chunk.moved.push(Moved { buffer, spill, readers: away });
        self.finish_late(index, out);
    }

    /// A landing at this worker is done (or its channel is gone): the buffer has one reader less.
    pub fn landed(&mut self, peer: Rank, index: u32, buffer: u8, out: &mut Commands) {
        let Some(chunk) = self.chunks.get_mut(index as usize) else { return };
        if let Some(free) = chunk.moved_landed(peer, buffer & 1) {
            self.spills.extend(free);
            return;
        }
        let readers = &mut chunk.readers[usize::from(buffer & 1)];
        if let Some(at) = readers.iter().position(|reader| *reader == peer) {
            readers.swap_remove(at);
        }
        self.finish_late(index, out);
    }
}
