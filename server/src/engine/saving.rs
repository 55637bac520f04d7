//! Which chunks a checkpoint waits for, and which are to be copied now. A chunk that is to be copied publishes nothing before
//! it is: so what is copied is exactly a version, however long it takes. It must not know where copies go.

use super::chunk::{Chunk, Stage};
use super::command::Commands;
use super::image::ChunkState;
use super::lane::LaneEngine;
use super::role::Role;
use proto_common::ids::ChunkId;
use std::collections::VecDeque;

/// Rounds that training goes on by before a chunk without any contribution counts as one that takes no part in it.
const ROUNDS_WITHOUT: u64 = 2;

/// What a checkpoint wants of a chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Saving {
    #[default]
    Nothing,
    /// A copy, once this version is published.
    Awaits(u64),
    /// A copy of the version in force, before anything else is published.
    Due,
}

/// The checkpoint under way.
#[derive(Debug)]
pub(super) struct Checkpoint {
    round: u64,
    /// Chunks that are to be copied, and those of them that hold a round up. Those that were copied leave when they are met.
    due: VecDeque<u32>,
    urgent: VecDeque<u32>,
    /// Chunks that are not copied yet.
    left: u32,
    /// Was it told that training has gone on past it?
    is_passed: bool,
}

impl Checkpoint {
    /// A chunk is to be copied.
    fn push(&mut self, index: u32, chunk: &Chunk) {
        let queue = if chunk.stage == Stage::Buffer { &mut self.urgent } else { &mut self.due };
        queue.push_back(index);
    }
}

/// The first of a queue that is to be copied and can be; those that cannot be copied now are asked about after the others.
fn first_whole(queue: &mut VecDeque<u32>, chunks: &[Chunk]) -> Option<u32> {
    for _ in 0..queue.len() {
        let index = queue.pop_front()?;
        match chunks.get(index as usize).filter(|chunk| chunk.is_due()) {
            Some(chunk) if chunk.is_whole() => {
                queue.push_front(index);
                return Some(index);
            }
            Some(_) => queue.push_back(index),
            None => {}
        }
    }
    None
}

/// What a lane has to say of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SavingNews {
    /// This round's was begun here.
    Begun(u64),
    /// A chunk has gone two rounds further.
    Passed(u64),
}

/// All of a lane's part in checkpoints.
#[derive(Debug, Default)]
pub(super) struct Savings {
    every_rounds: u64,
    /// Checkpoints that were begun here.
    begun: u64,
    current: Option<Checkpoint>,
    /// No checkpoint of this round or an earlier one is begun by itself any more.
    last_round: u64,
    /// The job has tensors with rounds: checkpoints are of theirs.
    are_rounds_counted: bool,
    /// Chunks are all copied, and rows of tables are not.
    has_rows_left: bool,
    news: VecDeque<SavingNews>,
}

impl Savings {
    fn is_idle(&self) -> bool {
        self.current.is_none() && !self.has_rows_left
    }
}

impl Chunk {
    /// Is it to be copied before anything is published?
    pub(super) fn is_due(&self) -> bool {
        self.saving == Saving::Due
    }

    fn takes_no_part(&self) -> bool {
        self.stage == Stage::Contributions
            && self.contributed.len() == 0
            && self.held.of_round(self.round()).next().is_none()
    }

    /// A copy is wanted of this version; of the one in force where that is later, or there are no rounds.
    fn want_copy(&mut self, round: u64, now: bool) {
        let is_there = self.version >= round || now || self.is_loose();
        self.saving = match (is_there, self.is_whole()) {
            (true, true) => Saving::Due,
            // In the middle of a round's end: then the version that it makes.
            (true, false) => Saving::Awaits(self.version + 1),
            (false, _) => Saving::Awaits(round),
        };
    }
}

impl LaneEngine {
    /// The chunk under an index.
    #[must_use]
    pub fn chunk_id(&self, index: u32) -> Option<ChunkId> {
        self.chunks.get(index as usize).map(|chunk| chunk.spec.id)
    }

    /// The home of rows under an index; none of other chunks.
    #[must_use]
    pub fn home(&self, index: u32) -> Option<ChunkId> {
        let spec = &self.chunks.get(index as usize)?.spec;
        spec.has_rows().then_some(spec.id)
    }

    /// Is a home here, as served or as a copy?
    #[must_use]
    pub fn has_home(&self, home: ChunkId) -> bool {
        self.index.contains_key(&home)
    }

    /// Is a home served here?
    #[must_use]
    pub fn serves_home(&self, home: ChunkId) -> bool {
        self.serves(&home).is_some()
    }

    /// May rows of a home be told? Not while its newest version may be one that nobody else has.
    #[must_use]
    pub fn tells_rows(&self, home: ChunkId) -> bool {
        self.serves(&home).is_some_and(|index| !self.chunks[index as usize].init_pending)
    }

    /// Does this server serve a chunk, by its index?
    #[must_use]
    pub fn is_served(&self, index: u32) -> bool {
        self.chunks.get(index as usize).is_some_and(Chunk::is_served)
    }

    /// Checkpoints begin by themselves at rounds that are a multiple of this; 0: they do not.
    pub fn save_every(&mut self, rounds: u64) {
        self.savings.every_rounds = rounds;
    }

    /// Somewhere in the job there are tensors with rounds: those without begin no checkpoint by themselves.
    pub fn count_rounds(&mut self) {
        self.savings.are_rounds_counted = true;
    }

    /// The round that a chunk is at; outside mode sync about how often each worker has contributed.
    fn round_of(&self, chunk: &Chunk) -> u64 {
        if chunk.is_loose() { chunk.version / u64::from(self.config.workers).max(1) } else { chunk.version }
    }

    /// A checkpoint of this round begins, or (`now`) of the moment. False where it has begun, or is over. One that was under
    /// way ends without being complete.
    pub fn begin_save(&mut self, round: u64, now: bool, out: &mut Commands) -> bool {
        let is_known = self.savings.current.as_ref().is_some_and(|current| current.round == round);
        if is_known || (!now && round <= self.savings.last_round) {
            return false;
        }
        if let Some(current) = &self.savings.current {
            self.drop_save(current.round, out);
        }
        self.savings.last_round = self.savings.last_round.max(round);
        self.savings.begun += 1;
        let (due, urgent) = Default::default();
        let mut current = Checkpoint { round, due, urgent, left: 0, is_passed: false };
        for (index, chunk) in (0u32..).zip(&mut self.chunks) {
            if !chunk.is_served() {
                continue;
            }
            chunk.want_copy(round, now);
            current.left += 1;
            if chunk.is_due() {
                current.push(index, chunk);
            }
        }
        self.savings.current = Some(current);
        true
    }

    /// The newest round of any chunk that is served and has rounds; of any, where none has.
    #[must_use]
    pub fn newest_version(&self) -> u64 {
        let served = || self.chunks.iter().filter(|chunk| chunk.is_served());
        let with_rounds = served().filter(|chunk| !chunk.is_loose()).map(|chunk| chunk.version).max();
        with_rounds.or_else(|| served().map(|chunk| self.round_of(chunk)).max()).unwrap_or(0)
    }

    /// Would a checkpoint of this round, not begun here, come too late? Then where training is.
    #[must_use]
    pub fn is_past(&self, round: u64) -> Option<u64> {
        let is_known = round <= self.savings.last_round;
        let chunks = self.chunks.iter().filter(|chunk| chunk.is_served() && !chunk.is_loose());
        chunks.map(|chunk| chunk.version).max().filter(|newest| !is_known && *newest > round)
    }

    /// What the checkpoint under way waits for here: how many chunks, and the one that is furthest behind, with its version.
    #[must_use]
    pub fn save_waits(&self) -> Option<(u64, u32, ChunkId, u64)> {
        let (round, left) = self.saving()?;
        let wanted = self.chunks.iter().filter(|chunk| chunk.saving != Saving::Nothing);
        let behind = wanted.min_by_key(|chunk| chunk.version)?;
        Some((round, left, behind.spec.id, behind.version))
    }

    /// Something was published: is a checkpoint due with it?
    pub(super) fn note_published(&mut self, index: u32) {
        let chunk = &self.chunks[index as usize];
        let (version, round, every) = (chunk.version, self.round_of(chunk), self.savings.every_rounds);
        self.stats.newest = self.stats.newest.max(version);
        let is_loose = chunk.is_loose();
        let each = if is_loose { every.saturating_mul(u64::from(self.config.workers)) } else { every };
        let is_multiple =
            each > 0 && version.is_multiple_of(each) && chunk.is_served() && !chunk.spec.has_rows();
        let begins = is_multiple && !(is_loose && self.savings.are_rounds_counted);
        // One at a time: while the disk is slow, or a tensor is waited for, there are fewer.
        if begins && round > self.savings.last_round && self.savings.is_idle() {
            // Nothing is held up where none is under way.
            let mut none = Commands::default();
            self.begin_save(round, false, &mut none);
            self.savings.news.push_back(SavingNews::Begun(round));
        }
        let Self { chunks, savings, .. } = self;
        let (chunk, Some(current)) = (&mut chunks[index as usize], &mut savings.current) else { return };
        if matches!(chunk.saving, Saving::Awaits(round) if version >= round) {
            chunk.saving = Saving::Due;
            current.push(index, chunk);
        }
        if !current.is_passed && version >= current.round + ROUNDS_WITHOUT && !chunk.is_loose() {
            current.is_passed = true;
            savings.news.push_back(SavingNews::Passed(current.round));
        }
    }

    /// Training has gone on past a checkpoint: chunks without a contribution since take no part in it, and are copied as they
    /// are.
    pub fn pass_save(&mut self, round: u64) {
        let Some(current) = self.savings.current.as_mut().filter(|current| current.round == round) else {
            return;
        };
        current.is_passed = true;
        for (index, chunk) in (0u32..).zip(&mut self.chunks) {
            if matches!(chunk.saving, Saving::Awaits(_)) && chunk.takes_no_part() {
                chunk.saving = Saving::Due;
                current.push(index, chunk);
            }
        }
    }

    /// A chunk holds a round up: if that is because it is to be copied, it is copied before the others.
    pub(super) fn hasten_save(&mut self, index: u32) {
        let Self { chunks, savings, .. } = self;
        let current = savings.current.as_mut().filter(|_| chunks[index as usize].is_due());
        current.into_iter().for_each(|current| current.urgent.push_back(index));
    }

    /// Rows of tables are, or are not, still to be copied: none begins by itself before they are.
    pub fn note_rows_left(&mut self, has_rows_left: bool) {
        self.savings.has_rows_left = has_rows_left;
    }

    /// Nothing comes of a checkpoint: what it holds up goes on.
    pub fn drop_save(&mut self, round: u64, out: &mut Commands) {
        if self.savings.current.take_if(|current| current.round == round).is_none() {
            return;
        }
        // It may have been of a round far ahead: those before that are still to have theirs.
        self.savings.last_round = self.savings.last_round.min(self.newest_version());
        for index in 0..self.chunks.len() {
            let saving = std::mem::take(&mut self.chunks[index].saving);
            if saving == Saving::Due {
                self.resume_round(index as u32, out);
            }
        }
    }

    /// The checkpoint under way, where chunks that it is to have are not this server's any more.
    #[must_use]
    pub fn torn_save(&self) -> Option<u64> {
        let (round, left) = self.saving()?;
        let wanted = self.chunks.iter().filter(|chunk| chunk.saving != Saving::Nothing && chunk.is_served());
        (wanted.count() != left as usize).then_some(round)
    }

    /// The round of the checkpoint under way, and how many chunks are not copied yet.
    #[must_use]
    pub fn saving(&self) -> Option<(u64, u32)> {
        self.savings.current.as_ref().map(|current| (current.round, current.left))
    }

    /// Which one of those begun here is under way, or was last: a round may have several.
    #[must_use]
    pub fn save_number(&self) -> u64 {
        self.savings.begun
    }

    /// All chunks that the checkpoint under way is to have.
    pub fn saved_chunks(&self) -> impl Iterator<Item = (u32, super::ChunkSpec)> + '_ {
        let chunks = (0u32..).zip(&self.chunks);
        chunks.filter(|(_, chunk)| chunk.saving != Saving::Nothing).map(|(index, chunk)| (index, chunk.spec))
    }

    /// The chunk that is to be copied next, with what an image says of it. One that cannot be copied at this moment is asked
    /// about again.
    pub fn next_to_save(&mut self) -> Option<(u32, ChunkState, u8)> {
        let Self { chunks, savings, .. } = self;
        let Checkpoint { due, urgent, .. } = savings.current.as_mut()?;
        let index = first_whole(urgent, chunks).or_else(|| first_whole(due, chunks))?;
        let (state, buffer) = self.state(index, false)?;
        Some((index, state, buffer))
    }

    /// A chunk is copied: what waited for that goes on. True when it was the checkpoint's last.
    pub fn saved(&mut self, index: u32, out: &mut Commands) -> bool {
        let Some(current) = self.savings.current.as_mut() else { return false };
        current.left = current.left.saturating_sub(1);
        let is_last = current.left == 0;
        // Before anything goes on: that may be what the next one begins with.
        if is_last {
            self.savings.current = None;
        }
        if let Some(chunk) = self.chunks.get_mut(index as usize) {
            chunk.saving = Saving::Nothing;
            self.resume_round(index, out);
        }
        is_last
    }

    fn resume_round(&mut self, index: u32, out: &mut Commands) {
        let chunk = &self.chunks[index as usize];
        match chunk.group {
            // It was not prepared while it was to be copied.
            Some(group) if chunk.stage == Stage::Buffer => {
                self.prepare(index, group, None, out);
                self.settle(index, out);
            }
            Some(_) | None if chunk.stage == Stage::Buffer => self.finish_late(index, out),
            // Rounds that nobody is left for waited for it.
            _ => self.settle(index, out),
        }
        let chunk = &self.chunks[index as usize];
        // It may have become a copy since: an image that had no place has one now.
        if !chunk.role.is_some_and(Role::serves) && chunk.writable().is_some() {
            self.say_ready(out);
        }
    }

    /// What is to be told of checkpoints, in order.
    pub fn next_saving_news(&mut self) -> Option<SavingNews> {
        self.savings.news.pop_front()
    }
}
